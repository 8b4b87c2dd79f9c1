"""Entry point: runs a command and turns whatever happens into an exit code."""

from __future__ import annotations

import gc
import io
import os
import signal
import sys
import threading
from typing import NoReturn

import typer
from typer.exceptions import TyperException

from edgepack.base.bugs import TITLE
from edgepack.base.terminal import make_printable
from edgepack.errors import REPORT_IT, BugError, EdgepackError, ToolError

INTERRUPTED = 130
HUNG_UP = 129
READER_GONE = 141
TERMINATED = 143


_YOUNG = 50_000
"""How many new objects are looked through at a time: imports make many, and drop few."""


def main() -> NoReturn:
    """Run the command line of this process."""
    gc.set_threshold(_YOUNG)
    signal.signal(signal.SIGTERM, _terminate)
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:
        signal.signal(signal.SIGHUP, _hang_up)  # nohup has it ignored
    threading.excepthook = _report_bug_of_thread
    _prepare_streams()
    code = run(sys.argv[1:])
    gc.freeze()  # or Python would look through all objects once more before it ends
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code; errors are printed on stderr."""
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        return _end_after_reader()
    except SystemExit as end:
        # typer and rich turn a broken pipe into exit code 1.
        if isinstance(end.__context__, BrokenPipeError):
            return _end_after_reader()
        raise
    return code


def _run(arguments: list[str]) -> int:
    try:
        return _call_app(arguments)
    except EdgepackError as error:
        _tell(error, arguments)
        return error.exit_code
    except TyperException as error:
        if show := getattr(error, "show", None):
            show()
        else:
            sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        sys.stderr.write("interrupted; nothing half-written is left\n")
        return INTERRUPTED
    except BrokenPipeError:
        raise
    except PermissionError as error:
        sys.stderr.write(f"error: {make_printable(str(_make_forbidden_error(error)))}\n")
        return ToolError.exit_code
    except Exception:  # noqa: BLE001  (the one last resort: a bug becomes a report)
        _report_bug(arguments)
        return BugError.exit_code


def _tell(error: EdgepackError, arguments: list[str]) -> None:
    """Print an error; one that is a bug, and was not reported by a worker, as a report."""
    if isinstance(error, BugError) and TITLE not in error.problem:
        _report_bug(arguments)
    else:
        sys.stderr.write(f"error: {make_printable(str(error))}\n")


def _make_forbidden_error(error: PermissionError) -> ToolError:
    """Return what the user of this machine may not do: no bug, wherever it is met."""
    return ToolError(
        f"{error.strerror or 'permission denied'}: {error.filename}",
        hint="check the permissions of that file or folder, and of the folders above it (ls -ld)",
    )


def _call_app(arguments: list[str]) -> int:
    from edgepack.cli.app import app
    from edgepack.cli.groups import narrow_app

    called = narrow_app(app, arguments)
    code = int(called(arguments, standalone_mode=False, prog_name="edgepack") or 0)
    if code == INTERRUPTED:  # how typer returns from Ctrl-C
        raise KeyboardInterrupt
    return code


def _prepare_streams() -> None:
    """Let no name that the terminal's encoding lacks, and no closed stdin, end a command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: PTH123, SIM115


def _end_after_reader() -> int:
    """Drop what is still buffered for whoever read our output: flushing it would raise at exit."""
    _say_nothing_more()
    return READER_GONE


def _say_nothing_more() -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(nowhere, stream.fileno())


def _terminate(_signal: int, _frame: object) -> NoReturn:
    raise SystemExit(TERMINATED)


def _hang_up(_signal: int, _frame: object) -> NoReturn:
    """End as the terminal is gone: writing to it fails, and its shell may tell us once more."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    _say_nothing_more()
    raise SystemExit(HUNG_UP)


def _report_bug_of_thread(raised: threading.ExceptHookArgs) -> None:
    """Report what ended a thread that nobody waits for; the command goes on."""
    import traceback

    from edgepack.base.bugs import format_bug

    if raised.exc_value is not None:
        text = "".join(traceback.format_exception(raised.exc_value))
        sys.stderr.write(f"{format_bug(text)}\n{REPORT_IT}\n")


def _report_bug(arguments: list[str]) -> None:
    import traceback

    from edgepack.base.bugs import format_bug

    command = f"command: edgepack {' '.join(arguments[:1])} ..."
    sys.stderr.write(f"{format_bug(traceback.format_exc())}\n{command}\n{REPORT_IT}\n")

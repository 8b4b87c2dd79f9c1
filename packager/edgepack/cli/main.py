"""Entry point: runs a command and turns whatever happens into an exit code."""

from __future__ import annotations

import signal
import sys
from typing import NoReturn

import typer
from typer.exceptions import TyperException

from edgepack.errors import EdgepackError

INTERRUPTED = 130
TERMINATED = 143
BUG = 70


def main() -> NoReturn:
    """Run the command line of this process."""
    signal.signal(signal.SIGTERM, _terminate)
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code; errors are printed on stderr."""
    from edgepack.cli.app import app

    try:
        return int(app(arguments, standalone_mode=False, prog_name="edgepack") or 0)
    except EdgepackError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    except TyperException as error:
        show = getattr(error, "show", None)
        _ = show() if show else sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        sys.stderr.write("interrupted; nothing half-written is left\n")
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has gone; closing it now would raise again at exit.
        sys.stderr.close()
        return 0
    except Exception:  # noqa: BLE001  (the one last resort: a bug becomes a report)
        _report_bug(arguments)
        return BUG


def _terminate(_signal: int, _frame: object) -> NoReturn:
    raise SystemExit(TERMINATED)


def _report_bug(arguments: list[str]) -> None:
    import platform
    import traceback

    from edgepack import __version__

    sys.stderr.write(
        f"BUG in edgepack {__version__} (Python {platform.python_version()},"
        f" {platform.platform()})\ncommand: edgepack {' '.join(arguments[:1])} ...\n"
        f"```\n{traceback.format_exc()}```\n"
        "Please report it with the lines above and, if you can, the model.\n"
    )

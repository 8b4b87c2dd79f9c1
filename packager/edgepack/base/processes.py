"""Starts child processes: programs with a deadline, and workers that run steps.

The only module that starts processes on this machine.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self, TypeVar, cast

from edgepack.base.bugs import format_bug
from edgepack.base.resources import find_ondevice_dir
from edgepack.base.worker import receive, send
from edgepack.errors import BugError, ToolError

_GROUP_S, _GROUP_LOOK_S = 3.0, 0.02
"""How long a killed group may take: where the first process of a container reaps nobody, its
processes stay."""
Value = TypeVar("Value")
OnProgress = Callable[..., None]
"""Gets the number of finished parts, their total, and what they are parts of, if not of the whole
call."""


@dataclass(frozen=True)
class ProgramResult:
    """How a program ended."""

    argv: tuple[str, ...]
    exit_code: int
    """128 + N where signal N ended it, as in a shell."""
    stdout: bytes
    stderr: bytes

    @property
    def text(self) -> str:
        """Stdout as text; bytes that are not UTF-8 are replaced."""
        return self.stdout.decode("utf-8", "replace")

    @property
    def last_lines(self) -> str:
        """The last ten lines of stderr, each marked as the program's own words."""
        return _format_last_lines(self.stderr)


def _format_last_lines(output: bytes) -> str:
    lines = output.decode("utf-8", "replace").strip().splitlines()[-10:]
    return "".join(f"\n  | {line}" for line in lines)


def make_child_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return this process's environment for a child, with onnxruntime's telemetry off."""
    return {**os.environ, "ORT_DISABLE_TELEMETRY": "1", **(extra or {})}


def start_program(  # noqa: PLR0913  (as Popen has them)
    argv: Sequence[str],
    *,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    stdin: int = subprocess.PIPE,
    stdout: int = subprocess.PIPE,
    stderr: int = subprocess.PIPE,
    own_session: bool = True,
) -> subprocess.Popen[bytes]:
    """Start a program in its own session; the caller has to end its process group.

    Without ``own_session`` it can ask on this process's terminal, and has its process group.

    Raises:
        ToolError: The program is missing.
    """
    try:
        return subprocess.Popen(
            list(argv),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            cwd=cwd,
            env=make_child_environment(environment),
            start_new_session=own_session,
        )
    except OSError as error:
        raise ToolError(
            f"cannot run {argv[0]!r}: {error.strerror}", hint=f"install {argv[0]!r}, or fix PATH"
        ) from error


def run_program(
    argv: Sequence[str],
    *,
    timeout_s: float,
    cwd: Path | None = None,
    input_bytes: bytes = b"",
    environment: Mapping[str, str] | None = None,
) -> ProgramResult:
    """Run a program to its end in its own process group, and kill the group if it must stop.

    Raises:
        ToolError: The program is missing or took longer than ``timeout_s``.
    """
    child = start_program(argv, cwd=cwd, environment=environment)
    return _wait_for_end(argv, child, timeout_s, _kill_group, input_bytes)


def _wait_for_end(
    argv: Sequence[str],
    child: subprocess.Popen[bytes],
    timeout_s: float,
    stop: Callable[[subprocess.Popen[bytes]], None],
    input_bytes: bytes | None = None,
) -> ProgramResult:
    """Return how a program ended; ``stop`` ends one that runs too long or that nobody waits for."""
    try:
        stdout, stderr = child.communicate(input_bytes, timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        raise ToolError(
            f"{argv[0]!r} took longer than {timeout_s:g} s and was stopped",
            hint="look at what it waits for: " + " ".join(argv),
        ) from error
    finally:
        if child.returncode is None:
            stop(child)
    code = child.returncode
    return ProgramResult(tuple(argv), code if code >= 0 else 128 - code, stdout, stderr)


def _kill_group(child: subprocess.Popen[bytes]) -> None:
    os.killpg(child.pid, signal.SIGKILL)
    child.communicate()


@dataclass(frozen=True)
class RunningProgram:
    """A program that runs beside this process."""

    child: subprocess.Popen[bytes]
    output: IO[bytes]

    @property
    def group(self) -> int:
        """The id of its process group."""
        return self.child.pid

    def explain_end(self) -> str:
        """Return how it ended, with its last lines; nothing while it runs."""
        if self.child.poll() is None:
            return ""
        self.output.seek(0)
        return (
            f"ended with exit code {self.child.returncode}{_format_last_lines(self.output.read())}"
        )

    def wait(self, most_s: float) -> int | None:
        """Return its exit code, as a shell says it; None if it still runs after so many seconds."""
        try:
            code = self.child.wait(most_s)
        except subprocess.TimeoutExpired:
            return None
        return code if code >= 0 else 128 - code

    def read_end(self, most: int) -> str:
        """Return the last bytes that it has printed as text, from the beginning of a line."""
        self.output.seek(max(0, self.output.seek(0, os.SEEK_END) - most))
        cut = self.output.tell() > 0
        text = self.output.read().decode("utf-8", "replace")
        return text.partition("\n")[2] if cut and "\n" in text else text


@contextlib.contextmanager
def running(
    argv: Sequence[str], *, environment: Mapping[str, str] | None = None
) -> Iterator[RunningProgram]:
    """Run a program beside this process, in its own session; leaving the context kills its group.

    Then nothing of the group runs any more, so that its files may be removed.

    Raises:
        ToolError: The program is missing.
    """
    with tempfile.TemporaryFile() as output:
        to = output.fileno()
        child = start_program(
            argv, environment=environment, stdin=subprocess.DEVNULL, stdout=to, stderr=to
        )
        try:
            yield RunningProgram(child, output)
        finally:
            _end_group(child)


@contextlib.contextmanager
def supervising(
    argv: Sequence[str], *, cwd: Path | None = None, environment: Mapping[str, str] | None = None
) -> Iterator[RunningProgram]:
    """Run a program beside this process that ends with it, even if this process is killed.

    Leaving the context asks its group to end, and kills it five seconds later.

    Raises:
        ToolError: The folder or the program is missing.
    """
    lifeline_out, lifeline_in = os.pipe()
    with (
        tempfile.TemporaryFile() as output,
        os.fdopen(lifeline_in, "wb") as lifeline,
        os.fdopen(lifeline_out, "rb") as theirs,
    ):
        child = start_program(
            _supervise(argv),
            cwd=cwd,
            environment=environment,
            stdin=theirs.fileno(),
            stdout=output.fileno(),
            stderr=output.fileno(),
        )
        theirs.close()
        try:
            yield RunningProgram(child, output)
        finally:
            lifeline.close()
            child.wait()


def _supervise(argv: Sequence[str]) -> list[str]:
    """Return what runs a program, and kills its group when its own stdin ends."""
    supervisor = str(find_ondevice_dir() / "agent/edgepack_supervisor.py")
    return [sys.executable, supervisor, "--run", *argv]


def _end_group(child: subprocess.Popen[bytes]) -> None:
    """Kill a program's group, and wait until its processes are gone, but not forever.

    macOS refuses to signal a group of processes that have ended, and that nobody has waited for.
    """
    end = time.monotonic() + _GROUP_S
    with contextlib.suppress(ProcessLookupError, PermissionError):
        while time.monotonic() < end:
            os.killpg(child.pid, signal.SIGKILL)
            child.poll()
            time.sleep(_GROUP_LOOK_S)
    child.wait()


def run_on_terminal(
    argv: Sequence[str], *, timeout_s: float, asking_timeout_s: float
) -> ProgramResult:
    """Run a program that may ask for something on this process's terminal.

    Only the program gets what is typed. Where there is no terminal its stdin is empty, and its
    limit is ``timeout_s`` instead of ``asking_timeout_s``.

    Raises:
        ToolError: The program is missing or took longer than it may.
    """
    try:
        terminal = os.open("/dev/tty", os.O_RDWR)
    except OSError:
        return run_program(argv, timeout_s=timeout_s)
    with os.fdopen(terminal, "rb", buffering=0), _restoring(terminal):
        child = start_program(argv, stdin=terminal, own_session=False)
        return _wait_for_end(argv, child, asking_timeout_s, _end_gently)


@contextlib.contextmanager
def _restoring(terminal: int) -> Iterator[None]:
    """Restore a terminal's settings, which a program that was killed has not restored."""
    before = termios.tcgetattr(terminal)
    try:
        yield
    finally:
        with contextlib.suppress(termios.error, OSError):  # it may be gone
            # A process in the background would be stopped for it.
            is_ours = os.tcgetpgrp(terminal) == os.getpgrp()
            if is_ours and termios.tcgetattr(terminal) != before:
                termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _end_gently(child: subprocess.Popen[bytes]) -> None:
    """End a program that may have switched off the terminal's echo, and restores it on SIGTERM."""
    child.terminate()
    try:
        child.communicate(timeout=2)
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()


def run_supervised(
    argv: Sequence[str], *, timeout_s: float, cwd: Path | None = None
) -> ProgramResult:
    """Run a program that ends when this process ends, for whatever reason.

    The supervisor that runs commands on devices also runs this program. It kills the program's
    group when its stdin ends; this process has the other end of that pipe.

    Raises:
        ToolError: The program is missing or took longer than ``timeout_s``.
    """
    lifeline_out, lifeline_in = os.pipe()

    with os.fdopen(lifeline_in, "wb") as lifeline, os.fdopen(lifeline_out, "rb") as theirs:

        def stop(child: subprocess.Popen[bytes]) -> None:
            # The program has a group of its own, which only its supervisor can end.
            lifeline.close()
            child.communicate()

        child = start_program(_supervise(argv), cwd=cwd, stdin=theirs.fileno())
        theirs.close()
        return _wait_for_end(argv, child, timeout_s, stop)


class Workers:
    """Processes that run library code, with memory of their own; they can crash or be killed.

    Use it as a context manager; leaving it kills whatever still runs. :meth:`call` may be used from
    several threads; each call gets a process to itself, and idle processes are reused.
    """

    def __init__(self, count: int) -> None:
        self._pool = _pool
        self._slots = threading.Semaphore(count)
        self._lock = threading.Lock()
        self._idle: list[Worker] = []
        self._all: list[Worker] = []
        self._killed = False
        # Files that killed workers leave there are deleted with the folder.
        self._scratch = tempfile.TemporaryDirectory(
            prefix="edgepack-workers-", ignore_cleanup_errors=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:  # calls may still wait for a worker in other threads
            idle = [] if self._killed else self._idle
            self._killed = True
            for worker in self._all:
                if worker not in idle:
                    worker.end()
        self._pool.leave(idle)
        self._scratch.cleanup()

    def kill(self) -> None:
        """Kill every worker, whatever it computes; calls that wait for one raise ToolError."""
        with self._lock:
            self._killed = True
            for worker in self._all:
                worker.kill()

    def call(
        self,
        function: Callable[..., Value],
        *arguments: object,
        on_progress: OnProgress | None = None,
        on_note: Callable[[str], None] | None = None,
    ) -> Value:
        """Run a module-level function in a worker and return what it returns.

        Args:
            function: It may call :func:`edgepack.base.worker.report` and
                :func:`edgepack.base.worker.tell`.
            arguments: Its arguments.
            on_progress: Called in this thread with what the function reports.
            on_note: Called in this thread with each line that the function passes to the user.

        Raises:
            EdgepackError: Whatever the function raised.
            BugError: The function raised one, or an unexpected exception; the error has its
                traceback.
            OSError: The function raised it, for example on a full disk.
            ToolError: The process cannot be started, or died; then the error has the last lines it
                printed.
        """
        with self._slots:
            worker = self._take()
            try:
                told = {"progress": on_progress or _ignore, "note": on_note or _ignore}
                return worker.call(function, arguments, told)
            finally:
                if worker.is_alive:
                    with self._lock:
                        self._idle.append(worker)

    def _take(self) -> Worker:
        with self._lock:
            if self._killed:
                raise ToolError("the build was stopped", hint="start it again")
            if self._idle:
                return self._idle.pop()
            worker = self._pool.take(self._scratch.name)
            self._all.append(worker)
            return worker


def _ignore(*_: object) -> None:
    pass


# Not ``python -m``, which would make a second copy of the module, named __main__, whose state the
# functions that run there do not see.
_SERVE = "from edgepack.base.worker import main; main()"


# Sums of matrix products depend on how many threads share them, and so would a bundle's bytes.
# onnxruntime has threads of its own. The names are OpenBLAS's and Accelerate's.
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "VECLIB_MAXIMUM_THREADS": "1"}
# glibc takes memory from its heap for blocks as large as were freed before, up to 32 MiB each, and
# keeps what lies below one in use (mallopt(3), M_MMAP_THRESHOLD): a session's weights then stay
# after it is gone. With a threshold that is set, large blocks go back at once.
_LARGE_BLOCKS = {"MALLOC_MMAP_THRESHOLD_": str(4 << 20), "MALLOC_TRIM_THRESHOLD_": str(32 << 20)}
_ENVIRONMENT = {**_ONE_THREAD, **_LARGE_BLOCKS}


class Worker:
    """One process that serves calls. What it prints goes to a file, for error messages."""

    def __init__(self, scratch: str) -> None:
        """Start it; ``scratch`` is the folder for its temporary files."""
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (closed by close)
        self._child = start_program(
            [sys.executable, "-c", _SERVE],
            environment={**_ENVIRONMENT, "TMPDIR": scratch},
            stderr=self._log.fileno(),
        )
        self._stdin = cast("IO[bytes]", self._child.stdin)
        self._stdout = cast("IO[bytes]", self._child.stdout)

    @property
    def is_alive(self) -> bool:
        """Whether the process still runs."""
        return self._child.poll() is None

    def call(
        self,
        function: Callable[..., Value],
        arguments: tuple[object, ...],
        told: Mapping[str, Callable[..., None]],
    ) -> Value:
        """Run a function there, as :meth:`Workers.call` does; ``told`` gets what it reports."""
        try:
            send(self._stdin, (function, arguments))
        except BrokenPipeError as error:
            raise self._make_died_error(function.__qualname__) from error
        kind, value = self._receive(function)
        while kind in told:
            try:
                told[kind](*value)
            except BaseException:
                # Its answer is still to come, and the next call would take it for its own answer.
                self.kill()
                raise
            kind, value = self._receive(function)
        if kind == "error":
            raise value
        if kind == "bug":
            raise BugError(format_bug(value))
        return cast("Value", value)

    def _receive(self, function: Callable[..., object]) -> tuple[str, Any]:
        try:
            return cast("tuple[str, Any]", receive(self._stdout))
        except EOFError as error:
            raise self._make_died_error(function.__qualname__) from error

    def _make_died_error(self, doing: str) -> ToolError:
        code = self._child.wait()
        self._log.seek(0)
        end = f"signal {-code}" if code < 0 else f"exit code {code}"
        return ToolError(
            f"the process that ran {doing!r} died with {end}{_format_last_lines(self._log.read())}",
            hint="a library crashed on this model, or memory ran out: try --jobs 1, a smaller"
            " sample limit, or a simpler export",
        )

    def kill(self) -> None:
        """End the process, whatever it computes."""
        if self._child.poll() is None:
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()

    def end(self) -> None:
        """Kill it and release its pipes."""
        self.kill()
        for pipe in (self._stdin, self._stdout, self._log):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


class WorkerPool:
    """Where :class:`Workers` take their processes from, and leave those that are idle at the end.

    This one keeps none.
    """

    def take(self, scratch: str) -> Worker:
        """Return a process whose temporary files go to the folder ``scratch``."""
        return Worker(scratch)

    def leave(self, idle: Sequence[Worker]) -> None:
        """Take processes over that nobody uses any more."""
        for worker in idle:
            worker.end()


_pool = WorkerPool()


@contextlib.contextmanager
def use_pool(pool: WorkerPool) -> Iterator[None]:
    """Let all :class:`Workers` that are made inside take their processes from a pool."""
    global _pool  # noqa: PLW0603
    before, _pool = _pool, pool
    try:
        yield
    finally:
        _pool = before

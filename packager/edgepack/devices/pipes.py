"""A started program's pipes, and readers of them with limits and deadlines."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Protocol

from edgepack.devices.transport import CommandResult
from edgepack.errors import (
    DeviceError,
    PythonMissingError,
    RemoteCommandError,
    TooSlowError,
)

MAX_OUTPUT_BYTES = 64 << 20
READ_BYTES = 1 << 16
_WAITING_BYTES = 1 << 20
"""Output that nobody has taken: when there is more, the program has to wait."""
_STDERR_BYTES = 1 << 20
"""What is kept of a stream's stderr: its end."""
_LINE_BYTES = 1 << 16
"""The bytes that are kept of a stderr line that does not end."""
_STOP_S = 5.0
"""How long a program may take to end after its stdin has: the supervisor needs 2 s."""


class Received:
    """A program's output as it comes: one thread puts it, another takes it.

    Args:
        pause: Called when so much is waiting that no more should come, by the thread that puts.
        resume: Called when there is room again, by the thread that takes.
    """

    def __init__(self, pause: Callable[[], None], resume: Callable[[], None]) -> None:
        self._pause = pause
        self._resume = resume
        self._waiting: deque[tuple[str, bytes]] = deque()
        self._size = 0
        self._is_paused = False
        self._has_ended = False
        self._changed = threading.Condition()

    def put(self, output: str, data: bytes) -> None:
        """Add what has come on ``stdout`` or ``stderr``."""
        with self._changed:
            self._waiting.append((output, data))
            self._size += len(data)
            if self._size > _WAITING_BYTES and not self._is_paused:
                self._is_paused = True
                self._pause()
            self._changed.notify()

    def end(self) -> None:
        """Note that no more comes; once more does nothing."""
        with self._changed:
            self._has_ended = True
            self._changed.notify()

    def take(self, timeout_s: float) -> tuple[str, bytes] | None:
        """Return the next piece of output after ``stdout`` or ``stderr``; None at the end of both.

        Raises:
            TimeoutError: There was none.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._waiting or self._has_ended, timeout_s):
                raise TimeoutError
            if not self._waiting:
                return None
            output, data = self._waiting.popleft()
            self._size -= len(data)
            if self._is_paused and self._size <= _WAITING_BYTES // 2:
                self._is_paused = False
                self._resume()
            return output, data

    def take_waiting(self) -> tuple[str, bytes] | None:
        """Return the next piece of output if one is there; else None."""
        with suppress(TimeoutError):
            return self.take(0)
        return None


class Pipes(Protocol):
    """A started program. Each write is limited by the timeout given at the start.

    Raises:
        TimeoutError: Nothing moved for that long.
        BrokenPipeError: (write) The program no longer reads.
    """

    outputs: Received
    """Of stdout and stderr."""

    def write(self, data: bytes) -> None:
        """Send all of ``data`` to stdin."""

    def close_stdin(self) -> None:
        """End stdin; once more does nothing."""

    def wait(self, timeout_s: float) -> int:
        """Return the exit code; the connection's end before it is a :class:`DeviceError`."""

    def close(self) -> None:
        """Close the program's pipes."""


class CommandStream:
    """A running program's two pipes; see :class:`~.transport.Stream`.

    One thread may read while another writes.
    """

    def __init__(
        self, pipes: Pipes, argv: Sequence[str], python: str, *, timeout_s: float, device: str
    ) -> None:
        self._pipes = pipes
        self._argv = tuple(argv)
        self._python = python
        self._timeout_s = timeout_s
        self._device = device
        self._stdout = bytearray()
        self._stderr = bytearray()

    def write(self, data: bytes) -> None:
        """Send bytes to the program's stdin.

        Raises:
            RemoteCommandError: The program ended, or does not read for ``timeout_s``. What it
                printed can still be read.
            DeviceError: The connection broke.
        """
        try:
            self._pipes.write(data)
        except TimeoutError as error:
            raise make_timeout_error(self._argv, self._timeout_s, self._device) from error
        except BrokenPipeError as error:
            raise self._make_ended_early_error() from error

    def close_stdin(self) -> None:
        """End the program's stdin, which ends the program."""
        self._pipes.close_stdin()

    def read(self, size: int) -> bytes:
        """Return exactly ``size`` bytes of stdout, fewer only at its end.

        Raises:
            RemoteCommandError: Nothing came for ``timeout_s``.
        """
        try:
            while len(self._stdout) < size and self._receive():
                pass
        except TimeoutError as error:
            raise make_timeout_error(self._argv, self._timeout_s, self._device) from error
        data = bytes(self._stdout[:size])
        del self._stdout[:size]
        return data

    def wait(self) -> CommandResult:
        """Return how the program ended; stdout that was read before is not in the result.

        Raises:
            RemoteCommandError: It has not ended after ``timeout_s``, or printed more than fits.
            DeviceError: The connection broke.
        """
        self.close_stdin()
        stdout = self.read(MAX_OUTPUT_BYTES + 1)
        if len(stdout) > MAX_OUTPUT_BYTES:
            raise _make_overflow_error("stdout", self._device)
        try:
            code = self._pipes.wait(self._timeout_s)
        except TimeoutError as error:
            raise make_timeout_error(self._argv, self._timeout_s, self._device) from error
        result = CommandResult(self._argv, code, stdout, bytes(self._stderr))
        return require_python(result, self._python, self._device)

    def _receive(self) -> bool:
        """Receive some stdout, and all stderr before it; return whether there was any.

        Raises:
            TimeoutError: There was none in time.
        """
        deadline = time.monotonic() + self._timeout_s
        while (received := self._pipes.outputs.take(find_time_left(deadline))) is not None:
            output, data = received
            if output == "stdout":
                self._stdout += data
                return True
            self._stderr += data
            del self._stderr[:-_STDERR_BYTES]
        return False

    def _make_ended_early_error(self) -> RemoteCommandError:
        result = self.wait()
        self._stdout += result.stdout
        return RemoteCommandError(
            f"{self._argv[0]!r} ended with exit code {result.exit_code} before it read everything"
            f"{result.last_lines}",
            hint="look at its last lines above",
            where=self._device,
        )


class Outputs:
    """Collects both outputs of a program, and reports each line of stderr."""

    def __init__(self, received: Received, on_stderr: Callable[[str], None] | None) -> None:
        self.data = {"stdout": bytearray(), "stderr": bytearray()}
        self._received = received
        self._on_stderr = on_stderr or (lambda _: None)
        self._line = b""

    def take_all(self, deadline: float) -> None:
        """Take everything up to the end.

        Raises:
            TimeoutError: The end has not come before the deadline.
            RemoteCommandError: The program printed more than fits.
        """
        while (piece := self._received.take(find_time_left(deadline))) is not None:
            self._add(*piece)
        self._report(b"\n" if self._line else b"")

    def take_waiting(self) -> None:
        """Take what has come."""
        while (piece := self._received.take_waiting()) is not None:
            self._add(*piece)

    def _add(self, output: str, data: bytes) -> None:
        self.data[output] += data
        if len(self.data[output]) > MAX_OUTPUT_BYTES:
            raise _make_overflow_error(output)
        if output == "stderr":
            self._report(data)

    def _report(self, data: bytes) -> None:
        *lines, self._line = (self._line + data).split(b"\n")
        self._line = self._line[-_LINE_BYTES:]
        for line in lines:
            self._on_stderr(line.decode("utf-8", "replace"))


def feed(pipes: Pipes, chunks: Iterable[bytes], outputs: Outputs, deadline: float) -> None:
    """Write all chunks, taking output meanwhile; the program may end early."""
    try:
        for chunk in chunks:
            pipes.write(chunk)
            outputs.take_waiting()
            find_time_left(deadline)
    except BrokenPipeError:
        pass  # it ended early: its exit code and its stderr say why
    pipes.close_stdin()


def end(pipes: Pipes) -> None:
    """End a program that may still run, after a moment in which it may end by itself."""
    try:
        pipes.close_stdin()
        pipes.wait(_STOP_S)
    except (TimeoutError, DeviceError):
        pass  # a broken connection ends it too: the supervisor sees that
    finally:
        pipes.close()


def require_python(result: CommandResult, python: str, device: str) -> CommandResult:
    """Return a result after checking that the supervisor's Python was there."""
    said = result.stderr.decode("utf-8", "replace")
    if result.exit_code == 127 and (f"{python}: " in said or f"not found: {python}" in said):
        raise make_python_missing_error(python, device)
    return result


def make_python_missing_error(python: str, device: str) -> PythonMissingError:
    """Return the error that an interpreter is not on a device."""
    return PythonMissingError(
        f"there is no {python!r} on the device",
        hint="install it there (sudo apt install python3), or set 'python' in devices.yaml",
        where=device,
    )


def find_time_left(deadline: float) -> float:
    """Return the seconds to a deadline.

    Raises:
        TimeoutError: It has passed.
    """
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _make_overflow_error(output: str, device: str = "") -> RemoteCommandError:
    return RemoteCommandError(
        f"the command printed more than {MAX_OUTPUT_BYTES >> 20} MiB on {output}",
        hint="let it write a file on the device instead",
        where=device,
    )


def make_timeout_error(argv: Sequence[str], timeout_s: float, device: str) -> TooSlowError:
    """Return the error for a program that had to be stopped."""
    shown = argv[0] if len(argv) == 1 or "\n" in argv[1] else " ".join(argv[:2])
    return TooSlowError(
        f"{shown!r} took longer than {timeout_s:g} s and was stopped",
        hint=f"see whether the device is busy or hangs: edgepack device check {device}",
        where=device,
    )

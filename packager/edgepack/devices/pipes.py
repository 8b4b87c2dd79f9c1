"""A started program's pipes, and readers of them with limits and deadlines."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
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
_LINE_BYTES = 1 << 16
"""The bytes that are kept of a stderr line that does not end."""
_STOP_S = 5.0
"""How long a program may take to end after its stdin has: the supervisor needs 2 s."""


class Pipes(Protocol):
    """A started program. Each wait is limited by the timeout given at the start.

    Raises:
        TimeoutError: Nothing moved for that long.
        BrokenPipeError: (write) The program no longer reads.
    """

    def write(self, data: bytes) -> None:
        """Send all of ``data`` to stdin."""

    def close_stdin(self) -> None:
        """End stdin; once more does nothing."""

    def read(self, size: int) -> bytes:
        """Return between 1 and ``size`` bytes of stdout, or nothing at its end."""

    def read_stderr(self, size: int) -> bytes:
        """Return between 1 and ``size`` bytes of stderr, or nothing at its end."""

    def wait(self, timeout_s: float) -> int:
        """Return the exit code; the connection's end before it is a :class:`DeviceError`."""

    def close(self) -> None:
        """Close the program's pipes."""


class CommandStream:
    """A running program's two pipes; see :class:`~.transport.Stream`."""

    def __init__(
        self, pipes: Pipes, argv: Sequence[str], python: str, *, timeout_s: float, device: str
    ) -> None:
        self._pipes = pipes
        self._argv = tuple(argv)
        self._python = python
        self._timeout_s = timeout_s
        self._device = device
        self._stderr = bytearray()
        self._unread = b""
        self._drain = threading.Thread(target=self._drain_stderr, daemon=True)
        self._drain.start()

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
        data = bytearray(self._unread[:size])
        self._unread = self._unread[size:]
        try:
            while len(data) < size and (chunk := self._pipes.read(size - len(data))):
                data += chunk
        except TimeoutError as error:
            raise make_timeout_error(self._argv, self._timeout_s, self._device) from error
        return bytes(data)

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
        self._drain.join(_STOP_S)
        result = CommandResult(self._argv, code, stdout, bytes(self._stderr))
        return require_python(result, self._python, self._device)

    def _drain_stderr(self) -> None:
        while chunk := _read_patiently(self._pipes.read_stderr):
            self._stderr += chunk
            del self._stderr[: -(1 << 20)]

    def _make_ended_early_error(self) -> RemoteCommandError:
        result = self.wait()
        self._unread = result.stdout
        return RemoteCommandError(
            f"{self._argv[0]!r} ended with exit code {result.exit_code} before it read everything"
            f"{result.last_lines}",
            hint="look at its last lines above",
            where=self._device,
        )


class Outputs:
    """Reads both outputs in threads; the caller's thread takes them, so callbacks run there."""

    def __init__(self, pipes: Pipes, on_stderr: Callable[[str], None] | None) -> None:
        self.data = {"stdout": bytearray(), "stderr": bytearray()}
        self.open = 2
        self._on_stderr = on_stderr or (lambda _: None)
        self._line = b""
        self._events: queue.SimpleQueue[tuple[str, bytes]] = queue.SimpleQueue()
        for name, read in (("stdout", pipes.read), ("stderr", pipes.read_stderr)):
            threading.Thread(target=self._pump, args=(name, read), daemon=True).start()

    def take(self, timeout_s: float) -> None:
        """Take one piece of output.

        Raises:
            TimeoutError: There was none.
            RemoteCommandError: The program printed more than fits.
        """
        try:
            name, chunk = self._events.get(timeout=timeout_s)
        except queue.Empty as error:
            raise TimeoutError from error
        self.data[name] += chunk
        if len(self.data[name]) > MAX_OUTPUT_BYTES:
            raise _make_overflow_error(name)
        if name == "stderr":
            self._report(chunk)
        if not chunk:
            self.open -= 1

    def take_what_is_there(self) -> None:
        """Take all output that has come."""
        while not self._events.empty():
            self.take(0)

    def _report(self, chunk: bytes) -> None:
        *lines, self._line = (self._line + chunk).split(b"\n")
        if not chunk and self._line:
            lines.append(self._line)
        self._line = self._line[-_LINE_BYTES:]
        for line in lines:
            self._on_stderr(line.decode("utf-8", "replace"))

    def _pump(self, name: str, read: Callable[[int], bytes]) -> None:
        size = 0
        while chunk := _read_patiently(read):
            if size <= MAX_OUTPUT_BYTES:  # more is an error, whenever it is taken
                self._events.put((name, chunk))
            size += len(chunk)
        self._events.put((name, b""))


def _read_patiently(read: Callable[[int], bytes]) -> bytes:
    while True:
        with contextlib.suppress(TimeoutError):
            return read(READ_BYTES)


def feed(pipes: Pipes, chunks: Iterable[bytes], outputs: Outputs, deadline: float) -> None:
    """Write all chunks, taking output meanwhile; the program may end early."""
    try:
        for chunk in chunks:
            pipes.write(chunk)
            outputs.take_what_is_there()
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
        raise PythonMissingError(
            f"there is no {python!r} on the device",
            hint="install it there (sudo apt install python3), or set 'python' in devices.yaml",
            where=device,
        )
    return result


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

"""What every transport does alike, once it can start a program and hold its pipes.

A transport implements :meth:`CommandTransport._start`; deadlines, output bounds, file copies and
the ending of programs are here.
"""

from __future__ import annotations

import contextlib
import queue
import shlex
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Protocol, Self

from edgepack.devices.transport import CommandResult, file_chunks
from edgepack.errors import DeviceError, RemoteCommandError
from edgepack.resources import harness_dir

MAX_OUTPUT_BYTES = 64 << 20
_STOP_S = 5.0
"""How long a program may take to end after its stdin has: the supervisor needs 2 s."""
_READ_BYTES = 1 << 16

# The size is compared so that a connection lost in mid-copy leaves what was there before.
_PUT = """
set -e
partial="$1.partial-$$"
trap 'rm -f "$partial"' EXIT HUP INT TERM
cat > "$partial"
[ "$(($(wc -c < "$partial")))" -eq "$2" ] || { echo "copy is incomplete" >&2; exit 1; }
mv -f "$partial" "$1"
"""


class Pipes(Protocol):
    """A started program. What waits, waits at most the time given at the start.

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
        """Let go of the program: its pipes are closed."""


def command_line(argv: Sequence[str]) -> str:
    """Return an argv as the one string that SSH carries, quoted for a POSIX shell."""
    return shlex.join(argv)


class CommandTransport:
    """Base of the transports that start programs."""

    name: str
    _python = "python3"
    """The interpreter on the device that runs the supervisor."""

    def _start(self, argv: Sequence[str], *, timeout_s: float) -> Pipes:
        """Start a program on the device."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        on_stderr: Callable[[str], None] | None = None,
    ) -> CommandResult:
        """Run a command to its end under the supervisor; see :class:`~.transport.Transport`."""
        pipes = self._start(self._supervised("--run", argv), timeout_s=timeout_s)
        return self._finish(pipes, argv, timeout_s=timeout_s, on_stderr=on_stderr)

    def send(
        self, argv: Sequence[str], chunks: Iterable[bytes], *, timeout_s: float
    ) -> CommandResult:
        """Run a command that ends with its stdin; see :class:`~.transport.Transport`."""
        quiet = ["env", "ORT_DISABLE_TELEMETRY=1", *argv]
        pipes = self._start(quiet, timeout_s=timeout_s)
        return self._finish(pipes, argv, timeout_s=timeout_s, chunks=chunks)

    @contextlib.contextmanager
    def stream(self, argv: Sequence[str], *, timeout_s: float) -> Iterator[CommandStream]:
        """Start a program and hold its pipes; see :class:`~.transport.Transport`."""
        pipes = self._start(self._supervised("--stream", argv), timeout_s=timeout_s)
        stream = CommandStream(pipes, argv, timeout_s=timeout_s, device=self.name)
        try:
            yield stream
        finally:
            _end(pipes)

    def put(self, local: Path, remote: PurePosixPath, *, timeout_s: float) -> None:
        """Copy one file to the device, replacing what is there atomically."""
        argv = ["sh", "-c", _PUT, "sh", str(remote), str(local.stat().st_size)]
        self.send(argv, file_chunks(local), timeout_s=timeout_s).check(
            f"copying {local.name!r} to {remote}",
            device=self.name,
            hint="look at the message above: free space and permissions are the usual reasons",
        )

    def get(self, remote: PurePosixPath, local: Path, *, timeout_s: float) -> None:
        """Copy one file from the device, replacing what is there atomically."""
        with (
            tempfile.TemporaryDirectory(dir=local.parent, prefix=".edgepack-") as folder,
            self.stream(["cat", "--", str(remote)], timeout_s=timeout_s) as stream,
        ):
            partial = Path(folder) / "partial"
            with partial.open("wb") as file:
                while chunk := stream.read(_READ_BYTES):
                    file.write(chunk)
            stream.wait().check(
                f"copying {remote} from the device",
                device=self.name,
                hint="check that the file is there and readable",
            )
            partial.replace(local)

    def _supervised(self, mode: str, argv: Sequence[str]) -> list[str]:
        source = (harness_dir() / "edgepack_supervisor.py").read_text(encoding="utf-8")
        return [self._python, "-IS", "-c", source, mode, *argv]

    def _finish(
        self,
        pipes: Pipes,
        argv: Sequence[str],
        *,
        timeout_s: float,
        chunks: Iterable[bytes] | None = None,
        on_stderr: Callable[[str], None] | None = None,
    ) -> CommandResult:
        deadline = time.monotonic() + timeout_s
        try:
            outputs = _Outputs(pipes, on_stderr)
            if chunks is not None:
                _feed(pipes, chunks, outputs, deadline)
            while outputs.open:
                outputs.take(_left(deadline))
            code = pipes.wait(_left(deadline))
        except TimeoutError as error:
            raise _too_slow(argv, timeout_s, self.name) from error
        finally:
            _end(pipes)
        return self._result(argv, code, outputs)

    def _result(self, argv: Sequence[str], code: int, outputs: _Outputs) -> CommandResult:
        stderr = bytes(outputs.data["stderr"])
        if code == 127 and f"{self._python}: " in stderr.decode("utf-8", "replace"):
            raise DeviceError(
                f"there is no {self._python!r} on the device",
                hint="install it there (apt install python3), or set 'python' in devices.yaml",
                where=self.name,
            )
        return CommandResult(tuple(argv), code, bytes(outputs.data["stdout"]), stderr)


class CommandStream:
    """A running program's two pipes; see :class:`~.transport.Stream`."""

    def __init__(self, pipes: Pipes, argv: Sequence[str], *, timeout_s: float, device: str) -> None:
        self._pipes = pipes
        self._argv = tuple(argv)
        self._timeout_s = timeout_s
        self._device = device
        self._stderr = bytearray()
        self._drain = threading.Thread(target=self._drain_stderr, daemon=True)
        self._drain.start()

    def write(self, data: bytes) -> None:
        """Send bytes to the program's stdin.

        Raises:
            RemoteCommandError: The program ended, or does not read for ``timeout_s``.
            DeviceError: The connection broke.
        """
        try:
            self._pipes.write(data)
        except TimeoutError as error:
            raise _too_slow(self._argv, self._timeout_s, self._device) from error
        except BrokenPipeError as error:
            raise self._ended_early() from error

    def close_stdin(self) -> None:
        """End the program's stdin, which ends the program."""
        self._pipes.close_stdin()

    def read(self, size: int) -> bytes:
        """Return exactly ``size`` bytes of stdout, fewer only at its end.

        Raises:
            RemoteCommandError: Nothing came for ``timeout_s``.
        """
        data = bytearray()
        try:
            while len(data) < size and (chunk := self._pipes.read(size - len(data))):
                data += chunk
        except TimeoutError as error:
            raise _too_slow(self._argv, self._timeout_s, self._device) from error
        return bytes(data)

    def wait(self) -> CommandResult:
        """Return how the program ended; stdout that was read before is not in the result.

        Raises:
            RemoteCommandError: It has not ended after ``timeout_s``.
            DeviceError: The connection broke.
        """
        self.close_stdin()
        stdout = self.read(MAX_OUTPUT_BYTES)
        try:
            code = self._pipes.wait(self._timeout_s)
        except TimeoutError as error:
            raise _too_slow(self._argv, self._timeout_s, self._device) from error
        self._drain.join(_STOP_S)
        return CommandResult(self._argv, code, stdout, bytes(self._stderr))

    def _drain_stderr(self) -> None:
        while chunk := _read_patiently(self._pipes.read_stderr):
            self._stderr += chunk
            del self._stderr[: -(1 << 20)]

    def _ended_early(self) -> RemoteCommandError:
        result = self.wait()
        lines = result.stderr.decode("utf-8", "replace").strip().splitlines()[-10:]
        return RemoteCommandError(
            f"{self._argv[0]!r} ended with exit code {result.exit_code} before it read everything"
            + "".join(f"\n  | {line}" for line in lines),
            hint="look at its last lines above",
            where=self._device,
        )


class _Outputs:
    """Reads both outputs in threads; the caller's thread takes them, so callbacks run there."""

    def __init__(self, pipes: Pipes, on_stderr: Callable[[str], None] | None) -> None:
        self.data = {"stdout": bytearray(), "stderr": bytearray()}
        self.open = 2
        self._on_stderr = on_stderr
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
            raise RemoteCommandError(
                f"the command printed more than {MAX_OUTPUT_BYTES >> 20} MiB on {name}",
                hint="let it write a file on the device instead",
            )
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
        for line in lines if self._on_stderr else []:
            if self._on_stderr:
                self._on_stderr(line.decode("utf-8", "replace"))

    def _pump(self, name: str, read: Callable[[int], bytes]) -> None:
        while chunk := _read_patiently(read):
            self._events.put((name, chunk))
        self._events.put((name, b""))


def _read_patiently(read: Callable[[int], bytes]) -> bytes:
    while True:
        with contextlib.suppress(TimeoutError):
            return read(_READ_BYTES)


def _feed(pipes: Pipes, chunks: Iterable[bytes], outputs: _Outputs, deadline: float) -> None:
    try:
        for chunk in chunks:
            pipes.write(chunk)
            outputs.take_what_is_there()
            _left(deadline)
    except BrokenPipeError:
        pass  # it ended early: its exit code and its stderr say why
    pipes.close_stdin()


def _end(pipes: Pipes) -> None:
    """End a program that may still run: a supervised one is gone when this returns."""
    try:
        pipes.close_stdin()
        pipes.wait(_STOP_S)
    except (TimeoutError, DeviceError):
        pass  # a broken connection ends it too: the supervisor sees that
    finally:
        pipes.close()


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _too_slow(argv: Sequence[str], timeout_s: float, device: str) -> RemoteCommandError:
    shown = argv[0] if len(argv) == 1 or "\n" in argv[1] else " ".join(argv[:2])
    return RemoteCommandError(
        f"{shown!r} took longer than {timeout_s:g} s and was stopped",
        hint="see whether the device is busy or hangs (edgepack device check NAME),"
        " or give it more time",
        where=device,
    )

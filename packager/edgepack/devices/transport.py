"""The only interface to a device: put, get, run, stream, over any kind of connection.

A command is an argv, never a string. ``run`` and ``stream`` execute it under a supervisor on the
device that kills the whole process group when the connection goes away; ``send`` needs no Python
there, so its program must end by itself when its stdin ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Literal, Protocol, Self

from edgepack.base.processes import ProgramResult
from edgepack.errors import RemoteCommandError

Supervisor = Literal["python", "shell"]


class CommandResult(ProgramResult):
    """What a command on a device did."""

    def check(self, doing: str, *, device: str, hint: str) -> Self:
        """Return this result if the command succeeded.

        Raises:
            RemoteCommandError: It did not; the message has the last lines of its stderr.
        """
        if self.exit_code == 0:
            return self
        raise RemoteCommandError(
            f"{doing} failed with exit code {self.exit_code}{self.last_lines}",
            hint=hint,
            where=device,
        )


class Stream(Protocol):
    """A running program's two pipes. Leaving the context ends it."""

    def write(self, data: bytes) -> None:
        """Send bytes to the program's stdin."""

    def close_stdin(self) -> None:
        """End the program's stdin, which ends the program."""

    def read(self, size: int) -> bytes:
        """Return exactly ``size`` bytes of stdout, fewer only at its end."""

    def wait(self) -> CommandResult:
        """Return how the program ended; stdout that was read before is not in the result."""


class Transport(Protocol):
    """A connection to one device."""

    name: str
    """The device's name, for messages."""
    host_key: str | None
    """Fingerprint of the host key that the device has proven; None without SSH."""

    def __enter__(self) -> Self:
        """Connect."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Disconnect; started programs do not keep running."""

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        on_stderr: Callable[[str], None] | None = None,
        supervisor: Supervisor = "python",
    ) -> CommandResult:
        """Run a command to its end; its stdin is empty.

        ``on_stderr`` receives each line of stderr as it comes. ``supervisor`` is what it needs on
        the device: Python, or a shell and setsid.

        Raises:
            TooSlowError: It took longer than ``timeout_s``; it has been killed.
            DeviceError: The connection broke.
        """

    def send(
        self, argv: Sequence[str], chunks: Iterable[bytes], *, timeout_s: float
    ) -> CommandResult:
        """Run a command that reads ``chunks`` on stdin and ends when stdin does.

        Raises:
            RemoteCommandError: It took longer than ``timeout_s``.
            DeviceError: The connection broke.
        """

    def stream(
        self, argv: Sequence[str], *, timeout_s: float, supervised: bool = True
    ) -> AbstractContextManager[Stream]:
        """Start a program and hold both of its pipes; ``timeout_s`` bounds each read and write.

        One that ends by itself when its stdin ends, and loads no onnxruntime, needs no supervisor,
        and starts sooner without.
        """

    def put(self, local: Path, remote: PurePosixPath, *, timeout_s: float) -> None:
        """Copy one file to the device, replacing what is there atomically."""

    def get(self, remote: PurePosixPath, local: Path, *, timeout_s: float) -> None:
        """Copy one file from the device, replacing what is there atomically."""


def read_chunks(path: Path, size_bytes: int = 1 << 17) -> Iterator[bytes]:
    """Yield a file in pieces."""
    with path.open("rb") as file:
        while chunk := file.read(size_bytes):
            yield chunk

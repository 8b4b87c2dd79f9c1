"""The common part of all transports that can start a program and connect to its pipes.

A transport implements :meth:`CommandTransport._start`; deadlines, output bounds, file copies and
the ending of programs are here.
"""

from __future__ import annotations

import contextlib
import shlex
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Self

from edgepack.base.resources import find_ondevice_dir
from edgepack.devices.inventory import NO_PYTHON
from edgepack.devices.pipes import (
    READ_BYTES,
    CommandStream,
    Outputs,
    Pipes,
    end,
    feed,
    find_time_left,
    make_python_missing_error,
    make_timeout_error,
    require_python,
)
from edgepack.devices.transport import CommandResult, Supervisor, read_chunks

# The size is compared so that a connection lost during the copy leaves the old file, and the disk
# has the bytes before the name, so that a power cut does.
_PUT = """
set -e
partial="$1.partial-$$"
trap 'rm -f "$partial"' EXIT HUP INT TERM
cat > "$partial"
[ "$(($(wc -c < "$partial")))" -eq "$2" ] || { echo "copy is incomplete" >&2; exit 1; }
sync
mv -f "$partial" "$1"
"""


def format_command(argv: Sequence[str]) -> str:
    """Return an argv as the one string that SSH carries, quoted for a POSIX shell.

    After ``exec`` the first word is always a program. Without it, quoted or not, ``a=b`` would be
    an assignment and ``eval`` a builtin.
    """
    return f"exec {shlex.join(argv)}"


class CommandTransport:
    """Base of the transports that start programs."""

    name: str
    host_key: str | None = None
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
        supervisor: Supervisor = "python",
    ) -> CommandResult:
        """Run a command to its end under a supervisor; see :class:`~.transport.Transport`."""
        if supervisor == "python":
            started = self._make_supervised_argv("--run", argv)
        else:
            source = (find_ondevice_dir() / "agent/edgepack_supervisor.sh").read_text(
                encoding="utf-8"
            )
            started = ["sh", "-c", source, "sh", *argv]
        pipes = self._start(started, timeout_s=timeout_s)
        return self._finish(pipes, argv, timeout_s=timeout_s, on_stderr=on_stderr)

    def send(
        self, argv: Sequence[str], chunks: Iterable[bytes], *, timeout_s: float
    ) -> CommandResult:
        """Run a command that ends with its stdin; see :class:`~.transport.Transport`."""
        quiet = ["env", "ORT_DISABLE_TELEMETRY=1", *argv]
        pipes = self._start(quiet, timeout_s=timeout_s)
        return self._finish(pipes, argv, timeout_s=timeout_s, chunks=chunks)

    @contextlib.contextmanager
    def stream(
        self, argv: Sequence[str], *, timeout_s: float, supervised: bool = True
    ) -> Iterator[CommandStream]:
        """Start a program and hold its pipes; see :class:`~.transport.Transport`."""
        started = self._make_supervised_argv("--stream", argv) if supervised else argv
        pipes = self._start(started, timeout_s=timeout_s)
        stream = CommandStream(pipes, argv, self._python, timeout_s=timeout_s, device=self.name)
        try:
            yield stream
        finally:
            end(pipes)

    def put(self, local: Path, remote: PurePosixPath, *, timeout_s: float) -> None:
        """Copy one file to the device, replacing what is there atomically."""
        argv = ["sh", "-c", _PUT, "sh", str(remote), str(local.stat().st_size)]
        self.send(argv, read_chunks(local), timeout_s=timeout_s).check(
            f"copying {local.name!r} to {remote}",
            device=self.name,
            hint="look at the message above: free space and permissions are the usual reasons",
        )

    def get(self, remote: PurePosixPath, local: Path, *, timeout_s: float) -> None:
        """Copy one file from the device, replacing what is there atomically."""
        argv = ["cat", "--", str(remote)]
        with (
            tempfile.TemporaryDirectory(dir=local.parent, prefix=".edgepack-") as folder,
            # It ends by itself, and a device without Python has no supervisor.
            self.stream(argv, timeout_s=timeout_s, supervised=False) as stream,
        ):
            partial = Path(folder) / "partial"
            with partial.open("wb") as file:
                while chunk := stream.read(READ_BYTES):
                    file.write(chunk)
            stream.wait().check(
                f"copying {remote} from the device",
                device=self.name,
                hint="check that the file is there and readable",
            )
            partial.replace(local)

    def _make_supervised_argv(self, mode: str, argv: Sequence[str]) -> list[str]:
        if self._python == NO_PYTHON:
            raise make_python_missing_error(NO_PYTHON, self.name)
        source = (find_ondevice_dir() / "agent/edgepack_supervisor.py").read_text(encoding="utf-8")
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
            outputs = Outputs(pipes.outputs, on_stderr)
            if chunks is not None:
                feed(pipes, chunks, outputs, deadline)
            outputs.take_all(deadline)
            code = pipes.wait(find_time_left(deadline))
        except TimeoutError as error:
            raise make_timeout_error(argv, timeout_s, self.name) from error
        finally:
            end(pipes)
        result = CommandResult(
            tuple(argv), code, bytes(outputs.data["stdout"]), bytes(outputs.data["stderr"])
        )
        return require_python(result, self._python, self.name)

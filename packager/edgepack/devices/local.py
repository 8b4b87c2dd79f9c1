"""The transport to this machine: the same behaviour as over SSH, without a wire."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess  # noqa: TID251  (for its types; programs are started by edgepack.base.processes)
import threading
import time
from collections.abc import Sequence
from typing import IO

from edgepack.base.processes import start_program
from edgepack.devices.commands import CommandTransport
from edgepack.devices.inventory import Device
from edgepack.devices.pipes import Pipes

_GRACE_S = 10.0
"""How long a program may take to end after its stdin has: the supervisor needs 2 s."""
_SLICE_S = 0.5


class LocalTransport(CommandTransport):
    """Runs commands as child processes of this one, each in a process group of its own."""

    def __init__(self, device: Device) -> None:
        self.name = device.name
        self._python = device.plain_python
        self._started: list[_LocalPipes] = []

    def __exit__(self, *_: object) -> None:
        for pipes in self._started:
            pipes.close()
        self._started.clear()

    def _start(self, argv: Sequence[str], *, timeout_s: float) -> Pipes:
        self._started = [pipes for pipes in self._started if pipes.open]
        pipes = _LocalPipes(start_program(argv), timeout_s)
        self._started.append(pipes)
        return pipes


class _LocalPipes:
    """A child process and this side's ends of its pipes."""

    def __init__(self, child: subprocess.Popen[bytes], timeout_s: float) -> None:
        if child.stdin is None or child.stdout is None or child.stderr is None:
            raise RuntimeError("programs are always started with three pipes")
        self.open = True
        self._child = child
        self._stdin = child.stdin
        self._timeout_s = timeout_s
        self._stdin_ends = False
        self._writing = threading.Lock()
        self._outputs = {pipe: threading.Lock() for pipe in (child.stdout, child.stderr)}
        self._stdout, self._stderr = child.stdout, child.stderr
        os.set_blocking(child.stdin.fileno(), False)

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        deadline = time.monotonic() + self._timeout_s
        while view:
            with self._writing:  # in slices, as _read does it
                if self._stdin_ends:
                    raise BrokenPipeError
                if _is_ready(self._stdin, select.POLLOUT, min(_SLICE_S, self._timeout_s)):
                    view = view[os.write(self._stdin.fileno(), view) :]
                    deadline = time.monotonic() + self._timeout_s
            if time.monotonic() > deadline:
                raise TimeoutError

    def close_stdin(self) -> None:
        self._stdin_ends = True
        with self._writing:
            self._stdin.close()

    def read(self, size: int) -> bytes:
        return self._read(self._stdout, size)

    def read_stderr(self, size: int) -> bytes:
        return self._read(self._stderr, size)

    def _read(self, pipe: IO[bytes], size: int) -> bytes:
        deadline = time.monotonic() + self._timeout_s
        while self.open:
            # In slices, so that close() can take the lock: closing a pipe that another thread
            # polls would let that thread read from whatever gets the descriptor next.
            with self._outputs[pipe]:
                if pipe.closed:
                    break
                if _is_ready(pipe, select.POLLIN, min(_SLICE_S, self._timeout_s)):
                    return os.read(pipe.fileno(), min(size, 1 << 16))
            if time.monotonic() > deadline:
                raise TimeoutError
        return b""

    def wait(self, timeout_s: float) -> int:
        try:
            code = self._child.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            raise TimeoutError from error
        return code if code >= 0 else 128 - code

    def close(self) -> None:
        """End the process group, if the end of stdin has not done so, and close the pipes."""
        self.close_stdin()
        self.open = False
        for pipe, lock in self._outputs.items():
            with lock:
                pipe.close()  # a program that streams ends when nobody reads any more
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(_GRACE_S)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()


def _is_ready(pipe: IO[bytes], event: int, timeout_s: float) -> bool:
    poll = select.poll()
    poll.register(pipe.fileno(), event)
    return bool(poll.poll(timeout_s * 1000))

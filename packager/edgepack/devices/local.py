"""The transport to this machine: the same behaviour as over SSH, without a wire."""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import signal
import subprocess  # noqa: TID251  (for its types; programs are started by edgepack.base.processes)
import threading
import time
from collections.abc import Mapping, Sequence
from typing import IO

from edgepack.base.processes import start_program
from edgepack.devices.commands import CommandTransport
from edgepack.devices.inventory import Device
from edgepack.devices.pipes import READ_BYTES, Pipes, Received

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
        self._started = [pipes for pipes in self._started if not pipes.is_closed.is_set()]
        pipes = _LocalPipes(start_program(argv), timeout_s)
        self._started.append(pipes)
        return pipes


class _LocalPipes:
    """A child process and this side's ends of its pipes."""

    def __init__(self, child: subprocess.Popen[bytes], timeout_s: float) -> None:
        if child.stdin is None or child.stdout is None or child.stderr is None:
            raise RuntimeError("programs are always started with three pipes")
        self.is_closed = threading.Event()
        self._child = child
        self._stdin = child.stdin
        self._timeout_s = timeout_s
        self._stdin_ends = False
        self._writing = threading.Lock()
        self._has_room = threading.Event()
        self._has_room.set()
        self.outputs = Received(pause=self._has_room.clear, resume=self._has_room.set)
        self._closed, self._closing = os.pipe()
        os.set_blocking(child.stdin.fileno(), False)
        outputs = {"stdout": child.stdout, "stderr": child.stderr}
        self._reader = threading.Thread(target=self._read, args=(outputs,), daemon=True)
        self._reader.start()

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        deadline = time.monotonic() + self._timeout_s
        while view:
            # In slices, so that close_stdin() can take the lock: closing a pipe that another thread
            # polls would let that thread write to whatever gets the descriptor next.
            with self._writing:
                if self._stdin_ends:
                    raise BrokenPipeError
                if _is_writable(self._stdin, min(_SLICE_S, self._timeout_s)):
                    view = view[os.write(self._stdin.fileno(), view) :]
                    deadline = time.monotonic() + self._timeout_s
            if time.monotonic() > deadline:
                raise TimeoutError

    def close_stdin(self) -> None:
        self._stdin_ends = True
        with self._writing:
            self._stdin.close()

    def wait(self, timeout_s: float) -> int:
        try:
            code = self._child.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            raise TimeoutError from error
        return code if code >= 0 else 128 - code

    def close(self) -> None:
        """End the process group, if the end of stdin has not done so, and close the pipes."""
        self.close_stdin()
        if not self.is_closed.is_set():
            self.is_closed.set()
            os.close(self._closing)
        self._reader.join()  # a program that streams ends when nobody reads any more
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(_GRACE_S)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()

    def _read(self, pipes: Mapping[str, IO[bytes]]) -> None:
        """Read both outputs until they end or are closed."""
        with selectors.DefaultSelector() as selector, contextlib.ExitStack() as stack:
            stack.callback(os.close, self._closed)
            selector.register(self._closed, selectors.EVENT_READ)
            for output, pipe in pipes.items():
                stack.enter_context(pipe)
                selector.register(pipe, selectors.EVENT_READ, output)
            left = len(pipes)
            while left and not self.is_closed.is_set():
                for key, _ in selector.select():
                    if key.data is None:
                        continue  # it is closed
                    if data := os.read(key.fd, READ_BYTES):
                        self.outputs.put(key.data, data)
                    else:
                        selector.unregister(key.fileobj)
                        left -= 1
                while not (self._has_room.wait(_SLICE_S) or self.is_closed.is_set()):
                    pass
        self.outputs.end()


def _is_writable(pipe: IO[bytes], timeout_s: float) -> bool:
    poll = select.poll()
    poll.register(pipe.fileno(), select.POLLOUT)
    return bool(poll.poll(timeout_s * 1000))

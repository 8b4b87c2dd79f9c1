"""A small SSH server on 127.0.0.1, for ``edgepack demo`` and the tests.

It lets in one key, made when it starts, and runs commands as the user who started it. It ends
commands as sshd does: when a channel closes, the command's pipes are closed and nothing is
killed. Only :meth:`LoopbackServer.stop` kills.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import IO, Self

import asyncssh

from edgepack.devices.ssh.loop import Loop

USER = "demo"
_CHUNK_BYTES = 1 << 16
_END_S = 6.0
"""How long commands may take to end once their pipes are closed; then they are killed."""

logging.getLogger("asyncssh").addHandler(logging.NullHandler())


class LoopbackServer:
    """An SSH server for this machine only; a context manager.

    Args:
        root: A folder of its own: keys and the commands' home lie there.
        host_keys: What it proves itself with; default: a new ed25519 key.
        password: Lets in with this password too.
    """

    host = "127.0.0.1"
    user = USER

    def __init__(
        self, root: Path, *, host_keys: list[asyncssh.SSHKey] | None = None, password: str = ""
    ) -> None:
        self.home = root / "home"
        self.home.mkdir(parents=True, exist_ok=True)
        self.client_key_path = root / "client_key"
        self._client_key = make_key(self.client_key_path)
        self.host_keys = host_keys or [make_key(root / "host_key")]
        self.connections: list[asyncssh.SSHServerConnection] = []
        """Those that are open, and that were not cut."""
        self._password = password
        self._children: list[subprocess.Popen[bytes]] = []
        self._listener = socket.create_server((self.host, 0))
        self._loop: Loop | None = None
        self.port: int = self._listener.getsockname()[1]

    @property
    def host_key_fingerprint(self) -> str:
        """The fingerprint of the first host key, as OpenSSH prints it."""
        return self.host_keys[0].get_fingerprint()

    @property
    def known_hosts_line(self) -> str:
        """For a known_hosts file, with the first host key."""
        return f"[{self.host}]:{self.port} {format_public_key(self.host_keys[0])}"

    def __enter__(self) -> Self:
        self._loop = Loop(USER)
        self._loop.run(self._listen())
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Close all connections and end everything that was started through them."""
        if self._loop is not None:
            self._loop.run(self._close())
            self._loop.stop()
            self._loop = None
        self._listener.close()
        deadline = time.monotonic() + _END_S
        for child in self._children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(max(0.0, deadline - time.monotonic()))
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        self._children.clear()

    def drop_connections(self) -> None:
        """Cut all connections, as a broken network would; not those that are made meanwhile."""
        if self._loop is not None:
            self._loop.run(self._cut())

    def is_accepted(self, key: asyncssh.SSHKey | None = None, password: str | None = None) -> bool:
        """Return whether a key or a password is good enough."""
        if key is not None:
            return key.public_data == self._client_key.public_data
        return bool(self._password) and password == self._password

    def start(self, command: str) -> subprocess.Popen[bytes]:
        """Start a command line in the home folder; this is what an SSH exec request is."""
        child = subprocess.Popen(
            ["/bin/sh", "-c", command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self.home,
            env={**os.environ, "HOME": str(self.home)},
            start_new_session=True,
        )
        self._children.append(child)
        return child

    def forget(self, child: subprocess.Popen[bytes]) -> None:
        """Stop looking after a command that has ended, unless it left others in its group."""
        with contextlib.suppress(PermissionError):
            try:
                os.killpg(child.pid, 0)
            except ProcessLookupError:
                self._children.remove(child)

    async def _listen(self) -> None:
        self._acceptor = await asyncssh.listen(
            sock=self._listener,
            server_factory=lambda: _Client(self),
            server_host_keys=self.host_keys,
            encoding=None,
            config=None,
        )

    async def _close(self) -> None:
        self._acceptor.close()
        await self._acceptor.wait_closed()
        await self._cut()

    async def _cut(self) -> None:
        cut, self.connections = self.connections, []
        for connection in cut:
            connection.abort()
            await connection.wait_closed()


class _Client(asyncssh.SSHServer):
    """What one client may do: run commands, and connect to other ports of this machine."""

    def __init__(self, server: LoopbackServer) -> None:
        self._server = server
        self._connection: asyncssh.SSHServerConnection | None = None
        self._judged: dict[bytes, bool] = {}

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._connection = conn
        self._server.connections.append(conn)

    def connection_lost(self, _exc: Exception | None) -> None:
        if self._connection in self._server.connections:
            self._server.connections.remove(self._connection)

    def begin_auth(self, _username: str) -> bool:
        return True

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        if key.public_data not in self._judged:  # it is asked for again with the signature
            self._judged[key.public_data] = username == USER and self._server.is_accepted(key=key)
        return self._judged[key.public_data]

    def password_auth_supported(self) -> bool:
        return True

    def validate_password(self, username: str, password: str) -> bool:
        return username == USER and self._server.is_accepted(password=password)

    def session_requested(self) -> asyncssh.SSHServerSession[bytes]:
        return _Command(self._server)

    def connection_requested(
        self, dest_host: str, _dest_port: int, _orig_host: str, _orig_port: int
    ) -> bool:
        return dest_host == self._server.host


class _Command(asyncssh.SSHServerSession[bytes]):
    """One command: bytes go between its pipes and a channel until it ends or the channel does."""

    def __init__(self, server: LoopbackServer) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._channel: asyncssh.SSHServerChannel[bytes] | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._stdin: IO[bytes] | None = None
        self._outputs: dict[IO[bytes], int | None] = {}
        self._input = bytearray()
        self._stdin_ends = False

    def connection_made(self, chan: asyncssh.SSHServerChannel[bytes]) -> None:
        self._channel = chan

    def exec_requested(self, command: str) -> bool:
        self._child = child = self._server.start(command)
        if child.stdin is None or child.stdout is None or child.stderr is None:
            raise RuntimeError("commands are started with three pipes")
        self._stdin = child.stdin
        self._outputs = {child.stdout: None, child.stderr: asyncssh.EXTENDED_DATA_STDERR}
        for pipe in (child.stdin, *self._outputs):
            os.set_blocking(pipe.fileno(), False)
        return True

    def session_started(self) -> None:
        self.resume_writing()

    def data_received(self, data: bytes, _datatype: int | None) -> None:
        self._input += data
        self._feed()

    def eof_received(self) -> bool:
        self._stdin_ends = True
        self._feed()
        return True  # the channel stays open for the outputs

    def pause_writing(self) -> None:
        for pipe in self._outputs:
            self._loop.remove_reader(pipe)

    def resume_writing(self) -> None:
        for pipe in self._outputs:
            self._loop.add_reader(pipe, self._pass_on, pipe)

    def connection_lost(self, _exc: Exception | None) -> None:
        for pipe in list(self._outputs):
            self._close(pipe)
        self._close_stdin()

    def _feed(self) -> None:
        """Give the command what has come, as fast as it takes it."""
        stdin = self._stdin
        if self._channel is None or stdin is None or stdin.closed:
            return  # the command reads no more
        try:
            while self._input:
                del self._input[: os.write(stdin.fileno(), self._input[:_CHUNK_BYTES])]
        except BlockingIOError:
            self._channel.pause_reading()
            self._loop.add_writer(stdin, self._feed)
        except BrokenPipeError:
            self._close_stdin()
            self._channel.resume_reading()
        else:
            self._loop.remove_writer(stdin)
            if self._stdin_ends:
                self._close_stdin()
            self._channel.resume_reading()  # which may come back here

    def _close_stdin(self) -> None:
        if self._stdin is not None and not self._stdin.closed:
            self._loop.remove_writer(self._stdin)
            self._stdin.close()

    def _pass_on(self, pipe: IO[bytes]) -> None:
        """Send what a command has printed."""
        if self._channel is None:
            return
        if data := os.read(pipe.fileno(), _CHUNK_BYTES):
            self._channel.write(data, self._outputs[pipe])
        else:
            self._close(pipe)
            if not self._outputs:
                self._ending = asyncio.create_task(self._end())

    def _close(self, pipe: IO[bytes]) -> None:
        del self._outputs[pipe]
        self._loop.remove_reader(pipe)
        pipe.close()

    async def _end(self) -> None:
        if self._child is None or self._channel is None:
            return
        code = await asyncio.to_thread(self._child.wait)
        if code >= 0:  # sshd sends no exit status either for a command that a signal ended
            self._channel.exit(code)
        else:
            self._channel.close()
        self._server.forget(self._child)


def make_key(path: Path) -> asyncssh.SSHKey:
    """Write a new ed25519 key pair, readable by its owner alone, and return it."""
    key = asyncssh.generate_private_key("ssh-ed25519")
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(key.export_private_key())
    return key


def format_public_key(key: asyncssh.SSHKey) -> str:
    """Return a public key as OpenSSH's files have it, without a comment."""
    return " ".join(key.export_public_key().decode("ascii").split()[:2])

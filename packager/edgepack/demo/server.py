"""A small SSH server on 127.0.0.1, for ``edgepack demo`` and the tests.

It lets in one key, made when it starts, and runs commands as the user who started it. It ends
commands as sshd does: when a channel closes, the command's pipes are closed and nothing is
killed. Only :meth:`LoopbackServer.stop` kills.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import selectors
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

import paramiko
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from paramiko.common import (
    AUTH_FAILED,
    AUTH_SUCCESSFUL,
    OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED,
    OPEN_FAILED_CONNECT_FAILED,
    OPEN_SUCCEEDED,
)

USER = "demo"
_TICK_S = 0.05
_CHUNK_BYTES = 1 << 16
_END_S = 6.0
"""How long commands may take to end once their pipes are closed; then they are killed."""

logging.getLogger("paramiko").addHandler(logging.NullHandler())


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
        self, root: Path, *, host_keys: list[paramiko.PKey] | None = None, password: str = ""
    ) -> None:
        self.home = root / "home"
        self.home.mkdir(parents=True, exist_ok=True)
        self.client_key_path = root / "client_key"
        self._client_key = make_key(self.client_key_path)
        self.host_keys = host_keys or [make_key(root / "host_key")]
        self._password = password
        self._children: list[subprocess.Popen[bytes]] = []
        self._connections: list[paramiko.Transport] = []
        self._threads: list[threading.Thread] = []
        self._closing = threading.Event()
        self._listener = socket.create_server((self.host, 0))
        self._listener.settimeout(_TICK_S)
        self.port: int = self._listener.getsockname()[1]

    @property
    def host_key_fingerprint(self) -> str:
        """The fingerprint of the first host key, as OpenSSH prints it."""
        return str(self.host_keys[0].fingerprint)

    @property
    def known_hosts_line(self) -> str:
        """For a known_hosts file, with the first host key."""
        key = self.host_keys[0]
        return f"[{self.host}]:{self.port} {key.get_name()} {key.get_base64()}"

    def __enter__(self) -> Self:
        self.spawn(self._listen)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Close all connections and end everything that was started through them."""
        self._closing.set()
        self._listener.close()
        self.drop_connections()
        deadline = time.monotonic() + _END_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        for child in self._children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(max(0.0, deadline - time.monotonic()))
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        self._children.clear()

    def forget(self, child: subprocess.Popen[bytes]) -> None:
        """Stop looking after a command that has ended, unless it left others in its group."""
        with contextlib.suppress(PermissionError):
            try:
                os.killpg(child.pid, 0)
            except ProcessLookupError:
                self._children.remove(child)

    def drop_connections(self) -> None:
        """Cut all connections, as a broken network would; not those that are made meanwhile."""
        cut, self._connections = self._connections, []
        for connection in cut:
            connection.close()
            connection.join(_END_S)

    def spawn(self, target: Callable[..., None], *arguments: object) -> None:
        """Run a function in a thread that :meth:`stop` waits for."""
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def lets_in(self, key: paramiko.PKey | None = None, password: str | None = None) -> bool:
        """Return whether a key or a password is good enough."""
        if key is not None:
            return key.asbytes() == self._client_key.asbytes()
        return bool(self._password) and password == self._password

    def start(self, command: str) -> subprocess.Popen[bytes]:
        """Start a command line in the home folder; this is what an SSH exec request is."""
        pipe = subprocess.PIPE
        child = subprocess.Popen(
            ["/bin/sh", "-c", command],
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            cwd=self.home,
            env={**os.environ, "HOME": str(self.home)},
            start_new_session=True,
        )
        self._children.append(child)
        return child

    def _listen(self) -> None:
        while not self._closing.is_set():
            with contextlib.suppress(TimeoutError, OSError):
                connected, _ = self._listener.accept()
                self.spawn(self._serve, connected)

    def _serve(self, connected: socket.socket) -> None:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = paramiko.Transport(connected)
        for key in self.host_keys:
            connection.add_server_key(key)
        self._connections.append(connection)
        client = _Client(self)
        with contextlib.suppress(paramiko.SSHException, EOFError, OSError):
            connection.start_server(server=client)
        accepted = []  # paramiko closes a channel that nothing refers to
        while connection.is_active() and not self._closing.is_set():
            if channel := connection.accept(_TICK_S):
                accepted.append(channel)
                if channel.chanid in client.forwards:
                    self.spawn(_forward, channel, client.forwards.pop(channel.chanid))
        connection.close()
        connected.close()


class _Client(paramiko.ServerInterface):
    """What one client may do: run commands, and connect to other ports of this machine."""

    def __init__(self, server: LoopbackServer) -> None:
        self.forwards: dict[int, socket.socket] = {}
        self._server = server

    def get_allowed_auths(self, username: str) -> str:
        return "publickey,password" if username == USER else "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        good = username == USER and self._server.lets_in(key=key)
        return AUTH_SUCCESSFUL if good else AUTH_FAILED

    def check_auth_password(self, username: str, password: str) -> int:
        good = username == USER and self._server.lets_in(password=password)
        return AUTH_SUCCESSFUL if good else AUTH_FAILED

    def check_channel_request(self, kind: str, chanid: int) -> int:  # noqa: ARG002
        if kind == "session":
            return OPEN_SUCCEEDED
        return OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        child = self._server.start(command.decode("utf-8", "surrogateescape"))
        self._server.spawn(self._serve, _Session(channel, child), child)
        return True

    def _serve(self, session: _Session, child: subprocess.Popen[bytes]) -> None:
        session.pump()
        self._server.forget(child)

    def check_channel_direct_tcpip_request(
        self,
        chanid: int,
        origin: tuple[str, int],  # noqa: ARG002
        destination: tuple[str, int],
    ) -> int:
        if destination[0] != self._server.host:
            return OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED
        try:
            self.forwards[chanid] = socket.create_connection(destination, timeout=_END_S)
        except OSError:
            return OPEN_FAILED_CONNECT_FAILED
        return OPEN_SUCCEEDED


class _Session:
    """One command: bytes go between its pipes and a channel until it ends or the channel does.

    Nothing here selects on the channel: paramiko's pipe for that may be closed while the
    connection's thread writes to it, which ends the connection.
    """

    def __init__(self, channel: paramiko.Channel, child: subprocess.Popen[bytes]) -> None:
        if child.stdin is None or child.stdout is None or child.stderr is None:
            raise RuntimeError("commands are started with three pipes")
        self._channel = channel
        self._child = child
        self._stdin = child.stdin
        self._outputs = {child.stdout: channel.sendall, child.stderr: channel.sendall_stderr}
        self._feeder = threading.Thread(target=self._feed, daemon=True)
        self._ended = threading.Event()
        os.set_blocking(child.stdin.fileno(), False)

    def pump(self) -> None:
        """Run until both outputs have ended or the channel is closed."""
        # The client's answer comes after it was told that the command was accepted: a command
        # that ends at once must not close the channel before that. A lost link is seen below.
        with contextlib.suppress(paramiko.SSHException, OSError, EOFError):
            self._channel.get_transport().global_request("ping@edgepack", wait=True)
        self._feeder.start()
        with selectors.DefaultSelector() as selector, contextlib.suppress(OSError, EOFError):
            for pipe, send in self._outputs.items():
                selector.register(pipe, selectors.EVENT_READ, send)
            while selector.get_map() and not self._channel.closed:
                for key, _ in selector.select(_TICK_S):
                    if data := os.read(key.fd, _CHUNK_BYTES):
                        key.data(data)
                    else:
                        selector.unregister(key.fileobj)
        self._finish()

    def _feed(self) -> None:
        with contextlib.suppress(OSError, EOFError):
            with self._stdin, contextlib.suppress(BrokenPipeError):
                while data := self._channel.recv(_CHUNK_BYTES):
                    self._write(data)
            while self._channel.recv(_CHUNK_BYTES):
                pass  # the command reads no more

    def _write(self, data: bytes) -> None:
        """Give the command what has come, as fast as it takes it."""
        stdin = self._stdin.fileno()
        while data and not (self._ended.is_set() or self._channel.closed):
            _, ready, _ = select.select([], [stdin], [], _TICK_S)
            if ready:
                data = data[os.write(stdin, data) :]

    def _finish(self) -> None:
        self._ended.set()
        for pipe in self._outputs:
            pipe.close()
        code = self._child.wait()
        with contextlib.suppress(OSError, EOFError):
            if code >= 0:  # sshd sends no exit status either for a command that a signal ended
                self._channel.send_exit_status(code)
            self._channel.close()
        self._feeder.join()


def _forward(channel: paramiko.Channel, connected: socket.socket) -> None:
    """Pass bytes between a channel and a socket until one of them ends."""

    def copy_back() -> None:
        with contextlib.suppress(OSError, EOFError), contextlib.closing(channel):
            while data := connected.recv(_CHUNK_BYTES):
                channel.sendall(data)

    back = threading.Thread(target=copy_back, daemon=True)
    back.start()
    with contextlib.suppress(OSError, EOFError):
        while data := channel.recv(_CHUNK_BYTES):
            connected.sendall(data)
    with connected, contextlib.suppress(OSError):
        connected.shutdown(socket.SHUT_RDWR)  # wakes the other direction
    back.join()


def make_key(path: Path) -> paramiko.PKey:
    """Write a new ed25519 key pair, readable by its owner alone, and return it."""
    private = Ed25519PrivateKey.generate()
    text = private.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(text)
    return paramiko.Ed25519Key.from_private_key_file(str(path))

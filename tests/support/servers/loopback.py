"""Helpers for tests over real SSH on 127.0.0.1."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pytest
from edgepack.demo.server import LoopbackServer
from edgepack.devices.inventory import Device, SshEntry


def ssh_device(server: LoopbackServer, **changes: Any) -> Device:
    """Return a device that is the server, its key pinned, untouched by any SSH configuration.

    If there is to be one, the test is skipped where no OpenSSH can read it.
    """
    if "ssh_config" in changes:
        require_openssh()
    return Device("board", SshEntry(**(ssh_entry(server) | changes)))


def require_openssh() -> None:
    """Skip the test where OpenSSH's client is missing: it reads its configuration for edgepack."""
    if shutil.which("ssh") is None:
        pytest.skip("there is no OpenSSH")


def ssh_entry(server: LoopbackServer) -> dict[str, Any]:
    """Return what an inventory says of that device."""
    return {
        "transport": "ssh",
        "host": server.host,
        "port": server.port,
        "user": server.user,
        "key": str(server.client_key_path),
        "host_key": server.host_key_fingerprint,
        "ssh_config": os.devnull,
        "target": "linux-x86-64",
    }


def lives(pid: int) -> bool:
    """Say whether a process runs; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # it may end between opening and reading
        return False
    return state != "Z"


def wait_until(is_true: Callable[[], bool], seconds: float = 10.0) -> bool:
    """Return whether something becomes true in time."""
    deadline = time.monotonic() + seconds
    while not is_true() and time.monotonic() < deadline:
        time.sleep(0.02)
    return is_true()


class CuttingProxy:
    """A TCP proxy on 127.0.0.1 that cuts a connection after so many bytes to the server."""

    def __init__(self, port: int, cut_after_bytes: int) -> None:
        self._server_port = port
        self._left = cut_after_bytes
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._forward, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._left = 0
        self._thread.join(10)
        self._listener.close()

    def _forward(self) -> None:
        client, _ = self._listener.accept()
        server = socket.create_connection(("127.0.0.1", self._server_port))
        with client, server, contextlib.suppress(OSError):
            while self._left > 0:
                ready, _, _ = select.select([client, server], [], [], 0.05)
                for source in ready:
                    data = source.recv(min(1 << 16, max(self._left, 1)))
                    if not data:
                        return
                    (server if source is client else client).sendall(data)
                    self._left -= len(data) if source is client else 0

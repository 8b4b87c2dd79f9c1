"""Dials hosts: over TCP, through another host, or through a ``ProxyCommand``."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import asyncssh

from edgepack.base.processes import start_program
from edgepack.devices.ssh.config import SshSettings

Addresses = Sequence[tuple[socket.AddressFamily, Any]]
"""Each as ``socket.getaddrinfo`` returns it: the family and the address."""

_KEEPALIVE_S = 60
_SO_BINDTODEVICE = 25
"""Of Linux, which Python 3.11's socket module names on Linux only."""


def find_addresses(settings: SshSettings) -> Addresses:
    """Look a host's name up, unless a program connects to it.

    Raises:
        OSError: The name is not known.
    """
    if settings.proxy_command:
        return []
    found = socket.getaddrinfo(
        settings.hostname, settings.port, settings.address_family, socket.SOCK_STREAM
    )
    return [(family, address) for family, _, _, _, address in found]


class Dialer:
    """Dials a host for asyncssh, which takes it for a tunnel.

    Args:
        settings: Of the host.
        via: The connection to the host before it, if there is one.
        addresses: Of the host, where there is none.
        validate: Judges the host's key; see :meth:`.key_check.KeyCheck.validate`.
    """

    def __init__(
        self,
        settings: SshSettings,
        via: asyncssh.SSHClientConnection | None,
        addresses: Addresses,
        validate: Callable[[bytes], asyncssh.SSHKey],
    ) -> None:
        self._settings = settings
        self._via = via
        self._addresses = addresses
        self._validate = validate
        self._children: list[subprocess.Popen[bytes]] = []

    async def create_connection(
        self, factory: Callable[[], Any], host: str, port: int
    ) -> tuple[Any, Any]:
        """Dial, and return the transport and what the factory made for it.

        Raises:
            OSError: There is no connection, or not in time.
            asyncssh.Error: The host on the way does not connect.
        """

        def make() -> Any:  # noqa: ANN401  (asyncssh makes its connections so)
            connection: Any = factory()
            # asyncssh judges certificates by rules of its own, and shows their bytes to nobody.
            connection.validate_server_host_key = self._validate
            return connection

        async with asyncio.timeout(self._settings.connect_timeout_s):
            if self._via is not None:
                return await self._via.create_connection(make, host, port)
            connected = await self._dial()
        return await asyncio.get_running_loop().create_connection(make, sock=connected)

    async def close(self) -> None:
        """End the programs that connect, if there are any."""
        for child in self._children:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
            await asyncio.to_thread(child.wait)

    async def _dial(self) -> socket.socket:
        if self._settings.proxy_command:
            return await asyncio.to_thread(self._start_program)
        problem: OSError = socket.gaierror(socket.EAI_NONAME, "no address")
        for family, address in self._addresses:
            connected = socket.socket(family, socket.SOCK_STREAM)
            try:
                connected.setblocking(False)  # noqa: FBT003
                self._prepare(connected)
                await asyncio.get_running_loop().sock_connect(connected, address)
            except OSError as error:
                connected.close()
                problem = error
            except BaseException:
                connected.close()
                raise
            else:
                return connected
        raise problem

    def _prepare(self, connected: socket.socket) -> None:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # a peer that vanished is noticed by keep-alives
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _KEEPALIVE_S * 1000)
        if self._settings.bind_interface:
            name = self._settings.bind_interface.encode() + b"\0"
            connected.setsockopt(socket.SOL_SOCKET, _SO_BINDTODEVICE, name)
        if self._settings.bind_address:
            connected.bind((self._settings.bind_address, 0))

    def _start_program(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs, open(os.devnull, "wb") as nowhere:  # noqa: PTH123
            child = start_program(
                self._settings.proxy_command,
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=nowhere.fileno(),
            )
        self._children.append(child)
        ours.setblocking(False)  # noqa: FBT003
        return ours

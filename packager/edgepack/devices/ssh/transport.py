"""The transport over SSH."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Self

import asyncssh

from edgepack.devices.commands import CommandTransport, format_command
from edgepack.devices.inventory import Device, LabgridEntry, SshEntry
from edgepack.devices.pipes import Pipes
from edgepack.devices.ssh.connect import HANDSHAKE_S, connect, connect_way, find_way
from edgepack.devices.ssh.loop import find_loop
from edgepack.devices.ssh.program import RemoteProgram, make_lost_error
from edgepack.errors import UnreachableError, UsageError

_SETTLE_S = 5.0
"""How long dropbear gets no new session while a program of another may be about to end."""

# asyncssh logs what it also raises; without a handler Python would print that.
logging.getLogger("asyncssh").addHandler(logging.NullHandler())


class _Connected(CommandTransport):
    """One SSH connection, used for everything until the context is left."""

    def __init__(self, device: Device) -> None:
        self.name = device.name
        self._entry = find_ssh_entry(device)
        self._stack = AsyncExitStack()
        self._connection: asyncssh.SSHClientConnection | None = None
        self._environment: dict[bytes | str, bytes | str] = {}
        self._programs: list[RemoteProgram] = []

    def _connect(self) -> asyncssh.SSHClientConnection:
        """Return the connection; ``_stack`` closes it."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        try:
            self._connection = self._connect()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def _close(self) -> None:
        self._connection = None
        find_loop().run(self._stack.aclose())

    def _start(self, argv: Sequence[str], *, timeout_s: float) -> Pipes:
        if self._connection is None:
            raise RuntimeError("the transport is used outside its context")
        connection = self._connection
        self._let_settle(connection)
        program = RemoteProgram(find_loop(), self.name, timeout_s)

        async def start() -> None:
            try:
                async with asyncio.timeout(HANDSHAKE_S):
                    await connection.create_session(
                        lambda: program,
                        format_command(argv),
                        env=self._environment,
                        encoding=None,
                        request_pty=False,
                    )
            except BaseException:
                program.abort()
                raise

        try:
            find_loop().run(start())
        except asyncssh.ChannelOpenError as error:
            if connection.is_closed():
                raise make_lost_error(self.name) from error
            raise UnreachableError(
                f"the SSH server of {self.name} opens no session for a command: {error}",
                hint="try again; if it stays so, look at MaxSessions and ForceCommand in its"
                " sshd_config, and at ~/.profile there: a login must print nothing without a"
                " terminal",
                where=self.name,
            ) from error
        except (asyncssh.Error, OSError) as error:
            raise make_lost_error(self.name, str(error)) from error
        self._programs.append(program)
        return program

    def _let_settle(self, connection: asyncssh.SSHClientConnection) -> None:
        """Wait until no program is about to end, if the server is dropbear.

        When any program of a connection ends, dropbear (2022.83) closes a session that has not got
        its command yet, and may run the command nevertheless. Where a login prints, a program that
        is about to end passes for one at work: then the session is refused, with that hint.
        """
        self._programs = [each for each in self._programs if not each.has_ended()]
        if "dropbear" in str(connection.get_extra_info("server_version")):
            for each in self._programs:
                each.wait_settled(_SETTLE_S)


class SshTransport(_Connected):
    """A device."""

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self._python = device.plain_python

    def _connect(self) -> asyncssh.SSHClientConnection:
        entered = connect(self._entry, self.name, self._stack)
        self.host_key = entered.host_key.fingerprint
        self._environment = dict(entered.settings.environment)
        return entered.connection


class LastJump(_Connected):
    """The last host on the way to a device."""

    def _connect(self) -> asyncssh.SSHClientConnection:
        way = find_way(self._entry, self.name)
        self._environment = dict(way[-1].environment)
        return connect_way(way, self.name, self._stack)


def find_ssh_entry(device: Device) -> SshEntry:
    """Return how to reach a device, or the machine that a phone is attached to, over SSH.

    Raises:
        UsageError: It is not reached over SSH.
    """
    entry = device.host.entry
    if isinstance(entry, LabgridEntry):
        from edgepack.devices.places import find_board
        from edgepack.devices.reservations import find_place

        return find_board(find_place(device))
    if not isinstance(entry, SshEntry):
        raise UsageError(
            f"device {device.name!r} is not reached over SSH", hint="it has no host key to trust"
        )
    return entry

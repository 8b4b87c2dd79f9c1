"""Keeps one connection to each host on the way, however many devices are behind it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import asyncssh

from edgepack.devices.ssh.config import SshSettings

Route = tuple[SshSettings, ...]
"""The hosts on the way, the nearest first."""

Make = Callable[[AsyncExitStack], Awaitable[asyncssh.SSHClientConnection]]
"""Makes a connection; the stack closes what it made."""


@dataclass
class _Held:
    made: asyncio.Task[asyncssh.SSHClientConnection]
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    users: int = 0

    @property
    def is_lost(self) -> bool:
        """Whether it has ended or failed, so that new users need another one."""
        made = self.made
        return made.done() and (
            made.cancelled() or made.exception() is not None or made.result().is_closed()
        )


class SharedConnections:
    """Connections that are made for their first user and closed after their last; in the loop."""

    def __init__(self) -> None:
        self._held: dict[Route, _Held] = {}

    @asynccontextmanager
    async def through(
        self, route: Route, make: Make
    ) -> AsyncIterator[asyncssh.SSHClientConnection]:
        """Use the connection to the end of a route.

        Args:
            route: The connection's key: equal routes lead to the same host in the same way.
            make: Makes it if there is none, or it was lost. If it raises, so does this for all who
                waited for it.
        """
        held = self._held.get(route)
        if held is None or held.is_lost:
            stack = AsyncExitStack()
            held = self._held[route] = _Held(asyncio.ensure_future(make(stack)), stack)
        held.users += 1
        try:
            yield await asyncio.shield(held.made)
        finally:
            held.users -= 1
            if held.users == 0:
                if self._held.get(route) is held:
                    del self._held[route]
                held.made.cancel()
                await asyncio.wait([held.made])
                await held.stack.aclose()

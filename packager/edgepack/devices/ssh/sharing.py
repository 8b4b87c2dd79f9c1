"""Keeps one connection to each host on the way, however many devices are behind it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import paramiko

from edgepack.devices.ssh.config import SshSettings

Route = tuple[SshSettings, ...]
"""The hosts on the way, the nearest first."""


@dataclass
class _Held:
    made: Future[paramiko.Transport] = field(default_factory=Future)
    stack: ExitStack = field(default_factory=ExitStack)
    users: int = 0

    @property
    def is_lost(self) -> bool:
        """Whether it has ended or failed, so that new users need another one."""
        made = self.made
        return made.done() and (made.exception() is not None or not made.result().is_active())


class SharedConnections:
    """Connections that are made for their first user and closed after their last; for threads."""

    def __init__(self) -> None:
        self._held: dict[Route, _Held] = {}
        self._lock = threading.Lock()

    @contextmanager
    def through(
        self, route: Route, make: Callable[[ExitStack], paramiko.Transport]
    ) -> Iterator[paramiko.Transport]:
        """Use the connection to the end of a route.

        Args:
            route: The connection's key: equal routes lead to the same host in the same way.
            make: Makes it if there is none, or it was lost; the stack closes what it made. If it
                raises, so does this for all who waited for it.
        """
        with self._lock:
            held = self._held.get(route)
            is_new = held is None or held.is_lost
            if held is None or is_new:
                held = self._held[route] = _Held()
            held.users += 1
        try:
            if is_new:
                _fulfil(held, make)
            yield held.made.result()
        finally:
            self._leave(route, held)

    def _leave(self, route: Route, held: _Held) -> None:
        with self._lock:
            held.users -= 1
            unused = held.users == 0
            if unused and self._held.get(route) is held:
                del self._held[route]
        if unused:
            held.stack.close()


def _fulfil(held: _Held, make: Callable[[ExitStack], paramiko.Transport]) -> None:
    try:
        held.made.set_result(make(held.stack))
    except BaseException as error:  # noqa: BLE001  (whoever needs the result raises it)
        held.made.set_exception(error)

"""Limits how many connections may be logging in to one SSH server at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

LOGINS = 8
"""From 10 connections that are not logged in yet on, sshd drops some of the next ones:
``MaxStartups 10:30:100`` (sshd_config(5), OpenSSH 9.2). Two are left to others."""

_gates: dict[tuple[str, int], threading.BoundedSemaphore] = {}
_lock = threading.Lock()


@contextmanager
def paced(hostname: str, port: int) -> Iterator[None]:
    """Hold one of the :data:`LOGINS` places that this process has at a server; wait for one."""
    with _lock:
        gate = _gates.setdefault((hostname, port), threading.BoundedSemaphore(LOGINS))
    with gate:
        yield

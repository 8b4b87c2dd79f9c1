"""Limits how many connections may be logging in to one SSH server at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

LOGINS = 8
"""From 10 connections that are not logged in yet on, sshd drops some of the next ones:
``MaxStartups 10:30:100`` (sshd_config(5), OpenSSH 9.2). Two are left to others."""

_gates: dict[tuple[str, int], asyncio.Semaphore] = {}


@asynccontextmanager
async def paced(hostname: str, port: int) -> AsyncIterator[None]:
    """Hold one of the :data:`LOGINS` places that this process has at a server; wait for one."""
    async with _gates.setdefault((hostname, port), asyncio.Semaphore(LOGINS)):
        yield

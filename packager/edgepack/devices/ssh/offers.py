"""Reads which kinds of host key a server has, where no common one was found.

asyncssh does not tell, and OpenSSH's server hangs up without a word.
"""

from __future__ import annotations

import asyncio
from typing import cast

from edgepack.devices.ssh.dialing import Dialer

_WAIT_S = 10.0
_KEXINIT = 20
_COOKIE_BYTES = 16
_MOST_BYTES = 1 << 16


async def read_offered_kinds(dialer: Dialer, host: str, port: int) -> list[str]:
    """Return the kinds that a server offers; this opens a connection of its own, and ends it.

    Raises:
        OSError: It cannot be reached, or says something else.
    """
    transport, offer = await dialer.create_connection(_Offer, host, port)
    try:
        async with asyncio.timeout(_WAIT_S):
            return _parse_kinds(await offer.packet)
    finally:
        transport.close()


class _Offer(asyncio.Protocol):
    """Takes a server's first packet (RFC 4253, 4.2 and 6), over a socket or a channel."""

    def __init__(self) -> None:
        self.packet: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.WriteTransport", transport).write(b"SSH-2.0-edgepack\r\n")

    def session_started(self) -> None:
        """Do nothing: asyncssh calls this for a channel."""

    def data_received(self, data: bytes, _datatype: int | None = None) -> None:
        self._data += data
        _, _, rest = self._data.partition(b"SSH-")
        _, newline, rest = rest.partition(b"\n")
        length = int.from_bytes(rest[:4], "big")
        if newline and len(rest) >= 4 + length > 5 and not self.packet.done():
            self.packet.set_result(rest[5 : 4 + length])
        elif len(self._data) > _MOST_BYTES:
            self.connection_lost(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.packet.done():
            self.packet.set_exception(exc or ConnectionResetError("it said nothing of the kind"))


def _parse_kinds(payload: bytes) -> list[str]:
    """Return the second list of names of a KEXINIT (RFC 4253, 7.1)."""
    if payload[:1] != bytes([_KEXINIT]):
        raise ConnectionResetError("it said nothing of the kind")
    lists = payload[1 + _COOKIE_BYTES :]
    rest = lists[4 + int.from_bytes(lists[:4], "big") :]  # after the algorithms of key exchange
    names = rest[4 : 4 + int.from_bytes(rest[:4], "big")]
    return names.decode("ascii", "replace").split(",")

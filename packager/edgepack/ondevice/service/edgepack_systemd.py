"""Tells systemd how a service of ``Type=notify`` is. Without systemd nothing is told.

Source: sd_notify(3): a datagram to the socket that NOTIFY_SOCKET names; ``@`` stands for an
abstract one.
"""

from __future__ import annotations

import os
import socket


def notify(*states: str) -> None:
    """Send states such as ``READY=1``.

    Raises:
        OSError: There is a socket's name, and it takes nothing.
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as there:
        there.sendto("\n".join(states).encode(), address)

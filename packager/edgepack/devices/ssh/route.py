"""Finds the hosts on the way to a device, from ``ProxyJump``."""

from __future__ import annotations

from dataclasses import replace

from edgepack.devices.ssh.config import SshSettings, resolve
from edgepack.errors import DeviceError

MAX_HOPS = 8

Route = tuple[SshSettings, ...]
"""Hosts to connect to one after the other, the nearest first."""


def find_route(settings: SshSettings, device: str, *, depth: int = 0) -> Route:
    """Return the hosts to connect to one after the other, the device last.

    Raises:
        DeviceError: The configuration's ProxyJump leads in a circle.
    """
    if not settings.proxy_jump:
        return (settings,)
    if depth > MAX_HOPS:
        raise DeviceError(
            f"ProxyJump leads through more than {MAX_HOPS} hosts",
            hint=f"look for a loop: ssh -G {settings.host} | grep proxyjump",
            where=device,
        )
    *earlier, last = settings.proxy_jump.split(",")
    user, _, address = last.rpartition("@")
    host, port = _split_port(address)
    hop = resolve(host, user=user or None, port=port, ssh_config=settings.ssh_config, where=device)
    if earlier:
        hop = replace(hop, proxy_jump=",".join(earlier), proxy_command=())
    return (*find_route(hop, device, depth=depth + 1), settings)


def _split_port(address: str) -> tuple[str, int | None]:
    address = address.removeprefix("ssh://")
    if address.startswith("["):
        host, _, port = address[1:].partition("]")
        port = port.removeprefix(":")
    else:
        host, _, port = address.partition(":")
    return host, int(port) if port else None

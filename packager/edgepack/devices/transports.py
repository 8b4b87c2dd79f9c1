"""The transports there are, by the word that the inventory uses for them."""

from __future__ import annotations

from collections.abc import Callable

from edgepack.devices.inventory import Device
from edgepack.devices.transport import Transport


def _local(device: Device) -> Transport:
    from edgepack.devices.local import LocalTransport

    return LocalTransport(device)


def _ssh(device: Device) -> Transport:
    from edgepack.devices.ssh import SshTransport

    return SshTransport(device)


TRANSPORTS: dict[str, Callable[[Device], Transport]] = {"local": _local, "ssh": _ssh}


def connect(device: Device) -> Transport:
    """Return the transport to a device; entering it connects."""
    return TRANSPORTS[device.entry.transport](device)

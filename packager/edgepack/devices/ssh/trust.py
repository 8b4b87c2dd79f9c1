"""Fetches a device's host key and makes it trusted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from edgepack.devices.inventory import Device
from edgepack.devices.ssh.config import find_settings
from edgepack.devices.ssh.host_keys import (
    HostKey,
    KeyProblem,
    find_own_known_hosts,
    find_problem,
    write_trusted,
)
from edgepack.devices.ssh.route import Route, find_route
from edgepack.errors import DeviceError


@dataclass(frozen=True)
class UntrustedKey:
    """A key that a host has shown and that is not trusted."""

    host: str
    """The name under which known_hosts files would have it."""
    key: HostKey
    is_devices: bool
    """Whether the host is the device itself, and not one on the way to it."""
    problem: KeyProblem


def trust(
    device: Device,
    fingerprint: str | None,
    confirm: Callable[[str], bool],
    *,
    on_trusted: Callable[[str, HostKey], None] = lambda _host, _key: None,
) -> str:
    """Fetch the device's host key, and those of the hosts on the way, and make them known.

    A key is learnt by the key exchange alone; we log in to a host on the way only after its key
    was accepted, and to the device not at all. The device's key is accepted by ``fingerprint``
    where one is given; ``confirm`` is asked for all others, with a text that shows the key.
    ``on_trusted`` is called with each host and key when they have been written.

    Returns:
        The newly trusted host keys, a line for each host.

    Raises:
        UsageError: The device is not reached over SSH.
        DeviceError: A host cannot be reached, or its key was not accepted.
    """
    route = find_device_route(device)
    trusted: list[str] = []
    for number in range(1, len(route) + 1):
        found = fetch_untrusted(device, route, number)
        if found is None:
            continue
        require_accepted(found, fingerprint if found.is_devices else None, confirm)
        write_trusted(found.host, found.key)
        on_trusted(found.host, found.key)
        trusted.append(f"{found.host} is trusted: {found.key.kind} {found.key.fingerprint}")
    if not trusted:
        return f"the host key of {device.name} is trusted already"
    return "\n".join([*trusted, f"written to {find_own_known_hosts()}"])


def find_device_route(device: Device) -> Route:
    """Return the hosts on the way to a device, and the device last.

    Raises:
        UsageError: The device is not reached over SSH.
        DeviceError: The SSH configuration is wrong.
    """
    from edgepack.devices.ssh.transport import find_ssh_entry

    return find_route(find_settings(find_ssh_entry(device), device.name), device.name)


def fetch_untrusted(device: Device, route: Route, number: int) -> UntrustedKey | None:
    """Return the key of a host on a route, counted from 1, if it is not trusted yet.

    The hosts before it are logged in to.

    Raises:
        DeviceError: It cannot be reached, or its key is revoked or not the pinned one.
    """
    from edgepack.devices.ssh.connect import fetch_host_key
    from edgepack.devices.ssh.transport import find_ssh_entry

    hop, is_devices = route[number - 1], number == len(route)
    pinned = find_ssh_entry(device).host_key if is_devices else None
    received = fetch_host_key(route[:number], device.name, pinned)
    problem = find_problem(received, hop, pinned=pinned, device=device.name)
    if problem is None:
        return None
    if problem.kind in ("revoked", "not the pinned one"):
        raise problem.error
    return UntrustedKey(hop.known_as, received, is_devices, problem)


def require_accepted(
    found: UntrustedKey, fingerprint: str | None, confirm: Callable[[str], bool]
) -> None:
    """Check that a key has the fingerprint, or without one that ``confirm`` accepts it.

    Raises:
        DeviceError: It is not accepted.
    """
    received, error = found.key, found.problem.error
    if fingerprint is None:
        if confirm(error.problem):
            return
        said = f"the host key {received.fingerprint} was not accepted"
    elif fingerprint != received.fingerprint:
        said = f"the host key is {received.fingerprint}, not {fingerprint}"
    else:
        return
    raise DeviceError(
        said,
        hint="nothing was trusted; compare with the key on the device itself:"
        " ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub",
        where=error.where,
    ) from error

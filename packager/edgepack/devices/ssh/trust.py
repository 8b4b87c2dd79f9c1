"""Fetches a device's host key and makes it trusted."""

from __future__ import annotations

from collections.abc import Callable

from edgepack.devices.inventory import Device
from edgepack.devices.ssh.config import find_settings
from edgepack.devices.ssh.host_keys import (
    HostKey,
    find_own_known_hosts,
    find_problem,
    write_trusted,
)
from edgepack.devices.ssh.route import find_route
from edgepack.errors import DeviceError


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
    from edgepack.devices.ssh.connect import fetch_host_key
    from edgepack.devices.ssh.transport import find_ssh_entry

    entry = find_ssh_entry(device)
    route = find_route(find_settings(entry, device.name), device.name)
    trusted: list[str] = []
    for number, hop in enumerate(route, start=1):
        is_device = number == len(route)
        pinned = entry.host_key if is_device else None
        received = fetch_host_key(route[:number], device.name, pinned)
        problem = find_problem(received, hop, pinned=pinned, device=device.name)
        if problem is None:
            continue
        if problem.kind in ("revoked", "not the pinned one"):
            raise problem.error
        _require_accepted(received, problem.error, fingerprint if is_device else None, confirm)
        write_trusted(hop.known_as, received)
        on_trusted(hop.known_as, received)
        trusted.append(f"{hop.known_as} is trusted: {received.kind} {received.fingerprint}")
    if not trusted:
        return f"the host key of {device.name} is trusted already"
    return "\n".join([*trusted, f"written to {find_own_known_hosts()}"])


def _require_accepted(
    received: HostKey,
    problem: DeviceError,
    fingerprint: str | None,
    confirm: Callable[[str], bool],
) -> None:
    if fingerprint is None:
        if confirm(problem.problem):
            return
        found = f"the host key {received.fingerprint} was not accepted"
    elif fingerprint != received.fingerprint:
        found = f"the host key is {received.fingerprint}, not {fingerprint}"
    else:
        return
    raise DeviceError(
        found,
        hint="nothing was trusted; compare with the key on the device itself:"
        " ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub",
        where=problem.where,
    ) from problem

"""``edgepack device add``: from an address to an entry of the inventory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from edgepack.base.team import is_in_team
from edgepack.deploy.operations import Operation, audited
from edgepack.devices.checking import find_kind_mismatch
from edgepack.devices.inventory import (
    Device,
    SshEntry,
    find_inventory,
    remove_team_device,
    require_free_name,
    require_unshared,
    write_team_device,
)
from edgepack.devices.inventory import add_device as write_device
from edgepack.devices.probing import ProbedFacts, probe, propose_target
from edgepack.devices.ssh.trust import trust
from edgepack.devices.transports import connect
from edgepack.errors import DeviceError, UsageError
from edgepack.project.profile import Profile, load_profile


@dataclass(frozen=True)
class AddedDevice:
    """A device that was added to the inventory."""

    device: Device
    facts: ProbedFacts
    inventory: str
    """Where it was written: the file, or the team's database."""
    host_key: str | None
    """Fingerprint of the key that the device has proven."""


def add_device(  # noqa: PLR0913  (the command's options)
    name: str,
    address: str,
    *,
    confirm: Callable[[str], bool],
    fingerprint: str | None = None,
    target: str | None = None,
    port: int | None = None,
    key: str | None = None,
    password_env: str | None = None,
    ssh_config: str | None = None,
    inventory: Path | None = None,
) -> AddedDevice:
    """Trust a device's host key, probe it, propose its target, and write it into the inventory.

    Args:
        name: What to call it.
        address: ``USER@HOST`` or a host of the SSH configuration.
        confirm: Asked before a host key is trusted, with a text that shows it.
        fingerprint: The host key to expect; then ``confirm`` is not asked about it.
        target: Its target; by default what the probe proposes.
        port: Its SSH port; default: the SSH configuration's.
        key: The private key to use; default: the SSH configuration's.
        password_env: The environment variable that holds the password, now and at each later
            connection; the inventory keeps its name alone.
        ssh_config: A file to read instead of ``~/.ssh/config``.
        inventory: The file to write; by default the team's database where there is one, else the
            file in use.

    Raises:
        UsageError: The name is taken or not valid, or there is no such target.
        DeviceError: The device cannot be reached, its key was not accepted, it is another kind of
            machine than ``target``, or ``password_env`` is not set.
        ToolError: The audit log cannot be written.
    """
    from edgepack.devices.ssh.auth import require_password

    # Before anything is recorded: who types the password itself here must not find it in a log.
    require_password(password_env, name)
    with audited("add", name) as operation:
        path = find_inventory(inventory)
        require_free_name(name, path)
        is_shared = inventory is None and is_in_team()
        if is_shared:
            require_unshared(name)
        user, _, host = address.rpartition("@")
        profile = load_profile(target) if target else None
        entry = make_entry(
            {
                "target": profile.id if profile else "not-known-yet",
                "host": host,
                "user": user or None,
                "port": port,
                "key": str(Path(key).expanduser().absolute()) if key else None,
                "password_env": password_env,
                "ssh_config": ssh_config,
            }
        )
        trust(Device(name, entry), fingerprint, confirm, on_trusted=operation.record_trust)
        return write_probed(name, entry, profile, None if is_shared else path, operation)


def write_probed(
    name: str, entry: SshEntry, profile: Profile | None, path: Path | None, operation: Operation
) -> AddedDevice:
    """Probe a device whose host key is trusted, and write it into the inventory.

    Without a profile, its target is what the probe proposes; without a path, it is written into the
    team's database.

    Raises:
        DeviceError: It cannot be reached, or is another kind of machine than the profile's.
        UsageError: The name is taken.
        ToolError: The inventory cannot be written.
    """
    device = Device(name, entry)
    with connect(device) as transport:
        facts = probe(device, transport)
        host_key = transport.host_key
    if profile is None:
        entry = entry.model_copy(update={"target": propose_target(facts)})
        device = Device(name, entry)
    else:
        _require_kind(name, facts, profile)
    if path is None:
        write_team_device(name, entry)
    else:
        write_device(path, name, entry)
    operation.describe(host_key=host_key, serial=facts.serial or None, detail=f"as {device.target}")
    place = "the team's database" if path is None else str(path)
    return AddedDevice(device, facts, place, host_key)


def share_device(device: Device) -> None:
    """Write a device of the user's own inventory into the team's, as it is.

    Raises:
        UsageError: There is no team's database, or the name is taken there.
        ToolError: The database or the audit log cannot be written.
    """
    with audited("add", device) as operation:
        write_team_device(device.name, device.entry)
        operation.describe(detail=f"as {device.target}, for the team")


def remove_device(name: str) -> None:
    """Take a device out of the team's inventory; nothing changes on the device itself.

    Raises:
        UsageError: There is no team's database, or no such device in it.
        ToolError: The database or the audit log cannot be written.
    """
    with audited("remove", name):
        remove_team_device(name)


def _require_kind(name: str, facts: ProbedFacts, profile: Profile) -> None:
    mismatch = find_kind_mismatch(facts, profile)
    if mismatch is not None:
        raise DeviceError(
            mismatch,
            hint=f"it seems to be a {propose_target(facts)}: leave --target out",
            where=name,
        )


def make_entry(values: Mapping[str, object]) -> SshEntry:
    """Return an entry of the inventory.

    Raises:
        UsageError: A value cannot be one.
    """
    try:
        return SshEntry.model_validate({"transport": "ssh", **values})
    except ValidationError as error:
        first = error.errors()[0]
        raise UsageError(
            f"{first['loc'][-1]} cannot be {first['input']!r}: {first['msg']}",
            hint="edgepack device add NAME USER@HOST",
        ) from error

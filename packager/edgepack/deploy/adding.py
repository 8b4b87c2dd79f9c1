"""``edgepack device add``: from an address to an entry of the inventory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from edgepack.deploy.operations import audited
from edgepack.devices.checking import find_kind_mismatch
from edgepack.devices.inventory import Device, SshEntry, find_inventory, require_free_name
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
    inventory: Path
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
        ssh_config: A file to read instead of ``~/.ssh/config``.
        inventory: The file to write; by default the one in use.

    Raises:
        UsageError: The name is taken or not valid, or there is no such target.
        DeviceError: The device cannot be reached, its key was not accepted, or it is another
            kind of machine than ``target``.
        ToolError: The audit log cannot be written.
    """
    with audited("add", name) as operation:
        path = find_inventory(inventory)
        require_free_name(name, path)
        user, _, host = address.rpartition("@")
        profile = load_profile(target) if target else None
        entry = _make_entry(
            {
                "target": profile.id if profile else "not-known-yet",
                "host": host,
                "user": user or None,
                "port": port,
                "key": str(Path(key).expanduser().absolute()) if key else None,
                "ssh_config": ssh_config,
            }
        )
        device = Device(name, entry)
        trust(device, fingerprint, confirm, on_trusted=operation.record_trust)
        with connect(device) as transport:
            facts = probe(device, transport)
            host_key = transport.host_key
        if profile is None:
            entry = entry.model_copy(update={"target": propose_target(facts)})
            device = Device(name, entry)
        else:
            _require_kind(name, facts, profile)
        write_device(path, name, entry)
        operation.describe(
            host_key=host_key, serial=facts.serial or None, detail=f"as {device.target}"
        )
    return AddedDevice(device, facts, path, host_key)


def _require_kind(name: str, facts: ProbedFacts, profile: Profile) -> None:
    mismatch = find_kind_mismatch(facts, profile)
    if mismatch is not None:
        raise DeviceError(
            mismatch,
            hint=f"it seems to be a {propose_target(facts)}: leave --target out",
            where=name,
        )


def _make_entry(values: dict[str, str | int | None]) -> SshEntry:
    try:
        return SshEntry.model_validate({"transport": "ssh", **values})
    except ValidationError as error:
        first = error.errors()[0]
        raise UsageError(
            f"{first['loc'][-1]} cannot be {first['input']!r}: {first['msg']}",
            hint="edgepack device add NAME USER@HOST",
        ) from error

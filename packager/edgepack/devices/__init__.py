"""Devices: the inventory, how to reach a device, and what is done there."""

from edgepack.devices.adding import AddedDevice, add_ssh_device
from edgepack.devices.checking import (
    AbsentProvider,
    Checked,
    PhoneFacts,
    absent_providers,
    check,
    find_problems,
    require_kind,
    runtime_python,
)
from edgepack.devices.inventory import (
    AdbEntry,
    AppleEntry,
    Device,
    LocalEntry,
    PhoneEntry,
    SshEntry,
    add_device,
    described_inventory,
    device_names,
    find_inventory,
    load_device,
    load_devices,
)
from edgepack.devices.leases import Lease, leased, release, reserve, who
from edgepack.devices.probing import DeviceFacts, Missing, PythonFacts, probe, propose_target
from edgepack.devices.provisioning import Provisioned, provision
from edgepack.devices.pushing import (
    PushedRelease,
    Switched,
    push,
    rollback,
    switch,
)
from edgepack.devices.transport import CommandResult, Stream, Transport
from edgepack.devices.transports import TRANSPORTS, connect, require_machine
from edgepack.devices.trusting import trust
from edgepack.devices.verifying import verify_device

__all__ = [
    "TRANSPORTS",
    "AbsentProvider",
    "AdbEntry",
    "AddedDevice",
    "AppleEntry",
    "Checked",
    "CommandResult",
    "Device",
    "DeviceFacts",
    "Lease",
    "LocalEntry",
    "Missing",
    "PhoneEntry",
    "PhoneFacts",
    "Provisioned",
    "PushedRelease",
    "PythonFacts",
    "SshEntry",
    "Stream",
    "Switched",
    "Transport",
    "absent_providers",
    "add_device",
    "add_ssh_device",
    "check",
    "connect",
    "described_inventory",
    "device_names",
    "find_inventory",
    "find_problems",
    "leased",
    "load_device",
    "load_devices",
    "probe",
    "propose_target",
    "provision",
    "push",
    "release",
    "require_kind",
    "require_machine",
    "reserve",
    "rollback",
    "runtime_python",
    "switch",
    "trust",
    "verify_device",
    "who",
]

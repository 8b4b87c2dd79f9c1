"""Devices: the inventory, how to reach a device, and what is done there."""

from edgepack.devices.adding import AddedDevice, add_ssh_device
from edgepack.devices.checking import (
    AbsentProvider,
    Checked,
    absent_providers,
    check,
    find_problems,
    runtime_python,
)
from edgepack.devices.inventory import (
    Device,
    LocalEntry,
    SshEntry,
    add_device,
    device_names,
    find_inventory,
    load_device,
    load_devices,
)
from edgepack.devices.probing import DeviceFacts, Missing, PythonFacts, probe, propose_target
from edgepack.devices.provisioning import Provisioned, provision
from edgepack.devices.pushing import PushedRelease, push, push_bundle
from edgepack.devices.transport import CommandResult, Stream, Transport
from edgepack.devices.transports import TRANSPORTS, connect
from edgepack.devices.trusting import trust

__all__ = [
    "TRANSPORTS",
    "AbsentProvider",
    "AddedDevice",
    "Checked",
    "CommandResult",
    "Device",
    "DeviceFacts",
    "LocalEntry",
    "Missing",
    "Provisioned",
    "PushedRelease",
    "PythonFacts",
    "SshEntry",
    "Stream",
    "Transport",
    "absent_providers",
    "add_device",
    "add_ssh_device",
    "check",
    "connect",
    "device_names",
    "find_inventory",
    "find_problems",
    "load_device",
    "load_devices",
    "probe",
    "propose_target",
    "provision",
    "push",
    "push_bundle",
    "runtime_python",
    "trust",
]

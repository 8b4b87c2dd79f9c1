"""``edgepack device check``: what a device is, and what it lacks, machine or phone."""

from __future__ import annotations

from edgepack.deploy import operations
from edgepack.devices.checking import Checked
from edgepack.devices.inventory import Device, PhoneEntry
from edgepack.measure.phones.check import check_phone


def check_device(device: Device) -> Checked:
    """Return what a device is, machine or phone, and what it lacks for its target.

    What a measurement that was killed has left of ``--tune`` is given back.

    Raises:
        DeviceError: It cannot be reached or trusted; or that could not be given back.
        UsageError: There is no such target.
        ToolError: The audit log cannot be written, or a program that reaches phones is missing.
    """
    if isinstance(device.entry, PhoneEntry):
        return check_phone(device)
    return operations.check_machine(device)

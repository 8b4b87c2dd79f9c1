"""``edgepack device check``: what a device is, and what it lacks, machine or phone."""

from __future__ import annotations

from edgepack.deploy import operations
from edgepack.devices.checking import Checked
from edgepack.devices.inventory import Device, PhoneEntry
from edgepack.measure.phones.check import check_phone


def check(device: Device) -> Checked:
    """Say what a device is and lacks.

    Raises:
        EdgepackError: It cannot be reached.
    """
    if isinstance(device.entry, PhoneEntry):
        return check_phone(device)
    return operations.check(device)

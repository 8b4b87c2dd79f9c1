"""``edgepack device check``: what a device is, and what it lacks."""

from __future__ import annotations

from edgepack.base.progress import Progress, Silent
from edgepack.deploy import operations
from edgepack.devices.checking import Checked
from edgepack.devices.inventory import BrowserEntry, Device, PhoneEntry
from edgepack.measure.browsers.check import check_browser
from edgepack.measure.phones.check import check_phone


def check_device(device: Device, progress: Progress | None = None) -> Checked:
    """Return what a device is, machine, phone or browser, and what it lacks for its target.

    What a measurement that was killed has left of ``--tune`` is given back. ``progress`` is told
    which page to open.

    Raises:
        DeviceError: It cannot be reached or trusted; or that could not be given back.
        UsageError: There is no such target.
        ToolError: The audit log cannot be written, or a program that reaches phones is missing.
    """
    if isinstance(device.entry, BrowserEntry):
        return check_browser(device, progress or Silent())
    if isinstance(device.entry, PhoneEntry):
        return check_phone(device)
    return operations.check_machine(device)

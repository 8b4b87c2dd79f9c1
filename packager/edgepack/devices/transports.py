"""Lists the transports by their names in the inventory."""

from __future__ import annotations

from collections.abc import Callable

from edgepack.devices.inventory import BrowserEntry, Device, PhoneEntry
from edgepack.devices.transport import Transport
from edgepack.errors import UsageError


def _make_local(device: Device) -> Transport:
    from edgepack.devices.local import LocalTransport

    return LocalTransport(device)


def _make_ssh(device: Device) -> Transport:
    from edgepack.devices.ssh.transport import SshTransport

    return SshTransport(device)


def _make_labgrid(device: Device) -> Transport:
    from edgepack.devices.labgrid import LabgridTransport

    return LabgridTransport(device)


TRANSPORTS: dict[str, Callable[[Device], Transport]] = {
    "local": _make_local,
    "ssh": _make_ssh,
    "labgrid": _make_labgrid,
}


def require_machine(device: Device) -> None:
    """Check that a device takes bundles.

    Raises:
        UsageError: It is a phone or a browser.
    """
    if isinstance(device.entry, BrowserEntry):
        raise UsageError(
            f"{device.name} is a browser: push, rollback, compare, tune, optimize and --self-test"
            " do not work there, because a page brings its bundle",
            hint=f"it is measured: edgepack bench BUNDLE --device {device.name}, or evaluate",
            where="--device",
        )
    if isinstance(device.entry, PhoneEntry):
        raise UsageError(
            f"{device.name} is a phone: push, rollback, evaluate, compare, tune and"
            " --self-test do not work there, because an app contains its bundle",
            hint=f"phones are measured: edgepack bench BUNDLE --device {device.name}",
            where="--device",
        )


def connect(device: Device) -> Transport:
    """Return the transport to a machine; entering it connects.

    Raises:
        UsageError: The device is a phone or a browser.
    """
    require_machine(device)
    return TRANSPORTS[device.entry.transport](device)

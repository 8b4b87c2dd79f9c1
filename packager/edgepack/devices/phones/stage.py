"""Makes the folder, on a phone's machine, through which files go to the phone."""

from __future__ import annotations

from pathlib import PurePosixPath

from edgepack.devices.inventory import Device
from edgepack.devices.transport import Transport
from edgepack.errors import RemoteCommandError

STEP_S = 60.0
_MAKE = """\
umask 077 && cd && rm -rf "$1/stage" && mkdir -p "$1/stage" && cd "$1/stage" && echo "stage $PWD"
"""


def make_stage(device: Device, host: Transport) -> PurePosixPath:
    """Make the folder, empty, and return its path.

    It is beside the phone's lease, so that nobody else uses it. Files of a measurement whose
    connection broke are removed.

    Raises:
        RemoteCommandError: It cannot be made.
        DeviceError: The connection broke.
    """
    place = device.host.entry.root.removeprefix("~/")
    made = host.run(["sh", "-c", _MAKE, "sh", place], timeout_s=STEP_S).check(
        "making a folder on the machine that has the phone",
        device=device.name,
        hint="look at the message above: free space and permissions are the usual reasons",
    )
    path = made.text.strip().rpartition("stage ")[2]
    if not path.startswith("/"):
        raise RemoteCommandError(
            f"sh printed {made.text[:80]!r}",
            hint="that machine's login must print nothing without a terminal",
            where=device.name,
        )
    return PurePosixPath(path)

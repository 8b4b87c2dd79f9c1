"""Places of a labgrid that are chosen by their tags: reserved for this process, then given back.

``labgrid-client`` is asked, of labgrid 26. A reservation that waits or is allocated expires 60 s
after it was last asked for; while its place is acquired, it does not (``Reservation.timeout`` and
``refresh`` in ``labgrid/remote/common.py``, ``schedule_reservations`` in
``labgrid/remote/coordinator.py``). So a process that is killed while it waits leaves nothing. One
that is killed with a place leaves a file, by which the next one here goes on with the same place.
"""

from __future__ import annotations

import atexit
import fcntl
import logging
import re
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from edgepack.base.files import locked, writing
from edgepack.base.terminal import make_printable
from edgepack.devices.inventory import Device, LabgridEntry
from edgepack.devices.places import (
    acquire_place,
    ask_client,
    find_files,
    make_client_error,
    release_place,
)
from edgepack.errors import BusyError, DeviceError, EdgepackError, ToolError

_LOG = logging.getLogger("edgepack.labgrid")
_TOKEN = re.compile(r"^export LG_TOKEN=(\w+)$", re.MULTILINE)
_PLACE = re.compile(r"^Place '([^']+)':$", re.MULTILINE)
"""What ``reserve --shell`` and ``show`` write (``labgrid/remote/client.py``)."""


@dataclass(frozen=True)
class _Held:
    """A place that this process has reserved and acquired."""

    device: Device
    """With the place's name."""
    entry: LabgridEntry
    """As the inventory has it."""
    token: str
    reservation: IO[bytes]
    """Locked by all processes here that use it; it has the token."""
    place: IO[bytes]


_HELD: dict[Path, _Held] = {}


def find_place(device: Device) -> Device:
    """Return a board of a labgrid with the name of its place.

    Where the inventory has filters, a place is reserved and acquired until this process ends; other
    processes of this user here have the same one for this device meanwhile.

    Raises:
        BusyError: No place became free in the time that the inventory gives.
        EdgepackError: As :func:`~edgepack.devices.places.acquire_place`.
    """
    entry = device.entry
    if not isinstance(entry, LabgridEntry) or entry.filters is None:
        return device
    guard, path = find_files(entry, f"{device.name} {entry.wanted}")
    with writing("the reservation", path), locked(guard):
        if path not in _HELD:
            use = path.open("a+b")
            try:
                fcntl.flock(use, fcntl.LOCK_SH)
                _HELD[path] = _reserve(device, entry, use)
            except BaseException:
                use.close()
                raise
            atexit.register(_give_back, guard, path)
        return _HELD[path].device


def _reserve(device: Device, entry: LabgridEntry, use: IO[bytes]) -> _Held:
    use.seek(0)
    token = use.read().decode("ascii", "replace")
    name = _find_name(entry, token) if token else ""
    if not name:
        said = ask_client(entry, "reserve", "--shell", *entry.wanted.split())
        found = _TOKEN.search(said.text)
        if said.exit_code or found is None:
            raise make_client_error(entry, said, device.name)
        token = found[1]
    try:
        name = name or _wait_for_name(device, entry, token)
        use.truncate(0)
        use.write(token.encode())
        use.flush()
        named = replace(device, entry=entry.model_copy(update={"place": name, "filters": None}))
        return _Held(named, entry, token, use, acquire_place(named))
    except BaseException:
        with suppress(EdgepackError):  # what is raised says why; labgrid drops it by itself, too
            ask_client(entry, "cancel-reservation", token)
        raise


def _wait_for_name(device: Device, entry: LabgridEntry, token: str) -> str:
    """Return the place that a reservation gets; asking for it keeps the reservation alive."""
    if name := _find_name(entry, token):
        return name
    asked = entry.wanted
    _LOG.warning("%s: waiting up to %g s for a place with %s", device.name, entry.waiting_s, asked)
    end = time.monotonic() + entry.waiting_s
    try:
        said = ask_client(entry, "wait", token, timeout_s=entry.waiting_s)
    except ToolError as error:
        if time.monotonic() < end:
            raise
        raise BusyError(
            f"no place with {asked} became free in {entry.waiting_s:g} s",
            hint="labgrid-client -v places shows tags, and who has a place; 'waiting_s' in"
            " devices.yaml is the time",
            where=device.name,
        ) from error
    if said.exit_code:
        raise make_client_error(entry, said, device.name)
    if name := _find_name(entry, token):
        return name
    raise DeviceError(
        f"the reservation of a place with {asked} ended without one",
        hint="labgrid-client reservations shows them; was the place deleted?",
        where=device.name,
    )


def _find_name(entry: LabgridEntry, token: str) -> str:
    """Return the name of a reservation's place; empty if it has none, or is not there."""
    said = ask_client(entry, "-p", "+", "show", environment={"LG_TOKEN": token})
    found = _PLACE.search(said.text)
    return found[1] if found and not said.exit_code else ""


def _give_back(guard: Path, path: Path) -> None:
    """Release a place and cancel its reservation, unless other processes here still use it."""
    held = _HELD.pop(path)
    try:
        release_place(held.device, held.place)
        with writing("the reservation", path), locked(guard), held.reservation as use:
            try:
                fcntl.flock(use, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            said = ask_client(held.entry, "cancel-reservation", held.token)
            if said.exit_code:
                raise make_client_error(held.entry, said, held.device.name)
            use.truncate(0)
    except EdgepackError as error:
        _LOG.warning("%s stays reserved: %s", held.device.name, make_printable(str(error)))

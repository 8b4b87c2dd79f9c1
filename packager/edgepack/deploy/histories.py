"""What boards say themselves of who switched them, and how that goes together with the audit log.

A board writes each switch and rollback into a history of its own, with the name of who did it, from
whatever machine. Its clock may be wrong, and a board that was taken over can lie.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal

from pydantic import BaseModel, Field, ValidationError

from edgepack.base.clock import format_time
from edgepack.base.resources import find_ondevice_dir
from edgepack.devices.inventory import Device
from edgepack.devices.transports import connect
from edgepack.errors import DeviceError

MOST_LINES = 1000
"""Of each project's history, the newest."""
READ_S = 60.0
"""How long a board may take."""
_HEADER = re.compile(r"project ([A-Za-z0-9]+(?:[._-][A-Za-z0-9]+)*)")
_CURRENT = re.compile(r"current releases/([0-9a-f]{16})")
_MANIFEST = re.compile(r"([0-9a-f]{64})  \./([0-9a-f]{16})/manifest\.json")

_Release = Annotated[str, Field(pattern="^[0-9a-f]{16}$")]


class HistoryEntry(BaseModel):
    """A switch or rollback in a board's history."""

    project: str = ""
    time: datetime
    """By the board's clock of then; :attr:`DeviceHistory.entries` have it put right."""
    action: Literal["switch", "rollback"]
    release: _Release
    switched_from: Annotated[_Release | None, Field(alias="from")]
    by: Annotated[str, Field(pattern="^[A-Za-z0-9._@-]{0,100}$")] = ""
    """``user@host``, as they named themselves."""


@dataclass(frozen=True)
class DeviceHistory:
    """What a board said when it was asked."""

    device: str
    host_key: str | None
    """Fingerprint of the key that it proved."""
    asked: str
    """When, UTC, by this machine's clock."""
    clock_s: float
    """By how many seconds the board's clock was behind this machine's."""
    current: Mapping[str, str]
    """The current release of each project that has one."""
    digests: Mapping[str, str]
    """The SHA-256 of the manifest of each release that lies there."""
    entries: tuple[HistoryEntry, ...]
    """In the history's order. Their times are by this machine's clock, if the board's was behind it
    then by as much as when it was asked."""


def read_device_history(device: Device) -> DeviceHistory:
    """Return what a board's own histories say, the newest 1000 lines of each project.

    It needs only a shell there. Lines that were cut off or are no switch are passed over: ``device
    verify`` checks that the lines follow each other.

    Raises:
        UsageError: The device is a phone.
        DeviceError: It cannot be reached or trusted, or answers nonsense.
        RemoteCommandError: Its histories cannot be read, or it took longer than a minute.
    """
    source = (find_ondevice_dir() / "agent/edgepack_history.sh").read_text(encoding="utf-8")
    argv = ["sh", "-c", source, "sh", device.entry.root, str(MOST_LINES)]
    with connect(device) as transport:
        result = transport.send(argv, (), timeout_s=READ_S)
        host_key = transport.host_key
    asked = datetime.now(UTC)
    result.check("reading its history", device=device.name, hint="see the message above")
    return parse_device_history(result.text, device.name, host_key, asked)


def parse_device_history(
    said: str, device: str, host_key: str | None, asked: datetime
) -> DeviceHistory:
    """Return what a board answered, as a history.

    Raises:
        DeviceError: It is no such answer.
    """
    now, *lines = said.split("\n")
    try:
        behind = asked - datetime.fromisoformat(now)
    except (ValueError, TypeError) as error:
        raise DeviceError(
            f"the device printed {now[:60]!r} where its time is expected",
            hint="its login must print nothing without a terminal: look into ~/.profile there",
            where=device,
        ) from error
    project, current, digests, entries = "", {}, {}, []
    for line in lines:
        if header := _HEADER.fullmatch(line):
            project = header[1]
        elif link := _CURRENT.fullmatch(line):
            current[project] = link[1]
        elif manifest := _MANIFEST.fullmatch(line):
            digests[manifest[2]] = manifest[1]
        elif entry := _parse_entry(line, project, behind):
            entries.append(entry)
    return DeviceHistory(
        device=device,
        host_key=host_key,
        asked=format_time(asked),
        clock_s=round(behind.total_seconds()),
        current=current,
        digests=digests,
        entries=tuple(entries),
    )


def _parse_entry(line: str, project: str, behind: timedelta) -> HistoryEntry | None:
    """Return a line of a history; None if it is no switch, or was cut off."""
    try:
        found = HistoryEntry.model_validate_json(line)
        moment = found.time if found.time.tzinfo else found.time.replace(tzinfo=UTC)
        return found.model_copy(update={"project": project, "time": moment + behind})
    except (ValidationError, OverflowError):
        return None

"""The lines of an audit log: what they have, and how they are chained."""

from __future__ import annotations

import fcntl
import hashlib
import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from edgepack.base.clock import format_now
from edgepack.base.machine import find_user
from edgepack.errors import ToolError

AUDIT_FILE = "audit.jsonl"
MAX_TEXT = 1000
"""The most characters of one value: a device's or an error's text must not fill the log."""

Action = Literal[
    "push",
    "switch",
    "rollback",
    "self-test",
    "provision",
    "build",
    "add",
    "remove",
    "trust",
    "tune",
    "enroll",
    "unenroll",
    "power",
]


def _bound_value(value: object) -> object:
    """Return a text that is valid Unicode and not too long; anything else as it is."""
    if not isinstance(value, str):
        return value
    return value.encode("utf-8", "backslashreplace").decode()[:MAX_TEXT]


Text = Annotated[str, BeforeValidator(_bound_value)]


class Event(BaseModel):
    """An action on a device, or an attempt at one."""

    model_config = ConfigDict(frozen=True, extra="ignore")  # newer versions may add to the log

    action: Action
    device: Text
    """Its name in the inventory."""
    host_key: Text | None = None
    """Fingerprint of the host key that the device proved itself with, or is pinned to."""
    serial: Text | None = None
    project: Text | None = None
    release: Text | None = None
    digest: Text | None = None
    """SHA-256 of the bundle's manifest."""
    switched_from: Text | None = None
    """The release that was current before a switch or a rollback."""
    signer: Text | None = None
    """Who signed the bundle; None where nobody did."""
    detail: Text | None = None
    """What was installed, which host is trusted, or how power was switched."""
    result: Literal["done", "failed"] = "done"
    error: Text | None = None
    """The first line of the error's message."""


class Record(Event):
    """A line of the log."""

    time: str
    """UTC, ISO 8601."""
    user: Text
    host: Text
    """The machine from which it was done."""
    previous: str
    waited: Text | None = None
    """SHA-256 of the line in that machine's own file, where the record waited for the team's
    database."""


def find_audit_log() -> Path:
    """Return the log's file, which need not exist yet."""
    import platformdirs

    return Path(platformdirs.user_data_dir("edgepack")) / AUDIT_FILE


def make_record(event: Event, previous: str) -> Record:
    """Return the record of an event, by this user on this machine, now."""
    return Record(
        **event.model_dump(),
        time=format_now(),
        user=find_user(),
        host=socket.gethostname(),
        previous=previous,
    )


def compute_digest(line: bytes) -> str:
    """Return the SHA-256 of a line, its end included; nothing of no line."""
    return hashlib.sha256(line).hexdigest() if line else ""


def read_lines(path: Path) -> list[bytes]:
    """Return the lines of a file, each with its end; none where there is no file.

    Raises:
        ToolError: It cannot be read.
    """
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH)  # a record that is being written is no torn one
            return file.readlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ToolError(
            f"cannot read the audit log: {error.strerror}",
            hint="make the file readable for you",
            where=str(path),
        ) from error


def parse_record(line: bytes) -> Record | None:
    """Return the record of a line; None if it is none."""
    try:
        found = Record.model_validate_json(line)
        parse_moment(found.time)
    except (ValidationError, ValueError):
        return None
    return found


def parse_moment(text: str) -> datetime:
    """Return a time of the log, or what was asked for; without a zone it is UTC.

    Raises:
        ValueError: The text is no ISO 8601 date or time.
    """
    found = datetime.fromisoformat(text)
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found

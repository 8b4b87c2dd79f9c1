"""The audit log: what this machine did to devices, each line chained to the one before it.

It is one file of JSON lines, ``audit.jsonl`` in the user's data directory, and is only ever
appended to. ``previous`` of a line is the SHA-256 of the line before it, its end included; the
first line has an empty one. Anybody who may write the file can rewrite all of it, and a chain does
not show that its last line was changed or that last lines are missing. To notice that, keep the
digest of the log's end elsewhere (``edgepack audit verify`` prints it and checks it).

A crash during a write leaves a torn last line. It is never removed: the next record begins a new
line and has the hash of the torn one, without an end, as its ``previous``. Readers report the
numbers of such lines.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from edgepack.base.clock import format_now
from edgepack.base.files import writing
from edgepack.base.machine import find_user
from edgepack.errors import BundleError, ToolError

AUDIT_FILE = "audit.jsonl"
MAX_TEXT = 1000
"""The most characters of one value: a device's or an error's text must not fill the log."""
_BLOCK_BYTES = 1 << 16
_COMPARE = (
    "compare it with a copy of the file, and with the devices themselves: edgepack device"
    " verify NAME"
)

Action = Literal["push", "switch", "rollback", "self-test", "provision", "add", "trust", "tune"]


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
    """What was installed, or which host is trusted."""
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


def find_audit_log() -> Path:
    """Return the log's file, which need not exist yet."""
    import platformdirs

    return Path(platformdirs.user_data_dir("edgepack")) / AUDIT_FILE


def record(event: Event, path: Path | None = None) -> Record:
    """Append what was done to the log, and return the record when it is on the disk.

    Several processes may do so at once. A record is written whole or not at all.

    Raises:
        ToolError: The log cannot be written.
    """
    with _opened(path or find_audit_log()) as log:
        last = _read_last_line(log)
        made = Record(
            **event.model_dump(),
            time=format_now(),
            user=find_user(),
            host=socket.gethostname(),
            previous=_compute_digest(last),
        )
        torn = last and not last.endswith(b"\n")
        line = json.dumps(made.model_dump()).encode("ascii") + b"\n"
        _append(log, (b"\n" if torn else b"") + line)
    return made


def require_writable(path: Path | None = None) -> None:
    """Check that the log can be written: an action that cannot be recorded must not begin.

    Raises:
        ToolError: It cannot be written.
    """
    with _opened(path or find_audit_log()):
        pass


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """Open the log and lock it."""
    with writing("the audit log", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        log = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            fcntl.flock(log, fcntl.LOCK_EX)
            yield log
        finally:
            os.close(log)


def _read_last_line(log: int) -> bytes:
    """Return the last line with its end, if it has one; nothing of an empty log."""
    tail = b""
    start = os.fstat(log).st_size
    while start and b"\n" not in tail[:-1]:
        size = min(_BLOCK_BYTES, start)
        start -= size
        tail = os.pread(log, size, start) + tail
    return tail[tail.rfind(b"\n", 0, -1) + 1 :]


def _append(log: int, data: bytes) -> None:
    before = os.fstat(log).st_size
    try:
        written = os.write(log, data)
        while written < len(data):
            written += os.write(log, data[written:])
        os.fsync(log)
    except OSError:
        os.ftruncate(log, before)
        raise


def _compute_digest(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest() if line else ""


@dataclass(frozen=True)
class AuditLog:
    """The log's records, as far as they can be read."""

    records: tuple[Record, ...]
    torn: tuple[int, ...]
    """Numbers of the lines, from 1, that a crash has cut off."""
    digests: tuple[str, ...]
    """The SHA-256 of each line, its end included; the last one stands for the whole log."""
    broken: BundleError | None
    """Where the chain breaks first."""

    def require_whole(self) -> None:
        """Check that the chain is unbroken.

        Raises:
            BundleError: It breaks; the message says at which line.
        """
        if self.broken:
            raise self.broken


def read_audit_log(since: datetime | None = None, path: Path | None = None) -> AuditLog:
    """Read the log, also where the chain is broken: all readable records are returned.

    Args:
        since: Leave out records from before it; the whole chain is checked in any case.
        path: The file; by default the user's.

    Raises:
        ToolError: The file cannot be read.
    """
    path = path or find_audit_log()
    lines = _read_lines(path)
    records = [_parse_record(line) for line in lines]
    torn = [number for number in range(1, len(lines) + 1) if _is_torn(number, lines, records)]
    first_wrong = next(_find_breaks(lines, records, torn), None)
    kept = tuple(
        found for found in records if found and (since is None or parse_moment(found.time) >= since)
    )
    return AuditLog(
        records=kept,
        torn=tuple(torn),
        digests=tuple(map(_compute_digest, lines)),
        broken=_make_broken_error(*first_wrong, path) if first_wrong else None,
    )


def verify_audit_log(path: Path | None = None, *, head: str | None = None) -> AuditLog:
    """Return the log after checking that the chain is unbroken.

    Args:
        path: The file; by default the user's.
        head: A digest of the log's end, taken earlier, that must still be in it.

    Raises:
        BundleError: A line was altered, removed or put in; the message says where. Or no line has
            the digest ``head``.
        ToolError: The file cannot be read.
    """
    log = read_audit_log(path=path)
    log.require_whole()
    if head is not None and head not in log.digests:
        raise BundleError(
            f"no line of the audit log has the digest {head}: its last lines were altered or"
            " removed since that was printed",
            hint=_COMPARE,
            where=str(path or find_audit_log()),
        )
    return log


def _read_lines(path: Path) -> list[bytes]:
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


def _parse_record(line: bytes) -> Record | None:
    try:
        found = Record.model_validate_json(line)
        parse_moment(found.time)
    except (ValidationError, ValueError):
        return None
    return found


def _is_torn(number: int, lines: list[bytes], records: list[Record | None]) -> bool:
    """Return whether a line was cut off, and the next one, if any, has the hash of what is left."""
    line = lines[number - 1]
    if number == len(lines):
        return not line.endswith(b"\n")
    following = records[number]
    return following is not None and following.previous == _compute_digest(line.removesuffix(b"\n"))


def _find_breaks(
    lines: list[bytes], records: list[Record | None], torn: list[int]
) -> Iterator[tuple[int, str]]:
    """Yield the numbers of lines where the chain breaks, and how."""
    for number, found in enumerate(records, start=1):
        if found is None:
            if number not in torn:
                yield number, "is no record"
            continue
        before = lines[number - 2] if number > 1 else b""
        if number - 1 in torn:
            before = before.removesuffix(b"\n")
        if found.previous != _compute_digest(before):
            yield number, "was not written after the line before it"


def _make_broken_error(number: int, problem: str, path: Path) -> BundleError:
    return BundleError(
        f"the audit log is broken: line {number} {problem}, so a line there was altered, removed or"
        " put in",
        hint=_COMPARE,
        where=f"{path}:{number}",
    )


def parse_moment(text: str) -> datetime:
    """Return a time of the log, or what was asked for; without a zone it is UTC.

    Raises:
        ValueError: The text is no ISO 8601 date or time.
    """
    found = datetime.fromisoformat(text)
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found

"""The audit log: what was done to devices, each line chained to the one before it.

It is one file of JSON lines, ``audit.jsonl`` in the user's data directory, and is only ever
appended to. A team's log lies in its database instead, as one chain of the same lines; see
:mod:`edgepack.deploy.team_log`. ``previous`` of a line is the SHA-256 of the line before it, its
end included; the first line has an empty one. Anybody who may write the log can rewrite all of it,
and a chain does not show that its last line was changed or that last lines are missing. To notice
that, keep the digest of the log's end elsewhere (``edgepack audit verify`` prints it and checks
it).

A crash during a write leaves a torn last line. It is never removed: the next record begins a new
line and has the hash of the torn one, without an end, as its ``previous``. Readers report the
numbers of such lines.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from edgepack.base.files import writing
from edgepack.base.team import is_in_team
from edgepack.deploy.audit_lines import (
    Event,
    Record,
    compute_digest,
    find_audit_log,
    make_record,
    parse_moment,
    parse_record,
    read_lines,
)
from edgepack.errors import BundleError, ToolError

_LOG = logging.getLogger("edgepack.audit")

_BLOCK_BYTES = 1 << 16
_COMPARE = (
    "compare it with a copy of the log, and with the devices themselves: edgepack device"
    " verify NAME"
)


def record(event: Event, path: Path | None = None) -> Record:
    """Append what was done to the log, and return the record when it is on the disk.

    Several processes may do so at once. A record is written whole or not at all. If the team's
    database does not take it, it is written to the file, where it waits for the database, and a
    warning says so: what was done to a device is not undone by that.

    Args:
        event: What was done.
        path: The file; by default the team's log where there is one, else the user's.

    Raises:
        ToolError: The log cannot be written.
    """
    if path is None and is_in_team():
        from edgepack.deploy import team_log

        try:
            return team_log.append_record(event)
        except ToolError as error:
            _LOG.warning("%s; the record waits in %s", error.first_line, find_audit_log())
    with _opened(path or find_audit_log()) as log:
        last = _read_last_line(log)
        made = make_record(event, compute_digest(last))
        torn = last and not last.endswith(b"\n")
        line = json.dumps(made.model_dump()).encode("ascii") + b"\n"
        _append(log, (b"\n" if torn else b"") + line)
    return made


def require_writable(path: Path | None = None) -> None:
    """Check that the log can be written: an action that cannot be recorded must not begin.

    Raises:
        ToolError: It cannot be written.
    """
    if path is None and is_in_team():
        from edgepack.deploy import team_log

        team_log.take_in_waiting()
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
    place: str
    """The file, or the database's URL without its password."""
    is_shared: bool
    """Whether it is a team's."""

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
        path: The file; by default the team's log where there is one, else the user's. Records of
            a team's log are in the order of their times, as some had to wait.

    Raises:
        ToolError: The log cannot be read.
    """
    is_shared = path is None and is_in_team()
    if is_shared:
        from edgepack.deploy import team_log

        lines, place = team_log.read_lines()
    else:
        place = str(path or find_audit_log())
        lines = read_lines(Path(place))
    records = [parse_record(line) for line in lines]
    torn = [number for number in range(1, len(lines) + 1) if _is_torn(number, lines, records)]
    first_wrong = next(_find_breaks(lines, records, torn), None)
    kept = tuple(
        found for found in records if found and (since is None or parse_moment(found.time) >= since)
    )
    if is_shared:
        kept = tuple(sorted(kept, key=lambda one: parse_moment(one.time)))
    return AuditLog(
        records=kept,
        torn=tuple(torn),
        digests=tuple(map(compute_digest, lines)),
        broken=_make_broken_error(*first_wrong, place) if first_wrong else None,
        place=place,
        is_shared=is_shared,
    )


def verify_audit_log(path: Path | None = None, *, head: str | None = None) -> AuditLog:
    """Return the log after checking that the chain is unbroken.

    Args:
        path: The file; by default the team's log where there is one, else the user's.
        head: A digest of the log's end, taken earlier, that must still be in it.

    Raises:
        BundleError: A line was altered, removed or put in; the message says where. Or no line has
            the digest ``head``.
        ToolError: The log cannot be read.
    """
    log = read_audit_log(path=path)
    log.require_whole()
    if head is not None and head not in log.digests:
        raise BundleError(
            f"no line of the audit log has the digest {head}: its last lines were altered or"
            " removed since that was printed",
            hint=_COMPARE,
            where=log.place,
        )
    return log


def _is_torn(number: int, lines: list[bytes], records: list[Record | None]) -> bool:
    """Return whether a line was cut off, and the next one, if any, has the hash of what is left."""
    line = lines[number - 1]
    if number == len(lines):
        return not line.endswith(b"\n")
    following = records[number]
    return following is not None and following.previous == compute_digest(line.removesuffix(b"\n"))


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
        if found.previous != compute_digest(before):
            yield number, "was not written after the line before it"


def _make_broken_error(number: int, problem: str, place: str) -> BundleError:
    return BundleError(
        f"the audit log is broken: line {number} {problem}, so a line there was altered, removed or"
        " put in",
        hint=_COMPARE,
        where=f"{place}:{number}",
    )

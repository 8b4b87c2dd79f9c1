"""The audit log: chained, shared by processes, and honest about crashes."""

from __future__ import annotations

import hashlib
import json
import os
import pwd
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from edgepack.deploy import audit
from edgepack.deploy.audit import read_audit_log, record, verify_audit_log
from edgepack.deploy.audit_lines import MAX_TEXT, Event, Record, find_audit_log, parse_moment
from edgepack.deploy.intervals import UNKNOWN_SWITCH, list_audit_intervals
from edgepack.errors import BundleError, ToolError


def write(count: int) -> list[bytes]:
    for number in range(count):
        record(Event(action="push", device=f"board{number}"))
    return find_audit_log().read_bytes().splitlines(keepends=True)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_record_when_written_has_who_and_when_and_the_hash_of_the_line_before():
    before = datetime.now(UTC) - timedelta(seconds=1)
    lines = write(3)
    found = [json.loads(line) for line in lines]
    assert [one["previous"] for one in found] == ["", sha256(lines[0]), sha256(lines[1])]
    assert {one["user"] for one in found} == {pwd.getpwuid(os.getuid()).pw_name}
    assert {one["host"] for one in found} == {socket.gethostname()}
    assert all(before <= parse_moment(one["time"]) <= datetime.now(UTC) for one in found)
    assert find_audit_log().stat().st_mode & 0o777 == 0o600
    log = verify_audit_log()
    assert [one.device for one in log.records] == ["board0", "board1", "board2"]
    assert log.digests[-1] == sha256(lines[2])


def test_log_when_there_is_none_is_whole_and_empty():
    assert verify_audit_log().records == ()


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda lines: [lines[0], lines[1].replace(b"board1", b"board9"), *lines[2:]], 3),
        (lambda lines: [lines[0], *lines[2:]], 2),
        (lambda lines: lines[1:], 1),
        (lambda lines: [lines[0], lines[2], lines[1], lines[3]], 2),
        (lambda lines: [lines[0], b"not a record\n", *lines[1:]], 2),
        (lambda lines: [lines[0], lines[1][:-9], *lines[2:]], 2),
        (lambda lines: [*lines[:3], b"{}\n"], 4),
    ],
    ids=["altered", "removed", "first removed", "swapped", "put in", "joined", "last overwritten"],
)
def test_chain_when_a_line_was_tampered_with_breaks_there(change, line):
    lines = write(4)
    find_audit_log().write_bytes(b"".join(change(lines)))
    with pytest.raises(BundleError, match=rf"line {line} ") as caught:
        verify_audit_log()
    assert caught.value.where == f"{find_audit_log()}:{line}"
    assert read_audit_log().records


@pytest.mark.parametrize("cut", [1, 2, 40])
def test_torn_last_line_when_records_follow_is_kept_and_reported(cut):
    lines = write(2)
    torn = lines[1][:-cut]
    find_audit_log().write_bytes(lines[0] + torn)
    assert read_audit_log().torn == (2,)
    record(Event(action="push", device="next"))
    record(Event(action="push", device="last"))
    now = find_audit_log().read_bytes().splitlines(keepends=True)
    assert now[:2] == [lines[0], torn + b"\n"]
    assert json.loads(now[2])["previous"] == sha256(torn)
    log = verify_audit_log()
    assert log.torn == (2,)
    assert [one.device for one in log.records][-2:] == ["next", "last"]


def test_torn_line_when_its_rest_was_altered_breaks_the_chain():
    lines = write(2)
    find_audit_log().write_bytes(lines[0] + lines[1][:-40])
    write(1)
    text = find_audit_log().read_bytes()
    find_audit_log().write_bytes(text.replace(lines[1][:-40], lines[1][:-41]))
    with pytest.raises(BundleError, match="line 2 is no record"):
        verify_audit_log()


def test_log_when_a_line_is_longer_than_a_block_finds_its_begin(monkeypatch):
    monkeypatch.setattr(audit, "_BLOCK_BYTES", 64)
    write(5)
    assert len(verify_audit_log().records) == 5


def test_disk_when_it_is_full_leaves_the_log_as_it_was(monkeypatch):
    before = b"".join(write(2))
    real = os.write

    def half(handle, data):
        if len(data) < 40:
            raise OSError(28, "No space left on device")
        return real(handle, data[: len(data) // 2])

    monkeypatch.setattr(audit.os, "write", half)
    with pytest.raises(ToolError, match="No space left"):
        record(Event(action="push", device="board"))
    assert find_audit_log().read_bytes() == before


def test_log_when_several_processes_write_has_every_record():
    script = (
        "import sys; from edgepack.deploy.audit import Event, record\n"
        "for n in range(20): record(Event(action='push', device=sys.argv[1] + '-' + str(n)))"
    )
    writers = [subprocess.Popen([sys.executable, "-c", script, name]) for name in "abcd"]
    assert [writer.wait(120) for writer in writers] == [0] * 4
    log = verify_audit_log()
    expected = {f"{name}-{n}" for name in "abcd" for n in range(20)}
    assert {one.device for one in log.records} == expected
    assert len(log.records) == 80


def test_log_when_several_threads_write_has_every_record():
    events = [Event(action="push", device=str(n)) for n in range(64)]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(record, events))
    assert {one.device for one in verify_audit_log().records} == {one.device for one in events}


def test_text_when_it_is_long_or_no_unicode_is_bounded_and_can_be_read_back():
    record(Event(action="push", device="b\udcff", error="x" * 5000, result="failed"))
    (found,) = verify_audit_log().records
    assert found.device == r"b\udcff"
    assert found.error == "x" * MAX_TEXT


def test_record_when_a_newer_edgepack_added_fields_is_read():
    write(1)
    newer = json.loads(find_audit_log().read_bytes()) | {"weather": "fine"}
    find_audit_log().write_text(json.dumps(newer) + "\n")
    write(1)
    assert len(verify_audit_log().records) == 2


def at(hour: int, action: str, release: str, **changes: object) -> Record:
    values: dict[str, object] = {
        "time": f"2026-11-21T{hour:02}:00:00Z", "user": "u", "host": "h", "previous": "",
        "action": action, "device": "pi5", "host_key": "SHA256:a", "project": "net",
        "release": release,
    }  # fmt: skip
    return Record.model_validate(values | changes)


def spans(*records: Record) -> list[tuple[str, int | None, int | None, str | None]]:
    def hour(text: str | None) -> int | None:
        return None if text is None else parse_moment(text).hour

    return [
        (s.release, hour(s.start), hour(s.end), s.ended_by) for s in list_audit_intervals(records)
    ]


def test_intervals_when_releases_follow_each_other_end_where_the_next_begins():
    found = spans(
        at(1, "push", "a", digest="a" * 64),
        at(1, "switch", "a"),
        at(2, "switch", "b", switched_from="a"),
        at(3, "switch", "b", switched_from="b"),
        at(4, "rollback", "a", switched_from="b"),
    )
    assert found == [("a", 1, 2, "switch"), ("b", 2, 4, "rollback"), ("a", 4, None, None)]


def test_intervals_when_something_failed_or_was_only_pushed_are_not_made():
    assert not spans(at(1, "push", "a"), at(2, "switch", "a", result="failed"))


def test_intervals_when_somebody_else_switched_between_say_so():
    found = spans(at(1, "switch", "a"), at(5, "switch", "c", switched_from="b"))
    assert found == [("a", 1, 5, UNKNOWN_SWITCH), ("b", None, 5, "switch"), ("c", 5, None, None)]


def test_intervals_when_boards_and_projects_differ_are_kept_apart():
    found = list_audit_intervals(
        [
            at(1, "switch", "a"),
            at(2, "switch", "b", project="other"),
            at(3, "switch", "c", host_key="SHA256:b"),
            at(4, "switch", "d", device="renamed", switched_from="a"),
        ]
    )
    assert [(s.release, s.end is None) for s in found] == [
        ("a", False), ("b", True), ("c", True), ("d", True),
    ]  # fmt: skip


def test_intervals_when_other_records_know_digest_signer_and_serial_have_them():
    (found,) = list_audit_intervals(
        [
            at(1, "add", "", serial="100000001"),
            at(2, "push", "a", digest="a" * 64, signer="me", host_key="SHA256:other"),
            at(3, "rollback", "a"),
        ]
    )
    assert (found.digest, found.signer, found.serial) == ("a" * 64, "me", "100000001")


def test_records_when_asked_since_a_time_are_those_from_then_on():
    write(2)
    assert len(read_audit_log(since=datetime.now(UTC) - timedelta(hours=1)).records) == 2
    assert read_audit_log(since=datetime.now(UTC) + timedelta(hours=1)).records == ()
    assert verify_audit_log(Path(find_audit_log())).records

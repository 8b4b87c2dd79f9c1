"""The audit log and boards' histories, put together: who did it, who says so, until when."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from edgepack.deploy.audit_lines import Record
from edgepack.deploy.histories import DeviceHistory, parse_device_history
from edgepack.deploy.intervals import UNKNOWN_SWITCH, list_audit_intervals
from edgepack.deploy.merging import merge_histories
from edgepack.errors import DeviceError

A, B, C = "a" * 16, "b" * 16, "c" * 16
ASKED = datetime(2026, 11, 21, 12, tzinfo=UTC)


def logged(minute: int, release: str, before: str | None, **changes: object) -> Record:
    values: dict[str, object] = {
        "time": f"2026-11-21T10:{minute:02}:00Z", "user": "me", "host": "here", "previous": "",
        "action": "switch", "device": "pi5", "host_key": "SHA256:a", "project": "net",
        "release": release, "switched_from": before,
    }  # fmt: skip
    return Record.model_validate(values | changes)


def line(minute: int, release: str, before: str | None, by: str = "me@here", **more: str) -> str:
    at = f"2026-11-21T10:{minute:02}:00Z"
    entry = {"time": at, "action": "switch", "release": release, "from": before, "by": by}
    return json.dumps(entry | more)


def told(*lines: str, now: str = "2026-11-21T12:00:00Z", current: str = C) -> DeviceHistory:
    said = [now, "project net", f"current releases/{current}", *lines, ""]
    return parse_device_history("\n".join(said), "pi5", "SHA256:a", ASKED)


def sources(history: DeviceHistory, *records: Record) -> list[tuple[str | None, str, str]]:
    found = merge_histories(records, [history])
    return [(one.release, f"{one.user}@{one.host}", one.source) for one in found]


def test_switch_that_both_have_is_one_and_anothers_is_told_with_who() -> None:
    history = told(line(1, A, None), line(2, B, A, "eve@lab"), line(3, C, B))
    assert sources(history, logged(1, A, None), logged(3, C, B)) == [
        (A, "me@here", "both"), (B, "eve@lab", "device"), (C, "me@here", "both"),
    ]  # fmt: skip


def test_interval_that_somebody_else_ended_says_who_and_when_if_the_board_was_asked() -> None:
    mine, history = logged(1, A, None), told(line(1, A, None), line(2, B, A, "eve@lab"), current=B)
    (alone,) = list_audit_intervals([mine])
    assert (alone.end, alone.seen, alone.seen_by) == (None, mine.time, "log")
    first, second = list_audit_intervals(merge_histories([mine], [history]), None, [history])
    assert (first.end, first.ended_by, first.ended_who) == (
        "2026-11-21T10:02:00Z", "switch", "eve@lab",
    )  # fmt: skip
    assert (second.release, second.end, second.seen_by) == (B, None, "device")
    assert second.seen == "2026-11-21T12:00:00Z"


def test_interval_that_another_machine_of_the_team_ended_says_who() -> None:
    first, _ = list_audit_intervals([logged(1, A, None), logged(2, B, A, user="eve", host="lab")])
    assert (first.end, first.ended_who) == ("2026-11-21T10:02:00Z", "eve@lab")


def test_interval_where_the_board_has_another_release_and_nobody_recorded_it_ends() -> None:
    history = told(line(1, A, None), current=C)
    (span,) = list_audit_intervals(
        merge_histories([logged(1, A, None)], [history]), None, [history]
    )
    assert (span.end, span.ended_by, span.ended_who) == (history.asked, UNKNOWN_SWITCH, None)


def test_interval_when_the_release_was_pushed_again_was_seen_then() -> None:
    again = logged(9, A, None, action="push")
    (span,) = list_audit_intervals([logged(1, A, None), again])
    assert (span.start, span.seen) == ("2026-11-21T10:01:00Z", again.time)


@pytest.mark.parametrize(
    "changes",
    [
        {"host_key": "SHA256:b"}, {"project": "other"}, {"action": "rollback"}, {"user": "eve"},
        {"result": "failed"}, {"time": "2026-11-21T10:30:00Z"},
    ],
    ids=str,
)  # fmt: skip
def test_entry_when_a_record_is_of_something_else_is_the_boards_alone(
    changes: dict[str, str],
) -> None:
    found = sources(told(line(1, A, None)), logged(1, A, None, **changes))
    assert sorted(source for *_, source in found) == ["device", "log"]


def test_switches_there_and_back_are_matched_each_with_its_own() -> None:
    history = told(line(1, A, None), line(2, B, A), line(4, A, B), line(6, B, A))
    mine = [logged(1, A, None), logged(2, B, A), logged(6, B, A)]  # killed before the fourth
    assert [(release, source) for release, _, source in sources(history, *mine)] == [
        (A, "both"), (B, "both"), (A, "device"), (B, "both"),
    ]  # fmt: skip


def test_order_when_the_boards_clock_jumped_is_the_boards_own() -> None:
    lines = [line(1, A, None), line(59, B, A, "eve@lab"), line(0, A, B, "eve@lab"), line(3, C, A)]
    found = sources(told(*lines), logged(1, A, None), logged(3, C, A))
    assert [release for release, *_ in found] == [A, B, A, C]


def test_clock_that_is_behind_is_put_right() -> None:
    history = told(line(1, A, None), now="2026-11-21T10:30:00Z")
    assert history.clock_s == 5400
    assert history.entries[0].time == datetime(2026, 11, 21, 11, 31, tzinfo=UTC)


def test_lines_that_were_cut_off_or_are_no_switch_are_passed_over() -> None:
    bad = [line(1, A, None)[:-20], "\0" * 9, "{}", line(1, "../x", None), line(1, A, None, "e x\n")]
    pushed = line(1, A, None, action="push")
    assert told(*bad, pushed, line(2, B, A)).entries == told(line(2, B, A)).entries


@pytest.mark.parametrize("said", ["", "Welcome!\n2026-11-21T12:00:00Z", "2026-11-21T12:00:00"])
def test_answer_that_begins_with_something_else_is_no_history(said: str) -> None:
    with pytest.raises(DeviceError, match="where its time is expected"):
        parse_device_history(said, "pi5", None, ASKED)

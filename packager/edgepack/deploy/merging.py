"""Puts the audit log and boards' own histories together: who did what, and who says so."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import accumulate, groupby
from typing import Literal

from edgepack.base.clock import format_time
from edgepack.base.machine import format_name
from edgepack.deploy.audit_lines import Record, parse_moment
from edgepack.deploy.histories import DeviceHistory, HistoryEntry

NEAR_S = 600.0
"""How far apart the times of one switch may be: a board's clock is not always right."""


class MergedRecord(Record):
    """A record, and who has it."""

    source: Literal["log", "device", "both"]
    """The audit log, the board's own history, or both."""


def merge_histories(
    records: Iterable[Record], histories: Sequence[DeviceHistory] = ()
) -> list[MergedRecord]:
    """Return the log's records and what only boards have, in the order of their times.

    A board's entry and a record are one if board, project, action, release and who did it are the
    same, and the times are within ten minutes. Of a board's entries the order is the board's own,
    whatever its clock said.
    """
    logged = list(records)
    sources: list[Literal["log", "both"]] = ["log"] * len(logged)
    alike: dict[tuple[str, str | None, str | None], list[int]] = defaultdict(list)
    for number, one in enumerate(logged):
        if one.result == "done":
            alike[one.action, one.project, one.release].append(number)
    # In the log's order, also where a clock went back.
    moments = list(accumulate((parse_moment(one.time) for one in logged), max))
    placed: list[tuple[datetime, float, MergedRecord]] = []
    for history in histories:
        placed += _place_unlogged(history, logged, moments, alike, sources)
    for number, (one, source) in enumerate(zip(logged, sources, strict=True)):
        merged = MergedRecord(**one.model_dump(), source=source)
        placed.append((moments[number], number, merged))
    placed.sort(key=lambda each: each[:2])
    return [merged for _, _, merged in placed]


def _place_unlogged(
    history: DeviceHistory,
    logged: Sequence[Record],
    moments: Sequence[datetime],
    alike: Mapping[tuple[str, str | None, str | None], Sequence[int]],
    sources: list[Literal["log", "both"]],
) -> Iterator[tuple[datetime, float, MergedRecord]]:
    """Yield a board's entries that the log lacks, each with its time and its place among records.

    The entries that the log has are marked in ``sources``.
    """
    for _, group in groupby(history.entries, key=lambda entry: entry.project):
        entries = list(group)
        matches: list[int | None] = []
        for entry in entries:
            near = {
                number: abs((moments[number] - entry.time).total_seconds())
                for number in alike.get((entry.action, entry.project, entry.release), ())
                if sources[number] == "log" and _is_same(logged[number], entry, history)
            }
            number = min(near, key=lambda each: near[each], default=None)
            if number is not None and near[number] <= NEAR_S:
                sources[number] = "both"
                matches.append(number)
            else:
                matches.append(None)
        moment, order = datetime.min.replace(tzinfo=UTC), -0.5
        for at, (entry, number) in enumerate(zip(entries, matches, strict=True)):
            if number is not None:
                moment, order = moments[number], number + 0.5
                continue
            after = next((each for each in matches[at:] if each is not None), None)
            latest = entry.time if after is None else moments[after]
            moment = max(moment, min(entry.time, latest))
            yield moment, order, _make_record(entry, history, moment)


def _is_same(one: Record, entry: HistoryEntry, history: DeviceHistory) -> bool:
    if one.host_key and history.host_key:
        is_board = one.host_key == history.host_key
    else:
        is_board = one.device == history.device
    return is_board and entry.by in ("", format_name(one.user, one.host))


def _make_record(entry: HistoryEntry, history: DeviceHistory, moment: datetime) -> MergedRecord:
    user, _, host = entry.by.rpartition("@")
    return MergedRecord(
        action=entry.action,
        device=history.device,
        host_key=history.host_key,
        project=entry.project,
        release=entry.release,
        digest=history.digests.get(entry.release),
        switched_from=entry.switched_from,
        time=format_time(moment),
        user=user,
        host=host,
        previous="",
        source="device",
    )

"""Which bundle was current on which board, and when, by the records of the audit log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

from edgepack.deploy.audit_lines import Record, parse_moment
from edgepack.deploy.histories import DeviceHistory


@dataclass(frozen=True)
class UseInterval:
    """A period in which one bundle was its project's current one on a board."""

    device: str
    """The board's name when the bundle became current."""
    host_key: str | None
    serial: str | None
    project: str
    release: str
    digest: str | None
    """None where no record has more than the release."""
    signer: str | None
    start: str | None
    """None where it was current before this log began to know it."""
    end: str | None
    """None if it is current still, as far as is known; see ``seen``."""
    ended_by: str | None
    """What ended it: a switch, a rollback, or a switch that no record has; then ``end`` is only the
    latest possible."""
    ended_who: str | None
    """Who ended it, as ``user@host``; None where nobody knows, or it has no end."""
    seen: str | None
    """When it was last known to be current; None of one that was found when it ended."""
    seen_by: Literal["log", "device"]
    """``board`` where the board itself said at ``seen`` that it is current."""


UNKNOWN_SWITCH = "a switch that was not made from here"


def list_audit_intervals(
    records: Iterable[Record],
    since: datetime | None = None,
    histories: Sequence[DeviceHistory] = (),
) -> list[UseInterval]:
    """Return which bundle was current on which board and when, in order of the beginnings.

    Args:
        records: All records of the log, or what :func:`merge_histories` makes of them.
        since: Leave out intervals that had ended by then.
        histories: What boards said themselves, which release is current among it.

    A board is identified by its host key, or by its name where the key is not known. What is done
    elsewhere is in other logs and in the boards' histories; where a switch found another release
    than the last one that is known, the interval's end is only the latest possible.
    """
    known = [found for found in records if found.result == "done"]
    found = _Intervals(_Boards(known))
    for one in known:
        if one.project and one.release:
            found.take_in(one, (one.host_key or one.device, one.project), one.release)
    for history in histories:
        found.ask_device(history)
    return [
        one
        for one in found.intervals
        if since is None or one.end is None or parse_moment(one.end) >= since
    ]


class _Intervals:
    """The intervals up to a record."""

    def __init__(self, boards: _Boards) -> None:
        self.intervals: list[UseInterval] = []
        self._boards = boards
        self._running: dict[tuple[str, str], int] = {}
        """The interval that lasts still, of each board and project."""

    def take_in(self, one: Record, place: tuple[str, str], release: str) -> None:
        """Take in the next record."""
        number = self._running.get(place)
        last = None if number is None else self.intervals[number]
        if last and last.release == release and one.switched_from in (None, release):
            if one.action in ("push", "switch", "rollback"):
                self._change(place, seen=one.time)
        elif one.action in ("switch", "rollback"):
            before = one.switched_from or (last.release if last else None)
            who = f"{one.user}@{one.host}" if one.user else None
            if last and last.release == before:
                self._change(place, end=one.time, ended_by=one.action, ended_who=who)
            elif last:
                self._change(place, end=one.time, ended_by=UNKNOWN_SWITCH)
            if before not in (None, release, last.release if last else None):
                elsewhere = self._boards.make_interval(one, before or "", start=None)
                self.intervals.append(
                    replace(elsewhere, end=one.time, ended_by=one.action, ended_who=who)
                )
            self._running[place] = len(self.intervals)
            self.intervals.append(self._boards.make_interval(one, release, start=one.time))

    def ask_device(self, history: DeviceHistory) -> None:
        """Take in what a board says is current."""
        for board, project in self._running:
            if board in (history.host_key, history.device):
                place = board, project
                lasting = self.intervals[self._running[place]]
                if history.current.get(project) == lasting.release:
                    self._change(place, seen=history.asked, seen_by="device")
                else:
                    self._change(place, end=history.asked, ended_by=UNKNOWN_SWITCH)

    def _change(self, place: tuple[str, str], **facts: Any) -> None:  # noqa: ANN401
        number = self._running[place]
        self.intervals[number] = replace(self.intervals[number], **facts)


class _Boards:
    """What all records together say about boards and releases."""

    def __init__(self, known: Sequence[Record]) -> None:
        self._serials = {one.host_key: one.serial for one in known if one.host_key and one.serial}
        with_digest = [one for one in known if one.release and one.digest]
        with_digest.sort(key=lambda one: one.signer is not None)  # boards tell no signers
        self._pushed = {one.release: one for one in with_digest}

    def make_interval(self, one: Record, release: str, *, start: str | None) -> UseInterval:
        """Return the interval of a release on the board of a record; it has no end yet."""
        pushed = self._pushed.get(release)
        return UseInterval(
            device=one.device,
            host_key=one.host_key,
            serial=one.serial or self._serials.get(one.host_key or ""),
            project=one.project or "",
            release=release,
            digest=pushed.digest if pushed else None,
            signer=pushed.signer if pushed else None,
            start=start,
            end=None,
            ended_by=None,
            ended_who=None,
            seen=start,
            seen_by="log",
        )

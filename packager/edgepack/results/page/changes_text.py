"""Changes in histories, and slow devices, in words; and whether a build may pass with them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from edgepack.base.statistics import Interval
from edgepack.errors import LimitError
from edgepack.results.store.changes import Change, HistorySeries
from edgepack.results.store.splits import LEAST_POINTS
from edgepack.results.store.units import UnitHistory
from edgepack.results.summary import format_count

NAMED = 5
"""Of the devices that are not compared."""


def find_newest_changes(series: Iterable[HistorySeries], last: int | None) -> list[HistorySeries]:
    """Return series with only the changes that began in their ``last`` runs; all for None.

    Devices that were slow before are left out, too.
    """
    if last is None:
        return list(series)
    return [
        replace(
            one,
            changes=tuple(each for each in one.changes if each.newer_runs <= last),
            units=tuple(each for each in one.units if not each.slow or each.newer_runs <= last),
        )
        for one in series
    ]


def format_series(series: Sequence[HistorySeries]) -> Iterator[str]:
    """Yield lines about each series: its runs, what changed, and which devices are slow."""
    if not series:
        yield "there are no benchmarks to look at"
    for one in series:
        yield (
            f"{one.project}, {one.target}, {one.device_model}, {one.variant},"
            f" onnxruntime {one.onnxruntime}: {format_count(one.runs, 'run')}"
            f" from {one.first} to {one.last}"
        )
        if one.invalid_runs:
            yield f"  {format_count(one.invalid_runs, 'invalid or unfinished run')} left out"
        for why in one.restarted:
            yield f"  not compared with earlier runs; {why}"
        yield from (f"  {line}" for line in [*_format_changes(one), *_format_units(one.units)])


def _format_changes(one: HistorySeries) -> Iterator[str]:
    noun = find_noun(one)
    if not one.long_enough:
        yield f"too few {noun}s to look for changes: {LEAST_POINTS} are needed"
    elif not one.changes:
        yield "no change"
    for change in one.changes:
        yield format_change(change, noun)


def find_noun(series: HistorySeries) -> str:
    """Return what a point of a series is: a run, or a night of many devices."""
    return "run" if series.points == series.runs else "night"


def _format_units(units: Sequence[UnitHistory]) -> Iterator[str]:
    if len(units) < 2:
        return
    yield from (format_slow_unit(one) for one in units if one.slow)
    if rest := [one for one in units if one.ratio and not one.slow]:
        reach = f"{rest[-1].estimate - 1:+.1%} to {rest[0].estimate - 1:+.1%} ({rest[0].device})"
        yield f"{format_count(len(rest), 'device')} as fast as their peers: {reach}"
    left = [f"{one.device} ({one.reason})" for one in units if not one.ratio]
    if left:
        more = f" and {len(left) - NAMED} more" if len(left) > NAMED else ""
        yield f"not compared with peers: {', '.join(left[:NAMED])}{more}"


def format_slow_unit(unit: UnitHistory) -> str:
    """Return a slow device as one line: how slow, since when, and what its canary shows."""
    since = (
        f"since {unit.since} ({unit.created[:10]}), in {format_count(unit.slow_nights, 'night')}"
    )
    before = (
        "from its first nights on"
        if unit.ratio_before is None
        else f"before {unit.ratio_before - 1:+.1%}"
    )
    than = f"slower than its {format_count(unit.peers, 'peer')}"
    return f"{unit.device} is {format_ratio(unit.ratio)} {than} {since}, {before}; {unit.reason}"


def format_ratio(ratio: Interval | None) -> str:
    """Return how much slower than its peers a device is, with the 95 % interval."""
    if ratio is None:
        return "unknown"
    return f"{ratio.estimate - 1:.1%} ({ratio.low - 1:.1%} to {ratio.high - 1:.1%})"


def format_change(change: Change, noun: str = "run") -> str:
    """Return a change as one line; ``noun`` is what a point of its series is."""
    word = "slower" if change.slower else "faster"
    bundles = f"{change.bundle} {change.manifest_sha256[:12]}"
    before = f"{change.bundle_before} {change.manifest_sha256_before[:12]}"
    if before != bundles:
        bundles += f", before {before}"
    return (
        f"{change.metric} is {abs(change.ratio - 1):.1%} {word} since {change.since} ({bundles}):"
        f" {change.before_ms:#.4g} ms in {format_count(change.runs_before, noun)},"
        f" then {change.after_ms:#.4g} ms in {change.runs_after}; {change.reason}"
    )


def require_no_slowdown(series: Iterable[HistorySeries]) -> None:
    """Check that no model became slower, and that no device is slower than its peers.

    Slowdowns of all devices of a model together, of which the model is not the cause, are allowed.

    Raises:
        LimitError: A model became slower, or a device is slow.
    """
    series = list(series)
    slow = [
        f"{one.variant}: {format_change(change, find_noun(one))}"
        for one in series
        for change in one.changes
        if change.slower and change.blame != "device"
    ]
    units = [f"{one.variant}: {format_slow_unit(unit)}" for one, unit in list_slow_units(series)]
    problems, hints = [], []
    if slow:
        problems.append("models became slower" + "".join(f"\n  - {line}" for line in slow))
        hints.append(
            "measure both bundles side by side: edgepack compare; if a model is meant to be"
            " slower, leave its change out with --last or --since"
        )
    if units:
        problems.append(
            "devices are slower than their peers" + "".join(f"\n  - {line}" for line in units)
        )
        hints.append(
            "look at a slow device: edgepack device check NAME; leave out what is known with --last"
        )
    if problems:
        raise LimitError("\n".join(problems), hint="; ".join(hints))


def list_slow_units(series: Iterable[HistorySeries]) -> list[tuple[HistorySeries, UnitHistory]]:
    """Return the slow devices of all series, the slowest first."""
    found = [(one, unit) for one in series for unit in one.units if unit.slow]
    return sorted(found, key=lambda pair: -pair[1].estimate)

"""Changes in histories, in words; and whether a build may pass in spite of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from edgepack.errors import LimitError
from edgepack.results.store.changes import Change, HistorySeries
from edgepack.results.store.splits import LEAST_POINTS
from edgepack.results.summary import format_count


def find_newest_changes(series: Iterable[HistorySeries], last: int | None) -> list[HistorySeries]:
    """Return series with only the changes that began in their ``last`` runs; all for None."""
    if last is None:
        return list(series)
    return [
        replace(one, changes=tuple(each for each in one.changes if each.newer_runs <= last))
        for one in series
    ]


def format_series(series: Sequence[HistorySeries]) -> Iterator[str]:
    """Yield lines about each series: its runs, and what changed."""
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
        if not one.long_enough:
            yield f"  too few to look for changes: {LEAST_POINTS} are needed"
        elif not one.changes:
            yield "  no change"
        for change in one.changes:
            yield f"  {format_change(change)}"


def format_change(change: Change) -> str:
    """Return a change as one line."""
    word = "slower" if change.slower else "faster"
    bundles = f"{change.bundle} {change.manifest_sha256[:12]}"
    before = f"{change.bundle_before} {change.manifest_sha256_before[:12]}"
    if before != bundles:
        bundles += f", before {before}"
    return (
        f"{change.metric} is {abs(change.ratio - 1):.1%} {word} since {change.since} ({bundles}):"
        f" {change.before_ms:#.4g} ms in {format_count(change.runs_before, 'run')},"
        f" then {change.after_ms:#.4g} ms in {change.runs_after}; {change.reason}"
    )


def require_no_slowdown(series: Iterable[HistorySeries]) -> None:
    """Check that no model became slower; slowdowns of the device alone are allowed.

    Raises:
        LimitError: A model became slower.
    """
    slow = [
        (one, change)
        for one in series
        for change in one.changes
        if change.slower and change.blame != "device"
    ]
    if slow:
        lines = (f"\n  - {one.variant}: {format_change(change)}" for one, change in slow)
        raise LimitError(
            "models became slower" + "".join(lines),
            hint="measure both bundles side by side: edgepack compare; if a model is meant to be"
            " slower, leave its change out with --last or --since",
        )

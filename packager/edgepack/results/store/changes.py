"""Finds where in its history a model became slower or faster, and whether the device did.

One report is one point: the median over its process runs of their p50, and of their p90. A series
holds the points of one project, target, device model and variant under equal conditions (see
:mod:`edgepack.results.store.fingerprint`, which covers the version of the runtime), in order of
time. Where more than three devices are measured beside each other, a point is one night of theirs,
and each of them is compared with the others (:mod:`edgepack.results.store.units`).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from edgepack.base.statistics import MAD_TO_SIGMA, median
from edgepack.results.store.labels import list_reasons
from edgepack.results.store.points import Blame, HistoryPoint, make_point
from edgepack.results.store.splits import LEAST_AFTER, LEAST_POINTS, Floats, find_splits
from edgepack.results.store.units import UnitHistory, compare_units, merge_nights

if TYPE_CHECKING:
    from edgepack.results.store.store import ResultsStore, RunFilter

Metric = Literal["p50", "p90"]

MARGINS: dict[Metric, float] = {"p50": 0.03, "p90": 0.05}
"""What does not matter in practice, as in ``edgepack compare``."""
LONGEST = 500
"""Points: of a longer series the newest."""


@dataclass(frozen=True)
class Change:
    """A lasting change of a metric, from one run on."""

    metric: Metric
    ratio: float
    """After over before, of the medians of the points on either side up to the next change."""
    before_ms: float
    after_ms: float
    since: str
    """The first run after it; the one before may belong to it where runs are noisy."""
    created: str
    bundle: str
    """The ``manifest_sha256`` of the first run after it."""
    bundle_before: str
    manifest_sha256: str
    manifest_sha256_before: str
    runs_before: int
    """Or nights, where the model's devices are compared; so is ``runs_after``."""
    runs_after: int
    newer_runs: int
    """From the change on, under whatever conditions; of the device with the most."""
    blame: Blame
    reason: str
    """Why that is blamed, in words."""

    @property
    def slower(self) -> bool:
        """Whether it is a slowdown."""
        return self.ratio > 1


@dataclass(frozen=True)
class HistorySeries:
    """The history of one project, target, device model and variant under equal conditions."""

    project: str
    target: str
    device_model: str
    variant: str
    onnxruntime: str
    fingerprint: str
    runs: int
    invalid_runs: int
    """The number of invalid runs, which are left out."""
    first: str
    last: str
    """When its first and last run were."""
    restarted: tuple[str, ...]
    """Which conditions changed since the series of the same name before it; it is not compared."""
    changes: tuple[Change, ...]
    points: int = 0
    """Its runs; where more than three devices are compared, its nights."""
    units: tuple[UnitHistory, ...] = ()
    """Its devices, the slow ones first."""

    @property
    def long_enough(self) -> bool:
        """Whether there are enough runs to look for changes."""
        return self.points >= LEAST_POINTS


def find_changes(store: ResultsStore, wanted: RunFilter | None = None) -> list[HistorySeries]:
    """Find the changes in the history of each project, target, device model and variant.

    Where more than three devices of a model were measured in the same nights, each of them is also
    compared with the others, in ``units``.

    Args:
        store: Where the runs are.
        wanted: Which of them; default: all. What is left out is in no history.

    Returns:
        All series, those with the newest run first.

    Raises:
        ToolError: The store cannot be reached.
    """
    points = [found for row in store.rows(wanted) if (found := make_point(row))]
    return find_all_series(
        points, lambda earlier, later: list_reasons(store, earlier.run, later.run)
    )


def find_all_series(
    points: Iterable[HistoryPoint], restarted: Callable[[HistoryPoint, HistoryPoint], Sequence[str]]
) -> list[HistorySeries]:
    """Sort points into series, and find the changes in each.

    Args:
        points: In any order.
        restarted: Says which conditions differ between two points of different fingerprints.

    Returns:
        All series, those with the newest run first.
    """
    histories: dict[tuple[str, ...], list[HistoryPoint]] = defaultdict(list)
    for one in sorted(points, key=lambda one: (one.created, one.run)):
        histories[one.project, one.target, one.device_model, one.variant].append(one)
    series = []
    for history in histories.values():
        groups: dict[str, list[HistoryPoint]] = defaultdict(list)
        for one in history:
            groups[one.fingerprint].append(one)
        earlier: HistoryPoint | None = None
        for group in groups.values():
            why = restarted(earlier, group[0]) if earlier else ()
            series.append(_count_runs(_make_series(group, tuple(why)), history))
            earlier = group[-1]
    return sorted(series, key=lambda one: (one.last, one.project, one.variant), reverse=True)


def _count_runs(series: HistorySeries, history: Sequence[HistoryPoint]) -> HistorySeries:
    """Count the runs since each change, also those that were made under other conditions."""
    usable = [one for one in history if one.usable]

    def count_since(since: tuple[str, str]) -> int:
        newer = Counter(one.device for one in usable if (one.created, one.run) >= since)
        return max(newer.values(), default=0)

    changes = [
        replace(one, newer_runs=count_since((one.created, one.since))) for one in series.changes
    ]
    return replace(series, changes=tuple(changes))


def _make_series(points: Sequence[HistoryPoint], restarted: tuple[str, ...]) -> HistorySeries:
    first = points[0]
    usable = [one for one in points if one.usable]
    merged = merge_nights(usable)
    return HistorySeries(
        project=first.project,
        target=first.target,
        device_model=first.device_model,
        variant=first.variant,
        onnxruntime=first.onnxruntime,
        fingerprint=first.fingerprint,
        runs=len(usable),
        invalid_runs=len(points) - len(usable),
        first=first.created,
        last=points[-1].created,
        restarted=restarted,
        changes=tuple(find_series_changes(merged)),
        points=len(merged),
        units=compare_units(usable),
    )


def find_series_changes(points: Sequence[HistoryPoint]) -> list[Change]:
    """Find the changes in one series.

    Args:
        points: Of equal conditions, oldest first.

    Returns:
        The changes, oldest first, and p50 before p90.
    """
    points = points[-LONGEST:]
    found = []
    for metric, margin in MARGINS.items():
        told = [one for one in points if metric == "p50" or not math.isnan(one.p90_ms)]
        logs = np.log([one.p50_ms if metric == "p50" else one.p90_ms for one in told])
        splits = find_splits(logs, margin)
        edges = [0, *splits, len(told)]
        for start, split, end in zip(edges, splits, edges[2:], strict=False):
            place = points.index(told[split])
            found.append((place, _make_change(told, logs, (start, split, end), metric)))
    return [change for _, change in sorted(found, key=lambda item: (item[0], item[1].metric))]


def _make_change(
    points: Sequence[HistoryPoint], logs: Floats, edges: tuple[int, int, int], metric: Metric
) -> Change:
    start, split, end = edges
    before, after = median(logs[start:split].tolist()), median(logs[split:end].tolist())
    blame, reason = _find_blame(
        points[start:split], points[split:end], after - before, MARGINS[metric]
    )
    return Change(
        metric=metric,
        ratio=math.exp(after - before),
        before_ms=math.exp(before),
        after_ms=math.exp(after),
        since=points[split].run,
        created=points[split].created,
        bundle=points[split].bundle,
        bundle_before=points[split - 1].bundle,
        manifest_sha256=points[split].manifest_sha256,
        manifest_sha256_before=points[split - 1].manifest_sha256,
        runs_before=split - start,
        runs_after=end - split,
        newer_runs=len(points) - split,
        blame=blame,
        reason=reason,
    )


def _find_blame(
    before: Sequence[HistoryPoint], after: Sequence[HistoryPoint], change: float, margin: float
) -> tuple[Blame, str]:
    """Say whether the model or the device changed: by the canary, or because the bundle did not."""
    canary = _compute_canary_change(before, after)
    if canary is not None:
        moved, noise = canary
        least = max(math.log1p(margin) / 2, 2 * noise)
        if moved * change > 0 and abs(moved) >= least:
            return _blame_moved_canary(moved, change, margin)
    if _is_same_bundle(before, after):
        return "device", "the device changed: the bundle is the same before and after"
    if canary is not None:
        return "model", f"the canary did not move with it ({math.expm1(canary[0]):+.1%})"
    return "unknown", f"no canary on both sides of it{_explain_other_unit(before, after)}"


def _blame_moved_canary(moved: float, change: float, margin: float) -> tuple[Blame, str]:
    word = f"{abs(math.expm1(moved)):.1%} {'slower' if moved > 0 else 'faster'}"
    rest = change - moved
    if rest * change <= 0 or abs(rest) < math.log1p(margin):
        return "device", f"the device changed: the canary is {word} too"
    return "both", f"the device changed, the canary is {word}; {math.expm1(rest):+.1%} remain"


def _is_same_bundle(before: Sequence[HistoryPoint], after: Sequence[HistoryPoint]) -> bool:
    """Return whether all that is measured after was measured often enough before, too."""
    measured = [one.manifest_sha256 for one in before]
    return all(measured.count(one.manifest_sha256) > LEAST_AFTER for one in after)


def _explain_other_unit(before: Sequence[HistoryPoint], after: Sequence[HistoryPoint]) -> str:
    units = {one.device for one in before}, {one.device for one in after}
    if not units[0].isdisjoint(units[1]):
        return ""
    names = [", ".join(sorted(unit)) for unit in units]
    return f"; the runs before are of {names[0]}, those after of {names[1]}"


def _compute_canary_change(
    before: Sequence[HistoryPoint], after: Sequence[HistoryPoint]
) -> tuple[float, float] | None:
    """Return how far the canary moved, as a logarithm, and the standard error of that."""
    shas = {one.canary_sha256 for one in after if one.canary_sha256}
    sides = [
        np.log([one.canary_ns for one in side if one.canary_sha256 in shas])
        for side in (before, after)
    ]
    if len(shas) != 1 or min(map(len, sides)) < LEAST_AFTER:
        return None
    centres = [median(side.tolist()) for side in sides]
    apart = [np.abs(side - centre) for side, centre in zip(sides, centres, strict=True)]
    deviation = MAD_TO_SIGMA * median(np.concatenate(apart).tolist())
    error = deviation * math.sqrt(sum(1 / len(side) for side in sides))
    return centres[1] - centres[0], error

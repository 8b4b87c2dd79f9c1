"""What changed since the last run of the same project, target, device and variant.

The two were not measured side by side, so that a difference may be the day's: it says where to
look, and ``edgepack compare`` decides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from edgepack.base import statistics
from edgepack.base.schema import NotMeasured
from edgepack.base.statistics import Interval
from edgepack.bundle.manifest import Accuracy
from edgepack.records.run import RunReport, VariantFacts
from edgepack.results.store.fingerprint import list_differences
from edgepack.results.summary import (
    NS_PER_MS,
    Summary,
    format_mebibytes,
    format_milliseconds,
    format_placement,
    shorten_provider,
)

FASTER_SLOWER = ("faster", "slower")
MOVED_NODES = 5
"""Named in a report; the others are counted."""


@dataclass(frozen=True)
class FigureChange:
    """One figure of two runs; texts are ready to print."""

    what: str
    before: str
    after: str
    ratio: Interval | float | None
    """After divided by before, with its 95 % interval where there are enough process runs."""
    words: tuple[str, str] = ("smaller", "larger")
    """For a ratio below and above 1."""
    inconclusive: bool = False
    """Whether one of the two figures must not decide."""

    @property
    def direction(self) -> str:
        """``less`` or ``more`` if all of the interval is below or above 1; empty if not."""
        if self.ratio is None or self.inconclusive:
            return ""
        sure = self.ratio if isinstance(self.ratio, Interval) else Interval(*[self.ratio] * 3)
        return "more" if sure.low > 1 else "less" if sure.high < 1 else ""

    @property
    def word(self) -> str:
        """What the ratio means, in a word."""
        if self.inconclusive:
            return "inconclusive"
        if self.before == self.after:
            return "same"
        if self.ratio is None:
            return "differs"
        named = dict(zip(("less", "more"), self.words, strict=True))
        return named.get(self.direction, "no change shown")

    @property
    def ratio_text(self) -> str:
        """The change in percent, with its interval."""
        if self.ratio is None:
            return ""
        if isinstance(self.ratio, float):
            return format_percent(self.ratio)
        low, high = format_percent(self.ratio.low), format_percent(self.ratio.high)
        return f"{format_percent(self.ratio.estimate)} ({low} to {high})"


@dataclass(frozen=True)
class SincePrevious:
    """The last run before this one, and what differs."""

    run: RunReport
    changes: list[FigureChange]
    differences: list[str]
    """Conditions that differ."""
    placement: list[str]
    """Nodes that run elsewhere."""


def find_subject(report: RunReport) -> tuple[str, ...]:
    """Return what two runs share that can be compared."""
    name = report.project or report.bundle
    return (name, report.target, report.device, report.variant_used, report.scenario.name)


def find_last_before(report: RunReport, others: Sequence[RunReport]) -> RunReport | None:
    """Return the newest run of the same subject that is older than this one."""
    subject, moment = find_subject(report), (report.created, report.id)
    older = [
        each
        for each in others
        if (each.created, each.id) < moment and find_subject(each) == subject
    ]
    return max(older, key=lambda each: (each.created, each.id), default=None)


def compare_with_previous(
    before: RunReport, after: RunReport, summaries: tuple[Summary, Summary]
) -> SincePrevious:
    """Return what changed from one run to the next; ``summaries`` are of these two runs."""
    changes = _list_changes(before, after, *summaries)
    return SincePrevious(
        before, changes, list_differences(before, after), _list_moved(before, after)
    )


def compute_ratio_of_medians(before: Sequence[float], after: Sequence[float]) -> Interval | float:
    """Return the ratio of two groups of process runs, after divided by before.

    The interval is Welch's at 95 %, on the logarithms; without two runs in each it is a number.
    """
    first, second = ([math.log(max(value, 1e-9)) for value in group] for group in (before, after))
    difference = fmean(second) - fmean(first)
    if min(len(first), len(second)) < 2:
        return math.exp(difference)
    errors = [statistics.standard_deviation(logs) ** 2 / len(logs) for logs in (first, second)]
    if not sum(errors):
        return math.exp(difference)
    parts = zip(errors, (first, second), strict=True)
    degrees = sum(errors) ** 2 / sum(error**2 / (len(logs) - 1) for error, logs in parts)
    reach = statistics.t_quantile(0.975, max(1, int(degrees))) * math.sqrt(sum(errors))
    return Interval(
        math.exp(difference), math.exp(difference - reach), math.exp(difference + reach)
    )


def format_percent(ratio: float) -> str:
    """Return a ratio as a change in percent."""
    return f"{(ratio - 1) * 100:+.1f} %"


def _list_changes(
    before: RunReport, after: RunReport, old: Summary, new: Summary
) -> list[FigureChange]:
    unusable = "invalid" in (before.verdict.kind, after.verdict.kind)
    tailed = unusable or bool(old.heavy_tail or new.heavy_tail)
    p50s, p90s = (old.run_medians_ms, new.run_medians_ms), (old.run_p90s_ms, new.run_p90s_ms)
    creations = (_list_creations(before), _list_creations(after))
    created = (old.session_create_ms, new.session_create_ms)
    found = [
        _make_duration_change("latency p50", (old.p50_ms, new.p50_ms), p50s, inconclusive=unusable),
        _make_duration_change("latency p90", (old.p90_ms, new.p90_ms), p90s, inconclusive=tailed),
        _make_duration_change("session create, warm", created, creations, inconclusive=unusable),
    ]
    if not isinstance(before.memory, NotMeasured) and not isinstance(after.memory, NotMeasured):
        found.append(
            _make_size_change("peak memory", before.memory.peak_bytes, after.memory.peak_bytes)
        )
    found.append(_make_size_change("bundle", before.bundle_bytes, after.bundle_bytes))
    sizes = [find_used_variant(report).model_bytes for report in (before, after)]
    found.append(_make_size_change("model file", *sizes))
    return [*found, *_list_accuracy_changes(before, after)]


def _make_duration_change(
    what: str,
    ms: tuple[float, float],
    over_runs: tuple[Sequence[float], Sequence[float]],
    *,
    inconclusive: bool,
) -> FigureChange:
    before, after = map(format_milliseconds, ms)
    ratio = compute_ratio_of_medians(*over_runs)
    return FigureChange(what, before, after, ratio, FASTER_SLOWER, inconclusive)


def _make_size_change(what: str, before: int, after: int) -> FigureChange:
    return FigureChange(
        what, format_mebibytes(before), format_mebibytes(after), after / max(before, 1)
    )


def _list_creations(report: RunReport) -> list[float]:
    return [run.session_create_ns / NS_PER_MS for run in report.runs]


def find_used_variant(report: RunReport) -> VariantFacts:
    """Return the variant that ran."""
    return next(each for each in report.variants if each.id == report.variant_used)


def _list_accuracy_changes(before: RunReport, after: RunReport) -> list[FigureChange]:
    old, new = find_used_variant(before).accuracy, find_used_variant(after).accuracy
    if isinstance(old, Accuracy) and isinstance(new, Accuracy) and old.metric == new.metric:
        what = f"{new.metric} on the build host"
        return [FigureChange(what, f"{old.value:.4g}", f"{new.value:.4g}", None)]
    return []


def _list_moved(before: RunReport, after: RunReport) -> list[str]:
    if isinstance(before.placement, NotMeasured) or isinstance(after.placement, NotMeasured):
        return []
    found = []
    if before.placement.counts != after.placement.counts:
        found.append(
            f"nodes by provider: {format_placement(before)}, then {format_placement(after)}"
        )
    was = {node.name: node.provider for node in before.placement.nodes}
    moved = [
        f"{node.name}: {shorten_provider(was[node.name])}, then {shorten_provider(node.provider)}"
        for node in after.placement.nodes
        if was.get(node.name, node.provider) != node.provider
    ]
    found += moved[:MOVED_NODES]
    if len(moved) > MOVED_NODES:
        found.append(f"and {len(moved) - MOVED_NODES} more nodes")
    return found

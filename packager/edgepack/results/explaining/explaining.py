"""What a report tells about where the time of a run goes. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from edgepack.base.schema import NotMeasured
from edgepack.records.profiled import ProfiledRun, has_loops, make_profiled_run
from edgepack.records.run import RunReport
from edgepack.records.verdict import EMULATED
from edgepack.results.explaining.bottlenecks import COPIES, Bottleneck, list_bottlenecks
from edgepack.results.explaining.roofline import (
    NodeCost,
    compute_costs,
    sum_shares,
)

SLOWED = 1.2
"""From how much of a run's time on it is told that the profiler adds to the nodes'."""
PartKind = Literal["arithmetic", "memory", "neither", "unknown", "copies", "between"]

PARTS: dict[PartKind, str] = {
    "arithmetic": "bound by arithmetic",
    "memory": "bound by memory",
    "neither": "far below both",
    "unknown": "no roof was measured",
    "copies": "copies between providers",
    "between": "between the nodes",
}
"""What a run consists of, in words."""


@dataclass(frozen=True)
class TimePart:
    """A part of a run."""

    kind: PartKind
    us: float
    """In microseconds."""
    share: float
    """Of a run, 0 to 1."""
    nodes: int

    @property
    def what(self) -> str:
        """The part in words."""
        return PARTS[self.kind]


@dataclass(frozen=True)
class Explanation:
    """Where the time of a run goes, and what may help."""

    run: ProfiledRun
    costs: list[NodeCost]
    """Of each node, in the order in which they ran."""
    parts: list[TimePart]
    """The run by what bounds its nodes, the largest part first."""
    bottlenecks: list[Bottleneck]
    """The largest gain first; those whose gain is unknown are last."""
    unknown: list[str]
    """What could not be told, and why."""


def explain(report: RunReport, p50_ms: float) -> Explanation:
    """Explain where the time of a report's run goes, whose queries have this median."""
    run = make_profiled_run(report, p50_ms * 1e3)
    costs = compute_costs(run)
    return Explanation(
        run=run,
        costs=costs,
        parts=_list_parts(run, costs),
        bottlenecks=list_bottlenecks(run, costs),
        unknown=list(_list_unknown(run, costs)),
    )


def _list_parts(run: ProfiledRun, costs: Sequence[NodeCost]) -> list[TimePart]:
    by_kind: dict[PartKind, list[NodeCost]] = {}
    for cost in costs:
        kind = "copies" if cost.node.op in COPIES else cost.bound or "unknown"
        by_kind.setdefault(kind, []).append(cost)
    found = [
        TimePart(kind, sum(cost.node.median_us for cost in chosen), sum_shares(chosen), len(chosen))
        for kind, chosen in by_kind.items()
    ]
    if costs and not isinstance(run.between_us, NotMeasured):
        found.append(TimePart("between", run.between_us, max(0.0, 1 - sum_shares(costs)), 0))
    return sorted(found, key=lambda part: -part.share)


def _list_unknown(run: ProfiledRun, costs: Sequence[NodeCost]) -> Iterator[str]:
    report = run.report
    if isinstance(report.placement, NotMeasured):
        yield f"no node was timed: {report.placement.reason}"
        return
    if report.facts.emulated:
        yield f"what anything would gain: {EMULATED}"
    if run.returns_early:
        yield "how long nodes take: a GPU works on while they have returned"
    asked = {
        "what the processor reaches at best": report.peak,
        "the time between nodes": report.placement.between_us,
        "which cores are fast": report.topology,
    }
    for what, found in asked.items():
        if isinstance(found, NotMeasured):
            yield f"{what}: {found.reason}"
    if has_loops(report.placement.nodes):
        yield "how often loops go round: times of the nodes in them are of one round"
    yield from _list_untold(run, costs)


def _list_untold(run: ProfiledRun, costs: Sequence[NodeCost]) -> Iterator[str]:
    """Yield what the profile does not tell of its nodes."""
    sizeless = sum(cost.multiply_adds is None for cost in costs)
    if sizeless and not isinstance(run.report.peak, NotMeasured):
        yield f"what {sizeless} of {len(costs)} nodes compute"
    if run.is_single and run.nodes_us > SLOWED * run.p50_us:
        yield (
            f"what the profiler itself takes: under it the nodes add up to {run.nodes_us:,.0f} µs,"
            f" and a run takes {run.p50_us:,.0f} µs without it"
        )

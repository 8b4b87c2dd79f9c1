"""What a report tells about where the time of a run goes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from edgepack.base.schema import NotMeasured
from edgepack.records.run import RunReport
from edgepack.results.explaining.bottlenecks import COPIES, Bottleneck, list_bottlenecks
from edgepack.results.explaining.roofline import (
    HOLLOW,
    NodeCost,
    compute_costs,
    compute_run_us,
    sum_shares,
)

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

    report: RunReport
    run_us: float
    """The nodes of a run and what is between them, by onnxruntime's profiler."""
    costs: list[NodeCost]
    """Of each node, in the order in which they ran."""
    parts: list[TimePart]
    """The run by what bounds its nodes, the largest part first."""
    bottlenecks: list[Bottleneck]
    """The largest gain first; those whose gain is unknown are last."""
    unknown: list[str]
    """What could not be told, and why."""


def explain(report: RunReport) -> Explanation:
    """Explain where the time of a report's run goes."""
    costs = compute_costs(report)
    placement = report.placement
    whole = 0.0 if isinstance(placement, NotMeasured) else compute_run_us(placement)
    return Explanation(
        report=report,
        run_us=whole,
        costs=costs,
        parts=_list_parts(report, costs),
        bottlenecks=list_bottlenecks(report, costs),
        unknown=_list_unknown(report, costs),
    )


def _list_parts(report: RunReport, costs: Sequence[NodeCost]) -> list[TimePart]:
    by_kind: dict[PartKind, list[NodeCost]] = {}
    for cost in costs:
        kind = "copies" if cost.node.op in COPIES else cost.bound or "unknown"
        by_kind.setdefault(kind, []).append(cost)
    found = [
        TimePart(kind, sum(cost.node.median_us for cost in chosen), sum_shares(chosen), len(chosen))
        for kind, chosen in by_kind.items()
    ]
    if not isinstance(report.placement, NotMeasured):
        between = report.placement.between_us
        if not isinstance(between, NotMeasured):
            found.append(TimePart("between", between, max(0.0, 1 - sum_shares(costs)), 0))
    return sorted(found, key=lambda part: -part.share)


def _list_unknown(report: RunReport, costs: Sequence[NodeCost]) -> list[str]:
    found = []
    if isinstance(report.placement, NotMeasured):
        return [f"no node was timed: {report.placement.reason}"]
    if isinstance(report.peak, NotMeasured):
        found.append(f"what the processor reaches at best: {report.peak.reason}")
    if isinstance(report.placement.between_us, NotMeasured):
        found.append(f"the time between nodes: {report.placement.between_us.reason}")
    if isinstance(report.topology, NotMeasured):
        found.append(f"which cores are fast: {report.topology.reason}")
    if any(node.op in HOLLOW[1:] for node in report.placement.nodes):
        found.append("how often loops go round: times of the nodes in them are of one round")
    sizeless = sum(cost.multiply_adds is None for cost in costs)
    if sizeless and not isinstance(report.peak, NotMeasured):
        found.append(f"what {sizeless} of {len(costs)} nodes read and compute")
    return found

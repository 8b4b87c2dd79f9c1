"""What bounds each node: memory, arithmetic, or neither. Pure.

A roofline: at a given ratio of multiply-adds to moved bytes, a processor is at best as fast as its
memory brings the bytes, or as its arithmetic multiplies. Source of the idea: Williams, Waterman and
Patterson, "Roofline: an insightful visual performance model", CACM 52 (2009).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from edgepack.base.schema import NotMeasured
from edgepack.records.profiled import ProfiledRun
from edgepack.records.run import Peak, PlacedNode
from edgepack.results.explaining.work import (
    Arithmetic,
    count_moved_bytes,
    count_multiply_adds,
    find_arithmetic,
)

CPU = "CPUExecutionProvider"
FAR_BELOW = 0.25
"""A node that reaches less of its roof than this is bound by neither memory nor arithmetic."""
FLOAT_BYTES = 4

Bound = Literal["memory", "arithmetic", "neither"]


@dataclass(frozen=True)
class Roof:
    """How long a node would take at best, in microseconds."""

    moving_us: float
    """With its bytes moved as fast as the processor moves so many."""
    computing_us: float
    """With its products computed as fast as the processor computes any."""

    @property
    def us(self) -> float:
        """The longer of both."""
        return max(self.moving_us, self.computing_us)


@dataclass(frozen=True)
class NodeCost:
    """A node, how long it takes, and what bounds it."""

    node: PlacedNode
    share: float
    """Of a run: all nodes, and what is between them."""
    multiply_adds: int | None
    """None where it is not known what it computes."""
    moved_bytes: int | None
    """What it has to read and write; None where that is not known."""
    arithmetic: Arithmetic | None
    """None of what is no product."""
    roof: Roof | None
    """None where that is not known."""

    @property
    def us(self) -> float:
        """How long it takes in the median, at least the microsecond that the profiler counts."""
        return max(1.0, self.node.median_us)

    @property
    def bound(self) -> Bound | None:
        """What keeps it from being faster; None where its roof is not known."""
        if self.roof is None:
            return None
        if self.roof.us < FAR_BELOW * self.us:
            return "neither"
        return "memory" if self.roof.moving_us >= self.roof.computing_us else "arithmetic"


def compute_costs(run: ProfiledRun) -> list[NodeCost]:
    """Return the cost of each node of a run.

    What a provider other than the CPU runs has no roof: its peak is not measured.
    """
    peak = None if isinstance(run.report.peak, NotMeasured) else run.report.peak
    return [_compute_cost(node, max(run.whole_us, 1e-9), peak) for node in run.nodes]


def _compute_cost(node: PlacedNode, whole_us: float, peak: Peak | None) -> NodeCost:
    work, moved = count_multiply_adds(node), count_moved_bytes(node)
    arithmetic = find_arithmetic(node) if work else None
    roof = None
    if peak and node.provider == CPU and moved and work is not None:
        roof = compute_roof(peak, work, moved, arithmetic)
    return NodeCost(node, node.median_us / whole_us, work, moved, arithmetic, roof)


def compute_roof(
    peak: Peak, multiply_adds: int, moved_bytes: int, arithmetic: Arithmetic | None
) -> Roof | None:
    """Return how long moving and computing take at best.

    None where the peak of such arithmetic was not measured.
    """
    moving_us = moved_bytes / find_bandwidth(peak, moved_bytes) * 1e6
    if arithmetic is None:
        return Roof(moving_us, 0.0)
    if arithmetic == "other" or arithmetic not in peak.multiply_adds_per_s:
        return None
    return Roof(moving_us, multiply_adds / peak.multiply_adds_per_s[arithmetic] * 1e6)


def find_bandwidth(peak: Peak, moved_bytes: int) -> float:
    """Return how many bytes a second were moved where at least so many had room, or the most."""
    fitting = [move for move in peak.moves if move.moved_bytes >= moved_bytes]
    return (fitting or peak.moves[-1:])[0].bytes_per_s


def compute_int8_part(cost: NodeCost, peak: Peak) -> float:
    """Return which part of its time a float32 node would take in int8, as near to its roof."""
    if cost.roof is None or cost.multiply_adds is None or cost.moved_bytes is None:
        return 1.0
    roof = compute_roof(peak, cost.multiply_adds, cost.moved_bytes // FLOAT_BYTES, "int8")
    return min(1.0, roof.us / max(cost.roof.us, 1e-9)) if roof else 1.0


def sum_shares(costs: Sequence[NodeCost]) -> float:
    """Return which part of a run nodes take together."""
    return sum(cost.share for cost in costs)

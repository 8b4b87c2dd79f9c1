"""What bounds each node: memory, arithmetic, or neither. Pure.

A roofline: at a given ratio of multiply-adds to moved bytes, a processor is at best as fast as its
memory brings the bytes, or as its arithmetic multiplies. Source of the idea: Williams, Waterman and
Patterson, "Roofline: an insightful visual performance model", CACM 52 (2009).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from edgepack.base import statistics
from edgepack.base.schema import NotMeasured
from edgepack.records.run import Peak, PlacedNode, Placement, RunReport
from edgepack.results.explaining.work import (
    Arithmetic,
    count_moved_bytes,
    count_multiply_adds,
    find_arithmetic,
)

CPU = "CPUExecutionProvider"
ASYNCHRONOUS = (
    "CUDAExecutionProvider",
    "TensorrtExecutionProvider",
    "NvTensorRTRTXExecutionProvider",
    "DmlExecutionProvider",
    "ROCMExecutionProvider",
)
"""Providers whose nodes return before what they began is computed."""
HOLLOW = ("If", "Loop", "Scan")
"""Operators whose time is that of the nodes in their bodies."""
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


def is_asynchronous(report: RunReport) -> bool:
    """Return whether some nodes return before what they began is computed.

    Source: onnxruntime issues 7390 and 19930: a CUDA kernel's time is that of its launch.
    """
    placement = report.placement
    return not isinstance(placement, NotMeasured) and any(
        node.provider in ASYNCHRONOUS for node in placement.nodes
    )


def compute_between_us(report: RunReport) -> float | NotMeasured:
    """Return the time of a run that is no node's, in microseconds.

    The profiler writes between the nodes, too, so of a single stream it is no more than what the
    nodes leave of p50.
    """
    placement = report.placement
    if isinstance(placement, NotMeasured):
        return placement
    if is_asynchronous(report):
        return NotMeasured(reason="a GPU works on while its nodes have returned")
    if isinstance(placement.between_us, NotMeasured) or report.scenario.name != "single-stream":
        return placement.between_us
    left_us = statistics.median(report.latencies_ns) / 1e3 - _sum_nodes_us(placement)
    return min(placement.between_us, max(0.0, left_us))


def compute_costs(report: RunReport) -> list[NodeCost]:
    """Return the cost of each node of the report's profile; none if there is no profile.

    What a provider other than the CPU runs has no roof: its peak is not measured.
    """
    placement = report.placement
    if isinstance(placement, NotMeasured):
        return []
    whole_us = max(compute_run_us(report), 1e-9)
    peak = None if isinstance(report.peak, NotMeasured) else report.peak
    return [_compute_cost(node, whole_us, peak) for node in list_nodes(placement)]


def list_nodes(placement: Placement) -> list[PlacedNode]:
    """Return the nodes that take time of their own."""
    return [node for node in placement.nodes if node.op not in HOLLOW]


def compute_run_us(report: RunReport) -> float:
    """Return how long the nodes of a run take together with what is between them."""
    between = compute_between_us(report)
    if isinstance(report.placement, NotMeasured):
        return 0.0
    return _sum_nodes_us(report.placement) + (0.0 if isinstance(between, NotMeasured) else between)


def _sum_nodes_us(placement: Placement) -> float:
    return sum(node.median_us for node in list_nodes(placement))


def _compute_cost(node: PlacedNode, whole_us: float, peak: Peak | None) -> NodeCost:
    work, moved = count_multiply_adds(node), count_moved_bytes(node)
    arithmetic = find_arithmetic(node) if work else None
    roof = None
    if peak and node.provider == CPU and moved and work is not None:
        roof = compute_roof(peak, work, moved, arithmetic)
    return NodeCost(node, node.median_us / whole_us, work, arithmetic, roof)


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
    if cost.roof is None or cost.multiply_adds is None or not cost.node.sizes:
        return 1.0
    fewer = max(1, cost.node.sizes.moved_bytes // FLOAT_BYTES)
    roof = compute_roof(peak, cost.multiply_adds, fewer, "int8" if cost.arithmetic else None)
    return min(1.0, roof.us / max(cost.roof.us, 1e-9)) if roof else 1.0


def sum_shares(costs: Sequence[NodeCost]) -> float:
    """Return which part of a run nodes take together."""
    return sum(cost.share for cost in costs)

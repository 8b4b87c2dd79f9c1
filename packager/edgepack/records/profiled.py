"""A run as its profile has it: its nodes, and what is between them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgepack.backends.registry import BACKENDS
from edgepack.base.schema import NotMeasured
from edgepack.records.run import PlacedNode, Placement, RunReport

HOLLOW = ("If", "Loop", "Scan")
"""Operators whose time is that of the nodes in their bodies."""
_EARLY = {backend.provider for backend in BACKENDS.values() if backend.returns_early}


@dataclass(frozen=True)
class ProfiledRun:
    """A run of a report; times are in microseconds."""

    report: RunReport
    p50_us: float
    """Of the timed queries, without the profiler."""
    nodes: list[PlacedNode]
    """Those that take time of their own, in the order in which they ran."""
    between_us: float | NotMeasured
    """What is no node's. The profiler writes between the nodes, too, so of a single stream it is no
    more than what the nodes leave of p50."""
    returns_early: bool
    """Whether some nodes return before what they began is computed: then times are of starts."""

    @property
    def nodes_us(self) -> float:
        """All nodes together."""
        return sum(node.median_us for node in self.nodes)

    @property
    def whole_us(self) -> float:
        """The nodes and what is between them."""
        between_us = 0.0 if isinstance(self.between_us, NotMeasured) else self.between_us
        return self.nodes_us + between_us

    @property
    def is_single(self) -> bool:
        """Whether a query is one run, with nothing beside it."""
        return self.report.scenario.name == "single-stream"


def make_profiled_run(report: RunReport, p50_us: float) -> ProfiledRun:
    """Return a report's run, with the median of its queries; without nodes if none was timed."""
    placement = report.placement
    if isinstance(placement, NotMeasured):
        return ProfiledRun(report, p50_us, [], placement, returns_early=False)
    nodes = [node for node in placement.nodes if node.op not in HOLLOW]
    early = any(node.provider in _EARLY for node in nodes)
    run = ProfiledRun(report, p50_us, nodes, _find_between(placement, early=early), early)
    if isinstance(run.between_us, NotMeasured) or not run.is_single:
        return run
    left_us = max(0.0, p50_us - run.nodes_us)
    return ProfiledRun(report, p50_us, nodes, min(run.between_us, left_us), early)


def _find_between(placement: Placement, *, early: bool) -> float | NotMeasured:
    if early:
        return NotMeasured(reason="a GPU works on while its nodes have returned")
    return placement.between_us


def has_loops(nodes: Sequence[PlacedNode]) -> bool:
    """Return whether some nodes may run several times in a run."""
    return any(node.op in HOLLOW[1:] for node in nodes)

"""An explanation as rows of tables, and as a document."""

from __future__ import annotations

from edgepack.base.schema import NotMeasured
from edgepack.results.explaining.explaining import Explanation
from edgepack.results.explaining.roofline import NodeCost
from edgepack.results.summary import (
    format_milliseconds,
    format_verdict,
    list_verdict_reasons,
    shorten_provider,
)


def format_explained(found: Explanation) -> str:
    """Return in one line what is explained."""
    report = found.run.report
    p50 = format_milliseconds(found.run.p50_us / 1e3)
    whole_ms = found.run.whole_us / 1e3
    profiled = f", {whole_ms:,.3f} ms a run by the profiler" if found.costs else ""
    return (
        f"{report.bundle}, {report.variant_used} on {report.device}: p50 {p50}{profiled}"
        f" (run {report.id})"
    )


def list_doubts(found: Explanation) -> list[str]:
    """Return why the run's times must not be used, or conclude nothing; empty if it is VALID."""
    word = format_verdict(found.run.report)
    return [f"{word}: {reason}" for reason in list_verdict_reasons(found.run.report)]


def list_part_rows(found: Explanation) -> list[tuple[str, ...]]:
    """Return the parts of a run: what, time, share, nodes."""
    return [
        (each.what, _format_us(each.us), f"{each.share:.1%}", str(each.nodes or ""))
        for each in found.parts
    ]


def list_node_rows(found: Explanation) -> list[tuple[str, ...]]:
    """Return the nodes, slowest first: name, operator, time, share, bound, part of the best."""
    return [
        (
            cost.node.name,
            cost.node.op,
            _format_us(cost.node.median_us),
            f"{cost.share:.1%}",
            _format_bound(cost),
            "" if cost.roof is None else f"{cost.roof.us / cost.us:.0%}",
        )
        for cost in sorted(found.costs, key=lambda cost: -cost.node.median_us)
    ]


def make_explanation_document(found: Explanation) -> dict[str, object]:
    """Return an explanation as plain data; times are in microseconds, shares and gains 0 to 1."""
    report = found.run.report
    return {
        "run": report.id,
        "device": report.device,
        "variant": report.variant_used,
        "p50_us": found.run.p50_us,
        "run_us": found.run.whole_us,
        "peak": None if isinstance(report.peak, NotMeasured) else report.peak,
        "parts": found.parts,
        "bottlenecks": found.bottlenecks,
        "nodes": [_make_node_document(cost) for cost in found.costs],
        "unknown": found.unknown,
    }


def _make_node_document(cost: NodeCost) -> dict[str, object]:
    return {
        "name": cost.node.name,
        "op": cost.node.op,
        "provider": cost.node.provider,
        "us": cost.node.median_us,
        "share": cost.share,
        "bound": cost.bound,
        "multiply_adds": cost.multiply_adds,
        "moved_bytes": cost.moved_bytes,
        "roof_us": cost.roof.us if cost.roof else None,
    }


def _format_bound(cost: NodeCost) -> str:
    if cost.bound:
        return cost.bound
    return shorten_provider(cost.node.provider) if cost.node.sizes is None else ""


def _format_us(us: float) -> str:
    return f"{us:,.0f} µs"

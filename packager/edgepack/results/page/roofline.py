"""The roofline of a run."""

from __future__ import annotations

import math
from collections.abc import Container, Sequence

from edgepack.records.run import Peak
from edgepack.results.explaining.explaining import PARTS, PartKind
from edgepack.results.explaining.roofline import NodeCost
from edgepack.results.explaining.work import Arithmetic
from edgepack.results.page.plots import Figure, Number, Panel, PlotSeries, round_short

MARKS = 40
"""The most products in one figure, so that pages of many runs stay small."""


def draw_roofline(costs: Sequence[NodeCost], peak: Peak) -> Figure | None:
    """Draw the longest products of a run under what the processor reaches; None without any.

    The horizontal axis is how much is computed with each byte that is moved, the vertical one how
    fast; a mark's area is the node's share of a run.
    """
    shown = [cost for cost in costs if cost.multiply_adds and cost.moved_bytes and cost.bound]
    shown = sorted(shown, key=lambda cost: -cost.us)[:MARKS]
    if not shown:
        return None
    arithmetics = {cost.arithmetic for cost in shown}
    ratios = [_compute_ratio(cost) for cost in shown]
    slowest = min(move.bytes_per_s for move in peak.moves)
    ridge = max(peak.multiply_adds_per_s.values()) / slowest
    ends = min(*ratios, ridge) / 4, max(ratios) * 2
    largest = max(cost.share for cost in shown)
    marks = []
    bounds: tuple[PartKind, ...] = ("arithmetic", "memory", "neither")
    for bound in bounds:
        chosen = [cost for cost in shown if cost.bound == bound]
        marks.append(
            PlotSeries(
                name=PARTS[bound],
                kind="marks",
                x=[round_short(_compute_ratio(cost)) for cost in chosen],
                y=[round_short((cost.multiply_adds or 0) / cost.us / 1e3) for cost in chosen],
                colour=bound,
                radius=[round(3 + 9 * math.sqrt(cost.share / largest), 1) for cost in chosen],
                text=[f"{cost.node.name} ({cost.node.op}, {cost.share:.1%})" for cost in chosen],
            )
        )
    return Figure(
        label=f"Roofline of {len(shown)} products",
        x="multiply-adds for each byte moved",
        panels=[
            Panel(
                "10⁹ multiply-adds a second",
                [*_draw_roofs(peak, ends, arithmetics), *filter(_has_any, marks)],
                300,
                log=True,
            )
        ],
        log=True,
    )


def _has_any(series: PlotSeries) -> bool:
    return bool(series.x)


def _compute_ratio(cost: NodeCost) -> float:
    return (cost.multiply_adds or 0) / (cost.moved_bytes or 1)


def _draw_roofs(
    peak: Peak, ends: tuple[float, float], arithmetics: Container[Arithmetic | None]
) -> list[PlotSeries]:
    """Draw a line for each speed of memory, up to the fastest arithmetic, and one for each."""
    used = {name: rate for name, rate in peak.multiply_adds_per_s.items() if name in arithmetics}
    top = max(used.values())
    found = []
    for number, move in enumerate(peak.moves):
        ridge = max(ends[0], top / move.bytes_per_s)
        x: list[Number] = [round_short(ends[0]), round_short(ridge)]
        y: list[Number] = [round_short((at or 0) * move.bytes_per_s / 1e9) for at in x]
        name = f"{move.bytes_per_s / 1e9:.3g} GB/s, {move.moved_bytes / 2**20:.3g} MiB"
        found.append(PlotSeries(name, "line", x, y, f"s2 d{number}"))
    for number, (name, rate) in enumerate(used.items()):
        height = round_short(rate / 1e9)
        line: list[Number] = [round_short(ends[0]), round_short(ends[1])]
        found.append(PlotSeries(name, "line", line, [height, height], f"s3 d{number}"))
    return found

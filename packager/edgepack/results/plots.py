"""The figures of the HTML report. Each function returns a plotly figure; none does I/O."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgepack import statistics
from edgepack.bench.report import RunReport
from edgepack.bundle.manifest import Accuracy, NotMeasured
from edgepack.results.summary import NS_PER_MS, mebibytes

if TYPE_CHECKING:
    import plotly.graph_objects as go

STRETCHES = 200
"""Of one run in the latency plot, so that the page stays small whatever was measured."""
BINS = 60
LOG_FROM = 3
"""A slowest inference of so many medians makes the axis logarithmic: else it hides the others."""
COLOURS = ("#3b82f6", "#f59e0b", "#10b981", "#ec4899", "#8b5cf6", "#06b6d4", "#84cc16")
NEUTRAL = "#94a3b8"
GRID = "rgba(128,128,128,0.25)"


def latency_figure(report: RunReport) -> go.Figure:
    """Draw every run in order: the median of each stretch as a line, its slowest as a dot."""
    import plotly.graph_objects as go

    figure = _figure("inference", "latency (ms)")
    start = 0
    for number, run in enumerate(report.runs, 1):
        parts = stretches([ns / NS_PER_MS for ns in run.latencies_ns])
        colour = COLOURS[(number - 1) % len(COLOURS)]
        x = [start + part.position for part in parts]
        slowest = {"size": 3, "color": colour, "opacity": 0.45}
        line = {"width": 2, "color": colour}
        figure.add_trace(
            go.Scatter(
                x=x, y=[part.slowest for part in parts], mode="markers", marker=slowest,
                name=f"run {number} slowest", showlegend=False,
            )
        )  # fmt: skip
        figure.add_trace(
            go.Scatter(
                x=x, y=[part.median for part in parts], mode="lines", line=line,
                name=f"run {number}",
            )
        )  # fmt: skip
        start += len(run.latencies_ns)
    if max(report.latencies_ns) > LOG_FROM * statistics.median(report.latencies_ns):
        return figure.update_yaxes(type="log", dtick=1)
    return figure.update_yaxes(rangemode="tozero")


@dataclass(frozen=True)
class Stretch:
    """Some inferences of a run that follow each other, in milliseconds."""

    position: int
    """Of the first, within the run."""
    median: float
    slowest: float


def stretches(latencies_ms: Sequence[float]) -> list[Stretch]:
    """Return a run cut into at most 200 stretches of equal length."""
    size = max(1, -(-len(latencies_ms) // STRETCHES))
    cut = [(at, latencies_ms[at : at + size]) for at in range(0, len(latencies_ms), size)]
    return [Stretch(at, round(statistics.median(part), 6), round(max(part), 6)) for at, part in cut]


def distribution_figure(report: RunReport) -> go.Figure:
    """Draw a histogram over all runs up to the 99th percentile; its last bar holds the rest."""
    import numpy as np
    import plotly.graph_objects as go

    latencies_ms = np.sort(np.array(report.latencies_ns) / NS_PER_MS)
    end = statistics.percentile(latencies_ms.tolist(), 99)
    counts, edges = np.histogram(np.minimum(latencies_ms, end), bins=BINS)
    centres = (edges[:-1] + edges[1:]) / 2
    figure = _figure("latency (ms)", "inferences")
    figure.add_trace(
        go.Bar(x=centres.round(6).tolist(), y=counts.tolist(), marker_color=COLOURS[0], name="")
    )
    for percent in (50, 90, 95):
        value = statistics.percentile(latencies_ms.tolist(), percent)
        figure.add_vline(x=value, line_dash="dot", line_color=NEUTRAL)
        figure.add_annotation(
            x=value, yref="paper", y=1.0 - (percent != 50) * (percent - 80) / 100,
            text=f"p{percent}", showarrow=False, xanchor="left", xshift=3,
        )  # fmt: skip
    figure.update_layout(showlegend=False, bargap=0.05)
    return figure


def size_figure(report: RunReport) -> go.Figure:
    """Draw the size of each variant's model file."""
    import plotly.graph_objects as go

    largest = max(variant.model_bytes for variant in report.variants)
    unit, divisor = ("MiB", 2**20) if largest >= 2**20 else ("KiB", 2**10)
    figure = _figure(f"model file ({unit})", "")
    figure.add_trace(
        go.Bar(
            x=[variant.model_bytes / divisor for variant in report.variants],
            y=[html.escape(variant.id, quote=False) for variant in report.variants],
            orientation="h",
            marker_color=_used_colours(report),
            text=[mebibytes(variant.model_bytes) for variant in report.variants],
        )
    )
    return _rows(figure, len(report.variants))


def accuracy_figure(report: RunReport) -> go.Figure | None:
    """Draw each variant's accuracy beside fp32's; None where the bundle has no accuracy."""
    import plotly.graph_objects as go

    rated = [
        (variant.id, variant.accuracy)
        for variant in report.variants
        if isinstance(variant.accuracy, Accuracy)
    ]
    if not rated:
        return None
    names = [html.escape(name, quote=False) for name, _ in rated]
    figure = _figure(html.escape(rated[0][1].metric, quote=False), "")
    # A variant without an fp32 model has no bar for it.
    fp32 = [a.fp32 if isinstance(a.fp32, float) else None for _, a in rated]
    for title, colour, values in (
        ("fp32", NEUTRAL, fp32),
        ("variant", COLOURS[0], [accuracy.value for _, accuracy in rated]),
    ):
        texts = ["" if value is None else f"{value:.4g}" for value in values]
        figure.add_trace(
            go.Bar(x=values, y=names, orientation="h", name=title, marker_color=colour, text=texts)
        )
    return _rows(figure, 2 * len(rated)).update_layout(showlegend=True)


def layers_figure(report: RunReport) -> go.Figure | None:
    """Draw the worst layers of the variant that ran, or of the first that has any.

    A bar is the error of a node's tensor in dB below the float model's signal: shorter is worse.
    """
    import plotly.graph_objects as go

    rated = {
        variant.id: variant.layers
        for variant in report.variants
        if variant.layers and not isinstance(variant.layers, NotMeasured)
    }
    if not rated:
        return None
    shown = report.variant_used if report.variant_used in rated else next(iter(rated))
    layers = rated[shown]
    figure = _figure(f"SQNR (dB), {html.escape(shown, quote=False)}", "")
    figure.add_trace(
        go.Bar(
            x=[layer.sqnr_db for layer in layers],
            y=[html.escape(f"{layer.node} ({layer.op})", quote=False) for layer in layers],
            orientation="h",
            marker_color=COLOURS[0],
            text=[f"{layer.sqnr_db:.1f}" for layer in layers],
        )
    )
    _rows(figure, len(layers))
    return figure.update_layout(height=110 + 24 * len(layers))


def _used_colours(report: RunReport) -> list[str]:
    return [COLOURS[0] if v.id == report.variant_used else NEUTRAL for v in report.variants]


def _figure(x: str, y: str) -> go.Figure:
    import plotly.graph_objects as go

    figure = go.Figure()
    figure.update_layout(
        template="none",
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": "system-ui, sans-serif", "size": 13},
        margin={"l": 10, "r": 10, "t": 20, "b": 10},
        height=320,
        legend={"orientation": "h", "y": 1.12},
    )
    figure.update_xaxes(title=x, gridcolor=GRID, zerolinecolor=GRID, automargin=True)
    figure.update_yaxes(title=y, gridcolor=GRID, zerolinecolor=GRID, automargin=True)
    return figure


def _rows(figure: go.Figure, bars: int) -> go.Figure:
    figure.update_yaxes(autorange="reversed")
    return figure.update_layout(showlegend=False, height=110 + 40 * bars, bargap=0.3)

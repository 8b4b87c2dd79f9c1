"""Benchmark reports as one HTML file that needs no network: text, plots and plotly.js inside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edgepack import statistics
from edgepack.bench.report import PlacedNode, ProcessRun, RunReport
from edgepack.bundle.manifest import Accuracy, NotMeasured
from edgepack.errors import ToolError, UsageError
from edgepack.resources import templates_dir
from edgepack.results.plots import (
    accuracy_figure,
    distribution_figure,
    latency_figure,
    layers_figure,
    size_figure,
)
from edgepack.results.summary import (
    NS_PER_MS,
    Summary,
    interval_text,
    mebibytes,
    milliseconds,
    placement_text,
    provider_word,
    summarize,
    verdict_reasons,
    verdict_word,
)
from edgepack.results.table import (
    device_rows,
    golden_limit_text,
    golden_text,
    memory_text,
    near_text,
)

if TYPE_CHECKING:
    import plotly.graph_objects as go

SLOWEST_NODES = 15


@dataclass(frozen=True)
class RunRow:
    """One process run as the page shows it."""

    number: int
    samples: int
    p50: str
    p90: str
    session_create: str
    first_inference: str
    warm_up_iterations: int
    steady: str
    golden_db: str


@dataclass(frozen=True)
class AccuracyRow:
    """One variant as the page shows it; texts are ready to print."""

    variant: str
    size: str
    metric: str
    fp32: str
    value: str
    drop: str
    interval: str
    samples: str
    agreement: str
    worst: str


@dataclass(frozen=True)
class Figures:
    """The plots of one report, each as a ``div`` with its script."""

    latency: str
    distribution: str
    sizes: str
    accuracy: str
    layers: str


@dataclass(frozen=True)
class Section:
    """One report as the page shows it."""

    anchor: str
    report: RunReport
    summary: Summary
    verdict: str
    reasons: list[str]
    tiles: list[tuple[str, str, str]]
    """Title, value and a small line below."""
    runs: list[RunRow]
    variants: list[AccuracyRow]
    placement: str
    slowest_nodes: list[PlacedNode]
    device: list[tuple[str, str]]
    figures: Figures
    layers_not_measured: str
    """Why no variant has layers; empty where none is expected to."""


def write_html(reports: Sequence[RunReport], path: Path) -> Path:
    """Write the page and return its path.

    Raises:
        UsageError: There is no report to show.
        ToolError: The file cannot be written.
    """
    text = render_html(reports)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ToolError(
            f"cannot write the page: {error.strerror}",
            hint="name a file in a folder that can be written to with --html",
            where=str(path),
        ) from error
    return path


def render_html(reports: Sequence[RunReport]) -> str:
    """Return the page. Every text that comes from a user or a device is escaped.

    Raises:
        UsageError: There is no report to show.
    """
    import jinja2
    from plotly.offline import get_plotlyjs

    if not reports:
        raise UsageError("there is no report to show", hint="edgepack bench BUNDLE --device NAME")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(templates_dir() / "report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    template = environment.get_template("report.html.j2")
    sections = [_section(number, report) for number, report in enumerate(reports, 1)]
    return template.render(sections=sections, plotlyjs=get_plotlyjs())


def _section(number: int, report: RunReport) -> Section:
    summary = summarize(report)
    nodes = sorted(report.placement.nodes, key=lambda node: -node.mean_us)
    return Section(
        anchor=f"run-{number}",
        report=report,
        summary=summary,
        verdict=verdict_word(report),
        reasons=verdict_reasons(report),
        tiles=_tiles(report, summary),
        runs=[_run_row(index, run) for index, run in enumerate(report.runs, 1)],
        variants=_variant_rows(report),
        placement=placement_text(report),
        slowest_nodes=[
            node.model_copy(update={"provider": provider_word(node.provider)})
            for node in nodes[:SLOWEST_NODES]
        ],
        device=device_rows(report),
        figures=_figures(number, report),
        layers_not_measured=next(
            (v.layers.reason for v in report.variants if isinstance(v.layers, NotMeasured)), ""
        ),
    )


def _tiles(report: RunReport, summary: Summary) -> list[tuple[str, str, str]]:
    runs = f"{len(report.runs)} process runs"
    return [
        ("latency p50", milliseconds(summary.p50_ms), f"{summary.samples:,} inferences"),
        ("latency p90", milliseconds(summary.p90_ms), f"p95 {milliseconds(summary.p95_ms)}"),
        ("95 % interval", interval_text(summary.median_interval_ms), f"over {runs}"),
        ("session create", milliseconds(summary.session_create_ms), f"median of {runs}"),
        ("first inference", milliseconds(summary.first_inference_ms), f"median of {runs}"),
        ("peak memory", mebibytes(report.memory.peak_bytes), memory_text(report)),
        ("golden outputs", golden_text(report), golden_limit_text(report)),
    ]


def _run_row(number: int, run: ProcessRun) -> RunRow:
    return RunRow(
        number=number,
        samples=len(run.latencies_ns),
        p50=milliseconds(statistics.median(run.latencies_ns) / NS_PER_MS),
        p90=milliseconds(statistics.percentile(run.latencies_ns, 90) / NS_PER_MS),
        session_create=milliseconds(run.session_create_ns / NS_PER_MS),
        first_inference=milliseconds(run.first_inference_ns / NS_PER_MS),
        warm_up_iterations=run.warm_up_iterations,
        steady="yes" if run.steady else "no",
        golden_db=near_text(run.golden_min_sqnr_db),
    )


def _variant_rows(report: RunReport) -> list[AccuracyRow]:
    rows = []
    for variant in report.variants:
        size = mebibytes(variant.model_bytes)
        if isinstance(variant.accuracy, Accuracy):
            rows.append(_accuracy_row(variant.id, size, variant.accuracy))
        else:
            unknown = AccuracyRow(variant.id, size, variant.accuracy.reason, *["n/a"] * 7)
            rows.append(unknown)
    return rows


def _accuracy_row(variant: str, size: str, accuracy: Accuracy) -> AccuracyRow:
    drop, interval = accuracy.drop, accuracy.drop_interval
    agreement = accuracy.agreement
    worst = accuracy.worst
    return AccuracyRow(
        variant=variant,
        size=size,
        metric=accuracy.metric,
        fp32=f"{accuracy.fp32:.4g}"
        if isinstance(accuracy.fp32, float)
        else f"not measured: {accuracy.fp32.reason}",
        value=f"{accuracy.value:.4g}",
        drop="n/a" if drop is None else f"{drop:+.4f}",
        interval="n/a" if interval is None else f"{interval[0]:+.4f} to {interval[1]:+.4f}",
        samples=str(accuracy.samples),
        agreement="n/a" if agreement is None else f"{agreement:.2%}",
        worst=f"{worst.output}: cosine {worst.cosine:.4f}, {worst.sqnr_db:.1f} dB"
        if worst
        else "n/a",
    )


def _figures(number: int, report: RunReport) -> Figures:
    accuracy, layers = accuracy_figure(report), layers_figure(report)
    return Figures(
        latency=_div(latency_figure(report), f"latency-{number}"),
        distribution=_div(distribution_figure(report), f"distribution-{number}"),
        sizes=_div(size_figure(report), f"sizes-{number}"),
        accuracy=_div(accuracy, f"accuracy-{number}") if accuracy else "",
        layers=_div(layers, f"layers-{number}") if layers else "",
    )


def _div(figure: go.Figure, div_id: str) -> str:
    text: str = figure.to_html(
        full_html=False,
        include_plotlyjs=False,
        div_id=div_id,
        config={"displaylogo": False, "responsive": True, "displayModeBar": False},
    )
    return text

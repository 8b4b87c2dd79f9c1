"""The rows of an overview's table: the newest run of each device and variant."""

from __future__ import annotations

from dataclasses import dataclass

from edgepack.base.schema import NotMeasured
from edgepack.base.statistics import Interval
from edgepack.bundle.manifest import Accuracy
from edgepack.records.run import EvaluationReport, RunReport, Speedup
from edgepack.results.page.sections import Section
from edgepack.results.store.previous import SincePrevious, find_used_variant, format_percent
from edgepack.results.store.units import UnitHistory
from edgepack.results.summary import (
    compute_run_share,
    format_interval,
    format_mebibytes,
    format_milliseconds,
    format_peak_memory,
)

MARGIN = 0.03
"""A change of p50 is coloured where all of its interval is beyond this."""

BADNESS = {"valid": 0, "inconclusive": 1, "invalid": 2}


@dataclass(frozen=True)
class OverviewCell:
    """One value of the overview's table."""

    text: str
    order: float | str
    """What the column is sorted by."""
    note: str = ""
    look: str = ""
    """``more`` or ``less`` for a change that matters."""


UNKNOWN = OverviewCell("unknown", -1)


@dataclass(frozen=True)
class OverviewRow:
    """The newest run of one device and variant."""

    section: Section
    target: str
    p50: OverviewCell
    p90: OverviewCell
    predict: OverviewCell
    """The median of whole calls, and how much of it is the session's run."""
    speedup: OverviewCell
    """Over fp32, where all variants were measured in turn."""
    throughput: OverviewCell
    accuracy: OverviewCell
    size: OverviewCell
    memory: OverviewCell
    energy: OverviewCell
    change: OverviewCell
    peers: OverviewCell
    """How much slower than its peers the device is."""
    badness: tuple[bool, int, float]
    """Slow devices are worst, then INVALID runs, then INCONCLUSIVE ones, then what is slower than
    its peers: what is greater is worse."""


def make_overview_row(
    section: Section,
    accuracy: Accuracy | NotMeasured,
    evaluation: EvaluationReport | None,
    unit: UnitHistory | None,
) -> OverviewRow:
    """Return a run as a row of the table, with its accuracy and where a device computed that."""
    report, summary = section.report, section.summary
    interval = summary.median_interval_ms
    reach = "" if isinstance(interval, NotMeasured) else format_interval(interval)
    memory, model_bytes = report.memory, find_used_variant(report).model_bytes
    doubt = "inconclusive" if summary.heavy_tail else ""
    return OverviewRow(
        section=section,
        target=report.target,
        p50=OverviewCell(format_milliseconds(summary.p50_ms), summary.p50_ms, reach),
        p90=OverviewCell(format_milliseconds(summary.p90_ms), summary.p90_ms, doubt),
        predict=_make_predict_cell(report, summary.predict_ms),
        speedup=_make_speedup_cell(report.speedup),
        throughput=_make_number_cell(summary.throughput, "/s", doubt),
        accuracy=_make_accuracy_cell(accuracy, on_device=evaluation is not None),
        size=OverviewCell(format_mebibytes(model_bytes), model_bytes),
        memory=UNKNOWN
        if isinstance(memory, NotMeasured)
        else OverviewCell(format_peak_memory(report), memory.peak_bytes),
        energy=_make_number_cell(summary.energy_mj, " mJ", doubt),
        change=_make_change_cell(section.since, report.verdict.kind),
        peers=_make_peers_cell(unit),
        badness=(
            unit is not None and unit.slow,
            BADNESS[report.verdict.kind],
            unit.estimate if unit else 0.0,
        ),
    )


def _make_predict_cell(report: RunReport, predict_ms: float | NotMeasured) -> OverviewCell:
    if isinstance(predict_ms, NotMeasured):
        return UNKNOWN
    text = format_milliseconds(predict_ms)
    return OverviewCell(text, predict_ms, f"session.run {100 * compute_run_share(report):.0f} %")


def _make_speedup_cell(speedup: Speedup | NotMeasured | None) -> OverviewCell:
    if not isinstance(speedup, Speedup):
        return UNKNOWN
    low, high, text = speedup.low, speedup.high, f"{speedup.ratio:.2f}"
    reach = "" if low is None or high is None else f"{low:.2f} to {high:.2f}"
    return OverviewCell(text, speedup.ratio, reach)


def _make_peers_cell(unit: UnitHistory | None) -> OverviewCell:
    if unit is None or unit.ratio is None:
        return UNKNOWN
    ratio = unit.ratio
    reach = f"{format_percent(ratio.low).removesuffix(' %')} to {format_percent(ratio.high)}"
    look = "more" if unit.slow else ""
    return OverviewCell(format_percent(ratio.estimate), ratio.estimate, reach, look)


def _make_number_cell(value: float | NotMeasured, unit: str, note: str) -> OverviewCell:
    if isinstance(value, NotMeasured):
        return UNKNOWN
    text = f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
    return OverviewCell(text + unit, value, note)


def _make_accuracy_cell(accuracy: Accuracy | NotMeasured, *, on_device: bool) -> OverviewCell:
    if isinstance(accuracy, NotMeasured):
        return UNKNOWN
    where = "on the device" if on_device else "build host"
    return OverviewCell(f"{accuracy.value:#.4g}", accuracy.value, where)


def _make_change_cell(found: SincePrevious | None, verdict: str) -> OverviewCell:
    if found is None:
        return OverviewCell("first run", 1)
    latency = found.changes[0]
    ratio = latency.ratio
    if isinstance(ratio, Interval):
        text = format_percent(ratio.estimate)
        if found.run.verdict.kind == "invalid":
            return OverviewCell(text, ratio.estimate, "the last one is INVALID")
        reach = f"{format_percent(ratio.low).removesuffix(' %')} to {format_percent(ratio.high)}"
        far = ratio.low > 1 + MARGIN or ratio.high < 1 - MARGIN
        look = latency.direction if far and verdict != "invalid" else ""
        return OverviewCell(text, ratio.estimate, reach, look)
    return UNKNOWN if ratio is None else OverviewCell(format_percent(ratio), ratio)

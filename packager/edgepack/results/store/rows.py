"""What the results store knows of a report without reading it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from edgepack.base.clock import format_time
from edgepack.base.schema import NotMeasured
from edgepack.base.statistics import Interval, median, percentile
from edgepack.records.pipeline import PipelineReport
from edgepack.records.run import EvaluationReport, ImportedReport, RunReport
from edgepack.results.store.documents import Kind, Report, find_kind
from edgepack.results.store.fingerprint import make_fingerprint
from edgepack.results.summary import NS_PER_MS, format_verdict, summarize

LARGEST = 2**63 - 1
"""The largest whole number that a database takes."""


@dataclass(frozen=True)
class RunRow:
    """One stored report in short. A value that it does not have, or did not measure, is None."""

    id: str
    created: str
    """ISO 8601, UTC."""
    kind: Kind
    bundle: str
    """The bundle's id; of a report that was imported, the model's name."""
    device: str
    project: str | None = None
    """See :func:`find_project`."""
    target: str | None = None
    device_model: str | None = None
    variant: str | None = None
    preset: str | None = None
    scenario: str | None = None
    runtime: str | None = None
    """The version of onnxruntime; of a report that was imported, of the tool."""
    fingerprint: str | None = None
    """The fingerprint of the conditions: rows with different ones do not compare."""
    p50_ms: float | None = None
    """Over all latencies of all process runs, as ``p90_ms``."""
    p90_ms: float | None = None
    """None, as ``run_p90_ms``, where a heavy tail makes it inconclusive."""
    low_ms: float | None = None
    """The low end of the run medians' 95 % interval, whose high end is ``high_ms``."""
    high_ms: float | None = None
    peak_bytes: int | None = None
    bundle_bytes: int | None = None
    canary_ns: float | None = None
    """Median of the canary model's run medians."""
    canary_sha256: str | None = None
    """The SHA-256 of the canary model."""
    manifest_sha256: str | None = None
    """What distinguishes bundles of one id."""
    run_p50_ms: float | None = None
    """The median over process runs of each one's p50, as ``run_p90_ms`` of its p90."""
    run_p90_ms: float | None = None
    metric: str | None = None
    """The name of an evaluation's metric."""
    value: float | None = None
    """The value that an evaluation reached on the device."""
    value_low: float | None = None
    """The low end of its 95 % interval, whose high end is ``value_high``."""
    value_high: float | None = None
    verdict: str | None = None
    """VALID, INVALID or INCONCLUSIVE; imported reports have no verdict."""
    unfinished: bool = False
    """Whether the benchmark ended early."""


def find_project(row: RunRow) -> str:
    """Return the project's name; of a report that lacks it, the bundle's without its version."""
    name = row.bundle.removesuffix(f"-{row.target}") if row.target else ""
    return row.project or name.rpartition("-")[0] or row.bundle


def make_row(report: Report) -> RunRow:
    """Return a report in short."""
    row = _make_report_row(report)
    return replace(row, project=find_project(row))


def _make_report_row(report: Report) -> RunRow:
    match report:
        case RunReport():
            return _make_run_row(report)
        case EvaluationReport():
            return _make_evaluation_row(report)
        case ImportedReport():
            return _make_imported_row(report)
        case PipelineReport():
            return _make_pipeline_row(report)


def _make_run_row(report: RunReport) -> RunRow:
    summary = summarize(report)
    interval = summary.median_interval_ms
    low, high = (interval.low, interval.high) if isinstance(interval, Interval) else (None, None)
    memory, canary = report.memory, report.canary
    return replace(
        _make_measured_row(report, report.variant_used),
        preset=_format_text(report.preset),
        scenario=report.scenario.name,
        p50_ms=summary.p50_ms,
        p90_ms=None if summary.heavy_tail else summary.p90_ms,
        low_ms=low,
        high_ms=high,
        peak_bytes=None if isinstance(memory, NotMeasured) else min(memory.peak_bytes, LARGEST),
        bundle_bytes=min(report.bundle_bytes, LARGEST),
        canary_ns=None if isinstance(canary, NotMeasured) else median(canary.medians_ns),
        canary_sha256=None if isinstance(canary, NotMeasured) else canary.model_sha256,
        run_p50_ms=_compute_over_runs(report, 50),
        run_p90_ms=None if summary.heavy_tail else _compute_over_runs(report, 90),
        verdict=format_verdict(report),
        unfinished=bool(report.unfinished),
    )


def _make_evaluation_row(report: EvaluationReport) -> RunRow:
    times, interval = report.inference_ns, report.interval
    low, high = (None, None) if isinstance(interval, NotMeasured) else interval
    return replace(
        _make_measured_row(report, report.variant),
        p50_ms=median(times) / NS_PER_MS if times else None,
        p90_ms=percentile(times, 90) / NS_PER_MS if times else None,
        metric=_format_text(report.measured.metric),
        value=report.measured.value,
        value_low=low,
        value_high=high,
        verdict="INVALID" if report.reasons else "VALID",
    )


def _make_pipeline_row(report: PipelineReport) -> RunRow:
    times = [latency for run in report.runs for latency in run.latencies_ns]
    return replace(
        _make_measured_row(report, report.variants),
        preset=_format_text(report.preset),
        scenario="single-stream",
        p50_ms=percentile(times, 50) / NS_PER_MS,
        p90_ms=percentile(times, 90) / NS_PER_MS,
        run_p50_ms=_compute_over_runs(report, 50),
        run_p90_ms=_compute_over_runs(report, 90),
        verdict=format_verdict(report),
    )


def _make_measured_row(
    report: RunReport | EvaluationReport | PipelineReport, variant: str
) -> RunRow:
    """Return the values that every report of a bundle on a device has."""
    return RunRow(
        id=report.id,
        created=_format_time(report.created),
        kind=find_kind(report),
        project=_format_text(report.project),
        bundle=_format_text(report.bundle) or "",
        target=_format_text(report.target),
        device=_format_text(report.device) or "",
        device_model=_format_text(report.facts.model),
        variant=_format_text(variant),
        runtime=_format_text(report.facts.onnxruntime),
        fingerprint=make_fingerprint(report),
        manifest_sha256=_format_text(report.manifest_sha256),
    )


def _make_imported_row(report: ImportedReport) -> RunRow:
    statistics, peak = report.statistics_ns, report.peak_bytes
    return RunRow(
        id=report.id,
        created=_format_time(report.created),
        kind=find_kind(report),
        project=_format_text(report.model),
        bundle=_format_text(report.model) or "",
        device=_format_text(report.device) or "",
        runtime=_format_text(report.tool_version),
        p50_ms=statistics["p50"] / NS_PER_MS if "p50" in statistics else None,
        p90_ms=statistics["p90"] / NS_PER_MS if "p90" in statistics else None,
        peak_bytes=None if isinstance(peak, NotMeasured) else min(peak, LARGEST),
    )


def _compute_over_runs(report: RunReport | PipelineReport, percent: float) -> float:
    return median([percentile(run.latencies_ns, percent) for run in report.runs]) / NS_PER_MS


def _format_time(created: str) -> str:
    """Return a time so that those of all reports sort."""
    try:
        return format_time(datetime.fromisoformat(created))
    except ValueError:
        return created


def _format_text(fact: str | NotMeasured) -> str | None:
    """Return a fact as a database can keep it: PostgreSQL has no NUL in texts."""
    return None if isinstance(fact, NotMeasured) or not fact else fact.replace("\0", "\ufffd")

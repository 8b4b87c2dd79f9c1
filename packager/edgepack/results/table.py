"""Benchmark reports as tables for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from edgepack.bench.report import RunReport
from edgepack.bundle.manifest import NotMeasured
from edgepack.results.summary import (
    interval_text,
    known,
    mebibytes,
    milliseconds,
    placement_text,
    provider_word,
    summarize,
    verdict_reasons,
    verdict_word,
)
from edgepack.terminal import printable

if TYPE_CHECKING:
    from rich.table import Table

VERDICT_STYLES = {"VALID": "bold green", "INVALID": "bold red", "INCONCLUSIVE": "bold yellow"}
OUTCOME_STYLES = {"PASS": "bold green", "FAIL": "bold red", "INCONCLUSIVE": "bold yellow"}


def report_table(report: RunReport) -> Table:
    """Return one report as a table of two columns: what, and its value."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(printable(f"{report.bundle} on {report.device}")), show_header=False)
    table.add_column("what", style="bold", no_wrap=True)
    table.add_column("value", overflow="fold")
    for what, value in report_rows(report):
        table.add_row(what, Text(printable(value)))
    word = verdict_word(report)
    reasons = "".join(f"\n- {printable(reason)}" for reason in verdict_reasons(report))
    table.add_row("verdict", Text(word, style=VERDICT_STYLES[word]) + Text(reasons))
    return table


def report_rows(report: RunReport) -> list[tuple[str, str]]:
    """Return what the table says of a report, but its verdict."""
    summary = summarize(report)
    rows = [
        ("variant", f"{report.variant_used} (asked for: {report.variant_requested})"),
        ("latency min", milliseconds(summary.min_ms)),
        ("latency mean", milliseconds(summary.mean_ms)),
        ("latency p50", milliseconds(summary.p50_ms)),
        ("latency p90", milliseconds(summary.p90_ms)),
        ("latency p95", milliseconds(summary.p95_ms)),
    ]
    if not isinstance(summary.p99_ms, NotMeasured):
        rows.append(("latency p99", milliseconds(summary.p99_ms)))
    rows += [
        ("samples", f"{summary.samples} in {len(report.runs)} process runs"),
        ("95 % interval of run medians", interval_text(summary.median_interval_ms)),
        ("session create", milliseconds(summary.session_create_ms)),
        ("first inference", milliseconds(summary.first_inference_ms)),
        (
            "peak memory",
            f"{mebibytes(report.memory.peak_bytes)}, {memory_text(report)}",
        ),
        ("nodes by provider", placement_text(report)),
        ("golden outputs", f"{golden_text(report)}, {golden_limit_text(report)}"),
    ]
    rows += [("passed over", f"{item.variant}: {item.reason}") for item in report.passed_over]
    rows += [("note", note) for note in report.notes]
    return rows


def memory_text(report: RunReport) -> str:
    """Return how much of the peak memory is the model's."""
    return f"{mebibytes(report.memory.model_bytes)} for the model"


def golden_text(report: RunReport) -> str:
    """Return how near the outputs were to the golden ones, in the worst output and run."""
    return near_text(min(run.golden_min_sqnr_db for run in report.runs))


def near_text(sqnr_db: float) -> str:
    """Return an SQNR in words."""
    return "equal" if sqnr_db >= 200 else f"{sqnr_db:.1f} dB"


def golden_limit_text(report: RunReport) -> str:
    """Return how near they had to be."""
    needed = next(v.min_sqnr_db for v in report.variants if v.id == report.variant_used)
    return f"{needed:.1f} dB needed"


def reports_table(reports: Sequence[RunReport]) -> Table:
    """Return many reports as a table of one line each."""
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for heading in ("run", "bundle", "device", "variant", "p50", "p90", "memory", "verdict"):
        table.add_column(heading, overflow="fold")
    for report in reports:
        summary = summarize(report)
        word = verdict_word(report)
        cells = (
            report.id,
            report.bundle,
            report.device,
            report.variant_used,
            milliseconds(summary.p50_ms),
            milliseconds(summary.p90_ms),
            mebibytes(report.memory.peak_bytes),
        )
        table.add_row(*map(Text, map(printable, cells)), Text(word, style=VERDICT_STYLES[word]))
    return table


def device_rows(report: RunReport) -> list[tuple[str, str]]:
    """Return what the device and its conditions were."""
    facts, conditions = report.facts, report.facts.conditions
    return [
        ("device", report.device),
        ("model", known(facts.model)),
        ("processor", processor_text(report)),
        ("system", facts.os),
        ("software", f"Python {facts.python}, onnxruntime {facts.onnxruntime}"),
        ("providers", ", ".join(map(provider_word, facts.providers))),
        ("clock governor", known(conditions.governor)),
        ("temperature (°C)", known(conditions.temperature_c)),
        ("throttle events", known(conditions.throttle_events)),
        ("slowed down now", known(conditions.throttled_now)),
        ("since boot", known(conditions.throttled_since_boot)),
        ("boot id", known(facts.boot_id)),
    ]


def processor_text(report: RunReport) -> str:
    """Return what the processor is."""
    facts = report.facts
    emulated = ", emulated" if facts.emulated else ""
    return f"{known(facts.cpu)}, {facts.cpu_count} cores, {facts.arch}{emulated}"

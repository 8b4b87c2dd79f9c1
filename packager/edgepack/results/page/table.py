"""Benchmark reports as tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from edgepack.base import statistics
from edgepack.base.schema import NotMeasured
from edgepack.base.terminal import printable
from edgepack.bundle.manifest import Accuracy, OutputAccuracy
from edgepack.records.run import RunReport, SweepPoint, TunedSetting
from edgepack.results.page.outside import unshown_rows
from edgepack.results.store.documents import Report
from edgepack.results.store.rows import RunRow, row_of
from edgepack.results.summary import (
    NS_PER_MS,
    but_p50,
    energy_text,
    interval_text,
    known,
    memory_text,
    milliseconds,
    peak_memory,
    placement_text,
    provider_word,
    scenario_text,
    summarize,
    throughput_text,
    verdict_reasons,
    verdict_word,
)

if TYPE_CHECKING:
    from rich.table import Table

NUMBERS = ("p50 ms", "p90 ms", "MiB")
LIST_HEADINGS = ("run", "bundle", "device", "variant", *NUMBERS, "result")
VERDICT_STYLES = {"VALID": "bold green", "INVALID": "bold red", "INCONCLUSIVE": "bold yellow"}


def report_table(report: Report) -> Table:
    """Return one report as a table of two columns: what, and its value."""
    from rich.table import Table
    from rich.text import Text

    if not isinstance(report, RunReport):
        return _row_table(row_of(report))
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
    rows = [("unfinished", f"only a part was measured: {report.unfinished}")]
    rows = rows if report.unfinished else []
    rows += [
        ("variant", f"{report.variant_used} (asked for: {report.variant_requested})"),
        ("scenario", scenario_text(report.scenario)),
        ("latency min", milliseconds(summary.min_ms)),
        ("latency mean", but_p50(summary, summary.mean_ms, milliseconds)),
        ("latency p50", milliseconds(summary.p50_ms)),
        ("latency p90", but_p50(summary, summary.p90_ms, milliseconds)),
        ("latency p95", but_p50(summary, summary.p95_ms, milliseconds)),
    ]
    if not isinstance(summary.p99_ms, NotMeasured):
        rows.append(("latency p99", but_p50(summary, summary.p99_ms, milliseconds)))
    rows += [
        ("queries", f"{summary.samples} in {len(report.runs)} process runs"),
        ("95 % interval of run medians", interval_text(summary.median_interval_ms)),
        ("throughput", but_p50(summary, summary.throughput, throughput_text)),
        ("energy", but_p50(summary, summary.energy_mj, energy_text)),
        ("session create, cold", milliseconds(summary.cold_create_ms)),
        ("session create, warm", milliseconds(summary.session_create_ms)),
        ("first inference", milliseconds(summary.first_inference_ms)),
        (
            "peak memory",
            f"{peak_memory(report)}, {memory_text(report)}",
        ),
        ("nodes by provider", placement_text(report)),
        ("golden outputs", f"{golden_text(report)}, {golden_limit_text(report)}"),
    ]
    rows += [("sweep", sweep_text(point)) for point in report.sweep]
    rows += unshown_rows(report)
    rows += [(f"tuned {each.name}", tuned_text(each)) for each in report.tuned]
    rows += [(item.stage, f"{item.variant}: {item.first_line}") for item in report.unused]
    rows += [("inconclusive", summary.heavy_tail)] if summary.heavy_tail else []
    rows += [("note", note) for note in report.notes]
    return rows


def sweep_text(point: SweepPoint) -> str:
    """Return one point of a sweep: its shapes, and its latency or why it has none."""
    shapes = ", ".join(f"{name}={'x'.join(map(str, dims))}" for name, dims in point.shapes.items())
    if not point.latencies_ns:
        return f"{shapes}: {point.problem or 'no queries'}"
    p50_ms = statistics.median(point.latencies_ns) / NS_PER_MS
    unsteady = "" if point.steady else "; its warm-up was not steady"
    return (
        f"{shapes}: p50 {milliseconds(p50_ms)},"
        f" {milliseconds(p50_ms / point.batch)} a sample{unsteady}"
    )


def tuned_text(setting: TunedSetting) -> str:
    """Return how a setting of the device was changed."""
    restored = "" if setting.restored else "; it was NOT set back"
    return f"{setting.before}, {setting.during} while it was measured{restored}"


def golden_text(report: RunReport) -> str:
    """Return how near the outputs were to the golden ones, in the worst output and run."""
    return near_text(min(run.golden_min_sqnr_db for run in report.runs))


def near_text(sqnr_db: float) -> str:
    """Return an SQNR in words."""
    return "equal" if sqnr_db >= 200 else f"{sqnr_db:.1f} dB"


def r2_text(accuracy: Accuracy) -> str:
    """Return the R² of the worst output; empty where no output has one."""
    values = [found.value for found in accuracy.r2.values()]
    if not values:
        return ""
    least = min(values)
    # What is not 1 is not rounded up to it.
    return "1" if least == 1 else f"{min(least, 0.9999):.4f}" if least > -1 else "below -1"


def others_text(accuracy: Accuracy) -> str:
    """Return the values beside the metric, in words: others of its function or output."""
    told = accuracy.outputs.get(accuracy.output)
    beside = told.others if isinstance(told, OutputAccuracy) else {}
    return ", ".join(
        [
            *(
                f"{name} {each.value:.4f}"
                + ("" if each.fp32 is None else f" (fp32 {each.fp32:.4f})")
                for name, each in accuracy.others.items()
            ),
            *(f"{name} {value:.6g}" for name, value in beside.items()),
        ]
    )


def golden_limit_text(report: RunReport) -> str:
    """Return how near they had to be."""
    needed = [v.min_sqnr_db for v in report.variants if v.id == report.variant_used]
    return f"{needed[0]:.1f} dB needed" if needed else "the report lacks how near they had to be"


def rows_lines(rows: Sequence[RunRow]) -> Iterator[str]:
    """Yield what is stored as a heading and one line for each report, however long that is.

    Of 10,000 reports, a table of rich's takes many seconds.
    """
    from rich.cells import cell_len

    lines = [LIST_HEADINGS, *(tuple(map(printable, _list_cells(row))) for row in rows)]
    lengths = [[cell_len(cell) for cell in line] for line in lines]
    widths = [max(column) for column in zip(*lengths, strict=True)]
    for line, own in zip(lines, lengths, strict=True):
        fills = [" " * (width - length) for width, length in zip(widths, own, strict=True)]
        padded = [
            fill + cell if heading in NUMBERS else cell + fill
            for heading, cell, fill in zip(LIST_HEADINGS, line, fills, strict=True)
        ]
        yield "  ".join(padded).rstrip()


def _list_cells(row: RunRow) -> tuple[str, ...]:
    return (
        row.id,
        row.bundle,
        row.device,
        row.variant or "",
        "" if row.p50_ms is None else f"{row.p50_ms:#.4g}",
        "" if row.p90_ms is None else f"{row.p90_ms:#.4g}",
        "" if row.peak_bytes is None else f"{row.peak_bytes / 2**20:.1f}",
        result_text(row),
    )


def result_text(row: RunRow) -> str:
    """Return the verdict of a benchmark, or what an evaluation found."""
    if row.value is not None:
        wrong = " INVALID" if row.verdict == "INVALID" else ""
        return f"{row.metric} {row.value:.4f}{wrong}"
    return f"{row.verdict or row.kind}{' (unfinished)' if row.unfinished else ''}"


def _row_table(row: RunRow) -> Table:
    """Return what is known of one stored report as a table of two columns: what, and its value."""
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=False)
    table.add_column("what", style="bold", no_wrap=True)
    table.add_column("value", overflow="fold")
    for what, value in asdict(row).items():
        if value is not None:
            table.add_row(what, Text(printable(str(value))))
    return table


def device_rows(report: RunReport) -> list[tuple[str, str]]:
    """Return what the device and its conditions were."""
    facts, conditions = report.facts, report.facts.conditions
    level = conditions.battery_percent
    battery = [] if isinstance(level, NotMeasured) else [("battery (%)", known(level))]
    return [
        ("device", report.device),
        ("model", known(facts.model)),
        ("processor", processor_text(report)),
        ("system", facts.os),
        ("software", f"Python {facts.python}, onnxruntime {facts.onnxruntime}"),
        ("providers", ", ".join(map(provider_word, facts.providers))),
        ("clock governor", known(conditions.governor)),
        ("temperature (°C)", known(conditions.temperature_c)),
        ("power mode", known(conditions.power_mode)),
        *battery,
        ("load", known(conditions.load)),
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

"""Benchmark reports as tables for the terminal."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Literal, get_args

from edgepack.base import statistics
from edgepack.base.schema import NotMeasured
from edgepack.base.terminal import make_printable
from edgepack.bundle.manifest import Accuracy, OutputAccuracy
from edgepack.records.pipeline import PipelineReport, summarize_stages
from edgepack.records.run import OutputCheck, RunReport, SweepPoint, TunedSetting
from edgepack.results.limits import judge_limits
from edgepack.results.page.outside import list_unshown_rows
from edgepack.results.store.documents import Report
from edgepack.results.store.rows import RunRow, find_project, make_row
from edgepack.results.summary import (
    EQUAL_DB,
    NS_PER_MS,
    format_best_batch,
    format_count,
    format_energy,
    format_fact,
    format_interval,
    format_joined,
    format_memory,
    format_milliseconds,
    format_peak_memory,
    format_placement,
    format_predict,
    format_scenario,
    format_simulated,
    format_throughput,
    format_verdict,
    list_phases,
    list_verdict_reasons,
    mark_not_p50,
    shorten_provider,
    summarize,
)

if TYPE_CHECKING:
    from rich.table import Table

NUMBERS = ("p50 ms", "p90 ms", "MiB")
LIST_HEADINGS = ("run", "bundle", "device", "variant", *NUMBERS, "result")
GroupName = Literal["device", "target", "variant"]
GROUP_NAMES = get_args(GroupName)
VERDICT_STYLES = {"VALID": "bold green", "INVALID": "bold red", "INCONCLUSIVE": "bold yellow"}


def make_report_table(report: Report) -> Table:
    """Return one report as a table of two columns: what, and its value."""
    from rich.text import Text

    if not isinstance(report, RunReport):
        facts = [(n, str(v)) for n, v in asdict(make_row(report)).items() if v is not None]
        if isinstance(report, PipelineReport):
            facts += _list_stage_rows(report)
        return _make_table(facts)
    table = _make_table(list_report_rows(report))
    table.title = Text(make_printable(f"{report.bundle} on {report.device}"))
    word = format_verdict(report)
    reasons = "".join(f"\n- {make_printable(reason)}" for reason in list_verdict_reasons(report))
    table.add_row("verdict", Text(word, style=VERDICT_STYLES[word]) + Text(reasons))
    return table


def _list_stage_rows(report: PipelineReport) -> list[tuple[str, str]]:
    """Return each stage, why the report is not valid, and its notes."""
    *stages, _ = summarize_stages(report)
    times = [
        f"p50 {format_milliseconds(stage.p50_ms)}, p90 {format_milliseconds(stage.p90_ms)},"
        f" {stage.share:.0%} of the whole"
        for stage in stages
    ]
    return [
        *((f"stage {s.name}", text) for s, text in zip(stages, times, strict=True)),
        *(("reason", reason) for reason in list_verdict_reasons(report)),
        *(("note", note) for note in report.notes),
    ]


def format_run_line(report: RunReport) -> str:
    """Return a report as one line: what was measured, its median, its verdict, its best batch."""
    p50 = format_milliseconds(summarize(report).p50_ms)
    best = report.best_batch
    batch = "" if best is None else f"; best batch: {format_best_batch(best)}"
    return f"{report.variant_used}: p50 {p50}, {format_verdict(report)}{batch}"


def list_report_rows(report: RunReport) -> list[tuple[str, str]]:
    """Return the table's rows about a report, without its verdict."""
    summary = summarize(report)
    rows = []
    if report.unfinished:
        rows.append(("unfinished", f"only a part was measured: {report.unfinished}"))
    rows += [
        ("variant", f"{report.variant_used} (asked for: {report.variant_requested})"),
        ("scenario", format_scenario(report.scenario)),
        ("latency min", format_milliseconds(summary.min_ms)),
        ("latency mean", mark_not_p50(summary, summary.mean_ms, format_milliseconds)),
        ("latency p50", format_milliseconds(summary.p50_ms)),
        ("latency p90", mark_not_p50(summary, summary.p90_ms, format_milliseconds)),
        ("latency p95", mark_not_p50(summary, summary.p95_ms, format_milliseconds)),
    ]
    if not isinstance(summary.p99_ms, NotMeasured):
        rows.append(("latency p99", mark_not_p50(summary, summary.p99_ms, format_milliseconds)))
    rows += [("predict p50", format_predict(report))]
    rows += [("predict, phases", text)] if (text := _format_phases(report)) else []
    rows += [
        ("queries", f"{summary.samples} in {len(report.runs)} process runs"),
        ("95 % interval of run medians", format_interval(summary.median_interval_ms)),
        ("throughput", mark_not_p50(summary, summary.throughput, format_throughput)),
        ("energy", mark_not_p50(summary, summary.energy_mj, format_energy)),
        ("session create, cold", format_milliseconds(summary.cold_create_ms)),
        ("session create, warm", format_milliseconds(summary.session_create_ms)),
        ("first inference", format_milliseconds(summary.first_inference_ms)),
        ("start to first answer", format_milliseconds(summary.start_ms)),
        ("peak memory", f"{format_peak_memory(report)}, {format_memory(report)}"),
        ("nodes by provider", format_placement(report)),
        ("golden outputs", f"{format_golden(report)}, {format_golden_limit(report)}"),
    ]
    if joined := format_joined(report.runs):
        rows.append(("joined", joined))
    rows += [(f"limit {each.name}", str(each)) for each in judge_limits(report)]
    rows += [("sweep", format_sweep(point)) for point in report.sweep]
    if report.best_batch is not None:
        rows.append(("best batch", format_best_batch(report.best_batch)))
    used = (each for each in report.variants if each.id == report.variant_used)
    rows += [("in the simulator", text) for text in map(format_simulated, used) if text]
    rows += list_unshown_rows(report)
    rows += [(f"tuned {each.name}", format_tuned(each)) for each in report.tuned]
    rows += [(item.stage, f"{item.variant}: {item.first_line}") for item in report.unused]
    rows += [("inconclusive", summary.heavy_tail)] if summary.heavy_tail else []
    rows += [("note", note) for note in report.notes]
    return rows


def _format_phases(report: RunReport) -> str:
    parts = list_phases(report).items()
    return ", ".join(f"{name} {format_milliseconds(ms)}" for name, ms in parts)


def format_sweep(point: SweepPoint) -> str:
    """Return one point of a sweep: its shapes, and its latency or why it has none."""
    if not point.latencies_ns:
        wrong = "WRONG OUTPUTS: " if point.is_wrong else ""
        return f"{point}: {wrong}{point.problem or 'no queries'}"
    p50_ms = statistics.median(point.latencies_ns) / NS_PER_MS
    unsteady = "" if point.steady else "; its warm-up was not steady"
    return (
        f"{point}: p50 {format_milliseconds(p50_ms)},"
        f" {format_milliseconds(p50_ms / point.batch)} a sample{unsteady}; outputs"
        f" {format_check(point.checked)}"
    )


def format_check(check: OutputCheck | NotMeasured) -> str:
    """Return how outputs were checked, and how near they were."""
    if isinstance(check, NotMeasured):
        return f"not checked ({check.reason})"
    return f"{format_nearness(check.nearness_db)}, {check.needed_db:.1f} dB needed: {check.how}"


def format_tuned(setting: TunedSetting) -> str:
    """Return how a setting of the device was changed."""
    restored = "" if setting.restored else "; it was NOT set back"
    return f"{setting.before}, {setting.during} while it was measured{restored}"


def format_golden(report: RunReport) -> str:
    """Return how near the outputs were to the golden ones, in the worst output and run."""
    return format_nearness(min(run.golden_min_sqnr_db for run in report.runs))


def format_nearness(sqnr_db: float) -> str:
    """Return an SQNR in words."""
    return "equal" if sqnr_db >= EQUAL_DB else f"{sqnr_db:.1f} dB"


def format_r2(accuracy: Accuracy) -> str:
    """Return the R² of the worst output; empty where no output has one."""
    values = [found.value for found in accuracy.r2.values()]
    if not values:
        return ""
    least = min(values)
    # What is not 1 is not rounded up to it.
    return "1" if least == 1 else f"{min(least, 0.9999):.4f}" if least > -1 else "below -1"


def format_others(accuracy: Accuracy) -> str:
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


def format_golden_limit(report: RunReport) -> str:
    """Return how near the outputs had to be to the golden ones."""
    needed = [v.min_sqnr_db for v in report.variants if v.id == report.variant_used]
    return f"{needed[0]:.1f} dB needed" if needed else "the report lacks how near they had to be"


def format_rows(rows: Sequence[RunRow]) -> Iterator[str]:
    """Yield what is stored as a heading and one line for each report, however long that is.

    Of 10,000 reports, a table of rich's takes many seconds.
    """
    from rich.cells import cell_len

    lines = [LIST_HEADINGS, *(tuple(map(make_printable, _list_cells(row))) for row in rows)]
    lengths = [[cell_len(cell) for cell in line] for line in lines]
    widths = [max(column) for column in zip(*lengths, strict=True)]
    for line, own in zip(lines, lengths, strict=True):
        fills = [" " * (width - length) for width, length in zip(widths, own, strict=True)]
        padded = [
            fill + cell if heading in NUMBERS else cell + fill
            for heading, cell, fill in zip(LIST_HEADINGS, line, fills, strict=True)
        ]
        yield "  ".join(padded).rstrip()


def format_groups(rows: Sequence[RunRow], by: GroupName) -> Iterator[str]:
    """Yield a line for each device, target or variant: of how many, their median and the worst.

    The newest benchmark of each device, target and variant counts. A group is as bad as its worst
    one is slow for its kind: by the median of its target, device model and variant.
    """
    benches = [row for row in rows if row.kind == "bench"]
    newest = {(find_project(row), row.target, row.device, row.variant): row for row in benches}
    kinds: dict[tuple[str | None, ...], list[float]] = defaultdict(list)
    groups: dict[str, list[tuple[float, RunRow]]] = defaultdict(list)
    timed = [(row.p50_ms, row) for row in newest.values() if row.p50_ms]
    for p50_ms, row in timed:
        kinds[_find_kind(row)].append(p50_ms)
    for p50_ms, row in timed:
        ratio = p50_ms / statistics.median(kinds[_find_kind(row)])
        groups[getattr(row, by) or ""].append((ratio, row))
    worst = {name: max(group, key=lambda one: one[0]) for name, group in groups.items()}
    for name in sorted(groups, key=lambda name: (-worst[name][0], name)):
        ratio, row = worst[name]
        rest = [one for field in GROUP_NAMES if field != by and (one := getattr(row, field))]
        wrong = sum(one.verdict != "VALID" for _, one in groups[name])
        yield make_printable(
            f"{name}: {format_count(len(groups[name]), 'run')},"
            + (f" {wrong} not VALID," if wrong else "")
            + f" worst {row.p50_ms:#.4g} ms ({', '.join(rest)}),"
            f" {ratio - 1:+.1%} of the median of its kind"
        )


def _find_kind(row: RunRow) -> tuple[str | None, ...]:
    return find_project(row), row.target, row.device_model, row.variant


def _list_cells(row: RunRow) -> tuple[str, ...]:
    return (
        row.id,
        row.bundle,
        row.device,
        row.variant or "",
        "" if row.p50_ms is None else f"{row.p50_ms:#.4g}",
        "" if row.p90_ms is None else f"{row.p90_ms:#.4g}",
        "" if row.peak_bytes is None else f"{row.peak_bytes / 2**20:.1f}",
        format_result(row),
    )


def format_result(row: RunRow) -> str:
    """Return the verdict of a benchmark, or what an evaluation found."""
    if row.value is not None:
        wrong = " INVALID" if row.verdict == "INVALID" else ""
        return f"{row.metric} {row.value:.4f}{wrong}"
    return f"{row.verdict or row.kind}{' (unfinished)' if row.unfinished else ''}"


def _make_table(rows: Iterable[tuple[str, str]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=False)
    table.add_column("what", style="bold", no_wrap=True)
    table.add_column("value", overflow="fold")
    for what, value in rows:
        table.add_row(what, Text(make_printable(value)))
    return table


def list_device_rows(report: RunReport) -> list[tuple[str, str]]:
    """Return what the device and its conditions were."""
    facts, conditions = report.facts, report.facts.conditions
    level = conditions.battery_percent
    battery = [] if isinstance(level, NotMeasured) else [("battery (%)", format_fact(level))]
    return [
        ("device", report.device),
        ("model", format_fact(facts.model)),
        ("processor", format_processor(report)),
        ("system", facts.os),
        ("software", f"Python {facts.python}, onnxruntime {facts.onnxruntime}"),
        ("providers", ", ".join(map(shorten_provider, facts.providers))),
        ("clock governor", format_fact(conditions.governor)),
        ("temperature (°C)", format_fact(conditions.temperature_c)),
        ("power mode", format_fact(conditions.power_mode)),
        *battery,
        ("load", format_fact(conditions.load)),
        ("throttle events", format_fact(conditions.throttle_events)),
        ("slowed down now", format_fact(conditions.throttled_now)),
        ("since boot", format_fact(conditions.throttled_since_boot)),
        ("boot id", format_fact(facts.boot_id)),
    ]


def format_processor(report: RunReport) -> str:
    """Return what the processor is."""
    facts = report.facts
    emulated = ", emulated" if facts.emulated else ""
    return f"{format_fact(facts.cpu)}, {facts.cpu_count} cores, {facts.arch}{emulated}"

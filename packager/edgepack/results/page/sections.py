"""What the page shows of one run: texts that are ready to print, and figures as data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgepack.base import statistics
from edgepack.base.schema import NotMeasured
from edgepack.bundle.manifest import Accuracy, LayerError
from edgepack.quantization.search.outside import BrokenOutput
from edgepack.records.run import (
    SINGLE_STREAM,
    Canary,
    Conditions,
    PlacedNode,
    Placement,
    ProcessRun,
    RunReport,
    SweepPoint,
    VariantFacts,
)
from edgepack.records.verdict import WORKING, explain_heavy_tail_of, find_remedy
from edgepack.results.explaining.explaining import Explanation, explain
from edgepack.results.limits import JudgedLimit, judge_limits
from edgepack.results.page.outside import find_broken_outputs, format_ranges
from edgepack.results.page.plots import (
    STRETCHES,
    Figure,
    Minute,
    Rail,
    Range,
    draw_distribution,
    draw_sustained,
    draw_timeline,
    place_rails,
    split_minutes,
)
from edgepack.results.page.roofline import draw_roofline
from edgepack.results.page.table import (
    format_check,
    format_golden,
    format_golden_limit,
    format_nearness,
    format_others,
    format_r2,
    format_tuned,
    list_device_rows,
)
from edgepack.results.page.tried import TriedStage, group_stages
from edgepack.results.store.previous import SincePrevious, format_percent
from edgepack.results.summary import (
    NS_PER_MS,
    Summary,
    compute_run_share,
    format_best_batch,
    format_fact,
    format_interval,
    format_joined,
    format_mebibytes,
    format_memory,
    format_milliseconds,
    format_peak_memory,
    format_placement,
    format_predict,
    format_rate,
    format_scenario,
    format_simulated,
    format_verdict,
    list_cold_creations,
    list_phases,
    list_verdict_reasons,
    list_warm_creations,
    mark_not_p50,
    shorten_provider,
)

COSTLIEST_NODES = 12
WORST_LAYERS = 12
EQUAL_DB = 60
"""Layers as near to the float model as this have a full bar."""
STEADY_CLOCK = 0.97
"""The share of the highest clock below which a run has lost its clocks."""


@dataclass(frozen=True)
class Tile:
    """One number of a run with what has to be known to read it."""

    what: str
    value: str
    below: str


@dataclass(frozen=True)
class Share:
    """A provider's part of the nodes and of the time; parts are percent."""

    provider: str
    nodes: int
    of_nodes: float
    of_time: float


@dataclass(frozen=True)
class Bar:
    """One row of a table with a bar; the length is percent of the longest."""

    name: str
    op: str
    note: str
    value: str
    length: float


@dataclass(frozen=True)
class PredictPart:
    """One phase of ``predict``; the length is percent of all phases, 0 where it was not timed."""

    name: str
    look: str
    """The class of its colour, which both copies share."""
    value: str
    note: str
    length: float


@dataclass(frozen=True)
class ProcessRunRow:
    """One process run as the page shows it."""

    number: int
    queries: int
    p50: str
    p90: str
    session_create: str
    first_inference: str
    warm_up_iterations: int
    steady: str
    golden: str
    conditions: str


@dataclass(frozen=True)
class AccuracyRow:
    """One variant of the bundle as the page shows it."""

    variant: str
    size: str
    used: bool
    metric: str
    fp32: str = "n/a"
    value: str = "n/a"
    drop: str = "n/a"
    interval: str = "n/a"
    samples: str = "n/a"
    agreement: str = "n/a"
    r2: str = "n/a"
    """The R² of the worst output."""
    worst: str = "n/a"
    simulated: str = ""
    """What it did in its provider's simulator, or why it did not run; empty without one."""


@dataclass(frozen=True)
class SweepRow:
    """The model with inputs of one size as the page shows it."""

    batch: int
    shapes: str
    problem: str
    p50: str = "n/a"
    p90: str = "n/a"
    throughput: str = "n/a"
    queries: int = 0
    outputs: str = "n/a"
    """How they were checked, and how near they were."""


@dataclass(frozen=True)
class UnshownVariant:
    """What nothing has shown of one variant, and what is not known of that."""

    id: str
    broken: list[BrokenOutput]
    not_measured: str
    ranges: list[str]
    untold: list[str]


@dataclass(frozen=True)
class TriedVariant:
    """What a build tried to keep one variant's accuracy."""

    variant: str
    stages: list[TriedStage]


@dataclass(frozen=True)
class Section:
    """One run as the page shows it."""

    anchor: str
    report: RunReport
    summary: Summary
    limits: list[JudgedLimit]
    verdict: str
    reasons: list[str]
    remedy: str
    """What to do about them, with the one command for it; nothing if the verdict is VALID."""
    headline: str
    tiles: list[Tile]
    since: SincePrevious | None
    seen: str
    """What the timeline shows."""
    figures: dict[str, Figure]
    """By the name of their place: ``timeline``, ``distribution``, ``sustained``, ``roofline``."""
    unknown: list[str]
    """Kinds of sensors that were not read, with the reason."""
    overhead: str
    predict: str
    """What a call takes, in words."""
    predict_parts: list[PredictPart]
    """None where calls were not timed."""
    phases: list[Rail]
    phases_unknown: str
    minutes: list[Minute]
    sustained: str
    """How the last minute compares with the first."""
    runs: list[ProcessRunRow]
    shares: list[Share]
    nodes: list[Bar]
    placement: str
    explained: Explanation
    layers_of: str
    layers: list[Bar]
    layers_not_measured: str
    variants: list[AccuracyRow]
    unshown: list[UnshownVariant]
    """The variants with something to report."""
    tried: list[TriedVariant]
    """The variants for which something was tried."""
    sweep: list[SweepRow]
    best_batch: str
    """Empty where it was not asked for."""
    canary: str
    tuned: list[tuple[str, str]]
    device: list[tuple[str, str]]


def make_section(
    anchor: str,
    report: RunReport,
    summary: Summary,
    since: SincePrevious | None,
    detail: int = STRETCHES,
) -> Section:
    """Return what the page shows of a report.

    Args:
        anchor: The section's id in the page.
        report: The report.
        summary: Its figures.
        since: What changed since the last one.
        detail: About how many points its timeline has.
    """
    by_minute = split_minutes(report)
    figures = {
        "timeline": draw_timeline(report, detail),
        "distribution": draw_distribution(report),
    }
    if by_minute:
        figures["sustained"] = draw_sustained(by_minute)
    explained = explain(report, summary.p50_ms)
    peak = report.peak
    roofline = None if isinstance(peak, NotMeasured) else draw_roofline(explained.costs, peak)
    if roofline:
        figures["roofline"] = roofline
    cold = list_cold_creations(report)
    placement = None if isinstance(report.placement, NotMeasured) else report.placement
    variant, layers = _find_layers(report)
    return Section(
        anchor=anchor,
        report=report,
        summary=summary,
        limits=judge_limits(report),
        verdict=format_verdict(report),
        reasons=list_verdict_reasons(report),
        remedy=find_remedy(report, Path("BUNDLE")),
        headline=format_headline(summary),
        tiles=_make_tiles(report, summary),
        since=since,
        seen=_format_seen(report, summary),
        figures=figures,
        unknown=list_unknown_sensors(report),
        overhead=_format_overhead(report),
        predict=format_predict(report),
        predict_parts=_make_predict_parts(report),
        phases=place_rails(_make_phases(report, summary)),
        phases_unknown=format_fact(cold) if isinstance(cold, NotMeasured) else "",
        minutes=by_minute,
        sustained=_format_sustained(by_minute),
        runs=_make_run_rows(report, summary),
        shares=_make_shares(placement) if placement else [],
        nodes=_make_node_bars(placement.nodes) if placement else [],
        placement=format_placement(report),
        explained=explained,
        layers_of=variant,
        layers=[_make_layer_bar(layer) for layer in layers[:WORST_LAYERS]],
        layers_not_measured=next(
            (v.layers.reason for v in report.variants if isinstance(v.layers, NotMeasured)), ""
        ),
        variants=[
            _make_accuracy_row(variant, used=variant.id == report.variant_used)
            for variant in report.variants
        ],
        unshown=[
            each
            for each in map(_make_unshown, report.variants)
            if each.broken or each.not_measured or each.ranges or each.untold
        ],
        tried=[
            TriedVariant(variant.id, group_stages(variant.tried))
            for variant in report.variants
            if variant.tried
        ],
        sweep=[_make_sweep_row(point) for point in report.sweep],
        best_batch="" if report.best_batch is None else format_best_batch(report.best_batch),
        canary=_format_canary(report.canary),
        tuned=[(setting.name, format_tuned(setting)) for setting in report.tuned],
        device=[*list_device_rows(report), *_list_software_rows(report)],
    )


def format_headline(summary: Summary) -> str:
    """Return the median with its interval."""
    unknown = isinstance(summary.median_interval_ms, NotMeasured)
    reach = "" if unknown else f", {_format_reach(summary)}"
    return f"p50 {format_milliseconds(summary.p50_ms)}{reach}"


def _format_reach(summary: Summary) -> str:
    """Return the one interval that a page has of a run's p50, in words."""
    interval = summary.median_interval_ms
    if isinstance(interval, NotMeasured):
        return format_fact(interval)
    return f"95 %: {format_interval(interval)}"


def _make_tiles(report: RunReport, summary: Summary) -> list[Tile]:
    runs = f"{len(report.runs)} process runs"
    joined = format_joined(report.runs)
    doubt = "inconclusive; " if summary.heavy_tail else ""
    p50, p90 = format_milliseconds(summary.p50_ms), format_milliseconds(summary.p90_ms)
    tail = f"{doubt}p95 {format_milliseconds(summary.p95_ms)}"
    if not isinstance(summary.p99_ms, NotMeasured):
        tail += f", p99 {format_milliseconds(summary.p99_ms)}"
    return [
        Tile("latency p50", p50, f"{_format_reach(summary)}; {runs}"),
        Tile("latency p90", p90, f"{tail}, {summary.samples:,} queries"),
        _make_tile(
            "predict p50",
            summary.predict_ms,
            format_milliseconds,
            f"session.run {100 * compute_run_share(report):.0f} % of it",
        ),
        _make_tile(
            "throughput",
            summary.throughput,
            lambda value: f"{format_rate(value)}/s",
            f"{doubt}inferences, {format_scenario(report.scenario)}{joined and f'; {joined}'}",
        ),
        _make_tile(
            "session create, cold",
            summary.cold_create_ms,
            format_milliseconds,
            _format_cold(report),
        ),
        Tile(
            "session create, warm",
            format_milliseconds(summary.session_create_ms),
            f"median of {len(list_warm_creations(report))}",
        ),
        Tile(
            "first inference", format_milliseconds(summary.first_inference_ms), f"median of {runs}"
        ),
        _make_memory_tile(report),
        _make_tile(
            "energy",
            summary.energy_mj,
            lambda value: f"{value:.3g} mJ",
            f"{doubt}{_format_energy_source(report)}",
        ),
        Tile("golden outputs", format_golden(report), format_golden_limit(report)),
    ]


def _make_tile(
    what: str, value: float | NotMeasured, text: Callable[[float], str], below: str
) -> Tile:
    if isinstance(value, NotMeasured):
        return Tile(what, "unknown", value.reason)
    return Tile(what, text(value), below)


def _make_memory_tile(report: RunReport) -> Tile:
    if isinstance(report.memory, NotMeasured):
        return Tile("peak memory", "unknown", report.memory.reason)
    return Tile("peak memory", format_peak_memory(report), format_memory(report))


def _format_cold(report: RunReport) -> str:
    cold = list_cold_creations(report)
    return "" if isinstance(cold, NotMeasured) else f"median of {len(cold)}"


def _format_energy_source(report: RunReport) -> str:
    energy = report.runs[0].energy
    return (
        ""
        if isinstance(energy, NotMeasured)
        else f"per inference, idle power included; {energy.source}"
    )


def list_unknown_sensors(report: RunReport) -> list[str]:
    """Return which kinds of sensors were not read, each with its reason."""
    found: dict[str, None] = {}
    for run in report.runs:
        if isinstance(run.sampling, NotMeasured):
            found[f"all sensors over time: unknown ({run.sampling.reason})"] = None
        else:
            for kind, reason in run.sampling.unknown.items():
                found[f"{kind}: unknown ({reason})"] = None
    return list(found)


def _format_seen(report: RunReport, summary: Summary) -> str:
    parts = [f"Latency {format_milliseconds(summary.p50_ms)} at the median"]
    samples = [
        sample
        for run in report.runs
        if not isinstance(run.sampling, NotMeasured)
        for sample in run.sampling.samples
    ]
    warm = [max(sample.temperatures_c.values()) for sample in samples if sample.temperatures_c]
    parts.append(f"at {min(warm):.0f} to {max(warm):.0f} °C" if warm else "temperature unknown")
    clocks: dict[str, list[int]] = {}
    for sample in samples:
        for name, hertz in sample.clocks_hz.items():
            if name.partition(" ")[0] == "gpu" and sample.busy.get(name, 1.0) < WORKING:
                continue  # it rests between runs, at a clock of its own
            clocks.setdefault(name, []).append(hertz)
    lowest = min((min(all_) / max(all_) for all_ in clocks.values() if max(all_)), default=None)
    parts.append("clocks unknown" if lowest is None else _format_clocks(lowest))
    return ", ".join(parts)


def _format_clocks(lowest: float) -> str:
    return "steady clocks" if lowest >= STEADY_CLOCK else f"clocks down to {100 * lowest:.0f} %"


def _format_overhead(report: RunReport) -> str:
    sampled = [run.sampling for run in report.runs if not isinstance(run.sampling, NotMeasured)]
    elapsed = sum(each.elapsed_ns for each in sampled)
    if not elapsed:
        return ""
    part = sum(each.cpu_ns for each in sampled) / elapsed
    return (
        f"Sensors read every {sampled[0].interval_s:g} s; that took {100 * part:.2f} % of one core."
    )


def _make_phases(report: RunReport, summary: Summary) -> list[Range]:
    cold = list_cold_creations(report)
    found = []
    if not isinstance(cold, NotMeasured):
        found.append(_make_range("session create, cold", cold))
    found.append(_make_range("session create, warm", list_warm_creations(report)))
    if not isinstance(report.start, NotMeasured):
        start, kept = report.start.cold_ns, report.start.warm_ns
        if not isinstance(start, NotMeasured):
            found.append(_make_range("start to first answer, cold", start))
        found.append(_make_range("start to first answer, warm", kept))
    found.append(_make_range("first inference", [run.first_inference_ns for run in report.runs]))
    found.append(_make_p50_range(summary))
    found += _make_bound_ranges(report)
    doubt = " (inconclusive)" if summary.heavy_tail else ""
    return [*found, _make_range_ms(f"p90 of a run{doubt}", summary.run_p90s_ms)]


def _make_bound_ranges(report: RunReport) -> list[Range]:
    """Return how long copies took, and computing without them, where that was timed apart."""
    bound = report.bound
    if isinstance(bound, NotMeasured):
        return []
    found = [
        _make_range("copying inputs to the device", bound.write_ns),
        _make_range("computing there", bound.run_ns),
        _make_range("copying outputs back", bound.read_ns),
    ]
    if not isinstance(bound.graph_run_ns, NotMeasured):
        found.append(_make_range("computing there, recorded", bound.graph_run_ns))
    return found


def _make_predict_parts(report: RunReport) -> list[PredictPart]:
    if isinstance(report.phases, NotMeasured):
        return []
    whole_ms = sum(list_phases(report).values()) or 1.0
    found = []
    for name, times in report.phases.parts.items():
        look = "of-" + name.partition(" ")[0]
        if isinstance(times, NotMeasured):
            found.append(PredictPart(name, look, "not timed", times.reason, 0.0))
            continue
        part = _make_range(name, times)
        length = round(100 * part.middle / whole_ms, 1)
        found.append(PredictPart(name, look, part.value, part.note, length))
    return found


def _make_p50_range(summary: Summary) -> Range:
    p50 = format_milliseconds(summary.p50_ms)
    return Range("p50", p50, _format_reach(summary), *summary.p50_range_ms)


def _make_range(label: str, values_ns: Sequence[int]) -> Range:
    return _make_range_ms(label, [value / NS_PER_MS for value in values_ns])


def _make_range_ms(label: str, ms: Sequence[float]) -> Range:
    low, high = min(ms), max(ms)
    note = f"{format_milliseconds(low)} to {format_milliseconds(high)}, n = {len(ms)}"
    middle = statistics.median(ms)
    return Range(label, format_milliseconds(middle), note, low, middle, high)


def _format_sustained(found: Sequence[Minute]) -> str:
    if len(found) < 2:
        return ""
    first, last = found[0], found[-1]
    return (
        f"Minute 1 has a median of {format_milliseconds(first.median)}, minute {last.number} one of"
        f" {format_milliseconds(last.median)}:"
        f" {format_percent(last.median / max(first.median, 1e-9))}."
    )


def _make_run_rows(report: RunReport, summary: Summary) -> list[ProcessRunRow]:
    p90s = [mark_not_p50(summary, p90_ms, format_milliseconds) for p90_ms in summary.run_p90s_ms]
    found = zip(report.runs, summary.run_medians_ms, p90s, strict=True)
    return [_make_run_row(number, *each) for number, each in enumerate(found, 1)]


def _make_run_row(number: int, run: ProcessRun, p50_ms: float, p90: str) -> ProcessRunRow:
    return ProcessRunRow(
        number=number,
        queries=len(run.latencies_ns),
        p50=format_milliseconds(p50_ms),
        p90=p90,
        session_create=format_milliseconds(run.session_create_ns / NS_PER_MS),
        first_inference=format_milliseconds(run.first_inference_ns / NS_PER_MS),
        warm_up_iterations=run.warm_up_iterations,
        steady="yes" if run.steady else "no",
        golden=format_nearness(run.golden_min_sqnr_db),
        conditions=_format_warmth(run.before, run.after),
    )


def _format_warmth(before: Conditions, after: Conditions) -> str:
    first, last = before.temperature_c, after.temperature_c
    if isinstance(first, NotMeasured) or isinstance(last, NotMeasured):
        return "unknown"
    return f"{first:.1f} to {last:.1f} °C"


def _make_shares(placement: Placement) -> list[Share]:
    whole = sum(node.median_us for node in placement.nodes) or 1.0
    time = dict.fromkeys(placement.counts, 0.0)
    for node in placement.nodes:
        time[node.provider] += node.median_us
    return [
        Share(
            provider=shorten_provider(provider),
            nodes=count,
            of_nodes=round(100 * placement.compute_share(provider), 1),
            of_time=round(100 * time[provider] / whole, 1),
        )
        for provider, count in placement.counts.items()
    ]


def _make_node_bars(nodes: Sequence[PlacedNode]) -> list[Bar]:
    whole = sum(node.median_us for node in nodes) or 1.0
    costliest = sorted(nodes, key=lambda node: -node.median_us)[:COSTLIEST_NODES]
    longest = costliest[0].median_us if costliest and costliest[0].median_us > 0 else 1.0
    return [
        Bar(
            name=node.name,
            op=node.op,
            note=shorten_provider(node.provider),
            value=f"{node.median_us:,.1f} µs, {100 * node.median_us / whole:.1f} %",
            length=round(100 * max(node.median_us, 0) / longest, 1),
        )
        for node in costliest
    ]


def _find_layers(report: RunReport) -> tuple[str, list[LayerError]]:
    """Return the layers of the variant that ran, or of the first that has any."""
    rated = {
        variant.id: variant.layers
        for variant in report.variants
        if variant.layers and not isinstance(variant.layers, NotMeasured)
    }
    if not rated:
        return "", []
    shown = report.variant_used if report.variant_used in rated else next(iter(rated))
    return shown, rated[shown]


def _make_layer_bar(layer: LayerError) -> Bar:
    length = max(0.0, min(1.0, 1 - layer.sqnr_db / EQUAL_DB))
    return Bar(layer.node, layer.op, "", format_nearness(layer.sqnr_db), round(100 * length, 1))


def _make_unshown(variant: VariantFacts) -> UnshownVariant:
    lost = variant.outside.reason if isinstance(variant.outside, NotMeasured) else ""
    ranges = format_ranges(variant)
    return UnshownVariant(variant.id, find_broken_outputs(variant), lost, ranges, variant.untold)


def _format_metric(accuracy: Accuracy) -> str:
    return accuracy.metric + (f" of {accuracy.output}" if accuracy.output else "")


def _make_accuracy_row(variant: VariantFacts, *, used: bool) -> AccuracyRow:
    size, accuracy = format_mebibytes(variant.model_bytes), variant.accuracy
    simulated = format_simulated(variant)
    if isinstance(accuracy, NotMeasured):
        why = f"not measured: {accuracy.reason}"
        return AccuracyRow(variant.id, size, used, why, simulated=simulated)
    drop, interval, worst = accuracy.drop, accuracy.drop_interval, accuracy.worst
    return AccuracyRow(
        variant=variant.id,
        size=size,
        used=used,
        metric="; ".join(filter(None, (_format_metric(accuracy), format_others(accuracy)))),
        fp32=f"{accuracy.fp32:#.4g}"
        if isinstance(accuracy.fp32, float)
        else f"not measured: {accuracy.fp32.reason}",
        value=f"{accuracy.value:#.4g}",
        drop="n/a" if drop is None else f"{drop:+.4f}",
        interval="n/a" if interval is None else f"{interval[0]:+.4f} to {interval[1]:+.4f}",
        samples=str(accuracy.samples),
        agreement="n/a" if accuracy.agreement is None else f"{100 * accuracy.agreement:.2f} %",
        r2=format_r2(accuracy) or "n/a",
        worst=f"{worst.output}: cosine {worst.cosine:.4f}, {format_nearness(worst.sqnr_db)}"
        if worst
        else "n/a",
        simulated=simulated,
    )


def _make_sweep_row(point: SweepPoint) -> SweepRow:
    shapes = ", ".join(f"{name} {'x'.join(map(str, dims))}" for name, dims in point.shapes.items())
    if not point.latencies_ns:
        outputs = "WRONG" if point.is_wrong else "n/a"
        return SweepRow(point.batch, shapes, point.problem or "no queries", outputs=outputs)
    p50_ms = statistics.median(point.latencies_ns) / NS_PER_MS
    p90 = format_milliseconds(statistics.percentile(point.latencies_ns, 90) / NS_PER_MS)
    tail = explain_heavy_tail_of(SINGLE_STREAM, point.latencies_ns)
    return SweepRow(
        batch=point.batch,
        shapes=shapes,
        problem="" if point.steady else "its warm-up was not steady",
        p50=format_milliseconds(p50_ms),
        p90=f"{p90} (inconclusive)" if tail else p90,
        throughput=f"{format_rate(point.batch / max(p50_ms, 1e-9) * 1e3)} samples/s",
        queries=len(point.latencies_ns),
        outputs=format_check(point.checked),
    )


def _format_canary(canary: Canary | NotMeasured) -> str:
    if isinstance(canary, NotMeasured):
        return format_fact(canary)
    found = _make_range("", canary.medians_ns)
    return f"{found.value} ({found.note})"


def _list_software_rows(report: RunReport) -> list[tuple[str, str]]:
    return [
        ("numpy", report.facts.numpy),
        ("edgepack", report.edgepack or "unknown (the report does not say)"),
        ("command", " ".join(report.argv) or "unknown (the report does not say)"),
        ("bundle's manifest", f"sha256 {report.manifest_sha256}"),
    ]

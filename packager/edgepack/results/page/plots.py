"""The figures of the HTML report, as data that its script draws. Nothing here does I/O.

A figure has one horizontal axis and one or more panels below each other, which share it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from edgepack.base import statistics
from edgepack.base.schema import NotMeasured
from edgepack.base.terminal import make_printable
from edgepack.records.run import ProcessRun, RunReport, Sample
from edgepack.records.sustained import MINUTE_S, measure_sustained
from edgepack.results.summary import NS_PER_MS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

STRETCHES = 600
LEAST_STRETCHES = 100
ALL_STRETCHES = 20_000
"""In the timelines of one report and of a page, so that it stays small whatever was measured."""
BINS = 60
LOG_FROM = 3
"""The axis is logarithmic if the slowest inference takes this many medians or more: on a linear
one it would hide the others."""
SENSORS = 4
"""The most sensors of one kind in a timeline: those with the highest reading."""
LONGEST_TEXT = 80
"""The most characters of a figure's text; longer text is cut, and complete in the tables."""
LEAST_IN_STRETCH = 5
"""Queries; the median of fewer jumps as they do."""
DEVIATING, LEAST_DEVIATING = 5, 20
"""How many fewer stretches there are for the deviation, and the least queries in one."""
GAP = 0.03
"""The gap between process runs, as part of the whole."""
NEAR_TRIP_C = 20
"""A trip point is drawn where the device came as near to it as this."""

Number = float | None
"""None breaks a line."""


@dataclass(frozen=True)
class PlotSeries:
    """What is drawn in one colour: a line, dots, bars or marks.

    ``bars`` stand on 0 and are as wide as the distance of the first two. ``marks`` have a radius
    and a text, and may have an interval in each direction and the id of what they lead to.
    """

    name: str
    kind: Literal["line", "dots", "bars", "marks"]
    x: list[Number]
    y: list[Number]
    colour: str
    """A class of the page's style."""
    low: list[Number] = field(default_factory=list)
    high: list[Number] = field(default_factory=list)
    x_low: list[Number] = field(default_factory=list)
    x_high: list[Number] = field(default_factory=list)
    radius: list[float] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    leads_to: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Level:
    """A horizontal line with its meaning, or a vertical one."""

    at: float
    text: str


@dataclass(frozen=True)
class Band:
    """A part of the horizontal axis that is marked."""

    start: float
    end: float
    text: str


@dataclass(frozen=True)
class Panel:
    """One vertical axis and what is drawn on it."""

    title: str
    """What is measured, with its unit."""
    series: list[PlotSeries]
    height: int
    log: bool = False
    from_zero: bool = False
    levels: list[Level] = field(default_factory=list)


@dataclass(frozen=True)
class Figure:
    """A figure, with a sentence about it for readers who cannot see it."""

    label: str
    x: str
    """What the horizontal axis is, with its unit."""
    panels: list[Panel]
    log: bool = False
    marks: list[Level] = field(default_factory=list)
    """Vertical lines."""
    bands: list[Band] = field(default_factory=list)


def make_json(value: object) -> object:
    """Return a figure as what JSON has; what is empty or False is left out."""
    if is_dataclass(value):
        named = ((each.name, getattr(value, each.name)) for each in fields(value))
        return {
            name: make_json(each)
            for name, each in named
            if each is not False and each not in ([], "")
        }
    if isinstance(value, list):
        numbers = value[0] is None or isinstance(value[0], int | float)
        return value if numbers else [make_json(each) for each in value]
    return _shorten(make_printable(value)) if isinstance(value, str) else value


def _shorten(text: str) -> str:
    """Return a text that fits into a figure; names of sensors and devices can be of any length."""
    return text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT - 1]}…"


def round_short(value: float) -> float:
    """Return a number with five significant digits."""
    return float(f"{value:.5g}")


def _round_all_short(values: NDArray[np.float64]) -> list[float]:
    """Return positive numbers with five significant digits each, or 0."""
    import numpy as np

    digits = 4 - np.floor(np.log10(np.maximum(values, 1e-12)))
    up, down = 10.0 ** np.maximum(digits, 0), 10.0 ** np.maximum(-digits, 0)
    shortened: list[float] = (np.rint(values * up / down) * down / up).tolist()
    return shortened


# -- over time ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class PlotSpan:
    """The place of a process run's timed part on the axis, in seconds."""

    start: float
    seconds: float
    from_ns: int | None
    """By the device's clock; None where it is not known."""

    def place(self, at_ns: int) -> float | None:
        """Return a moment's place on the axis; None if it is outside of the timed part."""
        if self.from_ns is None:
            return None
        after = (at_ns - self.from_ns) / 1e9
        return self.start + after if 0 <= after <= self.seconds else None


def make_spans(report: RunReport) -> list[PlotSpan]:
    """Return the process runs one after another; the time between them is cut out."""
    lengths = [_compute_seconds(run) for run in report.runs]
    gap = GAP * sum(lengths)
    found, start = [], 0.0
    for run, seconds in zip(report.runs, lengths, strict=True):
        known = None if isinstance(run.timed_from_ns, NotMeasured) else run.timed_from_ns
        found.append(PlotSpan(start, seconds, known))
        start += seconds + gap
    return found


def _compute_seconds(run: ProcessRun) -> float:
    took = run.timed_ns
    whole = sum(run.latencies_ns) if isinstance(took, NotMeasured) or took <= 0 else took
    return max(whole, 1) / 1e9


def draw_timeline(report: RunReport, limit: int = STRETCHES) -> Figure:
    """Draw the latencies of all process runs over the sensors' readings in the same time.

    Args:
        report: The report.
        limit: About how many points a line of latencies has.
    """
    where = make_spans(report)
    panels = [
        _draw_latencies(report, where, limit),
        _draw_deviation(report, where, limit // DEVIATING),
        _draw_sensors(report, where, "temperature (°C)", "s1", lambda each: each.temperatures_c),
        _draw_sensors(report, where, "clock (GHz)", "s2", _read_clocks),
        _draw_sensors(report, where, "at work (cores; part of a GPU)", "s0", lambda s: s.busy),
        _draw_sensors(report, where, "load (processes)", "s1", _read_load),
        _draw_sensors(report, where, "memory of GPUs in use (GB)", "s2", _read_gpu_memory),
        _draw_sensors(report, where, "power (W)", "s3", lambda each: each.power_w),
    ]
    return Figure(
        label=f"Latencies of {len(where)} process runs over what the sensors read",
        x="time measured (s)",
        panels=[panel for panel in panels if panel],
        marks=[Level(round_short(span.start), f"run {n}") for n, span in enumerate(where, 1)],
        bands=_find_throttled(report, where),
    )


def _draw_latencies(report: RunReport, where: Sequence[PlotSpan], limit: int) -> Panel:
    medians = PlotSeries("median of a stretch", "line", [], [], "s0")
    slowest = PlotSeries("its slowest", "dots", [], [], "s0")
    each = max(1, limit // len(report.runs))
    highest, middles = 0.0, []
    for run, span in zip(report.runs, where, strict=True):
        parts = split_stretches(run.latencies_ns, each, evenly=_has_overlap(report))
        x = [round_short(span.start + part.position * span.seconds) for part in parts]
        tops, halves = [part.slowest for part in parts], [part.median for part in parts]
        medians.x.extend([*x, None])
        medians.y.extend([*halves, None])
        slowest.x.extend(x)
        slowest.y.extend(tops)
        highest = max(highest, *tops)
        middles.append(statistics.median(halves))
    log = highest > LOG_FROM * statistics.median(middles) > 0
    bound = report.scenario.latency_bound_ms
    levels = [Level(bound, "latency bound")] if bound and bound < LOG_FROM * highest else []
    return Panel("latency (ms)", [slowest, medians], 230, log=log, levels=levels)


def _draw_deviation(report: RunReport, where: Sequence[PlotSpan], limit: int) -> Panel | None:
    """Draw how far the queries of a stretch are from its median, in the median of them."""
    import numpy as np

    line = PlotSeries("median deviation in a stretch", "line", [], [], "s0")
    for run, span in zip(report.runs, where, strict=True):
        values = np.array(run.latencies_ns, np.float64)
        size = max(LEAST_DEVIATING, -(-len(values) // max(1, limit // len(report.runs))))
        blocks = values[: len(values) // size * size].reshape(-1, size)
        middles = np.median(blocks, axis=1, keepdims=True)
        deviations = np.median(np.abs(blocks - middles), axis=1) / np.maximum(middles[:, 0], 1.0)
        begun = _compute_beginnings(values, evenly=_has_overlap(report))[
            : len(blocks) * size : size
        ]
        line.x.extend([*(round_short(span.start + at * span.seconds) for at in begun), None])
        line.y.extend([*_round_all_short(100 * deviations), None])
    return Panel("deviation (%)", [line], 80) if any(v is not None for v in line.y) else None


class QueryStretch(NamedTuple):
    """Some queries of a run that follow each other, in milliseconds."""

    position: float
    """When the first query begins, as part of the run's time, from 0 to 1."""
    median: float
    slowest: float


def split_stretches(
    latencies_ns: Sequence[int], limit: int = STRETCHES, *, evenly: bool = False
) -> list[QueryStretch]:
    """Return a run cut into at most ``limit`` stretches of as many queries each.

    Args:
        latencies_ns: Of each query, in order.
        limit: How many stretches there may be.
        evenly: Queries overlap, so that their latencies do not add up to the time.
    """
    import numpy as np

    values = np.array(latencies_ns, np.float64)
    size = max(LEAST_IN_STRETCH, -(-len(values) // limit)) if len(values) > limit else 1
    starts = list(range(0, len(values), size))
    if len(starts) > 1 and 2 * (len(values) - starts[-1]) < size:
        starts.pop()  # A short rest would look like a jump of the median.
    last = starts[-1]
    blocks = values[:last].reshape(-1, size)
    medians = np.append(np.median(blocks, axis=1), np.median(values[last:]))
    slowest = np.append(blocks.max(axis=1), values[last:].max())
    begun = _compute_beginnings(values, evenly=evenly)[starts].tolist()
    rows = zip(
        begun,
        _round_all_short(medians / NS_PER_MS),
        _round_all_short(slowest / NS_PER_MS),
        strict=True,
    )
    return [QueryStretch(*row) for row in rows]


def _has_overlap(report: RunReport) -> bool:
    return report.scenario.name == "server" or report.scenario.threads > 1


def _compute_beginnings(values: NDArray[np.float64], *, evenly: bool) -> NDArray[np.float64]:
    """Return when each query begins, as part of the time of all."""
    import numpy as np

    if evenly or values.sum() <= 0:
        return np.arange(len(values)) / len(values)
    ended = np.cumsum(values)
    begun: NDArray[np.float64] = (ended - values) / ended[-1]
    return begun


def _read_clocks(sample: Sample) -> Mapping[str, float]:
    return {name: hertz / 1e9 for name, hertz in sample.clocks_hz.items()}


def _read_load(sample: Sample) -> Mapping[str, float]:
    return {} if sample.load is None else {"average of a minute": sample.load}


def _read_gpu_memory(sample: Sample) -> Mapping[str, float]:
    return {name: used / 1e9 for name, used in sample.used_bytes.items()}


def _draw_sensors(
    report: RunReport,
    where: Sequence[PlotSpan],
    title: str,
    colour: str,
    read: Callable[[Sample], Mapping[str, float]],
) -> Panel | None:
    """Return the panel of one kind of sensor; None where no timed part has a reading of it."""
    x: dict[str, list[Number]] = {}
    y: dict[str, list[Number]] = {}
    for run, span in zip(report.runs, where, strict=True):
        for sample in _list_samples(run):
            at = span.place(sample.at_ns)
            if at is None:
                continue
            for name, value in read(sample).items():
                x.setdefault(name, []).append(round_short(at))
                y.setdefault(name, []).append(round_short(value))
        for line in (*x.values(), *y.values()):
            line.append(None)
    peaks = {name: max(v for v in values if v is not None) for name, values in y.items()}
    shown = sorted(peaks, key=lambda name: -peaks[name])[:SENSORS]
    if not shown:
        return None
    levels = _find_trips(report, max(peaks.values())) if title.startswith("temperature") else []
    series = [
        PlotSeries(name, "line", x[name], y[name], f"{colour} d{number}")
        for number, name in enumerate(shown)
    ]
    from_zero = not title.startswith(("temperature", "clock"))
    return Panel(title, series, 110, from_zero=from_zero, levels=levels)


def _list_samples(run: ProcessRun) -> list[Sample]:
    return [] if isinstance(run.sampling, NotMeasured) else run.sampling.samples


def _find_trips(report: RunReport, peak: float) -> list[Level]:
    """Return the lowest trip point that the device came near to."""
    known = [run.sampling for run in report.runs if not isinstance(run.sampling, NotMeasured)]
    trips = [value for sampling in known for value in sampling.trip_points_c.values()]
    near = [value for value in trips if value <= peak + NEAR_TRIP_C]
    return [Level(min(near), "slows down here")] if near else []


def _find_throttled(report: RunReport, where: Sequence[PlotSpan]) -> list[Band]:
    bands: list[Band] = []
    for run, span in zip(report.runs, where, strict=True):
        placed = [(span.place(each.at_ns), each.throttled) for each in _list_samples(run)]
        inside = [(at, causes) for at, causes in placed if at is not None]
        ends = [*(at for at, _ in inside[1:]), span.start + span.seconds]
        for (at, causes), end in zip(inside, ends, strict=False):
            text = ", ".join(causes)
            if text and bands and bands[-1].end == round_short(at) and bands[-1].text == text:
                bands[-1] = Band(bands[-1].start, round_short(end), text)
            elif text:
                bands.append(Band(round_short(at), round_short(end), text))
    return bands


@dataclass(frozen=True)
class Minute:
    """One minute of a timed part, in milliseconds."""

    number: int
    median: float
    p90: float
    queries: int


def split_minutes(report: RunReport) -> list[Minute]:
    """Return the longest timed part by the minute; nothing where it lacks two full ones."""
    found = measure_sustained(max(report.runs, key=_compute_seconds))
    return [
        Minute(
            number=round(minute.from_s / MINUTE_S) + 1,
            median=round_short(minute.p50_ns / NS_PER_MS),
            p90=round_short(minute.p90_ns / NS_PER_MS),
            queries=minute.queries,
        )
        for minute in (found.minutes if found else ())
    ]


def draw_sustained(found: Sequence[Minute]) -> Figure:
    """Draw median and p90 of each minute."""
    x: list[Number] = [minute.number for minute in found]
    series = [
        PlotSeries("p90 of the minute", "line", x, [minute.p90 for minute in found], "s1"),
        PlotSeries("median of the minute", "line", x, [minute.median for minute in found], "s0"),
    ]
    return Figure(
        label=f"Latency by the minute, over {len(found)} minutes",
        x="minute",
        panels=[Panel("latency (ms)", series, 200)],
    )


# -- other -------------------------------------------------------------------------------------


def draw_distribution(report: RunReport) -> Figure:
    """Draw a histogram over all runs up to the 99th percentile; its last bar has the rest.

    Its axis is logarithmic where a linear one would show one bar beside an empty figure.
    """
    import numpy as np

    latencies_ms = np.sort(np.array(report.latencies_ns, np.float64)) / NS_PER_MS
    p50, p90, p95, end = (
        statistics.sorted_percentile(latencies_ms, each)  # type: ignore[arg-type]
        for each in (50, 90, 95, 99)
    )
    log = end > LOG_FROM * p50 and latencies_ms[0] > 0
    shown = np.minimum(latencies_ms, end)
    counts, edges = np.histogram(np.log(shown) if log else shown, bins=BINS)
    centres = (edges[:-1] + edges[1:]) / 2
    x = _round_all_short(np.exp(centres) if log else centres)
    bars = PlotSeries("queries", "bars", [*x], counts.tolist(), "s0")
    levels = zip((50, 90, 95), (p50, p90, p95), strict=True)
    return Figure(
        label=f"Distribution of {len(latencies_ms):,} latencies",
        x="latency (ms)",
        panels=[Panel("queries", [bars], 190, from_zero=True)],
        log=bool(log),
        marks=[Level(round_short(value), f"p{percent}") for percent, value in levels],
    )


@dataclass(frozen=True)
class PlotMark:
    """One device and variant in the overview's figure."""

    text: str
    leads_to: str
    verdict: str
    """``valid``, ``invalid`` or ``inconclusive``."""
    latency_ms: tuple[float, float, float]
    """Low, estimate, high."""
    value: tuple[float, float, float]
    """Low, estimate, high of the accuracy, or of the size."""
    model_bytes: int


def draw_overview(marks: Sequence[PlotMark], value: str) -> Figure:
    """Draw latency against accuracy; a mark's area is the model's size, its look is the verdict.

    Args:
        marks: One for each device and variant.
        value: What the vertical axis is.
    """
    largest = max(mark.model_bytes for mark in marks)
    latencies = [mark.latency_ms[1] for mark in marks]
    series = []
    for verdict in ("valid", "inconclusive", "invalid"):
        chosen = [mark for mark in marks if mark.verdict == verdict]
        series.append(
            PlotSeries(
                name=verdict.upper(),
                kind="marks",
                x=[round_short(mark.latency_ms[1]) for mark in chosen],
                y=[round_short(mark.value[1]) for mark in chosen],
                colour=verdict,
                low=[round_short(mark.value[0]) for mark in chosen],
                high=[round_short(mark.value[2]) for mark in chosen],
                x_low=[round_short(mark.latency_ms[0]) for mark in chosen],
                x_high=[round_short(mark.latency_ms[2]) for mark in chosen],
                radius=[
                    round(4 + 10 * math.sqrt(mark.model_bytes / max(largest, 1)), 1)
                    for mark in chosen
                ],
                text=[mark.text for mark in chosen],
                leads_to=[mark.leads_to for mark in chosen],
            )
        )
    return Figure(
        label=f"Latency against {value} of {len(marks)} devices and variants",
        x="latency p50 (ms), with its 95 % interval",
        panels=[Panel(value, [each for each in series if each.x], 340)],
        log=max(latencies) > LOG_FROM * min(latencies) > 0,
    )


# -- rows of a table with a rail -----------------------------------------------------------------


@dataclass(frozen=True)
class Rail:
    """One row of a table with a dot and a range on a rail; places are percent of its width."""

    label: str
    value: str
    note: str
    dot: float
    start: float
    end: float


@dataclass(frozen=True)
class Range:
    """Something measured several times, or its interval."""

    label: str
    value: str
    note: str
    low: float
    middle: float
    high: float


def place_rails(ranges: Sequence[Range]) -> list[Rail]:
    """Place positive ranges on one logarithmic rail."""
    ends = [value for each in ranges for value in (each.low, each.middle, each.high)]
    logs = [math.log(max(value, 1e-9)) for value in ends]
    least, most = min(logs), max(logs)
    margin = 0.04 * (most - least) or 1.0

    def place(value: float) -> float:
        logarithm = math.log(max(value, 1e-9))
        return round(100 * (logarithm - least + margin) / (most - least + 2 * margin), 2)

    return [
        Rail(r.label, r.value, r.note, place(r.middle), place(r.low), place(r.high)) for r in ranges
    ]

"""What the page shows of many devices: who is slow among its peers, and a small plot of each."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from edgepack.base.statistics import median
from edgepack.results.page.changes_text import find_noun, format_change, format_slow_unit
from edgepack.results.store.changes import HistorySeries, find_all_series
from edgepack.results.store.points import HistoryPoint, make_point
from edgepack.results.store.rows import RunRow
from edgepack.results.store.units import UnitHistory

WIDTH, HEIGHT = 150, 46
"""Of a small plot, in its own units."""
NEWEST = 40
"""Runs of one line."""
LOOKS = 4
"""Colours of lines; further variants share them, with other dashes."""
LEAST_REACH = math.log(1.05)
"""How far the common scale reaches at least, so that noise does not look like a change."""
MOST_REACH = math.log(3)
"""A run further out is drawn at the edge: one gone wrong would flatten all plots."""
LEAST_DEVICES = 2
SHOWN = 24
"""Small plots that are not folded away."""

Subject = tuple[str, str, str]
"""A target, a device and a variant."""


@dataclass(frozen=True)
class SmallLine:
    """The history of one variant on one device, for ``points`` of an SVG polyline."""

    variant: str
    look: str
    points: str


@dataclass(frozen=True)
class SmallPlot:
    """The histories of one device, on the scale that all small plots share."""

    device: str
    text: str
    """What its lines show, for readers who cannot see them."""
    lines: list[SmallLine]


@dataclass(frozen=True)
class Farm:
    """What stored runs say of one project's devices."""

    units: Mapping[Subject, UnitHistory]
    """By their newest series."""
    found: list[str]
    """Slow devices, the slowest first, and changes of models, a sentence each."""
    plots: Mapping[str, SmallPlot]
    """By device; none for fewer than two devices."""
    looks: Mapping[str, str]
    """How each variant's lines look."""
    scale: str
    """What the height of a small plot is."""
    middle: float
    """How far down in it the line of all devices' median is."""


NO_FARM = Farm({}, [], {}, {}, "", HEIGHT / 2)


def make_farms(rows: Sequence[RunRow]) -> dict[str, Farm]:
    """Return what stored benchmarks say of the devices of each project."""
    projects: dict[str, list[HistoryPoint]] = defaultdict(list)
    for row in rows:
        if point := make_point(row):
            projects[point.project].append(point)
    return {project: _make_farm(points) for project, points in projects.items()}


def _make_farm(points: Sequence[HistoryPoint]) -> Farm:
    series = find_all_series(points, lambda *_: ())
    units: dict[Subject, UnitHistory] = {}
    for one in series:
        for unit in one.units:
            units.setdefault((one.target, unit.device, one.variant), unit)
    usable = [one for one in points if one.usable]
    if len({one.device for one in usable}) < LEAST_DEVICES:
        return Farm(units, list(_find_sentences(series)), {}, {}, "", HEIGHT / 2)
    variants = sorted({one.variant for one in usable})
    looks = {
        variant: f"s{number % LOOKS} d{number // LOOKS}" for number, variant in enumerate(variants)
    }
    plots, reach = _make_plots(usable, looks)
    low, high = (f"{math.exp(end) - 1:+.0%}" for end in reach)
    scale = f"from {low} to {high} of the median of devices of a model, which is the thin line"
    return Farm(units, list(_find_sentences(series)), plots, looks, scale, _place(0.0, reach))


def _find_sentences(series: Sequence[HistorySeries]) -> Iterator[str]:
    slow = [(one, unit) for one in series for unit in one.units if unit.slow]
    for one, unit in sorted(slow, key=lambda pair: -pair[1].estimate):
        yield f"{one.variant} on {one.target}: {format_slow_unit(unit)}"
    for one in series:
        for change in one.changes:
            yield f"{one.variant} on {one.target}: {format_change(change, find_noun(one))}"


def _make_plots(
    points: Sequence[HistoryPoint], looks: Mapping[str, str]
) -> tuple[dict[str, SmallPlot], tuple[float, float]]:
    """Return a small plot of each device, and how far down and up they all reach."""
    kinds: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    lines: dict[tuple[str, str, str], list[HistoryPoint]] = defaultdict(list)
    for one in sorted(points, key=lambda one: one.created):
        kinds[one.target, one.device_model, one.variant].append(math.log(one.p50_ms))
        lines[one.device, one.target, one.variant].append(one)
    middles = {kind: median(logs) for kind, logs in kinds.items()}
    drawn = {
        line: [
            (
                one.moment_s,
                math.log(one.p50_ms) - middles[one.target, one.device_model, one.variant],
            )
            for one in runs[-NEWEST:]
        ]
        for line, runs in lines.items()
    }
    times = [time for line in drawn.values() for time, _ in line]
    logs = [log for line in drawn.values() for _, log in line]
    reach = (
        max(-MOST_REACH, min(-LEAST_REACH, *logs)),
        min(MOST_REACH, max(LEAST_REACH, *logs)),
    )
    first, length = min(times), max(max(times) - min(times), 1.0)
    found: dict[str, SmallPlot] = {}
    for (device, target, variant), line in drawn.items():
        placed = [
            f"{2 + (WIDTH - 4) * (time - first) / length:.0f},{_place(log, reach)}"
            for time, log in line
        ]
        plot = found.setdefault(device, SmallPlot(device, "", []))
        text = (
            f"{variant} on {target}: {math.exp(line[-1][1]) - 1:+.1%} in the newest of {len(line)}"
        )
        found[device] = SmallPlot(
            device,
            f"{plot.text}; {text}" if plot.text else text,
            [*plot.lines, SmallLine(variant, looks[variant], " ".join([*placed, placed[-1]]))],
        )
    return found, reach


def _place(log: float, reach: tuple[float, float]) -> float:
    """Return how far down a value is drawn."""
    low, high = reach
    part = (high - min(max(log, low), high)) / (high - low)
    return round(2 + (HEIGHT - 4) * part, 1)

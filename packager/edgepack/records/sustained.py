"""How a long process run went on: its minutes, and when it began to slow down. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from edgepack.base import statistics
from edgepack.base.schema import NotMeasured
from edgepack.records.run import ProcessRun

MINUTE_S = 60.0
STEP_S = 10.0
"""The windows in which the beginning of a slow-down is looked for."""
STEPS = 3
SLOWER = 0.05
"""A device is slowed down if it takes longer than in its first minute by this part."""


@dataclass(frozen=True)
class Window:
    """The queries that ended in one span of a run."""

    from_s: float
    """When the span begins, in seconds since the run's first query began."""
    queries: int
    p50_ns: float
    p90_ns: float


@dataclass(frozen=True)
class Sustained:
    """A run of several minutes."""

    minutes: tuple[Window, ...]
    """Full ones, in order; a minute without the end of a query is not there."""
    slowdown: float
    """The last minute's median over the first one's, minus 1: 0.1 is 10 % slower."""
    onset_s: float | None
    """When three windows of 10 s in a row began that were each 5 % slower, in the median, than the
    first minute; None if none were."""


def measure_sustained(run: ProcessRun) -> Sustained | None:
    """Return how a run went on; None unless it has two full minutes."""
    ends_s = compute_query_ends(run)
    minutes = tuple(split_windows(run.latencies_ns, ends_s, MINUTE_S))
    if len(minutes) < 2:
        return None
    first = minutes[0].p50_ns
    return Sustained(
        minutes=minutes,
        slowdown=minutes[-1].p50_ns / max(1.0, first) - 1,
        onset_s=_find_onset_s(list(split_windows(run.latencies_ns, ends_s, STEP_S)), first),
    )


def list_sustained_notes(runs: Sequence[ProcessRun]) -> list[str]:
    """Return a sentence for each run of several minutes: how it went on."""
    notes = []
    for number, run in enumerate(runs, 1):
        found = measure_sustained(run)
        if found is None:
            continue
        first, last = found.minutes[0], found.minutes[-1]
        onset = "it did not slow down for long"
        if found.onset_s is not None:
            onset = f"it was {SLOWER:.0%} slower from {found.onset_s:.0f} s on"
        notes.append(
            f"run {number}: median {first.p50_ns / 1e6:#.4g} ms in minute 1,"
            f" {last.p50_ns / 1e6:#.4g} ms in minute {round(last.from_s / MINUTE_S) + 1}"
            f" ({found.slowdown:+.1%}); {onset}"
        )
    return notes


def compute_query_ends(run: ProcessRun) -> list[float]:
    """Return when each query ended, in seconds since the first began.

    What passed between two queries is not recorded; where the whole time is known, it is spread
    over them evenly. Queries that overlap, as those of ``server``, have latencies that sum up to
    more than the time. Of them nothing but their order is known: they are spread evenly themselves.
    """
    taken_ns, count = sum(run.latencies_ns), len(run.latencies_ns)
    whole_ns = taken_ns if isinstance(run.timed_ns, NotMeasured) else run.timed_ns
    if taken_ns > whole_ns:
        return [number * whole_ns / count / 1e9 for number in range(1, count + 1)]
    between_ns = (whole_ns - taken_ns) / count
    totals = itertools.accumulate(run.latencies_ns)
    return [(total + number * between_ns) / 1e9 for number, total in enumerate(totals, 1)]


def split_windows(
    latencies_ns: Sequence[int], ends_s: Sequence[float], length_s: float
) -> Iterator[Window]:
    """Yield the full windows of a length; the last is full if it lacks 1 % or less.

    Args:
        latencies_ns: Of each query.
        ends_s: When each ended, ascending.
        length_s: Of each window.
    """
    full = int((ends_s[-1] + 0.01 * length_s) / length_s)
    pairs = zip(latencies_ns, ends_s, strict=True)
    for number, group in itertools.groupby(pairs, lambda pair: _find_window(pair[1], length_s)):
        found = [latency for latency, _ in group]
        if number < full:
            yield Window(
                from_s=number * length_s,
                queries=len(found),
                p50_ns=statistics.median(found),
                p90_ns=statistics.percentile(found, 90),
            )


def _find_window(end_s: float, length_s: float) -> int:
    """Return the number of the window in which a query ended; its end belongs to it."""
    return max(0, math.ceil(end_s / length_s) - 1)


def _find_onset_s(steps: Sequence[Window], first_ns: float) -> float | None:
    for number in range(len(steps) - STEPS + 1):
        run = steps[number : number + STEPS]
        if all(step.p50_ns > first_ns * (1 + SLOWER) for step in run):
            return run[0].from_s
    return None

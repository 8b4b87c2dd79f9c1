"""Finds the devices that are slower than others of their kind. Pure.

Whatever happens in a night to all devices of a model happens to a device's peers too: each of its
runs is divided by the median of what its peers took for the same bundle on the same day. Of these
ratios the newest 3, 7, 14 and 28 are looked at, in two ways: how far a device is from its peers
now, which also shows one that was slow from its first night; and how much further it is than it was
before, where what always distinguished two devices cancels out. In both the devices are each
other's measure: one is slow where it lies further from the rest than devices that differ by chance
do (Rosner's generalized test for several outliers, Technometrics 25, 1983), all looks at all
devices being paid for.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from edgepack.base.statistics import (
    MAD_TO_SIGMA,
    Interval,
    log_t_interval,
    mad,
    median,
    t_quantile,
)
from edgepack.results.store.points import Blame, HistoryPoint
from edgepack.results.store.splits import Floats
from edgepack.results.summary import format_count

LEAST_PEERS = 3
"""In a night, for a device to be compared in it: the median of two is the mean of what may be one
slow device and one that is not."""
LEAST_NIGHTS = 3
STRETCHES = (3, 7, 14, 28)
"""How many of the newest nights are looked at."""
MARGIN = 0.05
"""Devices of one model differ by less."""
FALSE_ALARMS = 0.001
"""How often one look at all devices of a model, none of which is slow, names one."""
USUAL_SPREAD = 0.02
"""The standard deviation of devices of one model. A few peers that agree by chance say little about
how far apart devices lie: this counts as much as that of ``USUAL_WEIGHT`` more peers."""
USUAL_WEIGHT = 4
OWN_NOISE = 5.0
"""Standard errors by a device's own nights: one that is noisier than its peers is not slow."""
CANARY_NOISE = 3.0
"""Standard errors that a canary moves by chance at most."""
DAY_S = 86_400


@dataclass(frozen=True)
class UnitHistory:
    """One device among its peers: those of its model, with the same target and variant.

    What it took is p50, divided by the median of its peers for the same bundle in the same night.
    """

    device: str
    runs: int
    nights: int
    """In which it was compared."""
    peers: int
    """How many it was compared with in its newest such night."""
    ratio: Interval | None
    """What it took by what its peers took: the geometric mean over the nights since it is slow, or
    over its newest 28, with the 95 % interval over nights. None where it is not compared."""
    slow: bool = False
    """Whether it is slower than its peers, lastingly and by more than 5 %."""
    since: str = ""
    """The first slow run, and when that was; empty where it is not slow."""
    created: str = ""
    slow_nights: int = 0
    newer_runs: int = 0
    """Its runs since then."""
    ratio_before: float | None = None
    """What ``ratio`` was before; None where it was slow from the first nights on."""
    canary: Interval | None = None
    """What ``ratio`` is, of the canary; against what that was before, where there is a before."""
    blame: Blame = "unknown"
    """Whether the device is slow, or only this model on it."""
    reason: str = ""
    """Why that is blamed; why it is not compared."""

    @property
    def estimate(self) -> float:
        """What it took by what its peers took; 0 where it is not compared."""
        return self.ratio.estimate if self.ratio else 0.0


@dataclass(frozen=True)
class _Slow:
    """How a device is slow, in logarithms of what it took by what its peers took."""

    base: float
    """What it was before, or 0, what its peers are."""
    step: float
    """How far it is above that."""


def compare_units(points: Sequence[HistoryPoint]) -> tuple[UnitHistory, ...]:
    """Compare the devices of one series with each other.

    Args:
        points: Usable ones, of equal conditions, oldest first.

    Returns:
        The slow ones, then the others that are compared, the slowest first; then the rest.
    """
    if not points:
        return ()
    devices = sorted({one.device for one in points})
    nights = _sort_into_nights(points)
    p50s, canaries = (
        _divide_by_peers(_fill_table(points, devices, nights, logs))
        for logs in (
            [math.log(one.p50_ms) for one in points],
            [math.log(one.canary_ns) for one in points],
        )
    )
    slow = _find_slow([row[~np.isnan(row)] for row in p50s])
    told = np.count_nonzero(~np.isnan(p50s), axis=0) - 1
    runs: dict[str, list[tuple[int, HistoryPoint]]] = defaultdict(list)
    for night, one in zip(nights, points, strict=True):
        runs[one.device].append((night, one))
    found = []
    for index, device in enumerate(devices):
        compared = np.flatnonzero(~np.isnan(p50s[index]))
        history = UnitHistory(
            device=device,
            runs=len(runs[device]),
            nights=len(compared),
            peers=int(told[compared[-1]]) if len(compared) else 0,
            ratio=None,
        )
        if len(compared) < LEAST_NIGHTS:
            found.append(replace(history, reason=_explain_not_compared(history, len(devices) - 1)))
        elif index not in slow:
            found.append(
                replace(history, ratio=_make_interval(p50s[index][compared][-STRETCHES[-1] :]))
            )
        else:
            start = compared[_find_start(p50s[index][compared], slow[index])]
            since = [one for night, one in runs[device] if night >= start]
            found.append(
                replace(
                    _judge_slow(history, p50s[index], slow[index], start, canaries, index),
                    since=since[0].run,
                    created=since[0].created,
                    newer_runs=len(since),
                )
            )
    return tuple(sorted(found, key=_make_sort_key))


def merge_nights(points: Sequence[HistoryPoint]) -> list[HistoryPoint]:
    """Return a point for each night of devices that are compared: the median over them.

    What always distinguishes them is taken out first, so that it does not matter which of them run.
    Runs of one night share what it did to all of them, so that they are no more than one point.

    Args:
        points: Usable ones of one series, oldest first; those of few devices are returned as they
            are.
    """
    devices = sorted({one.device for one in points})
    if len(devices) <= LEAST_PEERS:
        return list(points)
    nights = _sort_into_nights(points)
    p50s, p90s, canaries = (
        _merge_devices(_fill_table(points, devices, nights, [math.log(value) for value in values]))
        for values in (
            [one.p50_ms for one in points],
            [one.p90_ms for one in points],
            [one.canary_ns for one in points],
        )
    )
    first: dict[int, HistoryPoint] = {}
    for night, one in zip(nights, points, strict=True):
        shared = one.device if first.get(night, one).device == one.device else ""
        first[night] = replace(first.get(night, one), device=shared)
    return [
        replace(one, p50_ms=p50s[night], p90_ms=p90s[night], canary_ns=canaries[night])
        for night, one in first.items()
    ]


def _merge_devices(logs: Floats) -> list[float]:
    """Return each column's median once what distinguishes the rows is taken out, no logarithm."""
    ratios = _divide_by_peers(logs)
    known = [row[~np.isnan(row)].tolist() for row in ratios]
    even = logs - np.array([[median(row) if row else 0.0] for row in known])
    columns = [column[~np.isnan(column)].tolist() for column in even.T]
    return [math.exp(median(column)) if column else math.nan for column in columns]


def _make_sort_key(one: UnitHistory) -> tuple[bool, float, str]:
    return not one.slow, -one.estimate, one.device


def _explain_not_compared(history: UnitHistory, others: int) -> str:
    if history.nights:
        return (
            f"{format_count(history.nights, 'night')} beside its peers, {LEAST_NIGHTS} are needed"
        )
    if others < LEAST_PEERS:
        return f"{format_count(others, 'peer')}, {LEAST_PEERS} are needed"
    return f"in no night did {LEAST_PEERS} peers run the same bundle"


# -- nights --------------------------------------------------------------------------------------


def _sort_into_nights(points: Sequence[HistoryPoint]) -> list[int]:
    """Return the number of each point's night: one bundle on one day.

    A day begins where the longest time of day without a run ends, so that no night is cut in two.
    """
    moments = [one.moment_s for one in points]
    times = sorted({moment % DAY_S for moment in moments})
    gaps = [(time - times[place - 1]) % DAY_S or DAY_S for place, time in enumerate(times)]
    begins = times[gaps.index(max(gaps))]
    keys = [
        ((moment - begins) // DAY_S, one.manifest_sha256)
        for moment, one in zip(moments, points, strict=True)
    ]
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    return [numbers[key] for key in keys]


def _fill_table(
    points: Sequence[HistoryPoint], devices: list[str], nights: list[int], logs: list[float]
) -> Floats:
    """Return the median of each device's runs in each night, NaN where it has none."""
    runs: dict[tuple[str, int], list[float]] = defaultdict(list)
    for one, night, log in zip(points, nights, logs, strict=True):
        if not math.isnan(log):
            runs[one.device, night].append(log)
    table = np.full((len(devices), max(nights, default=-1) + 1), np.nan)
    places = {device: index for index, device in enumerate(devices)}
    for (device, night), values in runs.items():
        table[places[device], night] = median(values)
    return table


def _divide_by_peers(logs: Floats) -> Floats:
    """Return how far each value is from the median of the others in its column.

    NaN where there are fewer than ``LEAST_PEERS`` others.
    """
    if len(logs) <= LEAST_PEERS:
        return np.full_like(logs, np.nan)
    order = np.argsort(logs, axis=0)  # NaN are last
    ranks, ordered = np.argsort(order, axis=0), np.take_along_axis(logs, order, axis=0)
    others = np.count_nonzero(~np.isnan(logs), axis=0) - 1
    lower, upper = (
        np.take_along_axis(ordered, place + (place >= ranks), axis=0)
        for place in ((others - 1) // 2, others // 2)
    )
    found: Floats = np.where(others >= LEAST_PEERS, logs - (lower + upper) / 2, np.nan)
    return found


# -- which are slow ------------------------------------------------------------------------------


def _find_slow(rows: Sequence[Floats]) -> dict[int, _Slow]:
    """Return which devices are slow, by the index of their rows of compared nights."""
    found: dict[int, _Slow] = {}
    for nights in STRETCHES:
        levels, changes = {}, {}
        for index, row in enumerate(rows):
            if len(row) >= nights:
                levels[index] = _Slow(0.0, median(row[-nights:].tolist()))
            if len(row) >= nights + LEAST_NIGHTS:
                base = median(row[:-nights].tolist())
                changes[index] = _Slow(base, levels[index].step - base)
        for looks in (levels, changes):
            for index in _find_outliers({index: look.step for index, look in looks.items()}):
                if _is_lasting(rows[index], looks[index], nights):
                    found[index] = max(found.get(index, looks[index]), looks[index], key=_get_step)
    return found


def _get_step(slow: _Slow) -> float:
    return slow.step


def _is_lasting(row: Floats, slow: _Slow, nights: int) -> bool:
    """Return whether a device is slow by more than the margin, for long enough, for its noise."""
    before = len(row) - nights if slow.base else len(row)
    error = _compute_noise(row) * math.sqrt(math.pi / 2 * (1 / nights + 1 / max(before, 1)))
    slow_nights = int(np.count_nonzero(row[-nights:] > slow.base + slow.step / 2))
    return slow.step >= max(math.log1p(MARGIN), OWN_NOISE * error) and slow_nights >= LEAST_NIGHTS


def _compute_noise(row: Floats) -> float:
    """Return the standard deviation from night to night, whatever else changes once."""
    return MAD_TO_SIGMA * median(np.abs(np.diff(row)).tolist()) / math.sqrt(2)


def _find_outliers(values: dict[int, float]) -> list[int]:
    """Return which values are too large to be of the same kind as the others.

    The most extreme value is taken away and compared with the rest, again and again; those up to
    the last that is too far are outliers, so that two of them do not hide each other.
    """
    rest, taken, outliers = dict(values), [], 0
    for _ in range(max(1, len(values) // 4)):
        if len(rest) <= LEAST_PEERS:
            break
        centre = fmean(rest.values())
        extreme = max(rest, key=lambda index: abs(rest[index] - centre))
        taken.append(extreme)
        value = rest.pop(extreme)
        centre, count = fmean(rest.values()), len(rest)
        weight = count - 1 + USUAL_WEIGHT
        squares = sum((each - centre) ** 2 for each in rest.values())
        variance = (squares + USUAL_WEIGHT * USUAL_SPREAD**2) / weight
        far = abs(value - centre) / math.sqrt(variance * (1 + 1 / count))
        if far > _find_limit(count + 1, weight):
            outliers = len(taken)
    centre = fmean(rest.values()) if rest else 0.0
    return [index for index in taken[:outliers] if values[index] > centre]


@functools.cache
def _find_limit(count: int, degrees: int) -> float:
    """Return how far the farthest of ``count`` values may be, in standard deviations."""
    return t_quantile(1 - FALSE_ALARMS / (2 * len(STRETCHES)) / count, degrees)


# -- since when, and what is to blame ------------------------------------------------------------


def _find_start(row: Floats, slow: _Slow) -> int:
    """Return from which night on a device is slow: where its nights before and after fit best."""
    above = np.clip(row - slow.base, -slow.step, 2 * slow.step) - slow.step / 2
    return int(np.argmax(np.cumsum(above[::-1])[::-1]))


def _judge_slow(
    history: UnitHistory, row: Floats, slow: _Slow, start: int, canaries: Floats, index: int
) -> UnitHistory:
    """Return a slow device's history from a night on, with what is to blame."""
    before, after = _split_known(row, start)
    has_before = len(before) >= LEAST_NIGHTS
    blame, canary, reason = _find_blame(canaries, index, start, slow, has_before=has_before)
    return replace(
        history,
        slow=True,
        ratio=_make_interval(after),
        slow_nights=len(after),
        ratio_before=math.exp(median(before.tolist())) if has_before else None,
        canary=canary,
        blame=blame,
        reason=reason,
    )


def _find_blame(
    canaries: Floats, index: int, start: int, slow: _Slow, *, has_before: bool
) -> tuple[Blame, Interval | None, str]:
    before, after = _split_known(canaries[index], start)
    if len(after) < LEAST_NIGHTS:
        return "unknown", None, "too few canaries were measured on it and its peers to tell why"
    if has_before and len(before) >= LEAST_NIGHTS:
        base, shares, spread = median(before.tolist()), 1 / len(before), 0.0
    else:
        others = [_split_known(row, start)[1] for row in np.delete(canaries, index, axis=0)]
        levels = [median(each.tolist()) for each in others if len(each)]
        base, shares, spread = 0.0, 0.0, MAD_TO_SIGMA * mad(levels)
    noise = _compute_noise(canaries[index][~np.isnan(canaries[index])])
    error = math.hypot(spread, noise * math.sqrt(math.pi / 2 * (1 / len(after) + shares)))
    moved, canary = median(after.tolist()) - base, _make_interval(after - base)
    word = f"its canary is {abs(math.expm1(moved)):.1%} {'slower' if moved > 0 else 'faster'}"
    if moved >= max(math.log1p(MARGIN) / 2, CANARY_NOISE * error):
        if slow.step - moved < math.log1p(MARGIN) + 2 * error:
            return "device", canary, f"the device is slow: {word} too"
        return "both", canary, f"the device is slow, and this model on it even more: {word}"
    if CANARY_NOISE * error > slow.step / 2:
        return "unknown", canary, f"{word}, and too noisy to tell why"
    return "model", canary, f"only this model is slow on it: {word}"


def _split_known(row: Floats, start: int) -> tuple[Floats, Floats]:
    """Return what is known before a night, and from it on."""
    before, after = row[:start], row[start:]
    return before[~np.isnan(before)], after[~np.isnan(after)]


def _make_interval(logs: Floats) -> Interval:
    return log_t_interval(np.exp(logs).tolist())

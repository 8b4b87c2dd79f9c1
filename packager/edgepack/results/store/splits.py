"""Where a series of numbers changes for good. Pure.

A series is gone through in order of time, as if looked at after every run: what lies since the last
change is split where that separates its two sides most, and a split that is significant is the next
change. So short episodes are found too, which a search over the whole series misses. In the end
each change is looked for again between its neighbours, with all that came after it. The statistic
is the greatest difference of means over all splits, in its standard deviations, on logarithms that
are clipped at three robust standard deviations, so that a single run gone wrong cannot hide or make
a change. Its significance is that among random orders of the same points, as in the e-divisive
method (Matteson and James, Journal of the American Statistical Association 109, 2014), so that
looking at all splits is paid for. What is significant and smaller than the practical margin is no
change.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import numpy.typing as npt

from edgepack.base.statistics import MAD_TO_SIGMA, median

Floats = npt.NDArray[np.float64]

LEAST_POINTS = 10
LEAST_AFTER = 2
"""Points on either side of a change: one run alone is never a change."""
SIGNIFICANCE = 0.005
PERMUTATIONS = (99, 1999)
"""The first are enough where the share of orders that split as well is above ``HOPELESS``."""
HOPELESS = 0.05
NORMAL_QUANTILE = 2.8
"""Standard deviations that a single split chosen beforehand exceeds in ``SIGNIFICANCE`` of random
orders; the best of all splits exceeds it more often, so that below it no order is tried."""
SEED = 20_140_109
CLIP = 3.0
"""In robust standard deviations from the median."""
LEAST_DEVIATION = 1e-4
"""The deviation of logarithms that is used where more than half of the points are equal."""


def find_splits(logs: Floats, margin: float) -> list[int]:
    """Return where a series changes: the indices of the first points after each change, sorted.

    Args:
        logs: Natural logarithms of a series, shape (n,).
        margin: Smaller changes are none: 0.03 for 3 %.
    """
    splits: list[int] = []
    start = 0
    for end in range(LEAST_POINTS, len(logs) + 1):
        if split := _find_change(logs[start:end], margin):
            start += split
            splits.append(start)
    return _confirm_splits(logs, splits, margin)


def _confirm_splits(logs: Floats, splits: list[int], margin: float) -> list[int]:
    """Find each change again between its neighbours, with all that came after it."""
    edges = [0]
    for following in [*splits[1:], len(logs)] if splits else []:
        if split := _find_change(logs[edges[-1] : following], margin):
            edges.append(edges[-1] + split)
    return edges[1:]


def _find_change(part: Floats, margin: float) -> int:
    """Return where a part splits best, if that is a change; 0 if not."""
    if len(part) < LEAST_POINTS:
        return 0
    clipped = _clip_outliers(part)
    scores = _compute_scores(clipped)
    if scores.max() < NORMAL_QUANTILE * _compute_deviation(clipped):
        return 0
    split = LEAST_AFTER + int(np.argmax(scores))
    size = abs(median(part[split:].tolist()) - median(part[:split].tolist()))
    return split if size >= math.log1p(margin) and _is_significant(clipped) else 0


def _is_significant(clipped: Floats) -> bool:
    """Return whether few random orders of the points split as well as theirs does."""
    own = _compute_scores(clipped).max() - 1e-9
    as_good, tried = 1, 0
    for number in PERMUTATIONS:
        rows = clipped[_make_orders(len(clipped), tried, number)]
        as_good += int(np.count_nonzero(_compute_scores(rows).max(axis=-1) >= own))
        tried = number
        if as_good > HOPELESS * (tried + 1):
            return False
    return as_good <= SIGNIFICANCE * (tried + 1)


@functools.lru_cache(maxsize=16)
def _make_orders(count: int, start: int, stop: int) -> npt.NDArray[np.int16]:
    """Return some of the random orders of ``count`` points; they are always the same."""
    ordered = np.tile(np.arange(count, dtype=np.int16), (stop, 1))
    return np.random.default_rng(SEED).permuted(ordered, axis=1)[start:]


def _clip_outliers(part: Floats) -> Floats:
    centre = median(part.tolist())
    deviation = MAD_TO_SIGMA * median(np.abs(part - centre).tolist())
    scaled: Floats = (part - centre) / max(deviation, LEAST_DEVIATION)
    return scaled.clip(-CLIP, CLIP)


def _compute_deviation(values: Floats) -> float:
    """Return the standard deviation; numpy's is slow on so few values."""
    mean = values.sum() / len(values)
    return math.sqrt(max(0.0, values @ values / len(values) - mean * mean))


def _compute_scores(rows: Floats) -> Floats:
    """Return how well each split separates each row: shape (..., n - 2 * LEAST_AFTER + 1)."""
    shares, scales = _compute_sides(rows.shape[-1])
    sums = rows.cumsum(axis=-1)
    before = sums[..., LEAST_AFTER - 1 : -LEAST_AFTER] - sums[..., -1:] * shares
    scores: Floats = np.abs(before) * scales
    return scores


@functools.lru_cache(maxsize=1024)
def _compute_sides(count: int) -> tuple[Floats, Floats]:
    """Return the share of ``count`` points before each split, and the scale of its two sides."""
    sizes = np.arange(LEAST_AFTER, count - LEAST_AFTER + 1)
    return sizes / count, 1 / np.sqrt(sizes * (count - sizes) / count)

"""Chooses which part of a tensor's values a quantized grid covers, in one of four ways.

A grid has ``levels`` evenly spaced values. Values beyond its ends are clipped; the further out the
ends, the larger the step, and the more is lost by rounding. All methods read the same
:class:`~edgepack.quantization.ranges.statistics.TensorStatistics`: trying another one costs no
inference.

``int8-static`` tries all but entropy. On mobilenet_v1_0.25, squeezenet1.1, ResNet-20 and DS-CNN, in
asymmetric uint8 and symmetric int8, 100 samples, with exact weights, the outputs were 1.1 to 5.9 dB
farther from float32's with entropy than with the best of the others (60 other samples, worst group
of channels; onnxruntime 1.31.1, x86-64, 2026-11-21).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

import numpy as np

from edgepack.base.arrays import Array
from edgepack.quantization.ranges.statistics import TensorStatistics

RangeMethod = Literal["minmax", "percentile", "entropy", "mse"]
Range = tuple[float, float]

_MSE_BINS = 4096
_ENTROPY_BINS = 2048
"""As many as in the source of the method, which divides them into 128 groups."""
_STRIDE = 8
"""Of the windows tried first, in bins."""
_ROUNDS = 10
"""The most times that one end is searched again after the other has moved; 2 or 3 is usual."""


def find_range(
    statistics: TensorStatistics,
    method: RangeMethod,
    *,
    levels: int,
    symmetric: bool,
    percentile: float = 99.999,
) -> Range:
    """Return the lowest and the highest value that the grid has to reach, in the tensor's unit.

    ``low <= 0 <= high``, and both are 0.0 only if all values are. A side on which there is no value
    ends at 0, unless the grid is symmetric.

    ========== ====================================================================================
    minmax     All values.
    percentile ``(100 - percentile) / 2`` percent of the values are clipped at either end; if
               symmetric, ``100 - percentile`` percent of the magnitudes. Linear between ranks, as
               numpy's default. It keeps all values if only those in 0's own bin would remain.
               Source of the two rules: onnxruntime 1.31.1, whose default percentage is the same; of
               the method: Wu et al., Integer Quantization for Deep Learning Inference, 2020
               (arXiv:2004.09602).
    entropy    The distribution of the values loses least by merging into the grid's levels, by its
               Kullback-Leibler divergence. Source: Migacz, 8-bit Inference with TensorRT, GTC 2017.
    mse        The expected squared error of rounding and clipping is least. Where there are values
               on both sides of 0, 0 is a level of the grid, and the end nearer to 0 may lie about a
               step beyond them. Source: Banner et al., Post-training 4-bit quantization of
               convolution networks for rapid-deployment, 2019 (arXiv:1810.05723).
    ========== ====================================================================================

    A range by percentile, and one by mse with one free end, differs by at most the width of a bin
    from the one that all values in memory would give.

    Args:
        statistics: Of the tensor.
        method: See the table.
        levels: Of the grid: 256 for 8 bit, 65536 for 16 bit.
        symmetric: The grid has zero point 0 and as many steps above as below it, 127 for 8 bit. The
            range then is symmetric, too.
        percentile: For that method: how many percent are not clipped.
    """
    if not symmetric and statistics.low < 0 < statistics.high:
        return _find_both_ends(statistics, method, levels, percentile)
    if symmetric:
        high = _find_one_end(_make_magnitudes(statistics), method, levels // 2, percentile)
        return 0.0 - high, high
    high = _find_one_end(_make_magnitudes(statistics), method, levels, (100 + percentile) / 2)
    return (0.0, high) if statistics.low >= 0 else (-high, 0.0)


def _find_one_end(
    magnitudes: TensorStatistics, method: RangeMethod, levels: int, percentile: float
) -> float:
    """Return the end of a grid of so many levels that begins at 0, for values of at least 0."""
    if magnitudes.high == 0:
        return 0.0
    match method:
        case "minmax":
            return magnitudes.high
        case "percentile":
            high = _compute_percentile(magnitudes, percentile)
            return high if high >= magnitudes.width else magnitudes.high
        case "entropy":
            return _find_entropy_range(magnitudes, levels)[1]
        case "mse":
            return _find_mse_range(magnitudes, levels - 1)[1]


def _find_both_ends(
    statistics: TensorStatistics, method: RangeMethod, levels: int, percentile: float
) -> Range:
    match method:
        case "minmax":
            return statistics.low, statistics.high
        case "percentile":
            low = min(_compute_percentile(statistics, (100 - percentile) / 2), 0.0)
            high = max(_compute_percentile(statistics, (100 + percentile) / 2), 0.0)
            some = max(-low, high) >= statistics.width
            return (low, high) if some else (statistics.low, statistics.high)
        case "entropy":
            return _find_entropy_range(statistics, levels)
        case "mse":
            return _find_mse_range(statistics, levels - 1)


def _make_magnitudes(statistics: TensorStatistics) -> TensorStatistics:
    """Return the statistics of the absolute values; the bin of -v becomes that of v."""
    bins = statistics.first + np.arange(len(statistics.counts))
    bins = np.where(bins < 0, -1 - bins, bins)
    first = int(bins.min())
    counts = np.zeros(int(bins.max()) - first + 1, dtype=np.int64)
    np.add.at(counts, bins - first, statistics.counts)
    return replace(
        statistics,
        low=max(statistics.low, -statistics.high, 0.0),
        high=max(-statistics.low, statistics.high),
        counts=counts,
        first=first,
    )


def _compute_percentile(statistics: TensorStatistics, percent: float) -> float:
    """Return a percentile. Values are taken to be spread evenly over their bin."""
    ends = np.cumsum(statistics.counts)
    last = int(ends[-1]) - 1
    rank = percent / 100 * last
    ranks = np.array([math.floor(rank), math.ceil(rank)])
    bins = np.searchsorted(ends, ranks, side="right")
    above = (ends[bins] - ranks - 0.5) / statistics.counts[bins]
    values = (statistics.first + bins + 1 - above) * statistics.width
    # The outermost two are known.
    values = np.where(ranks == 0, statistics.low, values)
    values = np.where(ranks == last, statistics.high, values)
    one, other = np.clip(values, statistics.low, statistics.high).tolist()
    return float(one + (other - one) * (rank - math.floor(rank)))


@dataclass(frozen=True, eq=False)
class _Bins:
    """A histogram that includes 0, in units of its bins' width."""

    counts: Array
    """int64 (n,), the bins from ``start`` on."""
    start: int
    """At most 0: where the bins begin."""
    low: float
    """At most 0: the smallest value."""
    high: float
    """At least 0: the largest value."""
    width: float
    """In the tensor's unit."""

    @property
    def stop(self) -> int:
        """Where the bins end."""
        return self.start + len(self.counts)


def _make_bins(statistics: TensorStatistics, most: int) -> _Bins:
    """Return the histogram from 0 to the values, in bins so wide that there are at most ``most``.

    The bins of values far from 0 are finer than any grid that has 0 as a level, and are merged.
    """
    first, last = statistics.first, statistics.first + len(statistics.counts) - 1
    shift = 0
    while max(last >> shift, 0) - min(first >> shift, 0) >= most:
        shift += 1
    start = min(first >> shift, 0)
    counts = np.zeros(max(last >> shift, 0) - start + 1, dtype=np.int64)
    places = ((first + np.arange(len(statistics.counts))) >> shift) - start
    np.add.at(counts, places, statistics.counts)
    width = math.ldexp(statistics.width, shift)
    low, high = min(statistics.low, 0.0) / width, max(statistics.high, 0.0) / width
    return _Bins(counts, start, low, high, width)


def _find_mse_range(statistics: TensorStatistics, steps: int) -> Range:
    """Return the ends with the least expected squared error, of values of both signs or at least 0.

    The end that is further from 0 is a bin's border.
    """
    bins = _make_bins(statistics, _MSE_BINS)
    error = _SquaredError(bins, steps)
    highs = np.minimum(np.arange(1, bins.stop + 1), bins.high)
    if bins.start == 0:
        low, high = _find_least(error, np.zeros_like(highs), highs)
    else:
        lows = np.maximum(-np.arange(1, 1 - bins.start), bins.low)
        low, high = _find_least_pair(error, lows, highs)
        low, high = min(
            _list_ends_around_zero(error, lows, highs, low / (high - low)),
            key=lambda ends: _measure_rounding(bins, ends[0], ends[1], steps),
        )
    return low * bins.width, high * bins.width


def _list_ends_around_zero(
    error: _SquaredError, lows: Array, highs: Array, share: float
) -> Iterator[Range]:
    """Yield the best ends with 0 as a level, for each place of 0 near a share of the grid.

    A grid whose ends are elsewhere is moved by up to half a step when it is written. Many values of
    some activation functions lie at the lower end, and their errors are not random.
    """
    upward = share >= -1 / 2
    further, most = (highs, -lows[-1]) if upward else (lows, highs[-1])
    count = math.floor(min(-share, 1 + share) * error.steps)
    for steps in range(max(count - 1, 0), count + 2):
        # The nearer end lies at most a step beyond the values.
        ends = further[np.abs(further) * (steps - 1) <= most * (error.steps - steps)]
        if ends.size:
            nearer = 0.0 - ends * steps / (error.steps - steps)
            yield _find_least(error, *((nearer, ends) if upward else (ends, nearer)))


def _find_least_pair(error: _SquaredError, lows: Array, highs: Array) -> Range:
    """Return the ends with the least error: the best of a coarse raster, then side by side."""
    raster_lows, raster_highs = (
        lows[_choose_spread(len(lows), 48)],
        highs[_choose_spread(len(highs), 48)],
    )
    errors = error(raster_lows[:, None], raster_highs[None, :])
    row, column = np.unravel_index(np.argmin(errors), errors.shape)
    low, high = float(raster_lows[row]), float(raster_highs[column])
    for _ in range(_ROUNDS):
        before = low, high
        high = _find_least(error, np.full_like(highs, low), highs)[1]
        low = _find_least(error, lows, np.full_like(lows, high))[0]
        if (low, high) == before:
            break
    return low, high


def _find_least(error: _SquaredError, lows: Array, highs: Array) -> Range:
    """Return the pair with the least error, of pairs in order of their magnitude.

    The error is smooth: the least of all is next to the least of some.
    """
    some = _choose_spread(len(highs), 256)
    best = int(np.argmin(error(lows[some], highs[some])))
    first, last = some[max(best - 1, 0)], some[min(best + 1, len(some) - 1)]
    best = first + int(np.argmin(error(lows[first : last + 1], highs[first : last + 1])))
    return float(lows[best]), float(highs[best])


@cache
def _choose_spread(count: int, most: int) -> Array:
    """Return some of the first ``count`` natural numbers, dense near 0, the last among them."""
    return np.unique(np.geomspace(1, count, most).round().astype(np.int64)) - 1


def _measure_rounding(bins: _Bins, low: float, high: float, steps: int) -> float:
    """Return the summed squared error of one grid with 0 as a level, for its very levels.

    Values are spread evenly over their bin, so a bin's mean is a difference of the antiderivative.
    """
    step = (high - low) / steps
    borders = np.arange(bins.start, bins.stop + 1)
    level = np.clip(np.rint(borders / step), round(low / step), round(high / step))
    integral = level * step**3 / 12 + (borders - level * step) ** 3 / 3
    return float(np.diff(integral) @ bins.counts)


class _SquaredError:
    """The expected squared error of quantizing a histogram to grids with different ends.

    A value's place among the levels is random: its squared error is ``step**2 / 12`` on average.
    Two kinds of values are known better. A value beyond an end also has its distance from the end
    as an error. A value smaller than that average becomes 0, and its error is its own size. So no
    value's error jumps as the ends move, and a few values cannot move the minimum by much.

    Values are spread evenly over their bin. Sums of the values and their squares up to each border
    of a bin make the cost of a grid independent of the number of bins.
    """

    def __init__(self, bins: _Bins, steps: int) -> None:
        self._start = bins.start
        self.steps = steps
        self._counts = bins.counts.astype(np.float64)
        left = np.arange(bins.start, bins.stop, dtype=np.float64)
        self._number = _sum_before(self._counts)
        self._sum = _sum_before(self._counts * (left + 1 / 2))
        self._squares = _sum_before(self._counts * (left * left + left + 1 / 3))

    def __call__(self, low: Array, high: Array) -> Array:
        """Return the summed error of grids from ``low`` to ``high``, in shapes that broadcast.

        ``low <= 0 < high``; 0 is a level.
        """
        step = (high - low) / self.steps
        typical = step / math.sqrt(12)
        borders = low, np.maximum(-typical, low), np.minimum(typical, high), high
        number, total, squares = self._sum_below(np.stack(np.broadcast_arrays(*borders)))
        below_low = squares[0] - 2 * low * total[0] + low * low * number[0]
        above_high = (
            (self._squares[-1] - squares[3])
            - 2 * high * (self._sum[-1] - total[3])
            + high * high * (self._number[-1] - number[3])
        )
        small = squares[2] - squares[1]
        others = self._number[-1] - number[2] + number[1]
        return np.asarray(below_low + above_high + small + others * typical * typical)

    def _sum_below(self, border: Array) -> tuple[Array, Array, Array]:
        """Return the number, the sum and the sum of squares of the values below each border."""
        place = np.clip(np.floor(border).astype(np.int64) - self._start, 0, len(self._counts) - 1)
        left = (place + self._start).astype(np.float64)
        part = np.clip(border - left, 0, 1)
        count = self._counts[place] * part
        squares = left * left + left * part + part * part / 3
        return (
            self._number[place] + count,
            self._sum[place] + count * (left + part / 2),
            self._squares[place] + count * squares,
        )


def _find_entropy_range(statistics: TensorStatistics, levels: int) -> Range:
    """Return the ends with the least divergence between the values and what a grid makes of them.

    Pairs of ends are tried that lie equally far from 0, except where the values end before, and
    that have at least one bin for each of the grid's levels: some, then all near the best of them.
    A 16 bit grid has more levels than there are bins, and gets all values.
    """
    bins = _make_bins(statistics, _ENTROPY_BINS)
    reach = np.arange(max(bins.stop, -bins.start), 0, -1)
    left = np.maximum(-reach, bins.start) - bins.start
    right = np.minimum(reach, bins.stop) - bins.start
    enough = right - left >= levels
    if not enough.any():
        return bins.low * bins.width, bins.high * bins.width
    reach, left, right = reach[enough], left[enough], right[enough]
    divergence = _Divergence(bins, levels)
    best = _STRIDE * int(np.argmin(divergence(left[::_STRIDE], right[::_STRIDE])))
    first = max(best - _STRIDE, 0)
    near = slice(first, best + _STRIDE + 1)
    best = first + int(np.argmin(divergence(left[near], right[near])))
    end = float(reach[best])
    return max(-end, bins.low) * bins.width, min(end, bins.high) * bins.width


class _Divergence:
    """How much of a histogram is lost when a window of it is merged into a grid's levels.

    The window is compared with itself after it was divided into ``levels`` groups of neighbouring
    bins, each of which spreads its count evenly over those of its bins that are filled. What lies
    outside counts in the outermost filled bins of the one, and not in the other: clipping costs.

    Every grid holds 0 exactly. A rectified tensor is 0 half the time. These zeros say nothing about
    the best step, but would outweigh everything that does; so the bin of 0 counts no more than
    those beside it.
    """

    def __init__(self, bins: _Bins, levels: int) -> None:
        counts = bins.counts.copy()
        zero = -bins.start
        beside = [counts[k] for k in (zero - 1, zero + 1) if 0 <= k < len(counts)]
        counts[zero] = min(counts[zero], max(beside, default=0))
        places = np.arange(len(counts))
        self._levels = levels
        self._counts = counts.astype(np.float64)
        self._number = _sum_before(self._counts)
        self._filled = _sum_before(counts > 0)
        self._information = _sum_before(_information(self._counts))
        self._last_filled = np.maximum.accumulate(np.where(counts > 0, places, 0))
        following = np.where(counts > 0, places, len(counts) - 1)
        self._next_filled = np.minimum.accumulate(following[::-1])[::-1]

    def __call__(self, left: Array, right: Array) -> Array:
        """Return the Kullback-Leibler divergence of each window ``left[k]:right[k]`` of the bins.

        With p the window and what is outside, q the merged window, P and Q their sums, it is the
        sum of ``p / P * log((p / P) / (q / Q))``: infinite for an empty window.
        """
        size = right - left
        groups = np.arange(self._levels + 1) * size[:, None]
        borders = left[:, None] + (groups + self._levels - 1) // self._levels
        merged = np.diff(self._number[borders], axis=1)
        logs = _log(merged / np.maximum(np.diff(self._filled[borders], axis=1), 1))
        of_p = self._information[right] - self._information[left]
        of_q = (merged * logs).sum(axis=1)

        rows = np.arange(len(left))
        first, last = self._next_filled[left], self._last_filled[right - 1]
        under, over = self._number[left], self._number[-1] - self._number[right]
        # A window with one filled bin gets all outside values in its last bin.
        under, over = np.where(first == last, [0 * under, under + over], [under, over])
        for bins, outside in ((first, under), (last, over)):
            of_p += _information(self._counts[bins] + outside) - _information(self._counts[bins])
            group = np.clip((bins - left) * self._levels // size, 0, self._levels - 1)
            of_q += outside * logs[rows, group]

        inside = self._number[right] - self._number[left]
        found = (of_p - of_q) / self._number[-1] + _log(inside) - _log(self._number[-1:])
        # Rounded, so that what differs by the errors of summing is equal, and the first is taken.
        return np.where(inside > 0, found.round(12), np.inf)


def _sum_before(values: Array) -> Array:
    """Return (n + 1,) sums of the values before each place."""
    return np.concatenate([np.zeros(1, dtype=np.float64), np.cumsum(values)])


def _information(counts: Array) -> Array:
    """Return each count times its logarithm."""
    return np.asarray(counts * _log(counts))


def _log(counts: Array) -> Array:
    """Return the natural logarithms of numbers that are 0 or at least 1, taking 1 for 0."""
    return np.asarray(np.log(np.maximum(counts, 1)))

"""Counts a tensor, array by array: its values, its channels' extremes, the output of a Relu."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import groupby

import numpy as np

from edgepack.base.arrays import Array
from edgepack.quantization.ranges.channels import find_channel_axis
from edgepack.quantization.ranges.histogram import BINS, Histogram
from edgepack.quantization.ranges.statistics import TensorStatistics

_SHARED_VALUES = 1 << 15
"""Fewer values are counted again for a Relu: that takes less time than converting bins."""

_SHARED_BINS = 16 * BINS
"""Counting into more bins than this takes longer: a core's cache does not hold them."""


@dataclass
class Channels:
    """Extremes by channel, as long as all arrays have the same channels."""

    axis: int | None = None
    low: Array = field(default_factory=lambda: np.zeros(0, dtype=np.float32))
    high: Array = field(default_factory=lambda: np.zeros(0, dtype=np.float32))
    began: bool = False

    def add(self, axis: int | None, low: Array, high: Array) -> None:
        """Widen the extremes; from the first array with other channels on, there are none."""
        if not self.began:
            self.axis, self.low, self.high, self.began = axis, low, high, True
        elif axis != self.axis or low.shape != self.low.shape:
            self.axis = None
        else:
            self.low, self.high = np.minimum(self.low, low), np.maximum(self.high, high)


class Tally:
    """The statistics of one tensor so far."""

    def __init__(self, *, is_second: bool = False) -> None:
        self.is_second = is_second
        """Whether axis 1 counts channels, whatever the shapes are."""
        self.clamps: list[Clamp] = []
        self.has_nan = False
        self.has_infinity = False
        self.had_empty = False
        self.histogram = Histogram()
        self.channels = Channels()

    def add(self, arrays: Sequence[Array]) -> None:
        """Count arrays of floats of any shapes, and what the clamps make of them.

        From the first NaN or infinity on nothing more is counted.
        """
        for shape, group in groupby(arrays, key=lambda array: array.shape):
            same = list(group)
            if 0 in shape:
                self.had_empty = True
                for clamp in self.clamps:
                    clamp.tally.had_empty = True
            else:
                # Along the first axis, which never is the channels' one.
                self._add_values(
                    same[0] if len(same) == 1 else np.concatenate([*map(np.atleast_1d, same)])
                )

    def _add_values(self, values: Array) -> None:
        axis = find_channel_axis(values.shape, is_second=self.is_second)
        others = tuple(k for k in range(values.ndim) if k != axis)
        # What overflows float32 becomes infinity, which is found below. Adding 0 makes -0 0: which
        # of the two a minimum is depends on the order.
        with np.errstate(over="ignore", invalid="ignore"):
            values = values.astype(np.float32, copy=False)
            lows, highs = values.min(others) + np.float32(0), values.max(others) + np.float32(0)
            extent = float(lows.min()), float(highs.max())
        # NaN spreads: if any value is NaN, both extremes are.
        self.has_nan |= math.isnan(extent[0])
        if self.has_nan:
            return
        clamps = [Clamp(self), *self.clamps]
        for clamp in clamps:
            clamp.tally.has_infinity |= any(map(math.isinf, clamp.clip_ends(extent)))
        counting = [clamp for clamp in clamps if not clamp.tally.has_infinity]
        for clamp in counting:
            clamp.tally.channels.add(axis, clamp.clip_values(lows), clamp.clip_values(highs))
        count(values, extent, counting)

    def merge(self, other: Tally) -> None:
        """Count what another tally of the same tensor has counted."""
        self.has_nan |= other.has_nan
        self.has_infinity |= other.has_infinity
        self.had_empty |= other.had_empty
        if other.channels.began and not (self.has_nan or self.has_infinity):
            self.channels.add(other.channels.axis, other.channels.low, other.channels.high)
            self.histogram.merge(other.histogram.make_statistics())

    def make_statistics(self) -> TensorStatistics | None:
        """Return what was counted; None if there was no value, or one that was not finite."""
        if self.has_nan or self.has_infinity or not self.channels.began:
            return None
        found, channels = self.histogram.make_statistics(), self.channels
        if channels.axis is None:
            return found
        return replace(
            found,
            channel_low=channels.low,
            channel_high=channels.high,
            channel_axis=channels.axis,
        )

    def copy_moved(self) -> Tally:
        """Return what counting the same values in other places would have given, less channels."""
        tally = copy(self)
        tally.channels = Channels(began=self.channels.began)
        return tally

    @classmethod
    def join_tallies(cls, parts: Sequence[Tally], axis: int) -> Tally:
        """Return what counting the output of a Concat would have given.

        Args:
            parts: Of its inputs, in order, as often as it has them. They have rank 4 or more.
            axis: Along which they are joined, from 0.
        """
        tally = cls()
        tally.has_nan = any(part.has_nan for part in parts)
        tally.has_infinity = any(part.has_infinity for part in parts)
        tally.had_empty = any(part.had_empty for part in parts)
        found = [one for part in parts if (one := part.make_statistics()) is not None]
        if not found or tally.has_nan or tally.has_infinity:
            return tally
        for one in found:
            tally.histogram.merge(one)
        lows = [one.channel_low for one in found if one.channel_low is not None]
        highs = [one.channel_high for one in found if one.channel_high is not None]
        known = len(lows) == len(found) and not (axis == 1 and tally.had_empty)
        if known and axis == 1:
            tally.channels.add(1, np.concatenate(lows), np.concatenate(highs))
        elif known:
            tally.channels.add(1, np.minimum.reduce(lows), np.maximum.reduce(highs))
        else:
            tally.channels.began = True
        return tally


@dataclass(frozen=True)
class Clamp:
    """A Relu or a Clip: no value leaves its bounds."""

    tally: Tally
    """Of its output."""
    low: float = -math.inf
    high: float = math.inf

    @property
    def is_open(self) -> bool:
        """Whether all values stay as they are."""
        return math.isinf(self.low) and math.isinf(self.high)

    def clip_values(self, values: Array) -> Array:
        """Return float32 values as the operator gives them."""
        return (
            values if self.is_open else np.clip(values, np.float32(self.low), np.float32(self.high))
        )

    def clip_ends(self, extent: tuple[float, float]) -> tuple[float, float]:
        """Return the extremes of the output from those of the input."""
        low, high = (max(self.low, min(self.high, end)) for end in extent)
        return low, high

    def clamp_statistics(self, found: TensorStatistics) -> TensorStatistics:
        """Return the statistics of the output from those of the input, by the same bins."""
        if self.is_open:
            return found
        low, high = self.clip_ends((found.low, found.high))
        first, last = (math.floor(end / found.width) for end in (low, high))
        counts = np.zeros(last - first + 1, dtype=np.int64)
        below, above = max(first - found.first, 0), max(last + 1 - found.first, 0)
        inside = found.counts[below:above]
        counts[: len(inside)] = inside
        counts[0] += found.counts[:below].sum()
        counts[-1] += found.counts[above:].sum()
        return TensorStatistics(low, high, counts, first, found.width)


def count(values: Array, extent: tuple[float, float], clamps: Sequence[Clamp]) -> None:
    """Count values into the histograms of several clamps.

    They are counted once, into bins that are as fine as the finest histogram wants, where that is
    quicker; the result is the same.

    Args:
        values: float32; finite once the clamps are applied.
        extent: The smallest and the largest of them.
        clamps: What is counted of them, and where.
    """
    fine = _find_shared_exponent(extent, clamps) if values.size >= _SHARED_VALUES else None
    if fine is None:
        for clamp in clamps:
            clamp.tally.histogram.add(clamp.clip_values(values), clamp.clip_ends(extent))
        return
    shared = Histogram(fine)
    shared.add(values, extent)
    found = shared.make_statistics()
    for clamp in clamps:
        clamp.tally.histogram.merge(clamp.clamp_statistics(found))


def _find_shared_exponent(extent: tuple[float, float], clamps: Sequence[Clamp]) -> int | None:
    """Return the width of bins that all clamps can be counted by; None if that takes too many."""
    low, high = extent
    if len(clamps) < 2 or low == high or not all(map(math.isfinite, extent)):
        return None
    finest = min(clamp.tally.histogram.find_exponent(*clamp.clip_ends(extent)) for clamp in clamps)
    return finest if math.ldexp(high - low, -finest) < _SHARED_BINS else None

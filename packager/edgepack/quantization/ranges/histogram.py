"""A histogram that grows with its values, and has the same result for every order of them.

Bins are ``width`` wide, a power of two, and begin at multiples of it. Bins of twice the width are
then unions of two neighbours, so a histogram that has become too narrow for its values is made
coarser without any error: ``floor(v / (2 * width)) == floor(floor(v / width) / 2)``. The width is a
function of the smallest and the largest value alone; the counts, of the multiset of values.
"""

from __future__ import annotations

import math

import numpy as np

from edgepack.base.arrays import Array
from edgepack.errors import BugError, StepError
from edgepack.quantization.ranges.statistics import TensorStatistics

BINS = 4096
"""A histogram has at most so many bins, and more than half as many where its values allow."""

_CHUNK = 1 << 16
"""The number of values at a time: what is computed from them stays in a core's cache."""

_MANTISSA_BITS = 24
_FINEST = -149
"""The smallest float32 above 0 is 2 to this."""


class Histogram:
    """Counts the values of one tensor, array by array, in memory that does not grow with them.

    The result is the same, to the last bit, for every order and every division of the values into
    arrays. Values are counted as float32: float16 is exact, float64 is rounded.

    A float32 value costs 4 ns of a core, and an array 10 us. Several threads are no quicker than
    one: half of that is ``bincount``, which keeps the interpreter's lock (numpy 2.4.6, x86-64,
    2026-11-21).

    Args:
        exponent: The width of the bins is 2 to this, however many they become. Without it, it is
            what the values ask for.
    """

    def __init__(self, exponent: int | None = None) -> None:
        self._fixed_exponent = exponent
        self.low = math.inf
        """The smallest value, infinity before the first one."""
        self.high = -math.inf
        """The largest value, minus infinity before the first one."""
        self._exponent = _FINEST
        self._first = 0
        self._counts: Array = np.zeros(0, dtype=np.int64)

    def find_exponent(self, low: float, high: float) -> int:
        """Return the power of two that the width is when values from low to high have come too."""
        if self._fixed_exponent is not None:
            return self._fixed_exponent
        return _find_exponent(min(low, self.low), max(high, self.high))

    def add(self, values: Array, extent: tuple[float, float] | None = None) -> None:
        """Count the values of an array of any shape; an empty array adds nothing.

        Args:
            values: float16, float32 or float64. Contiguous float32 is not copied.
            extent: The smallest and the largest of them as float32, from a caller that knows them;
                they are found here otherwise.

        Raises:
            StepError: A value is NaN, or infinite as float32. The histogram is unusable then.
        """
        with np.errstate(over="ignore"):
            flat = values.astype(np.float32, copy=False).reshape(-1)
        if extent is not None and flat.size:
            self._widen_bins(*extent)
        for start in range(0, flat.size, _CHUNK):
            chunk = flat[start : start + _CHUNK]
            if extent is None:
                # By chunk: the values are in the cache when they are binned a moment later.
                self._widen_bins(float(np.minimum.reduce(chunk)), float(np.maximum.reduce(chunk)))
            self._count_chunk(chunk)

    def merge(self, other: TensorStatistics) -> None:
        """Count the values that another histogram has counted.

        Raises:
            StepError: Its bins are wider than those of all values together may be: no
                :class:`Histogram` has made it.
        """
        self._widen_bins(other.low, other.high)
        exponent = math.frexp(other.width)[1] - 1 if other.width else _FINEST
        if exponent > self._exponent:
            raise BugError(
                f"bins {other.width} wide are too wide for values from {other.low} to {other.high}"
            )
        self._counts += self._rebin_counts(other.counts, other.first, exponent)

    def make_statistics(self) -> TensorStatistics:
        """Return what was counted so far, without channels.

        Raises:
            StepError: There was no value.
        """
        if not self._counts.size:
            raise StepError(
                "a tensor had no value in any calibration sample",
                hint="give samples on which every tensor of the model has values",
            )
        return TensorStatistics(
            low=self.low,
            high=self.high,
            counts=self._counts.copy(),
            first=self._first,
            width=0.0 if self.low == self.high == 0 else 2.0**self._exponent,
        )

    def _widen_bins(self, low: float, high: float) -> None:
        """Make the bins reach from ``low`` to ``high``."""
        if not (math.isfinite(low) and math.isfinite(high)):
            raise StepError(
                f"a tensor has values from {low} to {high}",
                hint="only finite values can be quantized: check the samples and their scale",
            )
        if low >= self.low and high <= self.high:
            return
        # 0.0 is added to make -0.0 of one order of the values the 0.0 of another.
        self.low, self.high = min(low, self.low) + 0.0, max(high, self.high) + 0.0
        counts, first, exponent = self._counts, self._first, self._exponent
        self._exponent = self.find_exponent(self.low, self.high)
        self._first = _find_bin(self.low, self._exponent)
        self._counts = np.zeros(
            _find_bin(self.high, self._exponent) - self._first + 1, dtype=np.int64
        )
        self._counts += self._rebin_counts(counts, first, exponent)

    def _rebin_counts(self, counts: Array, first: int, exponent: int) -> Array:
        """Return counts of equally fine or finer bins by the bins of this histogram."""
        for coarser in range(exponent, self._exponent):
            if len(counts) <= 1:
                first >>= self._exponent - coarser
                break
            # A bin that begins at an even multiple of the width, and the one behind it.
            even = np.zeros((first & 1) + len(counts) + (first + len(counts) & 1), dtype=np.int64)
            even[first & 1 : (first & 1) + len(counts)] = counts
            counts, first = even[0::2] + even[1::2], first >> 1
        found = np.zeros_like(self._counts)
        found[first - self._first : first - self._first + len(counts)] = counts
        return found

    def _count_chunk(self, chunk: Array) -> None:
        """Count float32 (n,) values, at most a chunk, that are within the bins."""
        # A float32 times 2**-exponent is exact as float32 only where it cannot underflow.
        exact = -126 <= self._exponent <= 0
        scaled = np.multiply(chunk, 2.0**-self._exponent, dtype=np.float32 if exact else np.float64)
        if self._first < 0:
            np.floor(scaled, out=scaled)
        if self._first:
            np.subtract(scaled, self._first, out=scaled)
        # By way of int32: numpy has no vector instructions for float32 to int64.
        found = np.bincount(scaled.astype(np.int32))
        self._counts[: len(found)] += found


def _find_exponent(low: float, high: float) -> int:
    """Return the power of two that is the width of bins from ``low`` to ``high``.

    It is the smallest with which they are at most ``BINS``, and not finer than the steps of float32
    at the largest magnitude, because there are no values between.
    """
    largest = max(-low, high)
    finest = math.frexp(largest)[1] - _MANTISSA_BITS if largest else _FINEST
    enough = math.frexp((high - low) / BINS)[1] - 1 if high > low else _FINEST
    exponent = max(finest, enough, _FINEST)
    while _find_bin(high, exponent) - _find_bin(low, exponent) >= BINS:
        exponent += 1
    return exponent


def _find_bin(value: float, exponent: int) -> int:
    return math.floor(math.ldexp(value, -exponent))

"""A histogram against one of all values in memory, in whatever order and parts they come."""

from __future__ import annotations

import math
import threading
from fractions import Fraction

import numpy as np
import pytest
from edgepack.errors import StepError
from edgepack.quantization.ranges.histogram import BINS, Histogram
from edgepack.quantization.ranges.statistics import TensorStatistics
from hypothesis import given
from hypothesis import strategies as st

FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)
NEAR = st.floats(-6, 6, width=32)
VALUES = st.lists(FINITE, min_size=1, max_size=60) | st.lists(NEAR, min_size=1, max_size=60)


def counted(*arrays):
    histogram = Histogram()
    for array in arrays:
        histogram.add(np.asarray(array))
    return histogram.make_statistics()


def merged(*parts):
    histogram = Histogram()
    for part in parts:
        histogram.merge(part)
    return histogram.make_statistics()


def exact(values):
    """What the bins have to be, in rational numbers."""
    low, high = Fraction(float(min(values))), Fraction(float(max(values)))
    if low == high == 0:
        return 0.0, {0: len(values)}
    width = Fraction(2) ** max(math.frexp(max(-low, high))[1] - 24, -149)
    while high // width - low // width >= BINS:
        width *= 2
    counts = {}
    for value in values:
        place = Fraction(float(value)) // width
        counts[place] = counts.get(place, 0) + 1
    return float(width), counts


def as_dict(statistics):
    bins = np.flatnonzero(statistics.counts)
    return {statistics.first + int(k): int(statistics.counts[k]) for k in bins}


def assert_same(one, other):
    assert (one.low, one.high, one.first, one.width) == (
        other.low,
        other.high,
        other.first,
        other.width,
    )
    assert math.copysign(1, one.low) == math.copysign(1, other.low)
    assert math.copysign(1, one.high) == math.copysign(1, other.high)
    assert one.counts.dtype == other.counts.dtype == np.int64
    assert one.counts.tobytes() == other.counts.tobytes()


@given(VALUES)
def test_histogram_when_given_any_values_counts_them_exactly(values):
    values = np.array(values, dtype=np.float32)
    found = counted(values)
    width, counts = exact(values)
    assert (found.low, found.high) == (values.min(), values.max())
    assert found.width == width
    assert as_dict(found) == counts
    assert found.counts[0] > 0
    assert found.counts[-1] > 0


@given(VALUES, st.randoms(use_true_random=False), st.integers(1, 12))
def test_histogram_when_values_are_reordered_and_divided_is_bit_equal(values, random, parts):
    values = np.array(values, dtype=np.float32)
    order = random.sample(range(len(values)), len(values))
    pieces = np.array_split(values[order], parts)
    assert_same(counted(values), counted(*pieces))
    filled = [counted(piece) for piece in pieces if piece.size]
    assert_same(counted(values), merged(*filled))


@pytest.mark.parametrize("seed", range(4))
def test_histogram_when_there_are_many_chunks_is_bit_equal_for_any_division(seed):
    rng = np.random.default_rng(seed)
    values = (rng.standard_t(2, 150_000) * 10.0 ** rng.integers(-44, 30)).astype(np.float32)
    whole = counted(values)
    bins = np.floor(values.astype(np.float64) / whole.width).astype(np.int64) - whole.first
    assert np.array_equal(np.bincount(bins, minlength=len(whole.counts)), whole.counts)
    assert BINS / 2 < len(whole.counts) <= BINS
    cuts = np.sort(rng.integers(0, len(values), 9))
    assert_same(whole, counted(*np.split(rng.permutation(values), cuts)))


def test_histogram_when_samples_are_batched_differently_is_bit_equal():
    samples = np.random.default_rng(0).standard_normal((6, 3, 17, 5)).astype(np.float32)
    assert_same(counted(samples), counted(*samples))
    assert_same(counted(samples), counted(samples[:4], samples[4:]))
    assert_same(counted(samples), counted(samples.transpose(0, 2, 3, 1)))


def test_histogram_when_the_extent_is_known_to_the_caller_is_the_same():
    values = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    histogram = Histogram()
    histogram.add(values, (float(values.min()), float(values.max())))
    histogram.add(values[:10], (float(values[:10].min()), float(values[:10].max())))
    assert_same(histogram.make_statistics(), counted(values, values[:10]))


def test_histogram_when_two_threads_fill_two_of_them_counts_as_alone():
    rng = np.random.default_rng(0)
    sets = [rng.standard_normal((8, 70_000)).astype(np.float32) * 10**k for k in range(2)]
    histograms = [Histogram(), Histogram()]

    def fill(k):
        for array in sets[k]:
            histograms[k].add(array)

    threads = [threading.Thread(target=fill, args=(k,)) for k in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for histogram, arrays in zip(histograms, sets, strict=True):
        assert_same(histogram.make_statistics(), counted(*arrays))


def test_histogram_when_all_values_are_zero_has_one_bin_without_width():
    found = counted(np.zeros(5, dtype=np.float32), np.array([-0.0]))
    assert (found.low, found.high, found.first, found.width) == (0.0, 0.0, 0, 0.0)
    assert found.counts.tolist() == [6]


@pytest.mark.parametrize("order", [(0.0, -0.0), (-0.0, 0.0)])
def test_histogram_when_zero_has_a_sign_forgets_it(order):
    found = counted(*(np.array([zero], dtype=np.float32) for zero in order), np.array([1.0]))
    assert_same(found, counted(np.array([0.0, 0.0, 1.0])))


@pytest.mark.parametrize("value", [3.0, -7.5, 1e-45, -1e-45, 3.4e38, -3.4e38, 1e-40])
def test_histogram_when_all_values_are_the_same_has_one_bin_around_it(value):
    value = float(np.float32(value))
    found = counted(np.full(9, value, dtype=np.float32))
    assert found.counts.tolist() == [9]
    assert found.first * found.width <= value < (found.first + 1) * found.width


def test_histogram_when_tiny_negative_values_meet_huge_ones_keeps_their_sign():
    tiny, huge = float(np.float32(-1e-45)), float(np.float32(3e38))
    found = counted(np.array([tiny, huge], dtype=np.float32))
    assert found.first == -1
    assert_same(found, counted(np.array([tiny]), np.array([huge])))


def test_histogram_when_given_half_or_double_counts_them_as_single():
    values = np.random.default_rng(0).standard_normal(500)
    half = values.astype(np.float16)
    assert_same(counted(half), counted(half.astype(np.float32)))
    assert_same(counted(values), counted(values.astype(np.float32)))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e300])
@pytest.mark.parametrize("place", [0, 70_000])
def test_histogram_when_a_value_is_not_finite_refuses_it(bad, place):
    values = np.zeros(90_000)
    values[place] = bad
    with pytest.raises(StepError, match="values from"):
        counted(values)


def test_histogram_when_an_array_is_empty_counts_nothing_of_it():
    empty = np.zeros((0, 3), dtype=np.float32)
    assert_same(counted(empty, np.ones(2), empty), counted(np.ones(2)))
    histogram = Histogram()
    histogram.add(empty, (math.inf, -math.inf))
    assert histogram.low > histogram.high


def test_histogram_when_there_was_no_value_has_no_statistics():
    with pytest.raises(StepError, match="no value"):
        counted(np.zeros(0, dtype=np.float32))


def test_histogram_when_merging_bins_that_are_too_wide_refuses_them():
    coarse = TensorStatistics(0.5, 1.5, np.array([1, 1]), 0, 1.0)
    with pytest.raises(StepError, match="too wide"):
        merged(coarse)

"""Ranges against the same methods computed from all values in memory, and against real rounding."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
from edgepack.quantization.ranges.histogram import Histogram
from edgepack.quantization.ranges.methods import find_range
from hypothesis import example, given
from hypothesis import strategies as st

METHODS = ("minmax", "percentile", "entropy", "mse")
GRIDS = [(256, False), (256, True), (65536, False), (65536, True)]


def silu(x):
    return x / (1 + np.exp(-x))


@cache
def samples(name, n=40_000):
    rng = np.random.default_rng(7)
    normal = rng.standard_normal(n)
    values = {
        "normal": normal,
        "shifted": normal + 1,
        "relu": np.maximum(normal, 0),
        "relu6": np.clip(4 * normal, 0, 6),
        "negative": -np.abs(normal),
        "laplace": rng.laplace(size=n),
        "heavy tails": rng.standard_t(3, n),
        "lognormal": np.exp(1.5 * normal),
        "silu": silu(3 * normal),
        "sigmoid": 1 / (1 + np.exp(-4 * normal)),
        "outliers": np.where(rng.random(n) < 1e-3, 30 * normal, normal),
        "rectified outliers": np.maximum(np.where(rng.random(n) < 1e-3, 30 * normal, normal), 0),
    }[name]
    return values.astype(np.float32)


NAMES = (
    "normal",
    "shifted",
    "relu",
    "relu6",
    "negative",
    "laplace",
    "heavy tails",
    "lognormal",
    "silu",
    "sigmoid",
    "outliers",
    "rectified outliers",
)
ONE_SIDED = ("relu", "relu6", "negative", "lognormal", "sigmoid", "rectified outliers")


def statistics_of(values):
    histogram = Histogram()
    histogram.add(np.asarray(values, dtype=np.float32))
    return histogram.make_statistics()


def found(values, method, levels=256, *, symmetric=False, **kwargs):
    return find_range(statistics_of(values), method, levels=levels, symmetric=symmetric, **kwargs)


def quantized(values, low, high, levels, symmetric):
    """Round to the grid in float64, as QuantizeLinear and DequantizeLinear do."""
    if symmetric:
        step, first, last = high / (levels // 2 - 1), 1 - levels // 2, levels // 2 - 1
    else:
        step = (high - low) / (levels - 1)
        zero = np.rint(-low / step)
        first, last = -zero, levels - 1 - zero
    return np.clip(np.rint(values.astype(np.float64) / step), first, last) * step


def squared_error(values, low, high, levels, symmetric):
    return np.mean((quantized(values, low, high, levels, symmetric) - values) ** 2)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("levels", [256, 65536])
def test_minmax_when_asked_covers_all_values_and_zero(name, levels):
    values = samples(name)
    low, high = float(min(values.min(), 0)), float(max(values.max(), 0))
    largest = float(np.abs(values).max())
    assert found(values, "minmax", levels) == (low, high)
    assert found(values, "minmax", levels, symmetric=True) == (-largest, largest)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("percentile", [99.999, 99.99, 99.9, 90.0])
def test_percentile_when_computed_from_all_values_is_the_same_within_a_bin(name, percentile):
    values = samples(name)
    width = statistics_of(values).width
    tail = (100 - percentile) / 2
    exact = np.percentile(values.astype(np.float64), [tail, 100 - tail])
    expected = [min(exact[0], 0), max(exact[1], 0)]
    assert found(values, "percentile", percentile=percentile) == pytest.approx(expected, abs=width)
    exact = np.percentile(np.abs(values.astype(np.float64)), percentile)
    symmetric = found(values, "percentile", symmetric=True, percentile=percentile)
    assert symmetric == pytest.approx([-exact, exact], abs=width)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("symmetric", [True, False])
def test_percentile_when_nearly_all_values_are_zero_covers_all(sign, symmetric):
    values = np.zeros(2_000_000, dtype=np.float32)
    values[:3] = sign, 2 * sign, 3 * sign
    expected = found(values, "minmax", symmetric=symmetric)
    assert expected[1] - expected[0] >= 3
    assert found(values, "percentile", symmetric=symmetric) == expected


def test_percentile_when_nearly_all_values_of_both_signs_are_zero_covers_all():
    values = np.zeros(2_000_000, dtype=np.float32)
    values[:2] = -1, 3
    assert found(values, "percentile") == (-1, 3)


def modelled_error(values, high, steps):
    """The method's own measure, from all values."""
    rounding = np.minimum(values**2, (high / steps) ** 2 / 12)
    return np.sum(rounding) + np.sum(np.maximum(values - high, 0) ** 2)


@pytest.mark.parametrize(("name", "levels"), [*((name, 256) for name in NAMES), ("normal", 65536)])
def test_mse_when_every_threshold_is_tried_on_all_values_is_the_same_within_a_bin(name, levels):
    values = np.abs(samples(name, 4_000)).astype(np.float64)
    statistics = statistics_of(values)
    borders = np.arange(1, math.ceil(values.max() / statistics.width)) * statistics.width
    ends = np.append(borders, values.max())
    steps = levels // 2 - 1
    best = ends[np.argmin([modelled_error(values, end, steps) for end in ends])]
    low, high = find_range(statistics, "mse", levels=levels, symmetric=True)
    assert high == -low
    assert high == pytest.approx(best, abs=1.001 * statistics.width)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("levels", [256, 1024])
def test_mse_when_values_are_really_rounded_is_the_best_of_many_ranges(name, symmetric, levels):
    values = samples(name, 15_000)
    low, high = found(values, "minmax", symmetric=symmetric)
    scales = np.geomspace(0.05, 1, 60)
    if symmetric or name in ONE_SIDED:
        ranges = [(low * scale, high * scale) for scale in scales]
    else:
        ranges = [(low * a, high * b) for a in scales[20::3] for b in scales[20::3]]
    best = min(squared_error(values, *ends, levels, symmetric) for ends in ranges)
    reached = squared_error(
        values, *found(values, "mse", levels, symmetric=symmetric), levels, symmetric
    )
    assert reached <= 1.01 * best


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ONE_SIDED])
@pytest.mark.parametrize("levels", [256, 65536])
def test_mse_when_both_ends_are_free_has_zero_on_the_grid(name, levels):
    low, high = found(samples(name), "mse", levels)
    zero = -low / (high - low) * (levels - 1)
    assert zero == pytest.approx(round(zero), abs=1e-6)
    assert 0 < round(zero) < levels - 1


@pytest.mark.parametrize("method", ["minmax", "percentile", "entropy"])
@pytest.mark.parametrize("name", NAMES)
def test_mse_when_values_are_really_rounded_is_no_worse_than_other_methods(name, method):
    values = samples(name)
    for symmetric in (True, False):
        mse, other = (
            squared_error(values, *found(values, m, symmetric=symmetric), 256, symmetric)
            for m in ("mse", method)
        )
        assert mse <= 1.01 * other


def divergence(counts, end, groups):
    """Kullback-Leibler divergence of the first ``end`` bins from themselves merged, bin by bin."""
    counts = [min(counts[0], counts[1]), *counts[1:]]
    window, outside = counts[:end], sum(counts[end:])
    sums, filled = [0] * groups, [0] * groups
    for k, count in enumerate(window):
        sums[k * groups // end] += count
        filled[k * groups // end] += count > 0
    places = [k for k in range(end) if window[k] > 0]
    if not places:
        return math.inf
    total, merged_total = sum(window) + outside, sum(sums)
    result = 0.0
    for k in places:
        p = (window[k] + outside * (k == places[-1])) / total
        q = sums[k * groups // end] / filled[k * groups // end] / merged_total
        result += p * math.log(p / q)
    return result


@pytest.mark.parametrize("name", ["relu", "lognormal", "sigmoid", "rectified outliers"])
@pytest.mark.parametrize(("levels", "symmetric"), [(8, False), (16, True)])
def test_entropy_when_every_window_is_merged_bin_by_bin_is_the_same(name, levels, symmetric):
    statistics = statistics_of(samples(name, 3_000))
    bins = math.ceil(statistics.high / statistics.width)
    assert 2048 < bins <= 4096
    pairs = np.resize(statistics.counts, 4096)
    pairs[len(statistics.counts) :] = 0
    pairs = pairs.reshape(-1, 2).sum(axis=1)[: (len(statistics.counts) + 1) // 2]
    ends = range(len(pairs), 7, -8)
    coarse = {end: divergence(pairs.tolist(), end, 8) for end in ends}
    best = min(coarse, key=coarse.get)
    near = range(min(best + 8, len(pairs)), max(best - 9, 7), -1)
    fine = {end: divergence(pairs.tolist(), end, 8) for end in near}
    expected = min(min(fine, key=fine.get) * 2 * statistics.width, statistics.high)
    low, high = find_range(statistics, "entropy", levels=levels, symmetric=symmetric)
    assert high == pytest.approx(expected, abs=1.001 * statistics.width)
    assert low == (-high if symmetric else 0)


@pytest.mark.parametrize("name", ["heavy tails", "lognormal", "outliers", "rectified outliers"])
@pytest.mark.parametrize("symmetric", [True, False])
def test_entropy_when_tails_are_heavy_clips_them(name, symmetric):
    values = samples(name)
    whole = found(values, "minmax", symmetric=symmetric)
    low, high = found(values, "entropy", symmetric=symmetric)
    assert high < 0.8 * whole[1]
    clipped = np.mean((values < low) | (values > high))
    assert clipped < 0.05


def test_entropy_when_values_are_evenly_spread_covers_all():
    values = np.linspace(0, 1, 100_001, dtype=np.float32)
    assert found(values, "entropy") == pytest.approx((0, 1), abs=0.01)


def test_entropy_when_many_zeros_are_added_is_the_same():
    values = samples("rectified outliers")
    for symmetric in (True, False):
        more = np.concatenate([values, np.zeros(300_000, dtype=np.float32)])
        assert found(more, "entropy", symmetric=symmetric) == found(
            values, "entropy", symmetric=symmetric
        )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("symmetric", [True, False])
def test_entropy_when_levels_outnumber_bins_covers_all(name, symmetric):
    values = samples(name)
    whole = found(values, "minmax", 65536, symmetric=symmetric)
    assert found(values, "entropy", 65536, symmetric=symmetric) == whole


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["shifted", "relu", "negative", "heavy tails", "silu"])
@pytest.mark.parametrize("exponent", [-90, 100])
def test_range_when_all_values_are_scaled_scales_with_them(name, method, exponent):
    values = samples(name, 5_000)
    for levels, symmetric in GRIDS:
        low, high = found(values, method, levels, symmetric=symmetric)
        expected = math.ldexp(low, exponent), math.ldexp(high, exponent)
        scaled = found(np.ldexp(values, exponent), method, levels, symmetric=symmetric)
        assert scaled == pytest.approx(expected, rel=1e-12)


# Not entropy: its measure is ragged, and what bin a border belongs to can move it far.
@pytest.mark.parametrize("method", ["minmax", "percentile", "mse"])
@pytest.mark.parametrize("name", NAMES)
def test_range_when_all_values_are_negated_is_mirrored(name, method):
    values = samples(name)
    for symmetric in (True, False):
        low, high = found(values, method, symmetric=symmetric)
        other_low, other_high = found(-values, method, symmetric=symmetric)
        near = 0.01 * (high - low)
        assert (-other_high, -other_low) == pytest.approx((low, high), abs=near)


DEGENERATE = {
    "constant": np.full(1000, 7.0),
    "negative constant": np.full(1000, -7.0),
    "one value": np.array([3.0]),
    "two values": np.array([-1.0, 2.0]),
    "few values": np.array([0.1, -0.2, 0.3, 0.7]),
    "one denormal": np.array([1e-45]),
    "denormals": np.arange(-300, 200) * 1e-45,
    "huge": np.linspace(-3.4e38, 3.4e38, 999),
    "huge and tiny": np.array([-1e-45, 3.4e38, 1e-40, 1.0]),
    "one outlier": np.append(np.linspace(-1, 1, 9999), 1e6),
    "one negative outlier": np.append(np.linspace(-1, 1, 9999), -1e6),
    "far from zero": np.linspace(1000, 1001, 5000),
    "far below zero": np.linspace(-1e6, -1e6 + 1, 5000),
    "next to each other": np.array([1.0, np.nextafter(np.float32(1), np.float32(2))]),
    "sparse": np.append(np.zeros(100_000), [1.0]),
    "sparse negative": np.append(np.zeros(100_000), [-1.0]),
    "two spikes": np.repeat([-1.0, 5.0], 1000),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("case", DEGENERATE)
def test_range_when_values_are_degenerate_is_finite_and_not_empty(case, method):
    values = DEGENERATE[case].astype(np.float32)
    for levels, symmetric in GRIDS:
        low, high = found(values, method, levels, symmetric=symmetric)
        whole = found(values, "minmax", levels, symmetric=symmetric)
        assert math.isfinite(low)
        assert math.isfinite(high)
        assert low <= 0 <= high
        assert high > low
        step = 1.5 * (high - low) / (levels - 1)
        assert whole[0] - step <= low
        assert high <= whole[1] + step


@pytest.mark.parametrize("method", METHODS)
def test_range_when_all_values_are_zero_is_zero(method):
    for levels, symmetric in GRIDS:
        ends = found(np.zeros(10), method, levels, symmetric=symmetric)
        assert ends == (0.0, 0.0)
        assert [math.copysign(1, end) for end in ends] == [1, 1]


@pytest.mark.parametrize("method", ["minmax", "percentile", "mse"])
def test_range_when_the_tensor_is_constant_ends_at_the_constant(method):
    for constant in (2.5, -0.1, 1e-45):
        value = float(np.float32(constant))
        low, high = found(np.full(50, value), method)
        assert (low, high) == (min(value, 0), max(value, 0))


@example([736904478720.0, 265214214144.0, -634706067456.0], "mse", (256, False))
@given(
    st.lists(st.floats(-(2.0**40), 2.0**40, width=32), min_size=1, max_size=40),
    st.sampled_from(METHODS),
    st.sampled_from(GRIDS),
)
def test_range_when_given_any_values_holds_zero_and_stays_among_them(values, method, grid):
    low, high = found(values, method, grid[0], symmetric=grid[1])
    whole_low, whole_high = found(values, "minmax", grid[0], symmetric=grid[1])
    assert low <= 0 <= high
    assert (high > low) == any(values)
    step = 1.5 * (high - low) / (grid[0] - 1)
    assert whole_low - step <= low
    assert high <= whole_high + step
    if grid[1]:
        assert low == -high

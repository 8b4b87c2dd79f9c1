"""Statistics against published tables, numpy and their own laws."""

from __future__ import annotations

import math

import numpy as np
import pytest
from edgepack.base import statistics
from hypothesis import given
from hypothesis import strategies as st

NUMBERS = st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=50)


# Source: NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2, upper critical values of t.
@pytest.mark.parametrize(
    ("probability", "degrees", "expected"),
    [
        (0.975, 1, 12.706),
        (0.975, 2, 4.303),
        (0.975, 4, 2.776),
        (0.975, 10, 2.228),
        (0.975, 30, 2.042),
        (0.975, 100, 1.984),
        (0.995, 4, 4.604),
        (0.995, 5, 4.032),
        (0.995, 9, 3.250),
        (0.999, 3, 10.215),
        (0.90, 7, 1.415),
        (0.95, 6, 1.943),
    ],
)
def test_t_quantile_is_the_published_value(
    probability: float, degrees: int, expected: float
) -> None:
    assert statistics.t_quantile(probability, degrees) == pytest.approx(expected, abs=6e-4)
    assert statistics.t_quantile(1 - probability, degrees) == pytest.approx(-expected, abs=6e-4)


def test_t_quantile_is_zero_at_one_half() -> None:
    assert statistics.t_quantile(0.5, 7) == pytest.approx(0, abs=1e-9)


@given(st.floats(0.01, 0.99), st.integers(1, 60))
def test_t_distribution_inverts_t_quantile(probability: float, degrees: int) -> None:
    t = statistics.t_quantile(probability, degrees)
    assert statistics.t_distribution(t, degrees) == pytest.approx(probability, abs=1e-9)


@given(NUMBERS, st.floats(0, 100))
def test_percentile_equals_numpys_default(values: list[float], percent: float) -> None:
    expected = float(np.percentile(values, percent))
    assert statistics.percentile(values, percent) == pytest.approx(expected, rel=1e-9)


@given(NUMBERS)
def test_percentiles_are_ordered_and_within_the_values(values: list[float]) -> None:
    found = [statistics.percentile(values, percent) for percent in (0, 10, 50, 90, 100)]
    assert found == sorted(found)
    assert found[0] == min(values)
    assert found[-1] == max(values)


def test_mad_and_spread_of_small_numbers() -> None:
    values = [1.0, 1.0, 2.0, 2.0, 4.0, 6.0, 9.0]
    assert statistics.median(values) == 2.0
    assert statistics.mad(values) == 1.0
    assert statistics.standard_deviation([2.0, 4.0, 6.0]) == 2.0


def test_outliers_are_counted_by_modified_z() -> None:
    scale = 1.4826
    values = [9.0, 10.0, 11.0, 9.0, 11.0, 10.0 + 4 * scale, 10.0 - 15 * scale]
    assert statistics.mad(values) == 1.0
    assert statistics.count_outliers(values) == statistics.Outliers(listed=2, flagged=1)


def test_outliers_are_none_when_all_values_are_equal() -> None:
    assert statistics.count_outliers([5.0] * 9) == statistics.Outliers(0, 0)


def test_log_t_interval_is_the_textbook_one() -> None:
    medians = [9.8, 10.1, 10.0, 10.3, 9.9]
    logs = np.log(medians)
    reach = 2.7764451 * logs.std(ddof=1) / math.sqrt(5)
    found = statistics.log_t_interval(medians)
    assert found.estimate == pytest.approx(math.exp(logs.mean()))
    assert found.low == pytest.approx(math.exp(logs.mean() - reach), rel=1e-8)
    assert found.high == pytest.approx(math.exp(logs.mean() + reach), rel=1e-8)


@given(st.lists(st.floats(0.5, 2), min_size=2, max_size=12))
def test_log_t_interval_of_ratios_mirrors_when_they_are_inverted(ratios: list[float]) -> None:
    found = statistics.log_t_interval(ratios)
    mirrored = statistics.log_t_interval([1 / ratio for ratio in ratios])
    assert found.estimate == pytest.approx(1 / mirrored.estimate)
    assert found.low == pytest.approx(1 / mirrored.high)


@given(st.lists(st.floats(1, 100), min_size=2, max_size=12), st.floats(0.1, 10))
def test_log_t_interval_scales_with_its_values(values: list[float], factor: float) -> None:
    found = statistics.log_t_interval(values)
    scaled = statistics.log_t_interval([value * factor for value in values])
    assert scaled.high == pytest.approx(found.high * factor)
    assert found.low <= found.estimate <= found.high


def test_log_t_interval_widens_with_confidence() -> None:
    narrow = statistics.log_t_interval([1.0, 1.1, 1.2], 0.9)
    wide = statistics.log_t_interval([1.0, 1.1, 1.2], 0.99)
    assert wide.low < narrow.low < narrow.high < wide.high


@pytest.mark.parametrize(("percent", "needed"), [(50, 11), (90, 64), (95, 130), (99, 662)])
def test_samples_needed_when_counted_by_the_binomial_leave_two_above(
    percent: float, needed: int
) -> None:
    def chance_of_fewer_than_two(samples: int) -> float:
        above = 1 - percent / 100
        return sum(
            math.comb(samples, count) * above**count * (1 - above) ** (samples - count)
            for count in (0, 1)
        )

    assert statistics.count_samples_needed(percent) == needed
    assert chance_of_fewer_than_two(needed) <= 0.01 < chance_of_fewer_than_two(needed - 1)
    assert statistics.count_samples_needed(99) == statistics.MIN_SAMPLES_P99

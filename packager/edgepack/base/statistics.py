"""The statistics of latencies: plain functions over sequences of numbers, without I/O.

The sampling unit is the process run, never the iteration: iterations within a process share its
memory layout, thread placement and temperature, so an interval over them is far too narrow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

MAD_TO_SIGMA = 1.4826
"""The MAD of a normal distribution, times this, is its standard deviation."""
LISTED_Z = 3.5
FLAGGED_Z = 14.8
EARLY_STOPPING_ERROR = 0.01
MIN_SAMPLES_P99 = 662
"""For a 99 % confident estimate of the 99th percentile. Source: MLPerf Inference rules, early
stopping; ``min_query_count`` of MultiStream in mlperf.conf."""


@dataclass(frozen=True)
class Interval:
    """An estimate with its confidence interval, in the unit of the numbers."""

    estimate: float
    low: float
    high: float


@dataclass(frozen=True)
class Outliers:
    """How many numbers lie far from the median. None of them is ever dropped."""

    listed: int
    """With a modified z-score beyond 3.5."""
    flagged: int
    """With a modified z-score beyond 14.8."""


def percentile(values: Sequence[float], percent: float) -> float:
    """Return a percentile, linearly interpolated between the two nearest ranks.

    The rank is ``percent / 100 * (n - 1)``, counted from 0: Hyndman and Fan's type 7, as numpy's
    default.
    """
    return sorted_percentile(sorted(values), percent)


def sorted_percentile(ordered: Sequence[float], percent: float) -> float:
    """Return a percentile as :func:`percentile` does, of numbers in ascending order."""
    rank = percent / 100 * (len(ordered) - 1)
    low = math.floor(rank)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (rank - low)


def count_samples_needed(percent: float) -> int:
    """Return how many samples an estimate of a percentile needs, to be 99 % confident.

    The least number of which at least two lie above the percentile in 99 % of cases. Source: MLPerf
    Inference rules, early stopping, with one sample above the estimate discarded: 64 for p90, 130
    for p95, 662 for p99.
    """
    below = percent / 100
    samples = 2
    while below**samples + samples * (1 - below) * below ** (samples - 1) > EARLY_STOPPING_ERROR:
        samples += 1
    return samples


def median(values: Sequence[float]) -> float:
    """Return the 50th percentile."""
    return percentile(values, 50)


def mad(values: Sequence[float]) -> float:
    """Return the median absolute deviation from the median, unscaled."""
    centre = median(values)
    return median([abs(value - centre) for value in values])


def standard_deviation(values: Sequence[float]) -> float:
    """Return the sample standard deviation, with ``n - 1``; at least two values are needed."""
    centre = fmean(values)
    return math.sqrt(math.fsum((value - centre) ** 2 for value in values) / (len(values) - 1))


def count_outliers(values: Sequence[float]) -> Outliers:
    """Count the numbers far from the median, measured in scaled MADs.

    Where more than half of the values are equal the MAD is 0, and every other value is far.
    """
    centre, scale = median(values), mad(values) * MAD_TO_SIGMA
    distances = [abs(value - centre) for value in values]
    return Outliers(
        sum(distance > LISTED_Z * scale for distance in distances),
        sum(distance > FLAGGED_Z * scale for distance in distances),
    )


def log_t_interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """Return the geometric mean with Student's t interval on the logarithms.

    Args:
        values: Positive and independent, such as one median per process run, or one ratio per
            pair; at least two.
        confidence: Between 0 and 1.
    """
    logs = [math.log(value) for value in values]
    centre = fmean(logs)
    error = standard_deviation(logs) / math.sqrt(len(logs))
    reach = t_quantile((1 + confidence) / 2, len(logs) - 1) * error
    return Interval(math.exp(centre), math.exp(centre - reach), math.exp(centre + reach))


def t_quantile(probability: float, degrees: int) -> float:
    """Return Student's t quantile by bisection of the distribution function.

    Args:
        probability: Between 0 and 1, both excluded.
        degrees: Degrees of freedom, at least 1.
    """
    if probability < 0.5:
        return -t_quantile(1 - probability, degrees)
    low, high = 0.0, 1.0
    while t_distribution(high, degrees) < probability:
        high *= 2
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if t_distribution(middle, degrees) < probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def t_distribution(t: float, degrees: int) -> float:
    """Return the probability that a Student's t variable is at most ``t``.

    For whole degrees of freedom it is a finite sum in the angle ``atan(t / sqrt(degrees))``.
    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4.
    """
    angle = math.atan(t / math.sqrt(degrees))
    sine, cosine = math.sin(angle), math.cos(angle)
    if degrees % 2:
        within = 2 / math.pi * (angle + sine * _sum_cosines(cosine, degrees))
    else:
        within = sine * _sum_cosines(cosine, degrees)
    return (1 + within) / 2


def _sum_cosines(cosine: float, degrees: int) -> float:
    """Sum ``c + 2/3 c^3 + 2*4/(3*5) c^5 + ...`` (odd) or ``1 + 1/2 c^2 + ...`` (even degrees)."""
    odd = degrees % 2
    term = cosine if odd else 1.0
    total = 0.0
    for power in range(odd, degrees - 1, 2):
        total += term
        term *= cosine * cosine * (power + 1) / (power + 2)
    return total

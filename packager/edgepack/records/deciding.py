"""Decides over pairs of process runs whether one release is slower than another. No I/O.

Pairs are measured base, candidate, candidate, base (ABBA), so that a device that warms up steadily
slows both alike. One process run gives one median, and one pair one log-ratio: iterations within a
process are no samples of their own. Student's t on the log-ratios gives the interval.

Pairs are added until the question is settled, and looked at several times. The error of a look is
the whole error divided by the number of looks (Bonferroni), which is valid however the looks depend
on each other. Over devices and metrics, Holm's procedure keeps the chance of any false FAIL below
the whole error. PASS needs no correction: it is given only where every metric passes, so a wrong
PASS needs at least one metric that is wrongly passed (an intersection-union test: Berger,
Technometrics 24, 1982).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from edgepack.base.statistics import Interval, standard_deviation, t_distribution, t_quantile

Outcome = Literal["PASS", "FAIL", "INCONCLUSIVE"]

FIRST_LOOK = 6
"""Pairs. With four, half an interval is 4.7 standard deviations of a pair wide, with six 2.3:
Student's t over the root of the number, at an error of 1 % in eight looks."""
LOOK_EVERY = 2
"""Pairs: a whole ABBA."""


@dataclass(frozen=True)
class Rule:
    """How sure an answer has to be, and when to stop."""

    error: float = 0.01
    """The chance of a false FAIL over all devices and metrics, and that of a false PASS."""
    max_pairs: int = 20

    def __post_init__(self) -> None:
        if not 0 < self.error < 0.5:
            raise ValueError(f"an error of {self.error} is no probability below a half")
        if self.max_pairs < FIRST_LOOK or self.max_pairs % LOOK_EVERY:
            raise ValueError(f"max_pairs must be an even number from {FIRST_LOOK}")

    @property
    def looks(self) -> range:
        """The numbers of pairs after which the answer is looked for."""
        return range(FIRST_LOOK, self.max_pairs + 1, LOOK_EVERY)


@dataclass(frozen=True)
class Metric:
    """One number that is compared on one device."""

    device: str
    name: str
    margin: float
    """What does not matter in practice: 0.03 allows the candidate 3 % more."""


@dataclass(frozen=True)
class MetricDecision:
    """What the pairs show of one metric."""

    metric: Metric
    outcome: Outcome
    ratio: Interval
    """Candidate over base: the geometric mean over the pairs with its interval, at the confidence
    of one look and uncorrected for the other metrics."""
    pairs: int
    fail_p: float
    """The chance of ratios this far above the margin, if the true one were at the margin; over all
    looks, not corrected for other metrics. 1 before the first look."""
    pass_p: float
    """The same for below the margin."""


def decide(ratios: Mapping[Metric, Sequence[float]], rule: Rule) -> list[MetricDecision]:
    """Return the answer for every metric; all metrics that are compared have to be there.

    Args:
        ratios: Candidate over base, one for each pair, in the order they were measured.
        rule: When an answer is sure enough.
    """
    found = {
        metric: _compute_p_values(values, metric.margin, rule) for metric, values in ratios.items()
    }
    failed = _reject_by_holm({metric: p.fail for metric, p in found.items()}, rule.error)
    return [
        MetricDecision(
            metric=metric,
            outcome=_choose_outcome(failed=metric in failed, passed=p.passed <= rule.error),
            ratio=_compute_interval(ratios[metric], rule),
            pairs=len(ratios[metric]),
            fail_p=p.fail,
            pass_p=p.passed,
        )
        for metric, p in found.items()
    ]


def is_settled(ratios: Mapping[Metric, Sequence[float]], rule: Rule, *, families: int = 1) -> bool:
    """Return whether more pairs would change nothing on one device.

    Args:
        ratios: All metrics of one device.
        rule: When an answer is sure enough, over all devices.
        families: How many devices there are. An answer that holds at this fraction of the error
            holds also when Holm's procedure runs over all of them.
    """
    pairs = min(map(len, ratios.values()))
    if pairs >= rule.max_pairs:
        return True
    strict = Rule(rule.error / families, rule.max_pairs)
    answers = [answer.outcome for answer in decide(ratios, strict)]
    return "FAIL" in answers or set(answers) == {"PASS"}


def decide_overall(outcomes: Sequence[Outcome]) -> Outcome:
    """Return the outcome of a whole comparison: one FAIL fails it, all have to pass."""
    if "FAIL" in outcomes:
        return "FAIL"
    return "PASS" if outcomes and set(outcomes) == {"PASS"} else "INCONCLUSIVE"


def find_smallest_slowdown(ratios: Sequence[float], rule: Rule, margin: float = 0.0) -> float:
    """Return the least slowdown that such pairs would show in most cases, by ``max_pairs``.

    It is the slowdown at which the last look is FAIL in 95 % of comparisons, if the log-ratios are
    normal and spread as these are.

    Args:
        ratios: Of a release against itself, at least three.
        rule: When an answer is sure enough.
        margin: What is allowed; what is found lies above it.
    """
    spread = standard_deviation([math.log(ratio) for ratio in ratios])
    error = spread / math.sqrt(rule.max_pairs)
    sure = t_quantile(1 - rule.error / len(rule.looks), rule.max_pairs - 1)
    often = t_quantile(0.95, rule.max_pairs - 1)
    return (1 + margin) * math.exp((sure + often) * error) - 1


@dataclass(frozen=True)
class _PValues:
    fail: float
    passed: float


def _compute_p_values(ratios: Sequence[float], margin: float, rule: Rule) -> _PValues:
    """Return the p-values of "at most the margin" and "at least the margin", over all looks."""
    logs = [math.log(ratio) - math.log1p(margin) for ratio in ratios]
    fail = passed = 1.0
    for pairs in rule.looks:
        if pairs > len(logs):
            break
        below = _compute_chance_below(logs[:pairs])
        fail = min(fail, len(rule.looks) * (1 - below))
        passed = min(passed, len(rule.looks) * below)
    return _PValues(fail, passed)


def _compute_chance_below(logs: Sequence[float]) -> float:
    """Return the chance of a t statistic below the one found, if the true mean were 0."""
    centre, spread = fmean(logs), standard_deviation(logs)
    if spread == 0:
        return 0.5 if centre == 0 else float(centre > 0)
    return t_distribution(centre / spread * math.sqrt(len(logs)), len(logs) - 1)


def _compute_interval(ratios: Sequence[float], rule: Rule) -> Interval:
    """Return the geometric mean with the interval of one look; infinite with less than two."""
    logs = [math.log(ratio) for ratio in ratios]
    centre = fmean(logs)
    if len(logs) < 2:
        return Interval(math.exp(centre), 0.0, math.inf)
    error = standard_deviation(logs) / math.sqrt(len(logs))
    reach = t_quantile(1 - rule.error / len(rule.looks), len(logs) - 1) * error
    return Interval(math.exp(centre), math.exp(centre - reach), math.exp(centre + reach))


def _reject_by_holm(p_values: Mapping[Metric, float], error: float) -> set[Metric]:
    """Return the hypotheses that Holm's step-down procedure rejects."""
    rejected: set[Metric] = set()
    for rank, (metric, p) in enumerate(sorted(p_values.items(), key=lambda each: each[1])):
        if p > error / (len(p_values) - rank):
            break
        rejected.add(metric)
    return rejected


def _choose_outcome(*, failed: bool, passed: bool) -> Outcome:
    if failed:
        return "FAIL"
    return "PASS" if passed else "INCONCLUSIVE"

"""Whether comparisons are wrong as seldom as they say, shown on simulated devices."""

from __future__ import annotations

import math
import random

import pytest
from edgepack.base.statistics import log_t_interval
from edgepack.records.deciding import (
    Metric,
    Rule,
    decide,
    decide_overall,
    find_smallest_slowdown,
    is_settled,
)

from tests.support.doubles.comparison_simulation import COMPARISONS, P50, pairs, shares

TEN = Rule(max_pairs=10)


def test_release_when_compared_with_itself_fails_in_one_percent_at_most() -> None:
    found = shares(0.0, 0.015, TEN)
    assert found["FAIL"] <= 0.01
    assert found["PASS"] >= 0.7


def test_slowdown_of_8_percent_when_compared_fails_within_ten_pairs() -> None:
    assert shares(0.08, 0.015, TEN)["FAIL"] >= 0.95
    by_default = [pairs(seed, 0.08, 0.015, Rule()) for seed in range(COMPARISONS)]
    assert sum(len(ratios) <= 10 for ratios in by_default) >= 0.95 * COMPARISONS


def test_slowdown_of_5_percent_when_compared_hardly_ever_passes() -> None:
    assert shares(0.05, 0.015, TEN)["PASS"] <= 0.02


@pytest.mark.parametrize(("slowdown", "wrong"), [(0.0, "FAIL"), (0.05, "PASS"), (0.08, "PASS")])
def test_noise_when_it_is_twofold_makes_answers_rarer_and_not_more_often_wrong(
    slowdown: float, wrong: str
) -> None:
    quiet, noisy = shares(slowdown, 0.015, TEN), shares(slowdown, 0.03, TEN)
    assert noisy["INCONCLUSIVE"] > quiet["INCONCLUSIVE"]
    assert noisy[wrong] <= 0.01


def test_slowdown_when_it_is_the_margin_is_failed_no_more_often_than_the_rule_says() -> None:
    loose = Rule(error=0.1, max_pairs=10)
    assert shares(P50.margin, 0.015, loose)["FAIL"] <= 0.1
    assert shares(P50.margin, 0.015, loose)["PASS"] <= 0.1


def test_metrics_when_there_are_many_are_corrected_by_holm() -> None:
    generator = random.Random(3)
    ratios = [1.05 * math.exp(generator.gauss(0, 0.021)) for _ in range(8)]
    alone = decide({P50: ratios}, TEN)[0]
    assert alone.outcome == "FAIL"
    even = {Metric(f"board-{k}", "p50", 0.03): [0.99, 1.01] * 4 for k in range(99)}
    among = {answer.metric: answer for answer in decide({P50: ratios, **even}, TEN)}
    assert among[P50].fail_p == alone.fail_p
    assert TEN.error / 100 < alone.fail_p <= TEN.error
    assert among[P50].outcome == "INCONCLUSIVE"
    assert {answer.outcome for metric, answer in among.items() if metric != P50} == {"PASS"}


def test_device_when_it_is_settled_for_many_devices_stays_so_among_them() -> None:
    fast = [0.9 + 0.002 * (k % 3) for k in range(6)]
    assert is_settled({P50: fast}, TEN, families=20)
    others = {Metric(f"other-{k}", "p50", 0.03): [0.8, 1.3] * 3 for k in range(19)}
    assert decide({P50: fast, **others}, TEN)[0].outcome == "PASS"


def test_pairs_when_there_are_too_few_settle_nothing() -> None:
    answer = decide({P50: [2.0] * 5}, TEN)[0]
    assert (answer.outcome, answer.fail_p) == ("INCONCLUSIVE", 1.0)
    assert not is_settled({P50: [2.0] * 5}, TEN)
    assert is_settled({P50: [1.0] * 10}, TEN)


def test_ratios_when_they_are_all_alike_are_decided_by_where_they_lie() -> None:
    assert decide({P50: [1.02] * 6}, TEN)[0].outcome == "PASS"
    assert decide({P50: [1.04] * 6}, TEN)[0].outcome == "FAIL"


def test_interval_when_shown_is_that_of_one_look() -> None:
    ratios = [1.01, 0.98, 1.03, 1.0, 0.99, 1.02]
    shown = decide({P50: ratios}, TEN)[0].ratio
    expected = log_t_interval(ratios, 1 - 2 * TEN.error / len(TEN.looks))
    assert shown.low == pytest.approx(expected.low)
    assert shown.high == pytest.approx(expected.high)


def test_smallest_slowdown_when_a_device_has_it_is_found_in_most_comparisons() -> None:
    rule = Rule()
    spread = math.sqrt(2) * 0.015  # of the ratio of two runs
    itself = [math.exp(spread), math.exp(-spread)] * 1000
    found = find_smallest_slowdown(itself, rule, P50.margin)
    assert 0.03 < found < 0.08
    assert shares(found, 0.015, rule)["FAIL"] >= 0.9
    assert shares(found / 2, 0.015, rule)["FAIL"] < 0.5


def test_outcome_when_devices_differ_is_the_worst_of_what_is_sure() -> None:
    assert decide_overall(["PASS", "PASS"]) == "PASS"
    assert decide_overall(["PASS", "INCONCLUSIVE"]) == "INCONCLUSIVE"
    assert decide_overall(["INCONCLUSIVE", "FAIL"]) == "FAIL"


@pytest.mark.parametrize("changes", [{"error": 0.0}, {"error": 0.5}, {"max_pairs": 7}])
def test_rule_when_it_makes_no_sense_is_refused(changes: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"must be|is no probability"):
        Rule(**changes)  # type: ignore[arg-type]

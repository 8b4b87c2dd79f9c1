"""The comparison with the defaults, and the front: decided over simulated runs."""

from __future__ import annotations

import math
from random import Random

import pytest
from edgepack.measure.tune.confirming import Pairs, make_pairs
from edgepack.measure.tune.front import CandidatePoint, find_pareto_front
from edgepack.records.deciding import Rule
from edgepack.records.tuning import RunTimes

COMPARISONS = 40


def compared(ratio: float, seed: int, p90_ratio: float | None = None, most: int = 10**6) -> Pairs:
    """Return pairs in which a candidate takes ``ratio`` times as long, at 1.5 % deviation."""
    noise = Random(seed)
    made = 0

    def run(p50: float, p90: float) -> RunTimes:
        nonlocal made
        made += 1
        factor = math.exp(noise.gauss(0, 0.015))
        return RunTimes(p50_ns=round(p50 * factor), p90_ns=round(p90 * factor))

    pairs = Pairs("board", Rule(max_pairs=20))
    slow = ratio if p90_ratio is None else p90_ratio
    make_pairs(
        pairs,
        lambda: run(5e6, 6e6),
        lambda: run(5e6 * ratio, 6e6 * slow),
        time_is_up=lambda: made >= most,
    )
    return pairs


def outcomes(ratio: float, **more: float) -> list[str]:
    return [compared(ratio, seed, **more).outcome for seed in range(COMPARISONS)]


def test_candidate_when_it_is_faster_is_confirmed_soon():
    assert outcomes(0.90).count("PASS") >= 0.95 * COMPARISONS
    assert all(compared(0.90, seed).whole <= 12 for seed in range(20))


@pytest.mark.parametrize("ratio", [1.0, 1.02])
def test_candidate_when_it_is_no_faster_is_hardly_ever_confirmed(ratio: float):
    assert outcomes(ratio).count("PASS") <= 0.05 * COMPARISONS


def test_candidate_when_it_is_slower_fails():
    assert outcomes(1.1).count("FAIL") >= 0.95 * COMPARISONS


def test_candidate_when_its_p90_is_far_slower_fails():
    assert outcomes(0.9, p90_ratio=1.3).count("PASS") == 0


def test_pairs_when_the_time_is_up_are_inconclusive():
    pairs = compared(0.5, seed=1, most=6)
    assert (pairs.whole, pairs.outcome) == (3, "INCONCLUSIVE")
    assert compared(0.5, seed=1, most=0).answers == []


def point(number: int, ns: float, memory: int | None = 1, size: int = 1, loss: float | None = 0.0):
    return CandidatePoint(number, ns, memory, size, loss)


def test_front_holds_what_nothing_is_better_than_fastest_first():
    points = [
        point(0, 9.0, memory=5, size=4, loss=0.1),
        point(1, 5.0, memory=9, size=1, loss=0.3),
        point(2, 6.0, memory=9, size=1, loss=0.3),
        point(3, 9.5, memory=4, size=4, loss=0.1),
    ]
    assert find_pareto_front(points) == [1, 0, 3]


def test_front_holds_what_takes_less_energy_where_all_of_them_tell():
    fast, frugal = (CandidatePoint(n, ns, 1, 1, 0.0, mj) for n, ns, mj in ((0, 5, 9), (1, 6, 2)))
    assert find_pareto_front([fast, frugal]) == [0, 1]
    assert find_pareto_front([fast, CandidatePoint(1, 6, 1, 1, 0.0)]) == [0]


def test_front_when_something_is_not_known_of_all_does_not_count_it():
    points = [point(0, 5.0, memory=9), point(1, 6.0, memory=None), point(2, 7.0, memory=1)]
    assert find_pareto_front(points) == [0]
    assert find_pareto_front([point(0, 5.0, loss=None), point(1, 5.0, loss=-1.0)]) == [0]

"""Successive halving on simulated latencies: finds the best, keeps what is wrong out, in budget."""

from __future__ import annotations

import math
from itertools import pairwise
from random import Random

import pytest
from edgepack.measure.tune.halving import (
    FINALISTS,
    CandidateOutError,
    Entrant,
    choose_entrants,
    count_runs_needed,
    find_finalists,
    halve,
)

DEVIATION = 0.015
"""Between process runs."""


def entrants(count: int, group: str = "cpu-fp32", begin: int = 0) -> list[Entrant]:
    """Return candidates, of which the first two are the defaults and the present settings."""
    return [Entrant(begin + n, group, default=n == 0, first=n < 2) for n in range(count)]


class Simulated:
    """A device on which candidate n takes ``true_ms[n]``, and that gets slower as it warms up."""

    def __init__(self, true_ms: list[float], seed: int, broken: dict[int, str] | None = None):
        self.true_ms = true_ms
        self.noise = Random(seed)
        self.broken = broken or {}
        self.runs = 0

    def __call__(self, entrant: Entrant) -> float:
        self.runs += 1
        if entrant.number in self.broken:
            raise CandidateOutError(self.broken[entrant.number])
        drift = 1 + 0.06 * (1 - math.exp(-self.runs / 50))
        return self.true_ms[entrant.number] * drift * math.exp(self.noise.gauss(0, DEVIATION))


def search(run: Simulated, among: list[Entrant], seed: int = 0, most: int = 10**9) -> bool:
    return halve(among, run, random=Random(seed), time_is_up=lambda: run.runs >= most)


def test_best_when_others_are_close_is_found_within_the_noise():
    true_ms = [5.0, *(4.0 + 0.04 * n for n in range(39))]
    worst = []
    for seed in range(100):
        among = entrants(40)
        assert search(Simulated(true_ms, seed), among, seed)
        worst.append(true_ms[find_finalists(among)[0].number])
    assert sorted(worst)[94] <= 4.0 * 1.02
    assert max(worst) <= 4.0 * 1.05


def test_last_rung_when_it_ends_holds_the_best_and_the_defaults_with_equal_runs():
    among = entrants(40)
    run = Simulated([9.0, *(4.0 + 0.1 * n for n in range(39))], seed=3)
    search(run, among)
    last = find_finalists(among)
    assert len(last) == FINALISTS + 1
    assert last[-1].default
    assert len({len(entrant.latencies) for entrant in last}) == 1
    assert run.runs == count_runs_needed(40)
    efforts = sorted({len(entrant.latencies) for entrant in among})
    assert efforts == [2**n - 1 for n in range(1, len(efforts) + 1)]
    assert all(b.latency >= a.latency for a, b in pairwise(last))


def test_groups_when_one_is_slower_keep_their_own_finalists():
    among = [*entrants(12, "cpu-int8-static"), *entrants(12, "cpu-fp32", begin=12)]
    true_ms = [1.0 + 0.1 * n for n in range(12)] + [9.0 + 0.1 * n for n in range(12)]
    search(Simulated(true_ms, seed=1), among)
    by_group = {entrant.group for entrant in find_finalists(among)}
    assert by_group == {"cpu-int8-static", "cpu-fp32"}
    assert find_finalists(among)[0].number == 0


def test_candidate_when_it_is_wrong_or_crashes_is_out_and_says_why():
    among = entrants(10)
    reasons = {4: "its outputs are 12.0 dB near the golden ones", 5: "exit code 139"}
    true_ms = [5.0] * 4 + [0.1, 0.1] + [4.0] + [5.0] * 3
    search(Simulated(true_ms, seed=2, broken=reasons), among)
    assert find_finalists(among)[0].number == 6
    assert {e.number: e.problem for e in among if e.problem} == reasons
    assert not any(entrant.problem for entrant in find_finalists(among))


@pytest.mark.parametrize("most", [0, 1, 7, 30])
def test_search_when_the_time_is_up_stops_and_keeps_what_was_measured(most: int):
    among = entrants(20)
    run = Simulated([5.0] * 20, seed=4)
    assert not search(run, among, most=most)
    assert run.runs == most == sum(len(entrant.latencies) for entrant in among)


def test_order_when_the_seed_is_the_same_is_the_same():
    orders = []
    for seed in (1, 1, 2):
        order: list[int] = []
        halve(
            entrants(8),
            lambda entrant, order=order: order.append(entrant.number) or 1.0,
            random=Random(seed),
            time_is_up=lambda: False,
        )
        orders.append(order)
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0][:8]) == list(range(8))


def test_choice_when_not_all_can_be_afforded_holds_what_goes_first_and_fits():
    among = [*entrants(40, "a"), *entrants(40, "b", begin=40)]
    some = choose_entrants(among, runs=120, random=Random(0))
    assert {e.number for e in among if e.first} <= {e.number for e in some}
    sizes = [sum(e.group == group for e in some) for group in "ab"]
    assert sizes[0] == sizes[1]
    assert 2 * count_runs_needed(sizes[0]) <= 120 < 2 * count_runs_needed(sizes[0] + 1)
    assert len(choose_entrants(among, runs=10**6, random=Random(0))) == len(among)


def test_choice_when_not_all_can_be_afforded_takes_what_changes_least():
    among = entrants(40)
    for entrant in among[2:]:
        entrant.changes = 1 + entrant.number % 3
    some = choose_entrants(among, runs=count_runs_needed(12), random=Random(0))
    assert len(some) == 12
    assert {entrant.changes for entrant in some[2:]} == {1}
    other = choose_entrants(among, runs=count_runs_needed(12), random=Random(1))
    assert {e.number for e in some} != {e.number for e in other}

"""Simulated comparisons of two releases, on a device that gets slower while they last."""

from __future__ import annotations

import functools
import math
import random
from collections import Counter

from edgepack.records.deciding import Metric, Outcome, Rule, decide, is_settled

COMPARISONS = 500
DRIFT = 0.06
"""How much slower the device gets over a whole session."""
P50 = Metric("board", "p50", 0.03)


def pairs(seed: int, slowdown: float, deviation: float, rule: Rule) -> list[float]:
    """Return the ratios that a comparison makes, pair by pair, until it is settled.

    Args:
        seed: Another is another comparison.
        slowdown: The true one; 0.05 is 5 %.
        deviation: The standard deviation of the logarithms of the runs' medians.
        rule: As of the comparison.
    """
    generator = random.Random(seed)
    runs = 2 * rule.max_pairs
    ratios: list[float] = []
    for number in range(rule.max_pairs):
        sides = {}
        for k, side in enumerate("AB" if number % 2 == 0 else "BA", 2 * number):
            warm = 1 + DRIFT * k / (runs - 1)
            slow = 1 + slowdown if side == "B" else 1
            sides[side] = math.exp(generator.gauss(0, deviation)) * warm * slow
        ratios.append(sides["B"] / sides["A"])
        if len(ratios) in rule.looks and is_settled({P50: ratios}, rule):
            break
    return ratios


@functools.cache
def shares(slowdown: float, deviation: float, rule: Rule) -> dict[Outcome, float]:
    """Return the share of each outcome over many comparisons."""
    found = Counter(
        decide({P50: pairs(seed, slowdown, deviation, rule)}, rule)[0].outcome
        for seed in range(COMPARISONS)
    )
    return {name: found[name] / COMPARISONS for name in ("PASS", "FAIL", "INCONCLUSIVE")}

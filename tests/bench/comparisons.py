"""How often ``edgepack compare`` is wrong, from simulated devices: docs/comparing.md's table."""

from __future__ import annotations

from collections.abc import Iterator

from edgepack.records.deciding import Rule

from tests.bench.measuring import Table
from tests.support.doubles.comparison_simulation import COMPARISONS, DRIFT, shares

CASES = [
    (deviation, slowdown, most)
    for deviation in (0.015, 0.03)
    for slowdown in (0.0, 0.05, 0.08)
    for most in (10, 20)
]
HEADS = ("deviation between runs", "true slowdown", "pairs at most", "PASS", "FAIL", "INCONCLUSIVE")


def measure() -> Iterator[Table]:
    """Yield the table."""
    rows = []
    for deviation, slowdown, most in CASES:
        found = shares(slowdown, deviation, Rule(max_pairs=most))
        rows.append(
            (
                f"{deviation:.1%}",
                f"{slowdown:.0%}",
                str(most),
                *(f"{share:.1%}" for share in found.values()),
            )
        )
    title = f"{COMPARISONS} simulated comparisons each, {DRIFT:.0%} drift, allowed 3 %"
    yield Table(title, HEADS, tuple(rows))

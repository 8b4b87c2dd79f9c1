"""Checks with pairs of process runs that the fastest settings are not slower. No I/O."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from edgepack.records.deciding import Metric, MetricDecision, Outcome, Rule, decide
from edgepack.records.tuning import RunTimes

MARGINS = {"p50": 0.0, "p90": 0.05}
"""The allowed margin: none at p50, because tuned settings are used only if they gain."""


@dataclass
class Pairs:
    """The runs of the defaults and of the candidate, a pair at a time."""

    device: str
    rule: Rule
    base: list[RunTimes] = field(default_factory=list)
    candidate: list[RunTimes] = field(default_factory=list)

    @property
    def whole(self) -> int:
        """How many pairs are complete."""
        return min(len(self.base), len(self.candidate))

    @property
    def answers(self) -> list[MetricDecision]:
        """What the complete pairs show of p50 and p90; empty if there are none."""
        if not self.whole:
            return []
        pairs = list(zip(self.base, self.candidate, strict=False))
        ratios = {
            "p50": [after.p50_ns / max(1, before.p50_ns) for before, after in pairs],
            "p90": [after.p90_ns / max(1, before.p90_ns) for before, after in pairs],
        }
        return decide(
            {Metric(self.device, name, MARGINS[name]): found for name, found in ratios.items()},
            self.rule,
        )

    @property
    def outcome(self) -> Outcome:
        """PASS if p50 is shown to be no slower and p90 is not shown to be; FAIL if one is slower.

        An unclear p90 alone does not reject a candidate: on a device with other work it needs far
        more pairs than p50.
        """
        found = {answer.metric.name: answer.outcome for answer in self.answers}
        if "FAIL" in found.values():
            return "FAIL"
        return "PASS" if found.get("p50") == "PASS" else "INCONCLUSIVE"


def make_pairs(
    pairs: Pairs,
    base: Callable[[], RunTimes],
    candidate: Callable[[], RunTimes],
    *,
    time_is_up: Callable[[], bool],
) -> None:
    """Make pairs in ABBA order until the outcome is clear, or there is no time for another.

    Args:
        pairs: Gets each run as it is made.
        base: Makes a run of the defaults.
        candidate: Makes a run of the candidate.
        time_is_up: Asked before each pair.
    """
    for number in range(1, pairs.rule.max_pairs + 1):
        if time_is_up():
            return
        sides = [(pairs.base, base), (pairs.candidate, candidate)]
        for runs, run in sides if number % 2 else sides[::-1]:
            runs.append(run())
        if number in pairs.rule.looks and pairs.outcome != "INCONCLUSIVE":
            return

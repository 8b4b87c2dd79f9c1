"""``edgepack bench --self-test``: a bundle against itself, to learn how noisy a device is."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from edgepack.comparison.comparing import Question, compare
from edgepack.comparison.deciding import Rule, smallest_slowdown
from edgepack.comparison.report import DeviceComparison
from edgepack.devices import Device
from edgepack.progress import Progress
from edgepack.statistics import median, percentile, standard_deviation

_NEVER = 1e-9
"""An error that no pairs reach: a bundle against itself is measured to the last pair."""


@dataclass(frozen=True)
class NoiseFloor:
    """How much process runs of one and the same bundle differ on a device."""

    device: str
    variant: str
    pairs: int
    run_deviation: float
    """The standard deviation of log medians over the process runs; 0.02 is 2 %."""
    pair_deviation: float
    """That of the log-ratios of pairs: what comparisons see, with slow drift taken out."""
    smallest_slowdown: float
    """Which ``compare`` shows within its pairs in 95 % of cases, with no margin; 0.03 is 3 %."""
    order_ratio: float
    """The second run of a pair over the first, as a geometric mean: not 1 on a device that warms
    up or cools down."""
    reasons: list[str]
    """Why the numbers must not be used; empty if they may."""


def measure_noise(question: Question, device: Device, *, progress: Progress) -> NoiseFloor:
    """Measure a bundle against itself in so many pairs as a comparison makes at most.

    Args:
        question: Its candidate is measured; ``rule`` is the one whose power is computed.
        device: Where.
        progress: Where to report.

    Raises:
        EdgepackError: As :func:`~.comparing.compare` does.
    """
    rule = Rule(_NEVER, question.rule.max_pairs)
    itself = replace(question, base=question.candidate, rule=rule)
    found = compare(itself, [device], progress=progress).devices[0]
    ratios = _ratios(found)
    in_order = [ratio if number % 2 else 1 / ratio for number, ratio in enumerate(ratios, 1)]
    runs = [median(run.latencies_ns) for run in (*found.base.runs, *found.candidate.runs)]
    return NoiseFloor(
        device=device.name,
        variant=found.candidate.variant,
        pairs=len(ratios),
        run_deviation=standard_deviation([math.log(each) for each in runs]),
        pair_deviation=standard_deviation([math.log(each) for each in ratios]),
        smallest_slowdown=smallest_slowdown(ratios, question.rule),
        order_ratio=math.exp(sum(map(math.log, in_order)) / len(in_order)),
        reasons=[*found.base.reasons, *found.candidate.reasons],
    )


def _ratios(found: DeviceComparison) -> list[float]:
    pairs = zip(found.base.runs, found.candidate.runs, strict=True)
    return [
        percentile(after.latencies_ns, 50) / max(1.0, percentile(before.latencies_ns, 50))
        for before, after in pairs
    ]

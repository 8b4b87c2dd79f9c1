"""``edgepack bench --self-test``: a bundle against itself, to learn how noisy a device is."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import fmean

from edgepack.base.progress import Progress
from edgepack.base.statistics import median, standard_deviation
from edgepack.devices.inventory import Device
from edgepack.errors import InconclusiveError
from edgepack.measure.compare.comparing import CompareQuestion, compare, compute_pair_ratios
from edgepack.records.deciding import find_smallest_slowdown


@dataclass(frozen=True)
class NoiseFloor:
    """How much process runs of one and the same bundle differ on a device."""

    device: str
    variant: str
    pairs: int
    run_deviation: float
    """The standard deviation of log medians over the process runs; 0.02 is 2 %."""
    pair_deviation: float
    """The standard deviation of the pairs' log-ratios: what comparisons see, without slow drift."""
    smallest_slowdown: float
    """The smallest difference that ``compare`` shows within its pairs in 95 % of cases, with no
    margin; 0.03 is 3 %."""
    order_ratio: float
    """The second run of a pair over the first, as a geometric mean: not 1 on a device that warms
    up or cools down."""
    reasons: list[str]
    """Why the numbers must not be used; empty if they may."""


def measure_noise(question: CompareQuestion, device: Device, *, progress: Progress) -> NoiseFloor:
    """Measure a bundle against itself in as many pairs as a comparison makes at most.

    Args:
        question: Its candidate is measured; ``rule`` is the one whose power is computed.
        device: Where.
        progress: Where to report.

    Raises:
        InconclusiveError: The device vanished before all pairs were made.
        EdgepackError: As :func:`~.comparing.compare` does.
    """
    itself = replace(question, base=question.candidate, every_pair=True)
    found = compare(itself, [device], progress=progress).devices[0]
    if found.unfinished:
        raise InconclusiveError(
            f"it ended early, after {found.pairs} pairs: {found.unfinished}",
            hint="measure again",
            where=device.name,
        )
    ratios = compute_pair_ratios(found.base.runs, found.candidate.runs, 50)
    in_order = [ratio if number % 2 else 1 / ratio for number, ratio in enumerate(ratios, 1)]
    runs = [median(run.latencies_ns) for run in (*found.base.runs, *found.candidate.runs)]
    return NoiseFloor(
        device=device.name,
        variant=found.candidate.variant,
        pairs=len(ratios),
        run_deviation=standard_deviation([math.log(each) for each in runs]),
        pair_deviation=standard_deviation([math.log(each) for each in ratios]),
        smallest_slowdown=find_smallest_slowdown(ratios, question.rule),
        order_ratio=math.exp(fmean([math.log(each) for each in in_order])),
        reasons=[*found.base.reasons, *found.candidate.reasons],
    )

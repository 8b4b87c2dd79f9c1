"""What is said of each shipped variant, from files and outputs alone.

A variant is *broken* if on unseen samples like those it was made with

- it is not clearly better than the best constant: of what fp32 says beyond a constant it says less
  than a fifth (``Skill.share``), or
- it loses more than 5 points of the task's measure beyond what its manifest claims at the far end
  of the interval, and R² is below 0.8 (where there is no R², the share is), or
- it gives NaN or infinity where fp32 gives numbers, or other shapes.

It is *weak* if it says less than four fifths and its manifest says so: that is told, and is no
failure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from tests.proofs.cases import Feed, Made
from tests.proofs.net import REFUSED, Array
from tests.proofs.readings import Skill
from tests.proofs.running import Collected, collect
from tests.proofs.shipped import Variant

CLEARLY = 0.2
BEYOND_POINTS = 5.0
LEAST_R2 = 0.8
GOOD_POINTS = 1.0
SHIFTED_SAMPLES = 48


@dataclass
class Found:
    """What was found of one variant."""

    variant: Variant
    skills: dict[str, Skill | None] = field(default_factory=dict)
    """By output; a detector's outputs together are ``objects``."""
    broken: list[str] = field(default_factory=list)
    weak: list[str] = field(default_factory=list)
    below_claim: dict[str, bool] = field(default_factory=dict)
    """By output with an R²: whether that of unseen samples is below the claimed interval."""
    frail: list[str] = field(default_factory=list)
    """On which other statistics it says less than a constant would."""

    @property
    def worst(self) -> Skill | None:
        """That of the output that lost most, of those that tell anything."""
        told = [skill for skill in self.skills.values() if skill is not None]
        return min(told, key=lambda skill: skill.share, default=None)

    @property
    def is_good(self) -> bool:
        """Whether it loses less than a point."""
        return self.worst is not None and self.worst.lost_points < GOOD_POINTS and not self.broken


def judge(variant: Variant, made: Made, reference: Collected) -> Found:
    """Hold a variant's outputs for the unseen samples against fp32's."""
    found = Found(variant)
    try:
        outputs = collect(variant.model, made.unseen, made.state)
    except REFUSED as error:
        found.broken.append(f"onnxruntime does not run it: {str(error).splitlines()[0][:150]}")
        return found
    found.broken += _no_numbers(reference, outputs)
    found.skills = skills(made, reference, outputs)
    for name, skill in found.skills.items():
        if skill is None:
            continue
        low = variant.claimed_r2(name)
        if low is not None and skill.r2 is not None and not made.state:
            found.below_claim[name] = skill.r2 < low
        claimed = _claimed(variant, made, name)
        said = _said(name, skill)
        if skill.share < CLEARLY:
            found.broken.append(f"{said}: not clearly better than a constant; {variant.claim}")
        elif (
            claimed is not None
            and skill.lost_points > claimed + BEYOND_POINTS
            and skill.nearness < LEAST_R2
        ):
            found.broken.append(f"{said}: {claimed:.1f} points were claimed; {variant.claim}")
        elif skill.share < LEAST_R2:
            found.weak.append(f"{said}; {variant.claim}")
    return found


def skills(made: Made, reference: Collected, outputs: Collected) -> dict[str, Skill | None]:
    """Return how much of what fp32 says the outputs say, by output."""
    told: dict[str, Skill | None] = {
        name: reading.skill(reference[name], outputs[name])
        for name, reading in made.readings.items()
    }
    if made.objects:
        told["objects"] = made.objects.skill(by_sample(reference), by_sample(outputs))
    return told


def by_sample(collected: Collected) -> list[dict[str, Array]]:
    """Return a dict of outputs for each sample."""
    count = len(next(iter(collected.values())))
    return [{name: values[k] for name, values in collected.items()} for k in range(count)]


def _said(name: str, skill: Skill) -> str:
    r2 = "" if skill.r2 is None or skill.what == "R²" else f", R² {skill.r2:.3f}"
    return (
        f"{name}: {skill.what} {skill.measure:.3f}{r2}, the best constant {skill.constant:.3f},"
        f" {skill.lost_points:.1f} points lost"
    )


def _claimed(variant: Variant, made: Made, name: str) -> float | None:
    if name != "objects":
        return variant.claimed_loss(name)
    outputs = variant.entry["accuracy"].get("r2", {})
    return max((variant.claimed_loss(output) or 0.0 for output in outputs), default=None)


def _no_numbers(reference: Collected, outputs: Collected) -> list[str]:
    """Return a line for each output that is no number, or of another shape, where fp32's is."""
    if missing := reference.keys() - outputs.keys():
        return [f"it has no output {', '.join(sorted(missing))}"]
    lines = []
    for name, values in reference.items():
        pairs = list(zip(values, outputs[name], strict=True))
        if wrong := sum(a.shape != b.shape for a, b in pairs):
            lines.append(f"{name}: another shape than fp32's for {wrong} of {len(pairs)} samples")
        lost = sum(bool(np.isfinite(a).all() and not np.isfinite(b).all()) for a, b in pairs)
        if lost:
            lines.append(f"{name}: no numbers for {lost} of {len(pairs)} samples")
    return lines


Elsewhere = list[tuple[str, list[Feed], Collected]]
"""What is other, samples, and what fp32 says of them."""


def elsewhere(made: Made) -> Elsewhere:
    """Return samples with other statistics than those that a case was made with."""
    return [(what, feeds, collect(made.model, feeds)) for what, feeds in shifted(made).items()]


def look_elsewhere(found: Found, made: Made, samples: Elsewhere) -> None:
    """Note on which other statistics of the inputs the variant says less than a constant."""
    for what, feeds, reference in samples:
        outputs = collect(found.variant.model, feeds)
        for line in _no_numbers(reference, outputs):
            found.frail.append(f"{what}: {line}")
        for name, skill in skills(made, reference, outputs).items():
            if skill is not None and skill.share < 0:
                found.frail.append(f"{what}: {_said(name, skill)}")


def shifted(made: Made) -> Mapping[str, list[Feed]]:
    """Return unseen samples with other statistics; nothing for streams and inputs of integers."""
    if made.state:
        return {}
    feeds: list[Feed] = made.unseen[:SHIFTED_SAMPLES]
    if any(array.dtype.kind != "f" for array in feeds[0].values()):
        return {}
    random = np.random.default_rng(0)
    values = {name: np.concatenate([feed[name].ravel() for feed in feeds]) for name in feeds[0]}
    mean = {name: found.mean() for name, found in values.items()}
    deviation = {name: found.std() for name, found in values.items()}
    ends = {name: (found.min(), found.max()) for name, found in values.items()}

    def each(change: object) -> list[Feed]:
        return [
            {name: change(name, array).astype(array.dtype) for name, array in feed.items()}
            for feed in feeds
        ]

    return {
        "half": each(lambda name, x: 0.5 * x),
        "half as much again": each(lambda name, x: 1.5 * x),
        "shifted": each(lambda name, x: x + 0.5 * deviation[name]),
        "noise": each(
            lambda name, x: mean[name] + deviation[name] * random.standard_normal(x.shape)
        ),
        "black": each(lambda name, x: 0 * x),
        "saturated": each(lambda name, x: np.where(x > mean[name], ends[name][1], ends[name][0])),
    }

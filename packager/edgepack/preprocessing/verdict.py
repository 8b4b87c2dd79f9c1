"""Whether preprocessing looks wrong, from what runs showed. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from edgepack.base.arrays import Array
from edgepack.metrics.accuracy import Variation
from edgepack.preprocessing.beginning import Beginning
from edgepack.preprocessing.signs import (
    FEWEST,
    LITTLE,
    Chance,
    compare_with_chance,
    compute_information,
    compute_most_information,
    find_one_answer,
)

_GOOD_ENOUGH = 0.75
"""With fewer right, others are tried; nothing is said unless one is clearly better."""
FAR = 0.25
"""A divergence from the first BatchNormalization from which others are tried."""
_HARDLY = 0.1
"""The share of pictures whose best detection is there that a detector which sees what it should
does not stay below: it is the surest of all."""
_TOO_FAR = 2.0
"""A divergence that is reported even where nothing better was found."""


@dataclass
class Seen:
    """What a model gave for some samples, made in one way."""

    scores: list[Array] = field(default_factory=list)
    """Class scores by sample; empty where no output holds them."""
    best: list[float] = field(default_factory=list)
    """The best detection's score by sample; empty where no output is described as one."""
    right: list[bool] = field(default_factory=list)
    """Whether the best detection is an object that is there, by sample with labelled objects; empty
    where labels are no boxes."""
    variations: dict[str, Variation] = field(default_factory=dict)
    """By float output."""
    divergence: float | None = None
    """From the first BatchNormalization; see
    :func:`~edgepack.preprocessing.signs.compute_divergence`."""
    lowest: float = np.inf
    highest: float = -np.inf
    """The highest value of the input."""

    def add_input(self, given: Array) -> None:
        """Keep the range of one sample's input."""
        self.lowest = min(self.lowest, float(given.min(initial=np.inf)))
        self.highest = max(self.highest, float(given.max(initial=-np.inf)))

    @property
    def answers(self) -> list[int]:
        """The class with the best score, by sample."""
        return [int(np.argmax(scores)) for scores in self.scores]

    @property
    def information(self) -> float:
        """Bits; see :func:`~edgepack.preprocessing.signs.compute_information`."""
        return compute_information(np.stack(self.scores))


@dataclass(frozen=True)
class Setting:
    """What is known besides what runs showed."""

    labels: list[int] | None
    """Class indices by sample."""
    beginning: Beginning | None
    """What the model does first to the one float input that looks like a picture."""
    least_score: float = 0.0
    """The score from which a detection counts."""
    called: str = "fp32"
    """What messages call the model."""
    claimed: float | None = None
    """The share of the samples that the model's makers say it is right for."""


@dataclass(frozen=True)
class PreprocessingSign:
    """A sign of wrong preprocessing, before anything else was tried."""

    reasons: tuple[str, ...]
    """Each is a sentence without its end. They are reported unless what was tried clears them."""
    in_doubt: bool
    """Whether others are worth trying though there is no reason."""
    by_chance: bool
    """Whether one reason is that answers are right as by chance."""
    below_claim: bool = False
    """Whether one reason is that fewer are right than the model's makers say."""
    right: str = ""
    """How many answers are right, in words; nothing without labels."""

    @property
    def is_suspicious(self) -> bool:
        """Whether others are to be tried."""
        return bool(self.reasons) or self.in_doubt


_NO_SIGN = PreprocessingSign((), in_doubt=False, by_chance=False)


def find_sign(seen: Seen, setting: Setting) -> PreprocessingSign:
    """Look at what a model gave for different samples."""
    parts = [_look_at_scores(seen, setting), _look_at_boxes(seen, setting)]
    reasons = [reason for part in parts for reason in part.reasons]
    reasons += _explain_small_variation(seen, setting.called)
    in_doubt = any(part.in_doubt for part in parts)
    if (far := seen.divergence) is not None:
        in_doubt |= far > FAR
        reasons += [_explain_divergence(seen, setting)] if far > _TOO_FAR else []
    reasons += [text] if (text := _explain_contradiction(seen, setting.beginning)) else []
    return PreprocessingSign(
        tuple(reasons),
        in_doubt,
        any(part.by_chance for part in parts),
        any(part.below_claim for part in parts),
        next((part.right for part in parts if part.right), ""),
    )


def _look_at_scores(seen: Seen, setting: Setting) -> PreprocessingSign:
    if not seen.scores:
        return _NO_SIGN
    reasons, in_doubt, by_chance, right = [], False, False, ""
    claim: list[str] = []
    classes = seen.scores[0].size
    answer = find_one_answer(seen.answers, classes, setting.labels)
    if setting.labels is not None:
        found = compare_with_chance(seen.answers, setting.labels)
        by_chance = found.is_chance
        in_doubt = found.right < _GOOD_ENOUGH * found.count
        right = f"{setting.called} is right for {found.right} of {found.count} samples"
        reasons += [f"{setting.called} is at chance level: {found}"] if by_chance else []
        claim = [] if by_chance else _explain_claim(found, setting)
    else:
        most = compute_most_information(len(seen.scores), classes)
        in_doubt = len(seen.scores) >= FEWEST and seen.information < 0.3 * most
    if answer is not None:
        often = f"{seen.answers.count(answer)} of {len(seen.scores)} different samples"
        reasons.append(f"{setting.called} gives class {answer} for {often}")
    return PreprocessingSign((*reasons, *claim), in_doubt, by_chance, bool(claim), right)


def _look_at_boxes(seen: Seen, setting: Setting) -> PreprocessingSign:
    if len(seen.right) < FEWEST:
        low = len(seen.best) >= FEWEST and max(seen.best) < setting.least_score
        return replace(_NO_SIGN, in_doubt=low)
    count, hits = len(seen.right), sum(seen.right)
    right = f"{setting.called}'s best detection is there in {hits} of {count} pictures"
    by_chance = hits <= _HARDLY * count
    reasons = (f"{right}, by their labels",) if by_chance else ()
    return PreprocessingSign(reasons, hits < _GOOD_ENOUGH * count, by_chance, right=right)


def _explain_claim(found: Chance, setting: Setting) -> list[str]:
    """Return how far answers are from what the model's makers say, where samples show it."""
    if setting.claimed is None or found.interval[1] >= setting.claimed:
        return []
    low, high = found.interval
    told = f"{setting.called} is right for {found.right} of {found.count} samples"
    return [f"{told} (95 % interval {low:.1%} to {high:.1%}), and {setting.claimed:.1%} is claimed"]


def _explain_small_variation(seen: Seen, called: str) -> list[str]:
    found = {name: v for name, v in seen.variations.items() if v.count >= FEWEST and v.same_shape}
    if not found:
        return []
    # Of several outputs one may hardly vary by its nature, or vary with nothing but noise.
    name, median = sorted(found.items(), key=lambda item: item[1].share)[len(found) // 2]
    if median.share >= LITTLE:
        return []
    told = f"{called}'s outputs hardly vary over {median.count} different samples"
    return [f"{told}: {name!r} by {median.share:.2%} of its values"]


def _explain_divergence(seen: Seen, setting: Setting) -> str:
    found = setting.beginning.normalization if setting.beginning else None
    node = found.node if found else ""
    return (
        f"what reaches the first BatchNormalization, {node!r}, is not what it was trained with:"
        f" {seen.divergence:.3g} nats apart in the median channel, right is less than {FAR:g}"
    )


def _explain_contradiction(seen: Seen, start: Beginning | None) -> str:
    """Return how the samples' range contradicts what the model begins with, or nothing."""
    if start is None or start.highest is None:
        return ""
    most = start.highest
    nodes = (
        f"the model begins with {' and '.join(map(repr, start.nodes))}, which take 0 to {most:g}"
    )
    given = f"the samples hold {seen.lowest:.4g} to {seen.highest:.4g}"
    if most > 1 and seen.highest <= 8:
        return f"{nodes}, and {given}: the model scales its input itself"
    if most <= 1 and seen.highest > 8:
        return f"{nodes}, and {given}"
    if seen.lowest < -0.1 * most:
        return f"{nodes}, and {given}: the model subtracts a mean itself"
    return ""

"""Finds signs of wrong preprocessing in outputs. Pure numpy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb, log2

import numpy as np

from edgepack.base.arrays import Array
from edgepack.metrics.accuracy import compute_mean_interval

FEWEST = 8
"""The fewest samples for findings that depend on how outputs differ."""
SAME_SHARE = 0.95
"""The share of samples in one class from which on a model counts as giving the same for all."""
MANY_CLASSES = 10
"""With fewer, and without labels, samples may well be of one class."""
LITTLE = 0.02
"""Outputs hardly vary where their deviation over samples is less than this part of them: that of
right models was 0.4 and more, a detector's class scores apart (0.13); of models that saw a 255th of
what they should, 0.02 and less, the median output of two detectors included (2026-11-23)."""
_UNLIKELY = 0.05
_REACH = 0.25
"""How far above chance an interval may reach before it says nothing, because samples are too
few."""


@dataclass(frozen=True)
class Chance:
    """How often answers are right, beside how often they would be by chance."""

    right: int
    count: int
    interval: tuple[float, float]
    """95 %, of the share that is right."""
    unrelated: float
    """The share that would be right if the same answers went to other samples."""
    constant: float
    """The share that the best constant answer would have right."""

    @property
    def is_chance(self) -> bool:
        """Whether nothing shows that answers have to do with labels, on samples enough to show it.

        Or they are clearly worse than the best constant answer.
        """
        high = self.interval[1]
        # Where nearly all labels are one class, answers that are right cannot show much.
        telling = high <= self.unrelated + _REACH and self.unrelated <= 1 - _REACH
        by_chance = compute_tail_probability(self.right, self.count, self.unrelated) > _UNLIKELY
        return (telling and by_chance) or high < self.constant

    def __str__(self) -> str:
        low, high = self.interval
        return (
            f"it is right for {self.right} of {self.count} samples (95 % interval {low:.1%} to"
            f" {high:.1%}), answers that have nothing to do with the samples would be for"
            f" {self.unrelated:.1%}, and the best constant answer for {self.constant:.1%}"
        )


def compare_with_chance(answers: Sequence[int], labels: Sequence[int]) -> Chance:
    """Compare answers with labels; both are class indices, one per sample."""
    hits = [float(a == b) for a, b in zip(answers, labels, strict=True)]
    given, wanted, count = Counter(answers), Counter(labels), len(hits)
    unrelated = sum(given[label] * wanted[label] for label in wanted) / count**2
    interval = compute_mean_interval(hits) or (0.0, 1.0)
    return Chance(int(sum(hits)), count, interval, unrelated, max(wanted.values()) / count)


def find_one_answer(
    answers: Sequence[int], classes: int, labels: Sequence[int] | None
) -> int | None:
    """Return the class that nearly all samples get although they should not, or None.

    Without labels, this applies only to many classes: samples of a few classes may be of one.
    """
    if len(answers) < FEWEST:
        return None
    best, often = Counter(answers).most_common(1)[0]
    usual = max(Counter(labels).values()) / len(labels) if labels is not None else 0.0
    if often < SAME_SHARE * len(answers) or usual > 0.8:
        return None
    return best if labels is not None or classes >= MANY_CLASSES else None


def compute_probabilities(scores: Array) -> Array:
    """Return class scores ``(samples, classes)`` as probabilities: softmax, unless they are."""
    values = np.asarray(scores, np.float64)
    if (values >= 0).all() and np.allclose(values.sum(axis=1), 1, atol=1e-3):
        return np.asarray(values)
    with np.errstate(invalid="ignore", over="ignore"):
        powers = np.exp(values - values.max(axis=1, keepdims=True))
        return np.asarray(np.nan_to_num(powers / powers.sum(axis=1, keepdims=True)))


def compute_information(scores: Array) -> float:
    """Return how many bits the predicted class has in common with the sample, over some samples.

    It is the entropy of the mean prediction less the mean entropy of predictions: large where a
    model is sure of each sample and samples differ. It needs no labels. At most the logarithm of
    the number of classes, or of samples.
    """
    found = compute_probabilities(scores)
    return max(
        0.0,
        _compute_entropy(found.mean(axis=0)) - float(np.mean([_compute_entropy(p) for p in found])),
    )


def compute_likelihood(scores: Array, labels: Sequence[int]) -> float:
    """Return the mean logarithm to base 2 of the probability that labels get, from -10 to 0.

    That of a sample counts no less; a label that is no class has the probability 0.
    """
    pairs = zip(compute_probabilities(scores), labels, strict=True)
    given = (found[label] if 0 <= label < found.size else 0.0 for found, label in pairs)
    return float(np.mean([log2(max(probability, 2.0**-10)) for probability in given]))


def compute_most_information(samples: int, classes: int) -> float:
    """Return the most bits that :func:`compute_information` can be."""
    return log2(max(2, min(samples, classes)))


def _compute_entropy(shares: Array) -> float:
    positive = shares[shares > 0]
    return float(-(positive * np.log2(positive)).sum())


def sign_test(better: int, worse: int) -> float:
    """Return how probable it is that as many or more of the differences would be for the better.

    One-sided, with even odds for each: the exact form of McNemar's test.
    """
    return compute_tail_probability(better, better + worse, 0.5)


def compute_tail_probability(successes: int, count: int, probability: float) -> float:
    """Return how probable as many successes or more are of ``count`` independent trials."""
    fewer = (
        comb(count, k) * probability**k * (1 - probability) ** (count - k) for k in range(successes)
    )
    return max(0.0, 1.0 - sum(fewer))


def compute_divergence(mean: Array, variance: Array, expected: Array, spread: Array) -> float:
    """Return the median over channels of how far statistics are from those expected, in nats.

    Per channel, the Kullback-Leibler divergence of two normal distributions: of the samples' mean
    and variance from the ``expected`` mean and its variance, ``spread``. 0 where they are equal.
    Right preprocessing was at 0.04 to 0.08 on 16 photographs; without the mean 0.2 to 0.35, with a
    scale that is 255 times too small 6.6, too large 2,000 (ResNet-20 of CIFAR-10, 2026-11-23).
    """
    tiny = 1e-9
    ratio = (variance + tiny) / (spread + tiny)
    found = 0.5 * (ratio + (mean - expected) ** 2 / (spread + tiny) - 1 - np.log(ratio))
    return float(np.median(found))

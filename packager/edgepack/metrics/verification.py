"""Scores that tell the same from others: the equal error rate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from edgepack.base.arrays import Array
from edgepack.errors import SamplesError
from edgepack.metrics.base import Arrays
from edgepack.metrics.neighbours import compute_cosines
from edgepack.metrics.of_labels import Described, LabelledMetric, find_output, make_labels_error
from edgepack.ondevice.runtime.edgepack_answers import make_vectors
from edgepack.samples.spreading import choose_spread

_MOST = 2000
"""Samples of an embedding that are compared: they are two million pairs."""


class EqualErrorRate(LabelledMetric):
    """The share of errors at the threshold where as many are wrongly let in as are turned away.

    Of a single score, labels say for each sample whether it is right, 1 or 0. Of an embedding they
    are whose each sample is: the scores are the cosines of all pairs, and a pair is right where
    both are of one.
    """

    name = "eer"
    higher_is_better: ClassVar[bool] = False
    best: ClassVar[float] = 0.0

    def __init__(self, described: Described, labels: Array | None) -> None:
        """Take the labels.

        Raises:
            SamplesError: No output gives scores, or labels are not of two kinds.
        """
        self.output = find_output(
            self.name, described, "embedding", "probability", "regression", "classification"
        )
        self.description: dict[str, Any] = described[self.output].model_dump()
        self.of_pairs = self.description["kind"] == "embedding"
        if labels is None or labels.ndim != 1 or labels.dtype.kind not in "biu":
            raise make_labels_error(self.name, labels, "(samples,), an integer each")
        self.labels = labels.astype(np.int64)
        self.taken = set(choose_spread(range(len(labels)), _MOST if self.of_pairs else None))
        """The samples that count."""
        self.scores: tuple[list[Array], list[Array]] = ([], [])
        """By sample, fp32's and the variant's: one score, or a vector."""
        known = set(self.labels.tolist())
        if not self.of_pairs and known != {0, 1}:
            raise SamplesError(
                f"the labels are {sorted(known)[:5]}, and the metric eer takes 0 and 1, each of"
                " them at least once",
                hint="label 1 what is to be let in, and 0 what is to be turned away",
            )
        if self.of_pairs and not 1 < len(known) < len(self.labels):
            raise SamplesError(
                f"the labels say whose each of {len(self.labels)} samples is, and are of"
                f" {len(known)}: there is no pair of one, or none of two",
                hint="give several samples of each of several persons or things",
            )

    def add(self, reference: Arrays, output: Arrays, feed: Arrays) -> None:
        """Add the next sample's score, or its vector."""
        ours, theirs = reference[self.output], output[self.output]
        if not self.of_pairs and ours.size != 1:
            raise SamplesError(
                f"the output {self.output!r} is {list(ours.shape)}, and the metric eer takes one"
                " score for each sample",
                hint="name an output with one number, or an embedding",
            )
        same = theirs.shape == ours.shape
        for scores, given in zip(self.scores, (ours, theirs if same else 0 * ours), strict=True):
            scores.append(self._read(given, feed))

    def _read(self, output: Array, feed: Arrays) -> Array:
        if not self.of_pairs:
            return output.astype(np.float64).reshape(())
        mask = feed.get(self.description["mask"] or "")
        return np.asarray(make_vectors(output, self.description, mask)[0])

    def compute_values(self, chosen: Sequence[int]) -> dict[str, tuple[float, float]]:
        """Return the rate; 0.5, that of chance, where all are right or none is."""
        taken = [number for number in chosen if number in self.taken]
        labels = self.labels[taken]
        ours, theirs = ([scores[number] for number in taken] for scores in self.scores)
        return {self.name: (self._compute(ours, labels), self._compute(theirs, labels))}

    def _compute(self, scores: Sequence[Array], labels: Array) -> float:
        if not self.of_pairs:
            return compute_equal_error_rate(np.array(scores, np.float64), labels == 1)
        if len({each.shape for each in scores}) > 1:
            raise SamplesError(
                f"the vectors of {self.output!r} have several lengths, so they have no cosines",
                hint="give 'pooling' in the output's description",
            )
        one, other = np.triu_indices(len(labels), 1)
        return compute_equal_error_rate(
            compute_cosines(list(scores))[one, other], labels[one] == labels[other]
        )


def compute_equal_error_rate(scores: Array, right: Array) -> float:
    """Return the error rate where the ROC curve has as many of both errors.

    Between two thresholds the curve is a straight line, as of a threshold chosen by lot.

    Args:
        scores: float64 ``(N,)``; what has a score as high as the threshold is let in, and a NaN
            never.
        right: bool ``(N,)``, whether each is to be let in.

    Returns:
        0 to 1, and 0.5 where all are right or none is.
    """
    if right.all() or not right.any():
        return 0.5
    order = np.argsort(-np.nan_to_num(scores, nan=-np.inf), kind="stable")
    ranked = np.nan_to_num(scores, nan=-np.inf)[order]
    last = np.append(ranked[1:] != ranked[:-1], True)
    let_in = np.cumsum(~right[order])[last] / np.sum(~right)
    kept = np.cumsum(right[order])[last] / np.sum(right)
    wrong, refused = np.append(0.0, let_in), 1 - np.append(0.0, kept)
    at = int(np.argmax(wrong >= refused))
    before, after = refused[at - 1] - wrong[at - 1], wrong[at] - refused[at]
    share = before / (before + after)
    return float(wrong[at - 1] + share * (wrong[at] - wrong[at - 1]))

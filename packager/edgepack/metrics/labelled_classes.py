"""Classes beside labelled ones: F1, where classes are rare or several are right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from edgepack.base.arrays import Array
from edgepack.errors import SamplesError
from edgepack.metrics.accuracy import find_class_scores
from edgepack.metrics.base import Arrays
from edgepack.metrics.decisions import compute_probabilities
from edgepack.metrics.of_labels import Described, LabelledMetric, find_output, make_labels_error


class ClassF1(LabelledMetric):
    """F1 of classes: of the best one of each sample, or of all decisions of probabilities.

    Of several classes it is the mean over those that are in labels or answers, so rare ones count
    as much as others. Of one probability it is that of yes.
    """

    name = "f1"

    def __init__(self, described: Described, labels: Array | None) -> None:
        """Take the labels: a class each, or whether each decision is yes.

        Raises:
            SamplesError: No output is of classes or decisions, or labels do not fit.
        """
        self.output = find_output(self.name, described, "classification", "probability")
        self.description: dict[str, Any] = described[self.output].model_dump()
        self.of_decisions = self.description["kind"] == "probability"
        wanted = "(samples,), a class each"
        if self.of_decisions:
            wanted = "(samples,) or (samples, classes), 0 or 1 each"
        if (
            labels is None
            or labels.dtype.kind not in "biu"
            or labels.ndim not in ((1, 2) if self.of_decisions else (1,))
            or (self.of_decisions and not np.isin(labels, (0, 1)).all())
        ):
            raise make_labels_error(self.name, labels, wanted)
        self.labels = labels.astype(np.int64)
        self.counts: tuple[list[Array], list[Array]] = ([], [])
        """By sample, ``(3, classes)``: right, said, there; fp32's and the variant's."""

    def add(self, reference: Arrays, output: Arrays, feed: Arrays) -> None:
        """Add the next sample's scores."""
        del feed
        label = self.labels[len(self.counts[0])]
        for counts, given in zip(self.counts, (reference, output), strict=True):
            values = given[self.output]
            counts.append(
                self._count_decisions(values, label)
                if self.of_decisions
                else self._count_best(values, int(label))
            )

    def _count_decisions(self, values: Array, label: Array) -> Array:
        sigmoid = self.description["activation"] == "sigmoid"
        said = compute_probabilities(values, sigmoid=sigmoid) >= self.description["threshold"]
        there = np.atleast_1d(label) == 1
        if said.shape != there.shape:
            raise self._make_error(f"{list(values.shape)}", f"{there.size} decisions")
        return np.array([said & there, said, there], np.int64)

    def _count_best(self, values: Array, label: int) -> Array:
        scores = find_class_scores(values)
        if scores is None or not 0 <= label < scores.size:
            raise self._make_error(f"{list(values.shape)}", f"the class {label}")
        best = int(np.argmax(scores))
        counts = np.zeros((3, scores.size), np.int64)
        counts[0, label] = best == label
        counts[1, best] = counts[2, label] = 1
        return counts

    def _make_error(self, shape: str, label: str) -> SamplesError:
        return SamplesError(
            f"the output {self.output!r} is {shape}, and its sample is labelled with {label}",
            hint="labels are class indices from 0, or 0 or 1 for each probability",
        )

    def compute_values(self, chosen: Sequence[int]) -> dict[str, tuple[float, float]]:
        """Return F1, and that of all decisions together (``micro_f1``)."""
        ours, theirs = (
            np.sum([counts[number] for number in chosen], axis=0) for counts in self.counts
        )
        return {
            self.name: (compute_f1(ours), compute_f1(theirs)),
            "micro_f1": (
                compute_f1(ours.sum(axis=1, keepdims=True)),
                compute_f1(theirs.sum(axis=1, keepdims=True)),
            ),
        }


def compute_f1(counts: Array) -> float:
    """Return the mean of F1 over classes that are said or there; 0 where none is.

    Args:
        counts: ``(3, classes)``: how often each is right, is said, and is there.
    """
    right, said, there = counts
    known = said + there > 0
    found = 2 * right[known] / (said + there)[known]
    return float(found.mean()) if found.size else 0.0

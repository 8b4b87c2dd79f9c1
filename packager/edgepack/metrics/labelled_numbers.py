"""Numbers beside labelled ones: whether they are in the same order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgepack.base.arrays import Array
from edgepack.errors import SamplesError
from edgepack.metrics.base import Arrays
from edgepack.metrics.numbers import correlate_ranks
from edgepack.metrics.of_labels import Described, LabelledMetric, find_output, make_labels_error


class Spearman(LabelledMetric):
    """Spearman's correlation of the answers' ranks with the labels': 1 is the same order.

    Ties have their mean rank. It is 0 where all answers, or all labels of some samples, are equal.
    """

    name = "spearman"

    def __init__(self, described: Described, labels: Array | None) -> None:
        """Take the labels, a number for each sample.

        Raises:
            SamplesError: No output is a number, or the labels are none, or all equal.
        """
        self.output = find_output(self.name, described, "regression", "probability")
        if labels is None or labels.ndim != 1 or labels.dtype.kind not in "biuf":
            raise make_labels_error(self.name, labels, "(samples,), a number each")
        self.labels = labels.astype(np.float64)
        self.values: tuple[list[float], list[float]] = ([], [])
        """By sample: fp32's and the variant's."""
        if not np.isfinite(self.labels).all() or np.ptp(self.labels) == 0:
            raise SamplesError(
                f"the labels are not different numbers: {np.unique(self.labels)[:3].tolist()}",
                hint="give each evaluation sample the number that the model should give",
            )

    def add(self, reference: Arrays, output: Arrays, feed: Arrays) -> None:
        """Add the next sample's number."""
        del feed
        for values, given in zip(self.values, (reference, output), strict=True):
            if given[self.output].size != 1:
                raise SamplesError(
                    f"the output {self.output!r} is {list(given[self.output].shape)}, and the"
                    f" metric {self.name} takes one number for each sample",
                    hint="describe the output with one number as regression",
                )
            values.append(float(given[self.output].item()))

    def compute_values(self, chosen: Sequence[int]) -> dict[str, tuple[float, float]]:
        """Return the correlation, -1 to 1."""
        labels = self.labels[list(chosen)]
        ours, theirs = (
            correlate_ranks(np.nan_to_num([values[number] for number in chosen]), labels)
            for values in self.values
        )
        return {self.name: (ours, theirs)}

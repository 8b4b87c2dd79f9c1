"""Probabilities of one class: whether the decision at a threshold is fp32's."""

from __future__ import annotations

import numpy as np

from edgepack.base.arrays import Array
from edgepack.metrics.base import Arrays, Found, Nothing, OutputMetric


class Decisions(OutputMetric):
    """The share of fp32's decisions that are kept; each side of the threshold counts half.

    So frequent decisions do not hide rare ones, such as a wake word. Where fp32 decides the same of
    all, it is the plain share. An output of several probabilities has as many decisions.
    """

    name = "decisions"
    about = (
        "the share of fp32's decisions that are kept; those above and below the threshold count"
        " half each"
    )
    least = 0.75

    def __init__(self, threshold: float, *, sigmoid: bool = False) -> None:
        self.threshold = threshold
        self.sigmoid = sigmoid
        self.ours: list[Array] = []
        self.theirs: list[Array] = []

    def add(self, reference: Array, output: Array, feed: Arrays) -> None:
        """Add one sample's probabilities, of any shape; of another shape, none is kept."""
        del feed
        is_whole = output.shape == reference.shape
        self.ours.append(compute_probabilities(reference, sigmoid=self.sigmoid))
        self.theirs.append(
            compute_probabilities(output, sigmoid=self.sigmoid)
            if is_whole
            else np.full(reference.size, np.nan)
        )

    def compute_value(self) -> Found | Nothing:
        """Return the share, and how well the variant's values order fp32's decisions."""
        above = [each >= self.threshold for each in self.ours]
        flat = np.concatenate(above) if above else np.zeros(0, bool)
        yes, no = int(flat.sum()), int((~flat).sum())
        if not yes or not no:
            return Nothing(
                f"fp32 decides the same of all samples at the threshold {self.threshold:g}"
            )
        count = len(above)
        values, own = [], []
        for ours, theirs in zip(above, self.theirs, strict=True):
            weights = np.where(ours, 0.5 / yes, 0.5 / no) * count
            # A NaN decides nothing.
            kept = (ours == (theirs >= self.threshold)) & ~np.isnan(theirs)
            values.append(float(weights[kept].sum()))
            own.append(float(weights.sum()))
        share = sum(values) / count
        no_better = None
        if share <= 0.5:
            no_better = (
                f"it keeps {share:.1%} of fp32's decisions, each side of {self.threshold:g} counted"
                " half, and one decision for all keeps 50 %"
            )
        area = _compute_roc_area(flat, np.concatenate(self.theirs))
        return Found(values, own, {"ROC area": area}, no_better)


def compute_probabilities(values: Array, *, sigmoid: bool) -> Array:
    """Return an output's values as probabilities: float64 ``(N,)``."""
    flat = values.astype(np.float64).reshape(-1)
    if not sigmoid:
        return flat
    with np.errstate(over="ignore"):
        return np.asarray(1.0 / (1.0 + np.exp(-flat)))


def _compute_roc_area(above: Array, scores: Array) -> float:
    """Return the area under the ROC curve of scores for a truth: 1 if they order it wholly."""
    scores = np.nan_to_num(scores, nan=-np.inf)
    high, low = np.sort(scores[above]), np.sort(scores[~above])
    below = np.searchsorted(low, high, "left") + np.searchsorted(low, high, "right")
    return float(below.mean() / (2 * len(low)))

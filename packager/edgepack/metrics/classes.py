"""Class scores: whether the best class is fp32's."""

from __future__ import annotations

from collections import Counter

import numpy as np

from edgepack.base.arrays import Array
from edgepack.metrics.accuracy import compute_mean_interval
from edgepack.metrics.base import Arrays, Found, Nothing, OutputMetric


class Agreement(OutputMetric):
    """The share of the samples whose best class is fp32's."""

    name = "agreement"
    about = "the share of the samples with fp32's best class"

    def __init__(self) -> None:
        self.are_shares = True
        """Whether fp32's scores are shares of 1, as softmax makes them."""
        self.same: list[float] = []
        self.best: list[int] = []
        """fp32's."""

    def add(self, reference: Array, output: Array, feed: Arrays) -> None:
        """Add one sample's scores: one axis has any size, all others have size 1."""
        del feed
        best = int(np.argmax(reference))
        values = reference.astype(np.float64)
        self.are_shares &= bool(values.min() >= 0 and abs(values.sum() - 1) <= _ROUNDED)
        self.best.append(best)
        is_whole = output.size == reference.size
        self.same.append(float(is_whole and best == int(np.argmax(output))))

    def compute_value(self) -> Found | Nothing:
        """Return the share; if all samples have one class, it says nothing."""
        classes = Counter(self.best)
        if len(classes) == 1 and len(self.same) > 1:
            return Nothing("fp32 gives one class for all samples")
        count, (common, often) = len(self.same), classes.most_common(1)[0]
        same = int(sum(self.same))
        no_better = None
        if count > 1 and not self._is_better(common):
            no_better = (
                f"it has fp32's best class for {same} of {count} samples, and one class for all"
                f" of them would have it for {often}"
            )
        return Found(self.same, no_better=no_better)

    def _is_better(self, common: int) -> bool:
        """Return whether it is clearly better than one class for all, where samples can tell."""
        gains = [same - (best == common) for same, best in zip(self.same, self.best, strict=True)]
        if sum(gains) <= 0 or len(gains) < _ENOUGH or sum(self.same) >= _SURE * len(gains):
            return sum(gains) > 0
        interval = compute_mean_interval(gains)
        return interval is not None and interval[0] > 0


_ROUNDED = 1e-3
_ENOUGH = 8
"""The fewest samples with which an interval is meaningful."""
_SURE = 0.95
"""The share of kept samples above which few samples outside the commonest class do not matter."""

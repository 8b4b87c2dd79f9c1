"""Class scores: whether the best class is fp32's."""

from __future__ import annotations

from collections import Counter

import numpy as np

from edgepack.metrics.base import Array, Arrays, Found, Nothing, OutputMetric


class Agreement(OutputMetric):
    """The share of the samples whose best class is fp32's."""

    name = "agreement"
    about = "the share of the samples with fp32's best class"

    def __init__(self) -> None:
        self.same: list[float] = []
        self.classes: Counter[int] = Counter()

    def add(self, reference: Array, output: Array, feed: Arrays) -> None:
        """Add one sample's scores: one axis has any size, all others have size 1."""
        del feed
        best = int(np.argmax(reference))
        self.classes[best] += 1
        is_whole = output.size == reference.size
        self.same.append(float(is_whole and best == int(np.argmax(output))))

    def found(self) -> Found | Nothing:
        """Return the share; of one class for all samples nothing is told."""
        if len(self.classes) == 1 and len(self.same) > 1:
            return Nothing("fp32 gives one class for all samples")
        count, often = len(self.same), self.classes.most_common(1)[0][1]
        same = int(sum(self.same))
        no_better = ""
        if count > 1 and same <= often:
            no_better = (
                f"it has fp32's best class for {same} of {count} samples, and one class for all"
                f" of them would have it for {often}"
            )
        return Found(self.same, no_better=no_better)

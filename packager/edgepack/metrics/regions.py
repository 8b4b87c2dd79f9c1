"""Masks: whether the regions are fp32's."""

from __future__ import annotations

import numpy as np

from edgepack.metrics.base import Array, Arrays, Found, Nothing, OutputMetric


class Regions(OutputMetric):
    """The intersection over union of regions with fp32's, of each sample the mean over classes."""

    name = "iou"
    about = "intersection over union of the regions with fp32's, the mean over classes and samples"

    def __init__(self, axis: int, threshold: float) -> None:
        self.axis = axis
        self.threshold = threshold
        self.values: list[float] = []
        self.kept = 0
        self.first: Array | None = None
        self.varies = False

    def add(self, reference: Array, output: Array, feed: Arrays) -> None:
        """Add one sample: scores with an axis of classes, a map of one value, or classes."""
        del feed
        ours = self._classes(reference)
        if self.first is None:
            self.first = ours
        self.varies |= not np.array_equal(self.first, ours)
        if output.shape != reference.shape:
            self.values.append(0.0)
            return
        theirs = self._classes(output)
        # Of one class, what is not in the region is no region; of several, each is.
        known = [c for c in np.union1d(ours, theirs) if c >= 0]
        if known:
            shares = [np.sum((ours == c) & (theirs == c)) / np.sum((ours == c) | (theirs == c))
                      for c in known]  # fmt: skip
            self.values.append(float(np.mean(shares)))

    def _classes(self, output: Array) -> Array:
        """Return the class of each place; -1 where there is none."""
        if output.dtype.kind != "f":
            return output.astype(np.int64)
        if output.ndim > abs(self.axis) and output.shape[self.axis] > 1:
            return np.asarray(output.argmax(axis=self.axis))
        return np.where(output >= self.threshold, 0, -1)

    def found(self) -> Found | Nothing:
        """Return the mean; of regions that are always the same nothing is told."""
        if not self.values or (len(self.values) > 1 and not self.varies):
            return Nothing("fp32 gives the same regions for all samples")
        return Found(self.values, no_better="" if any(self.values) else "no region is fp32's")

"""Masks: whether the regions are fp32's."""

from __future__ import annotations

import numpy as np

from edgepack.base.arrays import Array
from edgepack.metrics.base import Arrays, Found, Nothing, OutputMetric


class Regions(OutputMetric):
    """The intersection over union of regions with fp32's, of each sample the mean over classes."""

    name = "iou"
    about = "intersection over union of the regions with fp32's, the mean over classes and samples"

    def __init__(self, axis: int, threshold: float) -> None:
        self.axis = axis
        self.threshold = threshold
        self.values: list[float] = []
        self.references: list[Array] = []
        """The class of each place in fp32's, of as many samples as constants are tried on."""
        self.varies = False

    def add(self, reference: Array, output: Array, feed: Arrays) -> None:
        """Add one sample: scores with an axis of classes, a map of one value, or classes."""
        del feed
        ours = self._find_classes(reference)
        if len(self.references) < _MOST_SAMPLES:
            self.references.append(ours)
        self.varies |= not np.array_equal(self.references[0], ours)
        same = output.shape == reference.shape
        theirs = self._find_classes(output) if same else np.full(ours.shape, -1)
        self.values += _compute_iou(ours, theirs)

    def _find_classes(self, output: Array) -> Array:
        """Return the class of each place; -1 where there is none."""
        if output.dtype.kind != "f":
            return output.astype(np.int64)
        if output.ndim > abs(self.axis) and output.shape[self.axis] > 1:
            return np.asarray(output.argmax(axis=self.axis))
        return np.where(output >= self.threshold, 0, -1)

    def compute_value(self) -> Found | Nothing:
        """Return the mean; regions that are always the same say nothing."""
        if not self.values or (len(self.values) > 1 and not self.varies):
            return Nothing("fp32 gives the same regions for all samples")
        share, no_better = float(np.mean(self.values)), None
        if len(self.values) > 1 and share <= (constant := self._find_constant_iou()):
            no_better = f"its IoU is {share:.3f}, and the same regions for all have {constant:.3f}"
        return Found(self.values, no_better=no_better)

    def _find_constant_iou(self) -> float:
        """Return the IoU of the best of fp32's own regions where all samples had them."""
        return max(
            float(np.mean([v for ours in self.references for v in _compute_iou(ours, one)] or [0]))
            for one in self.references[:_CONSTANTS]
        )


_MOST_SAMPLES, _CONSTANTS = 32, 8


def _compute_iou(ours: Array, theirs: Array) -> list[float]:
    """Return intersection over union, the mean over classes; nothing where neither has any."""
    if ours.shape != theirs.shape:
        return [0.0]
    # Of one class, what is not in the region is no region; of several, each is.
    known = [c for c in np.union1d(ours, theirs) if c >= 0]
    shares = [
        np.sum((ours == c) & (theirs == c)) / np.sum((ours == c) | (theirs == c)) for c in known
    ]
    return [float(np.mean(shares))] if known else []

"""Outputs that are read as numbers: floats by R², integers by how many are equal."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np

from edgepack.base.arrays import Array
from edgepack.metrics.accuracy import OutputR2
from edgepack.metrics.base import Arrays, Found, Nothing, OutputMetric


class R2Metric(OutputMetric):
    """R² with fp32 as the truth, where 0 is the best constant's.

    Computed by :class:`edgepack.metrics.accuracy.OutputR2`.
    Of a single number for each sample it also gives Spearman's rank correlation and, with a
    threshold, the share of the samples that are on fp32's side of it.
    """

    name = "r2"
    about = "R² of the worst output, with fp32 as the truth: 1 is fp32's own, 0 a constant's"
    least = 0.75
    """The least value: the error is half of the output's deviation."""

    def __init__(self, threshold: float | None = None) -> None:
        self.threshold = threshold
        self.r2 = OutputR2()
        self.pairs: list[tuple[float, float]] = []
        self.is_single = True

    def add(self, reference: Array, output: Array, feed: Arrays) -> None:
        """Add one sample of any shape."""
        del feed
        self.r2.add(reference, output)
        self.is_single &= reference.size == output.size == 1
        if self.is_single:
            self.pairs.append((reference.item(), output.item()))

    def compute_value(self) -> Found | Nothing:
        """Return R², and the further figures for single numbers."""
        values = self.r2.compute_values()
        found = self.r2.compute_r2()
        if found is None:
            return Nothing("fp32 gives the same for all samples")
        no_better = None
        if not found.beats_constants:
            no_better = (
                f"R² is {found.value:.3f}{_format_interval(found.low, found.high)} over"
                f" {found.count} samples, and a constant's is 0"
            )
        error = math.sqrt(max(0.0, 1 - found.value))
        others = {"error in deviations": error, **self._compare_single_numbers()}
        return Found(values, others=others if math.isfinite(error) else {}, no_better=no_better)

    def _compare_single_numbers(self) -> dict[str, float]:
        if not self.is_single or len(self.pairs) < 2:
            return {}
        ours, theirs = np.array(self.pairs, np.float64).T
        others = {"rank correlation": correlate_ranks(ours, theirs)}
        if self.threshold is not None:
            same = (ours >= self.threshold) == (theirs >= self.threshold)
            others[f"same side of {self.threshold:g}"] = float(same.mean())
        return others


def _format_interval(low: float, high: float) -> str:
    return f" (95 % interval {low:.3f} to {high:.3f})" if math.isfinite(low) else ""


def correlate_ranks(ours: Array, theirs: Array) -> float:
    """Return Spearman's correlation, ties by their mean rank; 0 where one of both has one value."""
    ranks = np.array([_compute_ranks(ours), _compute_ranks(theirs)])
    ranks -= ranks.mean(axis=1, keepdims=True)
    lengths = float(np.prod(np.linalg.norm(ranks, axis=1)))
    return float(ranks[0] @ ranks[1]) / lengths if lengths else 0.0


def _compute_ranks(values: Array) -> Array:
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[place], np.float64)


class EqualMetric(OutputMetric):
    """The share of the values that are equal, as of integers and bools."""

    name = "equal"
    about = "the share of the values that equal fp32's"

    def __init__(self) -> None:
        self.values: list[float] = []
        self.references: list[Array] = []
        """As far as they are looked at for the best constant."""

    def add(self, reference: Array, output: Array, feed: Arrays) -> None:
        """Add one sample; with another shape nothing is equal."""
        del feed
        flat = reference.reshape(-1)
        self.references.append(flat[:: 1 + flat.size // _MOST_VALUES])
        same = reference.shape == output.shape
        self.values.append(float(np.mean(reference == output)) if same and output.size else same)

    def compute_value(self) -> Found | Nothing:
        """Return the share."""
        constant = _find_constant_share(self.references)
        if len(self.values) > 1 and constant == 1:
            return Nothing("fp32 gives the same for all samples")
        share, no_better = float(np.mean(self.values)), None
        if len(self.values) > 1 and share <= constant:
            no_better = (
                f"{share:.1%} of its values are fp32's, of the best constant's {constant:.1%}"
            )
        return Found(self.values, no_better=no_better)


_MOST_VALUES = 4096


def _find_constant_share(samples: list[Array]) -> float:
    """Return the share of values that equal the commonest value at their place in all samples.

    Where samples have several lengths there is no place; then it is the commonest of all values.
    """
    if len({each.shape for each in samples}) > 1:
        _, counts = np.unique(np.concatenate(samples), return_counts=True)
        return float(counts.max() / counts.sum())
    rows = np.sort(np.stack(samples), axis=0)
    longest = run = np.ones(rows.shape[1])
    for before, row in pairwise(rows):
        run = np.where(before == row, run + 1, 1)
        longest = np.maximum(longest, run)
    return float(longest.mean() / len(rows)) if rows.size else 1.0

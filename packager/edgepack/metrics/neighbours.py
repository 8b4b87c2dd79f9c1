"""Embeddings: whether a sample's nearest neighbour is the same as with fp32."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from edgepack.base.arrays import Array
from edgepack.metrics.base import Arrays, Found, Nothing, OutputMetric
from edgepack.ondevice.runtime.edgepack_answers import make_vectors

LEAST = 3
"""The fewest samples: of two, each is always the other's neighbour."""
TIED = 0.01
"""Two cosines that differ by no more than this are as near."""


class Neighbours(OutputMetric):
    """The share of the samples whose nearest other sample, by cosine, is fp32's, or as near."""

    name = "neighbours"
    about = "the share of the samples whose nearest other sample is fp32's, or as near to it"

    def __init__(self, description: Mapping[str, Any]) -> None:
        self.description = description
        self.ours: list[Array] = []
        self.theirs: list[Array] = []

    def add(self, reference: Array, output: Array, feed: Arrays) -> None:
        """Add one sample, pooled as its description says."""
        mask = feed.get(self.description["mask"] or "")
        ours = make_vectors(reference, self.description, mask)
        self.ours += list(ours)
        same = output.shape == reference.shape
        theirs = make_vectors(output, self.description, mask) if same else np.zeros_like(ours)
        self.theirs += list(theirs)

    def compute_value(self) -> Found | Nothing:
        """Return the share, and the error of the cosines between samples."""
        if len(self.ours) < LEAST:
            return Nothing(f"neighbours take {LEAST} samples")
        if len({each.shape for each in self.ours}) > 1:
            return Nothing("vectors of several lengths have no cosine")
        ours, theirs = compute_cosines(self.ours), compute_cosines(self.theirs)
        others = ~np.eye(len(ours), dtype=bool)
        if np.ptp(ours[others]) <= TIED:
            return Nothing("fp32's vectors of all samples are as near to each other")
        nearest, found = ours.max(axis=1), theirs.argmax(axis=1)
        values = (ours[np.arange(len(ours)), found] >= nearest - TIED).astype(float).tolist()
        error = float(np.sqrt(np.mean((ours - theirs)[others] ** 2)))
        spread = float(ours[others].std())
        no_better = None
        if error >= spread:
            no_better = (
                f"cosines between its vectors are off by {error:.3f}, and fp32's differ from their"
                f" mean by {spread:.3f}"
            )
        return Found(values, others={"cosine error": error}, no_better=no_better)


def compute_cosines(given: list[Array]) -> Array:
    """Return the cosines of all pairs, ``(N, N)``; a sample has -2 with itself."""
    rows = np.stack(given).astype(np.float64).reshape(len(given), -1)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    rows = np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 0)
    cosines = np.nan_to_num(rows @ rows.T)
    np.fill_diagonal(cosines, -2.0)
    return np.asarray(cosines)

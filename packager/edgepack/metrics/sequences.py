"""Token sequences: how many edits lie between them and fp32's."""

from __future__ import annotations

from collections import Counter

import numpy as np

from edgepack.metrics.base import Array, Arrays, Found, Nothing, OutputMetric


class Tokens(OutputMetric):
    """One less the edit distance to fp32's tokens over the longer one's length."""

    name = "tokens"
    about = "the share of fp32's tokens that are kept: 1 less the edit distance over the length"

    def __init__(self) -> None:
        self.values: list[float] = []
        self.seen: Counter[bytes] = Counter()

    def add(self, reference: Array, output: Array, feed: Arrays) -> None:
        """Add one sample: ids, or floats whose last axis has a score for each id."""
        del feed
        ours, theirs = _ids(reference), _ids(output)
        self.seen[ours.tobytes()] += 1
        longer = max(len(ours), len(theirs))
        self.values.append(1 - edit_distance(ours, theirs) / longer if longer else 1.0)

    def found(self) -> Found | Nothing:
        """Return the mean."""
        if len(self.seen) == 1 and len(self.values) > 1:
            return Nothing("fp32 gives the same tokens for all samples")
        return Found(self.values, no_better="" if any(self.values) else "no token is fp32's")


def _ids(output: Array) -> Array:
    ids = output.argmax(axis=-1) if output.dtype.kind == "f" else output
    return np.asarray(ids, np.int64).reshape(-1)


def edit_distance(one: Array, other: Array) -> int:
    """Return the least number of insertions, deletions and substitutions between two sequences."""
    steps = np.arange(len(other) + 1)
    row = steps
    for token in one:
        best = np.minimum(row[1:] + 1, row[:-1] + (other != token))
        row = np.concatenate([row[:1] + 1, best])
        # Insertions: each place may come from any before it, a step for each in between.
        row = np.minimum.accumulate(row - steps) + steps
    return int(row[-1])

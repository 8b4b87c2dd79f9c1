"""Token sequences: how many edits they differ by from fp32's."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

import numpy as np

from edgepack.base.arrays import Array
from edgepack.metrics.base import Arrays, Found, Nothing, OutputMetric


class Tokens(OutputMetric):
    """One less the edit distance to fp32's tokens over the longer one's length."""

    name = "tokens"
    about = "the share of fp32's tokens that are kept: 1 less the edit distance over the length"
    things: ClassVar[str] = "tokens"
    """What a sequence is made of."""

    def __init__(self) -> None:
        self.values: list[float] = []
        self.references: list[Array] = []
        self.logs: tuple[list[Array], list[Array]] = ([], [])
        """Of what fp32's scores and the variant's give to fp32's tokens."""

    def add(self, reference: Array, output: Array, feed: Arrays) -> None:
        """Add one sample: ids, or floats whose last axis has a score for each id."""
        del feed
        ours, theirs = _find_ids(reference), _find_ids(output)
        self.references.append(ours)
        self.values.append(compute_kept(ours, theirs))
        if reference.dtype.kind == "f":
            shares = are_shares(reference)
            whole = output if output.shape == reference.shape else np.full(reference.shape, np.nan)
            for logs, scores in zip(self.logs, (reference, whole), strict=True):
                logs.append(compute_log_shares(scores, ours, shares=shares))

    def compute_value(self) -> Found | Nothing:
        """Return the mean, and how much larger the perplexity of fp32's tokens is than fp32's."""
        commonest = Counter(each.tobytes() for each in self.references).most_common(_CONSTANTS)
        if len(commonest) == 1 and len(self.values) > 1:
            return Nothing(f"fp32 gives the same {self.things} for all samples")
        share, no_better = float(np.mean(self.values)), None
        if len(self.values) > 1:
            constants = [np.frombuffer(raw, np.int64) for raw, _ in commonest]
            constant = max(
                float(np.mean([compute_kept(o, c) for o in self.references])) for c in constants
            )
            if share <= constant:
                no_better = (
                    f"it keeps {share:.1%} of fp32's {self.things}, and the same ones for all"
                    f" samples keep {constant:.1%}"
                )
        others = {}
        if self.logs[0]:
            ours, theirs = (float(np.concatenate(logs).mean()) for logs in self.logs)
            others["perplexity ratio"] = float(np.exp(ours - theirs))
        return Found(self.values, others=others, no_better=no_better)


_CONSTANTS = 8
"""How many of fp32's commonest sequences are tried as a constant answer."""


def compute_kept(ours: Array, theirs: Array) -> float:
    """Return one less the edit distance over the longer length; 1 of two that are empty."""
    longer = max(len(ours), len(theirs))
    return 1 - edit_distance(ours, theirs) / longer if longer else 1.0


def _find_ids(output: Array) -> Array:
    ids = output.argmax(axis=-1) if output.dtype.kind == "f" else output
    return np.asarray(ids, np.int64).reshape(-1)


def are_shares(scores: Array) -> bool:
    """Return whether scores ``(..., ids)`` are shares of 1, as softmax makes them."""
    rounded = np.abs(scores.sum(axis=-1, dtype=np.float64) - 1) <= _ROUNDED
    return bool(scores.min(initial=0) >= 0 and rounded.all())


_ROUNDED = 0.01
_LEAST_LOG = -100.0
"""The share that counts for an id without one, or with a NaN."""


def compute_log_shares(scores: Array, ids: Array, *, shares: bool) -> Array:
    """Return the natural logarithm of what scores give to ids: float64 ``(M,)``.

    Args:
        scores: Floats ``(..., positions, ids)``.
        ids: int64 ``(positions,)``; a position with a negative one is left out.
        shares: Whether scores are shares of 1; else softmax makes them.
    """
    rows = scores.reshape(-1, scores.shape[-1])
    with np.errstate(all="ignore"):
        logs = [
            _compute_log_share(row.astype(np.float64), i, shares=shares)
            for row, i in zip(rows, ids, strict=True)
            if i >= 0
        ]
    return np.maximum(np.nan_to_num(np.array(logs, np.float64), nan=_LEAST_LOG), _LEAST_LOG)


def _compute_log_share(row: Array, index: int, *, shares: bool) -> float:
    if shares:
        return float(np.log(row[index] / row.sum()))
    row = row - row.max()
    return float(row[index] - np.log(np.exp(row).sum()))


def edit_distance(one: Array, other: Array) -> int:
    """Return the least number of insertions, deletions and substitutions between two sequences."""
    steps = np.arange(len(other) + 1)
    row = steps
    for token in one:
        best = np.minimum(row[1:] + 1, row[:-1] + (other != token))
        row = np.concatenate([row[:1] + 1, best])
        # Insertions: each place may come from any before it, one step per place in between.
        row = np.minimum.accumulate(row - steps) + steps
    return int(row[-1])

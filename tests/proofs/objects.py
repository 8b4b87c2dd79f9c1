"""Objects that a detector finds, by a decoder of its own, and how many of them stay."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tests.proofs.net import Array
from tests.proofs.readings import Skill

Decoded = tuple[Array, Array]
"""Boxes (places, 4) as left, top, right, bottom; scores (places, classes)."""
Decoder = Callable[[Mapping[str, Array]], Decoded]
LEAST_SCORE = 0.4
MOST = 40
"""Objects of a sample, the best ones: where all is noise there are hundreds."""
CONSTANTS = 4
OVERLAP = 0.5


@dataclass(frozen=True)
class Found:
    """An object: its class, score and box."""

    kind: int
    score: float
    box: Array


@dataclass(frozen=True)
class Objects:
    """All outputs of a detector together: F1 of the objects, with fp32's as the truth.

    The same class and an IoU of 0.5 make two objects one. The best constant is the best of: no
    object, and the objects of one sample, of a few, for all.
    """

    kind = "detection"
    decode: Decoder
    least: float = LEAST_SCORE

    def skill(
        self, reference: Sequence[Mapping[str, Array]], found: Sequence[Mapping[str, Array]]
    ) -> Skill | None:
        """Return None where fp32 finds nothing in any sample."""
        ours = [detections(*self.decode(each), self.least) for each in reference]
        theirs = [detections(*self.decode(each), self.least) for each in found]
        if not any(ours):
            return None
        tried = ours[:CONSTANTS]
        constant = max(f1(ours, [one] * len(ours)) for one in tried)
        return Skill(f1(ours, theirs), constant, None, "F1 of objects")


def detections(boxes: Array, scores: Array, least: float) -> list[Found]:
    """Return the objects with a score above ``least``, after non-maximum suppression by class."""
    found = []
    scores = np.nan_to_num(scores)
    for kind in range(scores.shape[1]):
        order = np.flatnonzero(scores[:, kind] > least)
        order = order[np.argsort(-scores[order, kind], kind="stable")]
        while order.size:
            best, order = order[0], order[1:]
            found.append(Found(kind, float(scores[best, kind]), boxes[best]))
            order = order[overlaps(boxes[best], boxes[order]) <= OVERLAP]
    return sorted(found, key=lambda one: -one.score)[:MOST]


def overlaps(box: Array, boxes: Array) -> Array:
    """Return the intersection over union of boxes (4,) or (m, 1, 4) with boxes (n, 4)."""
    shared = np.minimum(box[..., 2:], boxes[..., 2:]) - np.maximum(box[..., :2], boxes[..., :2])
    both = _area(shared)
    union = _area(box[..., 2:] - box[..., :2]) + _area(boxes[..., 2:] - boxes[..., :2]) - both
    return both / np.maximum(union, 1e-9)


def _area(size: Array) -> Array:
    return np.maximum(size[..., 0], 0) * np.maximum(size[..., 1], 0)


def f1(ours: Sequence[Sequence[Found]], theirs: Sequence[Sequence[Found]]) -> float:
    """Return F1 over all samples; each object is matched once, the best scores first."""
    hits = sum(_hits(truth, found) for truth, found in zip(ours, theirs, strict=True))
    total = sum(map(len, ours)) + sum(map(len, theirs))
    return 2 * hits / total if total else 1.0


def _hits(truth: Sequence[Found], found: Sequence[Found]) -> int:
    if not truth or not found:
        return 0
    found = sorted(found, key=lambda each: -each.score)
    boxes = np.stack([each.box for each in truth])
    near = overlaps(np.stack([each.box for each in found])[:, None], boxes)
    near[np.array([[a.kind != b.kind for b in truth] for a in found])] = 0
    hits = 0
    for row in near:
        best = int(row.argmax())
        if row[best] >= OVERLAP:
            hits += 1
            near[:, best] = 0
    return hits

"""Detections: whether the objects are fp32's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from edgepack.base.arrays import Array
from edgepack.metrics.base import Arrays, Found, Nothing, OutputMetric
from edgepack.metrics.precision import (
    Matched,
    compute_average_precision,
    compute_overlaps,
    find_all_objects,
    make_plane,
    make_rows,
    match_objects,
)
from edgepack.ondevice.runtime.edgepack_answers import Box, Detection, find_detections

OVERLAPS = (0.5, 0.75, 0.9)
"""Intersection over union from which a box stands for the same object; the first decides."""


class Objects(OutputMetric):
    """F1 of the objects in each picture that has any, with fp32's as the truth: it needs no labels.

    An object is kept if one of its class overlaps it enough, and its keypoints lie near enough. An
    object that fp32 does not find counts as much as a lost one.
    """

    name = "f1@0.5"
    about = "F1 of the objects that the variant finds, with fp32's as the truth, at an IoU of 0.5"

    def __init__(self, description: Mapping[str, Any]) -> None:
        self.description = description
        self.labels = [""] * description.get("label_count", 0)
        self.plane = make_plane(description)
        self.counts: list[tuple[int, int, tuple[int, ...]]] = []
        """By picture: fp32's objects, the variant's, and how many are the same at each overlap."""
        self.pictures: list[Matched] = []
        """The variant's objects, those with low scores too, with fp32's as the truth."""

    def add(self, reference: Array, output: Array, feed: Arrays) -> None:
        """Add one picture's rows, as the description's layout has them."""
        del feed
        ours = find_detections(reference, self.description, self.labels, self.plane)
        found = []
        if output.shape == reference.shape:
            found = find_all_objects(output, self.description, self.labels, self.plane)
        self.pictures.append(match_objects(found, make_rows(ours)))
        theirs = self._select_certain(found)
        same = tuple(_count_same(ours, theirs, least) for least in OVERLAPS)
        self.counts.append((len(ours), len(theirs), same))

    def _select_certain(self, found: Sequence[Detection]) -> list[Detection]:
        """Return the objects that an application gets."""
        score, most = self.description["score"], self.description["most"]
        return [each for each in found if each.score >= score][:most]

    def compute_value(self) -> Found | Nothing:
        """Return F1 at each overlap, mAP, and how many of fp32's objects are kept."""
        pictures = [counts for counts in self.counts if counts[0] or counts[1]]
        ours = sum(counts[0] for counts in pictures)
        if not ours:
            return Nothing(
                f"fp32 finds no object with a score of {self.description['score']:g} in any sample"
            )
        f1 = [
            [2 * same[n] / (ours + theirs) for ours, theirs, same in pictures]
            for n in range(len(OVERLAPS))
        ]
        kept = sum(same[0] for _, _, same in pictures)
        others = {
            f"f1@{least:g}": float(np.mean(values))
            for least, values in zip(OVERLAPS[1:], f1[1:], strict=True)
        }
        others["map50"] = float(compute_average_precision(self.pictures)[0])
        others |= {"objects": float(ours), "kept": float(kept)}
        no_better = None if kept else f"it finds none of the {ours} objects that fp32 finds"
        return Found(f1[0], others=others, no_better=no_better)


def _count_same(ours: Sequence[Detection], theirs: Sequence[Detection], least: float) -> int:
    """Return how many objects of one class overlap, each taken once, the nearest first."""
    pairs = sorted(
        (-share, i, j)
        for i, one in enumerate(ours)
        for j, other in enumerate(theirs)
        if one.index == other.index and (share := compute_share(one, other)) >= least
    )
    left, right = set(range(len(ours))), set(range(len(theirs)))
    for _, i, j in pairs:
        if i in left and j in right:
            left.discard(i)
            right.discard(j)
    return len(ours) - len(left)


_POINT_SIZE = 0.1
"""The distance of a keypoint, in sides of a square as large as the box, at which 0.61 is left.
COCO's is 0.05 for eyes to 0.21 for hips: twice the sigmas of pycocotools' cocoeval.py."""
_SEEN = 0.5
"""The score from which on fp32 sees a keypoint."""


def compute_share(one: Detection, other: Detection) -> float:
    """Return the overlap of two boxes, or the similarity of their keypoints where that is less.

    The similarity is COCO's with one size for all keypoints: the mean of ``exp(-d^2 / (2 s^2))``
    over those that the first one sees.
    """
    share = compute_overlap(one.box, other.box)
    seen = [
        (a, b)
        for a, b in zip(one.keypoints, other.keypoints, strict=True)
        if a.score is None or a.score >= _SEEN
    ]
    if not seen:
        return share
    left, top, right, bottom = one.box
    size = max((right - left) * (bottom - top), 1.0) * _POINT_SIZE**2
    near = [math.exp(-((a.x - b.x) ** 2 + (a.y - b.y) ** 2) / (2 * size)) for a, b in seen]
    return min(share, sum(near) / len(near))


def compute_overlap(one: Box, other: Box) -> float:
    """Return the intersection of two boxes over their union, 0 to 1; 0 where neither has area."""
    return float(compute_overlaps(np.array([one]), np.array([other])).item())

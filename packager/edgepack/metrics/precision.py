"""Mean average precision of the objects that are found, as COCO defines it.

Source: pycocotools' cocoeval.py, for objects of all sizes and at most 100 of a picture.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from edgepack.base.arrays import Array
from edgepack.ondevice.runtime.edgepack_answers import Box, Detection, find_detections
from edgepack.ondevice.runtime.edgepack_images import Placement

OVERLAPS = np.linspace(0.5, 0.95, 10)
"""Intersection over union from which an object is found; ``map50`` is of the first alone."""
_RECALLS = np.linspace(0.0, 1.0, 101)
"""The recalls at which precision is taken."""
PLANE = Placement(1 << 20, 1 << 20, 1 << 20, 1 << 20, 0, 0, 1 << 20, 1 << 20)
"""A placement that leaves boxes in the input's pixels, of an input without a size."""
LEAST_SCORE, MOST = 0.001, 100
"""The lowest score of objects that count, which is below the score that an application uses."""


class Matched(NamedTuple):
    """What was found in one picture, and which of it is right."""

    classes: Array
    """Of the objects that were found, best first: int64 ``(N,)``."""
    scores: Array
    """float64 ``(N,)``"""
    right: Array
    """At each overlap: bool ``(10, N)``."""
    wanted: Array
    """The classes of the objects that are there: int64 ``(M,)``."""
    ignored: Array
    """What is neither right nor wrong, at each overlap: bool ``(10, N)``."""


def make_plane(description: Mapping[str, Any]) -> Placement:
    """Return the placement that leaves a detection's boxes in the input's pixels.

    Args:
        description: As :class:`~edgepack.project.outputs.SizedDetection` has it, for layouts that
            need the input's size.
    """
    width, height = description.get("input_size", (0, 0))
    return PLANE._replace(input_width=width, input_height=height)


def find_all_objects(
    output: Array, description: Mapping[str, Any], labels: Sequence[str], place: Placement
) -> list[Detection]:
    """Return the objects in a picture, those with low scores too.

    Above the description's score they are the ones that an application gets, because only better
    boxes decide which boxes overlap too much.

    Raises:
        ValueError: The output has not the shape of the layout.
    """
    low = min(LEAST_SCORE, description["score"])
    most = max(MOST, description["most"])
    return find_detections(output, {**description, "score": low, "most": most}, labels, place)


def match_objects(found: Sequence[Detection], truth: Array) -> Matched:
    """Return which objects are right: each takes the one of its class that it overlaps most.

    Args:
        found: In one picture, best first; the first 100 count.
        truth: What is there: ``(M, 5)`` class, left, top, right, bottom; in a sixth column, 1
            where it is a crowd. What lies in a crowd is neither right nor wrong, by the share of
            its own area.
    """
    found = found[:MOST]
    boxes, there = np.array([each.box for each in found]).reshape(-1, 4), truth[:, 1:5]
    crowds = truth[:, 5] > 0 if truth.shape[1] > CROWD else np.zeros(len(truth), bool)
    shares = compute_overlaps(boxes, there)
    if crowds.any():
        shares[:, crowds] = _compute_shares_inside(boxes, there[crowds])
    return match_by_shares(found, truth[:, 0], shares, crowds, crowds)


CROWD = 5
"""The column of a labelled object that marks a crowd."""


def match_by_shares(
    found: Sequence[Detection], wanted: Array, shares: Array, ignored: Array, crowds: Array
) -> Matched:
    """Return which objects are right, at each overlap, as pycocotools' cocoeval.py matches them.

    Args:
        found: In one picture, best first.
        wanted: The classes of what is there: ``(M,)``.
        shares: How much each object has in common with each that is there: float64 ``(N, M)``,
            changed by this.
        ignored: bool ``(M,)``: what counts neither where it is found nor where it is not.
        crowds: bool ``(M,)``: what several objects may be part of.
    """
    classes = np.array([each.index for each in found], np.int64)
    there = wanted.astype(np.int64)
    shares[classes[:, None] != there] = 0.0
    right = np.zeros((len(OVERLAPS), len(found)), bool)
    out = np.zeros_like(right)
    near = np.flatnonzero(shares.max(axis=1, initial=0.0) >= OVERLAPS[0])
    for row, left_out, least in zip(right, out, OVERLAPS, strict=True):
        left = shares.copy()
        for number in near:
            # What is ignored is taken only where nothing else is left.
            place = _find_last_best(np.where(ignored, 0.0, left[number]), least)
            if place is None:
                place = _find_last_best(np.where(ignored, left[number], 0.0), least)
            if place is None:
                continue
            row[number], left_out[number] = not ignored[place], ignored[place]
            if not crowds[place]:
                left[:, place] = 0.0
    return Matched(classes, np.array([each.score for each in found]), right, there[~ignored], out)


def _find_last_best(shares: Array, least: float) -> int | None:
    """Return the place of the largest share, the last of equal ones; None below the least."""
    if not shares.size:
        return None
    place = len(shares) - 1 - int(shares[::-1].argmax())
    return place if shares[place] >= least else None


def compute_average_precision(pictures: Sequence[Matched]) -> Array:
    """Return the mean over classes of average precision, at each overlap: float64 ``(10,)``.

    Of each class that is in any of the pictures: the mean, over 101 recalls from 0 to 1, of the
    best precision with that recall or more. 0 where nothing is in any picture.
    """
    wanted = np.concatenate([each.wanted for each in pictures])
    classes = np.concatenate([each.classes for each in pictures])
    scores = np.concatenate([each.scores for each in pictures])
    right, ignored = (
        np.concatenate([getattr(each, which) for each in pictures], axis=1)
        for which in ("right", "ignored")
    )
    found = []
    for index, count in zip(*np.unique(wanted, return_counts=True), strict=True):
        own = np.flatnonzero(classes == index)
        own = own[np.argsort(-scores[own], kind="stable")]
        hits = right[:, own].cumsum(axis=1)
        precision = hits / np.maximum(1, (~ignored[:, own]).cumsum(axis=1))
        best = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
        # Behind the last object found there is no precision.
        best = np.hstack([best, np.zeros((len(OVERLAPS), 1))])
        reached = [np.searchsorted(row, _RECALLS) for row in hits / count]
        found.append([row[at].mean() for row, at in zip(best, reached, strict=True)])
    return np.mean(found, axis=0) if found else np.zeros(len(OVERLAPS))


def compute_f1(pictures: Sequence[Matched], score: float) -> float:
    """Return F1 of all objects with a score or better, at an overlap of 0.5; 0 where none is."""
    taken = [each.scores >= score for each in pictures]
    right = sum(int(each.right[0, own].sum()) for each, own in zip(pictures, taken, strict=True))
    there = sum(each.wanted.size for each in pictures) + sum(
        int(own.sum()) - int(each.ignored[0, own].sum())
        for each, own in zip(pictures, taken, strict=True)
    )
    return 2 * right / there if there else 0.0


def compute_overlaps(ours: Array, theirs: Array) -> Array:
    """Return the intersection over union of boxes ``(N, 4)`` with others ``(M, 4)``: ``(N, M)``."""
    low = np.maximum(ours[:, None, :2], theirs[:, :2])
    high = np.minimum(ours[:, None, 2:], theirs[:, 2:])
    shared = np.maximum(high - low, 0).prod(axis=-1)
    union = _compute_areas(ours)[:, None] + _compute_areas(theirs) - shared
    return np.asarray(np.divide(shared, union, out=np.zeros(shared.shape), where=union > 0))


def _compute_shares_inside(ours: Array, theirs: Array) -> Array:
    """Return the share of each box's area ``(N, 4)`` that is inside others ``(M, 4)``."""
    low = np.maximum(ours[:, None, :2], theirs[:, :2])
    high = np.minimum(ours[:, None, 2:], theirs[:, 2:])
    shared, areas = np.maximum(high - low, 0).prod(axis=-1), _compute_areas(ours)[:, None]
    return np.asarray(np.divide(shared, areas, out=np.zeros(shared.shape), where=areas > 0))


def _compute_areas(boxes: Array) -> Array:
    return np.asarray(np.maximum(boxes[:, 2:] - boxes[:, :2], 0).prod(axis=1))


def make_rows(found: Sequence[Detection]) -> Array:
    """Return objects as labels have them: float64 ``(N, 5)``."""
    rows: list[tuple[float, *Box]] = [(each.index, *each.box) for each in found]
    return np.array(rows, np.float64).reshape(-1, 5)

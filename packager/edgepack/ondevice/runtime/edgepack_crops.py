"""Objects that a detector finds as rows of numbers, and what is cut out of a picture for each.

A row is float32: left, top, right, bottom in pixels of the picture, then the score, and the index
of the class; keypoints are left out. The builder and :mod:`edgepack_pipeline` cut and compare by
the same functions.

Needs Python 3.8 or newer and numpy; nothing else.
"""

from __future__ import annotations

import math
from typing import Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

if __package__:
    from . import edgepack_answers as answers
else:  # a bundle's
    import edgepack_answers as answers  # type: ignore[import-not-found,no-redef]

COLUMNS = 6
SCORE, CLASS = 4, 5
LEAST_IOU = 0.5
"""Of two boxes of one class, the least share of their union at which they are of one object."""

Edges = Tuple[int, int, int, int]
"""Left, top, right, bottom: columns and rows from the first to before the last."""


class Matched(NamedTuple):
    """Which rows of two sets are of the same objects."""

    first: List[int]
    second: List[int]
    least_iou: float
    """Of a pair, the least intersection over union; 1 where there are no pairs."""
    unmatched: int
    """How many rows, of both sets together, have no partner."""


def make_rows(found: Sequence[answers.Detection]) -> np.ndarray:
    """Return detections as float32 ``(objects, 6)``, in their order."""
    rows = [(*each.box, each.score, each.index) for each in found]
    return np.asarray(rows, np.float32).reshape(-1, COLUMNS)


def read_rows(rows: np.ndarray, labels: Sequence[str]) -> List[answers.Detection]:
    """Return the detections that rows stand for.

    Args:
        rows: As :func:`make_rows`.
        labels: By index of the class.
    """
    found = []
    for *box, score, index in rows.tolist():
        label = labels[int(index)] if index < len(labels) else None
        found.append(answers.Detection(int(index), label, score, tuple(box)))
    return found


def find_edges(box: Sequence[float], width: int, height: int, margin: float) -> Optional[Edges]:
    """Return what of a picture a box covers, or None where it covers nothing.

    Args:
        box: Left, top, right, bottom in pixels.
        width: Of the picture.
        height: Of the picture.
        margin: The share of the box's width that is added on the left and on the right, and of its
            height above and below.

    Each edge is rounded to the next edge between pixels, halves up (``floor(x + 0.5)``), in double
    precision, and then clipped to the picture.
    """
    left, top, right, bottom = box
    # A NaN is not larger either.
    if not (right > left and bottom > top):
        return None
    across, down = margin * (right - left), margin * (bottom - top)
    edges = (
        _round(left - across, width),
        _round(top - down, height),
        _round(right + across, width),
        _round(bottom + down, height),
    )
    return edges if edges[2] > edges[0] and edges[3] > edges[1] else None


def _round(place: float, size: int) -> int:
    return math.floor(min(max(place, 0.0), float(size)) + 0.5)


def cut_rows(
    picture: np.ndarray, rows: np.ndarray, margin: float, most: int
) -> Iterator[Tuple[int, np.ndarray]]:
    """Yield what is cut out for each row, with the row's number; at most ``most``, the first.

    Rows whose box covers nothing are left out, see :func:`find_edges`.

    Args:
        picture: uint8 ``(H, W, 3)``.
        rows: As :func:`make_rows`.
        margin: As of :func:`find_edges`.
        most: How many, at most.
    """
    height, width = picture.shape[:2]
    left_over = most
    for number, row in enumerate(rows.tolist()):
        edges = find_edges(row[:SCORE], width, height, margin) if left_over else None
        if edges is not None:
            left, top, right, bottom = edges
            left_over -= 1
            yield number, np.ascontiguousarray(picture[top:bottom, left:right])


def match_rows(first: np.ndarray, second: np.ndarray) -> Matched:
    """Return which rows are of the same object: of one class, by boxes that overlap most.

    The pair that overlaps most comes first, and each row has one partner at most. Pairs below
    :data:`LEAST_IOU` are none.
    """
    shares = _find_overlaps(first, second)
    shares[first[:, None, CLASS] != second[None, :, CLASS]] = 0.0
    pairs, least = [], 1.0
    while shares.size and shares.max() >= LEAST_IOU:
        one, other = divmod(int(shares.argmax()), shares.shape[1])
        least = min(least, float(shares[one, other]))
        pairs.append((one, other))
        shares[one, :] = shares[:, other] = 0.0
    pairs.sort()
    unmatched = len(first) + len(second) - 2 * len(pairs)
    return Matched([one for one, _ in pairs], [other for _, other in pairs], least, unmatched)


def _find_overlaps(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return intersection over union of each box with each: float64 ``(N, M)``."""
    one = first[:, None, :SCORE].astype(np.float64)
    other = second[None, :, :SCORE].astype(np.float64)
    sides = np.minimum(one[..., 2:], other[..., 2:]) - np.maximum(one[..., :2], other[..., :2])
    shared = np.maximum(sides, 0).prod(axis=-1)
    areas = [np.maximum(box[..., 2:] - box[..., :2], 0).prod(axis=-1) for box in (one, other)]
    union = areas[0] + areas[1] - shared
    return np.asarray(np.where(union > 0, shared / np.where(union > 0, union, 1.0), 0.0))

"""How near keypoints are to labelled ones, as COCO defines it (object keypoint similarity, OKS).

Source: pycocotools' cocoeval.py, ``computeOks`` and ``Params.setKpParams``, for objects of all
sizes. Of a picture the first 20 objects count, as there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgepack.base.arrays import Array
from edgepack.metrics.precision import CROWD, Matched, match_by_shares
from edgepack.ondevice.runtime.edgepack_answers import Detection

FIRST_POINT = 7
"""The column of a labelled object's first keypoint, behind class, box, crowd and area; a keypoint
is x, y and its visibility, 0 where there is none."""
_AREA, _MOST = 6, 20
_PERSON = (26, 25, 25, 35, 35, 79, 79, 72, 72, 62, 62, 107, 107, 87, 87, 89, 89)
"""Thousandths: the sigmas of the 17 keypoints of a person."""
_USUAL = 50
"""That of keypoints of anything else: 0.61 is left at a tenth of the box's size."""


def find_sigmas(count: int) -> Array:
    """Return how far each of so many keypoints may lie off, in parts of the object's size."""
    given = _PERSON if count == len(_PERSON) else (_USUAL,) * count
    return np.array(given, np.float64) / 1000


def match_keypoints(found: Sequence[Detection], truth: Array) -> Matched:
    """Return which objects are right: each takes the one of its class that it is most similar to.

    Args:
        found: In one picture, best first; the first 20 count.
        truth: What is there: ``(M, 7 + 3 K)`` class, left, top, right, bottom, 1 for a crowd,
            area, and x, y and visibility of each keypoint. An object without a visible keypoint,
            or that is a crowd, is neither missed where it is not found nor right where it is.
    """
    found = found[:_MOST]
    points = truth[:, FIRST_POINT:].reshape(len(truth), (truth.shape[1] - FIRST_POINT) // 3, 3)
    given = np.array(
        [[(point.x, point.y) for point in each.keypoints] for each in found], np.float64
    ).reshape(len(found), points.shape[1], 2)
    crowds = truth[:, CROWD] > 0
    ignored = crowds | ~(points[..., 2] > 0).any(axis=1)
    return match_by_shares(
        found, truth[:, 0], compute_similarities(given, points, truth), ignored, crowds
    )


def compute_similarities(given: Array, points: Array, truth: Array) -> Array:
    """Return the similarity of objects with those that are there: float64 ``(N, M)``.

    It is the mean over visible keypoints of a normal curve of their distance. Of an object
    without any, it is by how far all keypoints lie outside of twice its box.

    Args:
        given: Keypoints ``(N, K, 2)``.
        points: Those that are there, ``(M, K, 3)`` with visibility.
        truth: The labelled objects as :func:`match_keypoints` takes them.
    """
    variances = (2 * find_sigmas(points.shape[1])) ** 2
    left, top, right, bottom = truth[:, 1:5].T
    width, height = right - left, bottom - top
    low = np.stack([left - width, top - height], axis=-1)[:, None]
    high = np.stack([right + width, bottom + height], axis=-1)[:, None]
    seen = np.asarray(points[..., 2] > 0)
    some = np.asarray(seen.any(axis=1))
    outside = np.maximum(0, low - given[:, None]) + np.maximum(0, given[:, None] - high)
    offsets = np.where(some[:, None, None], given[:, None] - points[..., :2], outside)
    spread = variances * (truth[:, _AREA] + np.spacing(1))[:, None] * 2
    near = np.exp(-(offsets**2).sum(axis=-1) / spread)
    counted = np.where(some[:, None], seen, True)  # noqa: FBT003  (all of one without any)
    return np.asarray((near * counted).sum(axis=-1) / counted.sum(axis=-1))

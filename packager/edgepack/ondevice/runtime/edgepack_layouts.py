"""Detections as exporters write them: the rows of outputs to boxes, classes and scores.

Needs Python 3.8 or newer and numpy; nothing else.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, List, Mapping, Optional, Sequence, Tuple

import numpy as np

BEFORE_SCORES = {"yolo": 4, "yolov5": 5, "yolox": 5}
"""The number of a box's values before its class scores."""
OBJECT_VALUES = 6
"""Of a row of ``end2end``."""
WITHOUT_OVERLAPS = ("end2end",)
"""Layouts of models that suppress overlaps themselves."""
_MOST_CLASSES = 1 << 31
_READ_TOO = ("scores", "classes")
"""Keys of a description that name outputs beside the described one."""
_NUMBER = r"[ \t]*-?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?[ \t]*"
_PRIOR = re.compile(",".join([_NUMBER] * 4))


@dataclass(frozen=True)
class Rows:
    """What the rows of an output hold; each is one object, of the class with its best score."""

    boxes: np.ndarray
    """Left, top, right, bottom in pixels of the input: float64 ``(N, 4)``."""
    index: np.ndarray
    """Of the class: int64 ``(N,)``."""
    score: np.ndarray
    """float64 ``(N,)``; minus infinity where there is no object."""
    classes: Optional[int]
    """How many classes the output has; None where it does not tell."""
    points: np.ndarray
    """Of each row's keypoints x and y in pixels of the input, and a score where they have one:
    float64 ``(N, K, 3)`` or ``(N, K, 2)``."""


def list_read_too(description: Mapping[str, Any]) -> List[str]:
    """Return the outputs that an answer is read from beside the described one."""
    return [description[key] for key in _READ_TOO if description.get(key) is not None]


def join_outputs(given: Sequence[np.ndarray]) -> np.ndarray:
    """Return the one array that an answer is read from.

    Args:
        given: The described output, then those of :func:`list_read_too`.

    Returns:
        Of the layout ``ssd`` the values of each box beside each other: ``(1, N, 4 + C)`` of a box
        and a score per class, or ``(1, N, 6)`` of a box, its score and its class. A single output
        is returned as it is.

    Raises:
        ValueError: The outputs of ``ssd`` have other shapes.
    """
    if len(given) == 1:
        return given[0]
    boxes, scores, *classes = given
    fit = boxes.ndim == 3 and len(boxes) == 1 and boxes.shape[2] == 4
    fit &= scores.ndim == (2 if classes else 3) and scores.shape[:2] == boxes.shape[:2]
    if not fit or any(each.shape != boxes.shape[:2] for each in classes):
        shapes = [f"{[*boxes.shape]}, its scores {[*scores.shape]}"]
        shapes += [f"its classes {[*each.shape]}" for each in classes]
        wanted = "scores [1, N] and classes [1, N]" if classes else "scores [1, N, classes]"
        raise ValueError(
            f"the output is {', '.join(shapes)}: the layout 'ssd' of a detection has one picture,"
            f" with boxes [1, N, 4], {wanted}"
        )
    values = scores if scores.ndim == 3 else scores[:, :, None]
    return np.concatenate([boxes, values, *(each[:, :, None] for each in classes)], axis=2)


def read_priors(text: str) -> np.ndarray:
    """Return the boxes in a file's text: centre x and y, width, height: float64 ``(N, 4)``.

    Raises:
        ValueError: A line is not four numbers with commas between them.
    """
    lines = text.replace("\ufeff", "").replace("\r", "").split("\n")
    lines = lines[:-1] if lines[-1] == "" else lines
    for number, line in enumerate(lines, 1):
        if _PRIOR.fullmatch(line) is None:
            raise ValueError(f"line {number} is '{line}', expected four numbers: cx,cy,w,h")
    return np.array([line.split(",") for line in lines], np.float64).reshape(-1, 4)


def read_rows(
    output: np.ndarray, description: Mapping[str, Any], labels: int, size: Tuple[int, int]
) -> Rows:
    """Return the rows of a detection.

    Args:
        output: ``yolo``: ``(1, 4 + C, N)`` or ``(1, N, 4 + C)``, centre x and y, width, height in
            pixels of the input, then a score per class. ``yolov5``: ``(1, N, 5 + C)``, before those
            the score that there is an object at all, which is multiplied with them. ``yolox``: the
            same, with the centre as an offset to the cell of a grid, in cells, and the logarithms
            of width and height in cells. ``end2end``: ``(1, N, 6)``: left, top, right, bottom in
            pixels of the input, score, class; a class that is no whole number from 0 on, or has no
            label, is no object. ``ssd``: what :func:`join_outputs` returns. ``yolo`` and
            ``end2end`` may have keypoints at the end of each row.
        description: ``layout``; ``keypoints`` and ``keypoint_values`` where there are some;
            ``strides`` for ``yolox``; for ``ssd`` ``normalized``, ``background``, ``activation``
            and, where it has one, ``classes``, also ``box``, or ``variances`` with
            ``prior_boxes``, which are what :func:`read_priors` returns.
        labels: How many there are; 0 where they say nothing.
        size: Width and height of the input in pixels.

    Raises:
        ValueError: Another shape.
    """
    layout = description["layout"]
    if layout == "end2end":
        return _read_objects(output, description, labels)
    if layout == "ssd":
        return _read_boxes(output, description, labels, size)
    before = BEFORE_SCORES[layout]
    rows = _find_rows(output, description, labels)
    after = count_point_values(description)
    centred, scores = rows[:, :4], rows[:, before : rows.shape[1] - after]
    # What overflows has no finite box or score, and is left out.
    with np.errstate(over="ignore", invalid="ignore"):
        if before > 4:
            scores = scores * rows[:, 4:5]
        if layout == "yolox":
            centred = _find_in_input(centred, description["strides"], size)
        boxes = _find_corners(centred)
    scores = np.where(np.isnan(scores), -np.inf, scores)
    index = scores.argmax(axis=1)
    best = scores[np.arange(len(scores)), index]
    return Rows(boxes, index, best, scores.shape[1], _find_points(rows, description))


def count_point_values(description: Mapping[str, Any]) -> int:
    """Return how many values of a row are those of keypoints."""
    if not description.get("keypoints"):
        return 0
    return int(description["keypoints"] * description["keypoint_values"])


def _find_points(rows: np.ndarray, description: Mapping[str, Any]) -> np.ndarray:
    """Return what :class:`Rows` has of keypoints.

    Source: ultralytics, nn/modules/head.py, Pose: pixels of the input, and a score after sigmoid.
    """
    points = rows[:, rows.shape[1] - count_point_values(description) :]
    values = description.get("keypoint_values") or 3
    return points.reshape(len(rows), points.shape[1] // values, values)


def _find_corners(centred: np.ndarray) -> np.ndarray:
    half = centred[:, 2:] / 2
    return np.hstack([centred[:, :2] - half, centred[:, :2] + half])


def _find_rows(output: np.ndarray, description: Mapping[str, Any], labels: int) -> np.ndarray:
    """Return float64 ``(N, values)``."""
    layout = description["layout"]
    others = BEFORE_SCORES[layout] + count_point_values(description)
    rows = output[0].astype(np.float64) if output.ndim == 3 and len(output) == 1 else None
    if rows is not None and layout == "yolo":
        # An axis that is empty holds no boxes: there is no object.
        values = others + labels if labels else min(rows.shape) or max(rows.shape)
        # Where both axes have that size, the first one is taken, as in ultralytics' exports.
        rows = rows.T if rows.shape[0] == values else rows
    if rows is None or rows.shape[1] <= others or (labels and rows.shape[1] != others + labels):
        wanted = f"{others + labels}" if labels else f"{others} and a score per class"
        raise _make_error(output, layout, wanted)
    return np.asarray(rows)


def _make_error(output: np.ndarray, layout: str, wanted: str) -> ValueError:
    return ValueError(
        f"the output is {list(output.shape)}: the layout {layout!r} of a detection has one"
        f" picture, with {wanted} values for each box"
    )


def _find_in_input(
    centred: np.ndarray, strides: Sequence[int], size: Tuple[int, int]
) -> np.ndarray:
    """Return boxes in cells of their grids as boxes in pixels.

    Source: YOLOX, yolox/utils/demo_utils.py, demo_postprocess.
    """
    cells = count_cells(strides, size)
    if len(centred) != cells:
        raise ValueError(
            f"the output has {len(centred)} boxes: with the strides {list(strides)} an input of"
            f" {size[0]} x {size[1]} pixels has {cells}"
        )
    grids = [np.indices((size[1] // each, size[0] // each)) for each in strides]
    # Row by row: x and y of each cell, and its size in pixels.
    corners = np.concatenate([grid.reshape(2, -1)[::-1].T for grid in grids])
    pixels = np.repeat(strides, [grid[0].size for grid in grids])[:, None]
    return np.hstack([(centred[:, :2] + corners) * pixels, np.exp(centred[:, 2:]) * pixels])


def count_cells(strides: Sequence[int], size: Tuple[int, int]) -> int:
    """Return how many cells the grids of ``yolox`` have, in an input of some width and height."""
    return sum((size[0] // stride) * (size[1] // stride) for stride in strides)


def _read_objects(output: np.ndarray, description: Mapping[str, Any], labels: int) -> Rows:
    values = OBJECT_VALUES + count_point_values(description)
    if output.ndim != 3 or len(output) != 1 or output.shape[2] != values:
        raise _make_error(output, "end2end", f"{values}")
    rows = output[0].astype(np.float64)
    return _name_rows(rows[:, :6], labels, _find_points(rows, description))


def _name_rows(rows: np.ndarray, labels: int, points: np.ndarray) -> Rows:
    """Return rows whose class is a number; where that is none, there is no object.

    Args:
        rows: A box, its score and its class: ``(N, 6)``.
        labels: How many there are.
        points: Of each row.
    """
    boxes, score, named = rows[:, :4], rows[:, 4], rows[:, 5]
    is_class = (named >= 0) & (named < (labels or _MOST_CLASSES)) & (named == np.floor(named))
    score = np.where(is_class & ~np.isnan(score), score, -np.inf)
    return Rows(boxes, np.where(is_class, named, 0).astype(np.int64), score, None, points)


def _read_boxes(
    output: np.ndarray, description: Mapping[str, Any], labels: int, size: Tuple[int, int]
) -> Rows:
    rows = output[0].astype(np.float64)
    values, before = rows[:, 4:], int(description["background"])
    with np.errstate(over="ignore", invalid="ignore"):
        boxes = _find_edges(rows[:, :4], description, size)
        if description.get("classes") is not None:
            scores = activate(values[:, :1], description["activation"])
            named = np.column_stack([boxes, scores[:, 0], values[:, 1] - before])
            return _name_rows(named, labels, _find_points(rows, description))
        classes = values.shape[1] - before
        if classes < 1 or (labels and classes != labels):
            wanted = f"{labels + before}" if labels else f"{1 + before} or more"
            with_background = " with the background" if before else ""
            raise ValueError(
                f"the scores have {values.shape[1]} classes, expected {wanted}{with_background}"
            )
        scores = activate(values, description["activation"])[:, before:]
    # By the values: activations keep their order, and may round two of them to the same score.
    own = values[:, before:]
    index = np.where(np.isnan(own), -np.inf, own).argmax(axis=1)
    score = scores[np.arange(len(scores)), index]
    score = np.where(np.isnan(score), -np.inf, score)
    return Rows(boxes, index, score, classes, _find_points(rows, description))


def _find_edges(
    boxes: np.ndarray, description: Mapping[str, Any], size: Tuple[int, int]
) -> np.ndarray:
    """Return boxes of ``ssd`` as left, top, right and bottom in pixels of the input."""
    form = description.get("box") or "centre"
    if "variances" in description:
        boxes = _decode_offsets(boxes, description)
    if form == "corners_yx":
        boxes = boxes[:, [1, 0, 3, 2]]
    if description["normalized"]:
        boxes = boxes * np.array([*size, *size])
    return _find_corners(boxes) if form == "centre" else boxes


def _decode_offsets(offsets: np.ndarray, description: Mapping[str, Any]) -> np.ndarray:
    """Return boxes that are relative to priors as centre, width and height.

    Source: biubug6/Pytorch_Retinaface, utils/box_utils.py, decode.
    """
    priors = np.asarray(description["prior_boxes"])
    if len(priors) != len(offsets):
        raise ValueError(f"the output has {len(offsets)} boxes, the priors are {len(priors)}")
    of_centre, of_size = description["variances"]
    centres = priors[:, :2] + of_centre * offsets[:, :2] * priors[:, 2:]
    return np.hstack([centres, priors[:, 2:] * np.exp(of_size * offsets[:, 2:])])


def activate(values: np.ndarray, activation: str) -> np.ndarray:
    """Return scores of float64 values; softmax is over the last axis."""
    if activation == "softmax":
        # Infinite values have no score.
        with np.errstate(invalid="ignore"):
            powers = np.exp(values - values.max(axis=-1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=-1, keepdims=True))
    if activation == "sigmoid":
        with np.errstate(over="ignore"):
            return np.asarray(1.0 / (1.0 + np.exp(-values)))
    return values

"""Detections as exporters write them: the rows of an output to boxes, classes and scores.

Needs Python 3.8 or newer and numpy; nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping, Optional, Sequence, Tuple

import numpy as np

BEFORE_SCORES = {"yolo": 4, "yolov5": 5, "yolox": 5}
"""The number of a box's values before its class scores."""
OBJECT_VALUES = 6
"""Of a row of ``end2end``."""
WITHOUT_OVERLAPS = ("end2end",)
"""Layouts of models that suppress overlaps themselves."""
_MOST_CLASSES = 1 << 31


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
            label, is no object.
        description: ``layout``; ``strides`` for ``yolox``.
        labels: How many there are; 0 where they say nothing.
        size: Width and height of the input in pixels.

    Raises:
        ValueError: Another shape.
    """
    layout = description["layout"]
    if layout == "end2end":
        return _read_objects(output, labels)
    before = BEFORE_SCORES[layout]
    rows = _find_rows(output, layout, labels)
    centred, scores = rows[:, :4], rows[:, before:]
    # What overflows has no finite box or score, and is left out.
    with np.errstate(over="ignore", invalid="ignore"):
        if before > 4:
            scores = scores * rows[:, 4:5]
        if layout == "yolox":
            centred = _find_in_input(centred, description["strides"], size)
        half = centred[:, 2:] / 2
        boxes = np.hstack([centred[:, :2] - half, centred[:, :2] + half])
    scores = np.where(np.isnan(scores), -np.inf, scores)
    index = scores.argmax(axis=1)
    return Rows(boxes, index, scores[np.arange(len(scores)), index], scores.shape[1])


def _find_rows(output: np.ndarray, layout: str, labels: int) -> np.ndarray:
    """Return float64 ``(N, values)``."""
    before = BEFORE_SCORES[layout]
    rows = output[0].astype(np.float64) if output.ndim == 3 and len(output) == 1 else None
    if rows is not None and layout == "yolo":
        # An axis that is empty holds no boxes: there is no object.
        values = before + labels if labels else min(rows.shape) or max(rows.shape)
        # Where both axes have that size, the first one is taken, as in ultralytics' exports.
        rows = rows.T if rows.shape[0] == values else rows
    if rows is None or rows.shape[1] <= before or (labels and rows.shape[1] != before + labels):
        wanted = f"{before + labels}" if labels else f"{before} and a score per class"
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


def _read_objects(output: np.ndarray, labels: int) -> Rows:
    if output.ndim != 3 or len(output) != 1 or output.shape[2] != OBJECT_VALUES:
        raise _make_error(output, "end2end", f"{OBJECT_VALUES}")
    rows = output[0].astype(np.float64)
    named = rows[:, 5]
    is_class = (named >= 0) & (named < (labels or _MOST_CLASSES)) & (named == np.floor(named))
    score = np.where(is_class & ~np.isnan(rows[:, 4]), rows[:, 4], -np.inf)
    return Rows(rows[:, :4], np.where(is_class, named, 0).astype(np.int64), score, None)

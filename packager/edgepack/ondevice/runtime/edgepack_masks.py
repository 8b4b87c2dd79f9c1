"""Segmentations: the class of each pixel of the caller's picture.

Needs Python 3.8 or newer and numpy; nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, List, Mapping, Optional, Sequence

import numpy as np

if __package__:
    from . import edgepack_images as images
else:  # a bundle's
    import edgepack_images as images  # type: ignore[import-not-found,no-redef]

UNSEEN = 255
"""The class of pixels that the model did not see, because they were cut away."""


@dataclass(frozen=True, eq=False)
class Mask:
    """The class of each pixel of a picture."""

    width: int
    """Of the picture as it came, in pixels."""
    height: int
    classes: np.ndarray
    """uint8 ``(height, width)``; 255 where the model did not see the picture."""
    labels: Sequence[str]
    """By class; empty where there are none."""


def make_mask(
    output: np.ndarray,
    description: Mapping[str, Any],
    place: Optional[images.Placement],
    labels: Sequence[str] = (),
) -> Optional[Mask]:
    """Return the class of each pixel, which is that of the place that it lies in.

    None without a picture, and of other shapes.

    Args:
        output: ``(1, C, h, w)`` with ``axis`` 1, ``(1, h, w, C)`` with -1, or ``(1, h, w)``. Of
            several floats the class is the one with the highest, of equal ones the first, never a
            NaN; a single float is class 1 from ``threshold`` on, else 0; an integer, which has to
            be single, is the class itself.
        description: ``axis`` and ``threshold``.
        place: Where the picture lay in the input.
        labels: By class.

    Raises:
        ValueError: A class is below 0 or above 254.
    """
    if place is None:
        return None
    classes = _find_classes(output, description)
    if classes is None:
        return None
    if classes.size and not 0 <= classes.min() <= classes.max() < UNSEEN:
        raise ValueError(
            f"the mask has classes from {classes.min()} to {classes.max()}, and a pixel's class is"
            f" 0 to {UNSEEN - 1}"
        )
    across = (place.picture_width, place.width, place.left, place.input_width)
    down = (place.picture_height, place.height, place.top, place.input_height)
    columns, rows = _find_places(*across, classes.shape[1]), _find_places(*down, classes.shape[0])
    seen = classes.astype(np.uint8)[np.maximum(rows, 0)[:, None], np.maximum(columns, 0)]
    seen[rows < 0, :] = UNSEEN
    seen[:, columns < 0] = UNSEEN
    return Mask(place.picture_width, place.picture_height, seen, labels)


def _find_classes(output: np.ndarray, description: Mapping[str, Any]) -> Optional[np.ndarray]:
    """Return integers ``(h, w)``; None where the output is no map of classes."""
    if output.ndim not in (3, 4) or len(output) != 1 or 0 in output.shape:
        return None
    # The classes come first.
    values = output[0] if output.ndim == 4 else output
    if output.ndim == 4 and description["axis"] == -1:
        values = values.transpose(2, 0, 1)
    if output.dtype.kind != "f":
        return values[0].astype(np.int64) if len(values) == 1 else None
    values = values.astype(np.float64)
    if len(values) == 1:
        return np.asarray(values[0] >= description["threshold"], np.int64)
    return np.asarray(np.where(np.isnan(values), -np.inf, values).argmax(axis=0))


def _find_places(size: int, scaled: int, offset: int, seen: int, places: int) -> np.ndarray:
    """Return for each pixel along an axis its place in the output: int64; -1 where there is none.

    Args:
        size: Of the picture.
        scaled: Of the scaled picture.
        offset: Of that in the input.
        seen: Of the input.
        places: Of the output.
    """
    at = (np.arange(size) + 0.5) * scaled / size + offset
    found = np.minimum((at * places / seen).astype(np.int64), places - 1)
    return np.where((at >= 0) & (at < seen), found, -1)


def make_runs(mask: Mask) -> List[List[int]]:
    """Return a mask's classes row by row as runs of equal ones: ``[class, count]`` each."""
    flat = mask.classes.reshape(-1)
    begins = np.flatnonzero(np.diff(flat, prepend=-1))
    counts = np.diff(begins, append=flat.size)
    return [list(pair) for pair in zip(flat[begins].tolist(), counts.tolist())]  # noqa: B905

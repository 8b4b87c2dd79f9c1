"""Outputs that people see better than they read: pictures, heat maps, a class for each pixel.

No description says what such an output is, so the module guesses from its shape, and reports the
guess. Pure: arrays in, arrays out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from edgepack.base.arrays import Array

LEAST_SIDE = 16
"""Pixels; what is smaller is a table of numbers."""
LEAST_SHARE = 4
"""A map has at least a fourth of the input's side: what is smaller is a feature map, as heads of
detectors give."""
MOST_CLASSES = 256
COLOURS = np.array(
    [(0, 114, 178), (230, 159, 0), (0, 158, 115), (204, 121, 167),
     (86, 180, 233), (213, 94, 0), (240, 228, 66), (90, 90, 90)],
    np.uint8,
)  # fmt: skip
"""Source: Okabe and Ito, Color Universal Design (2008), with gray for black."""
HEAT = np.array([(0, 0, 0), (213, 94, 0), (240, 228, 66)], np.float64)
"""Low to high: lighter is more, also for who sees no colours."""
AGREES, DIFFERS = 120, 235
"""How much a pixel's class covers, of 255: where it is the reference's, and where it is not."""


@dataclass(frozen=True)
class MapKind:
    """How an output is to be shown."""

    kind: Literal["picture", "heat", "classes"]
    channel_axis: int | None
    """The axis of the channels; None where there is none: ``(1, H, W)``."""
    low: float
    high: float
    """What is shown as black and white, or as nothing and full colour."""

    @property
    def words(self) -> str:
        """What the output was taken for."""
        if self.kind == "classes":
            return "the best class of each pixel"
        name = "picture" if self.kind == "picture" else "heat map"
        return f"{name}, {self.low:.3g} to {self.high:.3g}"


def find_kind(output: Array, size: tuple[int, int] | None) -> MapKind | None:
    """Return how an output is shown; None where it is not like a picture.

    Three channels are a picture. One channel is a heat map of the input, or a picture where it is
    larger than the input. More channels are scores of classes, if the map has the input's
    proportions and at least a fourth of its side; integers without channels are classes.

    Args:
        output: Of the reference.
        size: Height and width of the model's input; None where it is no picture.
    """
    for axis, channels, height, width in _list_layouts(output.shape):
        if min(height, width) < LEAST_SIDE:
            continue
        if channels == 3:
            return MapKind("picture", axis, *_find_range(output))
        fits = size is not None and _is_fitting(height, width, size)
        if channels == 1 and (fits or axis is not None):
            return _make_single(output, axis, size is not None and height > size[0], fits=fits)
        if fits and channels <= MOST_CLASSES:
            return MapKind("classes", axis, 0, channels)
    return None


def _list_layouts(shape: tuple[int, ...]) -> list[tuple[int | None, int, int, int]]:
    """Return what an output's axes may be: the channels' axis, channels, rows and columns."""
    if shape[:1] != (1,):
        return []
    if len(shape) == 3:
        return [(None, 1, shape[1], shape[2])]
    return [(1, *shape[1:]), (3, shape[3], shape[1], shape[2])] if len(shape) == 4 else []


def _make_single(output: Array, axis: int | None, larger: bool, *, fits: bool) -> MapKind:  # noqa: FBT001
    if output.dtype.kind in "iub" and fits:
        return MapKind("classes", axis, 0, float(output.max(initial=0)))
    return MapKind("picture" if larger else "heat", axis, *_find_range(output))


def _is_fitting(height: int, width: int, size: tuple[int, int]) -> bool:
    """Return whether a map has the input's proportions, and is not much smaller."""
    across = height * size[1], width * size[0]
    same = abs(across[0] - across[1]) <= 0.02 * max(across)
    return same and height * LEAST_SHARE >= size[0]


def _find_range(output: Array) -> tuple[float, float]:
    """Return the values of black and white: the usual ones of pictures, or the output's range."""
    if output.dtype == np.uint8:
        return 0.0, 255.0
    finite = output[np.isfinite(output)].astype(np.float64)
    if not finite.size:
        return 0.0, 1.0
    # A few values beyond are cut off.
    low, high = np.quantile(finite, (0.005, 0.995))
    for floor, ceiling, least in ((0.0, 1.0, 0.0), (-1.0, 1.0, 0.0), (0.0, 255.0, 50.0)):
        slack = 0.1 * (ceiling - floor)
        if low >= floor - slack and least <= high <= ceiling + slack:
            return floor, ceiling
    low, high = float(finite.min()), float(finite.max())
    return (low, high) if low < high else (0.0, 1.0)


def split_planes(output: Array, kind: MapKind) -> Array:
    """Return an output as ``(H, W, C)``."""
    if kind.channel_axis is None:
        return np.asarray(output[0][..., None])
    return np.moveaxis(output[0], kind.channel_axis - 1, -1)


def find_best_classes(output: Array, kind: MapKind) -> Array:
    """Return the class of each pixel: int64 ``(H, W)``; the first of equal scores."""
    values = split_planes(output, kind)
    best = values[..., 0] if values.shape[2] == 1 else values.argmax(axis=2)
    return np.asarray(best, np.int64)


def draw_picture(output: Array, kind: MapKind) -> Array:
    """Return a picture as uint8 ``(H, W, 3)``, in the range that the reference was given."""
    values = 255 * _compute_share(split_planes(output, kind), kind)
    return np.broadcast_to(np.rint(values).astype(np.uint8), (*values.shape[:2], 3))


def make_overlay(output: Array, kind: MapKind, reference: Array) -> Array:
    """Return a heat map or classes as RGBA, uint8 ``(H, W, 4)``, to lay over the photo.

    Pixels whose class is not the reference's cover more of it.
    """
    if kind.kind == "classes":
        classes = find_best_classes(output, kind)
        alpha = np.where(classes == find_best_classes(reference, kind), AGREES, DIFFERS)
        return np.dstack([choose_colours(classes), alpha.astype(np.uint8)])
    share = _compute_share(split_planes(output, kind)[..., 0], kind)
    places = np.linspace(0, 1, len(HEAT))
    colours = [np.interp(share, places, HEAT[:, channel]) for channel in range(3)]
    return np.dstack([*colours, 40 + share * 190]).astype(np.uint8)


def _compute_share(values: Array, kind: MapKind) -> Array:
    scaled = (np.nan_to_num(values.astype(np.float64)) - kind.low) / (kind.high - kind.low)
    return np.clip(scaled, 0, 1)


def choose_colours(classes: Array) -> Array:
    """Return the colours of classes: uint8, one more axis; from the ninth on they are paler."""
    turns = (classes // len(COLOURS)) % 3
    colours = COLOURS[classes % len(COLOURS)].astype(np.int64)
    return np.asarray(colours + (255 - colours) * turns[..., None] // 3, np.uint8)

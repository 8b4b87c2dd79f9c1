"""Pictures to input tensors, as ``image`` in the manifest's ``input_descriptions`` says.

Resizing is that of the library which the description names (``edgepack_resizing``). The Kotlin,
Swift and JavaScript runtimes do the same, so that a model is fed the same numbers everywhere.

What comes in is upright and opaque: 8-bit RGB. The caller decodes a file, turns it by its EXIF
orientation, and puts transparency on white.

Needs Python 3.8 or newer and numpy; nothing else.
"""

from __future__ import annotations

from typing import Any, Mapping, NamedTuple, Optional, Tuple

import numpy as np

if __package__:
    from . import edgepack_resizing as resizing
else:  # a bundle's
    import edgepack_resizing as resizing  # type: ignore[import-not-found,no-redef]

MOST_PIXELS = 1 << 28
"""The most pixels of a scaled picture that the model itself scales, because it scales the whole
before it cuts. 3 bytes each."""
GRAY_WEIGHTS = (19595, 38470, 7471)
"""Red, green and blue in 1/65536 of the luma of ITU-R 601-2. Source: Pillow, Convert.c (L24)."""


class Placement(NamedTuple):
    """The place of a scaled picture in the model's input. All values are in pixels."""

    picture_width: int
    """Of the picture as it came."""
    picture_height: int
    width: int
    """Of the scaled picture."""
    height: int
    left: int
    """Of the scaled picture's left edge in the input; negative where the picture is cut there."""
    top: int
    input_width: int
    input_height: int

    @property
    def columns(self) -> range:
        """Of the scaled picture: those that are in the input."""
        return range(max(0, -self.left), min(self.width, self.input_width - self.left))

    @property
    def rows(self) -> range:
        """Of the scaled picture: those that are in the input."""
        return range(max(0, -self.top), min(self.height, self.input_height - self.top))


def make_tensor(
    pixels: np.ndarray, description: Mapping[str, Any], size: Optional[Tuple[int, int]] = None
) -> np.ndarray:
    """Return a picture as the model takes it.

    Args:
        pixels: uint8 ``(H, W, 3)``, RGB.
        description: ``image`` of the input.
        size: Width and height of the picture of which ``pixels`` are averages of blocks
            (``average_blocks`` of ``edgepack_frames``); theirs where there is none.

    Returns:
        float32 ``(1, C, H, W)`` or ``(1, H, W, C)`` as ``layout`` says; C is 1 for ``GRAY``.

    Raises:
        ValueError: The pixels have another shape or dtype.
    """
    check(pixels)
    width, height = size or pixels.shape[1::-1]
    resize = description["resize"]
    place = find_placement(width, height, resize)
    colours = make_gray(pixels) if description["order"] == "GRAY" else pixels
    # A long and thin picture is mostly cut away: that part is not computed at all.
    shown = resizing.resize_pixels(
        colours, place.width, place.height, place.columns, place.rows, resize
    )
    return normalize_pixels(place_pixels(shown, place, resize), description)


def check(pixels: np.ndarray) -> None:
    """Raise ValueError, saying what was expected, unless this is a picture."""
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3 or not pixels.size:
        raise ValueError(
            f"the picture is {pixels.dtype} {list(pixels.shape)}, expected uint8 [height, width, 3]"
            " with RGB: numpy.asarray(image.convert('RGB')) of a Pillow image is that"
        )


def check_scaled(place: Placement) -> None:
    """Raise ValueError unless a model can scale the picture whole, as it has to."""
    if place.width * place.height > MOST_PIXELS:
        raise ValueError(
            f"the picture of {place.picture_width} x {place.picture_height} pixels would become"
            f" {place.width} x {place.height} in the model before it is cut: cut its ends off first"
        )


def find_placement(width: int, height: int, resize: Mapping[str, Any]) -> Placement:
    """Return where a picture of a size lies in the input.

    Args:
        width: Of the picture, in pixels.
        height: Of the picture, in pixels.
        resize: ``{letterbox, pad}``, ``{short_side, crop}`` or ``{width, height}``; the filter does
            not matter.
    """
    size = (width, height)
    if "letterbox" in resize:
        side = resize["letterbox"]
        scaled = _scale_size(width, height, side / max(size))
        left, top = (side - scaled[0]) // 2, (side - scaled[1]) // 2
        return Placement(*size, *scaled, left, top, side, side)
    if "short_side" in resize:
        side = resize["crop"]
        scaled = _scale_size(width, height, resize["short_side"] / min(size))
        left, top = -((scaled[0] - side) // 2), -((scaled[1] - side) // 2)
        return Placement(*size, *scaled, left, top, side, side)
    stretched = (resize["width"], resize["height"])
    return Placement(*size, *stretched, 0, 0, *stretched)


def _scale_size(width: int, height: int, ratio: float) -> Tuple[int, int]:
    """Return a size times a ratio: rounded, halves to even, at least 1."""
    return max(1, round(width * ratio)), max(1, round(height * ratio))


def find_factor(place: Placement) -> int:
    """Return 8, 4, 2 or 1: the largest that leaves a picture at least as large as scaled.

    Averages of blocks of so many pixels a side take less time to resize. The values are not those
    of the whole picture: runtimes make such averages only where an app asks for them.
    """
    width, height = place.picture_width, place.picture_height
    fitting = (k for k in (8, 4, 2) if width // k >= place.width and height // k >= place.height)
    return next(fitting, 1)


def make_gray(pixels: np.ndarray) -> np.ndarray:
    """Return uint8 ``(H, W, 3)``, RGB, as luma ``(H, W, 1)``: rounded, as Pillow does it."""
    # A channel at a time: a product of matrices of integers is slower, and takes twice the memory.
    luma = np.full(pixels.shape[:2], 0x8000, np.uint32)
    for channel, weight in enumerate(GRAY_WEIGHTS):
        luma += pixels[:, :, channel].astype(np.uint32) * np.uint32(weight)
    return (luma >> 16).astype(np.uint8)[:, :, None]


def place_pixels(shown: np.ndarray, place: Placement, resize: Mapping[str, Any]) -> np.ndarray:
    """Return a scaled picture ``(H, W, C)`` in the input's size: cut and padded; of its type."""
    if "pad" not in resize:
        return shown
    shape = (place.input_height, place.input_width, shown.shape[2])
    canvas = np.full(shape, resize["pad"], shown.dtype)
    canvas[place.top : place.top + place.height, place.left : place.left + place.width] = shown
    return canvas


def normalize_pixels(pixels: np.ndarray, description: Mapping[str, Any]) -> np.ndarray:
    """Apply order, scale, mean, std and layout to ``(H, W, C)``, each in float32; add the batch."""
    if description["order"] == "BGR":
        pixels = pixels[:, :, ::-1]
    values: np.ndarray = pixels.astype(np.float32) * np.float32(description["scale"])
    if description["mean"]:
        values = values - np.asarray(description["mean"], np.float32)
    if description["std"]:
        values = values / np.asarray(description["std"], np.float32)
    if description["layout"] == "NCHW":
        values = values.transpose(2, 0, 1)
    return np.ascontiguousarray(values[None])

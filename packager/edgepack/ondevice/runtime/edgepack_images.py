"""Pictures to input tensors, as ``image`` in the manifest's ``input_descriptions`` says.

Resizing is Pillow's bilinear filter with antialiasing, bit for bit: a pass over the rows and one
over the columns, on 8-bit channels, each with weights in fixed point and rounded to 8 bits. The
Kotlin and Swift runtimes do the same, so that a model is fed the same numbers everywhere.

What comes in is upright and opaque: 8-bit RGB. The caller decodes a file, turns it by its EXIF
orientation, and puts transparency on white.

Needs Python 3.8 or newer and numpy; nothing else.
"""

from __future__ import annotations

from typing import Any, Mapping, NamedTuple, Optional, Tuple

import numpy as np

PRECISION_BITS = 22
"""Of a weight's fixed point. Source: Pillow, src/libImaging/Resample.c: 32 - 8 - 2."""
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
    place = find_placement(width, height, description["resize"])
    colours = make_gray(pixels) if description["order"] == "GRAY" else pixels
    # A long and thin picture is mostly cut away: that part is not computed at all.
    shown = resize_pixels(colours, place.width, place.height, place.columns, place.rows)
    return normalize_pixels(place_pixels(shown, place, description["resize"]), description)


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


def find_placement(width: int, height: int, resize: Mapping[str, int]) -> Placement:
    """Return where a picture of a size lies in the input.

    Args:
        width: Of the picture, in pixels.
        height: Of the picture, in pixels.
        resize: ``{letterbox, pad}``, ``{short_side, crop}`` or ``{width, height}``.
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


def resize_pixels(
    pixels: np.ndarray,
    width: int,
    height: int,
    columns: Optional[range] = None,
    rows: Optional[range] = None,
) -> np.ndarray:
    """Return uint8 ``(H, W, C)`` scaled to ``(height, width, C)``, as Pillow's BILINEAR does it.

    Of that, only ``rows`` and ``columns`` are computed, and returned; all of them where none are
    given.

    Source for the order of the passes: Pillow 13, where the columns come first if the height loses
    more than twice what the width loses (observed; before 13 the rows always came first, and the
    result may be 1 of 255 away).
    """
    across = make_bilinear_filter(
        pixels.shape[1], width, range(width) if columns is None else columns
    )
    down = make_bilinear_filter(pixels.shape[0], height, range(height) if rows is None else rows)
    lost_width, lost_height = pixels.shape[1] - width, pixels.shape[0] - height
    needed = pixels[down.source, across.source]
    if lost_height > 2 * max(lost_width, 0):
        return _filter_rows(_filter_columns(needed, down), across)
    return _filter_columns(_filter_rows(needed, across), down)


class Filter(NamedTuple):
    """The source values of each scaled value along an axis, and their weights."""

    source: slice
    """The values that are needed at all."""
    first: np.ndarray
    """For each new value the first one that makes it, counted in ``source``: int64 ``(N,)``."""
    weights: np.ndarray
    """Of that one and of those that follow, in fixed point: int32 ``(N, taps)``. 0 behind the last;
    one tap alone where values stay as they are."""


def make_bilinear_filter(size_in: int, size_out: int, shown: range) -> Filter:
    """Return the filter that scales an axis, for some of the new values.

    Source: Pillow, src/libImaging/Resample.c, precompute_coeffs and normalize_coeffs_8bpc; values
    that are double there are double here, in the same sequence.
    """
    if size_in == size_out:
        same = np.full((len(shown), 1), 1 << PRECISION_BITS, np.int32)
        return Filter(slice(shown.start, shown.stop), np.arange(len(shown)), same)
    scale = size_in / size_out
    # Scaling up, the filter reaches as far as the next value; scaling down, over all that becomes
    # one: that is the antialiasing.
    reach = max(scale, 1.0)
    centre = (np.arange(shown.start, shown.stop) + 0.5) * scale
    # To integer towards zero, as in C.
    first = np.maximum((centre - reach + 0.5).astype(np.int64), 0)
    last = np.minimum((centre + reach + 0.5).astype(np.int64), size_in)
    taps = np.arange(int(np.ceil(reach)) * 2 + 1)
    distance = np.abs((first[:, None] + taps - centre[:, None] + 0.5) * (1.0 / reach))
    share = np.where(distance < 1.0, 1.0 - distance, 0.0)
    share[first[:, None] + taps >= last[:, None]] = 0.0
    # Added one after the other: numpy's sum adds in pairs, which rounds otherwise.
    share /= np.cumsum(share, axis=1)[:, -1:]
    weights = (share * (1 << PRECISION_BITS) + 0.5).astype(np.int32)
    return Filter(slice(int(first[0]), int(last[-1])), first - first[0], weights)


def _filter_rows(pixels: np.ndarray, along: Filter) -> np.ndarray:
    """Return uint8 ``(H, W, C)`` with another width."""
    return _filter_columns(pixels.transpose(1, 0, 2), along).transpose(1, 0, 2)


def _filter_columns(pixels: np.ndarray, along: Filter) -> np.ndarray:
    """Return uint8 ``(H, W, C)`` with another height."""
    first, weights = along.first, along.weights
    if weights.shape[1] == 1:
        return pixels
    # Whole rows are taken at a time: several times as fast as pixels.
    rows = np.ascontiguousarray(pixels).reshape(len(pixels), -1)
    # Weights sum up to about 1 << 22, so that 255 times them fit into 32 bits.
    total = np.full((len(first), rows.shape[1]), 1 << (PRECISION_BITS - 1), np.int32)
    for tap in range(weights.shape[1]):
        # Behind the edge the weights are 0.
        total += rows[np.minimum(first + tap, len(rows) - 1)] * weights[:, tap, None]
    values = np.clip(total >> PRECISION_BITS, 0, 255).astype(np.uint8)
    return np.asarray(values.reshape(len(first), *pixels.shape[1:]))


def place_pixels(shown: np.ndarray, place: Placement, resize: Mapping[str, int]) -> np.ndarray:
    """Return a scaled picture ``(H, W, C)`` in the input's size: cut and padded."""
    if "pad" not in resize:
        return shown
    shape = (place.input_height, place.input_width, shown.shape[2])
    canvas = np.full(shape, resize["pad"], np.uint8)
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

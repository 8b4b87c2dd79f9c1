"""Camera frames to pictures: upright 8-bit RGB, as :mod:`edgepack_images` takes it.

Colours of YUV are computed in integers, with the chroma sample that is nearest, so that the Kotlin
and Swift runtimes give the same pixels to the bit.

Needs Python 3.8 or newer and numpy; nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, List, Sequence, Tuple

import numpy as np

FORMATS = {"yuv420": 3, "rgb": 1, "rgba": 1, "bgra": 1}
"""The number of planes of each."""
ROTATIONS = (0, 90, 180, 270)
YUV_WEIGHTS = {
    ("bt601", "full"): (65536, 0, 91881, 22553, 46802, 116130),
    ("bt601", "video"): (76309, 16, 104597, 25675, 53279, 132201),
    ("bt709", "full"): (65536, 0, 103206, 12276, 30679, 121609),
    ("bt709", "video"): (76309, 16, 117489, 13975, 34925, 138438),
}
"""By matrix and range, in 1/65536: the weight of Y, the Y of black, and the weights of V in red, of
U and V in green (both subtracted), of U in blue. Source: ITU-R BT.601-7 and BT.709-6: red and blue
are 0.299 and 0.114, or 0.2126 and 0.0722, of the luma; in video range Y has 219 steps, U and V have
224."""


@dataclass(frozen=True)
class Plane:
    """The samples of one plane of a frame."""

    data: Any
    """Bytes, from the first sample on: ``bytes``, a ``memoryview`` or a uint8 array. They may end
    right behind the last sample."""
    row_stride: int
    """From one row's first byte to the next row's, in bytes."""
    pixel_stride: int
    """From one sample's first byte to the next one's in its row, in bytes."""


@dataclass(frozen=True)
class Frame:
    """A picture as a camera gives it."""

    format: str
    """``yuv420``: three planes, Y, and U and V with half as many columns and rows, rounded up
    (I420, or NV12 and NV21, whose U and V lie in one buffer); ``rgb``, ``rgba`` or ``bgra``: one
    plane of 3 or 4 bytes for each pixel. Transparent pixels, not premultiplied, are laid over
    white."""
    width: int
    """Of the frame as it lies in memory, in pixels."""
    height: int
    planes: Sequence[Plane]
    rotation: int = 0
    """By how many degrees the frame has to be turned clockwise to be upright: 0, 90, 180 or 270."""
    matrix: str = "bt601"
    """Of yuv420: ``bt601`` or ``bt709``."""
    range: str = "full"
    """Of yuv420: ``full`` (Y is 0 to 255) or ``video`` (16 to 235)."""


def make_pixels(frame: Frame, factor: int = 1) -> np.ndarray:
    """Return a frame as an upright picture: uint8 ``(H, W, 3)``, RGB.

    With a rotation of 90 or 270, H is the frame's width.

    Args:
        frame: The frame.
        factor: With 2, 4 or 8, each pixel is the average of a block of so many a side
            (:func:`average_blocks`). Of yuv420, samples are averaged before they
            become colours: U and V in blocks of half as many.

    Raises:
        ValueError: A format, rotation, matrix or range that there is none of; a size below 1;
            another number of planes; strides or a buffer too short; a released buffer.
    """
    _check(frame)
    if frame.format == "yuv420":
        planes = _view_yuv(frame)
        if factor > 1:
            y, *chroma = (_turn(plane, frame) for plane in planes)
            averages = [average_blocks(plane, factor // 2) for plane in chroma]
            return _convert_yuv([average_blocks(y, factor), *averages], frame)
        return np.ascontiguousarray(_turn(_convert_yuv(planes, frame), frame))
    count = len(frame.format)
    pixels = _view_samples(frame, 0, (frame.height, frame.width, count))
    if frame.format == "bgra":
        pixels = pixels[:, :, [2, 1, 0, 3]]
    pixels = _lay_over_white(pixels) if count == 4 else pixels
    return average_blocks(_turn(pixels, frame), factor)


def average_blocks(samples: np.ndarray, factor: int) -> np.ndarray:
    """Return uint8 ``(H, W, C)`` as averages of blocks, rounded: ``(H // factor, W // factor, C)``.

    Rows and columns at the end that fill no block are left out.
    """
    if factor == 1:
        return np.ascontiguousarray(samples)
    height, width = samples.shape[0] // factor, samples.shape[1] // factor
    shape = (height, factor, width, factor, samples.shape[2])
    blocks = samples[: height * factor, : width * factor].reshape(shape)
    sums = blocks.sum(axis=(1, 3), dtype=np.uint32) + factor * factor // 2
    return np.asarray(sums // (factor * factor), np.uint8)


def _turn(samples: np.ndarray, frame: Frame) -> np.ndarray:
    return np.rot90(samples, -frame.rotation // 90)


def _check(frame: Frame) -> None:
    if frame.format not in FORMATS:
        raise ValueError(f"the frame's format is {frame.format!r}, expected {', '.join(FORMATS)}")
    if frame.width < 1 or frame.height < 1:
        raise ValueError(
            f"the frame is {frame.width} x {frame.height} pixels, at least 1 x 1 is needed"
        )
    if len(frame.planes) != FORMATS[frame.format]:
        raise ValueError(
            f"the frame has {len(frame.planes)} planes, {frame.format} has {FORMATS[frame.format]}"
        )
    if frame.rotation not in ROTATIONS:
        raise ValueError(f"the frame's rotation is {frame.rotation}, expected 0, 90, 180 or 270")
    if (frame.matrix, frame.range) not in YUV_WEIGHTS:
        raise ValueError(
            f"the frame's matrix is {frame.matrix!r} and its range {frame.range!r}, expected bt601"
            " or bt709, and full or video"
        )


def _view_samples(frame: Frame, number: int, shape: Tuple[int, ...]) -> np.ndarray:
    """Return a plane as uint8 ``(rows, columns, bytes)`` in its own memory."""
    plane = frame.planes[number]
    rows, columns, count = shape
    which = f"plane {number} of the frame ({frame.format}, {frame.width} x {frame.height})"
    if plane.pixel_stride < count:
        raise ValueError(f"{which} has a pixel stride of {plane.pixel_stride}, {count} are needed")
    row = (columns - 1) * plane.pixel_stride + count
    if plane.row_stride < row:
        raise ValueError(f"{which} has a row stride of {plane.row_stride}, a row has {row} bytes")
    try:
        data = np.frombuffer(plane.data, np.uint8)
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"{which} cannot be read: {error}: give its bytes before they are released"
        ) from error
    needed = (rows - 1) * plane.row_stride + row
    if data.size < needed:
        raise ValueError(f"{which} has {data.size} bytes, {needed} are needed")
    strides = (plane.row_stride, plane.pixel_stride, 1)
    return np.lib.stride_tricks.as_strided(data, shape, strides, writeable=False)


def _lay_over_white(pixels: np.ndarray) -> np.ndarray:
    """Return ``(H, W, 4)``, whose last value is opacity, as opaque ``(H, W, 3)``."""
    opacity = pixels[:, :, 3:].astype(np.uint16)
    # At most 255 * 255 + 127, which fits into 16 bits.
    mixed = pixels[:, :, :3] * opacity + 255 * (255 - opacity) + 127
    return (mixed // 255).astype(np.uint8)


def _view_yuv(frame: Frame) -> List[np.ndarray]:
    half = ((frame.height + 1) // 2, (frame.width + 1) // 2, 1)
    shapes = ((frame.height, frame.width, 1), half, half)
    return [_view_samples(frame, number, shape) for number, shape in enumerate(shapes)]


def _convert_yuv(planes: Sequence[np.ndarray], frame: Frame) -> np.ndarray:
    """Return Y ``(H, W, 1)``, with as many samples of U and V or half as many, as RGB."""
    luma, black, v_in_red, u_in_green, v_in_green, u_in_blue = YUV_WEIGHTS[
        frame.matrix, frame.range
    ]
    # No sum is more than 40 million: 32 bits hold it.
    y, u, v = (plane[:, :, 0].astype(np.int32) for plane in planes)
    u, v = u - 128, v - 128
    light = (y - black) * luma + 32768
    colours = (v * v_in_red, -u * u_in_green - v * v_in_green, u * u_in_blue)
    height, width = y.shape
    pixels = np.empty((height, width, 3), np.uint8)
    for channel, colour in enumerate(colours):
        times = 2 if colour.shape[0] < height or colour.shape[1] < width else 1
        near = colour.repeat(times, axis=0).repeat(times, axis=1)[:height, :width]
        pixels[:, :, channel] = np.clip((light + near) >> 16, 0, 255)
    return pixels

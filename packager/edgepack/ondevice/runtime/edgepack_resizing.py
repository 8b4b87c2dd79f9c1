"""Resizing of pictures as the libraries do it that models are trained with.

``filter`` under ``resize`` in an input's description names a library's function; without it, it is
Pillow's bilinear one. Where the library computes in fixed point, so does this, with the same
rounding; where it computes in float32, so does this, in the same sequence. The Kotlin, Swift and
JavaScript runtimes compute the same numbers, to the bit.

Sources: Pillow 13, src/libImaging/Resample.c and Geometry.c; OpenCV 5,
modules/imgproc/src/resize.cpp; PyTorch 2, aten/src/ATen/native/UpSample.h.

Needs Python 3.8 or newer and numpy; nothing else.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Mapping, NamedTuple, Optional, Tuple, Union

import numpy as np

DEFAULT = "pillow-bilinear"
"""The filter of descriptions that name none."""
PRECISION_BITS = 22
"""Of a weight's fixed point in Pillow: 32 - 8 - 2."""
LINEAR_BITS = 11
"""Of a weight's fixed point in OpenCV: INTER_RESIZE_COEF_BITS."""
CUBIC_LANES = 8
"""Values of a row that OpenCV's INTER_CUBIC joins at once, in float32: v_int16 of 128 bits."""
LEAST_SHARE = 1e-3
"""The smallest part of a pixel that counts in OpenCV's areas."""


class Span(NamedTuple):
    """How an axis is scaled, and which of its new values are wanted."""

    size_in: int
    size_out: int
    shown: range


class Axis(NamedTuple):
    """The values of a picture that make each new value along an axis, and their weights."""

    size: int
    """How many values the picture has there."""
    first: np.ndarray
    """For each new value the first one that makes it, int64 ``(N,)``. What lies outside the picture
    stands for the value at its edge."""
    weights: np.ndarray
    """Of that one and of those that follow, int32 or float32 ``(N, taps)``; 0 behind the last."""

    @property
    def places(self) -> np.ndarray:
        """The values that make each new one: int64 ``(N, taps)``."""
        taps = np.arange(self.weights.shape[1])
        return np.clip(self.first[:, None] + taps, 0, self.size - 1)


def gives_floats(resize: Mapping[str, Any]) -> bool:
    """Return whether scaled values stay float32; those of other filters are rounded to uint8."""
    return bool(resize.get("filter", DEFAULT).startswith(("torchvision-", "tf-")))


def resize_pixels(
    pixels: np.ndarray,
    width: int,
    height: int,
    columns: Optional[range] = None,
    rows: Optional[range] = None,
    resize: Optional[Mapping[str, Any]] = None,
) -> np.ndarray:
    """Return uint8 ``(H, W, C)`` scaled to ``(height, width, C)``.

    Args:
        pixels: The picture.
        width: Of the whole scaled picture.
        height: Of the whole scaled picture.
        columns: Those of the scaled picture that are computed and returned; all without it.
        rows: As ``columns``.
        resize: The description's, of which ``filter`` and ``antialias`` are read.

    Returns:
        uint8, or float32 where :func:`gives_floats`: then it is not rounded, and with a bicubic
        filter some values are below 0 or above 255.

    Raises:
        ValueError: There is no such filter.
    """
    resize = resize or {}
    name = resize.get("filter", DEFAULT)
    if name not in FILTERS:
        raise ValueError(f"there is no filter {name!r}: it is one of {', '.join(FILTERS)}")
    across = Span(pixels.shape[1], width, range(width) if columns is None else columns)
    down = Span(pixels.shape[0], height, range(height) if rows is None else rows)
    return FILTERS[name](pixels, across, down, antialias=resize.get("antialias", False))


# --- Pillow


def _resize_as_pillow(
    kernel: Callable[[np.ndarray], np.ndarray], reach: float
) -> Callable[..., np.ndarray]:
    """Return a function that resizes in two passes, each of which rounds to 8 bits.

    Source for their sequence: Pillow 13, where the columns come first if the height loses more than
    twice what the width loses (observed; before 13 the rows always came first, and the result may
    be 1 of 255 away).
    """

    def resize(pixels: np.ndarray, across: Span, down: Span, *, antialias: bool) -> np.ndarray:
        del antialias  # always
        axes = [_make_pillow_axis(span, kernel, reach) for span in (across, down)]
        needed, wide, high = _take_needed(pixels, *axes)
        lost_width, lost_height = across.size_in - across.size_out, down.size_in - down.size_out
        if lost_height > 2 * max(lost_width, 0):
            return _turned(_pass_as_pillow, _pass_as_pillow(needed, high), wide)
        return _pass_as_pillow(_turned(_pass_as_pillow, needed, wide), high)

    return resize


def _make_pillow_axis(span: Span, kernel: Callable[[np.ndarray], np.ndarray], reach: float) -> Axis:
    """Return the weights along an axis in fixed point; one for each value where it keeps its size.

    What is double in Pillow's precompute_coeffs and normalize_coeffs_8bpc is double here, in the
    same sequence.
    """
    if span.size_in == span.size_out:
        same = np.full((len(span.shown), 1), 1 << PRECISION_BITS, np.int32)
        return Axis(span.size_in, np.arange(span.shown.start, span.shown.stop), same)
    scale = span.size_in / span.size_out
    # Scaling up, the filter reaches as far as its kernel; scaling down, over all that becomes one:
    # that is the antialiasing.
    stretched = max(scale, 1.0)
    centre = (np.arange(span.shown.start, span.shown.stop) + 0.5) * scale
    first, share = _weigh(span.size_in, centre, reach * stretched, 1.0 / stretched, kernel)
    exact = share * (1 << PRECISION_BITS)
    # To integer towards zero, as in C.
    return Axis(span.size_in, first, (exact + np.where(exact < 0, -0.5, 0.5)).astype(np.int32))


def _weigh(
    size: int,
    centre: np.ndarray,
    reach: float,
    narrowing: float,
    kernel: Callable[[np.ndarray], np.ndarray],
) -> Tuple[np.ndarray, np.ndarray]:
    """Return the first value that makes each new one, and shares ``(N, taps)`` whose sum is 1.

    They are of the type of ``centre``.
    """
    first = np.maximum((centre - reach + 0.5).astype(np.int64), 0)
    last = np.minimum((centre + reach + 0.5).astype(np.int64), size)
    taps = np.arange(int(np.ceil(reach)) * 2 + 1)
    places = (first[:, None] + taps).astype(centre.dtype)
    share = kernel(np.abs((places - centre[:, None] + 0.5) * narrowing))
    share[first[:, None] + taps >= last[:, None]] = 0.0
    # Added one after the other: numpy's sum adds in pairs, which rounds otherwise.
    return first, share / np.cumsum(share, axis=1)[:, -1:]


def _compute_bilinear(distance: np.ndarray) -> np.ndarray:
    return np.where(distance < 1.0, 1.0 - distance, np.zeros_like(distance))


def _compute_bicubic(distance: np.ndarray) -> np.ndarray:
    """Return Keys' kernel with a = -0.5."""
    near = ((-0.5 + 2.0) * distance - (-0.5 + 3.0)) * distance * distance + 1
    far = (((distance - 5) * distance + 8) * distance - 4) * -0.5
    outside = np.zeros_like(distance)
    return np.where(distance < 1.0, near, np.where(distance < 2.0, far, outside))


def _pass_as_pillow(pixels: np.ndarray, axis: Axis) -> np.ndarray:
    """Return uint8 with another first axis."""
    if axis.weights.shape[1] == 1:
        return pixels
    total = _sum_up(pixels, axis, 1 << (PRECISION_BITS - 1))
    return np.asarray(np.clip(total >> PRECISION_BITS, 0, 255), np.uint8)


def _resize_as_pillow_nearest(
    pixels: np.ndarray, across: Span, down: Span, *, antialias: bool
) -> np.ndarray:
    """Return the pixel in which each new one's centre lies; ImagingScaleAffine adds up steps."""
    del antialias
    picked = []
    for size_in, size_out, shown in (down, across):
        steps = np.full(shown.stop, size_in / size_out)
        steps[0] *= 0.5
        picked.append(np.cumsum(steps)[shown.start :].astype(np.int64))
    return np.asarray(pixels[picked[0]][:, picked[1]])


# --- OpenCV


def _resize_as_cv2_linear(
    pixels: np.ndarray, across: Span, down: Span, *, antialias: bool
) -> np.ndarray:
    """Return INTER_LINEAR's pixels: its two nearest of each axis, however many become one."""
    del antialias  # never
    return _interpolate(pixels, across, down, _place_linear)


def _resize_as_cv2_cubic(
    pixels: np.ndarray, across: Span, down: Span, *, antialias: bool
) -> np.ndarray:
    """Return INTER_CUBIC's pixels: four of each axis, however many become one.

    Rows are joined in float32, from the last on, and where less than eight values are left at a
    row's end in whole numbers. Source: VResizeCubicVec_32s8u and VResizeCubic.
    """
    del antialias  # never
    axes = [_make_cv2_cubic_axis(across), _make_cv2_cubic_axis(down)]
    needed, wide, high = _take_needed(pixels, *axes)
    rows = _turned(_sum_up, needed, wide)
    one = np.float32(1 << 2 * LINEAR_BITS)
    weights = high.weights[:, :, None, None].astype(np.float32) / one
    exact = np.float32(0)
    for tap in (3, 2, 1, 0):
        exact = rows[high.places[:, tap]].astype(np.float32) * weights[:, tap] + exact
    whole = _sum_up(rows, high, 1 << (2 * LINEAR_BITS - 1)) >> 2 * LINEAR_BITS
    bands = pixels.shape[2]
    places = np.arange(across.shown.start * bands, across.shown.stop * bands).reshape(-1, bands)
    at_once = places < across.size_out * bands // CUBIC_LANES * CUBIC_LANES
    return np.asarray(np.clip(np.where(at_once, np.rint(exact), whole), 0, 255), np.uint8)


def _make_cv2_cubic_axis(span: Span) -> Axis:
    first, part = _place_linear(span)
    rest = np.float32(1) - part
    shares = [_weigh_far(part + 1), _weigh_near(part), _weigh_near(rest)]
    shares.append(np.float32(1) - shares[0] - shares[1] - shares[2])
    weights = np.rint(np.stack(shares, 1) * np.float32(1 << LINEAR_BITS)).astype(np.int32)
    return Axis(span.size_in, first - 1, weights)


def _interpolate(
    pixels: np.ndarray,
    across: Span,
    down: Span,
    place: Callable[[Span], Tuple[np.ndarray, np.ndarray]],
) -> np.ndarray:
    """Return pixels between two of each axis, in OpenCV's fixed point: uint8."""
    axes = [
        _make_cv2_axis(across, place, is_row=True),
        _make_cv2_axis(down, place, is_row=False),
    ]
    needed, wide, high = _take_needed(pixels, *axes)
    rows = _turned(_sum_up, needed, wide) >> 4
    index, weights = high.places, high.weights[:, :, None, None]
    upper = (rows[index[:, 0]] * weights[:, 0]) >> 16
    lower = (rows[index[:, 1]] * weights[:, 1]) >> 16
    return np.asarray(np.clip((upper + lower + 2) >> 2, 0, 255), np.uint8)


def _make_cv2_axis(
    span: Span, place: Callable[[Span], Tuple[np.ndarray, np.ndarray]], *, is_row: bool
) -> Axis:
    first, part = place(span)
    if is_row:
        # Only within a row are places outside the picture moved to its edge.
        part[(first < 0) | (first >= span.size_in - 1)] = 0.0
        first = np.clip(first, 0, span.size_in - 1)
    one = np.float32(1 << LINEAR_BITS)
    weights = np.rint(np.stack([np.float32(1) - part, part], 1) * one).astype(np.int32)
    return Axis(span.size_in, first, weights)


def _find_cv2_scale(span: Span) -> Tuple[float, float]:
    """Return the scale and what it is computed from, as OpenCV divides."""
    inverse = span.size_out / span.size_in
    return 1.0 / inverse, inverse


def _place_linear(span: Span) -> Tuple[np.ndarray, np.ndarray]:
    """Return the pixel before each new pixel's centre, and which part of it lies before that."""
    scale, _ = _find_cv2_scale(span)
    new = np.arange(span.shown.start, span.shown.stop)
    exact = ((new + 0.5) * scale - 0.5).astype(np.float32)
    first = np.floor(exact)
    return first.astype(np.int64), exact - first


def _place_areas(span: Span) -> Tuple[np.ndarray, np.ndarray]:
    """Return what :func:`_place_linear` does, for INTER_AREA where a side grows."""
    scale, inverse = _find_cv2_scale(span)
    new = np.arange(span.shown.start, span.shown.stop)
    first = np.floor(new * scale).astype(np.int64)
    part = ((new + 1) - (first + 1) * inverse).astype(np.float32)
    return first, np.where(part <= 0, np.float32(0), part - np.floor(part))


def _resize_as_cv2_area(
    pixels: np.ndarray, across: Span, down: Span, *, antialias: bool
) -> np.ndarray:
    """Return INTER_AREA's pixels: the mean of what becomes one, where no side grows."""
    del antialias  # always
    scales = [_find_cv2_scale(span)[0] for span in (across, down)]
    if min(scales) < 1:
        return _interpolate(pixels, across, down, _place_areas)
    wide, high = (int(np.rint(scale)) for scale in scales)
    if max(abs(scales[0] - wide), abs(scales[1] - high)) < np.finfo(np.float64).eps:
        total = _sum_both(pixels, _make_block_axis(across, wide), _make_block_axis(down, high))
        if (wide, high) == (2, 2):
            return np.asarray((total + 2) >> 2, np.uint8)
        exact = total.astype(np.float32) * (np.float32(1) / np.float32(wide * high))
    else:
        exact = _sum_both(pixels, _make_area_axis(across), _make_area_axis(down))
    return np.asarray(np.clip(np.rint(exact), 0, 255), np.uint8)


def _make_block_axis(span: Span, block: int) -> Axis:
    first = np.arange(span.shown.start, span.shown.stop) * block
    return Axis(span.size_in, first, np.ones((len(first), block), np.int32))


def _make_area_axis(span: Span) -> Axis:
    """Return which part of each pixel lies in each new one, of which pixels are parts.

    Source: computeResizeAreaTab.
    """
    scale, _ = _find_cv2_scale(span)
    begin = np.arange(span.shown.start, span.shown.stop) * scale
    end = begin + scale
    cell = np.minimum(scale, span.size_in - begin)
    last = np.minimum(np.floor(end).astype(np.int64), span.size_in - 1)
    inner = np.minimum(np.ceil(begin).astype(np.int64), last)
    before, after = inner - begin > LEAST_SHARE, end - last > LEAST_SHARE
    first = inner - 1
    places = first[:, None] + np.arange(int(np.ceil(scale)) + 2)
    is_inner = (places >= inner[:, None]) & (places < last[:, None])
    weights = np.where(is_inner, (1.0 / cell)[:, None], 0.0)
    weights[:, 0] = np.where(before, (inner - begin) / cell, 0.0)
    rest = np.minimum(np.minimum(end - last, 1.0), cell) / cell
    at_last = (np.arange(len(first)), last - first)
    weights[at_last] = np.where(after, rest, 0.0)
    return Axis(span.size_in, first, weights.astype(np.float32))


def _resize_as_cv2_nearest(
    pixels: np.ndarray, across: Span, down: Span, *, antialias: bool
) -> np.ndarray:
    """Return INTER_NEAREST's pixels: those at each new one's corner."""
    del antialias
    picked = []
    for span in (down, across):
        exact = np.arange(span.shown.start, span.shown.stop) * _find_cv2_scale(span)[0]
        picked.append(np.minimum(np.floor(exact).astype(np.int64), span.size_in - 1))
    return np.asarray(pixels[picked[0]][:, picked[1]])


# --- Tensors of PyTorch and TensorFlow, in float32


def _resize_as_torchvision_bilinear(
    pixels: np.ndarray, across: Span, down: Span, *, antialias: bool
) -> np.ndarray:
    def make(span: Span) -> Axis:
        if antialias:
            return _make_spread_axis(span, _find_scale(span), _compute_bilinear, 1.0)
        return _make_linear_axis(span, _find_places(span))

    return _sum_both(pixels, make(across), make(down))


def _resize_as_torchvision_bicubic(
    pixels: np.ndarray, across: Span, down: Span, *, antialias: bool
) -> np.ndarray:
    def make(span: Span) -> Axis:
        if antialias:
            return _make_spread_axis(span, _find_scale(span), _compute_bicubic, 2.0)
        return _make_cubic_axis(span)

    return _sum_both(pixels, make(across), make(down))


def _resize_as_tf_bilinear(
    pixels: np.ndarray, across: Span, down: Span, *, antialias: bool
) -> np.ndarray:
    """Return tf.image.resize's values, whose places are rounded in other steps than PyTorch's."""

    def make(span: Span) -> Axis:
        if antialias:
            scale = np.float32(1) / (np.float32(span.size_out) / np.float32(span.size_in))
            return _make_spread_axis(span, scale, _compute_bilinear, 1.0)
        return _make_linear_axis(span, _find_centres(span, _find_scale(span)) - np.float32(0.5))

    return _sum_both(pixels, make(across), make(down))


def _find_scale(span: Span) -> np.float32:
    """Return how many values become one."""
    return np.float32(span.size_in) / np.float32(span.size_out)


def _find_centres(span: Span, scale: np.float32) -> np.ndarray:
    """Return the centre of each new value, in old ones and counted from the edge: float32."""
    new = np.arange(span.shown.start, span.shown.stop).astype(np.float32)
    return (new + np.float32(0.5)) * scale


def _find_places(span: Span) -> np.ndarray:
    """Return the centre of each new value, counted from the first one's centre.

    It is rounded to float32 once, as PyTorch's kernels do it on x86-64 (tried with 2.14.1).
    """
    new = np.arange(span.shown.start, span.shown.stop)
    return np.asarray((new + 0.5) * np.float64(_find_scale(span)) - 0.5, np.float32)


def _make_spread_axis(
    span: Span, scale: np.float32, kernel: Callable[[np.ndarray], np.ndarray], reach: float
) -> Axis:
    """Return weights that reach over all values that become one: the antialiasing."""
    stretched = np.maximum(scale, np.float32(1))
    reaches, narrowing = np.float32(reach) * stretched, np.float32(1) / stretched
    weighed = _weigh(span.size_in, _find_centres(span, scale), reaches, narrowing, kernel)
    return Axis(span.size_in, *weighed)


def _make_linear_axis(span: Span, places: np.ndarray) -> Axis:
    """Return the weights of the two values next to each place."""
    exact = np.maximum(places, np.float32(0))
    first = np.floor(exact)
    part = exact - first
    return Axis(span.size_in, first.astype(np.int64), np.stack([np.float32(1) - part, part], 1))


def _make_cubic_axis(span: Span) -> Axis:
    """Return the weights of the four values next to each place, of Keys' kernel with a = -0.75."""
    exact = _find_places(span)
    first = np.floor(exact)
    part = exact - first
    rest = np.float32(1) - part
    weights = [_weigh_far(part + 1), _weigh_near(part), _weigh_near(rest), _weigh_far(rest + 1)]
    return Axis(span.size_in, first.astype(np.int64) - 1, np.stack(weights, 1))


def _weigh_near(distance: np.ndarray) -> np.ndarray:
    return np.asarray(((-0.75 + 2) * distance - (-0.75 + 3)) * distance * distance + 1)


def _weigh_far(distance: np.ndarray) -> np.ndarray:
    return np.asarray(((-0.75 * distance + 3.75) * distance - 6.0) * distance + 3.0)


# --- What all have in common


def _sum_both(pixels: np.ndarray, across: Axis, down: Axis) -> np.ndarray:
    """Return weighted sums along the rows, and then along the columns, of these."""
    needed, wide, high = _take_needed(pixels, across, down)
    return _sum_up(_turned(_sum_up, needed, wide), high)


def _sum_up(values: np.ndarray, axis: Axis, start: int = 0) -> np.ndarray:
    """Return the sums along the first axis, ``(N, ...)``, of the weights' type; from ``start`` on.

    They are added one after the other, as the libraries do it.
    """
    # Whole rows are taken at a time: several times as fast as pixels.
    rows = np.ascontiguousarray(values).reshape(len(values), -1)
    index = axis.places
    total = np.full((len(index), rows.shape[1]), start, axis.weights.dtype)
    for tap in range(index.shape[1]):
        total += rows[index[:, tap]] * axis.weights[:, tap, None]
    return np.asarray(total.reshape(len(index), *values.shape[1:]))


def _turned(
    along: Callable[[np.ndarray, Axis], np.ndarray], values: np.ndarray, axis: Axis
) -> np.ndarray:
    """Return what a function that works along the first axis makes along the second one."""
    return along(values.transpose(1, 0, 2), axis).transpose(1, 0, 2)


def _take_needed(pixels: np.ndarray, across: Axis, down: Axis) -> Tuple[np.ndarray, Axis, Axis]:
    """Return the pixels that are needed at all, and both axes counted in these."""
    columns, across = _count_needed(across)
    rows, down = _count_needed(down)
    return pixels[rows][:, columns], across, down


def _count_needed(axis: Axis) -> Tuple[Union[slice, np.ndarray], Axis]:
    used = np.zeros(axis.size, bool)
    index = axis.places
    used[index] = True
    places = np.flatnonzero(used)
    # Those outside the picture stay outside.
    first = np.searchsorted(places, index[:, 0]) + np.minimum(axis.first, 0)
    counted = Axis(len(places), first, axis.weights)
    if places[-1] - places[0] + 1 == len(places):
        return slice(int(places[0]), int(places[-1]) + 1), counted
    return places, counted


FILTERS: Dict[str, Callable[..., np.ndarray]] = {
    DEFAULT: _resize_as_pillow(_compute_bilinear, 1.0),
    "pillow-bicubic": _resize_as_pillow(_compute_bicubic, 2.0),
    "pillow-nearest": _resize_as_pillow_nearest,
    "cv2-linear": _resize_as_cv2_linear,
    "cv2-cubic": _resize_as_cv2_cubic,
    "cv2-area": _resize_as_cv2_area,
    "cv2-nearest": _resize_as_cv2_nearest,
    "torchvision-bilinear": _resize_as_torchvision_bilinear,
    "torchvision-bicubic": _resize_as_torchvision_bicubic,
    "tf-bilinear": _resize_as_tf_bilinear,
}
"""By name, a function from the picture and its two axes, across and down, to the scaled one."""

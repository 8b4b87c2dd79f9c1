"""The integers that floats are written as: scales, zero points, and rounding.

A grid says which float an integer represents: ``value = (integer - zero_point) * scale``. Its scale
is rounded to float32 once, and all rounding is to the nearest, ties to even, as QuantizeLinear does
(onnx/docs/Operators.md). The arithmetic is that of onnxruntime's quantizer, so that the same range
gives the same scale and zero point to the last bit (1.31.1, 2026-11-21).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from edgepack.base.arrays import Array

# A bias this close to the end of int32 is still represented after its scale was rounded.
_BIAS_MARGIN = 1.0001
_INT32 = np.iinfo(np.int32)


@dataclass(frozen=True)
class Grid:
    """The floats that a tensor's integers represent."""

    scale: Array
    """float32, positive; ``()``, or ``(channels,)``."""
    zero_point: Array
    """The integer that represents 0, in the type of the integers; shaped like ``scale``."""
    axis: int | None = None
    """The axis of the channels, where there is one scale per channel."""

    def round_to_integers(self, values: Array) -> Array:
        """Return the nearest integers, saturated at the ends of their type."""
        scale, zero = (self._reshape(part, values.ndim) for part in (self.scale, self.zero_point))
        ends = np.iinfo(zero.dtype)
        # 65535 is exact in float32; an int32 zero point is 0.
        found = np.asarray(values.astype(np.float32, copy=False) / scale)
        np.rint(found, out=found)
        found += zero.astype(np.float32)
        np.clip(found, ends.min, ends.max, out=found)
        return found.astype(zero.dtype)

    def find_limits(self) -> tuple[Array, Array]:
        """Return the lowest and the highest float that can be written, as float64."""
        ends = np.iinfo(self.zero_point.dtype)
        zero, scale = self.zero_point.astype(np.float64), self.scale.astype(np.float64)
        return (ends.min - zero) * scale, (ends.max - zero) * scale

    def _reshape(self, part: Array, rank: int) -> Array:
        """Return scales or zero points in a shape that goes with a tensor of that rank."""
        if self.axis is None:
            return part.reshape(())
        return part.reshape([-1 if k == self.axis else 1 for k in range(rank)])


def find_ends(dtype: str, *, symmetric: bool) -> tuple[int, int]:
    """Return the first and the last integer that a range is spread over.

    A symmetric signed grid leaves out the lowest integer, so that both sides have as many steps.
    """
    ends = np.iinfo(dtype)
    return (-ends.max if symmetric and ends.min < 0 else ends.min), ends.max


def make_range_grid(
    low: Array,
    high: Array,
    dtype: str,
    *,
    symmetric: bool,
    axis: int | None = None,
    least_span: float = 0.0,
) -> Grid:
    """Return the grid that covers a range, or one range per channel.

    The range is widened to include 0, which is then represented exactly. A range of no width has
    the scale 1.

    Args:
        low: float32, ``()`` or ``(channels,)``.
        high: Of the same shape.
        dtype: Name of an integer type of 8 or 16 bits.
        symmetric: Whether 0 is in the middle of the integers.
        axis: Axis of the channels.
        least_span: What a narrower range is widened to, in the unit of the range.
    """
    low = np.minimum(np.asarray(low, np.float32), np.float32(0))
    high = np.maximum(np.asarray(high, np.float32), np.float32(0))
    if least_span:
        high = np.maximum(high, low + np.float32(least_span))
    if symmetric:
        high = np.maximum(-low, high)
        low = -high
    first, last = find_ends(dtype, symmetric=symmetric)
    exact = (high.astype(np.float64) - low.astype(np.float64)) / (last - first)
    flat = exact < np.finfo(np.float32).tiny
    exact = np.where(flat, 1.0, exact)
    middle = np.round((first + last) / 2)
    zero = np.full(exact.shape, middle) if symmetric else np.round(first - low / exact)
    if not symmetric:
        zero = np.where(flat, 0, zero)
    return Grid(np.asarray(exact, np.float32), np.asarray(zero, dtype), axis)


def make_constant_grid(
    values: Array, dtype: str, *, symmetric: bool, axis: int | None = None, least_span: float = 0.0
) -> Grid:
    """Return the grid that covers the values of a constant, per channel where an axis is given."""
    if not values.size:
        nothing = np.zeros((), np.float32)
        return make_range_grid(nothing, nothing, dtype, symmetric=symmetric)
    others = None if axis is None else tuple(k for k in range(values.ndim) if k != axis)
    low, high = (np.asarray(end(axis=others), np.float32) for end in (values.min, values.max))
    return make_range_grid(low, high, dtype, symmetric=symmetric, axis=axis, least_span=least_span)


def make_scaled_grid(
    values: Array, scale: Array, dtype: str, *, symmetric: bool, axis: int | None
) -> Grid:
    """Return the grid with a given scale, for a constant whose values are on it already.

    An asymmetric zero point is the one that puts the lowest value on the first integer.
    """
    scale = np.asarray(scale, np.float32).reshape(() if axis is None else (-1,))
    first, last = find_ends(dtype, symmetric=symmetric)
    middle = np.full(scale.shape, np.round((first + last) / 2))
    if symmetric or not values.size:
        return Grid(scale, middle.astype(dtype), axis)
    low = min(float(values.min()), 0.0)
    return Grid(scale, np.asarray(np.round(first - low / scale.astype(np.float64)), dtype), axis)


def make_bias_grid(inputs: Grid, weights: Grid) -> Grid:
    """Return the int32 grid of a bias: the steps of input times weights, in which sums are made."""
    scale = inputs.scale * weights.scale
    axis = None if weights.axis is None else 0
    return Grid(scale, np.zeros(scale.shape, np.int32), axis)


def round_bias(values: Array, grid: Grid) -> Array:
    """Return a bias in int32 steps, rounded in float64: it may have more digits than float32."""
    steps = np.round(values.astype(np.float64) / grid.scale.astype(np.float64))
    return np.clip(steps, _INT32.min, _INT32.max).astype(np.int32)


def make_room(bias: Array, inputs: Grid, weights: Grid) -> Grid:
    """Return the weights' grid with scales large enough that no bias saturates at int32.

    Weights that are all but zero would have a scale so small that their channel's bias does not fit
    32 bits of steps; the error of coarser steps in such weights is far below the bias.
    """
    reach = np.abs(bias.astype(np.float64))
    if weights.axis is None:
        reach = reach.max(initial=0.0)
    least = _BIAS_MARGIN * 2.0 * reach / (float(_INT32.max) - float(_INT32.min + 1))
    exact = weights.scale.astype(np.float64)
    step = inputs.scale.astype(np.float64) * exact
    small = (step < least) & (step > 0)
    if not small.any():
        return weights
    wider = np.where(small, exact * (least / np.where(small, step, 1.0)), exact)
    return replace(weights, scale=wider.astype(np.float32))

"""GPTQ: rounds weights to a grid; each weight compensates for the errors of those before it.

The method is that of Frantar et al. (arXiv 2210.17323).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from edgepack.base.arrays import Array
from edgepack.quantization.methods.bias_correction import compute_mean_square
from edgepack.quantization.methods.product_inputs import MOST_VALUES

_BLOCK = 64
"""Errors pass on in blocks of columns: one large product instead of many small ones."""
_SCALES = tuple(np.arange(1.0, 0.3, -0.05))
"""Parts of a scale that reaches the largest weight."""


@dataclass(frozen=True)
class RowGrid:
    """The values that weights as (groups, outputs, taps) can have."""

    scale: Array
    """float32: (groups, outputs, 1), or (1, 1, 1) where all weights have one."""
    zero_point: int
    first: int
    """Lowest integer."""
    last: int

    def round_to_integers(self, rows: Array) -> Array:
        """Return the nearest integers, as floats of the type of the rows."""
        steps = np.rint(rows / self.scale.astype(rows.dtype)) + self.zero_point
        return np.asarray(np.clip(steps, self.first, self.last))

    def dequantize(self, integers: Array) -> Array:
        """Return what integers stand for."""
        return np.asarray((integers - self.zero_point) * self.scale.astype(integers.dtype))

    def select_outputs(self, outputs: slice) -> RowGrid:
        """Return the grid of some outputs of each group."""
        return replace(self, scale=self.scale if self.scale.size == 1 else self.scale[:, outputs])

    def round_to_values(self, rows: Array) -> Array:
        """Return the nearest values."""
        return self.dequantize(self.round_to_integers(rows))


def choose_best_scale(grid: RowGrid, rows: Array, second: Array, least: float) -> RowGrid:
    """Return a grid of one scale, with the scale that keeps the outputs nearest.

    A few large weights that are cut off are often better than coarse steps for all others. Where
    each output has its own scale this gains nothing (mobilenet_v1_0.25_128, 2026-11-21).

    Args:
        grid: Reaches the largest weights.
        rows: (groups, outputs, taps) float64.
        second: (groups, taps, taps) float64, second moment of the inputs.
        least: The scale that none may be below.
    """
    best, smallest = grid, np.inf
    for part in _SCALES:
        tried = replace(grid, scale=np.maximum(grid.scale * np.float32(part), np.float32(least)))
        wrong = tried.round_to_values(rows) - rows
        error = float(np.sum((wrong @ second) * wrong))
        if error < smallest:
            best, smallest = tried, error
    return best


def round_rows(rows: Array, second: Array, grid: RowGrid, damping: float) -> Array:
    """Return weights on a grid whose products with the inputs come near those of the given ones.

    The function rounds tap after tap, those with the largest inputs first; later taps compensate
    for the errors in the outputs (GPTQ).

    Args:
        rows: (groups, outputs, taps) float64.
        second: (groups, taps, taps) float64, second moment of the inputs.
        grid: Where weights may lie.
        damping: Share of the inputs' mean square that counts as chance.

    Returns:
        (groups, outputs, taps) float64.
    """
    count = second.shape[1]
    order = np.argsort(-np.diagonal(second, axis1=1, axis2=2), axis=1, kind="stable")
    left = np.take_along_axis(rows, order[:, None], axis=2)
    damped = second + np.eye(count) * (damping * compute_mean_square(second))
    damped = np.take_along_axis(damped, order[:, :, None], axis=1)
    damped = np.take_along_axis(damped, order[:, None], axis=2)
    factor = np.linalg.cholesky(np.linalg.inv(damped)).swapaxes(1, 2)
    found = np.empty_like(left)
    for part in split_outputs(rows.shape, count):
        found[:, part] = _round_in_order(left[:, part], factor, grid.select_outputs(part))
    return np.take_along_axis(found, np.argsort(order, axis=1)[:, None], axis=2)


def split_outputs(shape: Sequence[int], values: int) -> Iterator[slice]:
    """Yield parts of the outputs of (groups, outputs, taps) weights that take bounded memory.

    Args:
        shape: Of the weights.
        values: How many there are of each output.
    """
    groups, outputs, _ = shape
    size = max(1, MOST_VALUES // max(1, groups * values))
    return (slice(begin, begin + size) for begin in range(0, outputs, size))


def _round_in_order(left: Array, factor: Array, grid: RowGrid) -> Array:
    """Return weights rounded one tap after the other; ``left`` is changed."""
    count = left.shape[2]
    found = np.empty_like(left)
    for begin in range(0, count, _BLOCK):
        end = min(begin + _BLOCK, count)
        errors = np.empty((*left.shape[:2], end - begin))
        for tap in range(begin, end):
            value = grid.round_to_values(left[:, :, tap : tap + 1])
            error = (left[:, :, tap : tap + 1] - value) / factor[:, tap, tap, None, None]
            left[:, :, tap:end] -= error * factor[:, tap, None, tap:end]
            found[:, :, tap : tap + 1] = value
            errors[:, :, tap - begin : tap - begin + 1] = error
        left[:, :, end:] -= errors @ factor[:, begin:end, end:]
    return found

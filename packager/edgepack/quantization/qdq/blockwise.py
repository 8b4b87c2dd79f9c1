"""Weights in 4 bits, in blocks with a scale and a zero point of their own, as MatMulNBits has them.

A weight is ``(code - zero point) * scale``, codes and zero points 0 to 15. Asymmetric blocks of 32
take 5.1 bits a weight. Why these: on all-MiniLM-L6-v2, 64 English sentences, both ends of a block
rounded to nearest, the embeddings come out 12.9 dB from float32; without zero points 11.7 dB (5.0
bits); in blocks of 64 11.6 dB (4.6 bits); in blocks of 16 14.1 dB (6.3 bits), which one core
multiplies with 1.2 to 2.7 times as slowly (onnxruntime 1.31.1, AVX2 without VNNI, 8 to 32 rows,
2026-11-21).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from edgepack.base.arrays import Array

BLOCK = 32
"""Weights in a block."""
_HIGHEST = 15
_SHRUNK = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75)
"""The tried parts of a block's range: less than all of it clips its ends, and has smaller steps."""
_AT_ONCE = 1 << 18
"""Weights that are rounded together: a few float32 arrays of this size fit a processor's cache."""
_DAMPING = 0.1
"""The share of the mean second moment that is added to all, so that few samples do not count too
much. The literature's 0.01 is for many: with it 8 sentences come to 15.2 dB, with 0.05 to 16.1, and
32 to 16.4, with 0.1 to 17.1 (the measurement of :func:`round_compensated`)."""


@dataclass(frozen=True)
class Blocks:
    """The rows of a matrix in 4 bits; the last block of a row is filled up with zeros."""

    codes: Array
    """(rows, blocks, 32) uint8, 0 to 15."""
    scales: Array
    """(rows, blocks) float32."""
    zero_points: Array
    """(rows, blocks) uint8, 0 to 15."""

    def dequantize(self, columns: int) -> Array:
        """Return the values of the codes: (rows, columns) float32."""
        steps = self.codes.astype(np.float32) - self.zero_points[..., None]
        return (steps * self.scales[..., None]).reshape(len(self.codes), -1)[:, :columns]

    def pack_codes(self) -> Array:
        """Return (rows, blocks, 16) uint8: two codes in a byte, the first in the low half."""
        return _pack_codes(self.codes)

    def pack_zero_points(self) -> Array:
        """Return (rows, half the blocks, rounded up) uint8, packed like the codes."""
        return _pack_codes(np.pad(self.zero_points, ((0, 0), (0, self.zero_points.shape[1] % 2))))


def _pack_codes(codes: Array) -> Array:
    return np.asarray(codes[..., 0::2] | codes[..., 1::2] << 4, np.uint8)


def round_to_nearest(rows: Array) -> Blocks:
    """Return a matrix rounded to nearest; each block's range covers its weights and 0."""
    return _round_by_chunk(rows, lambda blocks: _make_grid(blocks, 1.0))


def fit_scales(rows: Array) -> Blocks:
    """Return a matrix with the scales that leave each block's squared error smallest.

    The function tries several parts of a block's range and fits each scale to the codes by least
    squares. It is never worse than :func:`round_to_nearest`. On all-MiniLM-L6-v2 it gains 0.3 to
    0.4 dB.

    Args:
        rows: (rows, columns) float32, finite.
    """
    return _round_by_chunk(rows, lambda blocks: _find_best_grid(blocks, np.ones(BLOCK, np.float32)))


def round_compensated(rows: Array, moment: Array) -> Blocks:
    """Return a matrix rounded so that its products, not its weights, are nearest (GPTQ).

    The function rounds column after column; later columns compensate for the errors in the products
    with the observed activations. Source: Frantar et al., arXiv 2210.17323. On
    all-MiniLM-L6-v2 (32 sentences, 786 tokens, judged on 32 others, the table of words in 4 bits
    too) the embeddings come out 17.1 dB from float32, and 12.9 dB with :func:`fit_scales`.

    Args:
        rows: (rows, columns) float32, finite; a row is an output.
        moment: (columns, columns) float64, the sum of x x^T over activations x.
    """
    inverse = _compute_inverse_factor(moment)
    count, columns = rows.shape
    left = rows.T.astype(np.float32)  # (columns, rows): what columns are and have taken up
    parts = []
    for begin in range(0, columns, BLOCK):
        end = min(begin + BLOCK, columns)
        weight = np.pad(np.diag(inverse)[begin:end] ** -2, (0, BLOCK - (end - begin)))
        scales, zero_points = _find_best_grid(
            _split_blocks(np.ascontiguousarray(left[begin:end].T)), weight
        )
        scale, zero = scales[:, 0, 0], zero_points[:, 0, 0]
        codes = np.zeros((BLOCK, count), np.uint8)
        codes[:] = zero.astype(np.uint8)
        errors = np.empty((end - begin, count), np.float32)
        for column in range(begin, end):
            code = _compute_codes(left[column], scale, zero)
            error = (left[column] - (code - zero) * scale) / inverse[column, column]
            left[column:end] -= inverse[column, column:end, None] * error
            codes[column - begin] = code
            errors[column - begin] = error
        left[end:] -= inverse[begin:end, end:].T @ errors
        parts.append((codes.T, scale, zero.astype(np.uint8)))
    return Blocks(*(np.stack(part, axis=1) for part in zip(*parts, strict=True)))


def _compute_inverse_factor(moment: Array) -> Array:
    """Return the upper Cholesky factor of the inverse of a damped moment, in float32."""
    damped = moment.astype(np.float64)
    diagonal = np.diag_indices(len(damped))
    # Inputs that are always 0 say nothing about their weights; with 1 these are rounded to nearest.
    damped[diagonal] += np.where(np.diag(damped) == 0, 1.0, 0.0)
    damped[diagonal] += _DAMPING * float(np.mean(np.diag(damped)))
    return np.linalg.cholesky(np.linalg.inv(damped)).T.astype(np.float32)


_Grid = tuple[Array, Array]
"""Scales and zero points, float32, of blocks along the last axis, which has length 1."""


def _round_by_chunk(rows: Array, find_grid: Callable[[Array], _Grid]) -> Blocks:
    lot = max(1, _AT_ONCE // max(1, rows.shape[1]))
    parts = []
    for begin in range(0, max(1, len(rows)), lot):
        blocks = _split_blocks(rows[begin : begin + lot])
        scales, zeros = find_grid(blocks)
        codes = _compute_codes(blocks, scales, zeros).astype(np.uint8)
        parts.append((codes, scales[..., 0], zeros[..., 0].astype(np.uint8)))
    return Blocks(*(np.concatenate(part) for part in zip(*parts, strict=True)))


def _split_blocks(rows: Array) -> Array:
    """Return (rows, blocks, 32) float32, filled up with zeros."""
    filled = np.pad(rows.astype(np.float32), ((0, 0), (0, -rows.shape[1] % BLOCK)))
    return filled.reshape(len(rows), -1, BLOCK)


def _make_grid(blocks: Array, part: float) -> _Grid:
    """Return the grid that covers a part of each block's range, and 0."""
    low = part * np.minimum(blocks.min(-1, keepdims=True), 0)
    high = part * np.maximum(blocks.max(-1, keepdims=True), 0)
    scales = (high - low) / _HIGHEST
    scales = np.where(scales > 0, scales, np.float32(1)).astype(np.float32)
    return scales, np.clip(np.round(-low / scales), 0, _HIGHEST)


def _compute_codes(weights: Array, scales: Array, zeros: Array) -> Array:
    return np.clip(np.round(weights / scales + zeros), 0, _HIGHEST)


def _find_best_grid(blocks: Array, weight: Array) -> _Grid:
    best_scales, best_zeros = _make_grid(blocks, 1.0)
    least = _compute_error(blocks, best_scales, best_zeros, weight)
    for part in _SHRUNK:
        scales, zeros = _make_grid(blocks, part)
        scales = _refit_scales(blocks, scales, zeros, weight)
        error = _compute_error(blocks, scales, zeros, weight)
        better = error < least
        least = np.where(better, error, least)
        best_scales = np.where(better, scales, best_scales)
        best_zeros = np.where(better, zeros, best_zeros)
    return best_scales, best_zeros


def _refit_scales(blocks: Array, scales: Array, zeros: Array, weight: Array) -> Array:
    """Return the scales with which the codes, as they are, come nearest to the weights."""
    steps = _compute_codes(blocks, scales, zeros) - zeros
    energy = ((steps * steps) @ weight)[..., None]
    fitting = ((blocks * steps) @ weight)[..., None]
    usable = (energy > 0) & (fitting > 0)
    return np.where(usable, fitting / np.where(usable, energy, 1), scales).astype(np.float32)


def _compute_error(blocks: Array, scales: Array, zeros: Array, weight: Array) -> Array:
    difference = blocks - (_compute_codes(blocks, scales, zeros) - zeros) * scales
    # Beyond 1e19 no square is finite: then no grid is better, and the first stays.
    with np.errstate(over="ignore"):
        squares: Array = (difference * difference) @ weight
    return squares[..., None]

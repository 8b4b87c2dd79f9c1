"""Rounding to 4 bits in blocks; onnxruntime's own quantizer is the oracle for the plain way."""

from __future__ import annotations

import numpy as np
import pytest
from edgepack.quantization.qdq.blockwise import (
    BLOCK,
    Blocks,
    fit_scales,
    round_compensated,
    round_to_nearest,
)
from onnxruntime.capi._pybind_state import quantize_matmul_4bits


def normal(*shape, seed=1):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def unpacked(packed):
    """Return the codes in bytes: the low half first."""
    return np.stack([packed & 15, packed >> 4], -1).reshape(*packed.shape[:-1], -1)


def by_onnxruntime(rows):
    """Return what onnxruntime's quantizer makes of a matrix: (rows, columns) float32."""
    count, columns = rows.shape
    blocks = -(-columns // BLOCK)
    codes = np.zeros((count, blocks, BLOCK // 2), np.uint8)
    zeros = np.zeros((count, (blocks + 1) // 2), np.uint8)
    scales = np.zeros((count, blocks), np.float32)
    padded = np.pad(rows.T, ((0, blocks * BLOCK - columns), (0, 0)))
    symmetric = False
    quantize_matmul_4bits(
        codes, np.ascontiguousarray(padded), scales, zeros, BLOCK, count, columns, symmetric
    )
    steps = unpacked(codes).astype(np.float32) - unpacked(zeros)[:, :blocks, None]
    return (steps * scales[..., None]).reshape(count, -1)[:, :columns]


@pytest.mark.parametrize("shape", [(8, 64), (5, 96), (3, 40), (1, 1), (7, 33)])
def test_nearest_when_compared_with_onnxruntime_has_the_same_error(shape):
    rows = normal(*shape)
    ours = np.sum((rows - round_to_nearest(rows).dequantize(shape[1])) ** 2)
    theirs = np.sum((rows - by_onnxruntime(rows)) ** 2)
    assert ours == pytest.approx(theirs, rel=0.02, abs=1e-12)


@pytest.mark.parametrize("shape", [(8, 64), (3, 40)])
def test_values_when_packed_and_unpacked_by_hand_are_the_same(shape):
    found = fit_scales(normal(*shape))
    blocks = found.scales.shape[1]
    zeros = unpacked(found.pack_zero_points())[:, :blocks, None]
    steps = unpacked(found.pack_codes()).astype(np.float32) - zeros
    by_hand = (steps * found.scales[..., None]).reshape(shape[0], -1)[:, : shape[1]]
    assert np.array_equal(found.dequantize(shape[1]), by_hand)
    assert found.pack_codes().shape == (shape[0], blocks, BLOCK // 2)
    assert found.pack_zero_points().shape == (shape[0], -(-blocks // 2))


@pytest.mark.parametrize("columns", [32, 100, 256])
def test_fitted_when_compared_with_nearest_is_never_further_in_any_block(columns):
    rows = normal(64, columns, seed=columns) ** 3
    padded = np.pad(rows, ((0, 0), (0, -columns % BLOCK))).reshape(64, -1, BLOCK)

    def errors(found):
        whole = found.dequantize(padded.shape[1] * BLOCK).reshape(padded.shape)
        return np.sum((padded - whole) ** 2, -1)

    plain, better = errors(round_to_nearest(rows)), errors(fit_scales(rows))
    assert np.all(better <= plain * (1 + 1e-5))
    assert better.sum() < 0.97 * plain.sum()


@pytest.mark.parametrize(
    "rows",
    [
        np.zeros((2, 64), np.float32),
        np.full((2, 64), -3.5, np.float32),
        np.full((2, 64), 1e-30, np.float32),
        np.full((2, 64), 1e30, np.float32),
    ],
)
def test_fitted_when_all_weights_are_one_value_keeps_it(rows):
    assert fit_scales(rows).dequantize(64) == pytest.approx(rows, rel=1e-5)


def correlated(rows, columns, seed):
    """Return activations that hang together, as those of networks do."""
    mixing = normal(columns // 4, columns, seed=3)
    return normal(rows, columns // 4, seed=seed) @ mixing + 0.1 * normal(rows, columns, seed=seed)


def product_error(weights, found: Blocks, activations):
    difference = activations @ (weights - found.dequantize(weights.shape[1])).T
    return float(np.sum(difference**2))


@pytest.mark.parametrize("columns", [64, 80])
def test_compensated_when_judged_on_other_activations_is_nearer_than_fitted(columns):
    weights, seen = normal(48, columns), correlated(400, columns, seed=7)
    found = round_compensated(weights, (seen.T @ seen).astype(np.float64))
    others = correlated(400, columns, seed=8)
    ours, theirs = (product_error(weights, f, others) for f in (found, fit_scales(weights)))
    assert ours < 0.5 * theirs
    assert found.codes.shape == (48, -(-columns // BLOCK), BLOCK)


def test_compensated_when_an_input_is_always_zero_rounds_its_weights_all_the_same():
    weights, seen = normal(8, 64), correlated(100, 64, seed=7)
    seen[:, 5] = 0
    found = round_compensated(weights, (seen.T @ seen).astype(np.float64))
    step = found.scales[:, 0]
    assert np.all(np.abs(weights[:, 5] - found.dequantize(64)[:, 5]) <= step)


def test_compensated_when_all_inputs_are_zero_is_near():
    weights = normal(8, 64)
    found = round_compensated(weights, np.zeros((64, 64)))
    assert np.sum((weights - found.dequantize(64)) ** 2) < 0.02 * np.sum(weights**2)

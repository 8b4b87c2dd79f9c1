"""Scales, zero points and rounding, against plain arithmetic and onnxruntime's own."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from edgepack.quantization.qdq.grid import (
    Grid,
    find_ends,
    make_bias_grid,
    make_constant_grid,
    make_range_grid,
    make_room,
    make_scaled_grid,
    round_bias,
)
from onnxruntime.quantization.quant_utils import compute_data_quant_params, quantize_nparray

TYPES = ["uint8", "int8", "uint16", "int16"]
RANGES = [(-1.0, 3.0), (0.5, 2.0), (-4.0, -0.1), (0.0, 6.0), (-1e-6, 3e4), (-1e38, 1e38)]


def scalar_grid(low, high, dtype, **options):
    return make_range_grid(np.float32(low), np.float32(high), dtype, **options)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("limits", RANGES)
def test_grid_when_a_range_is_given_covers_it_and_zero_to_half_a_step(limits, dtype):
    grid = scalar_grid(*limits, dtype, symmetric=False)
    low, high = grid.find_limits()
    half = float(grid.scale) * 0.51
    assert low - half <= min(limits[0], 0.0)
    assert high + half >= max(limits[1], 0.0)
    assert (grid.scale.dtype, grid.zero_point.dtype) == (np.float32, dtype)
    assert grid.round_to_integers(np.zeros(1, np.float32)) == grid.zero_point


@pytest.mark.parametrize(("dtype", "middle"), [("int8", 0), ("int16", 0), ("uint8", 128)])
def test_grid_when_symmetric_has_zero_in_the_middle(dtype, middle):
    grid = scalar_grid(-1.0, 3.0, dtype, symmetric=True)
    first, last = find_ends(dtype, symmetric=True)
    assert grid.zero_point == middle
    assert grid.scale == np.float32(6.0 / (last - first))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("symmetric", [False, True])
def test_grid_when_a_range_has_no_width_is_one_step_per_unit(dtype, symmetric):
    grid = scalar_grid(0.0, 0.0, dtype, symmetric=symmetric)
    assert grid.scale == 1
    assert grid.round_to_integers(np.zeros(3, np.float32)).tolist() == [int(grid.zero_point)] * 3


def test_grid_when_a_range_is_narrower_than_asked_is_widened():
    grid = scalar_grid(0.0, 1e-6, "uint8", symmetric=False, least_span=1e-4)
    assert grid.scale == np.float32(np.float64(np.float32(1e-4)) / 255)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("symmetric", [False, True])
def test_grid_when_made_from_values_is_the_one_of_onnxruntime_to_the_bit(dtype, symmetric):
    random = np.random.default_rng(1)
    for scale in (1e-3, 1.0, 300.0):
        values = (random.standard_normal((5, 7)) * scale + scale).astype(np.float32)
        kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        zero, step = compute_data_quant_params(values.ravel(), kind, symmetric)
        grid = make_constant_grid(values, dtype, symmetric=symmetric)
        assert (grid.scale, grid.zero_point) == (step, zero)
        theirs = quantize_nparray(kind, values, step, zero)
        np.testing.assert_array_equal(grid.round_to_integers(values), theirs)


def test_grid_when_per_channel_is_the_one_of_each_channel_alone():
    values = np.random.default_rng(2).standard_normal((4, 3, 2, 2)).astype(np.float32)
    values[:, 1] = 0
    for axis in (0, 1):
        grid = make_constant_grid(values, "int8", symmetric=True, axis=axis)
        integers = grid.round_to_integers(values)
        for k in range(values.shape[axis]):
            alone = make_constant_grid(values.take(k, axis), "int8", symmetric=True)
            assert grid.scale[k] == alone.scale
            expected = alone.round_to_integers(values.take(k, axis))
            np.testing.assert_array_equal(integers.take(k, axis), expected)


def test_grid_when_a_channel_is_all_zero_has_the_zero_point_of_the_others():
    values = np.array([[0, 0], [1, -2]], np.float32)
    grid = make_constant_grid(values, "uint8", symmetric=True, axis=0)
    assert grid.zero_point.tolist() == [128, 128]


def test_grid_when_a_constant_is_empty_is_usable():
    values = np.zeros((0, 4), np.float32)
    grid = make_constant_grid(values, "int8", symmetric=True, axis=0)
    assert grid.round_to_integers(values).shape == (0, 4)


def test_integers_when_halfway_go_to_the_even_one_and_saturate():
    grid = Grid(np.float32(1), np.asarray(0, "int8"))
    values = np.array([0.5, 1.5, -0.5, 200, -200], np.float32)
    assert grid.round_to_integers(values).tolist() == [0, 2, 0, 127, -128]


@pytest.mark.parametrize(("dtype", "symmetric"), [("int8", True), ("uint8", False)])
def test_scaled_grid_when_values_lie_on_it_gives_them_back_exactly(dtype, symmetric):
    random = np.random.default_rng(3)
    scale = np.float32(0.0371)
    steps = random.integers(-100, 101, (6, 5))
    values = (steps * scale).astype(np.float32)
    grid = make_scaled_grid(values, scale, dtype, symmetric=symmetric, axis=None)
    integers = grid.round_to_integers(values).astype(np.int32) - grid.zero_point.astype(np.int32)
    np.testing.assert_array_equal(integers, steps)


def test_bias_when_quantized_has_the_step_of_input_times_weights():
    inputs = Grid(np.asarray(0.02, np.float32), np.asarray(3, "uint8"))
    weights = Grid(np.array([0.5, 0.001], np.float32), np.zeros(2, "int8"), axis=1)
    grid = make_bias_grid(inputs, weights)
    assert (grid.scale == inputs.scale * weights.scale).all()
    assert grid.axis == 0
    bias = np.array([1.0, -3.0], np.float32)
    steps = round_bias(bias, grid)
    assert steps.dtype == np.int32
    np.testing.assert_allclose(steps * grid.scale, bias, atol=grid.scale.max() / 2)


@pytest.mark.parametrize("axis", [0, None])
def test_weights_when_too_small_for_their_bias_get_scales_that_make_room(axis):
    inputs = Grid(np.asarray(0.02, np.float32), np.asarray(3, "uint8"))
    tiny = np.array([1e-12, 0.01], np.float32) if axis == 0 else np.float32(1e-12)
    weights = Grid(np.asarray(tiny), np.zeros(np.shape(tiny), "int8"), axis)
    bias = np.array([5.0, -5.0], np.float32)
    ends = np.iinfo(np.int32)
    assert abs(round_bias(bias, make_bias_grid(inputs, weights))).max() == ends.max
    roomy = make_room(bias, inputs, weights)
    steps = round_bias(bias, make_bias_grid(inputs, roomy))
    assert abs(steps.astype(np.int64)).max() < ends.max
    np.testing.assert_allclose(steps * make_bias_grid(inputs, roomy).scale, bias, rtol=1e-6)
    if axis == 0:
        assert roomy.scale[1] == weights.scale[1]


def test_weights_when_their_bias_fits_keep_their_scales():
    inputs = Grid(np.asarray(0.02, np.float32), np.asarray(3, "uint8"))
    weights = Grid(np.array([0.5, 0.001], np.float32), np.zeros(2, "int8"), 0)
    assert make_room(np.ones(2, np.float32), inputs, weights) is weights

"""Rounding against nearest rounding; and what of a model is fitted, and what is left as it is."""

from __future__ import annotations

import sys
import tracemalloc

import numpy as np
import onnx
import onnxruntime
import pytest
from edgepack.quantization.methods.gptq import RowGrid, choose_best_scale, round_rows
from edgepack.quantization.methods.rounding import round_weights
from edgepack.quantization.qdq.preparation import prepare_model
from edgepack.quantization.qdq.writer import QdqWriter
from onnx import TensorProto, helper, numpy_helper

from tests.support.nets import int8_nets
from tests.support.nets.onnxruntime_writer import extreme_ranges
from tests.support.slow_cases import slow_after

FLOAT = np.float32
RANDOM = np.random.default_rng()


@pytest.fixture(autouse=True)
def seeded(monkeypatch):
    """The same numbers in each test, whichever runs before it."""
    monkeypatch.setattr(sys.modules[__name__], "RANDOM", np.random.default_rng(12))


def normal(*shape):
    return RANDOM.standard_normal(shape).astype(FLOAT)


def second_moment(inputs):
    return (inputs.swapaxes(1, 2) @ inputs).astype(float) / inputs.shape[1]


def alike(groups, positions, taps):
    """Inputs that are nearly the same in all taps of a group."""
    return normal(groups, positions, 1) + normal(groups, positions, taps) / 5


def error(rows, found, inputs):
    return np.square((rows - found) @ inputs.swapaxes(1, 2)).mean()


def per_output(rows, last=7):
    scale = np.abs(rows).max(axis=2, keepdims=True) / last
    return RowGrid(scale.astype(FLOAT), 0, -last, last)


def test_rounding_when_inputs_are_alike_beats_the_nearest_and_stays_on_the_grid():
    rows, inputs = normal(2, 6, 70).astype(float), alike(2, 500, 70)
    grid = per_output(rows)
    found = round_rows(rows, second_moment(inputs), grid, damping=0.01)
    steps = found / grid.scale
    np.testing.assert_allclose(steps, np.rint(steps), atol=1e-6)
    assert np.abs(steps).max() <= 7
    fresh = alike(2, 500, 70)
    assert error(rows, found, fresh) < error(rows, grid.round_to_values(rows), fresh) / 3


def test_rounding_when_inputs_are_independent_is_to_the_nearest():
    rows = normal(3, 4, 9).astype(float)
    grid = per_output(rows)
    found = round_rows(rows, np.tile(np.eye(9), (3, 1, 1)), grid, damping=0.01)
    np.testing.assert_array_equal(found, grid.round_to_values(rows))


def test_rounding_when_all_inputs_are_constant_is_to_the_nearest():
    rows = normal(1, 4, 9).astype(float)
    grid = per_output(rows)
    found = round_rows(rows, np.zeros((1, 9, 9)), grid, damping=0.01)
    np.testing.assert_array_equal(found, grid.round_to_values(rows))


def test_rounding_when_a_zero_point_is_given_reaches_both_ends():
    rows = np.linspace(-1, 3, 64).reshape(1, 1, 64)
    grid = RowGrid(np.full((1, 1, 1), 4 / 255, FLOAT), 64, 0, 255)
    found = round_rows(rows, np.eye(64)[None], grid, damping=0.01)
    integers = grid.round_to_integers(found)
    assert integers.min() == 0
    assert integers.max() == 255
    np.testing.assert_allclose(found, rows, atol=4 / 255)


def test_scale_when_one_weight_is_far_off_and_hardly_matters_cuts_it_off():
    inputs = alike(1, 300, 30)
    inputs[:, :, 0] /= 1000
    rows = normal(1, 8, 30).astype(float)
    rows[0, 0, 0] = 12
    grid = RowGrid(np.full((1, 1, 1), 12 / 127, FLOAT), 0, -127, 127)
    found = choose_best_scale(grid, rows, second_moment(inputs), least=0)
    assert found.scale < grid.scale * 0.7
    least = found.scale.item() * 1.1
    assert choose_best_scale(grid, rows, second_moment(inputs), least).scale >= FLOAT(least)


# --- models -------------------------------------------------------------------------------------


def constants(model):
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def fitted(model, feeds, dialect, excluded=(), **settings):
    """A writer of the model, and what its weights were rounded to."""
    writer = QdqWriter(model, extreme_ranges(model, feeds), dialect, **settings)
    return writer, round_weights(writer, feeds, excluded)


@pytest.fixture
def mixed(tmp_path):
    return prepare_model(onnx.load(int8_nets.mixed_net(tmp_path / "net.onnx")))


@pytest.mark.parametrize("name", int8_nets.DIALECTS)
def test_model_when_it_is_written_loses_nothing_of_its_weights_and_biases(mixed, name):
    before = mixed.SerializeToString()
    dialect, feeds = int8_nets.DIALECTS[name], int8_nets.image_feeds()
    writer, found = fitted(mixed, feeds, dialect)
    assert mixed.SerializeToString() == before
    written = QdqWriter(
        found.model, writer.ranges, dialect, weight_scales=found.weight_scales
    ).write(())
    floats, stored = constants(found.model), constants(written)
    nodes = {node.name: node for node in found.model.graph.node}
    sources = {node.output[0]: node for node in written.graph.node}
    checked = 0
    for node in written.graph.node:
        if node.op_type not in ("Conv", "ConvTranspose", "MatMul"):
            continue
        pair = sources[node.input[1]]
        integers, scale, zero = (stored[part] for part in pair.input)
        given = found.weight_scales[nodes[node.name].input[1]]
        np.testing.assert_array_equal(scale, given.reshape(scale.shape))
        axis = next((entry.i for entry in pair.attribute if entry.name == "axis"), 0)
        shape = [-1 if k == axis else 1 for k in range(integers.ndim)] if scale.ndim else []
        rebuilt = (integers.astype(FLOAT) - zero.reshape(shape)) * scale.reshape(shape)
        np.testing.assert_allclose(rebuilt, floats[nodes[node.name].input[1]], rtol=1e-6)
        if len(node.input) > 2 and dialect.bias == "int32":
            steps, bias_scale, _ = (stored[part] for part in sources[node.input[2]].input)
            bias = floats[nodes[node.name].input[2]]
            np.testing.assert_allclose(steps * bias_scale, bias, atol=bias_scale.max() * 0.51)
        checked += 1
    assert checked == 6


def test_constants_when_products_share_them_become_each_ones_own(mixed):
    _, found = fitted(mixed, int8_nets.image_feeds(), int8_nets.CPU)
    nodes = {node.name: node for node in found.model.graph.node}
    first, second = nodes["pointwise"].input, nodes["pointwise2"].input
    assert first[1] != second[1]
    assert first[2] != second[2]
    floats = constants(found.model)
    assert (floats[first[2]] != floats[second[2]]).any()
    originals = constants(mixed)
    for name in (first[1], second[1]):
        scales = found.weight_scales[name].reshape(-1, 1, 1, 1)
        assert (np.abs(floats[name] - originals["w3"]) < 6 * scales).all()


def test_node_when_it_is_excluded_keeps_its_constants(mixed):
    _, found = fitted(mixed, int8_nets.image_feeds(), int8_nets.CPU, excluded=("conv", "pointwise"))
    nodes = {node.name: node for node in found.model.graph.node}
    floats, originals = constants(found.model), constants(mixed)
    for name in ("conv", "pointwise"):
        for place in (1, 2):
            kept = nodes[name].input[place]
            assert kept not in found.weight_scales
            np.testing.assert_array_equal(floats[kept], originals[kept])
    assert nodes["pointwise2"].input[1] in found.weight_scales


def test_rounding_when_done_again_is_the_same_to_the_byte(mixed):
    feeds = int8_nets.image_feeds()
    results = [fitted(mixed, feeds, int8_nets.CPU)[1].model.SerializeToString() for _ in range(2)]
    assert results[0] == results[1]


def model_of(nodes, shape, initializers):
    """A model from x to y, both float32."""
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(values, name) for name, values in initializers],
    )
    opset = [helper.make_opsetid("", 17)]
    return prepare_model(helper.make_model(graph, opset_imports=opset, ir_version=9))


def test_convolution_when_it_has_no_bias_gets_the_one_that_corrects_it():
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], "conv")]
    model = model_of(nodes, [1, 3, 6, 6], [("w", normal(4, 3, 3, 3))])
    # Ranges that cut off what is above 1: the mean of what comes in is too low.
    feeds = [{"x": normal(1, 3, 6, 6) + 1} for _ in range(8)]
    ranges = extreme_ranges(model, feeds) | {"x": (-2.0, 1.0)}
    found = round_weights(QdqWriter(model, ranges, int8_nets.CPU), feeds)
    node = found.model.graph.node[0]
    assert len(node.input) == 3
    assert constants(found.model)[node.input[2]].shape == (4,)
    errors = []
    for fitted_model, scales in ((model, {}), (found.model, found.weight_scales)):
        writer = QdqWriter(fitted_model, ranges, int8_nets.CPU, weight_scales=scales)
        errors.append(mean_error(model, writer.write(()), feeds))
    assert errors[1] < errors[0] / 5


def mean_error(model, written, feeds):
    """Largest error of an output channel's mean."""
    options = onnxruntime.SessionOptions()
    # Without it int8 saturates on x86-64 that has no VNNI.
    options.add_session_config_entry("session.x64quantprecision", "1")
    sessions = [
        onnxruntime.InferenceSession(
            one.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        for one in (model, written)
    ]
    exact, have = (np.concatenate([s.run(None, f)[0] for f in feeds]) for s in sessions)
    return np.abs((exact - have).mean(axis=(0, 2, 3))).max()


def test_weights_when_there_are_too_many_taps_stay_and_the_bias_is_corrected():
    nodes = [helper.make_node("Gemm", ["x", "w", "b"], ["y"], "gemm")]
    initializers = [("w", normal(2400, 3) / 50), ("b", normal(3))]
    model = model_of(nodes, [1, 2400], initializers)
    _, found = fitted(model, [{"x": normal(1, 2400)} for _ in range(6)], int8_nets.CPU)
    floats = constants(found.model)
    np.testing.assert_array_equal(floats["w"], initializers[0][1])
    assert "w" not in found.weight_scales
    assert (floats["b"] != initializers[1][1]).any()


def test_weights_when_moments_of_all_groups_would_be_too_many_stay_and_the_bias_is_corrected():
    nodes = [helper.make_node("Conv", ["x", "w", "b"], ["y"], "conv", group=64)]
    initializers = [("w", normal(64, 432, 1, 1) / 20), ("b", normal(64))]
    model = model_of(nodes, [1, 64 * 432, 1, 1], initializers)
    feeds = [{"x": normal(1, 64 * 432, 1, 1)} for _ in range(4)]
    _, found = fitted(model, feeds, int8_nets.CPU)
    floats = constants(found.model)
    np.testing.assert_array_equal(floats["w"], initializers[0][1])
    assert (floats["b"] != initializers[1][1]).any()


@pytest.mark.parametrize(
    ("shape", "rows"),
    slow_after(1, [((16, 12_000), 1024), ((2400, 4000), 1)], reason="takes a second"),
)
def test_memory_when_a_product_has_many_outputs_or_inputs_is_bounded(shape, rows):
    nodes = [helper.make_node("Gemm", ["x", "w", "b"], ["y"], "gemm")]
    weights = normal(*shape) / FLOAT(np.sqrt(shape[0]))
    model = model_of(nodes, [rows, shape[0]], [("w", weights), ("b", normal(shape[1]))])
    feeds = [{"x": normal(rows, shape[0])} for _ in range(4)]
    ranges = dict.fromkeys(("x", "y"), (-5.0, 5.0))
    writer = QdqWriter(model, ranges, int8_nets.CPU)
    tracemalloc.start()
    round_weights(writer, feeds)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # All outputs at all positions would take 190 MiB twice, copies of the weights as float64 73.
    assert peak < 200 << 20


def test_product_when_both_operands_are_activations_is_left():
    nodes = [helper.make_node("MatMul", ["x", "x"], ["y"], "square")]
    model = model_of(nodes, [4, 4], [])
    _, found = fitted(model, [{"x": normal(4, 4)} for _ in range(2)], int8_nets.CPU)
    assert not found.weight_scales
    assert found.model.graph.node == model.graph.node


def test_model_when_there_is_one_sample_or_shapes_differ_is_fitted_all_the_same():
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["a"], "conv"),
        helper.make_node("Relu", ["a"], ["r"], "relu"),
        helper.make_node("Conv", ["r", "w2"], ["y"], "conv2"),
    ]
    initializers = [("w", normal(4, 3, 3, 3)), ("b", normal(4)), ("w2", normal(2, 4, 1, 1))]
    model = model_of(nodes, [1, 3, "h", "w"], initializers)
    for shapes in ([(5, 5)], [(5, 5), (3, 8), (3, 8), (9, 4)]):
        feeds = [{"x": normal(1, 3, *shape)} for shape in shapes]
        _, found = fitted(model, feeds, int8_nets.CPU)
        assert len(found.weight_scales) == 2
        assert all(np.isfinite(values).all() for values in constants(found.model).values())


def test_product_when_an_input_is_infinite_keeps_its_weights_and_bias():
    nodes = [helper.make_node("Gemm", ["x", "w", "b"], ["y"], "gemm")]
    initializers = [("w", np.abs(normal(8, 4))), ("b", normal(4))]
    model = model_of(nodes, [4, 8], initializers)
    feeds = [{"x": normal(4, 8)} for _ in range(6)]
    feeds[0]["x"][0, 0] = np.inf
    writer = QdqWriter(model, dict.fromkeys(("x", "y"), (-5.0, 5.0)), int8_nets.TENSORRT)
    found = round_weights(writer, feeds)
    assert not found.weight_scales
    for name, values in initializers:
        np.testing.assert_array_equal(constants(found.model)[name], values)


def test_samples_when_none_has_a_position_leave_the_model_as_it_is():
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"], "matmul"),
    ]
    model = model_of(nodes, ["n", 3], [("w", normal(3, 2))])
    writer = QdqWriter(model, {"x": (-1.0, 1.0), "y": (-1.0, 1.0)}, int8_nets.CPU)
    found = round_weights(writer, [{"x": np.zeros((0, 3), FLOAT)}])
    assert not found.weight_scales

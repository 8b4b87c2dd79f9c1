"""The int8-dynamic step on models made for one rule each, and on public ones."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import onnxruntime
import pytest
from edgepack.errors import StepError
from edgepack.model.files import MODEL
from edgepack.model.running import make_session, run_session
from edgepack.project.profile import Dialect
from edgepack.steps.base import Notes, run_step
from edgepack.steps.recipes.int8_dynamic import Int8Dynamic
from onnx import TensorProto, helper, numpy_helper

from tests.support.nets.tiny_models import conv_net, save

FLOAT = TensorProto.FLOAT
node = helper.make_node
RANDOM = np.random.default_rng(5)


@pytest.fixture(autouse=True)
def _same_numbers_in_any_order():
    RANDOM.bit_generator.state = np.random.default_rng(5).bit_generator.state


def dialect(weights="int8", *, per_channel=True, activations="uint8", symmetric=False):
    return Dialect(
        activations=activations, weights=weights, symmetric=symmetric, per_channel=per_channel
    )


def floats(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


def mlp(path, nodes=None, initializers=(), *, rows=1, x=(FLOAT, None)):
    """A model from x [rows, 16] to y; by default two matrix products."""
    nodes = nodes or [
        node("MatMul", ["x", "w1"], ["h"], "first"),
        node("Relu", ["h"], ["r"], "relu"),
        node("Gemm", ["r", "w2", "b2"], ["y"], "second", transB=1),
    ]
    initializers = initializers or [
        ("w1", floats(16, 32)),
        ("w2", floats(8, 32)),
        ("b2", floats(8)),
    ]
    inputs = [("x", x[0], x[1] or [rows, 16])]
    save(path / "in" / MODEL, nodes, inputs, [("y", FLOAT, None)], initializers)
    return path


def quantize(folder, step=None) -> Notes:
    (folder / "out").mkdir()
    step = step or Int8Dynamic(dialect(), 8)
    return run_step(step, {"model": folder / "in"}, folder / "out")


def ops(folder):
    return [n.op_type for n in onnx.load(folder / "out" / MODEL).graph.node]


@pytest.mark.parametrize("weights", ["int8", "uint8"])
@pytest.mark.parametrize("per_channel", [True, False])
def test_products_when_quantized_speak_the_dialect_and_stay_near(tmp_path, weights, per_channel):
    mlp(tmp_path)
    notes = quantize(tmp_path, Int8Dynamic(dialect(weights, per_channel=per_channel), 8))
    assert ops(tmp_path).count("MatMulInteger") == 2
    assert notes.facts["quantized_nodes"] == 2
    assert notes.facts["sqnr_db"] > 25
    assert notes.facts["quantized_share"] > 0.8


def test_convolutional_model_when_its_head_is_small_keeps_its_convolutions(tmp_path):
    conv_net(tmp_path / "in" / MODEL, batch=1)
    notes = quantize(tmp_path)
    assert "Conv" in ops(tmp_path)
    assert "ConvInteger" not in ops(tmp_path)
    assert notes.facts["quantized_nodes"] == 1


def test_model_when_it_has_only_convolutions_is_refused(tmp_path):
    nodes = [node("Conv", ["x", "w"], ["y"], "conv")]
    mlp(tmp_path, nodes, [("w", floats(4, 3, 3, 3))], x=(FLOAT, [1, 3, 8, 8]))
    with pytest.raises(StepError, match="nothing in the model could be quantized") as caught:
        quantize(tmp_path)
    assert "int8-static" in caught.value.hint


def test_weights_when_two_gemms_share_them_are_right_for_both(tmp_path):
    nodes = [
        node("Gemm", ["x", "w"], ["h"], "plain"),
        node("Gemm", ["h", "w"], ["y"], "transposed", transB=1),
    ]
    mlp(tmp_path, nodes, [("w", floats(16, 16))])
    assert quantize(tmp_path).facts["sqnr_db"] > 20


@pytest.mark.parametrize("operator", ["Gemm", "MatMul"])
def test_weights_that_layers_share_are_in_the_file_once(tmp_path, operator):
    names = ["x", *"abc", "y"]
    nodes = [node(operator, [x, "w"], [y], y) for x, y in itertools.pairwise(names)]
    mlp(tmp_path, nodes, [("w", floats(64, 64) / 8)], x=(FLOAT, [1, 64]))
    assert quantize(tmp_path).facts["quantized_nodes"] == 4
    model = onnx.load(tmp_path / "out" / MODEL)
    big = [t for t in model.graph.initializer if np.prod(t.dims) == 64 * 64]
    assert [t.data_type for t in big] == [TensorProto.INT8]
    products = [each for each in model.graph.node if each.op_type == "MatMulInteger"]
    assert {each.input[1] for each in products} == {big[0].name}


@pytest.mark.parametrize("operator", ["Gemm", "MatMul"])
def test_weights_of_their_own_leave_precise_kernels_to_x86_64(tmp_path, operator):
    """Which onnxruntime has only for nodes that share no int8 constant, zero points included."""
    names = ["x", *"ab", "y"]
    nodes = [node(operator, [x, f"w{y}"], [y], y) for x, y in itertools.pairwise(names)]
    weights = [(f"w{name}", floats(32, 32) / 8 + ord(name)) for name in names[1:]]
    mlp(tmp_path, nodes, weights, x=(FLOAT, [1, 32]))
    quantize(tmp_path)
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1")
    onnxruntime.InferenceSession(tmp_path / "out" / MODEL, options)


def test_weights_when_in_constant_nodes_are_quantized(tmp_path):
    value = numpy_helper.from_array(floats(16, 8))
    nodes = [node("Constant", [], ["w"], value=value), node("MatMul", ["x", "w"], ["y"], "m")]
    mlp(tmp_path, nodes, [("unused", floats(1))])
    assert quantize(tmp_path).facts["quantized_nodes"] == 1


def test_weights_when_they_have_three_dimensions_stay_float32_per_channel(tmp_path):
    nodes = [
        node("MatMul", ["x", "w1"], ["h"], "flat"),
        node("MatMul", ["h", "w2"], ["y"], "stacked"),
    ]
    mlp(tmp_path, nodes, [("w1", floats(16, 8)), ("w2", floats(2, 8, 4))])
    notes = quantize(tmp_path)
    assert notes.facts["float32_nodes"] == ["stacked"]
    assert "its weights have 3 dimensions" in notes.done


def lstm(path, **attributes):
    weights = [("w", floats(1, 32, 16)), ("r", floats(1, 32, 8))]
    nodes = [node("LSTM", ["x", "w", "r"], ["y"], "lstm", hidden_size=8, **attributes)]
    return mlp(path, nodes, weights, x=(FLOAT, [3, 2, 16]))


def test_lstm_when_quantized_has_int8_weights(tmp_path):
    lstm(tmp_path)
    notes = quantize(tmp_path)
    assert ops(tmp_path) == ["DynamicQuantizeLSTM"]
    assert notes.facts["sqnr_db"] > 15
    # On x86-64 without VNNI nodes that share an int8 constant have no precise kernels.
    constants = {tensor.name for tensor in onnx.load(tmp_path / "out" / MODEL).graph.initializer}
    assert {"w_zero_point", "r_zero_point"} <= constants


@pytest.mark.parametrize(
    ("attributes", "weights", "why"),
    [({"layout": 1}, "int8", "batch comes first"), ({}, "uint8", "int8 only")],
)
def test_lstm_when_the_quantizer_would_spoil_it_stays(tmp_path, attributes, weights, why):
    lstm(tmp_path, **attributes)
    nodes = onnx.load(tmp_path / "in" / MODEL)
    nodes.graph.node[0].output[0] = "h"
    nodes.graph.node.append(node("MatMul", ["h", "p"], ["y"], "head"))
    nodes.graph.initializer.append(numpy_helper.from_array(floats(8, 4), "p"))
    if attributes:
        # onnxruntime's CPU provider has no LSTM with the batch first: only the rule is tried.
        step = Int8Dynamic(dialect(weights), 8)
        assert why in step._find_excluded(nodes)["lstm"]
        return
    onnx.save(nodes, tmp_path / "in" / MODEL)
    notes = quantize(tmp_path, Int8Dynamic(dialect(weights), 8))
    assert notes.facts["float32_nodes"] == ["lstm"]
    assert why in notes.done


def test_table_when_large_is_quantized_and_when_small_is_not(tmp_path):
    nodes = [
        node("Gather", ["words", "x"], ["a"], "embedding"),
        node("Gather", ["kinds", "x"], ["b"], "kind"),
        node("Add", ["a", "b"], ["y"], "add"),
    ]
    tables = [("words", floats(200, 16)), ("kinds", floats(2, 16))]
    mlp(tmp_path, nodes, tables, x=(TensorProto.INT64, [1, 5]))
    notes = quantize(tmp_path)
    assert ops(tmp_path).count("DequantizeLinear") == 1
    assert notes.facts["float32_nodes"] == ["kind"]


@pytest.mark.parametrize("wrong", [{"activations": "int8"}, {"symmetric": True}])
def test_dialect_when_it_cannot_be_is_refused(tmp_path, wrong):
    mlp(tmp_path)
    with pytest.raises(StepError, match="asymmetric uint8 activations"):
        quantize(tmp_path, Int8Dynamic(dialect(**wrong), 8))


def uneven(path):
    """An embedding made by weights of which one column is far larger than all others."""
    weights = floats(16, 32)
    weights[:, 3] *= 1000
    back = np.ones(32, np.float32)
    back[3] = 1 / 1000
    nodes = [
        node("MatMul", ["x", "w"], ["h"], "product"),
        node("Mul", ["h", "back"], ["e"], "even"),
        node("LpNormalization", ["e"], ["y"], "unit", axis=1),
    ]
    return mlp(path, nodes, [("w", weights), ("back", back)])


def test_embedding_when_one_scale_serves_uneven_columns_is_refused(tmp_path):
    uneven(tmp_path)
    with pytest.raises(StepError, match=r"cosine") as caught:
        quantize(tmp_path, Int8Dynamic(dialect(per_channel=False), 8))
    assert caught.value.hint


def test_embedding_when_columns_have_scales_of_their_own_is_near(tmp_path):
    uneven(tmp_path)
    assert quantize(tmp_path).facts["worst_cosine"] > 0.99


def test_model_when_quantized_already_is_refused(tmp_path):
    mlp(tmp_path)
    quantize(tmp_path)
    (tmp_path / "again").mkdir()
    with pytest.raises(StepError, match="quantized already"):
        run_step(Int8Dynamic(dialect(), 8), {"model": tmp_path / "out"}, tmp_path / "again")


def verify(folder, wanted):
    Int8Dynamic(wanted, 8).verify({"model": folder / "in"}, folder / "out")


@pytest.mark.parametrize(
    ("made", "claimed", "message"),
    [
        (dialect("uint8"), dialect("int8"), "'first_quant'.*its weights are uint8, not int8"),
        (dialect(per_channel=False), dialect(), "its weights have one scale in all"),
    ],
)
def test_step_when_it_lies_about_the_dialect_is_caught(tmp_path, made, claimed, message):
    mlp(tmp_path)
    quantize(tmp_path, Int8Dynamic(made, 8))
    with pytest.raises(StepError, match=message):
        verify(tmp_path, claimed)


def test_step_when_its_file_is_still_float_or_not_numbers_is_caught(tmp_path):
    mlp(tmp_path)
    quantize(tmp_path)
    model = onnx.load(tmp_path / "out" / MODEL)
    for tensor in model.graph.initializer:
        if tensor.name.endswith("_scale"):
            values = np.full(tuple(tensor.dims), np.nan, np.float32)
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    onnx.save(model, tmp_path / "out" / MODEL)
    with pytest.raises(StepError, match="NaN or infinity"):
        verify(tmp_path, dialect())
    onnx.save(onnx.load(tmp_path / "in" / MODEL), tmp_path / "out" / MODEL)
    with pytest.raises(StepError, match="nothing in the model could be quantized"):
        verify(tmp_path, dialect())


def test_step_when_its_activations_are_not_quantized_at_run_time_is_caught(tmp_path):
    mlp(tmp_path)
    quantize(tmp_path)
    model = onnx.load(tmp_path / "out" / MODEL)
    product = next(n for n in model.graph.node if n.op_type == "MatMulInteger")
    fixed = numpy_helper.from_array(np.ones((1, 16), np.uint8), "fixed")
    model.graph.initializer.append(fixed)
    product.input[0] = "fixed"
    onnx.save(model, tmp_path / "out" / MODEL)
    with pytest.raises(StepError, match="is not quantized while running"):
        verify(tmp_path, dialect())


@pytest.mark.parametrize(
    ("file", "share", "feed"),
    [
        ("text/bert_toy_optimized.onnx", 0.6, "tokens"),
        ("text/magika/model.onnx", 0.1, "bytes"),
    ],
)
def test_public_model_when_quantized_is_near(file, share, feed, shared_data, tmp_path):
    model = onnx.load(shared_data / file)
    constants = {t.name for t in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in constants]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    (tmp_path / "in").mkdir()
    onnx.save(model, tmp_path / "in" / MODEL)
    notes = quantize(tmp_path, Int8Dynamic(dialect(), 10))
    assert notes.facts["quantized_share"] > share
    assert notes.facts["sqnr_db"] > 15
    session = make_session(tmp_path / "out" / MODEL)
    shape = (1, 2048) if feed == "bytes" else (1, 16)
    kind = np.int32 if feed == "bytes" else np.int64
    run_session(session, {v.name: np.ones(shape, kind) for v in session.get_inputs()})

"""How quantized models are recognized, on models made for one form each and on public ones."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from edgepack.model.facts import read_model_facts
from edgepack.model.quantized import Quantization, find_quantization
from onnx import TensorProto, helper

from tests.support.nets.tiny_models import conv_net, relu, save

node = helper.make_node
FLOAT = TensorProto.FLOAT


def qdq(path, activations, weights, *, zero=0, scales=1, shift=0):
    """x -> Q -> DQ -> MatMul with a DQ of constant weights."""
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"], "q"),
        node("DequantizeLinear", ["q", "s", "z"], ["d"], "d"),
        node("DequantizeLinear", ["w", "ws", "wz"], ["wd"], "wd", axis=1),
        node("MatMul", ["d", "wd"], ["y"], "m"),
    ]
    constants = [
        ("s", np.float32(0.1)),
        ("z", np.array(zero, activations)),
        ("w", np.ones((4, 4), weights)),
        ("ws", np.full(scales, 0.1, np.float32)),
        ("wz", np.full(scales, shift, weights)),
    ]
    save(path, nodes, [("x", FLOAT, [1, 4])], [("y", FLOAT, [1, 4])], constants)
    return find_quantization(onnx.load(path))


@pytest.mark.parametrize(
    ("activations", "weights", "zero", "scales", "text"),
    [
        ("uint8", "int8", 3, 4, "QDQ: uint8 activations, int8 weights with a scale per channel"),
        ("int8", "int8", 0, 1, "QDQ: symmetric int8 activations, int8 weights with one scale each"),
        ("int8", "int8", 5, 1, "QDQ: int8 activations, int8 weights with one scale each"),
        ("uint16", "int8", 7, 1, "QDQ: uint16 activations, int8 weights with one scale each"),
    ],
)
def test_qdq_model_when_read_says_its_dialect(tmp_path, activations, weights, zero, scales, text):
    found = qdq(tmp_path / "m.onnx", activations, weights, zero=zero, scales=scales)
    assert str(found) == text
    assert found.state == f"quantized already ({text})"


@pytest.mark.parametrize(
    ("weights", "shift", "shifted"), [("int8", 3, True), ("uint8", 128, False), ("int8", 0, False)]
)
def test_qdq_model_when_signed_weights_have_a_zero_point_says_so(tmp_path, weights, shift, shifted):
    found = qdq(tmp_path / "m.onnx", "int8", weights, shift=shift)
    assert (found.symmetric, found.shifted_weights) == (True, shifted)
    assert ("not all with zero point 0" in str(found)) is shifted


def trained(path, *, quantized_input=True, between=()):
    """x -> Q -> DQ -> MatMul with float weights that have a Q and a DQ, as training leaves them."""
    nodes = [
        *([node("QuantizeLinear", ["x", "s", "z"], ["q"])] if quantized_input else []),
        *([node("DequantizeLinear", ["q", "s", "z"], ["d"])] if quantized_input else []),
        *between,
        node("QuantizeLinear", ["wt" if between else "w", "ws", "wz"], ["wq"], axis=1),
        node("DequantizeLinear", ["wq", "ws", "wz"], ["wd"], axis=1),
        node("MatMul", ["d" if quantized_input else "x", "wd"], ["y"]),
    ]
    constants = [
        ("s", np.float32(0.1)),
        ("z", np.array(7, np.uint8)),
        ("w", np.ones((4, 4), np.float32)),
        ("ws", np.full(4, 0.1, np.float32)),
        ("wz", np.zeros(4, np.int8)),
    ]
    save(path, nodes, [("x", FLOAT, [1, 4])], [("y", FLOAT, [1, 4])], constants)
    return find_quantization(onnx.load(path))


@pytest.mark.parametrize("between", [(), (node("Transpose", ["w"], ["wt"]),)])
def test_qdq_model_when_weights_are_float_with_a_quantize_node_says_their_type(tmp_path, between):
    found = trained(tmp_path / "m.onnx", between=between)
    assert (found.form, found.activations, found.weights) == ("QDQ", ("uint8",), ("int8",))
    assert (found.symmetric, found.per_channel) == (False, True)


def test_model_when_only_weights_have_quantize_nodes_is_weight_only(tmp_path):
    assert trained(tmp_path / "m.onnx", quantized_input=False).form == "weight-only"


@pytest.mark.parametrize("model", [conv_net, relu])
def test_float_model_when_read_is_not_quantized(tmp_path, model):
    assert read_model_facts(model(tmp_path / "m.onnx")).quantization is None


def test_model_when_most_constants_are_float16_is_said_to_be(tmp_path):
    nodes = [
        node("MatMul", ["x", "w"], ["h"], "m"),
        node("Cast", ["h"], ["f"], "c", to=FLOAT),
        node("Add", ["f", "b"], ["y"], "a"),
    ]
    constants = [("w", np.ones((4, 4), np.float16)), ("b", np.ones(4, np.float32))]
    inputs = [("x", TensorProto.FLOAT16, [1, 4])]
    save(tmp_path / "m.onnx", nodes, inputs, [("y", FLOAT, [1, 4])], constants)
    found = find_quantization(onnx.load(tmp_path / "m.onnx"))
    assert found == Quantization("float16")
    assert found.state == "float16 already"


@pytest.mark.parametrize(
    ("file", "form", "types"),
    [
        ("conv_qdq_s8s8_perchannel", "QDQ", (("int8",), ("int8",))),
        ("qdq_with_multi_consumer_dq_nodes", "QDQ", (("uint8",), ("uint8",))),
        ("layout_transform_reshape.qdq", "QDQ", (("uint8",), ("uint8",))),
        ("conv.int4_weights.qdq", "QDQ", (("uint8",), ("int4",))),
        ("matmul_integer_to_float_int8", "dynamic", ((), ())),
        ("attention_past_state.u8s8", "dynamic", ((), ())),
    ],
)
def test_public_model_when_quantized_is_recognized(shared_data, file, form, types):
    found = read_model_facts(shared_data / "awkward" / "ort" / f"{file}.onnx").quantization
    assert found is not None
    assert (found.form, (found.activations, found.weights)) == (form, types)

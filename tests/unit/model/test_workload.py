"""What part of a model's multiply-adds is in matrix products; expected numbers by hand."""

from __future__ import annotations

import numpy as np
import pytest
from edgepack.model.workload import compute_matrix_share, find_activation_sizes
from onnx import TensorProto, helper

from tests.support.nets.tiny_models import conv_net, relu, save

node = helper.make_node
FLOAT = TensorProto.FLOAT


def ones(*shape):
    return np.ones(shape, np.float32)


def test_share_when_a_convolution_and_a_head_are_counted_is_that_of_the_head(tmp_path):
    # 8 x 8 places of 8 channels, each from 3 x 3 x 3 values; the head multiplies 8 by 4.
    convolution, head = 8 * 8 * 8 * 27, 8 * 4
    share = compute_matrix_share(conv_net(tmp_path / "m.onnx", batch=1))
    assert share == pytest.approx(head / (head + convolution))


def test_share_when_there_is_no_product_is_0(tmp_path):
    assert compute_matrix_share(relu(tmp_path / "m.onnx")) == 0


def test_share_when_activations_are_multiplied_with_each_other_leaves_them_out(tmp_path):
    nodes = [
        node("MatMul", ["x", "w"], ["h"], "weights"),
        node("Transpose", ["h"], ["t"], "turn", perm=[0, 2, 1]),
        node("MatMul", ["h", "t"], ["y"], "scores"),
    ]
    value = ("x", FLOAT, [1, 10, 16])
    save(tmp_path / "m.onnx", nodes, [value], [("y", FLOAT, [1, 10, 10])], [("w", ones(16, 16))])
    weights, scores = 10 * 16 * 16, 10 * 10 * 16
    assert compute_matrix_share(tmp_path / "m.onnx") == pytest.approx(weights / (weights + scores))


def test_share_when_the_sequence_has_no_size_counts_64_places(tmp_path):
    nodes = [
        node("Conv", ["x", "k"], ["c"], "conv"),
        node("Transpose", ["c"], ["t"], "turn", perm=[0, 2, 1]),
        node("Gemm", ["pooled", "g"], ["z"], "gemm", transB=1),
        node("ReduceMax", ["t"], ["pooled"], "pool", axes=[1], keepdims=0),
    ]
    nodes = [nodes[0], nodes[1], nodes[3], nodes[2]]
    constants = [("k", ones(16, 4, 1)), ("g", ones(6, 16))]
    inputs, outputs = [("x", FLOAT, [1, 4, "time"])], [("z", FLOAT, [1, 6])]
    save(tmp_path / "m.onnx", nodes, inputs, outputs, constants)
    convolution, head = 64 * 16 * 4, 6 * 16
    assert compute_matrix_share(tmp_path / "m.onnx") == pytest.approx(head / (head + convolution))


def test_share_when_a_layer_is_recurrent_counts_both_its_weights(tmp_path):
    nodes = [
        node("LSTM", ["x", "w", "r"], ["h"], "lstm", hidden_size=8),
        node("MatMul", ["h", "v"], ["y"], "m"),
    ]
    constants = [("w", ones(1, 32, 16)), ("r", ones(1, 32, 8)), ("v", ones(8, 4))]
    save(tmp_path / "m.onnx", nodes, [("x", FLOAT, [5, 2, 16])], [("y", FLOAT, None)], constants)
    recurrent, matrix = 5 * 2 * (32 * 16 + 32 * 8), 5 * 2 * 8 * 4
    assert compute_matrix_share(tmp_path / "m.onnx") == pytest.approx(matrix / (matrix + recurrent))


@pytest.mark.parametrize(
    ("file", "mainly"),
    [
        ("text/bert_toy_optimized.onnx", True),
        ("awkward/genai_tiny_random_gpt2_past.onnx", True),
        ("imagenet/mobilenet_v1_0.25_128_fp32.onnx", False),
        ("small/cnn_mnist_pytorch_opset9.onnx", False),
        ("audio/silero_vad/silero_vad_16k_op15.onnx", False),
        ("detection/nanodet_m_320.onnx", False),
    ],
)
def test_public_model_when_counted_is_of_the_kind_it_is(shared_data, file, mainly):
    assert (compute_matrix_share(shared_data / file) > 0.5) == mainly


def test_activations_are_counted_together_and_while_they_are_needed(tmp_path):
    nodes = [
        node("Relu", ["x"], ["a"], "first"),
        node("Neg", ["a"], ["b"], "second"),
        node("Exp", ["b"], ["c"], "third"),
        node("Add", ["a", "c"], ["y"], "last"),
    ]
    value = ("x", FLOAT, ["batch", 3, "size"])
    save(tmp_path / "m.onnx", nodes, [value], [("y", FLOAT, ["batch", 3, "size"])])
    one = 4 * 3 * 10
    found = find_activation_sizes(tmp_path / "m.onnx", {"size": 10})
    # a is needed by the last node, so it is there beside two others.
    assert (found.total_bytes, found.live_bytes) == (4 * one, 3 * one)
    assert (
        find_activation_sizes(tmp_path / "m.onnx", {"size": 10, "batch": 2}).live_bytes == 6 * one
    )

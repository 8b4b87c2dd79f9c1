"""Large channels leave what products read; the function stays the same."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from edgepack.quantization.methods.smooth_quant import smooth_norms
from onnx import TensorProto, helper, numpy_helper

CHANNELS = 32
LARGE = 5


def norm_net(tail, outputs, **changes):
    """A LayerNormalization with one large channel, and what reads it."""
    random = np.random.default_rng(2)
    gamma = np.ones(CHANNELS)
    gamma[LARGE] = 40
    constants = {
        "gamma": gamma,
        "beta": random.standard_normal(CHANNELS) * 0.1,
        "w": random.standard_normal((CHANNELS, 8)),
        "v": random.standard_normal((4, CHANNELS)),
        "bias": random.standard_normal(4),
        **changes,
    }
    norm = helper.make_node("LayerNormalization", ["x", "gamma", "beta"], ["normed"], "norm")
    graph = helper.make_graph(
        [norm, *tail],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [6, CHANNELS])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs.split()],
        [numpy_helper.from_array(np.float32(a), name) for name, a in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


PRODUCTS = [
    helper.make_node("MatMul", ["normed", "w"], ["a"], "matmul"),
    helper.make_node("Gemm", ["normed", "v", "bias"], ["b"], "gemm", transB=1),
]
RESIDUAL = helper.make_node("Add", ["x", "normed"], ["c"], "add")


def run(model, extra=()):
    """All outputs, and inner tensors named in ``extra``, on one seeded input."""
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    copy.graph.output.extend(
        helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in extra
    )
    session = onnxruntime.InferenceSession(
        copy.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    x = np.random.default_rng(3).standard_normal((6, CHANNELS)).astype(np.float32)
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, {"x": x}), strict=True))


def spread(values):
    peaks = np.abs(values).max(axis=0)
    return float(peaks.max() / np.median(peaks))


def test_norm_when_only_products_read_it_is_smaller_itself():
    model = norm_net(PRODUCTS, "a b")
    before = run(model, ["normed"])
    assert smooth_norms(model) == ["'norm'"]
    after = run(model, ["normed"])
    assert [node.op_type for node in model.graph.node] == ["LayerNormalization", "MatMul", "Gemm"]
    for name in "ab":
        np.testing.assert_allclose(after[name], before[name], rtol=1e-4, atol=1e-4)
    # What is taken from the activations goes into the weights in equal parts.
    assert spread(after["normed"]) < 2 * np.sqrt(spread(before["normed"]))


def test_norm_when_a_sum_reads_it_too_stays_and_products_read_a_divided_one():
    model = norm_net([*PRODUCTS, RESIDUAL], "a b c")
    before = run(model, ["normed"])
    assert smooth_norms(model) == ["'norm'"]
    divided = model.graph.node[1]
    assert divided.op_type == "Mul"
    assert [node.input[0] for node in model.graph.node[2:4]] == [divided.output[0]] * 2
    after = run(model, ["normed", divided.output[0]])
    for name in ("a", "b", "c", "normed"):
        np.testing.assert_allclose(after[name], before[name], rtol=1e-4, atol=1e-4)
    assert spread(after[divided.output[0]]) < 2 * np.sqrt(spread(before["normed"]))


def test_norm_when_it_is_an_output_too_stays_as_it_is():
    model = norm_net(PRODUCTS, "a b normed")
    before = run(model)
    assert smooth_norms(model)
    np.testing.assert_array_equal(run(model)["normed"], before["normed"])


@pytest.mark.parametrize(
    ("tail", "outputs", "changes"),
    [
        pytest.param(PRODUCTS, "a b", {"gamma": np.ones(CHANNELS)}, id="no channel is large"),
        pytest.param(
            PRODUCTS,
            "a b",
            {"gamma": np.zeros(CHANNELS), "beta": np.zeros(CHANNELS)},
            id="all channels are always zero",
        ),
        pytest.param([RESIDUAL], "c", {}, id="no product reads it"),
        pytest.param(
            [*PRODUCTS, helper.make_node("MatMul", ["x", "w"], ["c"], "other")],
            "a b c",
            {},
            id="another node reads the weights",
        ),
        pytest.param(
            [helper.make_node("Gemm", ["normed", "turned"], ["a"], "gemm", transA=1)],
            "a",
            {"turned": np.ones((6, 3))},
            id="the channels are not what is summed over",
        ),
    ],
)
def test_norm_when_nothing_can_be_won_leaves_the_model_alone(tail, outputs, changes):
    model = norm_net(tail, outputs, **changes)
    before = model.SerializeToString()
    assert smooth_norms(model) == []
    assert model.SerializeToString() == before
    run(model)


def test_norm_when_a_channel_is_always_zero_gives_finite_weights():
    gamma = np.ones(CHANNELS)
    gamma[[LARGE, 7]] = 40, 0
    model = norm_net(PRODUCTS, "a b", gamma=gamma, beta=np.zeros(CHANNELS))
    before = run(model)
    assert smooth_norms(model)
    after = run(model)
    for name in "ab":
        assert np.isfinite(after[name]).all()
        np.testing.assert_allclose(after[name], before[name], rtol=1e-3, atol=1e-3)


def test_norm_when_its_scale_and_bias_are_one_constant_computes_the_same():
    model = norm_net(PRODUCTS, "a b")
    model.graph.node[0].input[2] = "gamma"
    before = run(model)
    assert smooth_norms(model)
    after = run(model)
    for name in "ab":
        np.testing.assert_allclose(after[name], before[name], rtol=1e-3, atol=1e-3)

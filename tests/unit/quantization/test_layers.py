"""Products against onnxruntime's own, and a passage against a plain run of the whole model."""

from __future__ import annotations

import sys

import numpy as np
import onnx
import onnxruntime
import pytest
from edgepack.errors import ModelError
from edgepack.quantization.methods.layers import Passage, find_product
from onnx import TensorProto, helper, numpy_helper

FLOAT = np.float32
RANDOM = np.random.default_rng()


@pytest.fixture(autouse=True)
def seeded(monkeypatch):
    """The same numbers in each test, whichever runs before it."""
    monkeypatch.setattr(sys.modules[__name__], "RANDOM", np.random.default_rng(6))


def normal(*shape):
    return RANDOM.standard_normal(shape).astype(FLOAT)


def model_of(nodes, inputs, outputs, constants=()):
    """A model; inputs and outputs are names, of float32 tensors of any shape."""
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in inputs],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in constants],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def run(model, feed):
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, feed)


PRODUCTS = {
    "pointwise": ("Conv", (3, 6, 5, 5), (4, 6, 1, 1), {}),
    "padded on one side": ("Conv", (2, 3, 7, 6), (4, 3, 3, 2), {"pads": [0, 1, 2, 0]}),
    "strides and dilations": (
        "Conv",
        (2, 3, 12, 11),
        (4, 3, 3, 3),
        {"strides": [2, 3], "dilations": [3, 1], "pads": [1, 2, 3, 0]},
    ),
    "grouped": ("Conv", (2, 6, 5, 5), (4, 3, 3, 3), {"group": 2}),
    "depthwise": ("Conv", (2, 6, 5, 5), (12, 1, 3, 3), {"group": 6, "pads": [1] * 4}),
    "same upper": (
        "Conv",
        (2, 3, 8, 7),
        (4, 3, 3, 4),
        {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
    ),
    "same lower": (
        "Conv",
        (2, 3, 8, 7),
        (4, 3, 3, 4),
        {"auto_pad": "SAME_LOWER", "strides": [3, 2]},
    ),
    "valid": ("Conv", (2, 3, 8, 7), (4, 3, 3, 3), {"auto_pad": "VALID"}),
    "one axis": ("Conv", (2, 3, 9), (4, 3, 4), {"pads": [2, 1], "strides": [2]}),
    "three axes": ("Conv", (2, 3, 4, 5, 6), (4, 3, 2, 3, 1), {"pads": [1, 0, 0, 0, 1, 2]}),
    "transposed": (
        "ConvTranspose",
        (2, 6, 5, 4),
        (6, 4, 3, 2),
        {"strides": [2, 3], "pads": [1, 0, 0, 1], "output_padding": [1, 2]},
    ),
    "transposed, grouped": (
        "ConvTranspose",
        (2, 6, 5, 4),
        (6, 2, 3, 3),
        {"strides": [2, 1], "group": 3, "dilations": [1, 2]},
    ),
    "transposed, cut off": ("ConvTranspose", (1, 2, 5, 5), (2, 3, 2, 2), {"pads": [2, 2, 2, 2]}),
    "gemm": ("Gemm", (7, 5), (5, 4), {}),
    "gemm, turned": ("Gemm", (7, 5), (4, 5), {"transB": 1}),
    "matmul of a vector": ("MatMul", (5,), (5, 4), {}),
    "matmul of rank 3": ("MatMul", (2, 3, 5), (5, 4), {}),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_product_when_it_is_computed_from_patches_is_onnxruntimes(name):
    op, shape, dims, attributes = PRODUCTS[name]
    values, weights = normal(*shape), normal(*dims)
    node = helper.make_node(op, ["x", "w"], ["y"], **attributes)
    expected = run(model_of([node], ["x"], ["y"], [("w", weights)]), {"x": values})[0]

    product = find_product(node, dims)
    count = product.count_positions(values.shape)
    at = np.arange(count)[::2]
    rows, patches = product.make_rows(weights), product.take_patches(values, at)
    found = (rows @ patches.swapaxes(1, 2)).reshape(-1, len(at))

    channels_last = np.moveaxis(expected, 1, -1) if op.startswith("Conv") else expected
    assert channels_last.size // channels_last.shape[-1] == count
    flat = channels_last.reshape(count, -1)[at]
    np.testing.assert_allclose(found.T, flat, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(product.make_weights(rows), weights)


@pytest.mark.parametrize(
    ("op", "dims", "attributes"),
    [
        ("MatMul", (2, 5, 4), {}),
        ("MatMul", (5,), {}),
        ("Gemm", (5, 4), {"alpha": 0.5}),
        ("Gemm", (5, 4), {"transA": 1}),
        ("ConvTranspose", (2, 3, 2, 2), {"auto_pad": "SAME_UPPER"}),
        ("ConvTranspose", (2, 3, 2, 2), {"output_shape": [4, 4]}),
        ("Add", (3,), {}),
    ],
)
def test_product_when_it_is_no_matrix_problem_is_none(op, dims, attributes):
    node = helper.make_node(op, ["x", "w"], ["y"], **attributes)
    assert find_product(node, dims) is None


class Some:
    """Samples of one input; counts how often they are gone through."""

    def __init__(self, *arrays):
        self.arrays = arrays
        self.rounds = 0

    def __len__(self):
        return len(self.arrays)

    def __iter__(self):
        self.rounds += 1
        return ({"x": array} for array in self.arrays)


def branched():
    """Every tensor between x and y is read twice, t0 also by both bodies of an If."""
    then, other = (
        helper.make_graph(
            [helper.make_node(op, ["t0"], [f"in_{op}"])],
            op,
            [],
            [helper.make_tensor_value_info(f"in_{op}", TensorProto.FLOAT, None)],
        )
        for op in ("Neg", "Exp")
    )
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["t0"]),
        helper.make_node("MatMul", ["t0", "w"], ["t1"]),
        helper.make_node("Add", ["t0", "t1"], ["t2"]),
        helper.make_node("ReduceMax", ["t1"], ["most"], keepdims=0),
        helper.make_node("Less", ["most", "limit"], ["is_small"]),
        helper.make_node("If", ["is_small"], ["t3"], then_branch=then, else_branch=other),
        helper.make_node("Mul", ["t3", "t2"], ["t4"]),
        helper.make_node("MatMul", ["t4", "w2"], ["y"]),
    ]
    constants = [("w", normal(4, 4)), ("w2", normal(4, 4)), ("limit", np.array(1, FLOAT))]
    return model_of(nodes, ["x"], ["y"], constants)


STOPS = ["x", "t0", "t1", "t3", "t4", "y"]


@pytest.mark.parametrize("kept_bytes", [1 << 20, 200, 0])
def test_passage_when_it_stops_gives_what_the_whole_model_computes(kept_bytes):
    model, samples = branched(), [normal(2, 4), normal(3, 4), normal(1, 4)]
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    whole.graph.output.extend(onnx.ValueInfoProto(name=name) for name in STOPS[1:-1])
    names = ["y", *STOPS[1:-1]]
    expected = [dict(zip(names, run(whole, {"x": x}), strict=True)) | {"x": x} for x in samples]

    passage = Passage(model, Some(*samples), kept_bytes)
    for name in STOPS:
        for index, found in enumerate(passage.stop(name)):
            np.testing.assert_allclose(found, expected[index][name], rtol=1e-6)
        assert index == 2


def test_passage_when_there_is_room_goes_through_the_samples_only_for_their_readers():
    samples = Some(normal(2, 4), normal(2, 4))
    passage = Passage(branched(), samples, 1 << 20)
    for name in ("t1", "t4", "y"):
        list(passage.stop(name))
    assert samples.rounds == 1
    passage = Passage(branched(), samples, 0)
    for name in ("t1", "t4", "y"):
        list(passage.stop(name))
    assert samples.rounds == 1 + 3


def test_passage_when_a_constant_is_changed_shows_it_to_the_nodes_to_come_alone():
    model, x = branched(), normal(2, 4)
    passage = Passage(model, Some(x), 1 << 20)
    before = next(iter(list(passage.stop("t4"))))
    weights = normal(4, 4)
    for tensor in model.graph.initializer:
        if tensor.name in ("w", "w2"):
            tensor.CopyFrom(numpy_helper.from_array(weights, tensor.name))
    np.testing.assert_allclose(next(iter(list(passage.stop("y")))), before @ weights, rtol=1e-5)


def test_passage_when_integers_have_many_readers_can_stop_at_them_each_time():
    pair = ["scale", "zero"]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", *pair], ["q"]),
        helper.make_node("DequantizeLinear", ["q", *pair], ["d"]),
        helper.make_node("MatMul", ["d", "w"], ["t0"]),
        helper.make_node("MatMul", ["d", "w"], ["t1"]),
        helper.make_node("Add", ["t0", "t1"], ["y"]),
    ]
    constants = [("scale", np.array(0.1, FLOAT)), ("zero", np.array(7, np.uint8))]
    model = model_of(nodes, ["x"], ["y"], [*constants, ("w", np.eye(4, dtype=FLOAT))])
    samples = Some(normal(2, 4))
    passage = Passage(model, samples, 1 << 20)
    x = samples.arrays[0]
    integers = np.clip(np.rint(x / FLOAT(0.1)) + 7, 0, 255)
    for name in ("q", "t0", "q", "t1", "q", "y"):
        found = next(iter(list(passage.stop(name))))
        if name == "q":
            assert found.dtype == np.uint8
            np.testing.assert_array_equal(found, integers)
    np.testing.assert_allclose(found, 2 * (integers - 7) * FLOAT(0.1), rtol=1e-6)


def test_passage_when_a_part_does_not_run_names_the_node():
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], "first"),
        helper.make_node("Reshape", ["a", "shape"], ["y"], "turn"),
    ]
    model = model_of(nodes, ["x"], ["y"], [("shape", np.array([5, 5]))])
    passage = Passage(model, Some(normal(2, 4)), 1 << 20)
    assert len(list(passage.stop("a"))) == 1
    with pytest.raises(ModelError, match="turn"):
        list(passage.stop("y"))

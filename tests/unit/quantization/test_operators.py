"""Which tensors become integers, told from small graphs without running them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from edgepack.quantization.qdq.grid import make_range_grid
from edgepack.quantization.qdq.operators import (
    QUANTIZED_OPS,
    Options,
    find_role,
    is_quantized,
    place_integers,
    read_tensors,
    settle_ranges,
)
from edgepack.quantization.qdq.preparation import infer_types
from onnx import TensorProto, helper, numpy_helper

from tests.support.nets.onnxruntime_writer import OP_TYPES


def node(op, inputs, outputs, **attributes):
    return helper.make_node(op, inputs.split(" "), outputs.split(" "), outputs, **attributes)


def graph(nodes, constants=(), inputs=("x",), outputs=("y",)):
    def value(name):
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4, 6, 6])

    made = helper.make_graph(
        nodes,
        "g",
        [value(name) for name in inputs],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants],
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def placed(model, *, low=-1.0, ranges=(), unpaired=(), wide=(), excluded=(), **changes):
    settings = {"merges": True, "shares_constants": True, "biases": True, **changes}
    nodes = list(model.graph.node)
    chosen = [
        k for k, n in enumerate(nodes) if is_quantized(n, every_op=False) and n.name not in excluded
    ]
    options = Options(
        chosen=frozenset(chosen), unpaired=frozenset(unpaired), wide=frozenset(wide), **settings
    )
    given = dict(ranges)

    def grid_of(name):
        ends = given.get(name, (low, 1.0))
        return make_range_grid(*map(np.float32, ends), "uint8", symmetric=False)

    return place_integers(nodes, read_tensors(model, infer_types(model), ()), options, grid_of)


WEIGHTS = [("w", np.ones((4, 4, 1, 1), np.float32)), ("b", np.ones(4, np.float32))]


def test_types_when_listed_are_those_that_onnxruntime_knows():
    assert QUANTIZED_OPS == OP_TYPES


@pytest.mark.parametrize(
    ("op", "domain", "some", "every"),
    [
        ("Conv", "", True, True),
        ("Conv", "ai.onnx", True, True),
        ("Conv", "com.microsoft.nchwc", False, True),
        ("EmbedLayerNormalization", "com.microsoft", True, True),
        ("Tanh", "", False, True),
        ("Cast", "", False, False),
        ("DequantizeLinear", "", False, False),
    ],
)
def test_operator_when_asked_about_is_quantized_by_type_and_domain(op, domain, some, every):
    found = helper.make_node(op, ["x"], ["y"], domain=domain)
    assert is_quantized(found, every_op=False) is some
    assert is_quantized(found, every_op=True) is every


def test_roles_when_an_operator_has_weights_are_told_by_place():
    conv = helper.make_node("Conv", ["x", "w", "b"], ["y"])
    assert [find_role(conv, place) for place in range(3)] == ["data", "weight", "bias"]
    clip = helper.make_node("Clip", ["x", "low", "high"], ["y"])
    assert [find_role(clip, place) for place in range(3)] == ["data", "plain", "plain"]
    odd = helper.make_node("Conv", ["x", "w"], ["y"], domain="example")
    assert find_role(odd, 1) == "data"


def test_relu_when_its_grid_begins_at_zero_goes_into_it():
    model = graph([node("Conv", "x w b", "c"), node("Relu", "c", "y")], WEIGHTS)
    found = placed(model, ranges={"y": (0.0, 1.0)})
    assert found.pairs == {"x": "x", "y": "y"}
    assert (found.merged, found.removed) == ({"c": "y"}, {1})


@pytest.mark.parametrize(
    ("reason", "settings"),
    [
        ("the grid goes below zero", {"ranges": {"y": (-0.5, 1.0)}}),
        ("ranges are symmetric", {"merges": False}),
        ("it is excluded", {"excluded": ["y"]}),
    ],
)
def test_relu_when_integers_cannot_do_its_work_stays(reason, settings):
    model = graph([node("Conv", "x w b", "c"), node("Relu", "c", "y")], WEIGHTS)
    found = placed(model, **{"ranges": {"y": (0.0, 1.0)}, **settings})
    assert not found.removed, reason
    assert "c" in found.pairs


@pytest.mark.parametrize("outputs", [("y", "c"), ("y", "z")])
def test_relu_when_another_needs_its_input_stays(outputs):
    nodes = [node("Conv", "x w b", "c"), node("Relu", "c", "y"), node("Neg", "c", "z")]
    nodes = nodes[:2] if "c" in outputs else nodes
    found = placed(graph(nodes, WEIGHTS, outputs=outputs), low=0.0)
    assert not found.removed


@pytest.mark.parametrize(
    ("low", "high", "merges"),
    [(-1.0, 1.0, True), (-9.0, 9.0, True), (-0.5, 1.0, False), (-1.0, 0.5, False), (0.2, 1, False)],
)
def test_clip_when_its_bounds_hold_the_grid_goes_into_it(low, high, merges):
    bounds = [("low", np.float32(low)), ("high", np.float32(high))]
    model = graph([node("Conv", "x w b", "c"), node("Clip", "c low high", "y")], WEIGHTS + bounds)
    assert bool(placed(model).removed) is merges


def test_clip_when_a_bound_is_missing_or_computed_is_judged_by_what_is_known():
    nodes = [node("Conv", "x w b", "c"), node("Clip", "c  high", "y")]
    assert placed(graph(nodes, [*WEIGHTS, ("high", np.float32(2))])).removed
    nodes.insert(0, node("ReduceMax", "x", "high", keepdims=0))
    assert not placed(graph(nodes, WEIGHTS)).removed


def test_values_when_only_moved_share_the_grid_of_where_they_came_from():
    nodes = [
        node("Add", "x x", "a"),
        node("Transpose", "a", "t"),
        node("MaxPool", "t", "m", kernel_shape=[2, 2]),
        node("Split", "m", "s1 s2", axis=1),
        node("Concat", "s1 s2", "y", axis=1),
    ]
    found = placed(graph(nodes))
    assert found.pairs == {"x": "x", "a": "a", "t": "a", "m": "a", "s1": "a", "s2": "a", "y": "y"}


def test_values_when_only_moved_share_a_grid_of_16_bits_too():
    nodes = [
        node("Add", "x x", "a"),
        node("Transpose", "a", "t"),
        node("MaxPool", "t", "m", kernel_shape=[2, 2]),
    ]
    assert placed(graph(nodes), wide={"t", "m"}).pairs == {"x": "x", "a": "a", "t": "t", "m": "t"}


def test_values_when_moved_before_they_are_integer_stay_float():
    nodes = [node("Transpose", "x", "t"), node("Neg", "t", "y")]
    assert not placed(graph(nodes)).pairs


def test_resize_when_cubic_has_a_grid_of_its_own():
    scales = [("scales", np.float32([1, 1, 2, 2]))]
    for mode, source in (("nearest", "a"), ("linear", "a"), ("cubic", "y")):
        nodes = [node("Add", "x x", "a"), node("Resize", "a  scales", "y", mode=mode)]
        assert placed(graph(nodes, scales)).pairs["y"] == source


def test_where_when_a_branch_is_float_is_left_alone():
    mask = [("mask", np.ones((1, 1, 1, 1), bool)), ("far", np.float32(-1e30))]
    nodes = [node("Add", "x x", "a"), node("Where", "mask a far", "y")]
    found = placed(graph(nodes, mask))
    assert "y" not in found.pairs
    assert not found.constants


def test_constants_when_several_nodes_read_them_are_shared_if_they_may_be():
    nodes = [
        node("Add", "x m", "a"),
        node("Mul", "a m", "c"),
        node("Conv", "c w b", "d"),
        node("Conv", "d w b", "y"),
    ]
    model = graph(nodes, [*WEIGHTS, ("m", np.ones((4, 1, 1), np.float32))])
    stems = {key: use.stem for key, use in placed(model).constants.items()}
    assert stems == {
        (0, 1): "m",
        (1, 1): "m",
        (2, 1): "w",
        (2, 2): "b",
        (3, 1): "w/y",
        (3, 2): "b/y",
    }
    alone = placed(model, shares_constants=False).constants
    assert (alone[0, 1].stem, alone[1, 1].stem) == ("m", "m/c")


def test_bias_when_the_dialect_has_float_ones_or_it_is_computed_is_no_integer():
    model = graph([node("Conv", "x w b", "y")], WEIGHTS)
    assert (0, 2) not in placed(model, biases=False).constants
    nodes = [node("Sin", "b", "computed"), node("Conv", "x w computed", "y")]
    assert set(placed(graph(nodes, WEIGHTS)).constants) == {(1, 1)}


def test_ranges_when_a_relu_or_clip_cuts_them_are_what_it_leaves():
    nodes = [
        node("Conv", "x w b", "c"),
        node("Relu", "c", "r"),
        node("Add", "r r", "a"),
        node("Relu", "a", "o"),
        node("Softmax", "o", "y"),
    ]
    model = graph(nodes, WEIGHTS, outputs=("y", "a"))
    ranges = dict.fromkeys("xcraoy", (-3.0, 4.0)) | {"r": (0.0, 4.0), "o": (0.0, 4.0)}
    tensors = read_tensors(model, infer_types(model), ranges)
    found = settle_ranges(nodes, range(5), tensors, ranges)
    assert found == {**ranges, "c": (0.0, 4.0), "y": (0.0, 1.0)}, "a is an output: it is not cut"
    assert settle_ranges(nodes, [0, 2], tensors, ranges) == ranges


def test_tensors_when_unpaired_keep_float_what_holds_the_same_values_and_no_more():
    nodes = [
        node("Conv", "x w b", "c"),
        node("Relu", "c", "r"),
        node("Flatten", "r", "f"),
        node("Slice", "f from to", "part"),
        node("Concat", "f part", "y", axis=1),
    ]
    limits = [("from", np.array([0, 0])), ("to", np.array([1, 2]))]
    model = graph(nodes, [*WEIGHTS, *limits])
    found = placed(model, unpaired=["r"], low=0.0)
    assert found.pairs == {"x": "x", "part": "part", "y": "y"}
    assert not found.removed


def test_types_when_not_float32_are_never_integers():
    model = graph([node("Add", "x x", "a"), node("Mul", "a a", "y")])
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = TensorProto.DOUBLE
    assert not placed(model).pairs
    assert isinstance(model, onnx.ModelProto)

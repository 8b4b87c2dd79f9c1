"""Which tensors need not be observed, and that their statistics are those they would have had."""

from __future__ import annotations

import math

import numpy as np
import onnx
from edgepack.quantization.ranges.collecting import collect
from edgepack.quantization.ranges.following import (
    Bounds,
    Join,
    find_clamps,
    find_cuts,
    find_joins,
    find_moves,
)
from onnx import TensorProto, helper

from tests.support.nets import tiny_models

FLOAT = TensorProto.FLOAT


def inferred(path, nodes, inputs, outputs, constants=(), **versions):
    """A model with the shapes of its tensors, and all of their names."""
    values = [[(name, FLOAT, shape) for name, shape in side.items()] for side in (inputs, outputs)]
    tiny_models.save(path, nodes, *values, constants, **versions)
    model = onnx.shape_inference.infer_shapes(onnx.load(path))
    onnx.save(model, path)
    return model, [*inputs, *(name for node in model.graph.node for name in node.output)]


def test_clamps_when_bounds_are_constants_are_found_in_both_forms(tmp_path):
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Relu", ["a"], ["again"]),
        helper.make_node("Clip", ["x", "", "two"], ["b"]),
        helper.make_node("Clip", ["x", "two"], ["c"]),
        helper.make_node("Clip", ["x", "", "free"], ["d"]),
    ]
    shape = {"x": [1, 4]}
    constants = [("two", np.array(2, np.float32))]
    outputs = {name: [1, 4] for name in ("again", "b", "c", "d")}
    model, names = inferred(tmp_path / "a.onnx", nodes, {**shape, "free": []}, outputs, constants)
    assert find_clamps(model, names) == {
        "a": Bounds("x", 0.0, math.inf),
        "b": Bounds("x", -math.inf, 2.0),
        "c": Bounds("x", 2.0, math.inf),
    }
    assert find_clamps(model, ["a", "b"]) == {}, "what they read is not observed"
    nodes = [helper.make_node("Clip", ["x"], ["y"], min=-1.0, max=6.0)]
    old, names = inferred(tmp_path / "b.onnx", nodes, shape, {"y": [1, 4]}, opset=10)
    assert find_clamps(old, names) == {"y": Bounds("x", -1.0, 6.0)}


def test_cut_when_something_else_reads_a_tensor_is_not(tmp_path):
    nodes = [
        helper.make_node("Neg", ["x"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Relu", ["b"], ["c"]),
        helper.make_node("Neg", ["x"], ["d"]),
        helper.make_node("Relu", ["d"], ["e"]),
        helper.make_node("Add", ["d", "e"], ["f"]),
        helper.make_node("Relu", ["x"], ["g"]),
        helper.make_node("Neg", ["x"], ["h"]),
        helper.make_node("Relu", ["h"], ["i"]),
        helper.make_node("Neg", ["x"], ["j"]),
        helper.make_node("Clip", ["j", "", "two"], ["k"]),
    ]
    constants = [("two", np.array(2, np.float32))]
    outputs = {name: [1, 4] for name in "cfghik"}
    model, names = inferred(tmp_path / "net.onnx", nodes, {"x": [1, 4]}, outputs, constants)
    assert find_cuts(model, names) == {"a": "b", "b": "c"}, (
        "'d' and the output 'h' are read elsewhere"
    )
    samples = [{"x": np.array([[-3, -1, 0.5, 4]], np.float32)}]
    found = collect(tmp_path / "net.onnx", samples, names)
    # -x is 3, 1, -0.5 and -4.
    assert {name: (found[name].low, found[name].high) for name in "abcd"} == {
        "a": (0, 3),
        "b": (0, 3),
        "c": (0, 3),
        "d": (-4, 3),
    }


def test_joins_when_a_part_is_not_observed_or_has_no_channels_are_none(tmp_path):
    nodes = [
        helper.make_node("Concat", ["x", "x"], ["twice"], axis=-3),
        helper.make_node("Concat", ["x", "w"], ["mixed"], axis=1),
        helper.make_node("Concat", ["flat", "flat"], ["low"], axis=1),
    ]
    inputs = {"x": [1, 2, 3, 3], "flat": [1, 5, 6]}
    outputs = {"twice": [1, 4, 3, 3], "mixed": [1, 3, 3, 3], "low": [1, 10, 6]}
    constants = [("w", np.ones((1, 1, 3, 3), np.float32))]
    model, names = inferred(tmp_path / "net.onnx", nodes, inputs, outputs, constants)
    assert find_joins(model, names) == {"twice": Join(("x", "x"), 1)}


def test_moves_when_only_the_output_shows_channels_are_none(tmp_path):
    nodes = [
        helper.make_node("Reshape", ["x", "square"], ["r"]),
        helper.make_node("Transpose", ["r"], ["t"], perm=[0, 2, 1]),
        helper.make_node("Reshape", ["flat", "square"], ["shown"]),
    ]
    constants = [("square", np.array([1, 4, 6]))]
    inputs = {"x": [1, 2, 3, 4], "flat": [1, 24]}
    outputs = {"t": [1, 6, 4], "shown": [1, 4, 6]}
    model, names = inferred(tmp_path / "net.onnx", nodes, inputs, outputs, constants)
    assert find_moves(model, names) == {"r": "x", "t": "r"}
    feeds = [
        {
            name: np.random.default_rng(n).standard_normal(shape, np.float32)
            for name, shape in inputs.items()
        }
        for n in range(3)
    ]
    found = collect(tmp_path / "net.onnx", feeds, names)
    direct = collect(tmp_path / "net.onnx", feeds, ["t"])["t"]
    assert (found["t"].low, found["t"].width) == (direct.low, direct.width)
    np.testing.assert_array_equal(found["t"].counts, direct.counts)
    assert found["t"].channel_axis is None
    assert found["shown"].channel_axis == 1


def test_join_when_a_part_is_empty_at_first_is_as_if_observed(tmp_path):
    nodes = [
        helper.make_node("Concat", ["past", "new"], ["rows"], axis=2),
        helper.make_node("Concat", ["past", "new"], ["heads"], axis=1),
    ]
    dims = [1, "heads", "steps", 4]
    outputs = {name: [1, "h", "s", 4] for name in ("rows", "heads")}
    model, _ = inferred(tmp_path / "net.onnx", nodes, {"past": dims, "new": dims}, outputs)
    assert find_joins(model, ["past", "new", "rows", "heads"]).keys() == {"rows", "heads"}
    random = np.random.default_rng(0)
    for axis, name in ((2, "rows"), (1, "heads")):
        feeds = []
        for size in (0, 2):
            shape = [1, 3, 3, 4]
            shape[axis] = size
            past = random.standard_normal(shape, np.float32)
            feeds.append({"past": past, "new": random.standard_normal((1, 3, 3, 4), np.float32)})
        followed = collect(one_output(model, name, tmp_path), feeds, ["past", "new", name])[name]
        direct = collect(one_output(model, name, tmp_path), feeds, [name])[name]
        np.testing.assert_array_equal(followed.counts, direct.counts)
        assert followed.channel_axis == direct.channel_axis == (1 if axis == 2 else None)
        if axis == 2:
            np.testing.assert_array_equal(followed.channel_low, direct.channel_low)


def one_output(model, name, folder):
    """Write a model that has only the node and output of a name."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for values, key in (
        (copy.graph.output, lambda v: v.name),
        (copy.graph.node, lambda n: n.output[0]),
    ):
        kept = [value for value in values if key(value) == name]
        del values[:]
        values.extend(kept)
    onnx.save(copy, folder / f"{name}.onnx")
    return folder / f"{name}.onnx"

"""Models with branches that a setting or a shape decides."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.support.nets.tiny_models import save

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
WIDTH = 4


def _branch(name: str, nodes, outputs, weights=()) -> onnx.GraphProto:
    values = [helper.make_tensor_value_info(output, FLOAT, None) for output in outputs]
    tensors = [numpy_helper.from_array(array, key) for key, array in weights]
    return helper.make_graph(nodes, name, [], values, tensors)


def rated(path: Path, *, shape=("batch", WIDTH)) -> Path:
    """``x`` [batch, 4] and ``rate`` int64 [] to ``y``, and ``state`` [1, 4] to ``after``.

    At 16000 x goes through one matrix, else through another, and a wide x (3 rows and more) gets 1
    added. Both branches and the graph have tensors of the same names.
    """
    random = np.random.default_rng(4)
    node = helper.make_node

    def layer(name: str, scale: float) -> onnx.GraphProto:
        weight = (random.standard_normal((WIDTH, WIDTH)) * scale).astype(np.float32)
        wide = _branch("wide", [node("Add", ["mixed", "one"], ["more"], "add")], ["more"])
        narrow = _branch("narrow", [node("Identity", ["mixed"], ["same"], "same")], ["same"])
        nodes = [
            node("MatMul", ["x", "w"], ["mixed"], "mix"),
            node("Shape", ["mixed"], ["shape"], "shape"),
            node("Gather", ["shape", "zero"], ["rows"], "rows"),
            node("Greater", ["rows", "two"], ["is_wide"], "is_wide"),
            node("If", ["is_wide"], ["t"], "width", then_branch=wide, else_branch=narrow),
        ]
        nodes.append(node("Identity", ["x"], ["kept"], "kept"))
        return _branch(name, nodes, ["t", "kept"], [("w", weight)])

    nodes = [
        node("Equal", ["rate", "high"], ["is_high"], "is_high"),
        node(
            "If",
            ["is_high"],
            ["z", "as_given"],
            "by_rate",
            then_branch=layer("high_rate", 1.0),
            else_branch=layer("low_rate", 3.0),
        ),
        node("Add", ["z", "as_given"], ["mixed_too"], "t"),
        node("Add", ["mixed_too", "state"], ["y"], "y"),
        node("ReduceMean", ["y"], ["after"], "after", axes=[0], keepdims=1),
    ]
    constants = [
        ("high", np.array(16000)),
        ("zero", np.array(0)),
        ("two", np.array(2)),
        ("one", np.float32(1)),
    ]
    return save(
        path,
        nodes,
        [("x", FLOAT, list(shape)), ("rate", INT64, []), ("state", FLOAT, [1, WIDTH])],
        [("y", FLOAT, list(shape)), ("after", FLOAT, [1, WIDTH])],
        constants,
    )

"""Models as converters of scikit-learn, LightGBM and TensorFlow write them, built by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

ML = "ai.onnx.ml"
FLOAT, INT64, STRING = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING


def _save(path: Path, graph, producer="", **extra) -> Path:
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(ML, extra.get("ml", 1))]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8, producer_name=producer)
    onnx.save(model, path)
    return path


def save_classifier(path: Path, labels: list) -> Path:
    """x [?, 4] to a label [?] and dictionaries of probabilities, as skl2onnx writes them."""
    texts = isinstance(labels[0], str)
    weights = np.random.default_rng(5).standard_normal(4 * len(labels)).tolist()
    classes = {f"classlabels_{'strings' if texts else 'ints'}": labels}
    keys = {f"classlabels_{'strings' if texts else 'int64s'}": labels}
    nodes = [
        helper.make_node(
            "LinearClassifier",
            ["x"],
            ["texts", "scores"],
            "linear",
            domain=ML,
            coefficients=weights,
            intercepts=[0.0] * len(labels),
            post_transform="SOFTMAX",
            **classes,
        ),
        helper.make_node("Identity", ["texts"], ["label"], "label"),
        helper.make_node("ZipMap", ["scores"], ["probabilities"], "zip", domain=ML, **keys),
    ]
    key = STRING if texts else INT64
    values = helper.make_tensor_type_proto(FLOAT, None)
    mapped = helper.make_map_type_proto(key, values)
    outputs = [
        helper.make_tensor_value_info("label", key, [1]),
        helper.make_value_info("probabilities", helper.make_sequence_type_proto(mapped)),
    ]
    inputs = [helper.make_tensor_value_info("x", FLOAT, [None, 4])]
    return _save(path, helper.make_graph(nodes, "g", inputs, outputs), "skl2onnx")


COLOURS = ["red", "green", "blue"]


def _make_table(op: str, domain: str) -> tuple:
    table = numpy_helper.from_array(np.array(COLOURS, object), "table")
    return [helper.make_node(op, ["table", "best"], ["text"], "pick", domain=domain)], [table]


def _make_encoder(**attributes) -> tuple:
    return [
        helper.make_node("LabelEncoder", ["best"], ["text"], "pick", domain=ML, **attributes)
    ], []


LABEL_MAKERS = {
    "ArrayFeatureExtractor": lambda: _make_table("ArrayFeatureExtractor", ML),
    "Gather": lambda: _make_table("Gather", ""),
    "LabelEncoder-1": lambda: _make_encoder(classes_strings=COLOURS),
    "LabelEncoder-2": lambda: _make_encoder(keys_int64s=[0, 1, 2], values_strings=COLOURS),
}


def save_labels(path: Path, maker: str) -> Path:
    """x [n, 3] to the colour of its largest value, a text, from one of LABEL_MAKERS."""
    nodes, initializers = LABEL_MAKERS[maker]()
    shape = numpy_helper.from_array(np.array([-1], np.int64), "shape")
    nodes = [
        helper.make_node("ArgMax", ["x"], ["best"], "best", axis=1, keepdims=0),
        *nodes,
        helper.make_node("Reshape", ["text", "shape"], ["label"], "flat"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", FLOAT, ["n", 3])],
        [helper.make_tensor_value_info("label", STRING, ["n"])],
        [*initializers, shape],
    )
    return _save(path, graph, ml=2 if maker == "LabelEncoder-2" else 1)


def save_sequence(path: Path) -> Path:
    """x [n, 4] to its negative, a sequence of two tensors, and its absolute value."""
    nodes = [
        helper.make_node("Neg", ["x"], ["first"], "neg"),
        helper.make_node("Exp", ["x"], ["second"], "exp"),
        helper.make_node("SequenceConstruct", ["first", "second"], ["both"], "pair"),
        helper.make_node("Abs", ["x"], ["last"], "abs"),
    ]
    tensor = helper.make_tensor_type_proto(FLOAT, None)
    outputs = [
        helper.make_tensor_value_info("first", FLOAT, ["n", 4]),
        helper.make_value_info("both", helper.make_sequence_type_proto(tensor)),
        helper.make_tensor_value_info("last", FLOAT, ["n", 4]),
    ]
    inputs = [helper.make_tensor_value_info("x", FLOAT, ["n", 4])]
    return _save(path, helper.make_graph(nodes, "g", inputs, outputs))


def save_counted(path: Path, *, least: int = 1) -> Path:
    """x [unk__6, unk__7, 4] to its negative and its values' sum by column; it needs ``least``."""
    ends = [np.array([each], np.int64) for each in (0, 1)]
    nodes = [
        helper.make_node("Neg", ["x"], ["y"], "neg"),
        helper.make_node("Gather", ["x", "row"], ["rows"], "rows", axis=1),
        helper.make_node("ReduceSum", ["rows", "axes"], ["z"], "sum", keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", FLOAT, ["unk__6", "unk__7", 4])],
        [
            helper.make_tensor_value_info("y", FLOAT, ["unk__8", "unk__7", 4]),
            helper.make_tensor_value_info("z", FLOAT, ["unk__9"]),
        ],
        [
            numpy_helper.from_array(np.array([least - 1], np.int64), "row"),
            numpy_helper.from_array(np.concatenate(ends), "axes"),
        ],
    )
    return _save(path, graph, "tf2onnx")


def save_two(path: Path, *, joined: bool) -> Path:
    """a [unk__1, 3] and b [unk__2, 3] to their sum, or to the products of all their rows."""
    turned = [helper.make_node("Transpose", ["b"], ["t"], "turn")]
    product = [*turned, helper.make_node("MatMul", ["a", "t"], ["y"], "all")]
    graph = helper.make_graph(
        [helper.make_node("Add", ["a", "b"], ["y"], "add")] if joined else product,
        "g",
        [
            helper.make_tensor_value_info("a", FLOAT, ["unk__1", 3]),
            helper.make_tensor_value_info("b", FLOAT, ["unk__2", 3]),
        ],
        [helper.make_tensor_value_info("y", FLOAT, ["unk__3", "unk__4"])],
    )
    return _save(path, graph, "tf2onnx")

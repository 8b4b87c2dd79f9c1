"""Small models of trees."""

from __future__ import annotations

import onnx
from onnx import TensorProto, helper


def write_trees(folder, trees, *, op="TreeEnsembleRegressor", batch="batch", features=3, before=()):
    """Write a model of trees, each a list of nodes ``(mode, feature, value, true, false)``."""
    nodes = [(t, n, *node) for t, tree in enumerate(trees) for n, node in enumerate(tree)]
    leaves = [(t, n, value) for t, n, mode, _, value, *_ in nodes if mode == "LEAF"]
    part = "target" if op.endswith("Regressor") else "class"
    own = {"n_targets": 1} if part == "target" else {"classlabels_int64s": [0, 1, 2]}
    outputs = ["y"] if part == "target" else ["label", "y"]
    node = helper.make_node(
        op, ["t" if before else "x"], outputs, domain="ai.onnx.ml",
        nodes_treeids=[n[0] for n in nodes], nodes_nodeids=[n[1] for n in nodes],
        nodes_modes=[n[2] for n in nodes], nodes_featureids=[n[3] for n in nodes],
        nodes_values=[0.0 if n[2] == "LEAF" else float(n[4]) for n in nodes],
        nodes_truenodeids=[n[5] for n in nodes], nodes_falsenodeids=[n[6] for n in nodes],
        **{
            f"{part}_treeids": [leaf[0] for leaf in leaves],
            f"{part}_nodeids": [leaf[1] for leaf in leaves],
            f"{part}_ids": [0 if part == "target" else int(leaf[2]) for leaf in leaves],
            f"{part}_weights": [float(leaf[2]) if part == "target" else 1.0 for leaf in leaves],
        }, **own,
    )  # fmt: skip
    declared = {
        "y": (TensorProto.FLOAT, [batch, 1 if part == "target" else 3]),
        "label": (TensorProto.INT64, [batch]),
    }
    graph = helper.make_graph(
        [*before, node],
        "trees",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, features])],
        [helper.make_tensor_value_info(name, *declared[name]) for name in outputs],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    path = folder / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path


def split(mode, feature, value, true=1, false=2):
    """Return a node that compares a feature, with the places of its children."""
    return (mode, feature, value, true, false)


def leaf(value):
    """Return a leaf: of a regression with its number, of a classifier with its class."""
    return ("LEAF", 0, value, 0, 0)

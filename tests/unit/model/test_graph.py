"""The graph that backends judge: types, shapes, constants, and the pieces a provider gets."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from edgepack.backends.base import find_partitions
from edgepack.model.graph import make_partitioned_graph, read_graph
from onnx import TensorProto, helper

from tests.support.nets import tiny_models


def chain(tmp_path, ops, **options):
    """x -> op -> op -> ... -> y, each node named after its op and place."""
    names = ["x", *(f"t{n}" for n in range(len(ops) - 1)), "y"]
    nodes = [
        helper.make_node(op, [names[n]], [names[n + 1]], f"{op}-{n}") for n, op in enumerate(ops)
    ]
    value = (TensorProto.FLOAT, ["n", 4])
    return tiny_models.save(tmp_path / "m.onnx", nodes, [("x", *value)], [("y", *value)], **options)


def test_graph_when_read_knows_dtypes_shapes_and_constants(tmp_path):
    graph = read_graph(onnx.load(tiny_models.conv_net(tmp_path / "net.onnx")))
    assert [node.op for node in graph.nodes][:3] == ["Conv", "BatchNormalization", "Relu"]
    assert graph.shape("c") == ("batch", 8, 8, 8)
    assert graph.dtype("w1") == "float32"
    assert graph.is_constant("w1")
    assert not graph.is_static("c")
    assert graph.is_static("w1")
    assert graph.nodes[0].attributes["pads"] == [1, 1, 1, 1]
    assert [spec.name for spec in graph.inputs] == ["image"]
    assert graph.producers["n"].name == "bn"
    assert [node.name for node in graph.consumers["n"]] == ["relu"]


def test_graph_when_it_has_constant_nodes_holds_them_as_constants(tmp_path):
    value = onnx.numpy_helper.from_array(np.float32([2]), "two")
    nodes = [
        helper.make_node("Constant", [], ["c"], value=value),
        helper.make_node("Mul", ["x", "c"], ["y"]),
    ]
    spec = (TensorProto.FLOAT, [4])
    path = tiny_models.save(tmp_path / "m.onnx", nodes, [("x", *spec)], [("y", *spec)])
    graph = read_graph(onnx.load(path))
    assert [str(node) for node in graph.nodes] == ["'Mul_0' (Mul)"]
    assert graph.constants["c"].tolist() == [2]


def test_partitioned_graph_when_read_has_no_identity_left(tmp_path):
    path = chain(tmp_path, ["Relu", "Identity", "Sigmoid"])
    assert [node.op for node in make_partitioned_graph(path).nodes] == ["Relu", "Sigmoid"]


@pytest.mark.parametrize("rows", [3, "n"])
def test_partitioned_graph_has_shapes_behind_what_onnx_does_not_know(tmp_path, rows):
    """FusedGemm is onnxruntime's own: onnx infers nothing behind it, and providers know all."""
    nodes = [
        helper.make_node("FusedGemm", ["x", "w"], ["a"], domain="com.microsoft", activation="Relu"),
        helper.make_node("Softmax", ["a"], ["b"]),
        helper.make_node("Sin", ["b"], ["y"]),
    ]
    ends = [[(name, TensorProto.FLOAT, [rows, size])] for name, size in (("x", 4), ("y", 5))]
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    weights = [helper.make_tensor("w", TensorProto.FLOAT, [4, 5], [1.0] * 20)]
    made = helper.make_graph(
        nodes, "g", *([helper.make_tensor_value_info(*e) for e in end] for end in ends), weights
    )
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(made, opset_imports=imports, ir_version=9), path)
    assert read_graph(onnx.load(path)).shape("b") is None
    graph = make_partitioned_graph(path)
    assert [graph.shape(name) for name in "ab"] == [(rows, 5)] * 2
    assert {graph.dtype(name) for name in "ab"} == {"float32"}


def test_partitions_when_a_node_is_left_out_are_two_on_either_side(tmp_path):
    graph = read_graph(onnx.load(chain(tmp_path, ["Relu", "Sigmoid", "Sin", "Relu", "Exp"])))
    taken = [node for node in graph.nodes if node.op != "Sin"]
    names = [[node.name for node in piece] for piece in find_partitions(graph, taken)]
    assert names == [["Relu-0", "Sigmoid-1"], ["Relu-3", "Exp-4"]]
    assert find_partitions(graph, []) == []
    assert len(find_partitions(graph, graph.nodes)) == 1


def test_partitions_when_a_branch_goes_around_join_what_does_not_wait_for_it(tmp_path):
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], "first"),
        helper.make_node("Sin", ["a"], ["b"], "outside"),
        helper.make_node("Exp", ["a"], ["c"], "beside"),
        helper.make_node("Add", ["b", "c"], ["y"], "last"),
    ]
    spec = (TensorProto.FLOAT, [4])
    path = tiny_models.save(tmp_path / "m.onnx", nodes, [("x", *spec)], [("y", *spec)])
    graph = read_graph(onnx.load(path))
    taken = [node for node in graph.nodes if node.name != "outside"]
    names = [[node.name for node in piece] for piece in find_partitions(graph, taken)]
    assert names == [["first", "beside"], ["last"]]

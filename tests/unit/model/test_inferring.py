"""Shape inference of models of any size."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from edgepack.model.graph import read_graph
from edgepack.model.inferring import infer_graph
from edgepack.steps.graph.prepared import fix_dims
from edgepack.steps.recipes.bucketed import fix_model
from onnx import TensorProto, helper

from tests.support.nets import tiny_models

FLOAT = TensorProto.FLOAT


def shapes(values):
    return {
        value.name: [dim.dim_value or dim.dim_param for dim in value.type.tensor_type.shape.dim]
        for value in values
    }


def reshaped_product(path, width):
    """``y = (x @ w)`` as (batch, 2, width / 2); ``w`` is (4, width)."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"], "product"),
        helper.make_node("Reshape", ["p", "sizes"], ["y"], "split"),
    ]
    constants = [
        ("w", np.ones((4, width), np.float32)),
        ("sizes", np.array([0, 2, width // 2])),
    ]
    return onnx.load(
        tiny_models.save(
            path, nodes, [("x", FLOAT, ["batch", 4])], [("y", FLOAT, ["batch", 2, None])], constants
        )
    )


def test_shapes_when_inferred_without_large_weights_are_those_that_onnx_infers(tmp_path):
    model = reshaped_product(tmp_path / "net.onnx", 1024)
    found, wanted = infer_graph(model), onnx.shape_inference.infer_shapes(model).graph
    assert found.ByteSize() < 1024
    assert shapes(found.value_info) == shapes(wanted.value_info) == {"p": ["batch", 1024]}
    assert shapes(found.output) == shapes(wanted.output)
    assert shapes(found.input) == {"x": ["batch", 4]}


def test_graph_when_a_copy_gets_sizes_keeps_its_weights(tmp_path):
    model = reshaped_product(tmp_path / "net.onnx", 1024)
    copy = fix_model(model, {"batch": 3})
    assert shapes(copy.graph.output) == {"y": [3, 2, 512]}
    assert shapes(copy.graph.value_info) == {"p": [3, 1024]}
    assert list(copy.graph.initializer) == list(model.graph.initializer)


def test_sizes_when_onnx_infers_nothing_are_those_declared(tmp_path):
    model = reshaped_product(tmp_path / "net.onnx", 1024)
    model.graph.node[0].domain = "com.microsoft"  # without an opset, as onnxruntime allows
    fix_dims(model, {"batch": 3})
    assert shapes(model.graph.input) == {"x": [3, 4]}
    assert shapes(model.graph.output) == {"y": [3, 2, ""]}


@pytest.mark.slow(reason="takes 5 GB")
def test_shapes_when_weights_are_larger_than_a_message_are_inferred(tmp_path):
    model = reshaped_product(tmp_path / "net.onnx", 1024)
    weights = model.graph.initializer[0]
    width = 140_000_000
    weights.raw_data = bytes(4 * 4 * width)
    weights.dims[:] = [4, width]
    model.graph.initializer[1].raw_data = np.array([0, 2, width // 2]).tobytes()
    fix_dims(model, {"batch": 1})
    assert shapes(model.graph.output) == {"y": [1, 2, width // 2]}
    assert read_graph(model).tensors["p"].shape == (1, width)

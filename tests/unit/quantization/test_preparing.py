"""What a model becomes before it is quantized: the same function, its constants in one place."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from edgepack.model.editing import take_name
from edgepack.quantization.qdq.preparation import (
    infer_types,
    list_body_reads,
    prepare_model,
    read_declared_types,
)
from onnx import TensorProto, helper, numpy_helper

from tests.support.nets import tiny_models


def made(tmp_path, nodes, constants=(), x=(2, 4), y=(2, 5), **options):
    value = (TensorProto.FLOAT, x)
    path = tmp_path / "net.onnx"
    outputs = [("y", TensorProto.FLOAT, y)]
    tiny_models.save(path, nodes, [("x", *value)], outputs, constants, **options)
    return onnx.load(path)


def outputs_of(model, x):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    providers = ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=providers)
    return session.run(None, {"x": x})


def random(*shape):
    return np.random.default_rng(4).standard_normal(shape).astype(np.float32)


CONSTANTS = {
    "value": ({"value": numpy_helper.from_array(np.float32([1, 2, 3, 4]))}, [1, 2, 3, 4]),
    "float": ({"value_float": 2.5}, 2.5),
    "floats": ({"value_floats": [1.0, 2.0, 3.0, 4.0]}, [1, 2, 3, 4]),
}


@pytest.mark.parametrize("kind", CONSTANTS)
def test_constants_when_they_are_nodes_become_initializers(tmp_path, kind):
    attributes, expected = CONSTANTS[kind]
    nodes = [
        helper.make_node("Constant", [], ["c"], **attributes),
        helper.make_node("Add", ["x", "c"], ["y"]),
    ]
    model = made(tmp_path, nodes, y=(2, 4))
    before = outputs_of(model, random(2, 4))
    model = prepare_model(model)
    assert [node.op_type for node in model.graph.node] == ["Add"]
    (tensor,) = model.graph.initializer
    assert tensor.name == "c"
    np.testing.assert_array_equal(numpy_helper.to_array(tensor), np.float32(expected))
    np.testing.assert_array_equal(outputs_of(model, random(2, 4))[0], before[0])


def test_constants_when_they_are_outputs_stay_outputs(tmp_path):
    constant = numpy_helper.from_array(random(2, 4))
    nodes = [
        helper.make_node("Constant", [], ["c"], value=constant),
        helper.make_node("Add", ["x", "c"], ["y"]),
    ]
    model = made(tmp_path, nodes, y=(2, 4))
    model.graph.output.append(helper.make_tensor_value_info("c", TensorProto.FLOAT, (2, 4)))
    model = prepare_model(model)
    assert len(model.graph.node) == 1
    np.testing.assert_array_equal(outputs_of(model, random(2, 4))[1], random(2, 4))


def test_constants_when_they_are_text_or_sparse_stay_nodes(tmp_path):
    nodes = [
        helper.make_node("Constant", [], ["c"], value_string="text"),
        helper.make_node("Relu", ["x"], ["y"]),
    ]
    model = prepare_model(made(tmp_path, nodes, y=(2, 4)))
    assert [node.op_type for node in model.graph.node] == ["Constant", "Relu"]


def test_initializers_when_they_are_inputs_of_an_old_ir_are_inputs_no_more(tmp_path):
    model = made(tmp_path, [helper.make_node("Gemm", ["x", "w"], ["y"])], [("w", random(4, 5))])
    model.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, (4, 5)))
    model.ir_version = 3
    before = outputs_of(model, random(2, 4))
    model = prepare_model(model)
    assert [value.name for value in model.graph.input] == ["x"]
    assert model.ir_version == 4
    np.testing.assert_array_equal(outputs_of(model, random(2, 4))[0], before[0])


def test_nodes_when_without_names_or_with_the_same_get_their_own(tmp_path):
    names = ["", "Relu_0", "same", "same", ""]
    tensors = ["x", "a", "b", "c", "d", "y"]
    nodes = [
        helper.make_node("Relu", [tensors[k]], [tensors[k + 1]], name)
        for k, name in enumerate(names)
    ]
    model = prepare_model(made(tmp_path, nodes, y=(2, 4)))
    found = [node.name for node in model.graph.node]
    assert len(set(found)) == 5
    assert found[1:3] == ["Relu_0", "same"]


GEMMS = {
    "alpha and beta": ((5,), {"alpha": 0.5, "beta": 2.0}),
    "one number": ((1,), {}),
    "no axes": ((), {"beta": 3.0}),
    "one row": ((1, 5), {}),
}


@pytest.mark.parametrize("kind", GEMMS)
def test_gemm_when_its_factors_and_bias_are_unusual_is_made_plain(tmp_path, kind):
    shape, attributes = GEMMS[kind]
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["g"], "odd", **attributes),
        helper.make_node("Gemm", ["x", "w", "b"], ["h"], "plain"),
        helper.make_node("Add", ["g", "h"], ["y"], "sum"),
    ]
    model = made(tmp_path, nodes, [("w", random(4, 5)), ("b", random(*shape))])
    (before,) = outputs_of(model, random(2, 4))
    model = prepare_model(model)
    shapes = {tensor.name: list(tensor.dims) for tensor in model.graph.initializer}
    for node in model.graph.node[:2]:
        assert not node.attribute
        assert shapes[node.input[2]] == [5]
    np.testing.assert_allclose(outputs_of(model, random(2, 4))[0], before, rtol=1e-5, atol=1e-5)


def test_gemm_when_its_bias_has_many_rows_keeps_it(tmp_path):
    nodes = [helper.make_node("Gemm", ["x", "w", "b"], ["y"], "g", beta=2.0)]
    model = prepare_model(made(tmp_path, nodes, [("w", random(4, 5)), ("b", random(2, 5))]))
    assert model.graph.node[0].input[2] == "b"
    assert model.graph.node[0].attribute[0].f == 2.0


def test_types_when_inferred_need_no_weights(tmp_path):
    """Weights are not looked at: here there are none at all behind their names."""
    nodes = [
        helper.make_node("Gemm", ["x", "w"], ["a"]),
        helper.make_node("Reshape", ["a", "shape"], ["b"]),
        helper.make_node("ArgMax", ["b"], ["c"]),
        helper.make_node("Cast", ["c"], ["y"], to=TensorProto.FLOAT),
    ]
    constants = [("w", random(4, 2000)), ("shape", np.array([-1, 4]))]
    model = made(tmp_path, nodes, constants, y=(1, 4))
    weights = model.graph.initializer[0]
    weights.ClearField("raw_data")
    weights.data_location = TensorProto.EXTERNAL
    weights.external_data.add(key="location", value="nowhere.bin")
    model = prepare_model(model)
    types = read_declared_types(model)
    assert (types["a"], types["c"]) == (TensorProto.FLOAT, TensorProto.INT64)
    shapes = {
        value.name: [d.dim_value for d in value.type.tensor_type.shape.dim]
        for value in model.graph.value_info
    }
    assert shapes["b"] == [1000, 4]


def test_types_when_an_operator_is_not_known_are_what_the_model_says(tmp_path):
    nodes = [
        helper.make_node("Odd", ["x"], ["a"], domain="example.odd"),
        helper.make_node("Relu", ["a"], ["y"]),
    ]
    model = made(tmp_path, nodes)
    assert infer_types(model) == {"x": TensorProto.FLOAT, "y": TensorProto.FLOAT}
    assert len(prepare_model(model).graph.node) == 2


def test_bodies_when_nested_tell_what_they_read():
    def graph(nodes, output):
        value = helper.make_tensor_value_info(output, TensorProto.FLOAT, None)
        return helper.make_graph(nodes, "g", [], [value])

    inner = graph([helper.make_node("Relu", ["deep"], ["i"])], "i")
    middle = helper.make_node("If", ["flag"], ["m"], then_branch=inner, else_branch=inner)
    node = helper.make_node(
        "If", ["c"], ["o"], then_branch=graph([middle], "m"), else_branch=graph([], "outer")
    )
    assert {"deep", "flag", "outer"} <= set(list_body_reads(node))
    assert "c" not in set(list_body_reads(node))


def test_free_name_when_taken_counts_on():
    taken = {"a", "a_1"}
    assert [take_name("a", taken), take_name("a", taken), take_name("b", taken)] == [
        "a_2",
        "a_3",
        "b",
    ]

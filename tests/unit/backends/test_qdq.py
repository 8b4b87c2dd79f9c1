from __future__ import annotations

import numpy as np
from edgepack.backends.base import Refusal
from edgepack.backends.qdq import NodeUnit, find_node_units, has_same_quantization, spread_refusals
from edgepack.model.graph import make_partitioned_graph
from onnx import TensorProto, helper, load

from tests.unit.backends.backend_models import (
    FLOAT,
    graph_of,
    quantized,
    quantized_graph,
    residual_net,
)

ZERO = ("z", np.uint8(0))
SCALE = ("s", np.float32(0.5))
OTHER = ("s2", np.float32(0.25))
SIGNED = ("zi", np.int8(0))


def dq(source: str, result: str, scale: str = "s", zero: str = "z"):
    return helper.make_node("DequantizeLinear", [source, scale, zero], [result], f"dq_{result}")


def q(source: str, result: str, scale: str = "s", zero: str = "z"):
    return helper.make_node("QuantizeLinear", [source, scale, zero], [result], f"q_{result}")


def unary(folder, op: str, shape, result_shape=None, *, scale="s", more=(), extra=(), **attributes):
    """x uint8 -> DQ -> op -> Q -> y, and what more is asked for."""
    nodes = [
        dq("x", "f"),
        helper.make_node(op, ["f", *(name for name, _ in more)], ["g"], "target", **attributes),
        q("g", "y", scale),
        *extra,
    ]
    outputs = [("y", TensorProto.UINT8, result_shape or shape)]
    outputs += [(node.output[0], FLOAT, None) for node in extra]
    constants = [SCALE, OTHER, ZERO, SIGNED, *more]
    return graph_of(folder, nodes, [("x", TensorProto.UINT8, shape)], outputs, constants)


def group_of(graph) -> NodeUnit | None:
    return next((unit for unit in find_node_units(graph) if unit.is_group), None)


def test_quantized_net_when_read_is_one_unit_per_operator(tmp_path):
    graph = quantized_graph(tmp_path, "uint8", "int8")
    units = find_node_units(graph)
    ops = [unit.op for unit in units]
    assert ops == [
        "QuantizeLinear",
        "Conv",
        "MaxPool",
        "Conv",
        "Add",
        "GlobalAveragePool",
        "Flatten",
        "Gemm",
        "Softmax",
        "DequantizeLinear",
    ]
    assert [unit.is_group for unit in units] == [False, *[True] * 8, False]
    assert sorted(n.index for unit in units for n in unit.nodes) == list(range(len(graph.nodes)))


def test_groups_when_the_cpu_has_them_all_are_those_that_onnxruntime_fuses(tmp_path):
    import onnxruntime

    model = quantized(residual_net(tmp_path), "uint8", "int8")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(tmp_path / "fused.onnx")
    options.log_severity_level = 4
    onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    fused = [node.op_type for node in load(tmp_path / "fused.onnx").graph.node]
    alone = [
        unit.op for unit in find_node_units(make_partitioned_graph(model)) if not unit.is_group
    ]
    assert sorted(alone) == sorted(op for op in fused if op.endswith("eLinear"))


def test_conv_group_when_read_names_quantized_tensors_and_scales(tmp_path):
    graph = quantized_graph(tmp_path, "uint8", "int8")
    conv = find_node_units(graph)[1]
    assert len(conv.dequantizers) == 3
    assert [graph.dtype(value.tensor) for value in conv.inputs] == ["uint8", "int8", "int32"]
    assert all(graph.is_constant(value.scale) for value in (*conv.inputs, *conv.outputs))
    assert graph.dtype(conv.outputs[0].tensor) == "uint8"


def test_signed_net_when_read_is_grouped_too(tmp_path):
    units = find_node_units(quantized_graph(tmp_path, "int8", "int8", symmetric=True))
    assert {"Conv", "Relu", "Gemm", "Softmax"} <= {unit.op for unit in units if unit.is_group}


def test_unary_when_between_dq_and_q_is_a_group(tmp_path):
    unit = group_of(unary(tmp_path, "Sigmoid", [1, 4], scale="s2"))
    assert [node.name for node in unit.nodes] == ["dq_f", "target", "q_y"]


def test_operator_when_unknown_to_onnxruntime_is_no_group(tmp_path):
    assert group_of(unary(tmp_path, "Identity", [1, 4])) is None


def test_copying_operator_when_scales_differ_is_no_group(tmp_path):
    shape = ("shape", np.array([4, 1], np.int64))
    same = unary(tmp_path, "Reshape", [1, 4], [4, 1], more=[shape])
    other = unary(tmp_path, "Reshape", [1, 4], [4, 1], scale="s2", more=[shape])
    assert group_of(same) is not None
    assert group_of(other) is None


def test_operator_when_its_float_output_is_read_too_is_no_group(tmp_path):
    extra = [helper.make_node("Relu", ["g"], ["h"], "reader")]
    assert group_of(unary(tmp_path, "Sigmoid", [1, 4], extra=extra)) is None


def test_operator_when_another_reads_its_dq_is_no_group(tmp_path):
    extra = [helper.make_node("Identity", ["f"], ["h"], "reader")]
    assert group_of(unary(tmp_path, "Sigmoid", [1, 4], extra=extra)) is None


def test_add_when_one_input_is_float_is_no_group(tmp_path):
    more = [("float", np.ones((1, 4), np.float32))]
    assert group_of(unary(tmp_path, "Add", [1, 4], more=more)) is None


def test_operator_when_dtypes_change_is_no_group(tmp_path):
    nodes = [dq("x", "f"), helper.make_node("Sigmoid", ["f"], ["g"]), q("g", "y", zero="zi")]
    inputs, outputs = [("x", TensorProto.UINT8, [1, 4])], [("y", TensorProto.INT8, [1, 4])]
    assert group_of(graph_of(tmp_path, nodes, inputs, outputs, [SCALE, ZERO, SIGNED])) is None


def clipped(folder, *clip):
    nodes = [
        dq("x", "f"),
        helper.make_node("Sigmoid", ["f"], ["g"], "target"),
        helper.make_node(clip[0], ["g", *clip[1:]], ["h"], "clip"),
        q("h", "y"),
    ]
    bounds = [("low", np.float32(0)), ("high", np.float32(6)), ("far", np.float32(200))]
    inputs, outputs = [("x", TensorProto.UINT8, [1, 4])], [("y", TensorProto.UINT8, [1, 4])]
    return group_of(graph_of(folder, nodes, inputs, outputs, [SCALE, ZERO, *bounds]))


def test_relu_when_the_quantization_cuts_as_much_belongs_to_the_group(tmp_path):
    unit = clipped(tmp_path, "Relu")
    assert unit.clip.name == "clip"
    assert [node.name for node in unit.nodes] == ["dq_f", "target", "clip", "q_y"]
    assert unit.outputs[0].tensor == "y"


def test_clip_when_it_cuts_more_than_the_quantization_breaks_the_group(tmp_path):
    assert clipped(tmp_path, "Clip", "low", "far") is not None
    assert clipped(tmp_path, "Clip", "low", "high") is None


def test_gemm_when_its_result_stays_float_is_a_group_but_conv_is_not(tmp_path):
    weights = ("w", np.ones((4, 4), np.uint8))
    for op, grouped in (("Gemm", True), ("MatMul", False)):
        nodes = [dq("x", "a"), dq("w", "b"), helper.make_node(op, ["a", "b"], ["y"], "target")]
        inputs, outputs = [("x", TensorProto.UINT8, [1, 4])], [("y", FLOAT, [1, 4])]
        graph = graph_of(tmp_path, nodes, inputs, outputs, [SCALE, ZERO, weights])
        assert (group_of(graph) is not None) == grouped


def test_arg_max_when_behind_a_dq_is_a_group_without_q(tmp_path):
    nodes = [dq("x", "f"), helper.make_node("ArgMax", ["f"], ["y"], "target", axis=1)]
    outputs = [("y", TensorProto.INT64, [1, 1])]
    graph = graph_of(tmp_path, nodes, [("x", TensorProto.UINT8, [1, 4])], outputs, [SCALE, ZERO])
    assert group_of(graph).quantizers == ()


def test_qlinear_operator_when_alone_names_its_own_scales(tmp_path):
    names = ["x", "s", "z", "w", "s", "z", "s2", "z", "bias"]
    weights = [("w", np.ones((1, 1, 1, 1), np.uint8)), ("bias", np.ones(1, np.int32))]
    nodes = [helper.make_node("QLinearConv", names, ["y"], "conv")]
    shape = (TensorProto.UINT8, [1, 1, 2, 2])
    constants = [SCALE, OTHER, ZERO, *weights]
    (unit,) = find_node_units(
        graph_of(tmp_path, nodes, [("x", *shape)], [("y", *shape)], constants)
    )
    assert not unit.is_group
    assert [value.tensor for value in unit.inputs] == ["x", "w", "bias"]
    assert unit.outputs[0].scale == "s2"


def test_refusals_when_spread_reach_every_node_of_the_unit(tmp_path):
    unit = group_of(unary(tmp_path, "Sigmoid", [1, 4]))
    refusal = Refusal("no", "remedy")
    assert spread_refusals({unit: refusal}) == dict.fromkeys((0, 1, 2), refusal)


def test_quantization_when_scales_are_equal_is_the_same(tmp_path):
    graph = unary(tmp_path, "Sigmoid", [1, 4])
    other = unary(tmp_path, "Sigmoid", [1, 4], scale="s2")
    assert has_same_quantization(graph, graph.nodes[2], graph.nodes[0])
    assert not has_same_quantization(other, other.nodes[2], other.nodes[0])

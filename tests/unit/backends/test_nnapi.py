from __future__ import annotations

import numpy as np
import pytest
from edgepack.backends import nnapi
from edgepack.backends.base import predict
from edgepack.model.graph import make_partitioned_graph
from edgepack.project.profile import DeviceKind
from onnx import TensorProto, helper

from tests.unit.backends.backend_models import (
    FLOAT,
    graph_of,
    one,
    quantized_graph,
    randoms,
    reasons,
    residual_net,
    variant_of,
)

IMAGE = [1, 4, 8, 8]
ANDROID = DeviceKind(os="android", arch="aarch64", min_version="29")


def why(graph, **more) -> str:
    return reasons(nnapi.BACKEND, graph, **more).get("n", "")


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def weights(*shape: int) -> list:
    return [("w", randoms(*shape))]


# --- models -----------------------------------------------------------------------------------


def test_float_net_when_static_goes_to_nnapi_in_one_piece(tmp_path):
    graph = make_partitioned_graph(residual_net(tmp_path))
    placement = predict(nnapi.BACKEND, graph, variant_of(nnapi.BACKEND))
    assert placement.share == 1
    assert placement.partitions == 1


def test_uint8_net_when_static_leaves_groups_that_nnapi_does_not_have(tmp_path):
    graph = quantized_graph(tmp_path, "uint8", "int8")
    found = reasons(nnapi.BACKEND, graph, recipe="int8-static")
    assert "no int8 MaxPool" in found["max"]
    assert "no int8 GlobalAveragePool" in found["average"]
    assert "no int8 Flatten" in found["flatten"]
    assert "1/256" in found["softmax"]
    assert not {"conv1", "conv2", "add", "linear"} & set(found)


def test_uint8_net_when_a_group_is_refused_refuses_its_q_and_dq_too(tmp_path):
    graph = quantized_graph(tmp_path, "uint8", "int8")
    refused = nnapi.BACKEND.refusals(graph, variant_of(nnapi.BACKEND, "int8-static"))
    pool = next(node for node in graph.nodes if node.op == "MaxPool")
    around = [graph.producers[pool.inputs[0]], *graph.consumers[pool.outputs[0]]]
    assert [node.op for node in around] == ["DequantizeLinear", "QuantizeLinear"]
    assert {node.index for node in around} <= set(refused)


@pytest.mark.parametrize("per_channel", [False, True])
def test_uint8_net_when_weights_are_uint8_or_per_channel_keeps_its_convolutions(
    tmp_path, per_channel
):
    kind = "int8" if per_channel else "uint8"
    graph = quantized_graph(tmp_path, "uint8", kind, per_channel=per_channel)
    found = reasons(nnapi.BACKEND, graph, recipe="int8-static")
    assert not {"conv1", "conv2"} & set(found)


def test_int8_net_when_activations_are_signed_stays_on_the_cpu(tmp_path):
    graph = quantized_graph(tmp_path, "int8", "int8", symmetric=True)
    found = reasons(nnapi.BACKEND, graph, recipe="int8-static")
    assert len(found) == len(graph.nodes)
    assert "is int8; NNAPI takes uint8" in found["conv1"]


# --- variants ---------------------------------------------------------------------------------


def keys(**dialect) -> list:
    variant = variant_of(nnapi.BACKEND, "int8-static", dialect=dialect)
    return [misfit.key for misfit in nnapi.BACKEND.misfits(variant, ANDROID)]


def test_variant_when_activations_are_not_uint8_is_a_misfit():
    assert keys() == []
    assert keys(activations="int8") == [("dialect", "activations")]
    assert keys(activations="uint16") == [("dialect", "activations")]


def test_variant_when_uint8_weights_have_scales_per_channel_is_a_misfit():
    assert keys(weights="int8", per_channel=True) == []
    assert keys(weights="uint8", per_channel=True) == [("dialect", "per_channel")]


def test_device_when_older_than_android_8_1_is_a_misfit():
    old = DeviceKind(os="android", arch="aarch64", min_version="24")
    (misfit,) = nnapi.BACKEND.misfits(variant_of(nnapi.BACKEND), old)
    assert "27" in misfit.problem


# --- general rules ----------------------------------------------------------------------------


def test_operator_when_not_in_the_list_is_refused(tmp_path):
    assert why(one(tmp_path, "Erf", [1, 4])) == "NNAPI has no Erf"


def test_dimension_when_dynamic_is_refused_with_the_line_to_write(tmp_path):
    graph = one(tmp_path, "Relu", ["batch", 4])
    assert "shape [batch, 4]" in why(graph)
    assert "dims" in nnapi.BACKEND.refusals(graph, variant_of(nnapi.BACKEND))[0].remedy


@pytest.mark.parametrize("dtype", [TensorProto.FLOAT16, TensorProto.INT64, TensorProto.UINT8])
def test_input_when_not_float32_is_refused(tmp_path, dtype):
    assert "not float32" in why(one(tmp_path, "Relu", [1, 4], dtype=dtype, opset=14))


def test_uint8_input_when_it_comes_from_outside_has_no_scale(tmp_path):
    graph = one(tmp_path, "Transpose", [1, 4], dtype=TensorProto.UINT8)
    assert "without a scale" in why(graph)


def test_scale_when_computed_is_refused(tmp_path):
    more = [("s", FLOAT, [])]
    graph = one(tmp_path, "DequantizeLinear", [1, 4], more=more, dtype=TensorProto.UINT8)
    assert "'s' is computed" in why(graph)


def test_nodes_when_behind_a_stop_operator_stay_on_the_cpu(tmp_path):
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], "before"),
        helper.make_node("Sigmoid", ["a"], ["b"], "stop"),
        helper.make_node("Relu", ["b"], ["c"], "behind"),
        helper.make_node("Tanh", ["a"], ["d"], "beside"),
    ]
    outputs = [("c", FLOAT, [1, 4]), ("d", FLOAT, [1, 4])]
    graph = graph_of(tmp_path, nodes, [("x", FLOAT, [1, 4])], outputs)
    assert reasons(nnapi.BACKEND, graph) == {}
    found = reasons(nnapi.BACKEND, graph, config={nnapi.STOP_OPS_KEY: "Sigmoid,Loop"})
    assert set(found) == {"stop", "behind"}
    assert "Sigmoid" in found["behind"]


def test_copying_node_when_alone_is_handed_back(tmp_path):
    nodes = [
        helper.make_node("Erf", ["x"], ["a"], "cpu1"),
        helper.make_node("Flatten", ["a"], ["b"], "alone"),
        helper.make_node("Erf", ["b"], ["c"], "cpu2"),
        helper.make_node("Flatten", ["c"], ["d"], "pair1"),
        helper.make_node("Relu", ["d"], ["y"], "pair2"),
    ]
    graph = graph_of(tmp_path, nodes, [("x", FLOAT, [1, 4])], [("y", FLOAT, [1, 4])])
    found = reasons(nnapi.BACKEND, graph)
    assert set(found) == {"cpu1", "cpu2", "alone"}
    assert "alone it only copies" in found["alone"]


# --- operators --------------------------------------------------------------------------------


def test_operators_when_as_nnapi_wants_them_are_taken(tmp_path):
    taken = [
        one(tmp_path, "Conv", IMAGE, weights(4, 4, 3, 3)),
        one(tmp_path, "Conv", IMAGE, weights(4, 1, 3, 3), group=4, dilations=[2, 2]),
        one(tmp_path, "Gemm", [2, 4], [*weights(4, 3), ("c", randoms(1, 3))]),
        one(tmp_path, "MatMul", [2, 4], weights(4, 3)),
        one(tmp_path, "MatMul", [2, 3, 4], more=[("v", FLOAT, [2, 4, 5])]),
        one(tmp_path, "MaxPool", IMAGE, kernel_shape=[2, 2]),
        one(tmp_path, "Clip", [1, 4], [("a", np.float32(0)), ("b", np.float32(6))]),
        one(tmp_path, "Cast", [1, 4], to=TensorProto.INT32),
        one(tmp_path, "Softmax", [1, 4], axis=1),
        one(tmp_path, "Gather", [4, 4], [("i", ints(1))]),
        one(tmp_path, "Split", [1, 4], outputs=["y", "y2"], axis=1),
        one(tmp_path, "Pad", [1, 4], [("p", ints(0, 1, 0, 1))]),
        one(
            tmp_path,
            "Resize",
            IMAGE,
            [None, ("s", np.array([1, 1, 2, 2], np.float32))],
            mode="linear",
        ),
    ]
    assert [reasons(nnapi.BACKEND, graph) for graph in taken] == [{}] * len(taken)


def test_convolution_when_not_2d_or_grouped_and_dilated_is_refused(tmp_path):
    assert "2-D" in why(one(tmp_path, "Conv", [1, 4, 8], weights(4, 4, 3)))
    graph = one(tmp_path, "Conv", IMAGE, weights(4, 2, 3, 3), group=2, dilations=[2, 2])
    assert "grouped and dilated" in why(graph)


def test_convolution_when_weights_are_computed_is_refused(tmp_path):
    graph = one(tmp_path, "Conv", IMAGE, more=[("w", FLOAT, [4, 4, 3, 3])])
    assert "'W' is computed" in why(graph)


def test_gemm_when_attributes_or_bias_differ_is_refused(tmp_path):
    assert "transA" in why(one(tmp_path, "Gemm", [4, 2], weights(4, 3), transA=1))
    assert "alpha" in why(one(tmp_path, "Gemm", [2, 4], weights(4, 3), alpha=0.5))
    bias = [*weights(4, 3), ("c", randoms(2, 3))]
    assert "must be a row of 3" in why(one(tmp_path, "Gemm", [2, 4], bias))


def test_matmul_when_shapes_are_no_equal_batches_is_refused(tmp_path):
    assert "matrices" in why(one(tmp_path, "MatMul", [2, 3, 4], weights(4, 5)))
    assert "'B' is computed" in why(one(tmp_path, "MatMul", [3, 4], more=[("v", FLOAT, [4, 5])]))


@pytest.mark.parametrize(
    "attributes", [{"ceil_mode": 1}, {"count_include_pad": 1, "pads": [1, 1, 1, 1]}]
)
def test_pool_when_it_counts_otherwise_is_refused(tmp_path, attributes):
    graph = one(tmp_path, "AveragePool", IMAGE, kernel_shape=[2, 2], **attributes)
    assert next(iter(attributes)) in why(graph)


def test_pool_when_not_of_images_is_refused(tmp_path):
    assert "rank must be 4" in why(one(tmp_path, "MaxPool", [1, 4, 8], kernel_shape=[2]))
    assert "2 outputs" in why(
        one(tmp_path, "MaxPool", IMAGE, kernel_shape=[2, 2], outputs=["y", "i"])
    )


def test_clip_when_of_other_bounds_is_refused(tmp_path):
    bounds = [("a", np.float32(0)), ("b", np.float32(1))]
    assert "(0, 6) and (-1, 1)" in why(one(tmp_path, "Clip", [1, 4], bounds))


def test_operator_when_of_more_than_4_dimensions_is_refused(tmp_path):
    shape = [1, 2, 3, 4, 5]
    assert "rank must be 1 to 4" in why(one(tmp_path, "Transpose", shape))
    assert "up to 4 dimensions" in why(one(tmp_path, "Add", shape, weights(5)))
    assert why(one(tmp_path, "Softmax", shape, axis=4)) != ""


def test_split_when_parts_differ_is_refused(tmp_path):
    graph = one(tmp_path, "Split", [1, 4], [("p", ints(1, 3))], outputs=["y", "y2"], axis=1)
    assert "unequal" in why(graph)


def test_reshape_when_the_shape_is_computed_is_refused(tmp_path):
    graph = one(tmp_path, "Reshape", [1, 4], more=[("shape", TensorProto.INT64, [2])])
    assert "'shape' is computed" in why(graph)


def test_resize_when_of_another_kind_is_refused(tmp_path):
    double = [None, ("s", np.array([1, 1, 2, 2], np.float32))]
    channels = [None, ("s", np.array([1, 2, 2, 2], np.float32))]
    uneven = [None, ("s", np.array([1, 1, 0.3, 0.3], np.float32))]
    assert "floor" in why(one(tmp_path, "Resize", IMAGE, double))
    assert "mode is 'cubic'" in why(one(tmp_path, "Resize", IMAGE, double, mode="cubic"))
    assert "channels" in why(one(tmp_path, "Resize", IMAGE, channels, mode="linear"))
    assert "remainder" in why(one(tmp_path, "Resize", IMAGE, uneven, mode="linear"))


def test_gather_when_int64_indices_are_computed_is_refused(tmp_path):
    for dtype, taken in ((TensorProto.INT64, False), (TensorProto.INT32, True)):
        graph = one(tmp_path, "Gather", [4, 4], more=[("i", dtype, [2])])
        assert (why(graph) == "") == taken

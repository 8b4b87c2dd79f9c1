from __future__ import annotations

import numpy as np
import pytest
from edgepack.backends import coreml
from edgepack.backends.base import predict
from edgepack.model.graph import make_partitioned_graph
from edgepack.project.profile import DeviceKind
from onnx import TensorProto, helper

from tests.support.nets.tiny_models import save
from tests.unit.backends.backend_models import (
    FLOAT,
    one,
    quantized_graph,
    randoms,
    reasons,
    residual_net,
    variant_of,
)

IMAGE = [1, 4, 8, 8]
IPHONE = DeviceKind(os="ios", arch="aarch64", min_version="15.1")
PROGRAM = {"ModelFormat": "MLProgram"}
HALF = TensorProto.FLOAT16


def network(graph, **options) -> str:
    return reasons(coreml.BACKEND, graph, options=options).get("n", "")


def program(graph, **options) -> str:
    return reasons(coreml.BACKEND, graph, options={**PROGRAM, **options}).get("n", "")


def weights(*shape: int) -> list:
    return [("w", randoms(*shape))]


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def test_pad_when_it_puts_zeros_before_a_convolution_is_joined_with_it_by_onnxruntime(tmp_path):
    """So that no rewrite is needed, for MLProgram has no Pad."""
    constants = [
        ("pads", np.array([0, 0, 0, 0, 0, 0, 1, 1])),
        ("w", np.ones((4, 4, 3, 3), np.float32)),
    ]
    nodes = [
        helper.make_node("Pad", ["x", "pads"], ["padded"], "pad"),
        helper.make_node("Conv", ["padded", "w"], ["y"], "conv"),
    ]
    ends = [("x", FLOAT, IMAGE)], [("y", FLOAT, None)]
    path = save(tmp_path / "m.onnx", nodes, *ends, constants)
    assert [node.op for node in make_partitioned_graph(path).nodes] == ["Conv"]


def test_float_net_when_network_goes_to_coreml_in_one_piece(tmp_path):
    placement = predict(
        coreml.BACKEND, make_partitioned_graph(residual_net(tmp_path)), variant_of(coreml.BACKEND)
    )
    assert placement.share == 1
    assert placement.partitions == 1


def test_float_net_when_program_is_split_by_its_flatten_which_edgepack_rewrites(tmp_path):
    graph = make_partitioned_graph(residual_net(tmp_path))
    placement = predict(coreml.BACKEND, graph, variant_of(coreml.BACKEND, options=PROGRAM))
    (left,) = [placed for placed in placement.nodes if placed.refusal]
    assert left.node.name == "flatten"
    assert "flatten-to-reshape" in left.refusal.remedy
    assert "flatten-to-reshape" in coreml.BACKEND.rewrites
    assert placement.partitions == 2


@pytest.mark.parametrize("options", [{}, PROGRAM])
def test_int8_net_when_predicted_is_left_in_pieces(tmp_path, options):
    graph = quantized_graph(tmp_path, "uint8", "int8")
    found = reasons(coreml.BACKEND, graph, options=options)
    quantizers = [node.name for node in graph.nodes if "Linear" in node.op]
    assert all("no quantized tensors" in found[name] for name in quantizers)
    assert "must be constant" in found["conv1"]


def test_variant_when_float16_without_program_is_a_misfit():
    assert coreml.BACKEND.misfits(variant_of(coreml.BACKEND, "fp16", options=PROGRAM), IPHONE) == []
    (misfit,) = coreml.BACKEND.misfits(variant_of(coreml.BACKEND, "fp16"), IPHONE)
    assert misfit.key == ("providers",)
    assert "MLProgram" in misfit.hint


def test_operator_when_only_one_format_has_it_is_refused_in_the_other(tmp_path):
    graph = one(tmp_path, "Erf", [1, 4])
    assert network(graph) == "CoreML's NeuralNetwork has no Erf"
    assert program(graph) == ""


def test_operator_when_the_list_misspells_it_is_taken(tmp_path):
    assert program(one(tmp_path, "ArgMax", [1, 4])) == ""
    assert network(one(tmp_path, "ReduceSum", [1, 4])) == ""


def test_input_when_float16_is_taken_by_program_alone(tmp_path):
    graph = one(tmp_path, "Relu", [1, 4], dtype=HALF)
    assert "float16" in network(graph)
    assert program(graph) == ""
    assert "MLProgram" in coreml.BACKEND.refusals(graph, variant_of(coreml.BACKEND))[0].remedy


def test_input_when_int64_is_taken_by_program_alone(tmp_path):
    graph = one(tmp_path, "Reshape", [1, 4], [("s", ints(4))], dtype=TensorProto.INT64)
    assert "int64" in network(graph)
    assert program(graph) == ""


def test_input_when_of_rank_6_or_empty_is_refused(tmp_path):
    assert "up to 5" in program(one(tmp_path, "Relu", [1] * 6))
    assert "is empty" in program(one(tmp_path, "Relu", [1, 0]))


def test_shapes_when_dynamic_are_taken_unless_the_option_forbids(tmp_path):
    graph = one(tmp_path, "Relu", ["batch", 4])
    assert program(graph) == ""
    assert "RequireStaticInputShapes" in program(graph, RequireStaticInputShapes="1")


def test_operators_when_as_coreml_wants_them_are_taken_by_both(tmp_path):
    double = [None, ("s", np.array([1, 1, 2, 2], np.float32))]
    kind = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    taken = [
        one(tmp_path, "Conv", IMAGE, [*weights(4, 4, 3, 3), ("b", randoms(4))]),
        one(tmp_path, "Conv", [1, 4, 8], weights(4, 4, 3)),
        one(tmp_path, "Gemm", [2, 4], [*weights(4, 3), ("c", randoms(3))]),
        one(tmp_path, "MatMul", [2, 4], weights(4, 3)),
        one(tmp_path, "PRelu", [1, 4, 2, 2], weights(4, 1, 1)),
        one(tmp_path, "Slice", [1, 4], [("s", ints(1)), ("e", ints(3)), ("a", ints(1))]),
        one(tmp_path, "Split", [1, 4], [("p", ints(1, 3))], outputs=["y", "z"], axis=1),
        one(tmp_path, "Concat", IMAGE, [("w", randoms(1, 2, 8, 8))], axis=1),
        one(tmp_path, "Resize", IMAGE, double, **kind),
    ]
    assert [network(graph) for graph in taken] == [""] * len(taken)
    assert [program(graph) for graph in taken] == [""] * len(taken)


def test_convolution_when_too_large_or_3d_is_refused(tmp_path):
    assert "16384" in program(one(tmp_path, "Conv", [1, 1, 1, 20000], weights(1, 1, 1, 3)))
    assert "1-D and 2-D" in program(one(tmp_path, "Conv", [1, 1, 4, 4, 4], weights(1, 1, 3, 3, 3)))


def test_convolution_when_weights_are_computed_is_taken_by_program_alone(tmp_path):
    graph = one(tmp_path, "Conv", IMAGE, more=[("w", FLOAT, [4, 4, 3, 3])])
    assert "'W' is computed" in network(graph)
    assert program(graph) == ""


def test_matmul_when_batched_or_computed_is_taken_by_program_alone(tmp_path):
    batched = one(tmp_path, "MatMul", [2, 3, 4], weights(4, 5))
    computed = one(tmp_path, "MatMul", [3, 4], more=[("v", FLOAT, [4, 5])])
    assert "matrices" in network(batched)
    assert "'B' is computed" in network(computed)
    assert program(batched) == program(computed) == ""


def test_gemm_when_attributes_or_bias_differ_is_refused(tmp_path):
    assert "transA" in program(one(tmp_path, "Gemm", [4, 2], weights(4, 3), transA=1))
    graph = one(tmp_path, "Gemm", [2, 4], [*weights(4, 3), ("c", randoms(2, 3))])
    assert "row of 3" in program(graph)


def test_pool_when_it_rounds_up_is_taken_by_program_alone(tmp_path):
    graph = one(tmp_path, "MaxPool", IMAGE, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1)
    assert "ceil_mode" in network(graph)
    assert program(graph) == ""
    assert "rank must be 4" in program(one(tmp_path, "MaxPool", [1, 4, 8], kernel_shape=[2]))


def test_transposed_convolution_when_pads_differ_is_refused(tmp_path):
    def transposed(**attributes):
        return one(tmp_path, "ConvTranspose", IMAGE, weights(4, 4, 3, 3), **attributes)

    assert program(transposed(pads=[1] * 4)) == ""
    assert "all be the same" in program(transposed(pads=[0, 0, 1, 1]))
    assert "output_padding" in program(transposed(output_padding=[1, 1], strides=[2, 2]))


def test_reshape_when_shape_is_computed_or_of_rank_6_is_refused(tmp_path):
    computed = one(tmp_path, "Reshape", [1, 4], more=[("shape", TensorProto.INT64, [2])])
    assert "'shape' is computed" in program(computed)
    assert "1 to 5" in program(one(tmp_path, "Reshape", [1, 4], [("s", ints(1, 1, 1, 1, 2, 2))]))


def test_resize_when_of_another_kind_is_refused(tmp_path):
    double = [None, ("s", np.array([1, 1, 2, 2], np.float32))]
    uneven = [None, ("s", np.array([1, 1, 1.5, 1.5], np.float32))]
    linear = one(tmp_path, "Resize", IMAGE, double, mode="linear")
    assert "'asymmetric' alone" in network(linear)
    assert program(linear) == ""
    assert "floor" in program(one(tmp_path, "Resize", IMAGE, double))
    assert "resizes by" in program(one(tmp_path, "Resize", IMAGE, uneven, mode="linear"))


def test_pad_when_not_of_the_last_two_dimensions_is_refused(tmp_path):
    value = ("v", np.float32(0))
    image = [("p", ints(0, 0, 1, 1, 0, 0, 1, 1)), value]
    channels = [("p", ints(0, 1, 0, 0, 0, 0, 0, 0)), value]
    assert network(one(tmp_path, "Pad", IMAGE, image)) == ""
    assert "last two" in network(one(tmp_path, "Pad", IMAGE, channels))
    assert "constant_value" in network(one(tmp_path, "Pad", IMAGE, image[:1]))


def test_concat_when_not_of_channels_is_taken_by_program_alone(tmp_path):
    graph = one(tmp_path, "Concat", [1, 4], weights(1, 4), axis=1)
    assert "channels of rank 4" in network(graph)
    assert program(graph) == ""


def test_depth_to_space_when_crd_is_taken_by_program_alone(tmp_path):
    graph = one(tmp_path, "DepthToSpace", IMAGE, blocksize=2, mode="CRD")
    assert "mode is 'CRD'" in network(graph)
    assert program(graph) == ""


def test_cast_when_not_of_an_arg_max_is_taken_by_program_alone(tmp_path):
    graph = one(tmp_path, "Cast", [1, 4], dtype=TensorProto.INT64, to=TensorProto.INT32)
    assert "ArgMax" in network(graph)
    assert program(graph) == ""
    assert program(one(tmp_path, "Cast", [1, 4], to=TensorProto.UINT8)) != ""


def test_gather_when_the_index_is_a_scalar_is_refused(tmp_path):
    assert "scalar" in network(one(tmp_path, "Gather", [4, 4], [("i", np.int64(1))]))
    assert network(one(tmp_path, "Gather", [4, 4], [("i", ints(1))])) == ""

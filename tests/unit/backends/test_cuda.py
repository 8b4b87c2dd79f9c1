from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from edgepack.backends import cuda, op_table
from edgepack.backends.base import predict
from edgepack.model.graph import make_partitioned_graph
from edgepack.project.profile import DeviceKind
from onnx import TensorProto, helper

from tests.support.nets.tiny_models import conv_net
from tests.unit.backends.backend_models import (
    FLOAT,
    graph_of,
    one,
    quantized_graph,
    randoms,
    reasons,
    variant_of,
)

DESKTOP = DeviceKind(os="linux", arch="x86-64", python=">=3.11")
IMAGE = [1, 4, 8, 8]
POOL = {"kernel_shape": [2, 2]}
TABLES = sorted(path.stem for path in (Path(op_table.__file__).parent / "data").glob("*.yaml"))


def why(graph, **more) -> str:
    return reasons(cuda.BACKEND, graph, **more).get("n", "")


def test_float_net_when_its_batch_is_unknown_goes_to_cuda_in_one_piece(tmp_path):
    graph = make_partitioned_graph(conv_net(tmp_path / "net.onnx"))
    placement = predict(cuda.BACKEND, graph, variant_of(cuda.BACKEND))
    assert placement.share == 1
    assert placement.partitions == 1


def test_quantized_net_when_asked_runs_as_float_but_for_the_biases(tmp_path):
    graph = quantized_graph(tmp_path, "uint8", "int8")
    refused = cuda.BACKEND.refusals(graph, variant_of(cuda.BACKEND))
    assert {graph.nodes[index].op for index in refused} == {"DequantizeLinear"}
    assert all("is int32; it takes" in refusal.reason for refusal in refused.values())


@pytest.mark.parametrize(("opset", "taken"), [(21, True), (22, False)])
def test_max_pool_when_opset_22_changed_it_falls_back(tmp_path, opset, taken):
    found = why(one(tmp_path, "MaxPool", IMAGE, opset=opset, **POOL))
    assert (not found) if taken else ("version 22; kernels are there for" in found)


@pytest.mark.parametrize(
    ("op", "dtype", "taken"),
    [
        ("Relu", TensorProto.FLOAT, True),
        ("Relu", TensorProto.FLOAT16, True),
        ("Relu", TensorProto.INT32, False),
        ("Relu", TensorProto.BFLOAT16, True),
        ("Add", TensorProto.UINT8, True),
    ],
)
def test_operator_when_of_a_dtype_says_whether_it_has_a_kernel(tmp_path, op, dtype, taken):
    more = [("b", dtype, [1, 4])] if op == "Add" else []
    assert (not why(one(tmp_path, op, [1, 4], dtype=dtype, more=more))) == taken


def test_operator_when_a_second_input_is_of_another_dtype_names_it(tmp_path):
    graph = one(tmp_path, "Gather", [4, 4], more=[("i", TensorProto.INT16, [1])])
    assert "'i' is int16; it takes int32, int64" in why(graph)


@pytest.mark.parametrize("op", ["Det", "GlobalLpPool"])
def test_operator_when_it_has_no_kernel_is_refused(tmp_path, op):
    assert f"no kernel for {op}" in why(one(tmp_path, op, IMAGE))


@pytest.mark.parametrize(
    ("op", "attributes", "part"),
    [
        ("LSTM", {}, ""),
        ("LSTM", {"clip": 1.0}, "clip"),
        ("LSTM", {"activations": ["Sigmoid", "Tanh", "Tanh"]}, ""),
        ("LSTM", {"activations": ["Relu", "Tanh", "Tanh"]}, "relu"),
        ("LSTM", {"input_forget": 1}, "input_forget"),
        ("GRU", {}, "linear_before_reset"),
        ("GRU", {"linear_before_reset": 1}, ""),
        ("RNN", {"activations": ["Relu"]}, "relu"),
    ],
)
def test_recurrent_operator_when_cudnn_has_it_not_falls_back(tmp_path, op, attributes, part):
    gates = {"LSTM": 16, "GRU": 12, "RNN": 4}[op]
    weights = [("w", randoms(1, gates, 3)), ("r", randoms(1, gates, 4))]
    found = why(one(tmp_path, op, [5, 1, 3], weights, hidden_size=4, **attributes))
    assert (part in found) if part else (not found)


@pytest.mark.parametrize(
    ("attributes", "part"),
    [
        ({}, ""),
        ({"pads": [1, 0, 1, 0]}, ""),
        ({"pads": [0, 0, 1, 1]}, "differ"),
        ({"auto_pad": "VALID"}, ""),
        ({"auto_pad": "SAME_UPPER"}, "SAME_UPPER"),
    ],
)
def test_conv_transpose_when_padded_unevenly_falls_back(tmp_path, attributes, part):
    found = why(one(tmp_path, "ConvTranspose", IMAGE, [("w", randoms(4, 4, 3, 3))], **attributes))
    assert (part in found) if part else (not found)


def test_arg_max_when_the_last_index_is_wanted_falls_back(tmp_path):
    assert not why(one(tmp_path, "ArgMax", [1, 4]))
    assert "select_last_index" in why(one(tmp_path, "ArgMax", [1, 4], select_last_index=1))


def test_arithmetic_on_shapes_when_asked_stays_on_the_cpu(tmp_path):
    nodes = [
        helper.make_node("Shape", ["x"], ["s"], "shape"),
        helper.make_node("Gather", ["s", "zero"], ["rows"], "gather"),
        helper.make_node("Concat", ["rows", "rest"], ["wanted"], "concat"),
        helper.make_node("Reshape", ["x", "wanted"], ["y"], "reshape"),
    ]
    nodes[2].attribute.append(helper.make_attribute("axis", 0))
    values = [("zero", np.array([0])), ("rest", np.array([-1]))]
    graph = graph_of(tmp_path, nodes, [("x", FLOAT, ["n", 4, 4])], [("y", FLOAT, None)], values)
    found = reasons(cuda.BACKEND, graph)
    assert set(found) == {"gather", "concat"}
    assert "keeps on the CPU" in found["gather"]


def test_int8_variant_when_asked_is_a_misfit():
    [misfit] = cuda.BACKEND.misfits(variant_of(cuda.BACKEND, "int8-static"), DESKTOP)
    assert misfit.key == ("dialect",)
    assert "fp16" in misfit.hint


# --- tables -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in TABLES if name != "openvino"])
def test_table_when_read_says_where_its_facts_are_from(name):
    table = op_table.read_table(name)
    assert table.source
    assert table.version
    assert table.checked >= "2026-11-21"
    assert table.kernels
    for kernels in table.kernels.values():
        assert all(kernel.first <= kernel.last for kernel in kernels)
        for kernel in kernels:
            assert all(kernel.types.values())
            assert not {word for words in kernel.types.values() for word in words} & set(
                table.groups
            )


def test_table_when_its_facts_were_not_tried_says_so():
    assert not any(op_table.read_table(n).unverified for n in ("cuda", "qnn", "xnnpack"))
    assert all(op_table.read_table(n).unverified for n in ("acl", "tensorrt"))


def test_kernel_when_its_range_is_open_serves_newer_versions():
    kernel = op_table.Kernel(op_table.KernelLines(opsets="11-"), {})
    assert [kernel.can_serve(each) for each in (10, 11, 22, None)] == [False, True, True, True]
    kernel = op_table.Kernel(op_table.KernelLines(opsets="11"), {})
    assert [kernel.can_serve(version) for version in (10, 11, 13)] == [False, True, False]


def test_operator_version_when_the_opset_is_between_is_the_last_before(tmp_path):
    graph = one(tmp_path, "Conv", IMAGE, [("w", randoms(4, 4, 3, 3))], opset=17)
    assert op_table.find_op_version(graph.nodes[0], 17) == 11
    assert op_table.find_op_version(graph.nodes[0], 0) is None

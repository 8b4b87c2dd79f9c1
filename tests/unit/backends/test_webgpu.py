"""The WebGPU provider's rules. The table's facts were placed by onnxruntime-web itself."""

from __future__ import annotations

import pytest
from edgepack.backends import webgpu
from edgepack.backends.base import predict
from edgepack.model.graph import make_partitioned_graph
from edgepack.project.profile import load_profile
from onnx import TensorProto

from tests.support.nets.tiny_models import conv_net
from tests.unit.backends.backend_models import one, quantized_graph, reasons, variant_of

IMAGE = [1, 4, 8, 8]
POOL = {"kernel_shape": [2, 2]}


def why(graph) -> str:
    return reasons(webgpu.BACKEND, graph).get("n", "")


def test_float_net_when_its_batch_is_unknown_goes_to_webgpu_in_one_piece(tmp_path):
    graph = make_partitioned_graph(conv_net(tmp_path / "net.onnx"))
    placement = predict(webgpu.BACKEND, graph, variant_of(webgpu.BACKEND))
    assert (placement.share, placement.partitions) == (1, 1)


@pytest.mark.parametrize(("opset", "taken"), [(12, True), (21, True), (22, False), (25, False)])
def test_max_pool_when_opset_22_changed_it_falls_back(tmp_path, opset, taken):
    found = why(one(tmp_path, "MaxPool", IMAGE, opset=opset, **POOL))
    assert (not found) if taken else ("version 22; kernels are there for" in found)


@pytest.mark.parametrize(
    ("op", "dtype", "taken"),
    [
        ("Relu", TensorProto.FLOAT, True),
        ("Relu", TensorProto.FLOAT16, True),
        ("Relu", TensorProto.INT32, False),
        ("Identity", TensorProto.INT32, True),
        ("Identity", TensorProto.INT64, False),
        ("Identity", TensorProto.DOUBLE, False),
        ("Softsign", TensorProto.FLOAT, False),
    ],
)
def test_operator_when_it_has_no_kernel_for_its_dtype_falls_back(tmp_path, op, dtype, taken):
    assert (not why(one(tmp_path, op, IMAGE, dtype=dtype))) == taken


def test_quantized_net_when_asked_leaves_what_it_quantizes_to_the_cpu(tmp_path):
    graph = quantized_graph(tmp_path, "uint8", "int8")
    refused = webgpu.BACKEND.refusals(graph, variant_of(webgpu.BACKEND))
    assert {graph.nodes[index].op for index in refused} == {"QuantizeLinear"}


def test_int8_and_other_devices_when_a_variant_asks_for_them_are_misfits():
    browser, board = load_profile("web").device, load_profile("raspberry-pi").device
    dialect = load_profile("web").find_variant("cpu-int8-static").dialect
    plain = variant_of(webgpu.BACKEND)
    assert webgpu.find_misfits(plain, browser) == []
    quantized = plain.model_copy(update={"dialect": dialect})
    assert [each.key for each in webgpu.find_misfits(quantized, browser)] == [("dialect",)]
    assert [each.key for each in webgpu.find_misfits(plain, board)] == [("backend",)]

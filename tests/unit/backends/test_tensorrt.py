from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from edgepack.backends import tensorrt
from edgepack.backends.base import predict
from edgepack.model.graph import Graph, make_partitioned_graph
from edgepack.project.profile import DeviceKind, Provider
from onnx import TensorProto, helper
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static

from tests.support.nets.tiny_models import conv_net
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

JETSON = DeviceKind(os="linux", arch="aarch64", python=">=3.10")
GOOD = {"activations": "int8", "weights": "int8", "symmetric": True, "bias": "float32"}


def why(graph, **more) -> str:
    return reasons(tensorrt.BACKEND, graph, **more).get("n", "")


class Reader(CalibrationDataReader):
    def __init__(self) -> None:
        self.left = [randoms(1, 3, 8, 8)]

    def get_next(self):
        return {"x": self.left.pop()} if self.left else None


def symmetric_graph(folder: Path) -> Graph:
    """The net in TensorRT's dialect: int8, zero point 0, per channel, biases left as they are."""
    model, path = residual_net(folder), folder / "q.onnx"
    quantize_static(
        str(model),
        str(path),
        Reader(),
        activation_type=QuantType.QInt8,
        weight_type=QuantType.QInt8,
        per_channel=True,
        extra_options={"ActivationSymmetric": True, "QuantizeBias": False},
    )
    return make_partitioned_graph(path)


# --- models -----------------------------------------------------------------------------------


def test_float_net_when_its_batch_is_unknown_goes_to_tensorrt_in_one_piece(tmp_path):
    graph = make_partitioned_graph(conv_net(tmp_path / "net.onnx"))
    placement = predict(tensorrt.BACKEND, graph, variant_of(tensorrt.BACKEND))
    assert placement.share == 1
    assert placement.partitions == 1


def test_int8_net_when_in_the_dialect_goes_to_tensorrt_in_one_piece(tmp_path):
    placement = predict(tensorrt.BACKEND, symmetric_graph(tmp_path), variant_of(tensorrt.BACKEND))
    assert placement.share == 1
    assert placement.partitions == 1


@pytest.mark.parametrize(
    ("activations", "part"), [("int8", "zero point is not 0"), ("uint8", "TensorRT takes int8")]
)
def test_quantized_net_when_in_another_dialect_falls_apart(tmp_path, activations, part):
    graph = quantized_graph(tmp_path, activations, "int8")
    found = reasons(tensorrt.BACKEND, graph)
    assert set(found.values())
    assert all(part in reason for reason in found.values())
    assert predict(tensorrt.BACKEND, graph, variant_of(tensorrt.BACKEND)).partitions > 1


def test_rest_when_cuda_comes_next_goes_to_cuda(tmp_path):
    variant = variant_of(tensorrt.BACKEND)
    cuda = Provider(name="CUDAExecutionProvider")
    variant = variant.model_copy(
        update={"providers": [variant.providers[0], cuda, variant.providers[1]]}
    )
    graph = one(tmp_path, "Det", [1, 4, 4])
    [placed] = predict(tensorrt.BACKEND, graph, variant).nodes
    assert placed.provider == "CUDAExecutionProvider"


# --- operators --------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["Det", "Unique", "BitShift"])
def test_operator_when_tensorrt_has_it_not_is_refused(tmp_path, op):
    assert f"no kernel for {op}" in why(one(tmp_path, op, [1, 4, 4]))


@pytest.mark.parametrize(
    ("op", "dtype", "part"),
    [
        ("Transpose", TensorProto.UINT8, "is uint8"),
        ("Transpose", TensorProto.INT64, ""),
        ("Transpose", TensorProto.BOOL, ""),
        ("Relu", TensorProto.DOUBLE, ""),
        ("Sin", TensorProto.FLOAT16, ""),
        ("Abs", TensorProto.UINT32, "is uint32"),
    ],
)
def test_operator_when_of_a_dtype_says_whether_it_is_taken(tmp_path, op, dtype, part):
    found = why(one(tmp_path, op, [1, 4], dtype=dtype))
    assert (part in found) if part else (not found)


@pytest.mark.parametrize(
    ("op", "attributes", "part"),
    [
        ("MaxPool", {"kernel_shape": [2, 2], "dilations": [2, 2]}, "dilations"),
        ("MaxPool", {"kernel_shape": [2, 2], "outputs": ["y", "i"]}, "2 outputs"),
        ("MaxPool", {"kernel_shape": [2, 2]}, ""),
    ],
)
def test_pool_when_asked_says_what_is_not_taken(tmp_path, op, attributes, part):
    found = why(one(tmp_path, op, [1, 4, 8, 8], **attributes))
    assert (part in found) if part else (not found)


def test_pool_when_one_dimensional_is_refused(tmp_path):
    assert "rank" in why(one(tmp_path, "MaxPool", [1, 4, 8], kernel_shape=[2]))


def test_resize_when_cubic_is_refused(tmp_path):
    scales = [None, ("s", np.array([1, 1, 2, 2], np.float32))]
    assert "mode is 'cubic'" in why(one(tmp_path, "Resize", [1, 4, 8, 8], scales, mode="cubic"))
    assert not why(one(tmp_path, "Resize", [1, 4, 8, 8], scales, mode="linear"))


def test_top_k_when_k_is_large_is_refused(tmp_path):
    outputs = ["y", "i"]
    large, small = [("k", np.array([4000]))], [("k", np.array([5]))]
    assert "less than 3840" in why(one(tmp_path, "TopK", [5000], large, outputs=outputs))
    assert not why(one(tmp_path, "TopK", [5000], small, outputs=outputs))


def test_reduction_when_its_axes_are_computed_is_refused(tmp_path):
    graph = one(tmp_path, "ReduceSum", [1, 4], more=[("a", TensorProto.INT64, [1])])
    assert "must be constant" in why(graph)


def dequantizer(folder: Path, stored: np.ndarray, *more) -> Graph:
    names = ["v", *(name for name, _ in more)]
    nodes = [helper.make_node("DequantizeLinear", names, ["y"], "n")]
    ends = [("x", FLOAT, [1])], [("y", FLOAT, None)]
    return graph_of(folder, nodes, *ends, [("v", stored), *more])


def test_dequantizer_when_of_a_constant_bias_is_folded_and_so_taken(tmp_path):
    scale = ("s", np.float32(0.5))
    assert not why(dequantizer(tmp_path, np.ones(4, np.int32), scale))
    assert "quantized as uint8" in why(dequantizer(tmp_path, np.ones(4, np.uint8), scale))


def test_dequantizer_when_its_zero_point_is_not_zero_is_refused(tmp_path):
    scale, values = ("s", np.float32(0.5)), np.ones(4, np.int8)
    assert "zero point" in why(dequantizer(tmp_path, values, scale, ("z", np.int8(3))))
    assert not why(dequantizer(tmp_path, values, scale, ("z", np.int8(0))))


# --- provider options -------------------------------------------------------------------------


def test_operator_when_the_variant_excludes_it_is_refused(tmp_path):
    options = {"trt_op_types_to_exclude": "NonZero,Relu"}
    assert "names Relu" in why(one(tmp_path, "Relu", [1, 4]), options=options)


def test_piece_when_smaller_than_the_variant_wants_is_refused(tmp_path):
    graph = one(tmp_path, "Relu", [1, 4])
    assert "1 nodes" in why(graph, options={"trt_min_subgraph_size": "5"})
    assert not why(graph, options={"trt_min_subgraph_size": "1"})


# --- dialects ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "keys"),
    [
        ({}, []),
        ({"per_channel": True}, []),
        ({"activations": "uint8"}, ["activations"]),
        ({"activations": "uint16"}, ["activations"]),
        ({"weights": "uint8"}, ["weights"]),
        ({"symmetric": False}, ["symmetric"]),
        ({"bias": "int32"}, ["bias"]),
    ],
)
def test_dialect_when_asked_names_what_tensorrt_does_not_take(change, keys):
    variant = variant_of(tensorrt.BACKEND, "int8-static", dialect={**GOOD, **change})
    assert [misfit.key[-1] for misfit in tensorrt.BACKEND.misfits(variant, JETSON)] == keys

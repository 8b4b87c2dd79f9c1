from __future__ import annotations

import numpy as np
import pytest
from edgepack.backends import xnnpack
from edgepack.backends.base import predict
from edgepack.model.graph import make_partitioned_graph
from edgepack.project.profile import DeviceKind
from onnx import TensorProto, helper

from tests.support.nets.tiny_models import save
from tests.unit.backends.backend_models import (
    FLOAT,
    graph_of,
    one,
    quantized,
    quantized_graph,
    randoms,
    reasons,
    residual_net,
    variant_of,
)

ANDROID = DeviceKind(os="android", arch="aarch64", min_version="24")
IMAGE = ["n", 4, 8, 8]
WEIGHTS = [("w", randoms(4, 4, 3, 3))]
POOL = {"kernel_shape": [2, 2]}
INT8 = {"activations": "int8", "weights": "int8"}


def why(graph, **more) -> str:
    return reasons(xnnpack.BACKEND, graph, **more).get("n", "")


def misfit_keys(**dialect) -> list[str]:
    variant = variant_of(xnnpack.BACKEND, "int8-static", dialect=dialect)
    return [misfit.key[-1] for misfit in xnnpack.BACKEND.misfits(variant, ANDROID)]


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


# --- models -----------------------------------------------------------------------------------


def test_float_net_when_static_keeps_convolutions_pools_and_the_end(tmp_path):
    graph = make_partitioned_graph(residual_net(tmp_path))
    placement = predict(xnnpack.BACKEND, graph, variant_of(xnnpack.BACKEND))
    taken = [p.node.name for p in placement.nodes if p.refusal is None]
    assert taken == ["conv1", "relu", "max", "conv2", "linear", "softmax"]


@pytest.mark.parametrize("kind", ["int8", "uint8"])
def test_quantized_net_when_both_are_alike_keeps_convolutions_and_pool(tmp_path, kind):
    found = reasons(xnnpack.BACKEND, quantized_graph(tmp_path, kind, kind), recipe="int8-static")
    assert not {"conv1", "conv2", "max"} & set(found)
    assert "no int8 kernel for Gemm" in found["linear"]
    assert ("softmax" in found) == (kind == "int8")


def test_quantized_net_when_int8_weights_are_per_channel_keeps_convolutions(tmp_path):
    graph = quantized_graph(tmp_path, "int8", "int8", per_channel=True, symmetric=True)
    found = reasons(xnnpack.BACKEND, graph, recipe="int8-static")
    assert not {"conv1", "conv2"} & set(found)


def test_quantized_net_when_activations_and_weights_differ_names_the_layout(tmp_path):
    found = reasons(
        xnnpack.BACKEND, quantized_graph(tmp_path, "uint8", "int8"), recipe="int8-static"
    )
    assert "uint8 activations with int8 weights" in found["conv1"]


def test_quantized_net_when_uint8_weights_are_per_channel_loses_convolutions(tmp_path):
    graph = quantized_graph(tmp_path, "uint8", "uint8", per_channel=True)
    found = reasons(xnnpack.BACKEND, graph, recipe="int8-static")
    assert "uint8 weights per channel" in found["conv1"]


def test_quantized_transpose_when_per_channel_is_refused(tmp_path):
    nodes = [helper.make_node("ConvTranspose", ["x", "w", "b"], ["y"], "n")]
    values = [("w", randoms(3, 4, 3, 3)), ("b", randoms(4))]
    ends = [("x", FLOAT, [1, 3, 8, 8])], [("y", FLOAT, [1, 4, 10, 10])]
    model = save(tmp_path / "float.onnx", nodes, *ends, values)
    graph = make_partitioned_graph(
        quantized(model, "int8", "int8", per_channel=True, symmetric=True)
    )
    assert "one scale per channel" in why(graph, recipe="int8-static")
    graph = make_partitioned_graph(quantized(model, "int8", "int8", symmetric=True))
    assert not why(graph, recipe="int8-static")


# --- float operators --------------------------------------------------------------------------


def test_conv_when_only_the_batch_is_unknown_is_taken(tmp_path):
    assert not why(one(tmp_path, "Conv", IMAGE, WEIGHTS))


def test_conv_when_a_newer_opset_has_another_version_is_taken(tmp_path):
    assert not why(one(tmp_path, "Conv", IMAGE, WEIGHTS, opset=22))


def test_conv_when_the_height_is_unknown_is_refused(tmp_path):
    assert "all but the batch must be known" in why(one(tmp_path, "Conv", [1, 4, "h", 8], WEIGHTS))


def test_conv_when_three_dimensional_is_refused(tmp_path):
    graph = one(tmp_path, "Conv", [1, 4, 8, 8, 8], [("w", randoms(4, 4, 3, 3, 3))])
    assert "its rank must be 3 to 4" in why(graph)


def test_conv_when_weights_are_computed_is_refused(tmp_path):
    graph = one(tmp_path, "Conv", IMAGE, more=[("w", FLOAT, [4, 4, 3, 3])])
    assert "must be constant" in why(graph)


def test_conv_when_padded_same_lower_is_refused_and_same_upper_is_not(tmp_path):
    assert "SAME_LOWER" in why(one(tmp_path, "Conv", IMAGE, WEIGHTS, auto_pad="SAME_LOWER"))
    assert not why(one(tmp_path, "Conv", IMAGE, WEIGHTS, auto_pad="SAME_UPPER"))


def test_conv_when_float16_names_the_dtype(tmp_path):
    weights = [("w", randoms(4, 4, 3, 3).astype(np.float16))]
    graph = one(tmp_path, "Conv", IMAGE, weights, dtype=TensorProto.FLOAT16)
    assert "is float16; it takes float32" in why(graph)


@pytest.mark.parametrize(
    ("attributes", "part"),
    [
        ({"kernel_shape": [1, 1]}, "1 x 1"),
        ({**POOL, "ceil_mode": 1}, "ceil_mode"),
        ({**POOL, "outputs": ["y", "i"]}, "2 outputs"),
    ],
)
def test_max_pool_when_xnnpack_cannot_is_refused(tmp_path, attributes, part):
    assert part in why(one(tmp_path, "MaxPool", IMAGE, **attributes))


def test_average_pool_when_float_padding_counts_is_refused(tmp_path):
    graph = one(tmp_path, "AveragePool", IMAGE, **POOL, count_include_pad=1)
    assert "count_include_pad" in why(graph)
    assert not why(one(tmp_path, "AveragePool", IMAGE, **POOL))


def test_softmax_when_not_over_the_last_axis_is_refused(tmp_path):
    assert "not the last" in why(one(tmp_path, "Softmax", [1, 4, 8], axis=1))
    assert not why(one(tmp_path, "Softmax", [1, 4, 8], axis=2))


@pytest.mark.parametrize(("name", "found"), [("alpha", 0.5), ("beta", 2.0)])
def test_gemm_when_scaled_is_refused(tmp_path, name, found):
    values = [("w", randoms(4, 3)), ("b", randoms(3))]
    graph = one(tmp_path, "Gemm", [1, 4], values, **{name: found})
    assert f"{name} is {found}" in why(graph)


def test_gemm_when_it_has_no_bias_is_refused(tmp_path):
    assert "no bias" in why(one(tmp_path, "Gemm", [1, 4], [("w", randoms(4, 3))]))


def test_mat_mul_when_of_batches_or_of_unknown_rows_is_refused(tmp_path):
    values = [("w", randoms(4, 3))]
    assert "rank must be 1 or 2" in why(one(tmp_path, "MatMul", [2, 5, 4], values))
    assert "all of it must be known" in why(one(tmp_path, "MatMul", ["n", 4], values))
    assert not why(one(tmp_path, "MatMul", [5, 4], values))


@pytest.mark.parametrize(
    ("scales", "attributes", "part"),
    [
        (floats(1, 1, 2, 2), {"mode": "linear"}, ""),
        (floats(1, 1, 0.5, 0.5), {"mode": "linear"}, ""),
        (floats(1, 1, 0.3, 0.3), {"mode": "linear"}, "shrinks"),
        (floats(1, 2, 2, 2), {"mode": "linear"}, "channels"),
        (floats(1, 1, 2, 2), {"mode": "nearest"}, "mode is 'nearest'"),
    ],
)
def test_resize_when_asked_says_what_is_not_taken(tmp_path, scales, attributes, part):
    graph = one(tmp_path, "Resize", [1, 4, 8, 8], [None, ("s", scales)], **attributes)
    assert (part in why(graph)) if part else (not why(graph))


def test_clip_when_behind_a_conv_goes_with_it_and_else_not(tmp_path):
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], "conv"),
        helper.make_node("Clip", ["c", "low", "high"], ["k"], "behind"),
        helper.make_node("Clip", ["k", "low"], ["y"], "alone"),
    ]
    values = [*WEIGHTS, ("low", np.float32(0)), ("high", np.float32(6))]
    graph = graph_of(tmp_path, nodes, [("x", FLOAT, IMAGE)], [("y", FLOAT, None)], values)
    assert set(reasons(xnnpack.BACKEND, graph)) == {"alone"}


# --- dialects ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dialect",
    [INT8, {**INT8, "per_channel": True}, {"activations": "uint8", "weights": "uint8"}],
)
def test_dialect_when_xnnpack_has_it_fits(dialect):
    assert misfit_keys(**dialect) == []


@pytest.mark.parametrize(
    ("dialect", "keys"),
    [
        ({"activations": "uint8", "weights": "int8"}, ["weights"]),
        ({"activations": "uint16"}, ["activations"]),
        ({"activations": "uint8", "weights": "uint8", "per_channel": True}, ["per_channel"]),
        ({**INT8, "bias": "float32"}, ["bias"]),
    ],
)
def test_dialect_when_xnnpack_leaves_it_to_the_cpu_is_a_misfit(dialect, keys):
    assert misfit_keys(**dialect) == keys

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from edgepack.backends import qnn
from edgepack.backends.base import predict
from edgepack.model.facts import TensorSpec
from edgepack.model.graph import make_partitioned_graph, read_graph
from edgepack.project.profile import DeviceKind
from onnx import TensorProto, helper, load

from tests.support.nets.tiny_models import conv_net, save
from tests.unit.backends.backend_models import (
    FLOAT,
    one,
    quantized_graph,
    randoms,
    reasons,
    residual_net,
    variant_of,
)

ANDROID = DeviceKind(os="android", arch="aarch64", min_version="27")
INSIDE = {"offload_graph_io_quantization": "0"}


def why(graph, **more) -> str:
    return reasons(qnn.BACKEND, graph, **more).get("n", "")


def test_float_net_when_static_goes_to_qnn_in_one_piece(tmp_path):
    placement = predict(
        qnn.BACKEND, make_partitioned_graph(residual_net(tmp_path)), variant_of(qnn.BACKEND)
    )
    assert placement.share == 1
    assert placement.partitions == 1


def test_float_net_when_the_batch_is_unknown_stays_on_the_cpu(tmp_path):
    graph = make_partitioned_graph(conv_net(tmp_path / "net.onnx"))
    found = reasons(qnn.BACKEND, graph)
    assert len(found) == len(graph.nodes)
    assert "all of it must be known" in found["conv"]


@pytest.mark.parametrize("weights", ["uint8", "int8"])
def test_uint8_net_when_static_leaves_the_border_to_the_cpu(tmp_path, weights):
    graph = quantized_graph(tmp_path, "uint8", weights)
    refused = qnn.BACKEND.refusals(graph, variant_of(qnn.BACKEND, "int8-static"))
    assert sorted(graph.nodes[index].op for index in refused) == [
        "DequantizeLinear",
        "QuantizeLinear",
    ]
    inside = variant_of(qnn.BACKEND, "int8-static", options=INSIDE)
    assert qnn.BACKEND.refusals(graph, inside) == {}


def test_uint16_activations_when_in_microsofts_domain_are_taken_but_for_the_border(tmp_path):
    pair = {"domain": "com.microsoft"}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["a"], "first", **pair),
        helper.make_node("DequantizeLinear", ["a", "s", "z"], ["b"], "dq", **pair),
        helper.make_node("Sigmoid", ["b"], ["c"], "sigmoid"),
        helper.make_node("QuantizeLinear", ["c", "s", "z"], ["d"], "q", **pair),
        helper.make_node("DequantizeLinear", ["d", "s", "z"], ["y"], "last", **pair),
    ]
    values = [("s", np.float32(0.01)), ("z", np.uint16(0))]
    ends = ("x", FLOAT, [1, 4]), ("y", FLOAT, [1, 4])
    model = save(tmp_path / "m.onnx", nodes, [ends[0]], [ends[1]], values)
    graph = read_graph(load(str(model)))
    typed = {name: TensorSpec(name, "uint16", (1, 4)) for name in "ad"}
    typed |= {name: TensorSpec(name, "float32", (1, 4)) for name in "bc"}
    graph = replace(graph, tensors={**graph.tensors, **typed})
    assert set(reasons(qnn.BACKEND, graph, recipe="int8-static")) == {"first", "last"}


@pytest.mark.parametrize(
    ("activations", "weights", "per_channel"),
    [("int8", "int8", False), ("uint8", "uint8", True), ("uint8", "int8", True)],
)
def test_quantized_net_when_static_is_taken_in_other_dialects(
    tmp_path, activations, weights, per_channel
):
    graph = quantized_graph(tmp_path, activations, weights, per_channel=per_channel)
    assert not reasons(qnn.BACKEND, graph, recipe="int8-static", options=INSIDE)


def test_pair_when_its_scale_is_computed_is_refused(tmp_path):
    graph = quantized_graph(tmp_path, "uint8", "int8")
    constants = {name: array for name, array in graph.constants.items() if "scale" not in name}
    found = reasons(qnn.BACKEND, replace(graph, constants=constants), recipe="int8-static")
    assert "must be constant" in found["conv1"]


def test_operator_when_qnn_does_not_list_it_is_refused(tmp_path):
    assert "no kernel for Det" in why(one(tmp_path, "Det", [1, 4, 4]))


def test_operator_when_of_complex_numbers_names_the_dtype(tmp_path):
    assert "is complex64" in why(one(tmp_path, "Relu", [1, 4], dtype=TensorProto.COMPLEX64))


@pytest.mark.parametrize(
    ("op", "places", "name"),
    [("Slice", ["s", "e"], "starts"), ("Expand", ["s"], "shape"), ("Pad", ["s", "v"], "constant")],
)
def test_operator_when_what_it_must_know_is_computed_is_refused(tmp_path, op, places, name):
    more = [(place, FLOAT if place == "v" else TensorProto.INT64, [1]) for place in places]
    if op == "Pad":
        more[-1] = ("v", FLOAT, [])
    assert name in why(one(tmp_path, op, [4], more=more))


@pytest.mark.parametrize("names", [["Tanh", "Tanh", "Tanh"], ["Sigmoid", "Tanh", "Tanh"]])
def test_lstm_when_its_activations_are_not_the_default_is_refused(tmp_path, names):
    values = [("w", randoms(1, 16, 3)), ("r", randoms(1, 16, 4))]
    found = why(one(tmp_path, "LSTM", [2, 1, 3], values, hidden_size=4, activations=names))
    assert found == ("" if names[0] == "Sigmoid" else "activations are Tanh, Tanh, Tanh")


def test_operator_when_of_rank_six_is_refused(tmp_path):
    assert "rank 6; 5 is the most" in why(one(tmp_path, "Relu", [1, 1, 1, 1, 1, 4]))


def test_gather_when_indices_are_negative_is_refused(tmp_path):
    assert "negative" in why(one(tmp_path, "Gather", [4, 4], [("i", np.array([-1]))]))
    assert not why(one(tmp_path, "Gather", [4, 4], [("i", np.array([1]))]))


def test_gemm_when_scaled_is_refused(tmp_path):
    values = [("w", randoms(4, 3)), ("b", randoms(3))]
    assert "alpha is 0.5" in why(one(tmp_path, "Gemm", [1, 4], values, alpha=0.5))
    assert not why(one(tmp_path, "Gemm", [1, 4], values, beta=0.0))


def test_normalization_when_not_of_p_two_is_refused(tmp_path):
    assert "p is 1" in why(one(tmp_path, "LpNormalization", [1, 4], p=1))


def test_resize_when_antialiased_is_refused(tmp_path):
    sizes = [None, None, ("sizes", np.array([1, 1, 2, 2]))]
    for antialias, reason in ((0, ""), (1, "antialias is 1; it must be 0")):
        attributes = {"mode": "linear", "antialias": antialias, "opset": 18}
        assert why(one(tmp_path, "Resize", [1, 1, 4, 4], sizes, **attributes)) == reason


def test_loop_like_operator_when_asked_is_refused(tmp_path):
    graph = one(tmp_path, "Compress", [4], more=[("c", TensorProto.BOOL, [4])])
    assert "no kernel for Compress" in why(graph)


def test_computed_input_when_of_unknown_rank_is_refused(tmp_path):
    assert "no known shape" in why(one(tmp_path, "Add", [1, 4], more=[("b", FLOAT, None)]))


@pytest.mark.parametrize(
    ("dialect", "keys"),
    [
        ({"activations": "uint16", "weights": "uint8"}, []),
        ({"activations": "uint8", "weights": "int8", "per_channel": True}, []),
        ({"activations": "int8"}, ["activations"]),
        ({"weights": "uint8", "per_channel": True}, ["per_channel"]),
        ({"bias": "float32"}, ["bias"]),
    ],
)
def test_dialect_when_asked_names_what_the_htp_does_not_run(dialect, keys):
    variant = variant_of(qnn.BACKEND, "int8-static", dialect=dialect)
    assert [misfit.key[-1] for misfit in qnn.BACKEND.misfits(variant, ANDROID)] == keys


@pytest.mark.parametrize(
    ("options", "misses"),
    [
        ({}, True),
        ({"enable_htp_fp16_precision": "1"}, True),
        ({"soc_model": "43", "enable_htp_fp16_precision": "0"}, True),
        ({"soc_model": "43", "enable_htp_fp16_precision": "1"}, False),
        ({"backend_type": "gpu"}, False),
    ],
)
def test_float_variant_when_the_chip_is_not_named_is_a_misfit(options, misses):
    found = qnn.BACKEND.misfits(variant_of(qnn.BACKEND, "fp16", options=options), ANDROID)
    assert ["soc_model" in misfit.hint for misfit in found] == [True] * misses

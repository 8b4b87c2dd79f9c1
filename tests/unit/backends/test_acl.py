from __future__ import annotations

import pytest
from edgepack.backends import acl
from edgepack.model.graph import make_partitioned_graph
from edgepack.project.profile import DeviceKind

from tests.unit.backends.backend_models import (
    FLOAT,
    one,
    quantized_graph,
    randoms,
    reasons,
    residual_net,
    variant_of,
)

PI = DeviceKind(os="linux", arch="aarch64", python=">=3.11")
IMAGE = [1, 4, 8, 8]
WEIGHTS = [("w", randoms(4, 4, 3, 3))]


def why(graph, **more) -> str:
    return reasons(acl.BACKEND, graph, **more).get("n", "")


def test_float_net_when_its_opset_is_new_keeps_what_has_kernels(tmp_path):
    found = reasons(acl.BACKEND, make_partitioned_graph(residual_net(tmp_path)))
    assert set(found) == {"relu", "add", "flatten", "linear", "softmax"}
    assert "version 14; kernels are there for 6" in found["relu"]
    assert "no kernel for Add" in found["add"]


@pytest.mark.parametrize(("opset", "taken"), [(11, True), (13, False)])
def test_gemm_when_the_opset_is_too_new_is_refused(tmp_path, opset, taken):
    values = [("w", randoms(4, 3)), ("b", randoms(3))]
    assert bool(why(one(tmp_path, "Gemm", [1, 4], values, opset=opset))) != taken


def test_conv_when_opset_22_changed_it_is_refused(tmp_path):
    assert not why(one(tmp_path, "Conv", IMAGE, WEIGHTS, opset=21))
    assert "version 22" in why(one(tmp_path, "Conv", IMAGE, WEIGHTS, opset=22))


def test_conv_when_the_batch_is_unknown_is_refused(tmp_path):
    assert "all of it must be known" in why(one(tmp_path, "Conv", ["n", 4, 8, 8], WEIGHTS))


def test_conv_when_weights_are_computed_is_refused(tmp_path):
    graph = one(tmp_path, "Conv", IMAGE, more=[("w", FLOAT, [4, 4, 3, 3])])
    assert "must be constant" in why(graph)


def test_conv_when_grouped_but_not_depthwise_is_refused(tmp_path):
    assert "groups" in why(one(tmp_path, "Conv", IMAGE, [("w", randoms(4, 2, 3, 3))], group=2))
    assert not why(one(tmp_path, "Conv", IMAGE, [("w", randoms(4, 1, 3, 3))], group=4))


def test_conv_when_three_dimensional_is_refused(tmp_path):
    graph = one(tmp_path, "Conv", [1, 4, 8, 8, 8], [("w", randoms(4, 4, 3, 3, 3))])
    assert "3-D" in why(graph)


def test_mat_mul_when_it_broadcasts_batches_is_refused(tmp_path):
    assert "broadcasts" in why(one(tmp_path, "MatMul", [5, 4], [("w", randoms(2, 4, 3))]))
    graph = one(tmp_path, "MatMul", [2, 5, 4], more=[("w", FLOAT, [4, 3])])
    assert not why(graph)


def test_mat_mul_when_a_factor_is_constant_is_refused(tmp_path):
    graph = one(tmp_path, "MatMul", [2, 5, 4], [("w", randoms(4, 3))])
    assert "every run fails" in why(graph)


def test_depthwise_conv_when_a_channel_has_several_outputs_is_refused(tmp_path):
    graph = one(tmp_path, "Conv", IMAGE, [("w", randoms(8, 1, 3, 3))], group=4)
    assert "several outputs for a channel" in why(graph)


@pytest.mark.parametrize(
    ("shape", "taken"),
    [([1, 4, 8, 8], True), ([2, 4, 8, 8], False), ([1, 4, 8, 6], False), (["n", 4, 8, 8], False)],
)
@pytest.mark.parametrize("op", ["MaxPool", "GlobalAveragePool"])
def test_pool_of_other_than_one_square_picture_is_refused(tmp_path, op, shape, taken):
    more = {"kernel_shape": [2, 2]} if op == "MaxPool" else {}
    found = why(one(tmp_path, op, shape, opset=12, **more))
    assert (not found) is taken
    assert taken or "computes it wrongly" in found


@pytest.mark.parametrize("weights", ["uint8", "int8"])
def test_quantized_net_when_per_tensor_keeps_its_convolutions_alone(tmp_path, weights):
    found = reasons(acl.BACKEND, quantized_graph(tmp_path, "uint8", weights), recipe="int8-static")
    assert not {"conv1", "conv2"} & set(found)
    assert "a quantized Gemm" in found["linear"]


def test_quantized_net_when_per_channel_loses_its_convolutions(tmp_path):
    graph = quantized_graph(tmp_path, "uint8", "int8", per_channel=True)
    found = reasons(acl.BACKEND, graph, recipe="int8-static")
    assert "one scale per channel" in found["conv1"]


@pytest.mark.parametrize(
    ("dialect", "keys"),
    [
        ({}, []),
        ({"activations": "int8", "weights": "int8"}, []),
        ({"activations": "int8", "weights": "uint8"}, ["weights"]),
        ({"activations": "uint16"}, ["activations"]),
        ({"per_channel": True}, ["per_channel"]),
        ({"bias": "float32"}, ["bias"]),
    ],
)
def test_dialect_when_asked_names_what_acl_has_no_kernel_for(dialect, keys):
    variant = variant_of(acl.BACKEND, "int8-static", dialect=dialect)
    assert [misfit.key[-1] for misfit in acl.BACKEND.misfits(variant, PI)] == keys

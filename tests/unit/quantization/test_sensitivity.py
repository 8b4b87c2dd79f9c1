"""The error of each place on its own, held against numpy."""

from __future__ import annotations

import int8_nets
import numpy as np
import onnx
import pytest
import tiny_models
from edgepack.quantization.sensitivity import sensitivity
from edgepack.quantization.writer import QdqWriter, quantizable
from onnx import TensorProto, helper

FLOAT = np.float32


def feeds(count=6):
    random = np.random.default_rng(2)
    return [{"x": random.standard_normal((1, 16)).astype(FLOAT)} for _ in range(count)]


def chain(path, matrices, *, relu=False):
    """MatMul after MatMul, "p0", "p1" and so on; each makes "t0", "t1" and so on."""
    nodes, last = [], "x"
    for n in range(len(matrices)):
        out = f"t{n}" if n + 1 < len(matrices) else "y"
        made = f"{out}_raw" if relu else out
        nodes.append(helper.make_node("MatMul", [last, f"w{n}"], [made], f"p{n}"))
        if relu:
            nodes.append(helper.make_node("Relu", [made], [out], f"r{n}"))
        last = out
    value = (TensorProto.FLOAT, [1, 16])
    constants = [(f"w{n}", matrix) for n, matrix in enumerate(matrices)]
    return onnx.load(tiny_models.save(path, nodes, [("x", *value)], [("y", *value)], constants))


def matrices(count=3):
    random = np.random.default_rng(1)
    return [random.standard_normal((16, 16)).astype(FLOAT) / 4 for _ in range(count)]


def rounded(weights):
    """As int8 with one scale."""
    step = np.abs(weights).max() / 127
    return np.rint(weights / step).clip(-127, 127) * step


def written(model, ranges, dialect=None):
    per_tensor = int8_nets.dialect("uint8", "int8", per_channel=False)
    return QdqWriter(model, ranges, dialect or per_tensor).write(())


def test_node_when_its_weights_are_rounded_has_the_error_of_that_alone(tmp_path):
    weights = matrices()
    weights[1][0, 0] = 40  # leaves 127 steps of 0.3 for the others
    model = quantizable(chain(tmp_path / "net.onnx", weights))
    ranges = dict.fromkeys(("x", "t0", "t1", "y"), (-500.0, 500.0))
    found = sensitivity(model, written(model, ranges), feeds())
    assert found.nodes[0].nodes == ("p1",)
    inputs = np.concatenate([feed["x"] for feed in feeds()])
    for n, matrix in enumerate(weights):
        exact = inputs @ matrix
        error = inputs @ rounded(matrix) - exact
        due = np.sum(error**2) / np.sum(exact**2)
        loss = next(each.loss for each in found.nodes if each.nodes == (f"p{n}",))
        assert loss == pytest.approx(due, rel=1e-3)
        inputs = exact


def test_tensor_when_its_range_is_wide_has_the_error_of_its_rounding(tmp_path):
    model = quantizable(chain(tmp_path / "net.onnx", matrices()))
    ranges = {"x": (-4.0, 4.0), "t0": (-8.0, 8.0), "t1": (-800.0, 800.0), "y": (-8.0, 8.0)}
    found = sensitivity(model, written(model, ranges), feeds())
    assert found.tensors[0].tensor == "t1"
    exact = np.concatenate([feed["x"] for feed in feeds()]) @ matrices()[0] @ matrices()[1]
    step = FLOAT(1600 / 255)
    due = np.sum((np.rint(exact / step) * step - exact) ** 2) / np.sum(exact**2)
    assert found.tensors[0].loss == pytest.approx(due, rel=0.02)
    assert {each.tensor for each in found.tensors} == {"x", "t0", "t1", "y"}


def test_node_when_the_writer_takes_away_its_relu_has_no_error_from_that(tmp_path):
    model = quantizable(chain(tmp_path / "net.onnx", matrices(), relu=True))
    ranges = dict.fromkeys(("t0", "t1", "y"), (0.0, 6.0)) | {"x": (-4.0, 4.0)}
    wide = int8_nets.dialect("uint8", "int8")
    quantized = written(model, ranges, wide)
    assert not any(node.op_type == "Relu" for node in quantized.graph.node)
    found = sensitivity(model, quantized, feeds())
    assert max(each.loss for each in found.nodes) < 1e-3


def test_node_when_it_reads_a_tensor_through_others_is_of_their_piece(tmp_path):
    net = onnx.load(int8_nets.mixed_net(tmp_path / "net.onnx"))
    model = quantizable(net)
    names = {name for node in model.graph.node for name in node.output} | {"image"}
    ranges = dict.fromkeys(names, (-30.0, 30.0))
    quantized = QdqWriter(model, ranges, int8_nets.CPU, unpaired=frozenset({"c4"})).write(())
    found = sensitivity(model, quantized, int8_nets.image_feeds(2))
    pieces = {each.tensor: each.nodes for each in found.nodes}
    assert pieces["a2"] == ("pointwise2", "add2")
    assert pieces["c3"] == ("pointwise",)
    assert all(0 <= each.loss <= 1 for each in (*found.nodes, *found.tensors))

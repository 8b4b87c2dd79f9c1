"""``If`` nodes whose condition is known."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from edgepack.model.branches import inline_known_branches
from onnx import numpy_helper

from tests.support.nets.branch_nets import WIDTH, rated


def fixed(path, rate):
    """The model with a rate that it holds."""
    model = onnx.load(str(path))
    model.graph.input.remove(next(v for v in model.graph.input if v.name == "rate"))
    model.graph.initializer.append(numpy_helper.from_array(np.array(rate), "rate"))
    return model


def ifs(graph):
    """How many there are, in branches too."""
    inner = [a.g for node in graph.node for a in node.attribute if a.HasField("g")]
    return sum(node.op_type == "If" for node in graph.node) + sum(map(ifs, inner))


def ran(model, feed):
    """What a model gives, as one list."""
    data = model.SerializeToString() if isinstance(model, onnx.ModelProto) else str(model)
    return ort.InferenceSession(data, providers=["CPUExecutionProvider"]).run(None, feed)


@pytest.mark.parametrize("rate", [16000, 8000])
@pytest.mark.parametrize("rows", [2, 5])
def test_inline_when_a_constant_decides_keeps_what_the_shape_decides_for_runs(tmp_path, rate, rows):
    path = rated(tmp_path / "m.onnx")
    model = fixed(path, rate)
    assert inline_known_branches(model) == 1
    assert ifs(model.graph) == 1
    onnx.checker.check_model(model, full_check=True)
    random = np.random.default_rng(rows)
    feed = {
        "x": random.standard_normal((rows, WIDTH)).astype(np.float32),
        "state": random.standard_normal((1, WIDTH)).astype(np.float32),
    }
    for own, source in zip(
        ran(model, feed), ran(path, {**feed, "rate": np.array(rate)}), strict=True
    ):
        np.testing.assert_allclose(own, source, rtol=1e-6)
    other = ran(path, {**feed, "rate": np.array(24000 - rate)})
    assert not np.allclose(other[0], ran(model, feed)[0])


@pytest.mark.parametrize("rows", [2, 5])
def test_inline_when_shapes_are_fixed_leaves_no_branch(tmp_path, rows):
    path = rated(tmp_path / "m.onnx", shape=(rows, WIDTH))
    model = fixed(path, 16000)
    assert inline_known_branches(model) == 2
    assert ifs(model.graph) == 0
    onnx.checker.check_model(model, full_check=True)
    feed = {"x": np.ones((rows, WIDTH), np.float32), "state": np.ones((1, WIDTH), np.float32)}
    for own, source in zip(
        ran(model, feed), ran(path, {**feed, "rate": np.array(16000)}), strict=True
    ):
        np.testing.assert_allclose(own, source, rtol=1e-6)


def test_inline_when_the_condition_is_an_input_changes_nothing(tmp_path):
    model = onnx.load(str(rated(tmp_path / "m.onnx")))
    before = model.SerializeToString()
    assert inline_known_branches(model) == 0
    assert model.SerializeToString() == before

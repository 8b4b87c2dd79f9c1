"""What onnxruntime makes of products that are left float between integers."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from edgepack.metrics.accuracy import min_sqnr_db
from edgepack.quantization.qdq.kept_float import write_qdq
from edgepack.quantization.qdq.mixed_width import find_wide_names
from edgepack.quantization.qdq.preparation import prepare_model
from edgepack.quantization.qdq.writer import QdqWriter
from edgepack.quantization.search.pairs import find_pairs
from onnx import TensorProto, helper

from tests.support.nets import int8_nets, tiny_models

FLOAT = np.float32


def three_products(path, middle, activation=None):
    """Conv, then a product whose channels need a scale each, then Conv."""
    random = np.random.default_rng(0)
    uneven = random.standard_normal((4, 4, 1, 1)).astype(FLOAT)
    uneven *= FLOAT([100, 1, 1, 1]).reshape(4, 1, 1, 1)
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"], "first"),
        helper.make_node(middle, ["a", "w1", "b1"], ["m"], "middle"),
        *([helper.make_node(activation, ["m"], ["n"], "activation")] if activation else []),
        helper.make_node("Conv", ["n" if activation else "m", "w2"], ["y"], "last"),
    ]
    level = FLOAT([0.01, 1, 1, 1]).reshape(1, 4, 1, 1)
    constants = [
        ("w0", random.standard_normal((4, 4, 1, 1)).astype(FLOAT)),
        ("w1", uneven if middle == "Conv" else uneven.transpose(1, 0, 2, 3).copy()),
        ("b1", random.standard_normal(4).astype(FLOAT)),
        ("w2", random.standard_normal((4, 4, 1, 1)).astype(FLOAT) * level),
    ]
    value = (TensorProto.FLOAT, [1, 4, 4, 4])
    return onnx.load(tiny_models.save(path, nodes, [("x", *value)], [("y", *value)], constants))


def run(model, feed, level="ORT_ENABLE_ALL"):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.add_session_config_entry("session.x64quantprecision", "1")
    providers = ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=providers)
    return {"y": session.run(None, feed)[0]}


def optimized_db(model, feed):
    """How near what onnxruntime makes of a file is to what the file says."""
    return min_sqnr_db(run(model, feed, "ORT_DISABLE_ALL"), run(model, feed))


@pytest.mark.parametrize("activation", [None, "Relu"])
@pytest.mark.parametrize("middle", ["Conv", "ConvTranspose"])
def test_product_when_left_float_is_what_onnxruntime_computes(tmp_path, middle, activation):
    model = prepare_model(three_products(tmp_path / "net.onnx", middle, activation))
    feed = {"x": np.random.default_rng(1).standard_normal((1, 4, 4, 4)).astype(FLOAT)}
    ranges = {"x": (-4.0, 4.0), "a": (-8.0, 8.0), "y": (-8.0, 8.0)}
    ranges |= {"m": (0.0 if activation else -400.0, 400.0), "n": (0.0, 400.0)}
    writer = QdqWriter(model, ranges, int8_nets.CPU)
    plain, kept = writer.write({"middle"}), write_qdq(writer, {"middle"})
    assert sum(node.op_type == "Max" for node in kept.graph.node) == 1
    assert min_sqnr_db(*(run(m, feed, "ORT_DISABLE_ALL") for m in (plain, kept))) == 200
    # Should this fail, onnxruntime has stopped quantizing by itself, and keep_float can go.
    assert optimized_db(plain, feed) < 25
    assert optimized_db(kept, feed) > 30


def test_model_when_nothing_is_left_float_is_not_changed(tmp_path):
    model = prepare_model(onnx.load(tiny_models.conv_net(tmp_path / "net.onnx", batch=1)))
    names = {name for node in model.graph.node for name in node.output} | {"image"}
    writer = QdqWriter(model, dict.fromkeys(names, (-8.0, 8.0)), int8_nets.CPU)
    assert write_qdq(writer, ()) == writer.write(())


def left_float(path):
    """The float model, and the QDQ model in which its second product stays float."""
    model = prepare_model(three_products(path, "Conv", "Relu"))
    ranges = {"x": (-4.0, 4.0), "a": (-8.0, 8.0), "n": (0.0, 400.0), "y": (-8.0, 8.0)}
    return model, write_qdq(QdqWriter(model, ranges, int8_nets.CPU), {"middle", "activation"})


def test_tensor_when_its_product_is_left_float_keeps_its_name_before_the_pair(tmp_path):
    model, written = left_float(tmp_path / "net.onnx")
    read = [n.input[0] for n in written.graph.node if n.op_type == "QuantizeLinear"]
    assert read == ["x", "a", "n", "y_QuantizeLinear_Input"]
    assert find_pairs(written, {n.output[0] for n in model.graph.node}).keys() == {*"xany"}


def test_wide_tensor_when_its_product_is_left_float_is_known_by_its_name(tmp_path):
    model = prepare_model(three_products(tmp_path / "net.onnx", "Conv"))
    ranges = {"x": (-4.0, 4.0), "a": (-8.0, 8.0), "m": (-400.0, 400.0), "y": (-8.0, 8.0)}
    writer = QdqWriter(model, ranges, int8_nets.CPU, wide=frozenset({"m"}))
    written = write_qdq(writer, {"middle"})
    assert any(node.op_type == "Max" for node in written.graph.node)
    assert "m" in find_wide_names(written)

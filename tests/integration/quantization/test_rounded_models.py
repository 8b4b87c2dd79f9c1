"""Rounded models against plainly rounded ones, on samples that nothing was fitted to."""

from __future__ import annotations

import csv

import numpy as np
import onnx
import onnxruntime
import pytest
from edgepack.quantization.methods.rounding import round_weights
from edgepack.quantization.qdq.preparation import prepare_model
from edgepack.quantization.qdq.writer import QdqWriter
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from tests.support.nets import int8_nets, tiny_models
from tests.support.nets.onnxruntime_writer import extreme_ranges
from tests.support.slow_cases import slow_after

FLOAT = np.float32


def session_of(model):
    options = onnxruntime.SessionOptions()
    # Without it int8 saturates on x86-64 that has no VNNI.
    options.add_session_config_entry("session.x64quantprecision", "1")
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def outputs(model, feeds):
    session = session_of(model)
    return np.concatenate([session.run(None, feed)[0].reshape(1, -1) for feed in feeds])


def gain(model, dialect, feeds, fresh):
    """SQNR in dB on fresh samples of the plainly rounded and of the fitted model."""
    writer = QdqWriter(model, extreme_ranges(model, feeds), dialect)
    found = round_weights(writer, feeds)
    fitted = QdqWriter(
        found.model, writer.ranges, dialect, weight_scales=found.weight_scales
    ).write(())
    exact = outputs(model, fresh)
    errors = (exact - outputs(each, fresh) for each in (writer.write(()), fitted))
    return [10 * np.log10(np.square(exact).sum() / np.square(error).sum()) for error in errors]


class Net:
    """A network in the making, with weights whose channels differ in size as trained ones do."""

    def __init__(self, seed):
        self.random = np.random.default_rng(seed)
        self.nodes, self.constants = [], []

    def add(self, op, *inputs, **attributes):
        output = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, [*inputs], [output], output, **attributes))
        return output

    def constant(self, values):
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(values.astype(FLOAT), name))
        return name

    def conv(self, x, inputs, outputs, kernel=1, **attributes):
        taps = inputs // attributes.get("group", 1)
        sizes = np.exp(self.random.standard_normal((outputs, 1, 1, 1)) / 2)
        weights = self.random.standard_normal((outputs, taps, kernel, kernel)) * sizes
        weights *= np.sqrt(2 / (taps * kernel**2))
        biases = self.random.standard_normal(outputs) / 3
        parts = (self.constant(weights), self.constant(biases))
        return self.add("Conv", x, *parts, pads=[kernel // 2] * 4, **attributes)

    def model(self, output):
        graph = helper.make_graph(
            self.nodes,
            "net",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 16, 16])],
            [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)],
            self.constants,
        )
        opset = [helper.make_opsetid("", 17)]
        return prepare_model(helper.make_model(graph, opset_imports=opset, ir_version=9))


def residual():
    net = Net(1)
    x = net.add("Relu", net.conv("x", 3, 12, 3, strides=[2, 2]))
    for _ in range(3):
        y = net.conv(net.add("Relu", net.conv(x, 12, 16, 3)), 16, 12, 3)
        x = net.add("Relu", net.add("Add", x, y))
    x = net.add("Flatten", net.add("GlobalAveragePool", x))
    weights = net.constant(net.random.standard_normal((12, 6)))
    return net.model(net.add("Gemm", x, weights, net.constant(np.zeros(6))))


def gated():
    """Inverted bottlenecks with HardSwish and a gate of their own means."""
    net = Net(2)
    x = net.add("HardSwish", net.conv("x", 3, 12, 3, strides=[2, 2]))
    for _ in range(3):
        y = net.add("HardSwish", net.conv(x, 12, 24))
        y = net.add("HardSwish", net.conv(y, 24, 24, 3, group=24))
        gate = net.add("Relu", net.conv(net.add("GlobalAveragePool", y), 24, 6))
        gate = net.add("Sigmoid", net.conv(gate, 6, 24))
        x = net.add("Add", x, net.conv(net.add("Mul", y, gate), 24, 12))
    return net.model(net.add("Flatten", net.add("GlobalAveragePool", x)))


def decoder():
    """Down and up again, with a way around."""
    net = Net(3)
    a = net.add("Relu", net.conv("x", 3, 8, 3))
    b = net.add("Relu", net.conv(a, 8, 16, 3, strides=[2, 2]))
    weights = net.constant(net.random.standard_normal((16, 8, 4, 4)) / 8)
    c = net.add("ConvTranspose", b, weights, strides=[2, 2], pads=[1] * 4)
    return net.model(net.conv(net.add("Concat", net.add("Relu", c), a, axis=1), 16, 2, 3))


def smooth_feeds(count, seed):
    """Noise that is smooth in space, as pictures are."""
    random = np.random.default_rng(seed)
    coarse = random.standard_normal((count, 1, 3, 4, 4)).repeat(4, axis=3).repeat(4, axis=4)
    fine = random.standard_normal((count, 1, 3, 16, 16)) / 4
    return [{"x": image} for image in (coarse + fine).astype(FLOAT)]


CASES = [(residual, name) for name in int8_nets.DIALECTS]
CASES += [(net, name) for net in (gated, decoder) for name in ("cpu", "tensorrt", "qnn-8")]


@pytest.mark.parametrize(("net", "name"), slow_after(2, CASES))
def test_net_when_its_weights_are_fitted_is_closer_on_samples_it_has_not_seen(net, name):
    """With a scale per channel these nets lose little by their weights, with one for all much."""
    nearest, fitted = gain(
        net(), int8_nets.DIALECTS[name], smooth_feeds(24, 1), smooth_feeds(40, 2)
    )
    assert fitted > nearest + (0.5 if name == "qnn-8" else -0.2)


def photographs(folder, count):
    """The first photographs as mobilenet_v1_0.25_128 takes them."""
    with (folder / "labels.csv").open(encoding="utf-8", newline="") as file:
        names = [row[0] for row in csv.reader(file) if row[0].endswith((".jpg", ".JPEG"))]
    feeds = []
    for name in names[:count]:
        image = Image.open(folder / "images" / name).convert("RGB")
        image = image.resize((146, 146)).crop((9, 9, 137, 137))
        pixels = np.asarray(image, FLOAT) / FLOAT(127.5) - 1
        feeds.append({"input": np.ascontiguousarray(pixels.transpose(2, 0, 1)[None])})
    return feeds


@pytest.mark.slow(reason="fits a real network")
@pytest.mark.shared_data
@pytest.mark.parametrize(("name", "least_gain_db"), [("cpu", 4), ("qnn-8", 8)])
def test_mobilenet_when_its_weights_are_fitted_gains_much(shared_data, name, least_gain_db):
    folder = shared_data / "imagenet"
    model = prepare_model(onnx.load(folder / "mobilenet_v1_0.25_128_fp32.onnx"))
    feeds = photographs(folder, 48)
    nearest, fitted = gain(model, int8_nets.DIALECTS[name], feeds[:24], feeds[24:])
    assert fitted > nearest + least_gain_db


def test_product_whose_addend_is_computed_is_rounded_without_a_bias(tmp_path):
    random = np.random.default_rng(0)
    weights = [(name, random.standard_normal((16, 16)).astype(FLOAT)) for name in ("v", "w")]
    nodes = [
        helper.make_node("Gemm", ["x", "v"], ["c"], "first"),
        helper.make_node("Gemm", ["x", "w", "c"], ["y"], "second"),
    ]
    value = (TensorProto.FLOAT, [1, 16])
    path = tiny_models.save(tmp_path / "net.onnx", nodes, [("x", *value)], [("y", *value)], weights)
    feeds = [{"x": random.standard_normal((1, 16)).astype(FLOAT)} for _ in range(24)]
    model = prepare_model(onnx.load(path))
    for dialect in (int8_nets.QNN_8, int8_nets.CPU):
        plain, fitted = gain(model, dialect, feeds[:16], feeds[16:])
        assert fitted > plain - 1

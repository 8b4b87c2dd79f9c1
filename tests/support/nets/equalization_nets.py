"""Networks for tests of what is done to activations: small, seeded, with constants of one's own."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx
import onnxruntime
from edgepack.model.reading import write_model
from edgepack.quantization.qdq.preparation import prepare_model
from edgepack.quantization.qdq.writer import find_observed_tensors
from edgepack.quantization.ranges.collecting import collect
from onnx import TensorProto, helper, numpy_helper


@dataclass
class Net:
    """Nodes and constants, one after the other."""

    seed: int = 0
    nodes: list = field(default_factory=list)
    constants: dict = field(default_factory=dict)

    def __post_init__(self):
        self.random = np.random.default_rng(self.seed)

    def add(self, op, inputs, output, **attributes):
        self.nodes.append(helper.make_node(op, inputs.split(), output.split(), **attributes))
        return self

    def constant(self, name, values):
        self.constants[name] = np.asarray(values)
        return self

    def conv(self, read, made, shape, *, spread=0.0, bias=0.1, op="Conv", **attributes):
        """A convolution whose channels are up to ``10 ** spread`` times as wide as others."""
        outputs = shape[0] if op == "Conv" else shape[1] * attributes.get("group", 1)
        weights = self.random.normal(size=shape) / np.sqrt(np.prod(shape[1:]))
        gain = 10 ** self.random.uniform(-spread, 0, outputs)
        if op == "Conv":
            weights *= gain.reshape(-1, *[1] * (len(shape) - 1))
        self.constant(f"w_{made}", weights.astype(np.float32))
        self.constant(f"b_{made}", (gain * bias).astype(np.float32))
        return self.add(op, f"{read} w_{made} b_{made}", made, **attributes)

    def model(self, outputs, shape=(1, 3, 8, 8)):
        graph = helper.make_graph(
            self.nodes,
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs.split()],
            [numpy_helper.from_array(values, name) for name, values in self.constants.items()],
        )
        opset = [helper.make_opsetid("", 17)]
        model = helper.make_model(graph, opset_imports=opset, ir_version=9)
        model = onnx.shape_inference.infer_shapes(model)
        onnx.checker.check_model(model)
        return prepare_model(model)


def images(count, shape=(1, 3, 8, 8), seed=1):
    """Feeds of standard normal noise."""
    random = np.random.default_rng(seed)
    return [{"x": random.normal(size=shape).astype(np.float32)} for _ in range(count)]


def run(model, feeds):
    """The first output, samples joined."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.x64quantprecision", "1")
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return np.concatenate([session.run(None, feed)[0] for feed in feeds])


def statistics_of(model, feeds, folder):
    """What a calibration finds out."""
    write_model(model, folder / "model.onnx")
    return collect(folder / "model.onnx", feeds, find_observed_tensors(model))


def sqnr_db(expected, found):
    """Signal to noise ratio of a whole output."""
    return 10 * np.log10(np.sum(expected**2) / np.sum((expected - found) ** 2))

"""Graphs of a few nodes, and quantized ones made by onnxruntime's quantizer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from edgepack.backends.base import Backend
from edgepack.model.graph import Graph, make_partitioned_graph, read_graph
from edgepack.project.profile import Dialect, Provider, SessionSettings, Variant
from onnx import TensorProto, helper, load

from tests.support.nets.tiny_models import save

FLOAT = TensorProto.FLOAT


def randoms(*shape: int) -> np.ndarray:
    """Seeded normal float32."""
    return np.random.default_rng(3).standard_normal(shape).astype(np.float32)


def graph_of(folder: Path, nodes, inputs, outputs, constants=(), **options) -> Graph:
    """A graph as written, without onnxruntime's optimizations."""
    path = save(folder / "m.onnx", nodes, inputs, outputs, constants, **options)
    return read_graph(load(str(path)))


def one(folder: Path, op: str, shape, constants=(), *, dtype=FLOAT, more=(), **attributes) -> Graph:
    """A graph of one node: input x, then further inputs, then constants; the output is y.

    Args:
        folder: Where the model is written.
        op: The operator.
        shape: Of x.
        constants: (name, array) in the order of the node's inputs; None leaves an input out.
        dtype: Of x.
        more: (name, element type, shape) of computed inputs.
        attributes: Of the node; ``domain``, ``opset`` and ``outputs`` go elsewhere.
    """
    opset, outputs = attributes.pop("opset", 17), attributes.pop("outputs", ["y"])
    given = [constant for constant in constants if constant]
    names = ["x", *(value[0] for value in more), *(c[0] if c else "" for c in constants)]
    node = helper.make_node(op, names, outputs, "n", **attributes)
    inputs = [("x", dtype, shape), *more]
    values = [(name, FLOAT, None) for name in outputs]
    return graph_of(folder, [node], inputs, values, given, opset=opset)


def variant_of(backend: Backend, recipe: str = "fp32", **more) -> Variant:
    """A variant of a backend, with provider options and session config as keywords."""
    dialect = {"activations": "uint8", "weights": "int8", "symmetric": False, "per_channel": False}
    quantized = recipe.startswith("int8")
    return Variant(
        id=f"{backend.name}-{recipe}",
        backend=backend.name,
        recipe=recipe,
        dialect=Dialect(**{**dialect, **more.get("dialect", {})}) if quantized else None,
        providers=[
            Provider(name=backend.provider, options=more.get("options", {})),
            Provider(name="CPUExecutionProvider"),
        ],
        session=SessionSettings(config=more.get("config", {})),
    )


def reasons(backend: Backend, graph: Graph, **more) -> dict[str, str]:
    """Why nodes are refused, by name."""
    found = backend.refusals(graph, variant_of(backend, **more))
    assert all(refusal.remedy for refusal in found.values())
    return {graph.nodes[index].name: refusal.reason for index, refusal in found.items()}


def residual_net(folder: Path) -> Path:
    """Conv, Relu, MaxPool, Conv, Add, GlobalAveragePool, Flatten, Gemm, Softmax of [1, 3, 8, 8]."""
    weights = [
        ("w1", randoms(8, 3, 3, 3)),
        ("b1", randoms(8)),
        ("w2", randoms(8, 8, 3, 3)),
        ("b2", randoms(8)),
        ("w3", randoms(4, 8)),
        ("b3", randoms(4)),
    ]
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c"], "conv1", pads=[1] * 4),
        helper.make_node("Relu", ["c"], ["r"], "relu"),
        helper.make_node("MaxPool", ["r"], ["m"], "max", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["m", "w2", "b2"], ["d"], "conv2", pads=[1] * 4),
        helper.make_node("Add", ["d", "m"], ["a"], "add"),
        helper.make_node("GlobalAveragePool", ["a"], ["g"], "average"),
        helper.make_node("Flatten", ["g"], ["f"], "flatten"),
        helper.make_node("Gemm", ["f", "w3", "b3"], ["s"], "linear", transB=1),
        helper.make_node("Softmax", ["s"], ["y"], "softmax"),
    ]
    inputs, outputs = [("x", FLOAT, [1, 3, 8, 8])], [("y", FLOAT, [1, 4])]
    return save(folder / "float.onnx", nodes, inputs, outputs, weights)


def quantized(
    model: Path,
    activations: str,
    weights: str,
    *,
    per_channel: bool = False,
    symmetric: bool = False,
) -> Path:
    """Quantize a model with inputs x of [1, 3, 8, 8], on random data."""
    from onnxruntime.quantization import (
        CalibrationDataReader,
        QuantFormat,
        QuantType,
        quantize_static,
    )

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.left = [randoms(1, 3, 8, 8) for _ in range(3)]

        def get_next(self):
            return {"x": self.left.pop()} if self.left else None

    kinds = {"uint8": QuantType.QUInt8, "int8": QuantType.QInt8}
    path = model.with_name(f"{activations}-{weights}-{per_channel}.onnx")
    quantize_static(
        str(model),
        str(path),
        Reader(),
        quant_format=QuantFormat.QDQ,
        activation_type=kinds[activations],
        weight_type=kinds[weights],
        per_channel=per_channel,
        extra_options={"ActivationSymmetric": symmetric},
    )
    return path


def quantized_graph(folder: Path, activations: str, weights: str, **options) -> Graph:
    """:func:`residual_net`, quantized, as execution providers see it."""
    return make_partitioned_graph(quantized(residual_net(folder), activations, weights, **options))

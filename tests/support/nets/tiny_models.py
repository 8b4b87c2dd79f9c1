"""Small models built in code, deterministic, one property each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def save(path: Path, nodes, inputs, outputs, initializers=(), *, opset=17, ir=8) -> Path:
    """Write a model; inputs and outputs are (name, element type, shape)."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(*value) for value in inputs],
        [helper.make_tensor_value_info(*value) for value in outputs],
        [numpy_helper.from_array(array, name) for name, array in initializers],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, str(path))
    return path


def conv_net(path: Path, *, batch: int | str = "batch", opset: int = 17) -> Path:
    """Image [batch, 3, 8, 8] to 4 class scores: conv, batch norm, relu, pool, linear."""
    random = np.random.default_rng(1)
    weights = [
        ("w1", random.standard_normal((8, 3, 3, 3)).astype(np.float32)),
        ("gamma", np.ones(8, np.float32)),
        ("beta", np.zeros(8, np.float32)),
        ("mean", np.full(8, 0.1, np.float32)),
        ("var", np.full(8, 1.5, np.float32)),
        ("w2", random.standard_normal((8, 4)).astype(np.float32)),
        ("b2", random.standard_normal(4).astype(np.float32)),
    ]
    nodes = [
        helper.make_node("Conv", ["image", "w1"], ["c"], "conv", pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["c", "gamma", "beta", "mean", "var"], ["n"], "bn"),
        helper.make_node("Relu", ["n"], ["r"], "relu"),
        helper.make_node("GlobalAveragePool", ["r"], ["p"], "pool"),
        helper.make_node("Flatten", ["p"], ["f"], "flat"),
        helper.make_node("Gemm", ["f", "w2", "b2"], ["scores"], "linear"),
    ]
    return save(
        path,
        nodes,
        [("image", TensorProto.FLOAT, [batch, 3, 8, 8])],
        [("scores", TensorProto.FLOAT, [batch, 4])],
        weights,
        opset=opset,
    )


def images(count: int, seed: int = 0) -> np.ndarray:
    """Inputs for :func:`conv_net`: (count, 3, 8, 8) float32."""
    return np.random.default_rng(seed).standard_normal((count, 3, 8, 8)).astype(np.float32)


def relu(path: Path, **options) -> Path:
    """One node, [1, 4] in and out."""
    value = (TensorProto.FLOAT, [1, 4])
    nodes = [helper.make_node("Relu", ["x"], ["y"], "relu")]
    return save(path, nodes, [("x", *value)], [("y", *value)], **options)


def write_project(folder: Path, extra: str = "", *, samples: bool = True, count: int = 24) -> Path:
    """A project with :func:`conv_net`, calibration and labelled evaluation samples."""
    conv_net(folder / "net.onnx")
    lines = ["schema_version: 1", "name: net", "version: 1.2.3", "model: net.onnx"]
    if samples:
        np.savez(folder / "cal.npz", image=images(count, seed=1))
        labels = np.arange(count) % 4
        np.savez(folder / "eval.npz", image=images(count, seed=2), labels=labels)
        lines += [
            "samples:",
            "  calibration: {path: cal.npz}",
            "  evaluation: {path: eval.npz, labels: labels}",
        ]
    path = folder / "edgepack.yaml"
    path.write_text("\n".join([*lines, extra]) + "\n")
    return path

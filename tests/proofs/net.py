"""Small nets that say something: random features, and readouts fitted to them in closed form.

The training samples run through the graph while it grows, so that random layers get outputs of mean
0 and deviation 1, and a readout is the ridge regression of what it should say on what it is given.
"""

from __future__ import annotations

import contextlib
import platform
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.capi import onnxruntime_pybind11_state

Array = np.ndarray[Any, Any]

OPSET = 17
_CPU = Path("/proc/cpuinfo")
IR_VERSION = 8


class Net:
    """A graph that grows node by node. The leading axis of all its values counts samples."""

    def __init__(self, seed: int, **samples: Array) -> None:
        self.random = np.random.default_rng(seed)
        self.samples = samples
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, value: Any, dtype: Any = np.float32) -> str:
        """Add an initializer and return its name."""
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        """Add a node of one output and return the output's name."""
        return self.add_many(op, *inputs, outputs=1, **attributes)[0]

    def add_many(self, op: str, *inputs: str, outputs: int, **attributes: Any) -> list[str]:
        """Add a node and return its outputs' names."""
        number = len(self.nodes)
        names = [f"v{number}" if k == 0 else f"v{number}.{k}" for k in range(outputs)]
        self.nodes.append(helper.make_node(op, list(inputs), names, f"n{number}", **attributes))
        return names

    def values(self, name: str) -> Array:
        """Return a value for all training samples."""
        model = self._model([(name, None)], batch="n")
        return session(model.SerializeToString()).run([name], self.samples)[0]

    def conv(self, x: str, channels: int, kernel: int | list[int], **attributes: Any) -> str:
        """Add a convolution of random weights whose channels have mean 0 and deviation 1.

        ``op`` may be ConvTranspose; pads keep the size unless they are given.
        """
        op = attributes.pop("op", "Conv")
        values = self.values(x)
        rank = values.ndim - 2
        sizes = [kernel] * rank if isinstance(kernel, int) else kernel
        group = attributes.get("group", 1)
        if op == "Conv":
            attributes.setdefault("pads", [k // 2 for k in sizes] * 2)
            shape = [channels, values.shape[1] // group, *sizes]
        else:
            shape = [values.shape[1], channels // group, *sizes]
        weights = self.random.standard_normal(shape)
        raw = self.add(op, x, self.constant(weights), **attributes)
        found = self.values(raw)
        axes = tuple(a for a in range(found.ndim) if a != 1)
        mean, deviation = found.mean(axes), found.std(axes) + 1e-6
        self.nodes.pop()
        self.constants.pop()
        by_output = [-1, *[1] * (weights.ndim - 1)]
        if op != "Conv":
            by_output = [1, -1, *[1] * (weights.ndim - 2)]
            deviation_of_weights = deviation.reshape(group, -1)[0]
        else:
            deviation_of_weights = deviation
        weights = weights / deviation_of_weights.reshape(by_output)
        shift = 0.3 * self.random.standard_normal(channels)
        bias = self.constant(-mean / deviation + shift)
        return self.add(op, x, self.constant(weights), bias, **attributes)

    def dense(self, x: str, units: int) -> str:
        """Add a product with random weights over the last axis, of mean 0 and deviation 1."""
        values = self.values(x)
        weights = self.random.standard_normal((values.shape[-1], units))
        found = values @ weights
        axes = tuple(range(found.ndim - 1))
        mean, deviation = found.mean(axes), found.std(axes) + 1e-6
        product = self.add("MatMul", x, self.constant(weights / deviation))
        shift = 0.3 * self.random.standard_normal(units)
        return self.add("Add", product, self.constant(shift - mean / deviation))

    def fit_dense(self, x: str, wanted: Array, *, ridge: float = 1e-2) -> str:
        """Add the product over the last axis that comes nearest to what is wanted."""
        features = self.values(x)
        weights, bias = _ridge(
            features.reshape(-1, features.shape[-1]), wanted.reshape(-1, wanted.shape[-1]), ridge
        )
        return self.add("Add", self.add("MatMul", x, self.constant(weights)), self.constant(bias))

    def fit_conv(self, x: str, wanted: Array, *, ridge: float = 1e-2) -> str:
        """Add the 1x1 convolution that comes nearest to what is wanted at each place."""
        features = np.moveaxis(self.values(x), 1, -1)
        wanted = np.moveaxis(wanted, 1, -1)
        weights, bias = _ridge(
            features.reshape(-1, features.shape[-1]), wanted.reshape(-1, wanted.shape[-1]), ridge
        )
        kernel = weights.T.reshape(*weights.T.shape, *[1] * (features.ndim - 2))
        return self.add("Conv", x, self.constant(kernel), self.constant(bias))

    def save(
        self, path: Path, free: dict[str, list[int | str]] | None = None, **outputs: str
    ) -> Path:
        """Write the model for one sample at a time.

        Args:
            path: Where to.
            free: Shapes of inputs and outputs that are not the training samples', names where free.
            outputs: What the graph gives, by the outputs' names.
        """
        named = [self.add("Identity", value) for value in outputs.values()]
        pairs = list(zip(outputs, named, strict=True))
        shapes = {name: list(self.values(value).shape) for name, value in pairs}
        types = {name: self.values(value).dtype for name, value in pairs}
        for name, node in zip(outputs, self.nodes[-len(pairs) :], strict=True):
            node.output[0] = name
        described = [
            (name, (types[name], (free or {}).get(name, [1, *shapes[name][1:]])))
            for name in outputs
        ]
        model = self._model(described, batch=1, free=free or {})
        onnx.checker.check_model(model, full_check=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        onnx.save(model, str(path))
        return path

    def _model(
        self, outputs: list[Any], *, batch: int | str, free: dict[str, Any] | None = None
    ) -> onnx.ModelProto:
        inputs = [
            helper.make_tensor_value_info(
                name,
                helper.np_dtype_to_tensor_dtype(array.dtype),
                (free or {}).get(name, [batch, *array.shape[1:]]),
            )
            for name, array in self.samples.items()
        ]
        made = [
            helper.make_empty_tensor_value_info(name)
            if described is None
            else helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(described[0]), described[1]
            )
            for name, described in outputs
        ]
        graph = helper.make_graph(self.nodes, "g", inputs, made, self.constants)
        return helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION
        )


REFUSED = (
    *(kind for kind in vars(onnxruntime_pybind11_state).values()
      if isinstance(kind, type) and issubclass(kind, Exception)),
    RuntimeError,
)  # fmt: skip
"""What onnxruntime raises of a file that it does not load or run; anything else is our fault."""


EXACT = {"session.x64quantprecision": "1"}
"""What has int8 computed exactly on x86-64 without VNNI, whose default kernels saturate
(onnxruntime_session_options_config_keys.h); bundles are run so there."""


def session(model: bytes | str, *, optimized: bool = True) -> ort.InferenceSession:
    """Return a session on this machine's CPU, of one thread, whose int8 kernels are exact.

    onnxruntime 1.31.1 does not load models with these whose nodes share a constant of int8: they
    get the default ones.
    """
    if saturates_by_default():
        with contextlib.suppress(*REFUSED):
            return _session(model, EXACT, optimized=optimized)
    return _session(model, {}, optimized=optimized)


def saturates_by_default() -> bool:
    """Say whether sums of products of uint8 and int8 saturate in this processor's kernels."""
    if platform.machine() not in {"x86_64", "AMD64"}:
        return False
    flags = re.search(r"^flags\s*:(.*)$", _CPU.read_text(), re.MULTILINE)
    return flags is not None and not {"avx512_vnni", "avx_vnni"} & set(flags[1].split())


def _session(
    model: bytes | str, config: dict[str, str], *, optimized: bool
) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    for key, value in config.items():
        options.add_session_config_entry(key, value)
    if not optimized:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _ridge(features: Array, wanted: Array, ridge: float) -> tuple[Array, Array]:
    """Return weights ``(d, k)`` and bias ``(k,)`` of the ridge regression."""
    features, wanted = features.astype(np.float64), wanted.astype(np.float64)
    middle, aim = features.mean(0), wanted.mean(0)
    centred = features - middle
    gram = centred.T @ centred / len(features)
    gram += ridge * np.trace(gram) / len(gram) * np.eye(len(gram))
    weights = np.linalg.solve(gram, centred.T @ (wanted - aim) / len(features))
    return weights, aim - middle @ weights


__all__ = ["Array", "Net", "TensorProto", "session"]

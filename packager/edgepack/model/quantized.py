"""Recognizes models that are not float32: quantized, in which form and types, or float16."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    import onnx

Form = Literal["QDQ", "QOperator", "dynamic", "weight-only", "float16"]

_QUANTIZED_PREFIXES = ("QLinear", "DynamicQuantize", "QAttention", "QGemm", "QEmbed", "QMoE")
_BLOCKWISE = {"MatMulNBits", "GatherBlockQuantized", "MatMulBnb4"}
_INTEGER_PRODUCTS = {"ConvInteger", "MatMulInteger", "MatMulIntegerToFloat"}
_QUANTIZE, _DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
_QUANTIZED_OPS = {_QUANTIZE, _DEQUANTIZE, *_INTEGER_PRODUCTS, *_BLOCKWISE}
# Biases are no weights: 32 bits whatever the dialect is.
_BIAS = "int32"


@dataclass(frozen=True)
class Quantization:
    """How a model is quantized."""

    form: Form
    """``QDQ``: QuantizeLinear and DequantizeLinear around float operators. ``QOperator``: integer
    operators with scales of their own. ``dynamic``: activations quantized while running.
    ``weight-only``: weights alone. ``float16``: most of its constants are in float16."""
    nodes: int = 0
    """How many nodes compute in, or convert to or from, small integers."""
    activations: tuple[str, ...] = ()
    """Of QDQ: the types that QuantizeLinear makes of what depends on the inputs."""
    weights: tuple[str, ...] = ()
    """Of QDQ: the types of constants, stored in them or quantized while running, biases apart."""
    symmetric: bool = False
    """Of QDQ: whether all zero points of activations are 0."""
    per_channel: bool = False
    """Of QDQ: whether any constant has several scales."""
    shifted_weights: bool = False
    """Of QDQ: whether a constant of a signed type may have another zero point than 0."""

    @property
    def state(self) -> str:
        """What the model is, as the end of a sentence."""
        return "float16 already" if self.form == "float16" else f"quantized already ({self})"

    def __str__(self) -> str:
        parts = []
        if self.activations:
            symmetric = "symmetric " if self.symmetric else ""
            parts.append(f"{symmetric}{' and '.join(self.activations)} activations")
        if self.weights:
            scales = "a scale per channel" if self.per_channel else "one scale each"
            shifted = ", not all with zero point 0" if self.shifted_weights else ""
            parts.append(f"{' and '.join(self.weights)} weights with {scales}{shifted}")
        return f"{self.form}{': ' if parts else ''}{', '.join(parts)}"


def find_quantization(model: onnx.ModelProto) -> Quantization | None:
    """Return how a model is quantized, or None for a float32 one; nothing is executed.

    A model without its external data is enough: tensors state their types. Types that a constant
    outside the main graph gives are not found.
    """
    nodes = find_quantized_nodes(model)
    if not nodes:
        return Quantization("float16") if _is_float16(model) else None
    ops = {node.op_type for node in nodes}
    plain = ops <= {_QUANTIZE, _DEQUANTIZE} | _BLOCKWISE
    if not plain:
        dynamic = bool(ops & _INTEGER_PRODUCTS) or any(op.startswith("Dynamic") for op in ops)
        return Quantization("dynamic" if dynamic else "QOperator", len(nodes))
    activations, weights = _find_converted(model, nodes)
    if not activations:
        return Quantization("weight-only", len(nodes))
    return _describe_qdq(_find_constants(model), len(nodes), activations, weights)


def _is_float16(model: onnx.ModelProto) -> bool:
    """Return whether more of a model's constants are float16 than float32."""
    sizes = Counter[str]()
    for tensor in _find_constants(model).values():
        sizes[_find_dtype(tensor)] += math.prod(tensor.dims)
    return sizes["float16"] > sizes["float"]


def _find_converted(
    model: onnx.ModelProto, nodes: list[onnx.NodeProto]
) -> tuple[list[onnx.NodeProto], list[onnx.NodeProto]]:
    """Return the nodes that quantize activations, and those that quantize weights.

    Weights are integers that a DequantizeLinear reads, or, as training leaves them, floats with a
    QuantizeLinear behind them.
    """
    constants = _find_constants(model)
    fixed = set(constants)
    for node in model.graph.node:
        if node.input and fixed.issuperset(filter(None, node.input)):
            fixed.update(node.output)
    written = [node for node in nodes if node.op_type == _QUANTIZE]
    stored = [n for n in nodes if n.op_type == _DEQUANTIZE and n.input[0] in constants]
    return (
        [node for node in written if node.input[0] not in fixed],
        [node for node in written if node.input[0] in fixed]
        + [node for node in stored if _find_dtype(constants[node.input[0]]) != _BIAS],
    )


def _describe_qdq(
    constants: dict[str, onnx.TensorProto],
    count: int,
    activations: list[onnx.NodeProto],
    weights: list[onnx.NodeProto],
) -> Quantization:
    types = [(node, _find_weight_type(node, constants)) for node in weights]
    return Quantization(
        "QDQ",
        count,
        activations=tuple(sorted({_find_made_type(node, constants) for node in activations})),
        weights=tuple(sorted({dtype for _, dtype in types})),
        symmetric=all(_has_zero_point_0(node, constants) for node in activations),
        per_channel=any(
            node.input[1] in constants and np.prod(constants[node.input[1]].dims) > 1
            for node in weights
        ),
        shifted_weights=any(
            dtype.startswith("int") and not _has_zero_point_0(node, constants)
            for node, dtype in types
        ),
    )


def _find_weight_type(node: onnx.NodeProto, constants: dict[str, onnx.TensorProto]) -> str:
    if node.op_type == _DEQUANTIZE:
        return _find_dtype(constants[node.input[0]])
    return _find_made_type(node, constants)


def _find_constants(model: onnx.ModelProto) -> dict[str, onnx.TensorProto]:
    found = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].HasField("t"):
            found[node.output[0]] = node.attribute[0].t
    return found


def _find_dtype(tensor: onnx.TensorProto) -> str:
    from onnx import TensorProto

    return str(TensorProto.DataType.Name(tensor.data_type)).lower()


def _find_made_type(node: onnx.NodeProto, constants: dict[str, onnx.TensorProto]) -> str:
    """Return the type that a QuantizeLinear makes: its zero point's, else uint8."""
    from onnx import TensorProto

    zero = node.input[2] if len(node.input) > 2 else ""
    if zero in constants:
        return _find_dtype(constants[zero])
    said = next((a.i for a in node.attribute if a.name == "output_dtype" and a.i), 0)
    return str(TensorProto.DataType.Name(said)).lower() if said else "uint8"


def _has_zero_point_0(node: onnx.NodeProto, constants: dict[str, onnx.TensorProto]) -> bool:
    from onnx import TensorProto, numpy_helper

    zero = constants.get(node.input[2]) if len(node.input) > 2 else None
    if zero is None:
        return len(node.input) < 3 or not node.input[2]
    outside = zero.data_location == TensorProto.EXTERNAL
    return not outside and not np.any(numpy_helper.to_array(zero))


def find_quantized_nodes(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    """Return the nodes that compute in, or convert to or from, small integers.

    Those of subgraphs and of the model's own functions are among them.
    """
    return [
        node
        for node in walk_nodes(model)
        if node.op_type in _QUANTIZED_OPS or node.op_type.startswith(_QUANTIZED_PREFIXES)
    ]


def walk_nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of the graph, of its subgraphs and of the model's functions."""
    yield from walk_nested(model.graph.node)
    for function in model.functions:
        yield from walk_nested(function.node)


def keep_present(ops: Iterable[str], model: onnx.ModelProto) -> tuple[str, ...]:
    """Return those of some operators that a model has, whatever their domain, in their order."""
    present = {node.op_type for node in walk_nodes(model)}
    return tuple(op for op in ops if op in present)


def walk_nested(nodes: Any) -> Iterator[onnx.NodeProto]:  # noqa: ANN401  (a protobuf container)
    """Yield nodes, each followed by those of its subgraphs."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield from walk_nested(graph.node)

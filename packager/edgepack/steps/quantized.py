"""What the int8 recipes and fp16 have in common: is a model float, and are its outputs numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from edgepack.errors import StepError

if TYPE_CHECKING:
    import onnx

_QUANTIZED_PREFIXES = ("QLinear", "DynamicQuantize", "QAttention", "QGemm", "QEmbed", "QMoE")
_QUANTIZED_OPS = {
    "QuantizeLinear",
    "DequantizeLinear",
    "ConvInteger",
    "MatMulInteger",
    "MatMulIntegerToFloat",
    "MatMulNBits",
    "GatherBlockQuantized",
}


def quantized_nodes(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    """Return the nodes that compute in, or convert to or from, small integers.

    Those of subgraphs and of the model's own functions are among them.
    """
    return [
        node
        for node in every_node(model)
        if node.op_type in _QUANTIZED_OPS or node.op_type.startswith(_QUANTIZED_PREFIXES)
    ]


def require_unquantized(model: onnx.ModelProto) -> None:
    """Refuse a model that is quantized already, wholly or in part.

    Raises:
        StepError: Says how many nodes are, and names the first.
    """
    found = quantized_nodes(model)
    if found:
        raise StepError(
            f"the model is quantized already: {len(found)} such nodes, {found[0].name!r}"
            f" ({found[0].op_type}) first",
            hint="give the float model, or carry this one as it is: --variant cpu-fp32",
        )


def require_finite(outputs: dict[str, Any], reference: dict[str, Any]) -> None:
    """Prove that outputs have NaN or infinity only where the reference has.

    Raises:
        StepError: Names the first output that has more.
    """
    for name, array in outputs.items():
        if not is_finite_as(array, reference[name]):
            raise StepError(
                f"the output {name!r} has NaN or infinity where the float32 model has none",
                hint="this is a fault in edgepack: please report it with the model",
            )


def is_finite_as(array: np.ndarray[Any, Any], reference: np.ndarray[Any, Any]) -> bool:
    """Return whether all values are finite that are finite in the reference.

    Arrays of another shape or of no floats have nothing to compare; only their own values count.
    """
    if array.dtype.kind != "f":
        return True
    bad = ~np.isfinite(array)
    if array.shape == reference.shape and reference.dtype.kind == "f":
        bad &= np.isfinite(reference)
    return not bad.any()


def every_node(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of the graph, of its subgraphs and of the model's functions."""
    yield from _nodes(model.graph.node)
    for function in model.functions:
        yield from _nodes(function.node)


def _nodes(nodes: Any) -> Iterator[onnx.NodeProto]:  # noqa: ANN401  (a protobuf container)
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield from _nodes(graph.node)

"""Finds the tensors of a float model in the QDQ model that was made from it."""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING

from edgepack.quantization.qdq.dialect import DEQUANTIZE, QUANTIZE

if TYPE_CHECKING:
    import onnx


def find_pairs(quantized: onnx.ModelProto, made: Container[str]) -> dict[str, str]:
    """Return what tensors with a Q/DQ pair are called behind it, by the float model's names.

    Where a tensor goes through several pairs, it is the first. They are in the order of the graph.

    Args:
        quantized: The QDQ model.
        made: The tensors that nodes of the float model make.
    """
    graph = quantized.graph
    constants = {tensor.name for tensor in graph.initializer}
    inputs = {value.name for value in graph.input}
    quantizers = {node.output[0]: node for node in graph.node if node.op_type == QUANTIZE}
    found: dict[str, str] = {}
    for node in graph.node:
        source = quantizers.get(node.input[0]) if node.op_type == DEQUANTIZE else None
        if source is None or source.input[0] in constants:
            continue
        raw, rounded = source.input[0], node.output[0]
        # The name of a model's output belongs to the rounded tensor; the raw one has another name.
        name = raw if raw in made or raw in inputs else rounded
        if name in made or name in inputs:
            found.setdefault(name, rounded)
    return found

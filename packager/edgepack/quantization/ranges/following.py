"""Tensors whose statistics follow from those of others, so that they need not be observed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgepack.model.facts import STANDARD
from edgepack.model.quantized import walk_nested
from edgepack.quantization.qdq.preparation import read_clamp

if TYPE_CHECKING:
    import onnx

_MOVING = ("Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Identity")
"""All values of the input are in the output, each once."""


@dataclass(frozen=True)
class Join:
    """A Concat: every value of its inputs is in it, as often as they have it."""

    inputs: tuple[str, ...]
    axis: int
    """From 0."""


@dataclass(frozen=True)
class Bounds:
    """A Relu or Clip: what it reads, and what its output does not leave."""

    input: str
    low: float
    high: float


def find_moves(model: onnx.ModelProto, names: Collection[str]) -> dict[str, str]:
    """Return those of the tensors ``names`` that have the values of another one, with that one.

    Only where the other one has channels, which is from rank 3 on: else it is the moving that shows
    them.
    """
    ranks, found = _read_ranks(model), {}
    for node in _find_nodes(model, *_MOVING):
        source = node.input[0]
        if {source, node.output[0]} <= set(names) and ranks.get(source, 0) >= 3:
            found[node.output[0]] = source
    return found


def find_cuts(model: onnx.ModelProto, names: Collection[str]) -> dict[str, str]:
    """Return those of the tensors ``names`` that only a Relu reads, with its output.

    The values that it cuts off have no effect, so only the rest matters. Unlike them, the output
    can be observed without keeping onnxruntime from fusing. The values that a Clip cuts off matter:
    they limit how far channels before it may be scaled.
    """
    readers = Counter(name for node in walk_nested(model.graph.node) for name in node.input)
    readers.update(value.name for value in model.graph.output)
    made = {name for node in model.graph.node for name in node.output}
    return {
        node.input[0]: node.output[0]
        for node in _find_nodes(model, "Relu")
        if {node.input[0], node.output[0]} <= set(names)
        and node.input[0] in made
        and readers[node.input[0]] == 1
    }


def find_joins(model: onnx.ModelProto, names: Collection[str]) -> dict[str, Join]:
    """Return those of the tensors ``names`` that join others of them.

    Only from rank 4 on: below, which axis counts channels depends on the sizes.
    """
    ranks, found = _read_ranks(model), {}
    for node in _find_nodes(model, "Concat"):
        rank = ranks.get(node.output[0], 0)
        if rank >= 4 and {node.output[0], *node.input} <= set(names):
            axis = next((entry.i for entry in node.attribute if entry.name == "axis"), 1)
            found[node.output[0]] = Join(tuple(node.input), axis % rank)
    return found


def find_clamps(model: onnx.ModelProto, names: Collection[str]) -> dict[str, Bounds]:
    """Return those of the tensors ``names`` that a Relu or Clip makes of another of them.

    Clips are among them if their bounds are constants. None reads the output of another.
    """
    constants = _list_constants(model)
    found: dict[str, Bounds] = {}
    for node in _find_nodes(model, "Relu", "Clip"):
        if not {node.input[0], node.output[0]} <= set(names) or node.input[0] in found:
            continue
        if (ends := read_clamp(node, constants)) and ends[0] <= ends[1]:
            found[node.output[0]] = Bounds(node.input[0], *ends)
    return found


def _read_ranks(model: onnx.ModelProto) -> dict[str, int]:
    """Return the ranks that the model declares; 0 for a scalar, or where it is unknown."""
    graph = model.graph
    return {
        value.name: len(value.type.tensor_type.shape.dim)
        for value in (*graph.value_info, *graph.input, *graph.output)
    }


def _find_nodes(model: onnx.ModelProto, *ops: str) -> Iterator[onnx.NodeProto]:
    return (n for n in model.graph.node if n.op_type in ops and n.domain in STANDARD)


def _list_constants(model: onnx.ModelProto) -> dict[str, onnx.TensorProto]:
    """Return the constants of the main graph; those in other files have no values here."""
    found = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in _find_nodes(model, "Constant"):
        if node.attribute[0].name == "value":
            found[node.output[0]] = node.attribute[0].t
    return {name: tensor for name, tensor in found.items() if not tensor.external_data}

"""Counts a model's matrix products and other products, and the size of its activations."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from edgepack.model.facts import STANDARD
from edgepack.model.reading import read_outline

if TYPE_CHECKING:
    import onnx

MATRIX_PRODUCTS = ("MatMul", "Gemm")
_RECURRENT = ("LSTM", "GRU", "RNN")
# The assumed value of an unknown size: a sequence's length, or the rest of an image's size.
_UNKNOWN = 64
# Larger constants say no shape.
_SMALL = 1024

Dims = Sequence[int | str]


def compute_matrix_share(path: Path) -> float:
    """Return the part of a model's multiply-adds that is in matrix products, 0 to 1.

    Matrix products are MatMul and Gemm with constant weights; the others are convolutions,
    recurrent layers and products of two activations. Shapes are those that onnx infers; sizes that
    are not known count as 64. Bodies of If, Loop and Scan are not looked at. Call it in a worker:
    it runs onnx's shape inference.
    """
    matrix, others = _split_multiply_adds(path, {})
    return matrix / max(1.0, matrix + others)


def count_multiply_adds(path: Path, sizes: Mapping[str, int]) -> float:
    """Return about how often a run multiplies and adds, with ``sizes`` for symbolic dimensions.

    See :func:`compute_matrix_share`.
    """
    return sum(_split_multiply_adds(path, sizes))


def _split_multiply_adds(path: Path, sizes: Mapping[str, int]) -> tuple[float, float]:
    """Return the multiply-adds in matrix products and in others."""
    model = read_outline(path)
    if sizes:
        _set_sizes(model, sizes)
    weights = {t.name: tuple(t.dims) for t in model.graph.initializer}
    shapes = _Shapes(_infer_shapes(model), weights)
    counts = {True: 0.0, False: 0.0}
    for node in model.graph.node:
        if node.domain in STANDARD:
            matrix = node.op_type in MATRIX_PRODUCTS and node.input[1] in weights
            counts[matrix] += shapes.count_multiply_adds(node)
    return counts[True], counts[False]


@dataclass(frozen=True)
class ActivationSizes:
    """The bytes of a model's activations in one run."""

    total_bytes: int
    """Of all tensors together."""
    live_bytes: int
    """The most bytes that are needed at the same time."""


def find_activation_sizes(path: Path, sizes: Mapping[str, int]) -> ActivationSizes:
    """Return the size of a model's activations, with ``sizes`` for symbolic dimensions.

    Every value counts as a float32. Other sizes that nobody knows count as 1 on the first axis,
    which is a batch's as a rule, and as 64 elsewhere; see :func:`compute_matrix_share` for the
    rest.
    """
    model = read_outline(path)
    free = {
        dim.dim_param: 1
        for value in model.graph.input
        for dim in value.type.tensor_type.shape.dim[:1]
        if dim.dim_param
    }
    _set_sizes(model, {**free, **sizes})
    shapes = _Shapes(_infer_shapes(model), {})
    nodes = model.graph.node
    last = {name: k for k, node in enumerate(nodes) for name in node.input}
    last.update((value.name, len(nodes)) for value in model.graph.output)
    live: dict[str, int] = {}
    total = most = 0
    for index, node in enumerate(nodes):
        made = {name: shapes.count_bytes(name) for name in node.output if name}
        total += sum(made.values())
        live.update(made)
        most = max(most, sum(live.values()))
        live = {name: size for name, size in live.items() if last.get(name, 0) > index}
    return ActivationSizes(total, most)


def _set_sizes(model: onnx.ModelProto, sizes: Mapping[str, int]) -> None:
    """Give symbolic dimensions of the inputs their sizes; other shapes are to be inferred anew."""
    for value in model.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in sizes:
                dim.dim_value = sizes[dim.dim_param]
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    del model.graph.value_info[:]


def _infer_shapes(model: onnx.ModelProto) -> Mapping[str, Dims]:
    """Return the shapes of activations; the model's weights are taken out of it."""
    import onnx

    for tensor in model.graph.initializer:
        if prod(tensor.dims) > _SMALL:
            bare = onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
            tensor.CopyFrom(bare)
    # Operators of other domains cause an error; then only the shapes in the file are known.
    with contextlib.suppress(onnx.shape_inference.InferenceError):
        model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    graph = model.graph
    return {
        value.name: [dim.dim_value or dim.dim_param for dim in value.type.tensor_type.shape.dim]
        for value in (*graph.value_info, *graph.input, *graph.output)
        if value.type.tensor_type.HasField("shape")
    }


@dataclass(frozen=True)
class _Shapes:
    activations: Mapping[str, Dims]
    weights: Mapping[str, tuple[int, ...]]

    def count_multiply_adds(self, node: onnx.NodeProto) -> float:
        """Return how often a node multiplies and adds; 0 for one that is no product."""
        if node.op_type in MATRIX_PRODUCTS:
            return self._count_elements(node.output[0]) * self._find_inner_size(node)
        if node.op_type == "Conv":
            return self._count_elements(node.output[0]) * prod(self._find_sizes(node.input[1])[1:])
        if node.op_type == "ConvTranspose":
            return self._count_elements(node.input[0]) * prod(self._find_sizes(node.input[1])[1:])
        if node.op_type in _RECURRENT:
            places = prod(self._find_sizes(node.input[0])[:2])
            return float(places * sum(self._count_elements(name) for name in node.input[1:3]))
        return 0.0

    def count_bytes(self, name: str) -> int:
        """Return the bytes of an activation in float32; 0 where its shape is unknown."""
        dims = self.activations.get(name)
        if dims is None:
            return 0
        unknown = [1, *[_UNKNOWN] * len(dims)]
        return 4 * prod(
            dim if isinstance(dim, int) and dim > 0 else unknown[axis]
            for axis, dim in enumerate(dims)
        )

    def _find_inner_size(self, node: onnx.NodeProto) -> int:
        """Return the length of the dot products of a MatMul or Gemm."""
        turned = any(a.name == "transB" and a.i for a in node.attribute)
        sizes = self._find_sizes(node.input[1])
        return sizes[-1] if turned else sizes[-2] if len(sizes) > 1 else sizes[0] if sizes else 1

    def _count_elements(self, name: str) -> float:
        return float(prod(self._find_sizes(name)))

    def _find_sizes(self, name: str) -> list[int]:
        dims = self.weights.get(name) or self.activations.get(name) or ()
        return [dim if isinstance(dim, int) and dim > 0 else _UNKNOWN for dim in dims]

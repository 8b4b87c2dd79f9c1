"""Counts the multiply-adds of a node from the shapes that it ran with. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod
from typing import Literal

from edgepack.records.run import NodeSizes, PlacedNode, TensorSize

Arithmetic = Literal["float32", "int8", "other"]
"""What a product multiplies: ``other`` is float16, for example."""

_PREFIX = re.compile(r"^(Fused|Nhwc|QLinear|Dynamic|Quantize|Transpose(?=MatMul)|Q(?=Gemm))+")
_CONVOLUTION = re.compile(r"^Conv(Integer)?$")
_TRANSPOSED = re.compile(r"^ConvTranspose")
_MATRIX_PRODUCT = re.compile(r"^(MatMul(Integer|IntegerToFloat|ScaleBias)?|Gemm)$")
_PACKED_PRODUCT = re.compile(r"^MatMul(NBits|Bnb4)$")
_RECURRENT = ("LSTM", "GRU", "RNN")
_UNCOUNTED = re.compile(r"Attention|^(Einsum|QMoE|MoE|DeformConv)$")
"""Operators with products inside, whose number the shapes alone do not tell."""
_LOOKUPS = re.compile(r"^(Gather|QGather|EmbedLayerNormalization)")
"""Operators that read only those parts of a table that they give."""
_VIEWS = ("Reshape", "Squeeze", "Unsqueeze", "Flatten", "Shape", "Size", "Identity")
"""Operators that move no data."""
_EIGHT_BITS = ("int8", "uint8")


def is_product(op: str) -> bool:
    """Return whether a node multiplies tensors with each other: convolutions, matrix products."""
    base = _PREFIX.sub("", op)
    shapes = (_CONVOLUTION, _TRANSPOSED, _MATRIX_PRODUCT, _PACKED_PRODUCT)
    return base in _RECURRENT or any(shape.match(base) for shape in shapes)


def is_packed(op: str) -> bool:
    """Return whether a product's weights have 4 bits, or other formats smaller than int8."""
    return bool(_PACKED_PRODUCT.match(op))


def count_moved_bytes(node: PlacedNode) -> int | None:
    """Return the bytes that a node has to read and write; None where that is not known.

    Of a table that is looked into only what is taken out; nothing where data only gets other dims.
    """
    if node.sizes is None:
        return None
    if node.op in _VIEWS:
        return 0
    return 2 * node.sizes.output_bytes if _LOOKUPS.match(node.op) else node.sizes.moved_bytes


def find_arithmetic(node: PlacedNode) -> Arithmetic:
    """Return in what a product of a node with known sizes is computed.

    It is int8 if either of its two tensors is; of 4-bit weights it is that of the activations.
    """
    found = {each.dtype for each in _list_factors(_get_sizes(node))}
    if _PACKED_PRODUCT.match(node.op):
        found = {_get_sizes(node).inputs[0].dtype}
    if found & {*_EIGHT_BITS}:
        return "int8"
    return "float32" if found == {"float"} else "other"


def count_multiply_adds(node: PlacedNode) -> int | None:
    """Return how often a node multiplies and adds; 0 for one that is no product.

    None where the sizes are not known, or are none that such an operator has.
    """
    sizes = node.sizes
    if sizes is None or not sizes.outputs or _UNCOUNTED.search(node.op):
        return None
    if not is_product(node.op):
        return 0
    factors = _list_factors(sizes)
    if len(factors) < 2:
        return None
    return _count_product(_PREFIX.sub("", node.op), factors, sizes.outputs[0].dims)


def _count_product(base: str, factors: Sequence[TensorSize], output: Sequence[int]) -> int:
    """Return the multiply-adds of a product of tensors."""
    first, second, made = factors[0].dims, factors[1].dims, prod(output)
    if base in _RECURRENT:
        weights = sum(prod(each.dims) for each in factors[1:3])
        return prod(first[:2]) * weights
    if _CONVOLUTION.match(base):
        return made * prod(second[1:])
    if _TRANSPOSED.match(base):
        return prod(first) * prod(second[1:])
    if _PACKED_PRODUCT.match(base):
        return made * first[-1]
    # The last two axes are rows and what is summed over, whichever of them is transposed.
    rows = output[-2] if len(first) > 1 and len(output) > 1 else 1
    return made * prod(first[-2:]) // max(1, rows)


def _list_factors(sizes: NodeSizes) -> list[TensorSize]:
    """Return the tensors that are multiplied, the activation first: scales have one axis or none.

    An activation of a matrix product may have one axis, too.
    """
    return [
        each
        for index, each in enumerate(sizes.inputs)
        if len(each.dims) > 1 or index == 0 < len(each.dims)
    ]


def _get_sizes(node: PlacedNode) -> NodeSizes:
    if node.sizes is None:
        raise ValueError(f"the sizes of {node.name} are not known")
    return node.sizes

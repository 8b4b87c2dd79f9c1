"""SmoothQuant behind normalizations: reduces large channels in the inputs of matrix products.

In transformers, a few channels behind a LayerNormalization are far larger than the others, for all
samples. A product that reads them in 8 bits, with one scale for the tensor, has few steps left for
the others. Dividing each channel before the products and multiplying the products' rows instead
changes nothing in float, and moves part of the spread into weights, which often have the opposite
one. It needs no samples: gamma and beta, and the small weights that training gave to large
channels, show which they are. Source of the idea: Xiao et al., SmoothQuant, arXiv 2211.10438,
strength 0.5.

Measured with onnxruntime 1.31.1, x86-64, 2026-11-21, the worst cosine of 24 sentences' embeddings
with float32, int8-dynamic with int8 weights per channel: 0.989 to 0.991 (all-MiniLM-L6-v2), 0.960
to 0.996 (an encoder of that size, 3 channels of which are made 15 times as large).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from edgepack.base.arrays import Array
from edgepack.model.editing import take_name
from edgepack.model.facts import STANDARD
from edgepack.quantization.qdq.preparation import list_body_reads, read_values

if TYPE_CHECKING:
    import onnx


# A normalized value is within 3 standard deviations, except for one in hundreds.
_DEVIATIONS = 3.0
_SMALLEST = 1e-5
# If all factors are alike, there is nothing to gain.
_WORTHWHILE = 2.0


def smooth_norms(model: onnx.ModelProto) -> list[str]:
    """Divide the large channels that normalizations give to matrix products, in place.

    That is done for each LayerNormalization whose output MatMul or Gemm nodes multiply with
    constant weights of their own. Where nothing else reads it, gamma and beta are divided; else a
    Mul divides what the products read. The outputs are the same, except for rounding.

    Args:
        model: A float32 model with Constant nodes made initializers.

    Returns:
        The names of the norms that were treated.
    """
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    readers = _list_readers(model)
    taken = {name for node in model.graph.node for name in (*node.input, *node.output)}
    taken |= constants.keys() | {node.name for node in model.graph.node}
    inserted: list[tuple[int, onnx.NodeProto]] = []
    done = []
    for index, node in enumerate(model.graph.node):
        if node.op_type != "LayerNormalization" or node.domain not in STANDARD:
            continue
        reading = readers.get(node.output[0], [])
        products = [n for n in reading if n is not None and _is_product(n, node.output[0])]
        own = all(readers[product.input[1]] == [product] for product in products)
        factors = _compute_factors(node, products, constants) if products and own else None
        if factors is None:
            continue
        for product in products:
            shape = (-1, 1) if _find_row_axis(product) == 0 else (1, -1)
            _multiply_tensor(constants[product.input[1]], factors.reshape(shape))
        affine = dict.fromkeys(filter(None, node.input[1:]))
        if reading == products and all(readers[n] == [node] for n in affine):
            for name in affine:
                _multiply_tensor(constants[name], 1 / factors)
        else:
            inserted.append((index + 1, _make_division(model, node, products, factors, taken)))
        done.append(repr(node.name))
    for index, node in reversed(inserted):
        model.graph.node.insert(index, node)
    return done


def _list_readers(model: onnx.ModelProto) -> dict[str, list[onnx.NodeProto | None]]:
    """Return the nodes that read each tensor, bodies included; None means the caller."""
    found: dict[str, list[onnx.NodeProto | None]] = {}
    for node in model.graph.node:
        for name in dict.fromkeys((*node.input, *list_body_reads(node))):
            found.setdefault(name, []).append(node)
    for value in model.graph.output:
        found.setdefault(value.name, []).append(None)
    return found


def _is_product(node: onnx.NodeProto, name: str) -> bool:
    """Return whether a node multiplies the rows of its second operand with a tensor's channels."""
    if node.op_type not in ("MatMul", "Gemm") or node.domain not in STANDARD:
        return False
    plain = not any(entry.name == "transA" and entry.i for entry in node.attribute)
    return plain and node.input[0] == name and name not in node.input[1:]


def _find_row_axis(node: onnx.NodeProto) -> int:
    """Return the axis of the weights that runs along the channels of what they multiply."""
    return 1 if any(entry.name == "transB" and entry.i for entry in node.attribute) else 0


def _compute_factors(
    norm: onnx.NodeProto,
    products: Sequence[onnx.NodeProto],
    constants: Mapping[str, onnx.TensorProto],
) -> Array | None:
    """Return what each channel is divided by, or None if there is no gain or it is unknown."""
    operands = [*filter(None, norm.input[1:]), *(product.input[1] for product in products)]
    if not constants.keys() >= set(operands):
        return None
    gamma, *beta = (np.abs(read_values(constants[name])) for name in norm.input[1:] if name)
    sizes = _DEVIATIONS * gamma + (beta[0] if beta else 0)
    rows = []
    for product in products:
        weights = np.abs(read_values(constants[product.input[1]]))
        if weights.ndim != 2 or weights.dtype != np.float32:
            return None
        rows.append(weights.max(axis=1 - _find_row_axis(product)))
    if sizes.ndim != 1 or not sizes.any() or any(row.shape != sizes.shape for row in rows):
        return None
    sizes = np.maximum(sizes, _SMALLEST * sizes.max())
    largest = np.max(rows, axis=0)
    factors = np.sqrt(sizes / np.maximum(largest, _SMALLEST * max(largest.max(), _SMALLEST)))
    found: Array = (factors / np.median(factors)).astype(np.float32)
    return found if found.max() > _WORTHWHILE else None


def _multiply_tensor(tensor: onnx.TensorProto, factors: Array) -> None:
    from onnx import numpy_helper

    scaled = np.ascontiguousarray(read_values(tensor) * factors)
    tensor.CopyFrom(numpy_helper.from_array(scaled, tensor.name))


def _make_division(
    model: onnx.ModelProto,
    norm: onnx.NodeProto,
    products: Sequence[onnx.NodeProto],
    factors: Array,
    taken: set[str],
) -> onnx.NodeProto:
    """Return the node that divides; the products read it."""
    from onnx import helper, numpy_helper

    name = take_name(f"{norm.output[0]}/smooth", taken)
    inverse = take_name(f"{name}/inverse", taken)
    model.graph.initializer.append(numpy_helper.from_array(1 / factors, inverse))
    for product in products:
        product.input[0] = name
    return helper.make_node("Mul", [norm.output[0], inverse], [name], name)

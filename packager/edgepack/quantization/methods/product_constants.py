"""The weights and biases of products, in a float model and in the QDQ model of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import numpy as np

from edgepack.base.arrays import Array
from edgepack.model.editing import take_name
from edgepack.quantization.methods.gptq import RowGrid
from edgepack.quantization.methods.layers import Product, find_product
from edgepack.quantization.methods.product_inputs import ProductInput
from edgepack.quantization.qdq.dialect import CHANNELED, DEQUANTIZE, find_attribute
from edgepack.quantization.qdq.grid import Grid, find_ends, round_bias
from edgepack.quantization.qdq.preparation import copy_model, count_reads, read_values

if TYPE_CHECKING:
    import onnx

# A bias this close to the end of int32 would make the writer take a larger scale.
_BIAS_MARGIN = 1.001
_INT32_END = float(np.iinfo(np.int32).max)


def give_own_constants(model: onnx.ModelProto, chosen: Collection[str]) -> onnx.ModelProto:
    """Return a copy in which each product has weights and a bias that no other node reads."""
    copy = copy_model(model)
    graph = copy.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    readers = count_reads(graph)
    readers.update(value.name for value in graph.output)
    taken = {name for node in graph.node for name in node.output}.union(readers, constants)
    for node in graph.node:
        product = _find_product(node, constants) if node.name in chosen else None
        if product is None:
            continue
        for place, name in enumerate(node.input):
            if place and name in constants and readers[name] > 1:
                node.input[place] = take_name(f"{name}/{node.name}", taken)
                graph.initializer.add().CopyFrom(constants[name])
                graph.initializer[-1].name = node.input[place]
                constants[node.input[place]] = graph.initializer[-1]
        if node.op_type != "MatMul" and not _find_bias(node):
            groups, outputs, _ = product.make_rows(read_values(constants[node.input[1]])).shape
            name = take_name(f"{node.name}/bias", taken)
            graph.initializer.add().CopyFrom(
                _make_tensor(np.zeros(groups * outputs, np.float32), name)
            )
            node.input[2:] = [name]
    return copy


def _find_product(
    node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto]
) -> Product | None:
    """Return a node as a product of an activation and constant weights, or None if it is none."""
    if node.op_type not in CHANNELED or node.input[0] in constants:
        return None
    weights = constants.get(node.input[1])
    if weights is None or weights.data_type != weights.FLOAT:
        return None
    return find_product(node, weights.dims)


def _find_bias(node: onnx.NodeProto) -> str:
    return node.input[2] if len(node.input) > 2 else ""


def _make_tensor(values: Array, name: str) -> onnx.TensorProto:
    from onnx import numpy_helper

    return numpy_helper.from_array(np.ascontiguousarray(values), name)


class ProductConstants:
    """The constants of all products of a float model and of the QDQ model that was written of it.

    Each change goes into both models, so that they keep representing the same values.
    """

    def __init__(self, model: onnx.ModelProto, written: onnx.ModelProto) -> None:
        """Take a float model whose products share nothing, and its QDQ model; both are changed."""
        self._floats = {tensor.name: tensor for tensor in model.graph.initializer}
        self._stored = {tensor.name: tensor for tensor in written.graph.initializer}
        self._nodes = {node.name: node for node in written.graph.node}
        self._pairs = {n.output[0]: n for n in written.graph.node if n.op_type == DEQUANTIZE}

    def find_product(self, node: onnx.NodeProto) -> Product | None:
        """Return a node as a product of an activation and quantized weights, or None."""
        product = _find_product(node, self._floats)
        quantized = product and self._nodes[node.name].input[1] in self._pairs
        return product if quantized else None

    def find_source(self, node: onnx.NodeProto) -> ProductInput:
        """Return what a product reads in the QDQ model."""
        tensor = self._nodes[node.name].input[0]
        pair = self._pairs.get(tensor)
        if pair is None:
            return ProductInput(tensor, np.float32(1), np.float32(0))
        scale, zero = (read_values(self._stored[name]) for name in pair.input[1:3])
        return ProductInput(pair.input[0], scale, zero.astype(np.float32))

    # --- weights ------------------------------------------------------------------------------

    def read_weights(self, node: onnx.NodeProto) -> Array:
        """Return a product's float weights, as its operator takes them."""
        return read_values(self._floats[node.input[1]])

    def read_weight_integers(self, node: onnx.NodeProto) -> Array:
        """Return a product's quantized weights, as its operator takes them."""
        return read_values(self._stored[self._find_weights(node).input[0]])

    def read_weight_scale(self, node: onnx.NodeProto) -> Array:
        """Return the scale or scales of a product's quantized weights."""
        return read_values(self._stored[self._find_weights(node).input[1]])

    def make_grid(self, node: onnx.NodeProto, product: Product) -> RowGrid:
        """Return the grid of a product's weights; the writer's reaches the largest of them."""
        pair = self._find_weights(node)
        integers, scale, zero = (read_values(self._stored[name]) for name in pair.input)
        if scale.size > 1:
            axis = find_attribute(pair, "axis", 1)
            shape = [-1 if k == axis else 1 for k in range(integers.ndim)]
            spread = np.broadcast_to(scale.reshape(shape), integers.shape)
            scale = product.make_rows(spread)[:, :, :1]
        ends = find_ends(zero.dtype.name, symmetric=True)
        return RowGrid(scale.reshape(scale.shape or (1, 1, 1)), int(zero.ravel()[0]), *ends)

    def compute_least_scale(self, node: onnx.NodeProto) -> float:
        """Return the scale of weights below which a bias would not fit int32."""
        scale = self._compute_bias_scale(node)
        if scale is None:
            return 0.0
        largest = np.abs(read_values(self._floats[_find_bias(node)])).max(initial=0.0)
        return float(
            _BIAS_MARGIN * largest / _INT32_END * np.max(self.read_weight_scale(node) / scale)
        )

    def store_weights(
        self, node: onnx.NodeProto, product: Product, rows: Array, grid: RowGrid
    ) -> None:
        """Store weights that lie on a grid.

        Args:
            node: The product's.
            product: What the node is.
            rows: (groups, outputs, taps) float64.
            grid: The one of the node; only a scale that all weights have may be another.
        """
        integers, scale, zero = self._find_weights(node).input
        if grid.scale.size == 1:
            self._store_values(scale, grid.scale.reshape(read_values(self._stored[scale]).shape))
        kind = read_values(self._stored[zero]).dtype
        self._store_values(
            integers, product.make_weights(grid.round_to_integers(rows)).astype(kind)
        )
        name = node.input[1]
        self._floats[name].CopyFrom(
            _make_tensor(product.make_weights(rows).astype(np.float32), name)
        )

    def _find_weights(self, node: onnx.NodeProto) -> onnx.NodeProto:
        """Return the DequantizeLinear of a product's weights."""
        found: onnx.NodeProto = self._pairs[self._nodes[node.name].input[1]]
        return found

    # --- biases -------------------------------------------------------------------------------

    def read_bias(self, node: onnx.NodeProto, outputs: int) -> Array | None:
        """Return a product's bias if it can be changed: one constant number per output."""
        if _find_bias(node) not in self._floats:
            return None
        values = read_values(self._floats[_find_bias(node)])
        return values if values.shape == (outputs,) else None

    def store_bias(self, node: onnx.NodeProto, values: Array) -> None:
        """Store a bias, (outputs,) float32, as precisely as int32 allows."""
        name, stored = _find_bias(node), _find_bias(self._nodes[node.name])
        scale = self._compute_bias_scale(node)
        if scale is None:
            self._store_values(stored, values)
        else:
            # For a bias that does not fit int32 the writer would take other scales of weights.
            most = (scale * np.float32(_INT32_END / _BIAS_MARGIN)).astype(np.float32)
            values = np.clip(values, -most, most)
            integers, steps, _ = self._pairs[stored].input
            self._store_values(
                integers, round_bias(values, Grid(scale, np.zeros_like(scale, np.int32)))
            )
            self._store_values(steps, scale)
        self._floats[name].CopyFrom(_make_tensor(values, name))

    def _compute_bias_scale(self, node: onnx.NodeProto) -> Array | None:
        """Return the scale or scales of an int32 bias; None where it stays float or is computed."""
        written = self._nodes[node.name]
        if _find_bias(written) not in self._pairs or _find_bias(node) not in self._floats:
            return None
        inputs, weights = (self._pairs[name].input[1] for name in written.input[:2])
        return np.asarray(read_values(self._stored[inputs]) * read_values(self._stored[weights]))

    def _store_values(self, name: str, values: Array) -> None:
        self._stored[name].CopyFrom(_make_tensor(values, name))

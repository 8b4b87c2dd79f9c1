"""Writes weights in blocks of 4 bits: which constants qualify, and the nodes that read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from edgepack.base.arrays import Array
from edgepack.model.editing import take_name
from edgepack.model.facts import STANDARD
from edgepack.quantization.qdq.blockwise import BLOCK, Blocks, fit_scales
from edgepack.quantization.qdq.dialect import find_attribute
from edgepack.quantization.qdq.preparation import (
    copy_model,
    list_read_names,
    read_values,
    replace_items,
)

if TYPE_CHECKING:
    import onnx


PRODUCT = "MatMulNBits"
TABLE = "GatherBlockQuantized"
DOMAIN = "com.microsoft"
SMALLEST = 2048
"""Constants with fewer values stay: axes, anchors, the head of a few classes."""

_ACCURACY_LEVEL = 4
"""Activations may be rounded to int8, block by block. That alone leaves 44 to 47 dB of a product,
where the weights leave 20 to 23; without it a product with one row takes three times as long
(onnxruntime 1.31.1, x86-64 with AVX2, 2026-11-21). Where a processor has no such kernel, they are
float32."""


@dataclass(frozen=True)
class Rows:
    """A constant as a matrix whose rows are cut into blocks."""

    op: str
    """The operator that is to read it."""
    tensor: str
    turned: bool
    """Whether its columns are the rows."""

    def read_matrix(self, constants: Mapping[str, onnx.TensorProto]) -> Array:
        """Return the matrix: (outputs of a product or entries of a table, columns) float32."""
        values = read_values(constants[self.tensor])
        return np.ascontiguousarray(values.T if self.turned else values)


@dataclass(frozen=True)
class BlockwiseWriter:
    """Writes a model's weights in 4 bits.

    It writes the constant right sides of MatMul and Gemm, and tables that Gather reads by their
    first axis. Bodies of If, Loop and Scan stay as they are.
    """

    model: onnx.ModelProto
    """What :func:`~edgepack.quantization.qdq.preparation.prepare_model` gave; it is not changed."""
    constants: Mapping[str, onnx.TensorProto]
    places: Mapping[str, Rows]
    """By the name of the node that reads them: what is written in 4 bits."""
    left: Mapping[str, str]
    """Products with constant weights and large tables that stay as they are, with the reason."""

    @classmethod
    def of(cls, model: onnx.ModelProto) -> BlockwiseWriter:
        """Return a writer for a model."""
        constants = {tensor.name: tensor for tensor in model.graph.initializer}
        found: dict[str, Rows] = {}
        left: dict[str, str] = {}
        for node in model.graph.node:
            rows = _find_rows(node)
            if rows is None or rows.tensor not in constants:
                continue
            reason = _explain_obstacle(rows, constants[rows.tensor])
            if reason is None:
                found[node.name] = rows
            elif rows.op == PRODUCT or prod(constants[rows.tensor].dims) >= SMALLEST:
                left[node.name] = reason
        return cls(model, constants, found, left)

    @property
    def share(self) -> float:
        """The part of the model's float32 constants that is written in 4 bits, 0 to 1."""
        from onnx import TensorProto

        sizes = {
            name: prod(tensor.dims)
            for name, tensor in self.constants.items()
            if tensor.data_type == TensorProto.FLOAT
        }
        taken = {rows.tensor for rows in self.places.values()}
        return float(sum(sizes[name] for name in taken) / max(1, sum(sizes.values())))

    @property
    def bytes_before(self) -> int:
        """What the float32 constants that are written in 4 bits take."""
        taken = {rows.tensor for rows in self.places.values()}
        return sum(4 * prod(self.constants[name].dims) for name in taken)

    @property
    def bytes_after(self) -> int:
        """What they take in blocks: codes, scales and zero points."""
        total = 0
        for rows in set(self.places.values()):
            sizes = self.constants[rows.tensor].dims
            count, columns = sizes[::-1] if rows.turned else sizes
            blocks = -(-columns // BLOCK)
            total += count * (blocks * (BLOCK // 2 + 4) + -(-blocks // 2))
        return total

    @property
    def activations(self) -> Mapping[Rows, tuple[str, ...]]:
        """The tensors that the weights of products are multiplied with."""
        found: dict[Rows, tuple[str, ...]] = {}
        for node in self.model.graph.node:
            rows = self.places.get(node.name)
            if rows is not None and rows.op == PRODUCT:
                found[rows] = (*found.get(rows, ()), node.input[0])
        return found

    def write(self, rounded: Mapping[Rows, Blocks]) -> onnx.ModelProto:
        """Return the model with weights in 4 bits; those not in ``rounded`` are fitted."""
        import onnx

        written = copy_model(self.model)
        graph = written.graph
        made = _Made({*self.constants, *(name for node in graph.node for name in node.output)})
        for rows in dict.fromkeys(self.places.values()):
            matrix = rows.read_matrix(self.constants)
            made.add(rows, rounded.get(rows) or fit_scales(matrix), matrix.shape[1])
        del graph.node[:]
        for node in self.model.graph.node:
            place = self.places.get(node.name)
            graph.node.extend([node] if place is None else made.make_nodes(node, place))
        read = list_read_names(graph)
        kept = [tensor for name, tensor in self.constants.items() if name in read]
        replace_items(graph.initializer, [*kept, *made.tensors])
        if DOMAIN not in {entry.domain for entry in written.opset_import}:
            written.opset_import.append(onnx.helper.make_opsetid(DOMAIN, 1))
        return written


def _find_rows(node: onnx.NodeProto) -> Rows | None:
    """Return the weights of a node as a matrix to cut; None for a node that has none."""
    if node.domain not in STANDARD:
        return None
    if node.op_type == "MatMul":
        return Rows(PRODUCT, node.input[1], turned=True)
    if node.op_type == "Gather" and not find_attribute(node, "axis", 0):
        return Rows(TABLE, node.input[0], turned=False)
    plain = (find_attribute(node, "transA", 0), find_attribute(node, "alpha", 1.0)) == (0, 1.0)
    if node.op_type == "Gemm" and plain and find_attribute(node, "beta", 1.0) == 1.0:
        return Rows(PRODUCT, node.input[1], turned=not find_attribute(node, "transB", 0))
    return None


def _explain_obstacle(rows: Rows, tensor: onnx.TensorProto) -> str | None:
    """Return why a constant stays as it is; None if it can be written in 4 bits."""
    from onnx import TensorProto

    if tensor.data_type != TensorProto.FLOAT:
        return "its weights are not float32"
    if len(tensor.dims) != 2:
        return f"its weights have {len(tensor.dims)} dimensions"
    if prod(tensor.dims) < SMALLEST:
        return f"it has only {prod(tensor.dims)} weights"
    # A table's rows are packed as they are; a product's are filled up.
    if rows.op == TABLE and tensor.dims[1] % BLOCK:
        return f"its rows are no multiple of {BLOCK}"
    if not np.isfinite(read_values(tensor)).all():
        return "its weights have NaN or infinity"
    return None


@dataclass
class _Made:
    """The constants of 4-bit weights, and the nodes that read them."""

    taken: set[str]
    """Names that tensors have."""
    tensors: list[onnx.TensorProto] = field(default_factory=list)
    names: dict[Rows, list[str]] = field(default_factory=dict)
    """Of codes, scales and zero points."""
    shapes: dict[Rows, tuple[int, int]] = field(default_factory=dict)

    def add(self, rows: Rows, blocks: Blocks, columns: int) -> None:
        """Add the constants of one matrix."""
        from onnx import numpy_helper

        codes = blocks.pack_codes()
        arrays = {
            "int4": codes.reshape(len(codes), -1) if rows.op == TABLE else codes,
            "scale": blocks.scales,
            "zero": blocks.pack_zero_points(),
        }
        self.shapes[rows] = len(blocks.codes), columns
        self.names[rows] = [take_name(f"{rows.tensor}_{part}", self.taken) for part in arrays]
        for name, array in zip(self.names[rows], arrays.values(), strict=True):
            self.tensors.append(numpy_helper.from_array(np.ascontiguousarray(array), name))

    def make_nodes(self, node: onnx.NodeProto, rows: Rows) -> list[onnx.NodeProto]:
        """Return what takes a node's place."""
        from onnx import helper

        codes, scales, zeros = self.names[rows]
        count, columns = self.shapes[rows]
        named: dict[str, Any] = {"name": node.name, "domain": DOMAIN, "bits": 4}
        named["block_size"] = BLOCK
        if rows.op == TABLE:
            inputs = [codes, node.input[1], scales, zeros]
            named.update(gather_axis=0, quantize_axis=1)
            return [helper.make_node(TABLE, inputs, node.output, **named)]
        named.update(K=columns, N=count, accuracy_level=_ACCURACY_LEVEL)
        inputs = [node.input[0], codes, scales, zeros]
        if not any(node.input[2:]):
            return [helper.make_node(PRODUCT, inputs, node.output, **named)]
        product = take_name(f"{node.output[0]}_product", self.taken)
        return [
            helper.make_node(PRODUCT, inputs, [product], **named),
            helper.make_node("Add", [product, node.input[2]], node.output, f"{node.name}_bias"),
        ]

"""Defines what a dialect means in a QDQ file, and proves that a file follows it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from edgepack.base.arrays import Array
from edgepack.errors import BugError, StepError
from edgepack.project.profile import Dialect

if TYPE_CHECKING:
    import onnx


WITHOUT_INT8 = "build without int8: --variant cpu-fp32"

QUANTIZE = "QuantizeLinear"
DEQUANTIZE = "DequantizeLinear"
CHANNELED = ("Conv", "ConvTranspose", "Gemm", "MatMul")
"""Products whose weights have channels."""
BIASED = ("Conv", "ConvTranspose", "Gemm")
"""Those of them that can have a bias."""
# A bias is rounded to steps of its scale; float32 products of two scales differ in the last bits.
_SCALE_TOLERANCE = 1e-5


def find_weight_axes(
    nodes: Sequence[onnx.NodeProto],
    dims: Mapping[str, Sequence[int]],
    per_tensor_ops: Collection[str] = (),
) -> dict[str, int | None]:
    """Return, for each constant operand of a product, the axis of the output's channels.

    None stands for a weight that takes one scale for all of it: of an operator in
    ``per_tensor_ops``; of a grouped ConvTranspose, whose channels lie in two axes; a MatMul's first
    operand, or one whose rank is not 2 (onnxruntime 1.31.1 fuses a rank-3 one with a scale per
    column into a QLinearMatMul that fails when it runs, measured 2026-11-21); and one that two
    operators want along different axes.

    Args:
        nodes: In any order.
        dims: Shapes of the constants, by the names that the nodes use.
        per_tensor_ops: Operators whose weights have one scale in any case.
    """
    wanted: dict[str, set[int | None]] = {}
    for node in nodes:
        if node.op_type in CHANNELED:
            for place, name in enumerate(node.input[:2]):
                if name in dims:
                    axis = None if node.op_type in per_tensor_ops else _find_axis(node, place, dims)
                    wanted.setdefault(name, set()).add(axis)
    return {name: axes.pop() if len(axes) == 1 else None for name, axes in wanted.items()}


def _find_axis(node: onnx.NodeProto, place: int, dims: Mapping[str, Sequence[int]]) -> int | None:
    if place == 0:
        return None
    if node.op_type == "Conv":
        return 0
    if node.op_type == "ConvTranspose":
        return 1 if find_attribute(node, "group", 1) == 1 else None
    if node.op_type == "Gemm":
        return 0 if find_attribute(node, "transB", 0) else 1
    return 1 if len(dims[node.input[1]]) == 2 else None


def find_attribute(node: onnx.NodeProto, name: str, default: float) -> float:
    """Return a numeric attribute of a node, or its default where it is missing."""
    import onnx

    for entry in node.attribute:
        if entry.name == name:
            return float(onnx.helper.get_attribute_value(entry))
    return default


def require_dialect(
    model: onnx.ModelProto,
    dialect: Dialect,
    per_tensor_ops: Collection[str] = (),
    wide: Collection[str] = (),
) -> None:
    """Prove that a QDQ model follows a dialect.

    - Every scale and zero point is a constant, scales are positive, and a zero point has the type
      of what it belongs to.
    - Activations have the dialect's type; their zero point is 0 where it is symmetric.
    - Weights, constant operands of convolutions and matrix products, have the dialect's type.
      Signed ones have zero point 0. Where the dialect is per channel they have one scale per
      channel, along the axis that :func:`find_weight_axes` says, and one scale else.
    - Constant biases of operators with quantized input and weights are int32 with zero point 0 and
      the product of their scales as scale, or float constants, as the dialect says.
    - No QuantizeLinear has a constant before it: constants are stored as integers.
    - Other constants (the operand of a Mul, say) have the type of activations, of weights, or,
      where biases are quantized, of a bias: that of a normalization is one.
    - Activations named in ``wide``, those that share their scale, and constants that are combined
      with them have 16 bits (uint16, int16 where the dialect is symmetric), and no others.

    Args:
        model: With all its data.
        dialect: The dialect that it has to follow.
        per_tensor_ops: Operators whose weights have one scale in any case.
        wide: Names of activations of the float model.

    Raises:
        StepError: The model does not; the error names the first wrong node and what was found.
    """
    if not any(node.op_type == QUANTIZE for node in model.graph.node):
        raise StepError("nothing in the model could be quantized", hint=WITHOUT_INT8)
    _Proof(model, dialect, per_tensor_ops, wide).run()


def find_wide_type(dialect: Dialect) -> str:
    """Return the type of activations that have 16 bits in a dialect."""
    return "int16" if dialect.symmetric else "uint16"


@dataclass
class _Proof:
    model: onnx.ModelProto
    dialect: Dialect
    per_tensor_ops: Collection[str]
    wide: Collection[str]
    constants: dict[str, Array] = field(init=False)
    weights: dict[str, onnx.NodeProto] = field(init=False)
    """DequantizeLinear nodes of constants, by their output."""
    made: set[str] = field(init=False)
    """Constants, those of Constant nodes too."""
    sources: dict[str, onnx.NodeProto] = field(init=False)
    """All DequantizeLinear nodes, by their output."""
    wide_parameters: set[str] = field(init=False)
    """Zero points of activations that have 16 bits."""
    beside_wide: set[str] = field(init=False)
    """The inputs of operators that read or write such activations."""

    def __post_init__(self) -> None:
        from onnx import numpy_helper

        self.constants = {
            t.name: np.asarray(numpy_helper.to_array(t)) for t in self.model.graph.initializer
        }
        nodes = self.model.graph.node
        self.made = {n.output[0] for n in nodes if n.op_type == "Constant"} | set(self.constants)
        self.sources = {n.output[0]: n for n in nodes if n.op_type == DEQUANTIZE}
        self.weights = {k: n for k, n in self.sources.items() if n.input[0] in self.constants}
        self.wide_parameters = {n.input[2] for n in self._list_conversions() if self._is_wide(n)}
        values = {
            name
            for n in self._list_conversions()
            if self.wide_parameters.intersection(n.input[2:3])
            for name in (n.input[0], n.output[0])
        }
        self.beside_wide = {
            name for n in nodes if values.intersection((*n.input, *n.output)) for name in n.input
        }

    def _is_wide(self, node: onnx.NodeProto) -> bool:
        """Return whether a conversion is before or behind an activation with 16 bits."""
        name = node.input[0] if node.op_type == QUANTIZE else node.output[0]
        return name in self.wide and len(node.input) > 2

    def run(self) -> None:
        dims = {name: self.constants[n.input[0]].shape for name, n in self.weights.items()}
        axes = find_weight_axes(self.model.graph.node, dims, self.per_tensor_ops)
        biases = {name for _, name in self._list_biases()}
        for node in self._list_conversions():
            scale, zero = self._read_parameters(node)
            if node.op_type == QUANTIZE and node.input[0] in self.made:
                raise _make_error(node, "it quantizes a constant")
            if node.input[0] not in self.constants:
                self._check_activation(node, zero)
            elif node.output[0] in axes:
                self._check_weight(node, scale, zero, axes[node.output[0]])
            elif node.output[0] not in biases:
                self._check_other(node, zero)
        for product, bias in self._list_biases():
            self._check_bias(product, bias)

    def _list_conversions(self) -> Iterator[onnx.NodeProto]:
        return (n for n in self.model.graph.node if n.op_type in (QUANTIZE, DEQUANTIZE))

    def _list_biases(self) -> Iterator[tuple[onnx.NodeProto, str]]:
        """Yield operators with quantized weights and the names of their constant biases."""
        for node in self.model.graph.node:
            if node.op_type in BIASED and len(node.input) > 2 and node.input[1] in self.sources:
                bias = node.input[2]
                if bias in self.constants or bias in self.weights:
                    yield node, bias

    def _read_parameters(self, node: onnx.NodeProto) -> tuple[Array, Array]:
        missing = [name for name in node.input[1:3] if name not in self.constants]
        if missing or len(node.input) < 3:
            raise _make_error(node, "its scale or zero point is no constant")
        scale, zero = (self.constants[name] for name in node.input[1:3])
        if not (np.isfinite(scale).all() and (scale > 0).all()):
            raise _make_error(node, f"its scale is {scale.ravel()[:3]}")
        values = self.constants.get(node.input[0])
        if node.op_type == DEQUANTIZE and values is not None and values.dtype != zero.dtype:
            raise _make_error(node, f"its constant is {values.dtype}, its zero point {zero.dtype}")
        return scale, zero

    def _check_activation(self, node: onnx.NodeProto, zero: Array) -> None:
        is_wide = node.input[2] in self.wide_parameters
        due = find_wide_type(self.dialect) if is_wide else self.dialect.activations
        bad = zero.dtype != due or (self.dialect.symmetric and zero.any())
        if bad or zero.size != 1:
            raise _make_error(node, f"its zero point is {zero.dtype} {zero.ravel()[0]}")

    def _check_weight(
        self, node: onnx.NodeProto, scale: Array, zero: Array, axis: int | None
    ) -> None:
        values = self.constants[node.input[0]]
        if values.dtype != self.dialect.weights:
            raise _make_error(node, f"its weights are {values.dtype}")
        if values.dtype == "int8" and zero.any():
            raise _make_error(node, f"the zero point of its weights is {zero.ravel()[0]}")
        channels = values.shape[axis] if self.dialect.per_channel and axis is not None else 1
        if scale.size != channels:
            raise _make_error(node, f"its weights have {scale.size} scales, not {channels}")
        found = int(find_attribute(node, "axis", 1)) % max(values.ndim, 1)
        if scale.size > 1 and found != axis:
            raise _make_error(node, f"its weights have their scales along axis {found}, not {axis}")
        if (zero != zero.ravel()[0]).any():
            raise _make_error(node, "its weights have different zero points")

    def _check_other(self, node: onnx.NodeProto, zero: Array) -> None:
        types: set[str] = {self.dialect.activations, self.dialect.weights}
        if self.dialect.bias == "int32":
            types.add("int32")
        if node.output[0] in self.beside_wide:
            types.add(find_wide_type(self.dialect))
        if zero.dtype.name not in types:
            raise _make_error(node, f"its constant is {zero.dtype}")
        if zero.any() and (self.dialect.symmetric or zero.dtype == "int32"):
            raise _make_error(node, f"the zero point of its constant is {zero.ravel()[0]}")

    def _check_bias(self, product: onnx.NodeProto, bias: str) -> None:
        if self.dialect.bias == "float32" or product.input[0] not in self.sources:
            if bias not in self.constants:
                raise _make_error(product, "its bias is quantized")
            return
        if bias not in self.weights:
            raise _make_error(product, "its bias is float")
        node = self.weights[bias]
        scale, zero = self._read_parameters(node)
        if zero.dtype != "int32" or zero.any():
            raise _make_error(
                node, f"it is a bias with the zero point {zero.dtype} {zero.ravel()[0]}"
            )
        inputs = [self.constants[self.sources[name].input[1]] for name in product.input[:2]]
        due = np.float64(inputs[0]).ravel() * np.float64(inputs[1]).ravel()
        if not np.allclose(scale.ravel(), due, rtol=_SCALE_TOLERANCE, atol=0):
            raise _make_error(node, "the scale of its bias is not that of input times weights")


def _make_error(node: onnx.NodeProto, found: str) -> BugError:
    return BugError(f"node {node.name!r} is not in the dialect that was asked for: {found}")

"""Operators of one width in a model that has activations of 8 and of 16 bits.

A provider that computes in both (QNN) takes an operator whose activations all have the same width.
So where an operator reads or writes an activation of 16 bits, its others are converted: a pair of 8
bits is followed, or preceded, by one of 16. Every step of uint8 is one of uint16, so widening loses
nothing. DequantizeLinear -> QuantizeLinear is the form of such a conversion; the same form is in
``MixedPrecisionTensorQuantOverridesFixer`` of onnxruntime 1.31.1, which was made for QNN.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from edgepack.base.arrays import Array
from edgepack.errors import BugError
from edgepack.quantization.qdq.dialect import BIASED, CHANNELED, DEQUANTIZE, QUANTIZE
from edgepack.quantization.qdq.preparation import read_values, replace_items

if TYPE_CHECKING:
    import onnx


_STEPS = 257
"""The number of uint16 steps in one uint8 step, where both cover the same range."""
_INT32_MAX = int(np.iinfo(np.int32).max)


def unify_widths(model: onnx.ModelProto) -> None:
    """Convert, in place, so that the activations of each operator have one width.

    Args:
        model: A QDQ model whose activations are uint8, and uint16 where more is needed.
    """
    _Unifying(model).run()


def require_one_width(model: onnx.ModelProto) -> None:
    """Prove that the activations of each operator of a QDQ model have one width.

    Raises:
        StepError: An operator mixes widths; the error names the first one.
    """
    found = _Unifying(model)
    for node in model.graph.node:
        if node.op_type not in (QUANTIZE, DEQUANTIZE) and found.is_mixed(node):
            raise BugError(f"node {node.name!r} has activations of 8 and of 16 bits")


def find_wide_names(model: onnx.ModelProto) -> frozenset[str]:
    """Return the tensors before and behind pairs of 16 bits, without those between two widths."""
    from onnx import TensorProto

    kinds = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    wide: set[str] = set()
    narrow: set[str] = set()
    for node in model.graph.node:
        if node.op_type in (QUANTIZE, DEQUANTIZE) and len(node.input) > 2:
            name = node.input[0] if node.op_type == QUANTIZE else node.output[0]
            is_wide = kinds.get(node.input[2]) in (TensorProto.UINT16, TensorProto.INT16)
            (wide if is_wide else narrow).add(name)
    return frozenset(wide - narrow)


@dataclass
class _Unifying:
    model: onnx.ModelProto
    constants: dict[str, Array] = field(init=False)
    sources: dict[str, onnx.NodeProto] = field(init=False)
    """DequantizeLinear nodes, by their output."""
    sinks: dict[str, onnx.NodeProto] = field(init=False)
    """QuantizeLinear nodes, by their input."""
    widened: dict[tuple[str, int], str] = field(default_factory=dict)
    """By dequantized tensor and factor: its name behind a pair of 16 bits."""

    def __post_init__(self) -> None:
        graph = self.model.graph
        self.constants = {tensor.name: read_values(tensor) for tensor in graph.initializer}
        self.sources = {n.output[0]: n for n in graph.node if n.op_type == DEQUANTIZE}
        self.sinks = {n.input[0]: n for n in graph.node if n.op_type == QUANTIZE}
        self.domain = next((n.domain for n in graph.node if self._is_wide(n)), "")

    def run(self) -> None:
        nodes: list[onnx.NodeProto] = []
        for node in self.model.graph.node:
            behind: list[onnx.NodeProto] = []
            if node.op_type not in (QUANTIZE, DEQUANTIZE) and self.is_mixed(node):
                nodes += self._widen_inputs(node)
                behind = list(self._widen_outputs(node))
            nodes += [node, *behind]
        replace_items(self.model.graph.node, nodes)

    def _list_pairs(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        """Yield the nodes that convert an operator's activations: before it, and behind it."""
        for name in node.input:
            source = self.sources.get(name)
            if source is not None and self._is_activation(node, name):
                yield source
        for name in node.output:
            if name in self.sinks:
                yield self.sinks[name]

    def _is_activation(self, node: onnx.NodeProto, name: str) -> bool:
        """Return whether a tensor is no weight or bias of a product."""
        constant = self.sources[name].input[0] in self.constants
        return not (constant and node.op_type in CHANNELED)

    def _is_wide(self, node: onnx.NodeProto) -> bool:
        known = node.op_type in (QUANTIZE, DEQUANTIZE) and node.input[2] in self.constants
        return known and self.constants[node.input[2]].dtype.itemsize == 2

    def is_mixed(self, node: onnx.NodeProto) -> bool:
        return len({self._is_wide(pair) for pair in self._list_pairs(node)}) == 2

    def _widen_inputs(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        for place, name in enumerate(node.input):
            source = self.sources.get(name)
            if source is None or self._is_wide(source) or not self._is_activation(node, name):
                continue
            factor = _STEPS
            if place == 0 and (bias := self._find_bias(node)) is not None:
                factor = min(factor, _INT32_MAX // max(1, int(np.abs(bias).max(initial=0))))
                yield self._rescale_bias(node, factor)
            if (name, factor) not in self.widened:
                yield from self._make_widening(source, name, factor)
            node.input[place] = self.widened[name, factor]

    def _widen_outputs(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        for name in node.output:
            sink = self.sinks.get(name)
            if sink is not None and not self._is_wide(sink):
                yield from self._make_widening(sink, name, _STEPS)
                sink.input[0] = self.widened[name, _STEPS]

    def _make_widening(
        self, pair: onnx.NodeProto, tensor: str, factor: int
    ) -> Iterator[onnx.NodeProto]:
        """Yield a pair of uint16 whose steps are those of a pair of uint8, divided."""
        import onnx

        scale, zero = (self.constants[name] for name in pair.input[1:3])
        stem = f"{tensor}/{factor}"
        parameters = [
            self._add_constant(f"{stem}_scale", (scale / np.float32(factor)).astype(np.float32)),
            self._add_constant(f"{stem}_zero_point", np.array(int(zero) * factor, np.uint16)),
        ]
        integers, wide = f"{stem}_wide_integers", f"{stem}_wide"
        self.widened[tensor, factor] = wide
        ends = ((QUANTIZE, tensor, integers), (DEQUANTIZE, integers, wide))
        for op, source, made in ends:
            yield onnx.helper.make_node(
                op, [source, *parameters], [made], f"{made}_{op}", domain=self.domain
            )

    def _find_bias(self, node: onnx.NodeProto) -> Array | None:
        """Return a product's quantized bias as integers."""
        if node.op_type not in BIASED or len(node.input) < 3 or node.input[2] not in self.sources:
            return None
        return self.constants.get(self.sources[node.input[2]].input[0])

    def _rescale_bias(self, node: onnx.NodeProto, factor: int) -> onnx.NodeProto:
        """Give a product a bias of its own, in steps of its new input's scale."""
        import onnx

        source = self.sources[node.input[2]]
        integers, scale, zero = (self.constants[name] for name in source.input[:3])
        own = onnx.NodeProto()
        own.CopyFrom(source)
        own.name, own.output[0] = f"{source.name}/{node.name}", f"{node.input[2]}/{node.name}"
        scaled = (scale / np.float32(factor)).astype(np.float32)
        for place, array in enumerate((integers * np.int32(factor), scaled, zero)):
            own.input[place] = self._add_constant(f"{source.input[place]}/{node.name}", array)
        node.input[2] = own.output[0]
        return own

    def _add_constant(self, name: str, array: Array) -> str:
        from onnx import numpy_helper

        self.model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
        self.constants[name] = np.asarray(array)
        return name

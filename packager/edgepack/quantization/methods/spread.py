"""Activations whose parts differ so much in range that one Q/DQ pair would erase the smaller ones.

A detector puts boxes of 0 to 640 pixels next to scores of 0 to 1 in one tensor. With the 256 steps
of one pair, of 2.5 each, every score becomes 0, and the tensor as a whole is still 40 dB from the
float one. Such tensors are found from ranges and the graph, never from names:

- What a Concat joins, wherever it is.
- Channels of a tensor in a *head*: it becomes an output of the model by operators that treat
  channels apart (elementwise, moving, splitting), and no product reads it. Anywhere else a channel
  of small range is one feature among many, as every ReLU layer has them.
- The sums that a LayerNormalization reads, and what it makes, unless a product reads that: the
  residual stream of transformers, in which a few channels are far larger than all others. Where the
  search finds one, only what products read remains to be quantized.

A Concat or head includes the tensors made from it, up to the next product or split. A head also
includes the tensors that only it is made of, back to the last products: between floats, integers
would cost conversions and save nothing.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from edgepack.metrics.accuracy import SIMILAR_RANGE
from edgepack.model.facts import STANDARD
from edgepack.quantization.ranges.statistics import TensorStatistics

if TYPE_CHECKING:
    import onnx


_MOVING = frozenset({
    "Concat", "Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Expand",
    "Tile", "Pad", "DepthToSpace", "SpaceToDepth", "Resize", "Upsample", "MaxPool", "AveragePool",
    "ScatterND",
})  # fmt: skip
"""Each value of the output is one of the input's, or a mean of neighbours in one channel."""
_SCALING = frozenset({
    "Add", "Sub", "Mul", "Div", "Pow", "Sqrt", "Exp", "Log", "Neg", "Abs", "Max", "Min", "Sum",
    "Where", "Relu", "LeakyRelu", "PRelu", "Elu", "Selu", "Celu", "Gelu", "Softplus", "HardSwish",
    "Mish", "Clip", "Floor", "Ceil", "Round", "Reciprocal",
})  # fmt: skip
"""Value by value: parts of unequal range stay unequal."""
_LEVELLING = frozenset({
    "Sigmoid", "HardSigmoid", "Softmax", "LogSoftmax", "Tanh", "Softsign", "Erf",
    "BatchNormalization", "InstanceNormalization",
})  # fmt: skip
"""They give the parts new ranges."""
_SPLITTING = frozenset({
    "Slice", "Split", "Gather", "GatherND", "GatherElements", "Compress",
})  # fmt: skip
"""Their outputs may have only one of the parts."""
_DECIDING = frozenset({
    "ArgMax", "ArgMin", "TopK", "NonMaxSuppression", "Greater", "Less", "Equal",
})  # fmt: skip
"""They read results: their inputs count as outputs."""
_PRODUCTS = frozenset({
    "Conv", "ConvTranspose", "Gemm", "MatMul", "Einsum", "LSTM", "GRU", "RNN", "DeformConv",
    "Attention",
})  # fmt: skip
_MATRIX = frozenset({"Gemm", "MatMul"})
_NORMS = frozenset({"LayerNormalization", "RMSNormalization"})
_KEEPING = _MOVING | _SCALING
_THROUGH = _KEEPING | _LEVELLING
# A part smaller than the float32 rounding error of the largest value counts as zero.
_NOTHING = float(np.finfo(np.float32).eps)


def find_spread_tensors(
    model: onnx.ModelProto,
    statistics: Mapping[str, TensorStatistics],
    similar_range: float = SIMILAR_RANGE,
) -> dict[str, str]:
    """Return the activations that should have no Q/DQ pair of 8 bits, each with the reason.

    Parts with only zeros, or with values that float32 rounds away beside the largest one, do not
    count. Tensors without statistics are not known to differ from anything.

    Args:
        model: A float model; nodes in topological order. Weights are not read, except for
            constants that a Concat joins. Bodies of If, Loop and Scan are left out.
        statistics: Of activations, by name.
        similar_range: The factor by which the largest magnitudes may differ. The default is what 8
            bits allow: 4 bits remain for the smallest part. With 16 bits, 4 bits remain at 256
            times the factor.
    """
    return _Heads(model, statistics, similar_range).find()


@dataclass(frozen=True)
class _Parts:
    """The parts of a tensor that differ most in range."""

    small: str
    small_peak: float
    large: str
    large_peak: float

    def __str__(self) -> str:
        return (
            f"{self.large} reaches {self.large_peak:.3g}, {self.small} only {self.small_peak:.3g}"
        )


@dataclass
class _Heads:
    model: onnx.ModelProto
    statistics: Mapping[str, TensorStatistics]
    similar_range: float
    found: dict[str, str] = field(default_factory=dict)

    def find(self) -> dict[str, str]:
        for node in self.model.graph.node:
            for name in filter(None, node.output):
                if reason := self._explain_node(node, name):
                    self.found[name] = reason
        for node in reversed(self.model.graph.node):
            if _is(node, _THROUGH | _SPLITTING):
                self._follow_back(node)
        found = {**self._find_streams(), **self.found}
        return {name: why for name, why in found.items() if name in self.statistics}

    def _find_streams(self) -> dict[str, str]:
        """Return the residual streams in which most values are small beside the largest.

        The result includes what no product reads and what is not moved to one: sums, activation
        functions, outputs of matrix products, whose integer kernels can give floats.
        """
        found: dict[str, str] = {}
        inner: set[str] = set()
        for node in self.model.graph.node:
            name = node.output[0]
            readers = self._ends.readers.get(name, [])
            if name in self._ends.moved or name in self._outputs:
                continue
            near = _is(node, _NORMS) or any(_is(reader, _NORMS) for reader in readers)
            if near and _is(node, _NORMS | {"Add"}) and (parts := self._find_outliers(name)):
                found[name] = str(parts)
            elif _is(node, _SCALING | _NORMS | _MATRIX):
                inner.add(name)
        if not found:
            return {}
        why = f"no product reads it, as none reads {next(iter(found))!r}, which stays float"
        return {**dict.fromkeys(sorted(inner), why), **found}

    def _find_outliers(self, name: str) -> _Parts | None:
        known, peak = self.statistics.get(name), self._find_peak(name)
        if known is None or peak is None:
            return None
        return self._split_apart({"half of its values": _median(known), "the largest": peak})

    def _explain_node(self, node: onnx.NodeProto, output: str) -> str:
        if _is(node, {"Concat"}) and (parts := self._join_parts(node, output)):
            return str(parts)
        if output in self._ends.heads and (parts := self._find_channels(output)):
            return str(parts)
        if _is(node, _KEEPING):
            for name in node.input:
                if name in self.found:
                    return _format_reason(name, self.found[name])
        return ""

    def _join_parts(self, node: onnx.NodeProto, output: str) -> _Parts | None:
        peaks = {
            repr(name): peak for name in node.input if (peak := self._find_peak(name)) is not None
        }
        # An input may have no statistics; the output's include those of all inputs.
        if (whole := self._find_peak(output)) is not None:
            peaks["another"] = whole
        return self._split_apart(peaks)

    def _find_channels(self, name: str) -> _Parts | None:
        known = self.statistics.get(name)
        if known is None or known.channel_low is None or known.channel_high is None:
            return None
        if name in self._vectors:
            return None
        peaks = np.maximum(np.abs(known.channel_low), np.abs(known.channel_high))
        return self._split_apart({f"channel {n}": float(peak) for n, peak in enumerate(peaks)})

    def _split_apart(self, peaks: Mapping[str, float]) -> _Parts | None:
        """Return the smallest and the largest part, if they are too far apart."""
        if not peaks:
            return None
        large = max(peaks, key=lambda part: peaks[part])
        counted = {p: v for p, v in peaks.items() if v > peaks[large] * _NOTHING}
        if not counted:
            return None
        small = min(counted, key=lambda part: counted[part])
        if counted[small] * self.similar_range >= peaks[large]:
            return None
        return _Parts(small, counted[small], large, peaks[large])

    def _find_peak(self, name: str) -> float | None:
        """Return the largest magnitude of a tensor, or None where it is not known."""
        if known := self.statistics.get(name):
            return max(abs(known.low), abs(known.high))
        return self._constants.get(name)

    def _follow_back(self, node: onnx.NodeProto) -> None:
        """Add the node's outputs from which only tensors of a head are made, all found already."""
        for name in filter(None, node.output):
            makes = [o for reader in self._ends.readers.get(name, []) for o in reader.output if o]
            inner = name in self._ends.heads and name not in self._outputs
            if name not in self.found and inner and makes and self.found.keys() >= set(makes):
                self.found[name] = f"nothing but {makes[0]!r}, which stays float, is made of it"

    @cached_property
    def _outputs(self) -> set[str]:
        return {value.name for value in self.model.graph.output}

    @cached_property
    def _vectors(self) -> set[str]:
        """Tensors of one vector per sample, such as class scores: its values are of one kind."""
        graph = self.model.graph
        return {v.name for v in (*graph.value_info, *graph.output) if _is_vector(v)}

    @cached_property
    def _ends(self) -> _Ends:
        return _find_ends(self.model, self._outputs)

    @cached_property
    def _constants(self) -> dict[str, float]:
        """The largest magnitude of each float constant that a Concat joins."""
        from onnx import numpy_helper

        joined = {n for node in self.model.graph.node if _is(node, {"Concat"}) for n in node.input}
        found: dict[str, float] = {}
        for tensor in self.model.graph.initializer:
            if tensor.name in joined:
                values = np.asarray(numpy_helper.to_array(tensor))
                if values.dtype.kind == "f" and values.size:
                    found[tensor.name] = float(np.max(np.abs(values)))
        return found


@dataclass(frozen=True)
class _Ends:
    """Where the tensors of a graph end up."""

    readers: Mapping[str, list[onnx.NodeProto]]
    heads: frozenset[str]
    """Tensors that become an output with their channels apart, and that no product reads."""
    moved: frozenset[str]
    """Tensors that products read, themselves or after no more than moving."""


def _find_ends(model: onnx.ModelProto, outputs: set[str]) -> _Ends:
    readers: dict[str, list[onnx.NodeProto]] = {}
    arrives, multiplied, moved = set(outputs), set[str](), set[str]()
    for node in reversed(model.graph.node):
        made = set(filter(None, node.output))
        through = _is(node, _THROUGH)
        for name in dict.fromkeys(filter(None, node.input)):
            readers.setdefault(name, []).append(node)
            if _is(node, _DECIDING) or (_is(node, _THROUGH | _SPLITTING) and made & arrives):
                arrives.add(name)
            if _is(node, _PRODUCTS) or (through and made & multiplied):
                multiplied.add(name)
            if _is(node, _PRODUCTS) or (_is(node, _MOVING | _SPLITTING) and made & moved):
                moved.add(name)
    return _Ends(readers, frozenset(arrives - multiplied), frozenset(moved))


def _is(node: onnx.NodeProto, ops: Container[str]) -> bool:
    return node.op_type in ops and node.domain in STANDARD


def _format_reason(name: str, reason: str) -> str:
    return reason if reason.startswith("made of ") else f"made of {name!r}: {reason}"


def _median(known: TensorStatistics) -> float:
    """Return the magnitude below which half of the values are, to the width of a bin."""
    edges = (known.first + np.arange(len(known.counts) + 1)) * known.width
    magnitudes = np.maximum(np.abs(edges[:-1]), np.abs(edges[1:]))
    order = np.argsort(magnitudes, kind="stable")
    reached = np.cumsum(known.counts[order])
    return float(magnitudes[order][np.searchsorted(reached, reached[-1] / 2)])


def _is_vector(value: onnx.ValueInfoProto) -> bool:
    """Return whether it is known that a sample has values along one axis only."""
    kind = value.type.tensor_type
    sizes = [dim.dim_value if dim.HasField("dim_value") else 0 for dim in kind.shape.dim[1:]]
    return bool(kind.HasField("shape")) and sum(size != 1 for size in sizes) < 2

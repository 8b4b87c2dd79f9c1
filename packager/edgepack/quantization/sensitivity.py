"""What each node's weights and each tensor's rounding cost on their own, from one pass.

The quantized model is cut at its Q/DQ pairs, and every piece gets the exact values of the float
model as inputs. So an error is that of one place, not what came down from those before it, and a
few samples are enough for all places at once. What an error does to the model's outputs is another
question: that only running the model without it tells, which is worth it for the largest alone.
"""

from __future__ import annotations

import tempfile
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edgepack.accuracy import OutputCloseness
from edgepack.model.reading import write_model
from edgepack.model.running import Arrays, make_session, run_session
from edgepack.quantization.dialect import DEQUANTIZE, QUANTIZE

if TYPE_CHECKING:
    import onnx

Array = np.ndarray[Any, Any]
_TINY = 1e-300


@dataclass(frozen=True)
class NodeLoss:
    """What the quantized constants of nodes cost where their inputs are exact."""

    tensor: str
    """The tensor that the nodes make, as the float model names it."""
    nodes: tuple[str, ...]
    """The nodes that make it from tensors with a Q/DQ pair, in topological order."""
    loss: float
    """Energy of the error over energy of the tensor, the mean over channels; 0 to 1."""


@dataclass(frozen=True)
class TensorLoss:
    """What rounding a tensor in its Q/DQ pair costs where its values are exact."""

    tensor: str
    """As the float model names it."""
    loss: float
    """Energy of the error over energy of the tensor, the mean over channels; 0 to 1."""


@dataclass(frozen=True)
class Sensitivity:
    """The errors of all places of a quantized model, each on its own."""

    nodes: tuple[NodeLoss, ...]
    """Largest loss first."""
    tensors: tuple[TensorLoss, ...]
    """Largest loss first."""


def sensitivity(
    reference: onnx.ModelProto, quantized: onnx.ModelProto, feeds: Iterable[Mapping[str, Array]]
) -> Sensitivity:
    """Return the error of each place of a quantized model.

    A loss is a mean over channels because a channel of small values may count as much as one of
    large ones: the weights behind it see to that. Channels are those of
    :class:`edgepack.accuracy.OutputCloseness`. Needs memory for the activations of one sample,
    twice.

    Args:
        reference: The float model, with the tensor names of ``quantized``.
        quantized: A QDQ model made from it.
        feeds: A few samples.

    Raises:
        ModelError: onnxruntime refuses a model.
    """
    produced = {name for node in reference.graph.node for name in node.output}
    pieces = _Pieces(quantized, produced)
    weights = {name: OutputCloseness() for name in pieces.made}
    rounding = {name: OutputCloseness() for name in pieces.pairs}
    for exact, found in _run(reference, pieces, feeds):
        for name, one in weights.items():
            one.add(exact[name], pieces.clipped(name, found[pieces.made[name]]))
        for name, one in rounding.items():
            one.add(exact[name], found[pieces.pairs[name]])
    nodes = [
        NodeLoss(name, pieces.nodes_of(name), channel_loss(one)) for name, one in weights.items()
    ]
    tensors = [TensorLoss(name, channel_loss(one)) for name, one in rounding.items()]
    return Sensitivity(
        tuple(sorted(nodes, key=lambda each: -each.loss)),
        tuple(sorted(tensors, key=lambda each: -each.loss)),
    )


def _run(
    reference: onnx.ModelProto, pieces: _Pieces, feeds: Iterable[Mapping[str, Array]]
) -> Iterator[tuple[Arrays, Arrays]]:
    """Yield, for each sample, the float model's tensors and those of the pieces."""
    watched = with_outputs(reference, sorted({*pieces.exact, *pieces.made} & pieces.known))
    if not watched.graph.output:
        return
    with tempfile.TemporaryDirectory(prefix="edgepack-sensitivity-") as folder:
        sessions = []
        for name, model in (("float", watched), ("pieces", pieces.model)):
            path = Path(folder) / name / "model.onnx"
            path.parent.mkdir()
            write_model(model, path)
            # Optimized, a product of exact inputs and int8 weights would round the inputs.
            sessions.append(make_session(path, optimized=False))
        taken = {value.name for value in sessions[1].get_inputs()}
        for feed in feeds:
            floats = {**feed, **run_session(sessions[0], feed)}
            exact = {name: pieces.clipped(name, array) for name, array in floats.items()}
            cut = {pieces.exact[name]: exact[name] for name in pieces.exact}
            given = {name: array for name, array in {**feed, **cut}.items() if name in taken}
            yield exact, run_session(sessions[1], given)


def with_outputs(model: onnx.ModelProto, tensors: Iterable[str]) -> onnx.ModelProto:
    """Return a copy of a model with these tensors as its outputs."""
    import onnx

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.graph.output[:]
    copy.graph.output.extend(onnx.ValueInfoProto(name=name) for name in tensors)
    return copy


@dataclass
class _Pieces:
    """A QDQ model cut at its pairs: what reads a pair reads an input of the model instead."""

    quantized: onnx.ModelProto
    known: set[str]
    """Tensors that nodes of the float model make."""
    pairs: dict[str, str] = field(default_factory=dict)
    """By tensor with a pair, as the float model names it: the rounded tensor."""
    exact: dict[str, str] = field(default_factory=dict)
    """By tensor with a pair: the input of the pieces that takes its exact values."""
    made: dict[str, str] = field(default_factory=dict)
    """By tensor that a piece makes: its name in the pieces."""
    limits: dict[str, tuple[float, float]] = field(default_factory=dict)
    """By tensor with a pair: the smallest and largest value that it can have."""
    model: onnx.ModelProto = field(init=False)

    def __post_init__(self) -> None:
        import onnx

        graph = self.quantized.graph
        self._producers = {name: node for node in graph.node for name in node.output}
        self._inputs = {value.name for value in graph.input}
        self._replaced: dict[str, str] = {}
        for name, pair in find_pairs(self.quantized, self.known).items():
            self.pairs[name] = pair.rounded
            self.limits[name] = pair.limits
            self.exact[name] = name if name in self._inputs else f"{name}/exact"
            self._replaced[pair.rounded] = self.exact[name]
            if name not in self._inputs:
                self._replaced[pair.raw] = self.exact[name]
                self.made[name] = pair.raw
        for value in graph.output:
            if value.name in self.known and value.name not in self.pairs:
                self.made[value.name] = value.name
        self.model = onnx.ModelProto()
        self.model.CopyFrom(self.quantized)
        self._cut(self.model.graph)

    def _cut(self, graph: onnx.GraphProto) -> None:
        import onnx

        for node in graph.node:
            for place, name in enumerate(node.input):
                node.input[place] = self._replaced.get(name, name)
        graph.input.extend(
            onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
            for tensor, name in self.exact.items()
            if tensor not in self._inputs
        )
        del graph.output[:]
        names = dict.fromkeys((*self.pairs.values(), *self.made.values()))
        graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)

    def clipped(self, tensor: str, values: Array) -> Array:
        """Return values as far as a tensor's pair lets them through: many a Relu is nothing else.

        The model may be without it then, and the tensor's name be that of its input.
        """
        return np.clip(values, *self.limits[tensor]) if tensor in self.limits else values

    def nodes_of(self, tensor: str) -> tuple[str, ...]:
        """Return the nodes that make a tensor from pairs, in topological order."""
        waiting, found = [self.made[tensor]], set()
        while waiting:
            node = self._producers.get(waiting.pop())
            if node is not None and node.op_type not in (QUANTIZE, DEQUANTIZE):
                if node.name not in found:
                    waiting += node.input
                found.add(node.name)
        return tuple(node.name for node in self.quantized.graph.node if node.name in found)


@dataclass(frozen=True)
class Pair:
    """Where a tensor of the float model goes through a QuantizeLinear and DequantizeLinear."""

    raw: str
    """Its name before them, in the QDQ model."""
    rounded: str
    """Its name behind them."""
    limits: tuple[float, float]
    """The smallest and largest value that it can have."""


def find_pairs(quantized: onnx.ModelProto, made: Container[str]) -> dict[str, Pair]:
    """Return the pairs of a QDQ model by the float model's names of what goes through them.

    Where a tensor goes through several, it is the first.

    Args:
        quantized: The QDQ model.
        made: The tensors that nodes of the float model make.
    """
    graph = quantized.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    inputs = {value.name for value in graph.input}
    quantizers = {node.output[0]: node for node in graph.node if node.op_type == QUANTIZE}
    found: dict[str, Pair] = {}
    for node in graph.node:
        source = quantizers.get(node.input[0]) if node.op_type == DEQUANTIZE else None
        if source is None or source.input[0] in constants:
            continue
        raw, rounded = source.input[0], node.output[0]
        # What a model's output is called is the rounded tensor; the raw one has another name.
        name = raw if raw in made or raw in inputs else rounded
        if name in made or name in inputs:
            limits = _limits(*(constants[each] for each in source.input[1:3]))
            found.setdefault(name, Pair(raw, rounded, limits))
    return found


def _limits(scale: onnx.TensorProto, zero_point: onnx.TensorProto) -> tuple[float, float]:
    from onnx import numpy_helper

    step, zero = (numpy_helper.to_array(tensor) for tensor in (scale, zero_point))
    ends = np.iinfo(zero.dtype)
    low, high = (float(step) * (end - int(zero)) for end in (ends.min, ends.max))
    return low, high


def channel_loss(one: OutputCloseness) -> float:
    """Return energy of the error over energy of the signal, at most 1, the mean over channels."""
    shares = [
        np.where(sums.noise > 0, np.minimum(sums.noise / np.maximum(sums.signal, _TINY), 1.0), 0.0)
        for sums in one.sums.values()
    ]
    with_nan = float(np.mean(np.concatenate(shares))) if shares else 0.0
    return with_nan if np.isfinite(with_nan) else 1.0

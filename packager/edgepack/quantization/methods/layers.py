"""Expresses products as matrix problems, and runs a graph from one product to the next.

At one position, a convolution or matrix product returns a matrix of weights times a vector of
inputs, its patch. So (groups, outputs, taps) weights and (groups, positions, taps) patches describe
a product completely, whatever its operator: outputs is how many channels each group has, taps how
many inputs go into each channel.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from math import inf, prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from edgepack.base.arrays import Array
from edgepack.model.facts import STANDARD
from edgepack.model.reading import write_model
from edgepack.model.running import Arrays, make_session, run_session
from edgepack.quantization.qdq.dialect import DEQUANTIZE
from edgepack.quantization.qdq.preparation import list_body_reads

if TYPE_CHECKING:
    import onnx
    import onnxruntime

_PLAIN_GEMM = {"alpha": 1.0, "beta": 1.0, "transA": 0}


class LayerInputs(Protocol):
    """Inputs of a model, which can be gone through as often as needed."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Mapping[str, Array]]: ...


class Product(Protocol):
    """How one operator is a matrix problem."""

    def make_rows(self, weights: Array) -> Array:
        """Return weights as (groups, outputs, taps)."""

    def make_weights(self, rows: Array) -> Array:
        """Return what :meth:`make_rows` was made from, in the shape that the operator takes."""

    def count_positions(self, shape: Sequence[int]) -> int:
        """Return at how many positions there are outputs, for an input of that shape."""

    def take_patches(self, values: Array, positions: Array) -> Array:
        """Return (groups, len(positions), taps) of an input; zeros where it is padded."""


def find_product(node: onnx.NodeProto, dims: Sequence[int]) -> Product | None:
    """Return a Conv, ConvTranspose, Gemm or MatMul as a matrix problem.

    None stands for other operators; for a MatMul whose second operand is no matrix; for a Gemm that
    transposes its input, or whose factors are not 1 (which they are after
    :func:`~edgepack.quantization.qdq.preparation.prepare_model`); and for a ConvTranspose that is
    padded by its output's shape.

    Args:
        node: With constant weights as its second input.
        dims: Shape of the weights.
    """
    if node.domain not in STANDARD:
        return None
    if node.op_type == "Conv" and len(dims) > 2:
        return _read_convolution(node, dims)
    if node.op_type == "ConvTranspose" and len(dims) > 2:
        return _find_transposed_convolution(node, dims)
    found = _read_attributes(node)
    plain = all(found.get(name, value) == value for name, value in _PLAIN_GEMM.items())
    if node.op_type == "Gemm" and plain:
        return MatrixProduct(outputs_first=bool(found.get("transB", 0)))
    if node.op_type == "MatMul" and len(dims) == 2:
        return MatrixProduct(outputs_first=False)
    return None


@dataclass(frozen=True)
class MatrixProduct:
    """Inputs (..., positions, taps) times weights (taps, outputs). There is one group."""

    outputs_first: bool
    """Whether weights are (outputs, taps)."""

    def make_rows(self, weights: Array) -> Array:
        """Return weights as (1, outputs, taps)."""
        return (weights if self.outputs_first else weights.T)[None]

    def make_weights(self, rows: Array) -> Array:
        """Return what :meth:`make_rows` was made from."""
        return np.asarray(rows[0] if self.outputs_first else rows[0].T)

    def count_positions(self, shape: Sequence[int]) -> int:
        """Return how many vectors an input of that shape has."""
        return prod(shape[:-1])

    def take_patches(self, values: Array, positions: Array) -> Array:
        """Return (1, len(positions), taps) of an input."""
        return values.reshape(-1, values.shape[-1])[positions][None]


@dataclass(frozen=True)
class Convolution:
    """A convolution over any number of axes of space, or a transposed one.

    A transposed convolution is one with strides of 1 over an input that is stretched with zeros,
    its weights turned around in space.
    """

    groups: int
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...] | str
    """Zeros before each axis, then behind each; or SAME_UPPER, SAME_LOWER or VALID."""
    stretch: tuple[int, ...] = ()
    """The distance between input values; empty for a convolution that is not transposed."""

    def make_rows(self, weights: Array) -> Array:
        """Return weights as (groups, outputs, taps); the channel is the slowest of the taps."""
        if not self.stretch:
            return weights.reshape(self.groups, weights.shape[0] // self.groups, -1)
        parted = weights.reshape(self.groups, -1, *weights.shape[1:]).swapaxes(1, 2)
        return self._turn_kernel(parted).reshape(self.groups, weights.shape[1], -1)

    def make_weights(self, rows: Array) -> Array:
        """Return what :meth:`make_rows` was made from."""
        if not self.stretch:
            return rows.reshape(self.groups * rows.shape[1], -1, *self.kernel)
        parted = rows.reshape(self.groups, rows.shape[1], -1, *self.kernel)
        turned = self._turn_kernel(parted).swapaxes(1, 2)
        return turned.reshape(-1, rows.shape[1], *self.kernel)

    def count_positions(self, shape: Sequence[int]) -> int:
        """Return how many outputs a channel has, over the whole batch."""
        return shape[0] * prod(self._find_grid(shape))

    def take_patches(self, values: Array, positions: Array) -> Array:
        """Return (groups, len(positions), taps) of an input (batch, channels, ...)."""
        if self.stretch:
            values = _stretch_values(values, self.stretch)
        sizes = values.shape[2:]
        begins = self._find_pads(sizes)[: len(sizes)]
        image, *places = np.unravel_index(positions, (len(values), *self._find_sizes(sizes)))
        rank = len(sizes)
        inside = np.ones((len(positions), *self.kernel), bool)
        taps: list[Array] = []
        for axis, place in enumerate(places):
            shape = [-1 if k == axis else 1 for k in range(rank)]
            steps = (np.arange(self.kernel[axis]) * self.dilations[axis]).reshape(shape)
            first = place * self.strides[axis] - begins[axis]
            at = first.reshape(-1, *[1] * rank) + steps
            inside &= (at >= 0) & (at < sizes[axis])
            taps.append(np.clip(at, 0, sizes[axis] - 1))
        found = np.moveaxis(values, 1, -1)[(image.reshape(-1, *[1] * rank), *taps)]
        found[~inside] = 0
        parted = found.reshape(len(positions), -1, self.groups, values.shape[1] // self.groups)
        return np.ascontiguousarray(parted.transpose(2, 0, 3, 1)).reshape(
            self.groups, len(positions), -1
        )

    def _find_grid(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of the output in space."""
        sizes = tuple(shape[2:])
        if self.stretch:
            sizes = tuple((n - 1) * s + 1 for n, s in zip(sizes, self.stretch, strict=True))
        return self._find_sizes(sizes)

    def _find_sizes(self, sizes: Sequence[int]) -> tuple[int, ...]:
        pads, rank = self._find_pads(sizes), len(sizes)
        return tuple(
            (size + pads[k] + pads[k + rank] - self._compute_reach(k)) // self.strides[k] + 1
            for k, size in enumerate(sizes)
        )

    def _compute_reach(self, axis: int) -> int:
        return self.dilations[axis] * (self.kernel[axis] - 1) + 1

    def _find_pads(self, sizes: Sequence[int]) -> tuple[int, ...]:
        if not isinstance(self.pads, str):
            return self.pads
        if self.pads == "VALID":
            return (0,) * (2 * len(sizes))
        begins, ends = [], []
        for axis, size in enumerate(sizes):
            outputs = -(-size // self.strides[axis])
            needed = (outputs - 1) * self.strides[axis] + self._compute_reach(axis) - size
            small, large = max(needed, 0) // 2, -(-max(needed, 0) // 2)
            begins.append(small if self.pads == "SAME_UPPER" else large)
            ends.append(large if self.pads == "SAME_UPPER" else small)
        return (*begins, *ends)

    def _turn_kernel(self, parted: Array) -> Array:
        return np.flip(parted, tuple(range(3, 3 + len(self.kernel))))


def _read_convolution(node: onnx.NodeProto, dims: Sequence[int]) -> Convolution:
    found, rank = _read_attributes(node), len(dims) - 2
    automatic = found.get("auto_pad", b"NOTSET").decode()
    return Convolution(
        groups=found.get("group", 1),
        kernel=tuple(dims[2:]),
        strides=tuple(found.get("strides", [1] * rank)),
        dilations=tuple(found.get("dilations", [1] * rank)),
        pads=tuple(found.get("pads", [0] * 2 * rank)) if automatic == "NOTSET" else automatic,
    )


def _find_transposed_convolution(node: onnx.NodeProto, dims: Sequence[int]) -> Convolution | None:
    found, rank = _read_attributes(node), len(dims) - 2
    if found.get("auto_pad", b"NOTSET") != b"NOTSET" or "output_shape" in found:
        return None
    dilations = found.get("dilations", [1] * rank)
    pads = found.get("pads", [0] * 2 * rank)
    more = [*[0] * rank, *found.get("output_padding", [0] * rank)]
    reach = [step * (size - 1) for step, size in zip(dilations, dims[2:], strict=True)] * 2
    return Convolution(
        groups=found.get("group", 1),
        kernel=tuple(dims[2:]),
        strides=(1,) * rank,
        dilations=tuple(dilations),
        pads=tuple(r - p + m for r, p, m in zip(reach, pads, more, strict=True)),
        stretch=tuple(found.get("strides", [1] * rank)),
    )


def _stretch_values(values: Array, stretch: Sequence[int]) -> Array:
    sizes = [(n - 1) * s + 1 for n, s in zip(values.shape[2:], stretch, strict=True)]
    found = np.zeros((*values.shape[:2], *sizes), values.dtype)
    found[(slice(None), slice(None), *(slice(None, None, step) for step in stretch))] = values
    return found


def _read_attributes(node: onnx.NodeProto) -> dict[str, Any]:
    import onnx

    return {entry.name: onnx.helper.get_attribute_value(entry) for entry in node.attribute}


class Passage:
    """Runs once through a model, over the same samples, and stops at each requested tensor.

    Nodes between two stops run once, and only what nodes to come will read is kept, so that all
    stops together take the time of one run of the model. Where a stop would have to keep more than
    ``kept_bytes``, it keeps nothing new, and its nodes run again for the next one, a sample at a
    time. Tensors with a Q/DQ pair are kept as integers.

    Constants of the model may be changed between two stops: nodes that have not run see the change.
    """

    def __init__(self, model: onnx.ModelProto, samples: LayerInputs, kept_bytes: int) -> None:
        self._model, self._samples, self._limit = model, samples, kept_bytes
        nodes = model.graph.node
        self._constants = {tensor.name: tensor for tensor in model.graph.initializer}
        self._reads = [{name for name in (*n.input, *list_body_reads(n)) if name} for n in nodes]
        self._made_by = {name: k for k, node in enumerate(nodes) for name in node.output if name}
        self._readers: dict[str, set[int]] = {}
        for index, names in enumerate(self._reads):
            for name in names:
                self._readers.setdefault(name, set()).add(index)
        # These are cheap: they run again for each stop, and their integers are what is kept.
        self._cheap = {k for k, node in enumerate(nodes) if node.op_type == DEQUANTIZE}
        self._done: set[int] = set()
        self._kept: list[Arrays] = [{} for _ in range(len(samples))]

    def stop(self, tensor: str) -> Iterator[Array]:
        """Yield a tensor's value for each sample, in their order.

        All of them have to be taken before the next stop.

        Args:
            tensor: Name of an input of the model or of what a node makes.

        Raises:
            ModelError: onnxruntime refuses a part of the model, or fails at it.
        """
        todo = self._find_todo(tensor)
        made = {name for index in todo for name in self._model.graph.node[index].output}
        done = (self._done | todo) - self._cheap
        needed = {
            name
            for name in made.union(*self._kept[:1])
            if self._made_by.get(name) in done and self._is_pending(name, done)
        }
        outputs = sorted((needed | {tensor}) & made)
        kept: list[Arrays] = []
        room = float(self._limit)
        session: onnxruntime.InferenceSession | None = None
        for old, feed in zip(self._kept, self._make_feeds(todo, tensor), strict=True):
            if todo and session is None:
                session = self._open_session(todo, feed, outputs)
            found = {**old, **feed, **(run_session(session, feed) if session else {})}
            yield found[tensor]
            room -= sum(_count_bytes(found[name]) for name in needed)
            if room < 0:
                kept.clear()
            else:
                kept.append({name: found[name] for name in needed})
        if room >= 0:
            self._done, self._kept = done, kept

    def _find_todo(self, tensor: str) -> set[int]:
        """Return the nodes that have to run for a tensor."""
        found: set[int] = set()
        wanted = [tensor]
        while wanted:
            name = wanted.pop()
            index = self._made_by.get(name)
            if index is not None and index not in found and name not in self._kept[0]:
                found.add(index)
                wanted.extend(self._reads[index])
        return found

    def _is_pending(self, name: str, done: set[int]) -> bool:
        """Return whether a node that is not done reads a tensor, or what it is dequantized to."""
        for index in self._readers.get(name, ()):
            outputs = self._model.graph.node[index].output
            if index not in self._cheap and index not in done:
                return True
            if index in self._cheap and any(self._is_pending(one, done) for one in outputs):
                return True
        return False

    def _make_feeds(self, todo: Collection[int], tensor: str) -> Iterator[Arrays]:
        """Yield what those nodes read and do not make, for each sample."""
        reads = {name for index in todo for name in self._reads[index]} or {tensor}
        inputs = reads & {value.name for value in self._model.graph.input}
        nothing: Iterable[Mapping[str, Array]] = repeat({}, len(self._kept))
        samples = self._samples if inputs else nothing
        for kept, sample in zip(self._kept, samples, strict=True):
            feed = {name: kept[name] for name in reads & kept.keys()}
            yield {**feed, **{name: sample[name] for name in inputs}}

    def _open_session(
        self, todo: Collection[int], feed: Arrays, outputs: Sequence[str]
    ) -> onnxruntime.InferenceSession:
        """Return a session of some nodes; the feed states the types of their inputs."""
        import onnx

        part = onnx.ModelProto(ir_version=self._model.ir_version)
        part.opset_import.extend(self._model.opset_import)
        part.functions.extend(self._model.functions)
        part.graph.name = "part"
        part.graph.node.extend(self._model.graph.node[index] for index in sorted(todo))
        for name, array in feed.items():
            kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
            part.graph.input.append(onnx.helper.make_tensor_value_info(name, kind, None))
        part.graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs)
        read = {name for index in todo for name in self._reads[index]}
        constants = (self._constants[name] for name in sorted(read & self._constants.keys()))
        part.graph.initializer.extend(constants)
        with tempfile.TemporaryDirectory(prefix="edgepack-part-") as folder:
            path = Path(folder) / "part.onnx"
            write_model(part, path)
            return make_session(path)


def _count_bytes(value: object) -> float:
    """Return the size of an array; a sequence, the other kind of value, is never kept."""
    return value.nbytes if isinstance(value, np.ndarray) else inf

"""Reads what a model does to its input first, as far as that shows which input it expects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from edgepack.base.arrays import Array
from edgepack.errors import ModelError

if TYPE_CHECKING:
    import onnx


_PASSING = {"Cast", "Identity", "Pad", "Transpose"}
"""Operators that do not change values."""
_AFFINE = {"Add", "Sub", "Mul", "Div"}
_SMALL = 4096


@dataclass(frozen=True)
class Normalization:
    """The first BatchNormalization, and what it was trained to expect."""

    node: str
    tensor: str
    """The tensor that it takes; channels are on axis 1."""
    mean: Array
    variance: Array
    direct: bool
    """Whether it takes the input itself, not the output of a Conv."""


@dataclass(frozen=True)
class Beginning:
    """``scale * input + offset``, per channel, is what the model goes on with."""

    nodes: tuple[str, ...]
    """The nodes that compute it; none where the input is taken as it is."""
    scale: Array
    offset: Array
    normalization: Normalization | None

    @property
    def highest(self) -> float | None:
        """The largest value that the input should have: 255 or 1; None if unknown.

        What comes out of such nodes is 0 to 1, or within some units around 0, or 0 to 255 less a
        mean: most factors fit only one of the two.
        """
        if not self.nodes:
            return None
        factor, shift = float(np.abs(self.scale).mean()), float(self.offset.mean())
        if 0.003 < factor < 0.03 or (abs(factor - 1) < 1e-6 and shift < -40):
            return 255.0
        if 1.2 <= factor <= 6 or 200 <= factor <= 300:
            return 1.0
        return 1.0 if abs(factor - 1) < 1e-6 and -1 <= shift <= -0.2 else None


def find_beginning(model: onnx.ModelProto, name: str) -> Beginning:
    """Return what a model does to one of its inputs first."""
    walk = _Walk(model, name)
    nodes = list(walk)
    scale, offset = np.atleast_1d(walk.scale), np.atleast_1d(walk.offset)
    return Beginning(tuple(nodes), scale, offset, walk.normalization)


class _Walk:
    """Follows a tensor from the input on as long as one node alone computes with it."""

    def __init__(self, model: onnx.ModelProto, name: str) -> None:
        self.constants = _read_constants(model)
        self.readers: dict[str, list[onnx.NodeProto]] = {}
        for node in model.graph.node:
            for read in node.input:
                if node.op_type != "Shape":
                    self.readers.setdefault(read, []).append(node)
        self.name = name
        self.scale: Array = np.ones(1)
        self.offset: Array = np.zeros(1)
        self.normalization: Normalization | None = None

    def __iter__(self) -> Iterator[str]:
        """Yield the nodes that scale or shift the input."""
        tensor = self.name
        while node := self._find_reader(tensor):
            if node.op_type in ("BatchNormalization", "Conv"):
                self._keep_normalization(node, tensor, direct=node.op_type != "Conv")
                return
            if node.op_type in _AFFINE:
                if not self._apply(node, tensor):
                    return
                yield node.name or node.output[0]
            elif node.op_type not in _PASSING or node.input[0] != tensor:
                return
            tensor = node.output[0]

    def _find_reader(self, tensor: str) -> onnx.NodeProto | None:
        found = self.readers.get(tensor, [])
        return found[0] if len(found) == 1 and found[0].domain in ("", "ai.onnx") else None

    def _apply(self, node: onnx.NodeProto, tensor: str) -> bool:
        """Return whether a node scales or shifts by constants, one or one per channel."""
        first = node.input[0] == tensor
        constant = self.constants.get(node.input[1 if first else 0])
        if constant is None or constant.size not in (1, 3) or (not first and node.op_type == "Div"):
            return False
        value = constant.astype(np.float64).reshape(-1)
        match node.op_type:
            case "Mul":
                self.scale, self.offset = self.scale * value, self.offset * value
            case "Div":
                self.scale, self.offset = self.scale / value, self.offset / value
            case "Add":
                self.offset = self.offset + value
            case _ if first:
                self.offset = self.offset - value
            case _:
                self.scale, self.offset = -self.scale, value - self.offset
        return True

    def _keep_normalization(self, node: onnx.NodeProto, tensor: str, *, direct: bool) -> None:
        """Keep the BatchNormalization that is this node, or the one right behind this Conv."""
        if not direct:
            tensor = node.output[0]
            behind = self._find_reader(tensor)
            if behind is None or behind.op_type != "BatchNormalization":
                return
            node = behind
        mean, variance = (self.constants.get(name) for name in node.input[3:5])
        if mean is None or variance is None or node.input[0] != tensor:
            return
        name = node.name or node.output[0]
        values = mean.astype(np.float64), variance.astype(np.float64)
        self.normalization = Normalization(name, tensor, *values, direct)


def _read_constants(model: onnx.ModelProto) -> Mapping[str, Array]:
    """Return the small constants of a model; weights that lie in other files are left out."""
    from onnx import TensorProto, numpy_helper

    tensors = [(t.name, t) for t in model.graph.initializer]
    tensors += [
        (node.output[0], a.t)
        for node in model.graph.node
        if node.op_type == "Constant"
        for a in node.attribute
        if a.name == "value"
    ]
    small = [
        (name, tensor)
        for name, tensor in tensors
        if int(np.prod(tensor.dims)) <= _SMALL and tensor.data_location != TensorProto.EXTERNAL
    ]
    try:
        return {name: np.asarray(numpy_helper.to_array(tensor)) for name, tensor in small}
    except (ValueError, TypeError, KeyError) as error:
        raise ModelError(
            f"a constant of the model cannot be read: {error}", hint="export the model again"
        ) from error

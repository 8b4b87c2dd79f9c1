"""All that decides a QDQ file besides its dialect."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from edgepack.base.arrays import Array
from edgepack.quantization.qdq.preparation import copy_model

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True)
class Scheme:
    """How a model is quantized: which ranges, weights and places."""

    exact: onnx.ModelProto
    """The float model. ``model`` has its graph, and tensors of the same names."""
    model: onnx.ModelProto
    """The model that is written: its weights may be rounded already, its biases corrected."""
    ranges: Mapping[str, tuple[float, float]]
    weight_scales: Mapping[str, Array] = field(default_factory=dict)
    left: Mapping[str, str] = field(default_factory=dict)
    """Nodes that stay float, with the reason."""
    unpaired: frozenset[str] = frozenset()
    """Activations that are not quantized though the dialect's rules would do it."""
    wide: frozenset[str] = frozenset()
    """Activations of 16 bits."""

    @property
    def plain(self) -> Scheme:
        """The scheme with weights rounded to the nearest and biases as they were.

        Fitted weights compensate for errors elsewhere: without those, they are errors themselves.
        """
        return replace(self, model=self.exact, weight_scales={})

    @property
    def places_left_out(self) -> int:
        """How many nodes and activations are not in 8 bits though they could be."""
        return len(self.left) + len(self.unpaired) + len(self.wide)

    def leave_float(self, nodes: Mapping[str, str]) -> Scheme:
        """Return the scheme with more nodes left float; they get their exact constants back."""
        new = set(nodes) - set(self.left)
        model = self.model
        if new and model is not self.exact:
            model = _restore_exact_constants(model, self.exact, new)
        return replace(self, model=model, left={**nodes, **self.left})

    def widen_tensors(self, tensors: Iterable[str], *, wide: bool) -> Scheme:
        """Return the scheme with activations in 16 bits, or not quantized at all."""
        if wide:
            return replace(self, wide=self.wide | set(tensors))
        return replace(self, unpaired=self.unpaired | set(tensors))


def _restore_exact_constants(
    model: onnx.ModelProto, exact: onnx.ModelProto, nodes: set[str]
) -> onnx.ModelProto:
    """Return a model in which these nodes have the exact constants, as copies of their own."""
    originals = {tensor.name: tensor for tensor in exact.graph.initializer}
    inputs = {node.name: node.input for node in exact.graph.node}
    copy = copy_model(model)
    for node in copy.graph.node:
        if node.name not in nodes:
            continue
        node.input[:] = inputs[node.name]
        for place, name in enumerate(node.input):
            if name in originals:
                own = copy.graph.initializer.add()
                own.CopyFrom(originals[name])
                own.name = node.input[place] = f"{name}/{node.name}/exact"
    return copy

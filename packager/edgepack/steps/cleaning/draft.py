"""A model that is being cleaned, and what its cleanings share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from edgepack.model.facts import STANDARD
from edgepack.quantization.qdq.preparation import count_reads

if TYPE_CHECKING:
    import onnx

ML = "ai.onnx.ml"
"""The domain of ONNX's classical machine learning."""


@dataclass
class Draft:
    """A model that cleanings change, and what they leave beside it."""

    model: onnx.ModelProto
    kept: frozenset[str] = frozenset()
    """Names of dimensions that stay, because the project uses them."""
    batched: frozenset[str] = frozenset()
    """Outputs that have as many rows as the inputs, as far as that was seen."""
    one_batch: bool = False
    """Whether all inputs have to have as many rows, as far as that was seen."""
    labels: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """By output: the label of each of its columns, or of each value that it may have."""

    def find_maker(self, tensor: str) -> onnx.NodeProto | None:
        """Return the node of the main graph that makes a tensor."""
        return next((node for node in self.model.graph.node if tensor in node.output), None)

    def count_reads(self) -> Counter[str]:
        """Return how often each tensor is read: by nodes, in bodies, and as an output."""
        reads = count_reads(self.model.graph)
        reads.update(value.name for value in self.model.graph.output)
        return reads

    def forget(self, tensors: set[str]) -> None:
        """Drop what the model says about the types of tensors inside."""
        for value in [v for v in self.model.graph.value_info if v.name in tensors]:
            self.model.graph.value_info.remove(value)


def is_op(node: onnx.NodeProto | None, op: str, domain: str = "") -> bool:
    """Return whether a node is of an operator; the default domain has two names."""
    if node is None or node.op_type != op:
        return False
    return node.domain in STANDARD if domain in STANDARD else node.domain == domain


def read_attributes(node: onnx.NodeProto) -> dict[str, Any]:
    """Return a node's attributes by name; of texts the text."""
    from onnx import helper

    found = {entry.name: helper.get_attribute_value(entry) for entry in node.attribute}
    return {name: _decode(value) for name, value in found.items()}


def _decode(value: Any) -> Any:  # noqa: ANN401  (whatever an attribute holds)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, list) and value and isinstance(value[0], bytes):
        return [each.decode("utf-8", "replace") for each in value]
    return value


def set_attribute(node: onnx.NodeProto, name: str, value: object, *, instead_of: str) -> None:
    """Give a node an attribute in the place of another one."""
    from onnx import helper

    kept = [entry for entry in node.attribute if entry.name not in (name, instead_of)]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute(name, value)])


def walk_values(graph: onnx.GraphProto) -> Iterator[onnx.ValueInfoProto]:
    """Yield each declared type of a graph and of the bodies in it."""
    yield from (*graph.input, *graph.output, *graph.value_info)
    for node in graph.node:
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                yield from walk_values(body)


def list_free_inputs(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """Return the inputs that are no weights."""
    constants = {tensor.name for tensor in model.graph.initializer}
    return [value for value in model.graph.input if value.name not in constants]


def can_be_listed(labels: Sequence[str]) -> bool:
    """Return whether labels can be written one a line, and told apart."""
    return len({*labels}) == len(labels) and all(
        text and text.isprintable() and text == text.strip() for text in labels
    )


def copy_first_dim(model: onnx.ModelProto, shape: onnx.TensorShapeProto) -> None:
    """Add the first dimension of the model's first input to a shape: the samples of a batch."""
    given = list_free_inputs(model)
    dims = given[0].type.tensor_type.shape.dim if given else ()
    dim = shape.dim.add()
    if dims:
        dim.CopyFrom(dims[0])

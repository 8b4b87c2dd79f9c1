"""The cleaning of labels: an output of texts becomes one of numbers, and the texts are kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from edgepack.model.editing import take_name
from edgepack.steps.cleaning.draft import (
    ML,
    Draft,
    can_be_listed,
    is_op,
    read_attributes,
    set_attribute,
)

if TYPE_CHECKING:
    import onnx

# Operators that move texts and do not change them, each with one input of texts.
_PASSING = ("Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose", "Cast")
_UNKNOWN = "_Unused"
"""What a LabelEncoder gives for a key that it does not have (onnx.defs, ``default_string``)."""


def number_labels(draft: Draft) -> list[str]:
    """Make outputs of texts outputs of numbers, from 0 on, that stand for them.

    The texts are exchanged where they are written down: in the classes of a classifier, the values
    of a LabelEncoder, or a constant that ArrayFeatureExtractor or Gather read. Where they come from
    something else, or another node reads them too, the output stays as it is.
    """
    from onnx import TensorProto

    done = []
    for output in draft.model.graph.output:
        if output.type.tensor_type.elem_type != TensorProto.STRING:
            continue
        path = _find_path(draft, output.name)
        if path is None or (labels := _number_at(draft, path[-1])) is None:
            continue
        _make_numeric(draft, path, output)
        draft.labels[output.name] = labels
        done.append(f"{output.name!r} numbers {len(labels)} labels")
    return done


def _find_path(draft: Draft, tensor: str) -> list[onnx.NodeProto] | None:
    """Return the nodes from the one that makes an output of texts back to where they are from."""
    reads, path = draft.count_reads(), list[Any]()
    while True:
        maker = draft.find_maker(tensor)
        if maker is None or reads[tensor] != 1:
            return None
        path.append(maker)
        if not any(is_op(maker, op) for op in _PASSING):
            return path
        tensor = maker.input[0]


def _make_numeric(
    draft: Draft, path: Sequence[onnx.NodeProto], output: onnx.ValueInfoProto
) -> None:
    from onnx import TensorProto

    draft.forget({name for node in path for name in node.output})
    for node in path:
        if is_op(node, "Cast"):
            set_attribute(node, "to", int(TensorProto.INT64), instead_of="to")
    output.type.tensor_type.elem_type = TensorProto.INT64


def _number_at(draft: Draft, node: onnx.NodeProto) -> tuple[str, ...] | None:
    """Exchange the texts that a node gives by numbers; return them, or None if it has none."""
    for (op, domain), exchange in _EXCHANGES.items():
        if is_op(node, op, domain):
            return exchange(draft, node)
    return None


def _number_classes(draft: Draft, node: onnx.NodeProto) -> tuple[str, ...] | None:
    del draft
    labels = read_attributes(node).get("classlabels_strings", [])
    if not labels or not can_be_listed(labels):
        return None
    # The name differs between classifiers (onnx.defs, ai.onnx.ml).
    name = "classlabels_int64s" if is_op(node, "TreeEnsembleClassifier", ML) else "classlabels_ints"
    set_attribute(node, name, list(range(len(labels))), instead_of="classlabels_strings")
    return tuple(labels)


def _number_values(draft: Draft, node: onnx.NodeProto) -> tuple[str, ...] | None:
    """Exchange the values of a LabelEncoder, which until version 1 has ``classes_strings``."""
    from onnx import helper

    del draft
    found = read_attributes(node)
    if (classes := found.get("classes_strings")) is not None:
        if not can_be_listed(classes):
            return None
        node.CopyFrom(helper.make_node("Identity", node.input, node.output, node.name))
        return tuple(classes)
    values = found.get("values_strings", [])
    default = found.get("default_string", _UNKNOWN)
    labels = list(dict.fromkeys([*values, default]))
    if not values or not can_be_listed(labels) or "keys_tensor" in found:
        return None
    set_attribute(node, "default_int64", labels.index(default), instead_of="default_string")
    numbers = [labels.index(value) for value in values]
    set_attribute(node, "values_int64s", numbers, instead_of="values_strings")
    return tuple(labels)


def _number_table(draft: Draft, node: onnx.NodeProto) -> tuple[str, ...] | None:
    """Exchange a constant of texts that a node picks from by number."""
    from onnx import TensorProto, numpy_helper

    graph = draft.model.graph
    table = next((t for t in graph.initializer if t.name == node.input[0]), None)
    if table is None or table.data_type != TensorProto.STRING:
        return None
    labels = [value.decode("utf-8", "replace") for value in table.string_data]
    # One axis that has them all: so the position along it is the number.
    if not can_be_listed(labels) or max(table.dims, default=0) != len(labels):
        return None
    taken = {name for each in graph.node for name in (*each.input, *each.output)}
    taken |= {tensor.name for tensor in graph.initializer}
    numbers = np.arange(len(labels), dtype=np.int64).reshape(tuple(table.dims))
    name = take_name(f"{table.name}_numbers", taken)
    graph.initializer.append(numpy_helper.from_array(numbers, name))
    node.input[0] = name
    if not draft.count_reads()[table.name]:
        graph.initializer.remove(table)
    return tuple(labels)


_EXCHANGES: dict[tuple[str, str], Callable[[Draft, onnx.NodeProto], tuple[str, ...] | None]] = {
    ("TreeEnsembleClassifier", ML): _number_classes,
    ("LinearClassifier", ML): _number_classes,
    ("SVMClassifier", ML): _number_classes,
    ("LabelEncoder", ML): _number_values,
    ("ArrayFeatureExtractor", ML): _number_table,
    ("Gather", ""): _number_table,
}

"""Cleanings of what a model says and gives: opset imports, dictionaries, sequences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from edgepack.model.editing import take_name
from edgepack.model.facts import STANDARD
from edgepack.model.inferring import infer_graph
from edgepack.steps.cleaning.draft import (
    ML,
    Draft,
    can_be_listed,
    copy_first_dim,
    is_op,
    read_attributes,
    walk_values,
)

if TYPE_CHECKING:
    import onnx


def merge_opset_imports(draft: Draft) -> list[str]:
    """Leave one import of each operator set: the last one, which onnxruntime goes by.

    skl2onnx 1.20 writes the default set twice. Source of which one counts: a Softmax under imports
    of opsets 11 and 13 in both orders (onnxruntime 1.31.1, 2026-11-28).
    """
    imports = draft.model.opset_import
    last: dict[str, onnx.OperatorSetIdProto] = {}
    for entry in imports:
        last["" if entry.domain in STANDARD else entry.domain] = entry
    if len(last) == len(imports):
        return []
    done = [
        f"{domain or 'ai.onnx'} {entry.version} of {', '.join(_list_versions(imports, domain))}"
        for domain, entry in last.items()
        if len(_list_versions(imports, domain)) > 1
    ]
    kept = [(entry.domain, entry.version) for entry in last.values()]
    del imports[:]
    for domain, version in kept:
        imports.add(domain=domain, version=version)
    return done


def _list_versions(imports: object, domain: str) -> list[str]:
    names = STANDARD if domain in STANDARD else (domain,)
    return [str(entry.version) for entry in imports if entry.domain in names]  # type: ignore[attr-defined]


# --- dictionaries ------------------------------------------------------------------------------


def replace_zip_maps(draft: Draft) -> list[str]:
    """Give the tensor in the place of dictionaries that ZipMap makes of each of its rows.

    A ZipMap stays whose result a node reads, or whose labels cannot be listed. Labels that are the
    numbers 0, 1, 2 ... are not kept: they say nothing.
    """
    done = []
    for node in list(draft.model.graph.node):
        if is_op(node, "ZipMap", ML) and (output := _find_dictionary(draft, node)) is not None:
            labels = read_zip_labels(node)
            if can_be_listed([str(label) for label in labels]):
                _make_tensor_output(draft, node, output, len(labels))
                if labels != list(range(len(labels))):
                    draft.labels[output.name] = tuple(map(str, labels))
                done.append(f"{output.name!r} is a tensor of {len(labels)} columns")
    return done


def read_zip_labels(node: onnx.NodeProto) -> list[str] | list[int]:
    """Return the keys of a ZipMap's dictionaries, one for each column."""
    found = read_attributes(node)
    labels: list[str] | list[int] = found.get("classlabels_strings") or found.get(
        "classlabels_int64s", []
    )
    return labels


def _find_dictionary(draft: Draft, node: onnx.NodeProto) -> onnx.ValueInfoProto | None:
    """Return the output that a ZipMap's dictionaries are, if nothing else reads them."""
    name = node.output[0]
    outputs = [value for value in draft.model.graph.output if value.name == name]
    return outputs[0] if outputs and draft.count_reads()[name] == 1 else None


def _make_tensor_output(
    draft: Draft, node: onnx.NodeProto, output: onnx.ValueInfoProto, columns: int
) -> None:
    from onnx import TensorProto, helper

    draft.forget({*node.output, output.name})
    node.CopyFrom(helper.make_node("Identity", node.input, node.output, node.name))
    # A ZipMap's values are float32 (onnx.defs, ai.onnx.ml ZipMap 1).
    output.type.Clear()
    output.type.tensor_type.elem_type = TensorProto.FLOAT
    copy_first_dim(draft.model, output.type.tensor_type.shape)
    output.type.tensor_type.shape.dim.add().dim_value = columns


# --- sequences ---------------------------------------------------------------------------------


def unpack_sequences(draft: Draft) -> list[str]:
    """Give the tensors of a SequenceConstruct in the place of the sequence that it makes."""
    graph, done = draft.model.graph, []
    for node in list(graph.node):
        outputs = [value for value in graph.output if value.name in node.output]
        if not is_op(node, "SequenceConstruct") or not outputs:
            continue
        if draft.count_reads()[node.output[0]] != 1:
            continue
        values = [*_make_outputs(draft, node, outputs[0])]
        place = list(graph.output).index(outputs[0])
        others = list(graph.output)
        del graph.output[:]
        graph.output.extend([*others[:place], *values, *others[place + 1 :]])
        done.append(f"{node.output[0]!r} is {', '.join(repr(value.name) for value in values)}")
        graph.node.remove(node)
    return done


def _make_outputs(
    draft: Draft, node: onnx.NodeProto, sequence: onnx.ValueInfoProto
) -> Iterator[onnx.ValueInfoProto]:
    """Add an output for each tensor of a sequence, and yield their types."""
    import onnx
    from onnx import helper

    try:
        inferred = infer_graph(draft.model)
    except onnx.shape_inference.InferenceError:
        inferred = draft.model.graph
    known = {value.name: value.type for value in walk_values(inferred)}
    taken = {name for each in draft.model.graph.node for name in (*each.input, *each.output)}
    place = list(draft.model.graph.node).index(node)
    for number, tensor in enumerate(node.input):
        name = take_name(f"{node.output[0]}_{number}", taken)
        draft.model.graph.node.insert(
            place + number, helper.make_node("Identity", [tensor], [name])
        )
        value = onnx.ValueInfoProto(name=name)
        value.type.CopyFrom(known.get(tensor, sequence.type.sequence_type.elem_type))
        yield value

"""The cleaning of dimensions' names: what exporters counted gets a name that says something."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from edgepack.model.editing import take_name
from edgepack.model.inferring import infer_graph
from edgepack.steps.cleaning.draft import Draft, list_free_inputs, walk_values

if TYPE_CHECKING:
    import onnx

BATCH = "batch"
_COUNTED = re.compile(r"unk__\d+")
"""Each unknown size gets a number of its own (tf2onnx 1.17, ``utils.make_onnx_shape``)."""
_COUNTED_BY_TORCH = re.compile(r"s\d+")
"""The symbols of torch.export, which ``torch.onnx.export(dynamo=True)`` writes as they are."""
_NAMELESS = ("skl2onnx", "onnxmltools")
"""Producers that write no name for a free batch, in small letters."""


def name_dims(draft: Draft) -> list[str]:
    """Name dimensions that the exporter counted, or left nameless in front of every input.

    The one in front of all inputs is ``batch``. Others are called by the first input or output that
    has them, and their axis. Names that the project uses stay.
    """
    done = _name_nameless(draft)
    renamed = {old: new for old, new in _choose_names(draft) if old not in draft.kept}
    _rename(draft.model, renamed)
    renamed_in_outputs = dict(_choose_output_names(draft))
    _rename(draft.model, renamed_in_outputs)
    told = {**renamed, **renamed_in_outputs}
    return [*done, *(f"{old} is {new}" for old, new in told.items())]


def _is_counted(draft: Draft, name: str) -> bool:
    by_torch = draft.model.producer_name == "pytorch" and _COUNTED_BY_TORCH.fullmatch(name)
    return name not in draft.kept and bool(_COUNTED.fullmatch(name) or by_torch)


def _list_dims(
    values: list[onnx.ValueInfoProto],
) -> Iterator[tuple[str, int, onnx.TensorShapeProto.Dimension]]:
    for value in values:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            yield value.name, axis, dim


def _list_taken(draft: Draft) -> set[str]:
    declared = walk_values(draft.model.graph)
    return {dim.dim_param for value in declared for dim in value.type.tensor_type.shape.dim}


def _name_nameless(draft: Draft) -> list[str]:
    """Name the first dimension of all inputs, where their producer leaves it nameless."""
    if draft.model.producer_name.lower() not in _NAMELESS:
        return []
    first = [dim for _, axis, dim in _list_dims(list_free_inputs(draft.model)) if axis == 0]
    if not first or any(dim.WhichOneof("value") for dim in first):
        return []
    name = take_name(BATCH, _list_taken(draft))
    for dim in first:
        dim.dim_param = name
    outputs = [value for value in draft.model.graph.output if value.type.HasField("tensor_type")]
    for output, axis, dim in _list_dims(outputs):
        # onnxmltools declares labels as [1] (lightgbm, 1.16.0), whatever the batch is.
        if axis == 0 and output in draft.batched and not dim.dim_param:
            dim.dim_param = name
    return [f"the nameless first dimension is {name}"]


def _choose_names(draft: Draft) -> Iterator[tuple[str, str]]:
    """Yield the dimensions of inputs that get another name, each with it."""
    taken = _list_taken(draft)
    dims = [*_list_dims(list_free_inputs(draft.model))]
    first = {dim.dim_param for _, axis, dim in dims if axis == 0}
    elsewhere = {dim.dim_param for _, axis, dim in dims if axis}
    seen = set[str]()
    if draft.one_batch and not first & elsewhere and all(_is_counted(draft, old) for old in first):
        name = take_name(BATCH, taken)
        yield from ((old, name) for old in sorted(first))
        seen = first
    for name, axis, dim in dims:
        old = dim.dim_param
        if old in seen or not _is_counted(draft, old):
            continue
        seen.add(old)
        is_batch = axis == 0 and first == {old} and old not in elsewhere
        yield old, take_name(BATCH if is_batch else f"{name}_{axis}", taken)


def _choose_output_names(draft: Draft) -> Iterator[tuple[str, str]]:
    """Yield counted dimensions of outputs, each with that of an input where it is the same."""
    outputs = [value for value in draft.model.graph.output if value.type.HasField("tensor_type")]
    left = [each for each in _list_dims(outputs) if _is_counted(draft, each[2].dim_param)]
    if not left:
        return
    inferred = _infer_outputs(draft.model)
    dims = [*_list_dims(list_free_inputs(draft.model))]
    given = {dim.dim_param for _, _, dim in dims} - {""}
    first = {dim.dim_param for _, axis, dim in dims if axis == 0}
    taken, seen = _list_taken(draft), set[str]()
    for name, axis, dim in left:
        if dim.dim_param not in seen:
            seen.add(dim.dim_param)
            found = inferred.get((name, axis), "")
            if axis == 0 and name in draft.batched and len(first) == 1:
                found = next(iter(first))
            yield dim.dim_param, found if found in given else take_name(f"{name}_{axis}", taken)


def _infer_outputs(model: onnx.ModelProto) -> dict[tuple[str, int], str]:
    """Return the names that onnx infers for the dimensions of outputs, whatever they declare."""
    import onnx

    declared = [onnx.ValueInfoProto.FromString(v.SerializeToString()) for v in model.graph.output]
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    try:
        outputs = infer_graph(model).output
    except onnx.shape_inference.InferenceError:
        outputs = []
    found = {(name, axis): dim.dim_param for name, axis, dim in _list_dims(list(outputs))}
    for value, said in zip(model.graph.output, declared, strict=True):
        value.CopyFrom(said)
    return found


def _rename(model: onnx.ModelProto, names: dict[str, str]) -> None:
    for value in walk_values(model.graph):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in names:
                dim.dim_param = names[dim.dim_param]

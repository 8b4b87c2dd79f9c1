"""Prepares a model for the QDQ writer: known types, unique names, constants in one place."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from edgepack.base.arrays import Array
from edgepack.model.editing import take_name
from edgepack.model.facts import STANDARD
from edgepack.model.inferring import infer_graph
from edgepack.quantization.qdq.dialect import find_attribute

if TYPE_CHECKING:
    import onnx


def prepare_model(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with inferred types and shapes, changed where integer kernels need it.

    - Constant nodes are initializers, and no initializer is an input: nothing feeds those.
    - Every node of the main graph has a name of its own.
    - A Gemm's factors alpha and beta are multiplied into its constants, without which it is not
      fused, and its constant bias is a vector with one value per column (both measured with
      onnxruntime 1.31.1, 2026-11-21).

    What is computed stays the same, except for the rounding of those products. Tensors keep their
    names. Time and memory grow linearly; weights are neither serialized nor copied.

    Args:
        model: Is changed and returned itself: a copy would hold all weights twice.
    """
    _store_constants(model)
    _name_nodes(model)
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Gemm" and node.domain in STANDARD:
            _simplify_gemm(model, node, constants)
    known = {value.name for value in model.graph.value_info}
    inferred = (value for value in _infer_values(model) if value.name not in known)
    model.graph.value_info.extend(inferred)
    return model


def read_declared_types(model: onnx.ModelProto) -> dict[str, int]:
    """Return the element type of every activation whose type the model declares."""
    graph = model.graph
    return _read_types((*graph.value_info, *graph.input, *graph.output))


def infer_types(model: onnx.ModelProto) -> dict[str, int]:
    """Return the element type of every activation whose type is declared or can be inferred."""
    return {**_read_types(_infer_values(model)), **read_declared_types(model)}


def _read_types(values: Iterable[onnx.ValueInfoProto]) -> dict[str, int]:
    return {
        value.name: value.type.tensor_type.elem_type
        for value in values
        if value.type.HasField("tensor_type") and value.type.tensor_type.elem_type
    }


def list_body_reads(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the names that the bodies of an If, Loop or Scan read, their own tensors included."""
    for entry in node.attribute:
        for body in [entry.g] if entry.type == entry.GRAPH else entry.graphs:
            yield from (value.name for value in body.output)
            for inner in body.node:
                yield from filter(None, inner.input)
                yield from list_body_reads(inner)


def list_read_names(graph: onnx.GraphProto) -> set[str]:
    """Return the names that nodes and their bodies read, and those of the graph's outputs."""
    return {*count_reads(graph), *(value.name for value in graph.output)}


def count_reads(graph: onnx.GraphProto) -> Counter[str]:
    """Return how often the nodes of a graph and their bodies read each tensor."""
    return Counter(
        name for node in graph.node for name in (*filter(None, node.input), *list_body_reads(node))
    )


def copy_model(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of a model of any size; ``copy.deepcopy`` takes ten times as long."""
    copy = type(model)()
    copy.CopyFrom(model)
    return copy


def read_clamp(
    node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto]
) -> tuple[float, float] | None:
    """Return the ends of a Relu or Clip, infinite where it has none; None if one is no constant."""
    if node.op_type == "Relu":
        return 0.0, math.inf
    # Attributes until opset 10, inputs from then on.
    ends = {"min": -math.inf, "max": math.inf}
    ends.update((entry.name, entry.f) for entry in node.attribute)
    for end, name in zip(("min", "max"), node.input[1:], strict=False):
        if name and name not in constants:
            return None
        if name:
            ends[end] = float(read_values(constants[name]).item())
    return ends["min"], ends["max"]


def replace_items(field: Any, items: list[Any]) -> None:  # noqa: ANN401  (a protobuf container)
    """Give a repeated field other items."""
    del field[:]
    field.extend(items)


def read_values(tensor: onnx.TensorProto) -> Array:
    """Return the values of a constant."""
    from onnx import numpy_helper

    return np.asarray(numpy_helper.to_array(tensor))


def _infer_values(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """Return what shape inference finds: nothing where an operator makes it fail."""
    import onnx

    try:
        return list(infer_graph(model).value_info)
    except (onnx.shape_inference.InferenceError, ValueError):
        return []


def _store_constants(model: onnx.ModelProto) -> None:
    graph = model.graph
    stored = {node.output[0]: value for node in graph.node if (value := _read_constant(node))}
    if stored:
        kept = [node for node in graph.node if not (node.output and node.output[0] in stored)]
        for name, value in stored.items():
            graph.initializer.add().CopyFrom(value)
            graph.initializer[-1].name = name
        replace_items(graph.node, kept)
    names = {tensor.name for tensor in graph.initializer}
    if any(value.name in names for value in graph.input):
        replace_items(graph.input, [value for value in graph.input if value.name not in names])
    # From IR 4 on initializers need not be inputs (onnx/docs/Versioning.md).
    model.ir_version = max(model.ir_version, 4)


def _read_constant(node: onnx.NodeProto) -> onnx.TensorProto | None:
    """Return the value of a Constant node, or None where that is text or sparse."""
    import onnx
    from onnx import numpy_helper

    if node.op_type != "Constant" or node.domain not in STANDARD or not node.attribute:
        return None
    entry = node.attribute[0]
    kinds = {"value_int": "int64", "value_ints": "int64"}
    kinds.update({"value_float": "float32", "value_floats": "float32"})
    if entry.name in kinds:
        value = onnx.helper.get_attribute_value(entry)
        return numpy_helper.from_array(np.asarray(value, kinds[entry.name]))
    return entry.t if entry.type == onnx.AttributeProto.TENSOR else None


def _name_nodes(model: onnx.ModelProto) -> None:
    taken = {node.name for node in model.graph.node}
    seen: set[str] = set()
    for index, node in enumerate(model.graph.node):
        if not node.name or node.name in seen:
            node.name = take_name(f"{node.name or node.op_type}_{index}", taken)
        seen.add(node.name)


def _simplify_gemm(
    model: onnx.ModelProto, node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto]
) -> None:
    """Rewrite one Gemm; its new constants are its own, those it shared stay as they are."""
    alpha, beta = find_attribute(node, "alpha", 1.0), find_attribute(node, "beta", 1.0)
    if node.input[1] not in constants:
        return
    weights = constants[node.input[1]]
    bias = constants.get(node.input[2]) if len(node.input) > 2 else None
    columns = weights.dims[0] if find_attribute(node, "transB", 0) else weights.dims[1]
    if alpha != 1.0:
        scaled = read_values(weights)
        scaled = scaled * scaled.dtype.type(alpha)
        node.input[1] = _add_constant(model, f"{node.input[1]}/{node.name}", scaled)
        _drop_attribute(node, "alpha")
    if bias is None:
        return
    values = read_values(bias)
    vector = values.size in (1, columns) and values.shape[:-1] in ((), (1,))
    if vector and (values.shape != (columns,) or beta != 1.0):
        flat = np.broadcast_to(values.ravel() * values.dtype.type(beta), (columns,))
        node.input[2] = _add_constant(model, f"{bias.name}/{node.name}", flat)
        _drop_attribute(node, "beta")


def _add_constant(model: onnx.ModelProto, name: str, values: Array) -> str:
    from onnx import numpy_helper

    model.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(values), name))
    return name


def _drop_attribute(node: onnx.NodeProto, name: str) -> None:
    kept = [entry for entry in node.attribute if entry.name != name]
    replace_items(node.attribute, kept)

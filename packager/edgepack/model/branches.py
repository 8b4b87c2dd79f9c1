"""``If`` nodes whose condition is known, and the branch that stays of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from edgepack.model.inferring import infer_graph

if TYPE_CHECKING:
    import onnx

    from edgepack.base.arrays import Array

# What conditions are computed with, from constants and shapes.
_FOLDED = frozenset(
    {"Add", "And", "Cast", "Concat", "Constant", "Div", "Equal", "Gather", "Greater"}
    | {"GreaterOrEqual", "Identity", "Less", "LessOrEqual", "Mod", "Mul", "Not", "Or", "ReduceProd"}
    | {"Reshape", "Size", "Slice", "Squeeze", "Sub", "Unsqueeze"}
)
_SMALL = 1024


def inline_known_branches(model: onnx.ModelProto) -> int:
    """Replace each ``If`` that constants and shapes decide by the branch that runs.

    onnxruntime 1.31.1 and onnxsim 0.8.1 fail at some of them where a branch has others within it,
    as in Silero VAD. Nodes that only computed conditions stay, unused.

    Returns:
        How many were replaced, including those in the remaining branches.
    """
    count = 0
    while any(node.op_type == "If" for node in model.graph.node):
        known = _find_known_values(model)
        nodes: list[onnx.NodeProto] = []
        found = 0
        for node in model.graph.node:
            if node.op_type == "If" and node.input[0] in known:
                taken = "then_branch" if known[node.input[0]].all() else "else_branch"
                branch = next(a.g for a in node.attribute if a.name == taken)
                nodes += _inline_branch(model.graph, node, branch, f"inlined{count + found}")
                found += 1
            else:
                nodes.append(node)
        if not found:
            break
        copies = [type(node).FromString(node.SerializeToString()) for node in nodes]
        del model.graph.node[:]
        model.graph.node.extend(copies)
        count += found
    return count


def _find_known_values(model: onnx.ModelProto) -> dict[str, Array]:
    """Return the small tensors whose values follow from constants and fixed shapes."""
    import numpy as np
    from onnx import numpy_helper
    from onnx.shape_inference import InferenceError

    from edgepack.model.facts import find_default_opset, read_tensor_spec

    try:
        graph = infer_graph(model)
    except InferenceError:
        graph = model.graph
    opset = find_default_opset(model)
    values = (*graph.input, *graph.value_info, *graph.output)
    shapes = {value.name: read_tensor_spec(value).shape for value in values}
    known = {
        tensor.name: numpy_helper.to_array(tensor)
        for tensor in model.graph.initializer
        if np.prod(tensor.dims, initial=1) <= _SMALL and tensor.data_location != tensor.EXTERNAL
    }
    shapes |= {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    for node in model.graph.node:
        shape = shapes.get(node.input[0]) if node.input else None
        if node.op_type in ("Shape", "Size") and shape is not None:
            sizes = np.array([size for size in shape if isinstance(size, int)], np.int64)
            if len(sizes) == len(shape):
                known |= _evaluate_node(node, {node.input[0]: np.empty(sizes, np.bool_)}, opset)
        elif node.op_type in _FOLDED and all(name in known for name in node.input if name):
            known |= _evaluate_node(node, {name: known[name] for name in node.input if name}, opset)
    return known


def _evaluate_node(node: onnx.NodeProto, feed: dict[str, Array], opset: int) -> dict[str, Array]:
    """Return the outputs of a node, or nothing where they are large or it cannot be computed."""
    from onnx.reference import ReferenceEvaluator

    try:
        found = ReferenceEvaluator(node, opsets={"": opset}).run(None, feed)
    except (ValueError, TypeError, IndexError, KeyError, RuntimeError):
        return {}
    outputs = dict(zip(node.output, found, strict=True))
    return {name: array for name, array in outputs.items() if array.size <= _SMALL}


def _inline_branch(
    graph: onnx.GraphProto, node: onnx.NodeProto, branch: onnx.GraphProto, prefix: str
) -> Iterator[onnx.NodeProto]:
    """Yield a branch's nodes under names that nothing else has; its weights go into the graph."""
    import onnx

    own = [tensor.name for tensor in branch.initializer]
    own += [name for inner in branch.node for name in inner.output if name]
    names = {name: f"{prefix}/{name}" for name in own}
    for tensor in branch.initializer:
        weight = graph.initializer.add()
        weight.CopyFrom(tensor)
        weight.name = names[tensor.name]
    for inner in branch.node:
        copy = onnx.NodeProto()
        copy.CopyFrom(inner)
        copy.name = f"{prefix}/{inner.name or inner.output[0]}"
        _rename_tensors([copy], names)
        yield copy
    for given, value in zip(node.output, branch.output, strict=True):
        if given:
            taken = names.get(value.name, value.name)
            yield onnx.helper.make_node("Identity", [taken], [given], f"{prefix}/{given}")


def _rename_tensors(nodes: Iterable[onnx.NodeProto], names: dict[str, str]) -> None:
    """Rename tensors, also in branches of nodes that have no tensor of the same name."""
    for node in nodes:
        for place in (node.input, node.output):
            place[:] = [names.get(name, name) for name in place]
        for attribute in node.attribute:
            for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                own = {value.name for value in (*graph.input, *graph.initializer)}
                own |= {name for inner in graph.node for name in inner.output}
                outer = {name: new for name, new in names.items() if name not in own}
                _rename_tensors(graph.node, outer)
                for value in graph.output:
                    value.name = outer.get(value.name, value.name)

"""Finds inputs whose values decide shapes, and outputs whose shapes depend on the data."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from edgepack.errors import format_list
from edgepack.model.facts import read_tensor_spec
from edgepack.model.finding import Finding
from edgepack.model.reading import read_outline

if TYPE_CHECKING:
    import onnx

# Operators with the inputs, by position, whose values say what shape comes out (onnx/docs/Operators
# .md, opset 26). The other inputs of Pad, Resize and Slice do not.
_DECIDING: Mapping[str, tuple[int, ...]] = {
    "CenterCropPad": (1,),
    "ConstantOfShape": (0,),
    "Expand": (1,),
    "OneHot": (1,),
    "Pad": (1,),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Resize": (2, 3),
    "Slice": (1, 2, 4),
    "Split": (1,),
    "SplitToSequence": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Upsample": (1,),
}
_BY_DATA = ("Compress", "NonMaxSuppression", "NonZero", "Unique")
"""Operators that make as many values as their data have of a kind."""
_OF_SHAPES = ("Shape", "Size")
_SHOWN = 3


def find_shape_inputs(path: Path, constants: Collection[str] = ()) -> list[Finding]:
    """Return a note for each input whose values decide a shape, and one for outputs that vary.

    It skips bodies of If, Loop and Scan, and inputs in ``constants``.

    Raises:
        ModelError: The file cannot be read as a model.
    """
    graph = read_outline(path).graph
    deciders, sized = _follow_inputs(graph)
    found = [
        Finding(
            "edgepack",
            "note",
            node,
            f"the values of the input {name!r} decide a shape",
            "give samples in edgepack.yaml: without any, a build tries random values",
        )
        for name, node in deciders.items()
        if name not in constants
    ]
    outputs = [v.name for v in graph.output if v.name in sized and not _is_static(v)]
    if outputs:
        makers = format_list(sorted({sized[name] for name in outputs}), _SHOWN)
        found.append(
            Finding(
                "edgepack",
                "note",
                makers,
                f"the size of {format_list([repr(name) for name in outputs], _SHOWN)} may"
                " depend on the"
                " data",
                "nothing, on a CPU; what wants static shapes leaves such nodes to it",
            )
        )
    return found


def _is_static(value: onnx.ValueInfoProto) -> bool:
    shape = read_tensor_spec(value).shape
    return shape is not None and all(isinstance(size, int) for size in shape)


def _follow_inputs(graph: onnx.GraphProto) -> tuple[dict[str, str], dict[str, str]]:
    """Return inputs that decide a shape, and tensors whose shape the data decide, with a node."""
    constants = {tensor.name for tensor in graph.initializer}
    values = {v.name: {v.name} for v in graph.input if v.name not in constants}
    deciders: dict[str, str] = {}
    sized: dict[str, str] = {}
    for node in graph.node:
        label = f"{(node.name or node.output[0])!r} ({node.op_type})"
        given = [node.input[i] for i in _DECIDING.get(node.op_type, ()) if i < len(node.input)]
        for name in (source for tensor in given for source in values.get(tensor, ())):
            deciders.setdefault(name, label)
        carried = set().union(*(values.get(name, set()) for name in node.input))
        by_data = next((sized[name] for name in node.input if name in sized), "")
        by_data = label if node.op_type in _BY_DATA and carried else by_data
        for output in node.output:
            values[output] = set() if node.op_type in _OF_SHAPES else carried
            if by_data and node.op_type not in _OF_SHAPES:
                sized[output] = by_data
    return deciders, sized

"""Changes of a graph that many places make."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from edgepack.model.facts import STANDARD

if TYPE_CHECKING:
    import onnx

MIN_IR = 4
"""The first IR version whose initializers need not be graph inputs (onnx/docs/Versioning.md)."""


def take_name(stem: str, taken: set[str]) -> str:
    """Return a name that is not taken, ``stem`` itself where it can be, and take it."""
    name, count = stem, 0
    while name in taken:
        count += 1
        name = f"{stem}_{count}"
    taken.add(name)
    return name


def move_constants_to_initializers(model: onnx.ModelProto) -> None:
    """Make initializers of Constant nodes, and let IR 3 have initializers that are not inputs."""
    from onnx import numpy_helper

    kept = []
    for node in model.graph.node:
        array = read_float_constant(node)
        if array is None:
            kept.append(node)
        else:
            model.graph.initializer.append(numpy_helper.from_array(array, node.output[0]))
    del model.graph.node[:]
    model.graph.node.extend(kept)
    model.ir_version = max(model.ir_version, MIN_IR)


def read_float_constant(node: onnx.NodeProto) -> np.ndarray[Any, Any] | None:
    """Return the float32 value of a Constant node; None for other nodes and values."""
    from onnx import TensorProto, numpy_helper

    if node.op_type != "Constant" or node.domain not in STANDARD:
        return None
    attribute = node.attribute[0]
    if attribute.name == "value" and attribute.t.data_type == TensorProto.FLOAT:
        return np.asarray(numpy_helper.to_array(attribute.t))
    if attribute.name in ("value_float", "value_floats"):
        value = attribute.f if attribute.name == "value_float" else list(attribute.floats)
        return np.asarray(value, np.float32)
    return None

"""IR versions: writing a model with one that a runtime loads."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from edgepack.errors import ModelError
from edgepack.model.editing import MIN_IR
from edgepack.model.reading import read_model, read_outline, write_model
from edgepack.model.running import list_runtime_errors

if TYPE_CHECKING:
    import onnx

# Types and the IR version that each came with: 4-bit floats, 8-bit scales, 2-bit integers
# (onnx.proto, TensorProto.DataType and Version, onnx 1.23.2).
_IR_OF_TYPE = {23: 11, 24: 12, 25: 13, 26: 13}
_HIGHEST = re.compile(r"max supported IR version: (\d+)")


def lower_ir(model: onnx.ModelProto, highest: int) -> str:
    """Give a model an IR version that a runtime loads; return what was done, if anything.

    Raises:
        ModelError: A tensor has a type that came with a later IR version.
    """
    found = model.ir_version
    if found <= highest:
        return ""
    for tensor in model.graph.initializer:
        if _IR_OF_TYPE.get(tensor.data_type, 0) > highest:
            raise ModelError(
                f"the weight {tensor.name!r} has a type of IR version"
                f" {_IR_OF_TYPE[tensor.data_type]}, the runtime loads up to {highest}",
                hint="export the model with float32 weights",
            )
    model.ir_version = highest
    return f"IR {found} written as IR {highest}"


def limit_ir(highest: int, model: onnx.ModelProto) -> int:
    """Return the highest IR version that a recipe writes of a model: its own, or at least 4.

    Weights in Constant nodes of an IR 3 model become initializers, which IR 4 needs.
    """
    return min(highest, max(model.ir_version, MIN_IR))


@cache
def find_highest_ir() -> int:
    """Return the highest IR version that the onnxruntime here loads, as its own error says it."""
    import onnx
    import onnxruntime

    value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1])
    graph = onnx.helper.make_graph([], "g", [value], [value])
    model = onnx.helper.make_model(graph, ir_version=10_000)
    try:
        onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    except list_runtime_errors() as error:
        if said := _HIGHEST.search(str(error)):
            return int(said[1])
    return onnx.IR_VERSION


@contextmanager
def loadable(model: Path) -> Iterator[Path]:
    """Give a model file, or a copy with an IR version that the onnxruntime here loads.

    onnx 1.23 writes IR 14 by default, which onnxruntime 1.31 refuses only because of the number.

    Raises:
        ModelError: A weight has a type that came with a later IR version.
    """
    if read_outline(model).ir_version <= find_highest_ir():
        yield model
        return
    with tempfile.TemporaryDirectory(prefix="edgepack-ir-") as folder:
        lowered = read_model(model)
        lower_ir(lowered, find_highest_ir())
        write_model(lowered, Path(folder) / model.name)
        yield Path(folder) / model.name

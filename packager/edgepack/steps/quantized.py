"""What the int8 recipes and fp16 have in common: is a model float, and are its outputs numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from edgepack.errors import StepError
from edgepack.model.quantized import find_quantization, find_quantized_nodes

if TYPE_CHECKING:
    import onnx


def require_unquantized(model: onnx.ModelProto) -> None:
    """Refuse a model that is quantized already, wholly or in part.

    Raises:
        StepError: Says how many nodes are, and names the first.
    """
    found = find_quantized_nodes(model)
    if found:
        raise StepError(
            f"the model is quantized already ({find_quantization(model)}): {len(found)} such nodes,"
            f" {found[0].name!r} ({found[0].op_type}) first",
            hint="give the float model, or carry this one as it is: --variant cpu-fp32",
        )


def is_finite_as(array: np.ndarray[Any, Any], reference: np.ndarray[Any, Any]) -> bool:
    """Return whether all values are finite that are finite in the reference.

    Arrays of another shape or of no floats have nothing to compare; only their own values count.
    """
    if array.dtype.kind != "f":
        return True
    bad = ~np.isfinite(array)
    if array.shape == reference.shape and reference.dtype.kind == "f":
        bad &= np.isfinite(reference)
    return not bad.any()

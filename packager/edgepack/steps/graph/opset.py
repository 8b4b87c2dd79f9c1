"""Raises a model's opset to the one that a dialect needs, where it is lower."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from edgepack.errors import StepError, format_list
from edgepack.model.facts import STANDARD, find_default_opset
from edgepack.model.files import MODEL
from edgepack.model.quantized import walk_nodes
from edgepack.model.reading import read_model, write_model
from edgepack.steps.base import Inputs, Notes
from edgepack.steps.comparing import measure_worst_sqnr

if TYPE_CHECKING:
    import onnx

_SAME_DB = 60.0
# IR 7 is the one of opset 13 (onnx/docs/Versioning.md, table of released versions).
_IR_OF_OPSET_13 = 7
_SHOWN = 4
# /project/onnx/version_converter/convert.cc:101: convert_graph: Assertion `it != end` failed:
_ASSERTION = re.compile(r"\S+:\d+: \w+: Assertion `[^`]*` failed: ")


@dataclass(frozen=True)
class AtLeastOpset:
    """The default operator set raised to ``minimum`` where it is lower.

    Inputs: ``model``; ``samples``, optionally.
    """

    name: ClassVar[str] = "at-least-opset"
    libraries: ClassVar[tuple[str, ...]] = ("onnx", "onnxruntime")
    cacheable = True
    minimum: int

    def check(self, inputs: Inputs) -> None:
        """Accept any model; the conversion is the check."""

    def run(self, inputs: Inputs, out: Path) -> Notes:
        """Write ``model.onnx``.

        Raises:
            StepError: onnx cannot convert the model; names the reason.
        """
        model = read_model(inputs["model"] / MODEL)
        before = find_default_opset(model)
        if before < self.minimum:
            model = _convert(model, self.minimum)
        model.ir_version = max(model.ir_version, _IR_OF_OPSET_13)
        write_model(model, out / MODEL)
        after = find_default_opset(model)
        return Notes(f"opset {before}" + (f" converted to {after}" if after != before else " kept"))

    def verify(self, inputs: Inputs, out: Path) -> None:
        """Prove that the outputs are the same.

        Raises:
            StepError: They differ.
        """
        before = inputs["model"] / MODEL
        sqnr = measure_worst_sqnr(before, out / MODEL, inputs.get("samples"))
        if sqnr < _SAME_DB:
            raise StepError(
                f"after conversion to opset {self.minimum} the outputs are {sqnr:.0f} dB away",
                hint=f"export the model with opset {self.minimum} or higher",
            )


def _convert(model: onnx.ModelProto, version: int) -> onnx.ModelProto:
    from onnx import version_converter
    from onnx.shape_inference import InferenceError

    try:
        return version_converter.convert_version(model, version)
    except (RuntimeError, ValueError, InferenceError, version_converter.ConvertError) as error:
        unknown = format_list(_find_unknown_operators(model), _SHOWN)
        message = _ASSERTION.sub("", " ".join(str(error).split()))[:300]
        raise StepError(
            f"onnx cannot convert the model from opset {find_default_opset(model)} to {version}: "
            + (f"ONNX has no operator {unknown}" if unknown else message),
            hint=f"export the model with opset {version} or higher, or build without what needs it:"
            " int8 (--variant cpu-fp32), or preprocess: {in_graph: true}",
        ) from error


def _find_unknown_operators(model: onnx.ModelProto) -> list[str]:
    """Return the operators that onnx has no schema for, as removed experimental ones."""
    import onnx

    own = [node for node in walk_nodes(model) if node.domain in STANDARD]
    return sorted({node.op_type for node in own if not onnx.defs.has(node.op_type)})

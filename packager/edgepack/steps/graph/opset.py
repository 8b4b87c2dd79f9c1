"""Raises a model's opset to the one that a dialect needs, or lowers it to a runtime's."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from edgepack.errors import BugError, StepError, format_list
from edgepack.model.facts import STANDARD, find_default_opset, read_signature
from edgepack.model.files import MODEL
from edgepack.model.quantized import walk_nodes
from edgepack.model.reading import read_model, read_outline, write_model
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
# No Adapter From Version $22 for GlobalMaxPool; No Previous Version of Gelu exists
_LACKING = re.compile(
    r"No Adapter (?:From|To) Version \$\d+ for (\w+)|No Previous Version of (\w+)"
)
_USUAL_OPSET = 17
"""What most exporters write when asked for an older one."""


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
            model = _convert(model, self.minimum, _format_raising(self.minimum))
        model.ir_version = max(model.ir_version, _IR_OF_OPSET_13)
        write_model(model, out / MODEL)
        after = find_default_opset(model)
        return Notes(f"opset {before}" + (f" converted to {after}" if after != before else " kept"))

    def verify(self, inputs: Inputs, out: Path) -> None:
        """Prove that the outputs are the same.

        Raises:
            StepError: They differ.
        """
        hint = f"export the model with opset {self.minimum} or higher"
        _require_same(inputs, out, self.minimum, hint)


@dataclass(frozen=True)
class AtMostOpset:
    """The default operator set lowered to ``maximum`` where it is higher.

    Inputs: ``model``; ``samples``, optionally.
    """

    name: ClassVar[str] = "at-most-opset"
    libraries: ClassVar[tuple[str, ...]] = ("onnx", "onnxruntime")
    cacheable = True
    maximum: int
    """The highest that the target's runtime loads."""

    def check(self, inputs: Inputs) -> None:
        """Accept any model; the conversion is the check."""

    def run(self, inputs: Inputs, out: Path) -> Notes:
        """Write ``model.onnx``.

        Raises:
            StepError: The model has an operator that the lower opset has not, or onnx cannot
                convert it; names the operator.
        """
        model = read_model(inputs["model"] / MODEL)
        before = find_default_opset(model)
        if before > self.maximum:
            model = _convert(model, self.maximum, self._hint)
        write_model(model, out / MODEL)
        after = find_default_opset(model)
        return Notes(f"opset {before}" + (f" converted to {after}" if after != before else " kept"))

    def verify(self, inputs: Inputs, out: Path) -> None:
        """Prove that inputs and outputs are the same, and that the opset is low enough.

        Raises:
            StepError: The outputs differ.
        """
        before, after = (read_outline(path / MODEL) for path in (inputs["model"], out))
        if read_signature(before) != read_signature(after):
            raise BugError("the conversion changed the inputs or outputs")
        if find_default_opset(after) > self.maximum:
            raise BugError(f"the opset is {find_default_opset(after)}, not {self.maximum}")
        _require_same(inputs, out, self.maximum, self._hint)

    @property
    def _hint(self) -> str:
        return (
            f"the target's runtime loads up to opset {self.maximum}: export the model with opset"
            f" {min(self.maximum, _USUAL_OPSET)} to {self.maximum}"
        )


def _require_same(inputs: Inputs, out: Path, version: int, hint: str) -> None:
    before = inputs["model"] / MODEL
    sqnr = measure_worst_sqnr(before, out / MODEL, inputs.get("samples"))
    if sqnr < _SAME_DB:
        raise StepError(
            f"after conversion to opset {version} the outputs are {sqnr:.0f} dB away", hint=hint
        )


def _format_raising(version: int) -> str:
    return (
        f"export the model with opset {version} or higher, or build without what needs it: int8"
        " (--variant cpu-fp32), or preprocess: {in_graph: true}"
    )


def _convert(model: onnx.ModelProto, version: int, hint: str) -> onnx.ModelProto:
    from onnx import version_converter
    from onnx.shape_inference import InferenceError

    try:
        return version_converter.convert_version(model, version)
    except (RuntimeError, ValueError, InferenceError, version_converter.ConvertError) as error:
        message = _ASSERTION.sub("", " ".join(str(error).split()))[:300]
        lacking = _LACKING.search(message)
        unknown = _find_unknown_operators(model)
        why = f"ONNX has no operator {format_list(unknown, _SHOWN)}" if unknown else message
        if lacking and not unknown:
            why = f"it has no way for {lacking[1] or lacking[2]}"
        raise StepError(
            f"onnx cannot convert the model from opset {find_default_opset(model)} to {version}:"
            f" {why}",
            hint=hint,
        ) from error


def _find_unknown_operators(model: onnx.ModelProto) -> list[str]:
    """Return the operators that onnx has no schema for, as removed experimental ones."""
    import onnx

    own = [node for node in walk_nodes(model) if node.domain in STANDARD]
    return sorted({node.op_type for node in own if not onnx.defs.has(node.op_type)})

"""onnxsim, with its result proven on real samples. Its failure is a skip that is reported."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from edgepack.errors import EdgepackError, StepError
from edgepack.model.facts import signature
from edgepack.model.reading import read_model, read_structure, write_model
from edgepack.steps.base import MODEL, Inputs, Notes
from edgepack.steps.comparing import worst_sqnr_db

if TYPE_CHECKING:
    import onnx

# Folding batch norms and constants reorders float32 arithmetic; 60 dB is a thousandth.
_SAME_DB = 60.0


@dataclass(frozen=True)
class Simplified:
    """Constants folded and patterns fused. Inputs: ``model``; ``samples``, optionally."""

    name: ClassVar[str] = "simplified"
    libraries: ClassVar[tuple[str, ...]] = ("onnx", "onnxruntime", "onnxsim")
    cacheable = True

    def check(self, inputs: Inputs) -> None:
        """Accept any model: one that cannot be simplified is passed on as it is."""

    def run(self, inputs: Inputs, out: Path) -> Notes:
        """Write ``model.onnx``: simplified and proven equal, or as it came, with the reason."""
        source = inputs["model"] / MODEL
        try:
            before, after = _simplify_file(source, out / MODEL)
            sqnr = worst_sqnr_db(source, out / MODEL, inputs.get("samples"))
        except EdgepackError as error:
            return _skip(source, out, error.problem)
        if sqnr < _SAME_DB:
            return _skip(source, out, f"its result is {sqnr:.0f} dB from the model")
        return Notes(f"onnxsim: {before} nodes to {after}, outputs equal to {sqnr:.0f} dB")

    def verify(self, inputs: Inputs, out: Path) -> None:
        """Prove that the file reads back with the same inputs and outputs.

        Raises:
            StepError: It does not.
        """
        _require_same_signature(
            read_structure(inputs["model"] / MODEL), read_structure(out / MODEL)
        )


def _simplify_file(source: Path, result: Path) -> tuple[int, int]:
    """Write what onnxsim makes of a model; return how many nodes there were, and are.

    Raises:
        StepError: onnxsim fails, or changes the signature.
    """
    model = read_model(source)
    simplified = simplify(model)
    _require_same_signature(model, simplified)
    write_model(simplified, result)
    return len(model.graph.node), len(simplified.graph.node)


def simplify(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return what onnxsim makes of a model.

    Raises:
        StepError: onnxsim fails.
    """
    import onnxsim
    from onnx.checker import ValidationError
    from onnx.shape_inference import InferenceError

    try:
        simplified: onnx.ModelProto = onnxsim.simplify(model, certify=False)[0]
    except (
        ValidationError,
        InferenceError,
        RuntimeError,
        ValueError,
        TypeError,
        KeyError,
    ) as error:
        message = " ".join(str(error).split())[:300]
        raise StepError(f"onnxsim failed: {message}", hint="the model is used as it is") from error
    return simplified


def _require_same_signature(before: onnx.ModelProto, after: onnx.ModelProto) -> None:
    (old_in, old_out), (new_in, new_out) = signature(before), signature(after)
    names = [s.name for s in (*old_in, *old_out)], [s.name for s in (*new_in, *new_out)]
    if names[0] != names[1]:
        raise StepError(
            f"onnxsim changed the inputs and outputs from {names[0]} to {names[1]}",
            hint="the model is used as it is",
        )


def _skip(source: Path, out: Path, reason: str) -> Notes:
    for file in source.parent.glob(f"{MODEL}*"):
        shutil.copyfile(file, out / file.name)
    return Notes(f"onnxsim skipped: {reason}", {"skipped": reason})

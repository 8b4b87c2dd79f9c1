"""Runs onnxsim and proves its result on real samples. If it fails, the step reports a skip."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from edgepack.errors import EdgepackError, StepError
from edgepack.model.facts import read_signature
from edgepack.model.files import MODEL
from edgepack.model.reading import INLINE_LIMIT_BYTES, read_model, read_outline, write_model
from edgepack.steps.base import Inputs, Notes
from edgepack.steps.comparing import measure_worst_sqnr

# Folding batch norms and constants reorders float32 arithmetic; 60 dB is a thousandth.
_SAME_DB = 60.0
_LARGER = 1.1
"""By what factor a file counts as larger than another."""


@dataclass(frozen=True)
class Simplified:
    """Constants folded and patterns fused. Inputs: ``model``; ``samples``, optionally.

    Weights that are stored in fewer bits, and made float32 by Cast and Mul, become constants of
    float32 here, four times as large for int8. That suits recipes that make them small again.
    """

    name: ClassVar[str] = "simplified"
    libraries: ClassVar[tuple[str, ...]] = ("onnx", "onnxruntime", "onnxsim")
    cacheable = True
    grows: bool = True
    """Whether the result may be a larger file than the model."""

    def check(self, inputs: Inputs) -> None:
        """Accept any model: one that cannot be simplified is passed on as it is."""

    def run(self, inputs: Inputs, out: Path) -> Notes:
        """Write ``model.onnx``: simplified and proven equal, or as it came, with the reason."""
        source = inputs["model"] / MODEL
        try:
            before, after = _simplify_file(source, out / MODEL)
            sqnr = measure_worst_sqnr(source, out / MODEL, inputs.get("samples"))
        except EdgepackError as error:
            return _skip(source, out, error.problem)
        if sqnr < _SAME_DB:
            return _skip(source, out, f"its result is {sqnr:.0f} dB from the model")
        sizes = [_count_bytes(folder) for folder in (inputs["model"], out)]
        if not self.grows and sizes[1] > _LARGER * sizes[0]:
            mb = [f"{size / 1e6:.1f} MB" for size in sizes]
            return _skip(source, out, f"it makes constants of {mb[0]} float32, {mb[1]} in all")
        return Notes(f"onnxsim: {before} nodes to {after}, outputs equal to {sqnr:.0f} dB")

    def verify(self, inputs: Inputs, out: Path) -> None:
        """Prove that the file reads back with the same inputs and outputs.

        Raises:
            StepError: It does not.
        """
        _require_same_signature(inputs["model"] / MODEL, out / MODEL)


def _count_bytes(folder: Path) -> int:
    """Return the size of a model with its weights."""
    return sum(file.stat().st_size for file in folder.glob(f"{MODEL}*"))


def _simplify_file(source: Path, result: Path) -> tuple[int, int]:
    """Write what onnxsim makes of a model; return how many nodes there were, and are.

    Raises:
        StepError: onnxsim fails, or changes the signature.
    """
    with tempfile.TemporaryDirectory(prefix="edgepack-simplified-") as scratch:
        made = Path(scratch) / MODEL
        simplify(source, made)
        nodes = _require_same_signature(source, made)
        if sum(file.stat().st_size for file in made.parent.iterdir()) > INLINE_LIMIT_BYTES:
            write_model(read_model(made), result)
        else:
            shutil.move(made, result)
    return nodes


def simplify(source: Path, result: Path) -> None:
    """Write what onnxsim makes of a model.

    It reads and writes files itself: of a model in memory it takes and returns copies, and peaks
    at 5 times the weights instead of twice (onnxsim 0.8.1).

    Raises:
        StepError: onnxsim fails.
    """
    import onnxsim
    from onnx.checker import ValidationError
    from onnx.shape_inference import InferenceError

    try:
        onnxsim.simplify(str(source), certify=False, output_path=str(result))
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


def _require_same_signature(before: Path, after: Path) -> tuple[int, int]:
    """Return how many nodes two models have, one in memory at a time.

    Raises:
        StepError: Their inputs or outputs have other names.
    """
    (old, old_nodes), (new, new_nodes) = map(_read_facts, (before, after))
    if old != new:
        raise StepError(
            f"onnxsim changed the inputs and outputs from {old} to {new}",
            hint="the model is used as it is",
        )
    return old_nodes, new_nodes


def _read_facts(path: Path) -> tuple[list[str], int]:
    """Return the names of a model's inputs and outputs, and how many nodes it has."""
    model = read_outline(path)
    inputs, outputs = read_signature(model)
    return [spec.name for spec in (*inputs, *outputs)], len(model.graph.node)


def _skip(source: Path, out: Path, reason: str) -> Notes:
    for file in out.glob(f"{MODEL}*"):
        file.unlink()
    for file in source.parent.glob(f"{MODEL}*"):
        shutil.copyfile(file, out / file.name)
    return Notes(f"onnxsim skipped: {reason}", {"skipped": reason})

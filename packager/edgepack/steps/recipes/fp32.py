"""The ``fp32`` recipe: numbers stay as they are, also those of a model quantized already."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from edgepack.errors import BugError
from edgepack.model.files import MODEL
from edgepack.model.ir import lower_ir
from edgepack.model.quantized import find_quantization
from edgepack.model.reading import read_model, read_outline, write_model
from edgepack.model.running import make_session
from edgepack.steps.base import Inputs, Notes
from edgepack.steps.recipes.kind import Asked, RecipeKind


@dataclass(frozen=True)
class Fp32:
    """The model itself, proven to load where the target pins its runtime. Input: ``model``."""

    name: ClassVar[str] = "fp32"
    libraries: ClassVar[tuple[str, ...]] = ("onnx", "onnxruntime")
    cacheable = True
    max_ir: int

    def check(self, inputs: Inputs) -> None:
        """Accept any model that was prepared."""

    def run(self, inputs: Inputs, out: Path) -> Notes:
        """Write ``model.onnx``.

        Raises:
            ModelError: A weight has a type that the target's IR version does not have.
        """
        structure = read_outline(inputs["model"] / MODEL)
        quantization = find_quantization(structure)
        kept = f"numbers kept: it is {quantization.state}" if quantization else "numbers kept"
        if structure.ir_version > self.max_ir:
            model = read_model(inputs["model"] / MODEL)
            done = lower_ir(model, self.max_ir)
            write_model(model, out / MODEL)
            return Notes(f"{kept}; {done}")
        for file in inputs["model"].glob(f"{MODEL}*"):
            shutil.copyfile(file, out / file.name)
        return Notes(kept)

    def verify(self, inputs: Inputs, out: Path) -> None:
        """Prove that the file loads and that its IR version is one the target knows.

        Raises:
            StepError: The IR version is too new.
        """
        del inputs
        require_ir(out / MODEL, self.max_ir)
        make_session(out / MODEL)


def require_ir(model: Path, highest: int) -> None:
    """Prove that a file's IR version is one that the target's runtime loads.

    Raises:
        StepError: It is newer.
    """
    found = read_outline(model).ir_version
    if found > highest:
        raise BugError(
            f"the file has IR version {found}, the target's runtime loads up to {highest}"
        )


def _make_step(asked: Asked) -> Fp32:
    return Fp32(asked.profile.runtime.max_ir)


KIND = RecipeKind(
    _make_step,
    words="finishing the fp32 model",
    cpu_cap_db=60.0,
    other_cap_db=30.0,
    padded_db=60.0,
    takes_long=False,
)

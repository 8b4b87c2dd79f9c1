"""A model of another framework as ONNX, made by that framework's exporter in its environment."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from edgepack.converters.conversion import Conversion
from edgepack.converters.registry import CONVERTERS
from edgepack.model.facts import read_model_facts
from edgepack.model.files import MODEL
from edgepack.steps.base import Inputs, Notes

SIGNATURE = "signature.json"
"""How ONNX and the framework name inputs and outputs, and the versions of the packages."""


@dataclass(frozen=True)
class Converted:
    """The source as ONNX.

    Inputs: ``source``, the framework's file or folder; where a function makes the model, the
    project's folder.
    """

    name: ClassVar[str] = "converted"
    libraries: ClassVar[tuple[str, ...]] = ()
    conversion: Conversion

    @property
    def cacheable(self) -> bool:
        """A file decides its conversion; a function may return something else each time."""
        return not self.conversion.function

    def check(self, inputs: Inputs) -> None:
        """Look into the file before a framework reads it.

        Raises:
            ModelError: It is not of its format, or holds what must not be read.
        """
        if not self.conversion.function:
            CONVERTERS[self.conversion.converter].look(inputs["source"])

    def run(self, inputs: Inputs, out: Path) -> Notes:
        """Write ``model.onnx`` and ``signature.json``.

        Raises:
            ModelError: The model is refused; names the operator.
            ToolError: The environment cannot be made, or the converter crashed.
        """
        answer = self.conversion.open(inputs["source"]).convert(out)
        (out / SIGNATURE).write_text(json.dumps(answer, sort_keys=True), encoding="utf-8")
        words = CONVERTERS[self.conversion.converter].words
        versions = ", ".join(f"{name} {version}" for name, version in answer["versions"].items())
        return Notes(f"{words} to ONNX by {versions}", answer)

    def verify(self, inputs: Inputs, out: Path) -> None:
        """Make sure that it is a whole ONNX model; its outputs are proven on samples later.

        Raises:
            ModelError: It is not.
        """
        del inputs
        read_model_facts(out / MODEL)


def read_conversion(folder: Path) -> dict[str, Any]:
    """Return how a converted model and its source name inputs and outputs, and by what versions."""
    found: dict[str, Any] = json.loads((folder / SIGNATURE).read_text(encoding="utf-8"))
    return found

"""Proof that an int8 model runs with integer kernels on the kind of CPU that it is for."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from edgepack.errors import BugError
from edgepack.model.files import MODEL
from edgepack.model.fusion import Architecture, FusionCoverage, measure_fusion_coverage
from edgepack.steps.base import Inputs, Notes

FUSION = "fusion.json"
"""``facts``, as in the notes, and ``float_nodes``: name, op, is_product and is_island of each."""


@dataclass(frozen=True)
class Fusion:
    """How much of a QDQ model fuses into integer kernels. Input: ``model``.

    See :mod:`edgepack.model.fusion` for what is counted, and what ``coverage`` is.
    """

    name: ClassVar[str] = "fusion"
    libraries: ClassVar[tuple[str, ...]] = ("onnx", "onnxruntime")
    cacheable = True
    cpu: Architecture

    def check(self, inputs: Inputs) -> None:
        """Accept any model that a recipe has proven."""

    def run(self, inputs: Inputs, out: Path) -> Notes:
        """Write ``fusion.json``; the facts of the notes are those of the coverage.

        Raises:
            ModelError: onnxruntime refuses the model.
        """
        found = measure_fusion_coverage(inputs["model"] / MODEL, self.cpu)
        (out / FUSION).write_text(json.dumps(_make_json(found), sort_keys=True), encoding="utf-8")
        return Notes(describe(found, self.cpu), found.make_facts())

    def verify(self, inputs: Inputs, out: Path) -> None:
        """Prove that a second look at the model finds the same.

        Raises:
            StepError: It finds something else.
        """
        written = json.loads((out / FUSION).read_text(encoding="utf-8"))
        if written != _make_json(measure_fusion_coverage(inputs["model"] / MODEL, self.cpu)):
            raise BugError("onnxruntime optimizes the model in another way each time")


def describe(found: FusionCoverage, cpu: str) -> str:
    """Return the coverage as one line."""
    line = (
        f"{found.coverage:.0%} of the kernels on {cpu} are integer ({found.integer_ops} integer,"
        f" {len(found.float_nodes)} float)"
    )
    if not found.islands:
        return line
    named = ", ".join(found.islands[:3]) + (", ..." if len(found.islands) > 3 else "")
    return f"{line}; float between integers: {named}"


def _make_json(found: FusionCoverage) -> dict[str, object]:
    nodes = [
        {"name": n.name, "op": n.op, "is_product": n.is_product, "is_island": n.is_island}
        for n in found.float_nodes
    ]
    return {"facts": found.make_facts(), "float_nodes": nodes}

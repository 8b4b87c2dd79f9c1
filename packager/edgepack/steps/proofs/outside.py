"""How far a quantized model is from fp32 on inputs that no sample shows."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, ClassVar

from edgepack.errors import BugError
from edgepack.model.files import MODEL
from edgepack.model.reading import read_structure
from edgepack.quantization.search.outside import LEAST_ERROR, Outside
from edgepack.samples.sample_set import SampleSet
from edgepack.steps.base import Inputs, Notes

OUTSIDE = "outside.json"
"""A list, the farthest first, with the fields of
:class:`~edgepack.quantization.search.outside.BrokenOutput`."""


@dataclasses.dataclass(frozen=True)
class OutsideErrors:
    """The outputs that an input of another kind than the samples breaks.

    Inputs: ``reference``, the fp32 model; ``model``, with the same inputs; ``samples``.
    """

    name: ClassVar[str] = "outside-errors"
    libraries: ClassVar[tuple[str, ...]] = ("numpy", "onnxruntime")
    cacheable = True
    outside: Outside
    processor: str
    """The kind of processor that this runs on: it decides the last bits."""

    def check(self, inputs: Inputs) -> None:
        """Accept any two models that their steps have proven."""

    def run(self, inputs: Inputs, out: Path) -> Notes:
        """Write ``outside.json``.

        Raises:
            ModelError: A model does not load, or does not run on a sample.
        """
        samples = SampleSet.read(inputs["samples"])
        reference, model = (inputs[name] / MODEL for name in ("reference", "model"))
        found = self.outside.find_errors(reference, model, samples)
        entries = [dataclasses.asdict(each) for each in found]
        (out / OUTSIDE).write_text(json.dumps(entries, indent=0), encoding="utf-8")
        if len(samples) == 1:
            return Notes("one sample does not show how much outputs vary")
        kinds = list(dict.fromkeys(f"{each.input} ({each.output!r})" for each in found))
        return Notes(f"broken by inputs unlike the samples: {', '.join(kinds) or 'nothing'}")

    def verify(self, inputs: Inputs, out: Path) -> None:
        """Prove that every entry is about an output of the model, and farther than is allowed.

        Raises:
            StepError: One is not.
        """
        outputs = {output.name for output in read_structure(inputs["model"] / MODEL).graph.output}
        for each in read_outside(out):
            if each["output"] not in outputs or not each["error"] > LEAST_ERROR:
                raise BugError(f"the error of {each['output']!r} is {each['error']}")


def read_outside(folder: Path) -> Any:  # noqa: ANN401  (plain JSON, written above)
    """Return the list that :class:`OutsideErrors` wrote."""
    return json.loads((folder / OUTSIDE).read_text(encoding="utf-8"))

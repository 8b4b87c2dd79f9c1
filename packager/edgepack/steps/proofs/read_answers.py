"""Reads fp32's answers to the samples, and checks that they fit the project's descriptions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from edgepack.base.arrays import Array
from edgepack.errors import ProfileError, StepError
from edgepack.model.files import MODEL
from edgepack.model.running import make_session, run_session
from edgepack.ondevice.runtime.edgepack_layouts import join_outputs
from edgepack.preprocessing.readings import Reading, choose_reading
from edgepack.project.outputs import OutputDescription, list_read_too
from edgepack.samples.sample_set import SampleSet
from edgepack.samples.spreading import choose_spread
from edgepack.steps.base import Inputs, Notes

ANSWERS = "answers.json"
_MOST = 32
"""Samples, evenly spread."""


@dataclass(frozen=True)
class ReadAnswers:
    """The described outputs of a model, read as the project says.

    Inputs: ``model``, before its numbers change; ``samples``, the tensors that it takes. Its notes
    have ``saw``, a line for each output that shows something.
    """

    name: ClassVar[str] = "read-answers"
    libraries: ClassVar[tuple[str, ...]] = ("numpy", "onnxruntime")
    cacheable = True
    described: tuple[tuple[str, OutputDescription], ...]
    size: tuple[int, int] | None
    """Width and height of the input that takes a picture, in pixels."""
    processor: str

    def check(self, inputs: Inputs) -> None:
        """Accept any model that runs."""

    def run(self, inputs: Inputs, out: Path) -> Notes:
        """Write ``answers.json``.

        Raises:
            ModelError: The model does not run on a sample.
            StepError: An output does not have the shape that its description requires.
            ProfileError: An output cannot be as described; the error has the description that fits,
                if one does.
        """
        samples = SampleSet.read(inputs["samples"])
        chosen = choose_spread(range(len(samples)), _MOST)
        session = make_session(inputs["model"] / MODEL)
        made = {name: choose_reading(given, self.size) for name, given in self.described}
        readings = {name: reading for name, reading in made.items() if reading is not None}
        read = {n: [n, *list_read_too(given)] for n, given in self.described if n in readings}
        wanted = list(dict.fromkeys(each for several in read.values() for each in several))
        for index in chosen:
            outputs = run_session(session, samples.read_inputs(index), wanted)
            for name, reading in readings.items():
                _add(reading, name, [outputs[each] for each in read[name]])
        for name, reading in readings.items():
            if wrong := reading.find_misread():
                raise ProfileError(
                    f"the output {name!r} is not what 'outputs' in edgepack.yaml says: on"
                    f" {len(chosen)} samples, {wrong.problem}",
                    hint=wrong.hint,
                )
        saw = [f"{name!r}: {each.describe(len(chosen))}" for name, each in readings.items()]
        facts = {"saw": saw}
        (out / ANSWERS).write_text(json.dumps(facts), encoding="utf-8")
        return Notes("; ".join(saw), facts)

    def verify(self, inputs: Inputs, out: Path) -> None:
        """Prove that what was seen reads back.

        Raises:
            StepError: It does not.
        """
        del inputs
        if "saw" not in json.loads((out / ANSWERS).read_text(encoding="utf-8")):
            raise StepError("the answers do not read back", hint="build with --no-cache")


def _add(reading: Reading, name: str, outputs: Sequence[Array]) -> None:
    try:
        reading.add(join_outputs(outputs))
    except ValueError as error:
        raise StepError(
            f"the output {name!r} is not as it is described: {error}",
            hint="fix its description under 'outputs' in edgepack.yaml",
        ) from error

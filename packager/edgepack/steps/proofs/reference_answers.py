"""What the fp32 model answers to the evaluation samples, computed once for all variants."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from edgepack.base.arrays import Array
from edgepack.base.worker import report
from edgepack.errors import StepError
from edgepack.model.files import MODEL
from edgepack.model.running import Arrays, make_session
from edgepack.samples.sample_set import SampleSet
from edgepack.steps.base import Inputs, Notes
from edgepack.steps.streams import StatePairs, run_streams

ANSWERS = "answers.npz"
MOST_BYTES = 64_000_000
"""More is not kept: writing and reading it would take about as long as running the model."""
_NAMES = "names"


@dataclass(frozen=True)
class ReferenceAnswers:
    """The outputs of the fp32 model for every sample, unless they are too large to keep.

    Inputs: ``model``, the prepared fp32 model; ``samples``.
    """

    name: ClassVar[str] = "reference-answers"
    libraries: ClassVar[tuple[str, ...]] = ("numpy", "onnxruntime")
    cacheable = True
    processor: str
    """The kind of processor that this runs on: it decides the last bits."""
    state: StatePairs = ()
    """The model is fed its own."""

    def check(self, inputs: Inputs) -> None:
        """Accept any prepared model."""

    def run(self, inputs: Inputs, out: Path) -> Notes:
        """Write ``answers.npz``, or nothing if it would have more than 64 MB."""
        samples, session = SampleSet.read(inputs["samples"]), make_session(inputs["model"] / MODEL)
        names = [output.name for output in session.get_outputs()]
        arrays: dict[str, Array] = {_NAMES: np.array(names)}
        taken = 0
        for number, (_, outputs) in enumerate(run_streams(session, samples, self.state)):
            size = sum(array.nbytes for array in outputs.values())
            taken += size
            # The first tells, unless samples have other shapes: the model is not run in vain.
            if taken > MOST_BYTES or (number == 0 and size * len(samples) > MOST_BYTES):
                return Notes("fp32's answers are too large to keep, so each evaluation runs it")
            arrays |= {f"{number}-{k}": outputs[name] for k, name in enumerate(names)}
            report(number + 1, len(samples))
        np.savez(out / ANSWERS, **arrays)  # type: ignore[arg-type]  # no name is that of an option
        return Notes(f"fp32's answers to {len(samples)} samples kept")

    def verify(self, inputs: Inputs, out: Path) -> None:
        """Prove that there is an answer to every sample, if there is any.

        Raises:
            StepError: One is missing.
        """
        count = len(SampleSet.read(inputs["samples"]))
        answers = read_answers(out)
        if answers is not None and (found := sum(1 for _ in answers)) != count:
            raise StepError(
                f"there are {found} answers to {count} samples", hint="build with --no-cache"
            )


def read_answers(folder: Path) -> Iterator[Arrays] | None:
    """Return the outputs for each sample, in order, or None if they were not kept."""
    return _read_each(folder / ANSWERS) if (folder / ANSWERS).exists() else None


def _read_each(path: Path) -> Iterator[Arrays]:
    with np.load(path) as found:
        names = [str(name) for name in found[_NAMES]]
        count = (len(found.files) - 1) // len(names)
        for number in range(count):
            yield {name: found[f"{number}-{k}"] for k, name in enumerate(names)}

"""Streams unrolled into plain samples: each frame with the state that the float model reached."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from edgepack.base.worker import report
from edgepack.errors import StepError
from edgepack.metrics.accuracy import min_sqnr_db
from edgepack.model.facts import TensorSpec
from edgepack.model.files import MODEL
from edgepack.model.running import make_session, run_session
from edgepack.samples.sample_set import Sample, SampleSet, write_sample_set
from edgepack.steps.base import Inputs, Notes
from edgepack.steps.streams import StatePairs, run_streams

_SAME_DB = 60.0


@dataclass(frozen=True)
class Unrolled:
    """Frames with the state that the float model had reached, so that each is independent.

    Steps that take samples one by one, such as calibration and goldens, take these.

    Inputs: ``model``, the prepared one; ``samples``, frames of streams.
    """

    name: ClassVar[str] = "unrolled"
    libraries: ClassVar[tuple[str, ...]] = ("numpy", "onnxruntime")
    cacheable = True
    state: StatePairs
    processor: str
    """The kind of processor that this runs on: it decides the last bits."""

    def check(self, inputs: Inputs) -> None:
        """Accept any model: running it is the check."""

    def run(self, inputs: Inputs, out: Path) -> Notes:
        """Write the set.

        Raises:
            ModelError: The model does not run, or an output has not the shape of the input that it
                feeds.
            SamplesError: The state becomes NaN or infinite.
        """
        given = SampleSet.read(inputs["samples"])
        specs = [TensorSpec(name, dtype, None) for name, dtype in given.dtypes.items()]
        write_sample_set(out, specs, self._unroll(inputs, given), given.labels, given.streams)
        count = len(given.streams)
        return Notes(
            f"{len(given)} frames of {count} stream{'' if count == 1 else 's'}, with the state that"
            " the float model reached",
            {"samples": len(given), "streams": count},
        )

    def _unroll(self, inputs: Inputs, given: SampleSet) -> Iterator[Sample]:
        session = make_session(inputs["model"] / MODEL)
        frames = run_streams(session, given, self.state)
        for done, (name, (feed, _)) in enumerate(zip(given.names, frames, strict=True), 1):
            yield name, feed
            report(done, len(given))

    def verify(self, inputs: Inputs, out: Path) -> None:
        """Prove that each state is what the model gives for the frame before.

        Raises:
            StepError: One is not.
        """
        session, samples = make_session(inputs["model"] / MODEL), SampleSet.read(out)
        outputs = [output for output, _ in self.state]
        reached = None
        for number, feed in enumerate(samples):
            if reached is not None and number not in samples.streams:
                state = {name: feed[name] for _, name in self.state}
                if min_sqnr_db(reached, state) < _SAME_DB:
                    raise StepError(
                        f"the state of {samples.names[number]} is not what the frame before leads"
                        " to",
                        hint="the model is not repeatable on this machine: look for random"
                        " operators",
                    )
            given = run_session(session, feed, outputs)
            reached = {name: given[output] for output, name in self.state}

"""Models that are fed their own state: running them over streams, and how errors grow there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise

from edgepack.base.arrays import Array
from edgepack.bundle.manifest import Drift
from edgepack.errors import ModelError
from edgepack.metrics.accuracy import OutputR2
from edgepack.model.running import Arrays, Session, run_session
from edgepack.samples.sample_set import SampleSet

StatePairs = tuple[tuple[str, str], ...]
"""Outputs, each with the input that it feeds in the next run."""

_LEAST_FRAMES = 8
"""The fewest frames of a stream whose quarters say something."""
_WORST_R2 = 1e9


def run_streams(
    session: Session, samples: SampleSet, state: StatePairs
) -> Iterator[tuple[Arrays, Arrays]]:
    """Yield what a model is given for each sample, and its outputs.

    A sample that begins a stream is taken as it is; in the others the inputs of the state are what
    the model itself put out for the one before. Without a state, all are taken as they are.

    Raises:
        ModelError: The run fails, or an output has not the shape of the input that it feeds.
    """
    begins = set(samples.streams)
    own: Arrays = {}
    for number, sample in enumerate(samples):
        feed = sample if number in begins else {**sample, **own}
        outputs = run_session(session, feed)
        for output, name in state:
            if outputs[output].shape != feed[name].shape:
                raise ModelError(
                    f"the output {output!r} has the shape {list(outputs[output].shape)}, and the"
                    f" input {name!r}, which it feeds, has {list(feed[name].shape)}",
                    hint="check 'state' in edgepack.yaml; where the size of a state is symbolic, 1"
                    " is taken: give it a value under 'dims'",
                )
        own = {name: outputs[output] for output, name in state}
        yield feed, outputs


def select_answers(outputs: Mapping[str, Array], state: StatePairs) -> Arrays:
    """Return the outputs that are no state; all, if there are no others."""
    feeding = {output for output, _ in state}
    return {name: array for name, array in outputs.items() if name not in feeding} or dict(outputs)


def measure_drift(outputs: Mapping[str, OutputR2], samples: SampleSet) -> Drift | None:
    """Return how errors grow along streams, for the output where they grow most.

    Args:
        outputs: What was found of each output, with the error of each sample.
        samples: Frames of streams.

    Returns:
        R² over the first and over the last quarter of all streams of at least 8 frames, with one
        variance for both; None where there are none, or R² tells nothing.
    """
    first: list[int] = []
    last: list[int] = []
    for begin, end in pairwise((*samples.streams, len(samples))):
        if (quarter := (end - begin) // 4) >= _LEAST_FRAMES // 4:
            first += range(begin, begin + quarter)
            last += range(end - quarter, end)
    found = []
    for name, output in outputs.items():
        if first and (values := output.compute_values()):
            at_first, at_last = (
                sum(values[number] for number in numbers) / len(numbers)
                for numbers in (first, last)
            )
            found.append(
                Drift(output=name, first=_bound_value(at_first), last=_bound_value(at_last))
            )
    return max(found, key=lambda each: each.first - each.last, default=None)


def _bound_value(value: float) -> float:
    """Return a value as JSON holds it, which has no infinity; NaN is the worst."""
    return max(-_WORST_R2, value)

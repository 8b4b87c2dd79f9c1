"""Samples that are frames of streams: an output of each is an input of the next.

A sample that holds an input of the state begins a stream, and so does the first; the others go on
where the one before ended, and do not hold it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from edgepack.base.arrays import Array
from edgepack.model.facts import TensorSpec
from edgepack.samples.sample_set import Sample

STREAM = "stream"
"""What an array of an ``.npz`` is called that has a number for each frame: its stream's."""


def make_first_state(state: Sequence[TensorSpec]) -> dict[str, Array]:
    """Return zeros for each input of the state; symbolic and unknown sizes are 1."""
    return {
        spec.name: np.zeros([s if isinstance(s, int) else 1 for s in spec.shape or ()], spec.dtype)
        for spec in state
    }


def add_first_state(
    samples: Iterable[Sample], state: Sequence[TensorSpec], begins: list[int]
) -> Iterator[Sample]:
    """Yield samples with zeros for the inputs of the state that they do not hold.

    Args:
        samples: In order.
        state: Inputs that an output of the run before feeds; none leaves samples as they are.
        begins: Gets the numbers of the samples that begin a stream.
    """
    zeros = make_first_state(state)
    for number, (title, inputs) in enumerate(samples):
        if state and (number == 0 or zeros.keys() & inputs.keys()):
            begins.append(number)
        yield title, {**zeros, **inputs}

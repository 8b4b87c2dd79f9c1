"""The inputs that goldens are chosen from, and what models give for them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgepack.base.arrays import Array
from edgepack.errors import ModelError
from edgepack.model.facts import read_signature
from edgepack.model.files import MODEL
from edgepack.model.reading import read_structure
from edgepack.model.running import Arrays, make_random_inputs, run_session
from edgepack.samples.sample_set import SampleSet
from edgepack.samples.spreading import choose_spread
from edgepack.steps.base import Inputs
from edgepack.steps.comparing import SEED

CANDIDATES = 8
_LOOKED_AT = 10 * CANDIDATES
_MOST_VALUES = 1 << 16
"""Of an output in a golden sample."""


def find_stride(size: int) -> int:
    """Return which values of an output of so many are kept: every so many-th.

    It has no factor in common with the size, and so with no axis: each has values at all places.
    """
    stride = -(-size // _MOST_VALUES)
    while stride > 1 and math.gcd(stride, size) > 1:
        stride += 1
    return max(1, stride)


def keep_values(output: Array) -> Array:
    """Return the values of an output that a golden sample holds: all, or some as one vector."""
    stride = find_stride(output.size)
    return output if stride == 1 else output.reshape(-1)[::stride].copy()


def keep_all_values(outputs: Mapping[str, Array]) -> Arrays:
    """Return what is kept of each output."""
    return {name: keep_values(output) for name, output in outputs.items()}


@dataclass(frozen=True)
class Candidates:
    """Samples, evenly spread, or seeded random inputs where there are none.

    Silence comes last, and before it what begins a stream: with a state of zeros, a model whose
    weights for it are wrong gives the same.
    """

    model: Path
    samples: SampleSet | None

    @classmethod
    def of(cls, inputs: Inputs) -> Candidates:
        """Return the candidates of a step that has ``model``, and ``samples`` or ``made``."""
        folder = inputs.get("samples", inputs.get("made"))
        samples = SampleSet.read(folder) if folder else None
        return cls(inputs["model"] / MODEL, samples)

    def choose_others(self, chosen: Sequence[int]) -> list[int]:
        """Return more candidates, so that with the chosen ones there are 8, or all that exist."""
        others = [number for number in self.choose(CANDIDATES) if number not in set(chosen)]
        return choose_spread(others, max(0, CANDIDATES - len(chosen)))

    def choose(self, count: int) -> list[int]:
        """Return the places of this many samples, or of all; for random inputs, 8 seeds."""
        if self.samples is None:
            return list(range(CANDIDATES))
        first = sorted(self.samples.streams)
        others = [number for number in range(len(self.samples)) if number not in set(first)]
        loud, silent = [], []
        for group in (others, first):
            looked_at = choose_spread(group, _LOOKED_AT)
            constant = {number for number in looked_at if is_constant(self.make_feed(number))}
            loud += choose_spread([n for n in looked_at if n not in constant], count)
            silent += sorted(constant)
        return [*loud, *silent][:count]

    def make_feed(self, number: int) -> Arrays:
        """Return the inputs of a candidate."""
        if self.samples is not None:
            return self.samples.read_inputs(number)
        specs, _ = read_signature(read_structure(self.model))
        return make_random_inputs(specs, seed=SEED + number)

    def run(
        self,
        session: Any,  # noqa: ANN401  (onnxruntime is loaded in workers only)
        number: int,
        weights: Mapping[str, Array] | None = None,
    ) -> Arrays:
        """Return what is kept of a session's outputs; ``weights`` are fed beside the inputs."""
        return keep_all_values(run_session(session, {**self.make_feed(number), **(weights or {})}))

    def run_strangers(self, session: Any) -> list[Arrays]:  # noqa: ANN401  (as above)
        """Return the outputs for inputs that are no samples: floats all 0, and seeded random.

        None without inputs of floats or without samples; what the model does not take is left out.
        """
        if self.samples is None:
            return []
        like = self.make_feed(self.choose(1)[0])
        generator = np.random.default_rng(SEED)
        floats = {name: array for name, array in like.items() if array.dtype.kind == "f"}
        made: list[Mapping[str, Array]] = [
            {name: np.zeros_like(array) for name, array in floats.items()},
            {name: _make_noise(array, generator) for name, array in floats.items()},
        ]
        found = []
        for changed in made if floats else ():
            try:
                found.append(keep_all_values(run_session(session, {**like, **changed})))
            except ModelError:  # what the model does not take has no outputs to be taken for others
                continue
        return found


def is_constant(feed: Mapping[str, Array]) -> bool:
    """Return whether each input has one value everywhere, as silence and black pictures have."""
    return all(not array.size or bool((array == array.flat[0]).all()) for array in feed.values())


def is_silent(feed: Mapping[str, Array], outputs: Mapping[str, Array]) -> bool:
    """Return whether a sample shows nothing: constant inputs, or float outputs that are all 0."""
    floats = [output for output in outputs.values() if output.dtype.kind == "f"]
    return is_constant(feed) or bool(floats and not any(output.any() for output in floats))


def _make_noise(array: Array, generator: np.random.Generator) -> Array:
    """Return normal noise of an array's mean and deviation."""
    noise = generator.standard_normal(array.shape)
    return (array.mean() + array.std() * noise).astype(array.dtype) if array.size else array

"""Measures how far a quantized model is from the float one on inputs that no sample shows.

Ranges come from samples, but a device meets other inputs: a covered lens, a shouted word, silence.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edgepack.base.arrays import Array
from edgepack.errors import ModelError
from edgepack.metrics.accuracy import Deviation
from edgepack.model.facts import TensorSpec
from edgepack.model.reading import write_model
from edgepack.model.running import Arrays, make_session, run_session
from edgepack.model.workload import count_multiply_adds
from edgepack.project.inputs import ImageInput
from edgepack.quantization.ranges.collecting import collect
from edgepack.quantization.search.scheme import Scheme
from edgepack.samples.changing import SEED, WORDS, Feed, find_sizes, make_changed_feeds
from edgepack.samples.sample_set import SampleSet, write_sample_set
from edgepack.samples.spreading import choose_spread

if TYPE_CHECKING:
    import onnxruntime

Pairs = dict[str, list[tuple[Array, Array]]]
"""By output: what the float model and what the other one gave, for each input."""

LEAST_ERROR = 1 / 3
"""Of what an output deviates by over the samples: a smaller error leaves an R² of 0.89 or more."""
TIMES_PLAIN = 3.0
"""How many times as large as on the samples an error is at least. Where inputs are twice as large
and nothing is cut off, as with ranges found at run time, steps and errors are twice as large."""
WORST_ERROR = 1e9
"""Stands for an output that is no number, or has another shape."""
_PLAIN = 8
"""The fewest samples that show what outputs deviate by."""
_LEAST, _MOST = 3, 16
"""How many of them are changed: each kind of change costs as many runs of both models."""
_BUDGET = 1e9
"""Multiply-adds of the runs for one kind: a model that needs more is run on fewer samples."""


@dataclass(frozen=True)
class BrokenOutput:
    """An output that is farther from the float model's than it is on the samples."""

    input: str
    """The kind of input."""
    output: str
    error: float
    """Root mean square, in what the float model's output deviates by over the samples."""
    plain: float
    """The same of the samples."""

    @property
    def words(self) -> str:
        """The kind of input, for people."""
        return WORDS.get(self.input, self.input)

    @property
    def size(self) -> str:
        """The error, for people."""
        return "no number" if self.error >= WORST_ERROR else f"{self.error:.2g}"

    def __str__(self) -> str:
        what = f"with {self.words} the output {self.output!r} is"
        if self.error >= WORST_ERROR:
            return f"{what} {self.size}"
        return (
            f"{what} off by {self.size} times what it varies by over the samples, where it is off"
            f" by {self.plain:.2g}"
        )


@dataclass(frozen=True)
class Outside:
    """Which inputs of a model are changed, and how."""

    changed: tuple[tuple[str, ImageInput | None], ...]
    """Those whose values are, with how they are made of pictures where that is known."""
    signature: tuple[TensorSpec, ...]
    """All of the model's inputs."""
    sizes: tuple[tuple[str, tuple[int, int]], ...]
    """Of symbolic dimensions the smallest and the largest, where the project has them; of others
    those of the samples count."""

    def make_feeds(
        self, reference: Path, samples: SampleSet
    ) -> tuple[list[Arrays], Iterator[tuple[str, Feed]]]:
        """Return some samples, and changed inputs made from some of them, with their kinds."""
        sizes = find_sizes(samples, self.signature)
        cost = count_multiply_adds(reference, {name: most for name, (_, most) in sizes.items()})
        count = int(max(_LEAST, min(_MOST, _BUDGET / max(1, cost))))
        chosen = choose_spread(range(len(samples)), max(_PLAIN, count))
        plain = [samples.read_inputs(index) for index in chosen]
        some = choose_spread(plain, count)
        sizes |= dict(self.sizes)
        return plain, make_changed_feeds(some, dict(self.changed), self.signature, sizes)

    def find_errors(self, reference: Path, model: Path, samples: SampleSet) -> list[BrokenOutput]:
        """Return the outputs that a kind of input breaks, the farthest first.

        The result excludes outputs that are not floats, that are about the same for all samples, or
        that are not numbers in the float model, and inputs that the float model does not take.

        Args:
            reference: The float model.
            model: The model made from it, with the same inputs and outputs.
            samples: Several, because one cannot show what outputs deviate by.

        Raises:
            ModelError: A model does not load, or ``model`` does not run where the other one does.
        """
        both = make_session(reference), make_session(model)
        plain, others = self.make_feeds(reference, samples)
        known = _run_pairs(*both, plain)
        units = {name: Deviation.of([ours for ours, _ in pairs]) for name, pairs in known.items()}
        usual = {
            name: (unit, unit.compute_error(known[name])) for name, unit in units.items() if unit
        }
        found = []
        for kind, group in groupby(others, key=itemgetter(0)):
            pairs = _run_pairs(*both, [feed for _, feed in group])
            for name in pairs.keys() & usual.keys():
                unit, least = usual[name]
                error = unit.compute_error(pairs[name])
                breaks = (error > TIMES_PLAIN * least) & (error > LEAST_ERROR)
                if breaks.any():
                    worst = int(np.argmax(np.where(breaks, error, 0)))
                    ends = (min(float(each[worst]), WORST_ERROR) for each in (error, least))
                    found.append(BrokenOutput(kind, name, *ends))
        return sorted(found, key=lambda each: (-each.error, each.input, each.output))


@dataclass(frozen=True)
class Holding:
    """Widens ranges for the inputs that break a model, if these are not samples."""

    outside: Outside
    reference: Path
    """The float model that is quantized."""
    samples: SampleSet

    def find_errors(self, model: Path) -> list[BrokenOutput]:
        """Return the outputs that a kind of input breaks, the farthest first.

        Raises:
            ModelError: As :meth:`Outside.find_errors`.
        """
        return self.outside.find_errors(self.reference, model, self.samples)

    def write_with_kinds(self, kinds: Sequence[str], folder: Path) -> SampleSet:
        """Write the samples, mixed with inputs of some kinds, in a random order.

        Of each kind there are a quarter as many as there are samples, or fewer.

        Args:
            kinds: What is made of samples.
            folder: An empty one.

        Raises:
            SamplesError: A changed value is no longer a number.
        """
        _, others = self.outside.make_feeds(self.reference, self.samples)
        made: dict[str, list[Feed]] = {kind: [] for kind in kinds}
        for kind, feed in others:
            if kind in made:
                made[kind].append(feed)
        most = 1 + len(self.samples) // 4
        every: list[tuple[str, Feed]] = [*zip(self.samples.names, self.samples, strict=True)]
        every += [
            (kind, feed) for kind, feeds in made.items() for feed in choose_spread(feeds, most)
        ]
        order = np.random.default_rng(SEED).permutation(len(every))
        write_sample_set(folder, self.outside.signature, (every[k] for k in order))
        return SampleSet.read(folder)

    def widen_ranges(self, scheme: Scheme, kind: str) -> Scheme:
        """Return a scheme whose ranges hold what inputs of a kind reach, too.

        Raises:
            StepError: A tensor has NaN, or an output infinity.
            ModelError: The model does not run on one of the inputs.
        """
        _, others = self.outside.make_feeds(self.reference, self.samples)
        feeds = [feed for each, feed in others if each == kind]
        with tempfile.TemporaryDirectory(prefix="edgepack-outside-") as folder:
            path = Path(folder) / "model.onnx"
            write_model(scheme.exact, path)
            found = collect(path, feeds, scheme.ranges.keys())
        ranges = {
            name: (min(low, found[name].low), max(high, found[name].high))
            if name in found
            else (low, high)
            for name, (low, high) in scheme.ranges.items()
        }
        return replace(scheme, ranges=ranges)


def _run_pairs(
    reference: onnxruntime.InferenceSession,
    model: onnxruntime.InferenceSession,
    feeds: Sequence[Feed],
) -> Pairs:
    """Return, by output of floats that are numbers, what two models give for each of the feeds.

    The function leaves out feeds that the reference refuses: it may not take their sizes.
    """
    found: Pairs = {}
    for feed in feeds:
        try:
            expected = run_session(reference, feed)
        except ModelError:
            continue
        given = run_session(model, feed)
        for name, array in expected.items():
            if array.dtype.kind == "f" and array.size and np.isfinite(array).all():
                found.setdefault(name, []).append((array, given[name]))
    return found

"""Statistics of a model's tensors over samples: one pass, the tensors of one sample in memory.

Each sample is run once, each value counted once, then its tensors are dropped. The result does not
depend on how samples are gathered, on threads or on the samples' order: histograms only count, and
an extreme is an extreme.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from edgepack.calibration.following import Bounds, clamps, cut, joins, moves
from edgepack.calibration.observing import Observer, not_finite
from edgepack.calibration.statistics import Array, TensorStatistics
from edgepack.calibration.tally import Clamp, Tally
from edgepack.errors import EdgepackError, ModelError, SamplesError
from edgepack.model.reading import read_structure

Sample = Mapping[str, Array]
"""A model's inputs by name."""

_GATHERED_VALUES = 1 << 22
_GATHERED_SAMPLES = 32
"""Samples are counted together while they have no more values than that: for small models, most of
the time would else go into calling numpy."""

_AHEAD_VALUES = 1 << 18
"""With fewer in a sample, the next one is not run while this one is counted: handing it to another
thread would take longer."""


def collect(
    model: Path,
    samples: Iterable[Sample],
    tensors: Collection[str],
    advance: Callable[[], None] = lambda: None,
) -> dict[str, TensorStatistics]:
    """Return the statistics of a model's activations over samples.

    Memory is that of a session, of two samples' tensors (of a few samples' where they are small)
    and of a histogram per tensor: it does not grow with the number of samples. What a
    Relu, a Clip, a Concat of images or a Reshape makes is not observed where its inputs are: its
    statistics follow from theirs. What nothing but a Relu reads has the statistics of its output:
    what is below 0 reaches nothing.

    Args:
        model: Weights in a file beside it may have any size.
        samples: Iterated once; shapes may differ from sample to sample.
        tensors: Names of inputs and of what nodes of the main graph make. Those that are no floats
            are passed over.
        advance: Called after each sample, in this thread.

    Returns:
        Statistics by name, in the order of ``tensors``. Tensors that never had a value are not
        among them, nor those that had an infinite one, as masks do. Those that only hold the values
        of another one in other places have no channels: the other one's tell.

    Raises:
        SamplesError: There are no samples, or an input has NaN or infinity.
        StepError: A tensor has NaN, or an output infinity; names tensor, node and sample.
        ModelError: The model does not load, or does not run on a sample.
    """
    names = dict.fromkeys(tensors)
    structure = read_structure(model)
    moved = moves(structure, names)
    shortened = cut(structure, names.keys() - moved.keys())
    joined = joins(structure, names.keys() - moved.keys() - shortened.keys())
    clamped = clamps(structure, names.keys() - moved.keys() - shortened.keys() - joined.keys())
    observed = names.keys() - moved.keys() - shortened.keys() - joined.keys() - clamped.keys()
    made = {name for node in structure.graph.node for name in node.output if name}
    outputs = [value.name for value in structure.graph.output if value.name in made]
    tallies = _tallies(names, clamped)
    observer = Observer.open(model, structure, sorted(observed & made))
    # It may hold weights, of which the session has a copy.
    del structure
    collector = _Collector(model, observed, outputs, tallies)
    began = False
    for one in _run(observer, samples):
        began = True
        collector.take(one)
        # While the next but one runs, its tensors would still be there.
        del one
        advance()
    collector.count()
    if not began:
        raise SamplesError(
            "there are no calibration samples", hint="check 'calibration' under 'samples'"
        )
    for name, join in joined.items():
        tallies[name] = Tally.joined([tallies[one] for one in join.inputs], join.axis)
    for name, after in reversed(shortened.items()):
        tallies[name] = tallies[after]
    for name, source in moved.items():
        tallies[name] = tallies[source].moved()
    found = {name: tallies[name].statistics() for name in names}
    return {name: statistics for name, statistics in found.items() if statistics is not None}


def _tallies(names: Collection[str], clamped: Mapping[str, Bounds]) -> dict[str, Tally]:
    tallies = {name: Tally() for name in names}
    for name, bounds in clamped.items():
        clamp = Clamp(tallies[name], bounds.low, bounds.high)
        tallies[bounds.input].clamps.append(clamp)
    return tallies


@dataclass(frozen=True)
class _Observed:
    """A sample that was run."""

    number: int
    sample: Sample
    inner: dict[str, Array]
    """Float tensors that nodes make, by name."""


def _run(observer: Observer, samples: Iterable[Sample]) -> Iterator[_Observed]:
    """Yield each sample with its tensors; large ones are run while those before are counted.

    numpy counts in one thread whatever one does: ``bincount`` keeps the interpreter's lock (numpy
    2.4.6). onnxruntime needs no lock.

    Raises:
        ModelError: The model does not run on one.
    """

    def run(number: int, sample: Sample) -> _Observed:
        try:
            return _Observed(number, sample, observer.run(sample))
        except ModelError as error:
            error.where = f"calibration sample {number} (the first is 0)"
            raise

    numbered = enumerate(samples)
    first = next(numbered, None)
    if first is None:
        return
    now = run(*first)
    if sum(array.size for array in now.inner.values()) < _AHEAD_VALUES:
        yield now
        del now
        yield from (run(*each) for each in numbered)
        return
    with ThreadPoolExecutor(1) as thread:
        for each in numbered:
            ahead = thread.submit(run, *each)
            yield now
            now = ahead.result()
        yield now


@dataclass
class _Collector:
    model: Path
    observed: Collection[str]
    outputs: Sequence[str]
    tallies: Mapping[str, Tally]
    waiting: list[_Observed] = field(default_factory=list)
    """Samples that are not counted yet: one, or a few of a small model."""

    def take(self, one: _Observed) -> None:
        """Count a sample now, or together with the next ones.

        Raises:
            StepError: An output is not finite, or a tensor has NaN.
        """
        for name in self.outputs:
            if name in one.inner and not np.isfinite(one.inner[name]).all():
                raise not_finite(self.model, one.sample, one.number, name)
        self.waiting.append(one)
        values = sum(array.size for array in self._tensors(one).values())
        full = (len(self.waiting) + 1) * values > _GATHERED_VALUES
        if full or len(self.waiting) == _GATHERED_SAMPLES:
            self.count()

    def count(self) -> None:
        """Count the samples that wait, and let go of them.

        Raises:
            StepError: A tensor has NaN.
        """
        arrays: dict[str, list[Array]] = {}
        for one in self.waiting:
            for name, array in self._tensors(one).items():
                arrays.setdefault(name, []).append(array)
        for name, found in arrays.items():
            self.tallies[name].add(found)
        if any(self.tallies[name].has_nan for name in arrays):
            raise self._nan()
        self.waiting.clear()

    def _tensors(self, one: _Observed) -> dict[str, Array]:
        given = {name: array for name, array in one.sample.items() if array.dtype.kind == "f"}
        return {name: a for name, a in {**given, **one.inner}.items() if name in self.observed}

    def _nan(self) -> EdgepackError:
        """Return the error for the first sample that waits and has NaN."""
        one, name = next(
            (one, name)
            for one in self.waiting
            for name, array in self._tensors(one).items()
            if np.isnan(array).any()
        )
        return not_finite(self.model, one.sample, one.number, name)

"""Statistics of a model's tensors over samples: one pass, the tensors of one sample in memory.

Each sample is run once, each value counted once, then its tensors are dropped. The result does not
depend on how samples are gathered, on threads or on the samples' order: histograms only count, and
an extreme is an extreme.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from edgepack.calibration.following import Bounds, clamps, joins, moves
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

_THREADED_VALUES = 1 << 18
"""Fewer values are counted in one thread: waking others would take longer."""


def collect(
    model: Path,
    samples: Iterable[Sample],
    tensors: Collection[str],
    advance: Callable[[], None] = lambda: None,
) -> dict[str, TensorStatistics]:
    """Return the statistics of a model's activations over samples.

    Memory is that of a session, of one sample's tensors (of a few samples' where they are small)
    and of a histogram per tensor: it does not grow with the number of samples. What a
    Relu, a Clip, a Concat of images or a Reshape makes is not observed where its inputs are: its
    statistics follow from theirs.

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
    joined = joins(structure, names.keys() - moved.keys())
    clamped = clamps(structure, names.keys() - moved.keys() - joined.keys())
    observed = names.keys() - moved.keys() - joined.keys() - clamped.keys()
    made = {name for node in structure.graph.node for name in node.output if name}
    outputs = [value.name for value in structure.graph.output if value.name in made]
    tallies = _tallies(names, clamped)
    observer = Observer.open(model, structure, sorted(observed & made))
    # It may hold weights, of which the session has a copy.
    del structure
    with ThreadPoolExecutor(_threads()) as pool:
        collector = _Collector(model, observer, observed, outputs, tallies, pool)
        for number, sample in enumerate(samples):
            collector.take(number, sample)
            advance()
        collector.count()
    if not collector.began:
        raise SamplesError(
            "there are no calibration samples", hint="check 'calibration' under 'samples'"
        )
    for name, join in joined.items():
        tallies[name] = Tally.joined([tallies[one] for one in join.inputs], join.axis)
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


def _threads() -> int:
    """Return how many threads run at once on the processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass(frozen=True)
class _Observed:
    """A sample that was run."""

    number: int
    sample: Sample
    tensors: dict[str, Array]
    """Float tensors by name."""

    @property
    def values(self) -> int:
        return sum(array.size for array in self.tensors.values())


@dataclass
class _Collector:
    model: Path
    observer: Observer
    observed: Collection[str]
    outputs: Sequence[str]
    tallies: Mapping[str, Tally]
    pool: Executor
    began: bool = False
    waiting: list[_Observed] = field(default_factory=list)
    """Samples that are not counted yet: one, or a few of a small model."""

    def take(self, number: int, sample: Sample) -> None:
        """Run a sample, and count it now or together with the next ones.

        Raises:
            ModelError: The model does not run on it.
            StepError: An output is not finite, or a tensor has NaN.
        """
        self.began = True
        try:
            inner = self.observer.run(sample)
        except ModelError as error:
            error.where = f"calibration sample {number} (the first is 0)"
            raise
        for name in self.outputs:
            if name in inner and not np.isfinite(inner[name]).all():
                raise not_finite(self.model, sample, number, name)
        given = {name: array for name, array in sample.items() if array.dtype.kind == "f"}
        tensors = {name: a for name, a in {**given, **inner}.items() if name in self.observed}
        one = _Observed(number, sample, tensors)
        self.waiting.append(one)
        full = (len(self.waiting) + 1) * one.values > _GATHERED_VALUES
        if full or len(self.waiting) == _GATHERED_SAMPLES:
            self.count()

    def count(self) -> None:
        """Count the samples that wait, and let go of them.

        Raises:
            StepError: A tensor has NaN.
        """
        arrays: dict[str, list[Array]] = {}
        for one in self.waiting:
            for name, array in one.tensors.items():
                arrays.setdefault(name, []).append(array)
        values = {name: sum(array.size for array in found) for name, found in arrays.items()}
        # The largest first: what is left for the end is then shared evenly.
        order = sorted(arrays, key=lambda name: -values[name])
        tallies = [self.tallies[name] for name in order]
        run = map if sum(values.values()) < _THREADED_VALUES else self.pool.map
        for _ in run(Tally.add, tallies, [arrays[name] for name in order]):
            pass
        if any(tally.has_nan for tally in tallies):
            raise self._nan()
        self.waiting.clear()

    def _nan(self) -> EdgepackError:
        """Return the error for the first sample that waits and has NaN."""
        one, name = next(
            (one, name)
            for one in self.waiting
            for name, array in one.tensors.items()
            if np.isnan(array).any()
        )
        return not_finite(self.model, one.sample, one.number, name)

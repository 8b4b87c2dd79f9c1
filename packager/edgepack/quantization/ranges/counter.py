"""Runs samples and counts the observed tensors' values, in one process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from edgepack.base.arrays import Array
from edgepack.errors import EdgepackError, ModelError
from edgepack.model.reading import read_structure
from edgepack.quantization.ranges.layout import Layout
from edgepack.quantization.ranges.observing import Observer, make_nonfinite_error
from edgepack.quantization.ranges.tally import Tally

Sample = Mapping[str, Array]
"""A model's inputs by name."""

_GATHERED_VALUES = 1 << 22
_GATHERED_SAMPLES = 32
"""Samples are counted together while they have no more values than that: for small models, most of
the time would else go into calling numpy."""


@dataclass(frozen=True)
class _Observed:
    """A sample that was run."""

    number: int
    sample: Sample
    tensors: dict[str, Array]
    """The observed ones that are floats, by name."""


@dataclass
class Counter:
    """A session, and what was counted of the samples that it has run."""

    model: Path
    layout: Layout
    observer: Observer
    tallies: dict[str, Tally]
    behind: ThreadPoolExecutor | None
    """Counts while the next samples are run; without it, taking a sample counts it."""
    waiting: list[_Observed] = field(default_factory=list)
    """Samples that are not counted yet: one, or a few of a small model."""
    counting: Future[None] | None = None

    @classmethod
    @contextmanager
    def open(cls, model: Path, layout: Layout, threads: int, *, behind: bool) -> Iterator[Counter]:
        """Make a session over a model.

        Args:
            model: Weights in a file beside it may have any size.
            layout: What is observed.
            threads: Of the session; 0 leaves it to onnxruntime.
            behind: Whether samples are counted in a thread, while the next ones are run.

        Raises:
            ModelError: onnxruntime refuses the model.
        """
        observer = Observer.open(model, read_structure(model), layout.made, threads=threads)
        thread = ThreadPoolExecutor(1) if behind else None
        try:
            yield cls(model, layout, observer, layout.make_tallies(), thread)
        finally:
            if thread is not None:
                thread.shutdown()

    def take(self, number: int, sample: Sample) -> int:
        """Run a sample, and count it now or later.

        Args:
            number: Of the sample among all, from 0: errors name it.
            sample: The model's inputs.

        Returns:
            How many values there are to count in it.

        Raises:
            SamplesError: An input has NaN or infinity.
            StepError: An output is not finite, or a tensor has NaN.
            ModelError: The model does not run on the sample.
        """
        try:
            inner = self.observer.run(sample)
        except ModelError as error:
            error.where = f"calibration sample {number} (the first is 0)"
            raise
        for name in self.layout.outputs:
            if name in inner and not np.isfinite(inner[name]).all():
                raise make_nonfinite_error(self.model, sample, number, name)
        given = {name: array for name, array in sample.items() if array.dtype.kind == "f"}
        tensors = {n: a for n, a in {**given, **inner}.items() if n in self.layout.observed}
        self.waiting.append(_Observed(number, sample, tensors))
        values = sum(array.size for array in tensors.values())
        full = (len(self.waiting) + 1) * values > _GATHERED_VALUES
        if full or len(self.waiting) == _GATHERED_SAMPLES:
            self._count_waiting()
        return values

    def end(self) -> dict[str, Tally]:
        """Return what was counted of all samples.

        Raises:
            StepError: A tensor has NaN.
        """
        self._count_waiting()
        self._await_counting()
        return self.tallies

    def _count_waiting(self) -> None:
        samples, self.waiting = self.waiting, []
        self._await_counting()
        if self.behind is None:
            self._count_samples(samples)
        else:
            self.counting = self.behind.submit(self._count_samples, samples)

    def _await_counting(self) -> None:
        counting, self.counting = self.counting, None
        if counting is not None:
            counting.result()

    def _count_samples(self, samples: Sequence[_Observed]) -> None:
        arrays: dict[str, list[Array]] = {}
        for one in samples:
            for name, array in one.tensors.items():
                arrays.setdefault(name, []).append(array)
        for name, found in arrays.items():
            self.tallies[name].add(found)
        if any(self.tallies[name].has_nan for name in arrays):
            raise self._make_nan_error(samples)

    def _make_nan_error(self, samples: Sequence[_Observed]) -> EdgepackError:
        """Return the error for the first of the samples that has NaN."""
        one, name = next(
            (one, name)
            for one in samples
            for name, array in one.tensors.items()
            if np.isnan(array).any()
        )
        return make_nonfinite_error(self.model, one.sample, one.number, name)

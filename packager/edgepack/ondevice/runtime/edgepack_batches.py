"""Joins samples to one batch, and splits its outputs back into those of each sample.

The batch is the first dimension of the first input, and in every other input and output the
dimension of that name. A size without that name is none: that of a detector's ``[k, 6]`` may be the
number of objects, which grows with the batch, too. Golden samples show whether a batch gives what
they give one by one: nothing else tells whether a graph mixes its samples.

Needs Python 3.8 or newer and numpy; nothing else.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Type

import numpy as np

if __package__:
    from . import edgepack_providers as providers
    from . import edgepack_shapes as shapes
else:  # a bundle's
    import edgepack_providers as providers  # type: ignore[import-not-found,no-redef]
    import edgepack_shapes as shapes  # type: ignore[import-not-found,no-redef]

Arrays = Dict[str, np.ndarray]
MOST = 8
"""How many samples are joined at most, unless a caller says otherwise."""
_LEAST = 3
"""Samples that a batch is proven with."""


_FAILURES: Tuple[Type[Exception], ...] = (providers.Refused, *providers.ORT_ERRORS)


class Sample(NamedTuple):
    """Inputs, and what their outputs have to be near."""

    feed: Arrays
    golden: Optional[int]
    """The number of the golden sample that this is; None if it is none."""
    outputs: Arrays
    """What the session gave for it alone."""


def find_axes(
    specs: Sequence[shapes.TensorSpec], sizes: Mapping[str, Sequence[int]]
) -> Dict[str, int]:
    """Return the batch's axis in each input that has one; empty where one has two of its name.

    Where the batch has no name or is fixed, it is every input's first dimension of that size.

    Args:
        specs: The model's inputs.
        sizes: The shape of each in a sample.
    """
    first = specs[0]
    if not first.shape:
        return {}
    dim, size = first.shape[0], sizes[first.name][0]
    if isinstance(dim, int) or dim == shapes.UNKNOWN:
        return {name: 0 for name, shape in sizes.items() if shape and shape[0] == size}
    if any(spec.shape.count(dim) > 1 for spec in specs):
        return {}
    return {spec.name: spec.shape.index(dim) for spec in specs if dim in spec.shape}


def find_output_axes(
    inputs: Sequence[shapes.TensorSpec], outputs: Sequence[shapes.TensorSpec]
) -> Dict[str, int]:
    """Return the batch's axis in each output that has one: the dimension of its name.

    Every other size has to be fixed or one of the inputs': of one that depends on the data, as the
    number of objects, a batch has the largest, or the sum.
    """
    if not inputs[0].shape or isinstance(inputs[0].shape[0], int):
        return {}
    batch = inputs[0].shape[0]
    known = {dim for spec in inputs for dim in spec.shape} - {shapes.UNKNOWN}
    return {
        spec.name: spec.shape.index(batch)
        for spec in outputs
        if spec.shape.count(batch) == 1
        and all(isinstance(dim, int) or dim in known for dim in spec.shape)
    }


def explain_unsplit(
    inputs: Sequence[shapes.TensorSpec], outputs: Sequence[shapes.TensorSpec]
) -> str:
    """Return why batches of a first dimension of any size cannot be joined or split; or nothing."""
    batch = inputs[0].shape[0]
    for spec in inputs:
        if spec.shape.count(batch) > 1 and batch != shapes.UNKNOWN:
            return f"the input {spec.name!r} is {list(spec.shape)}, with {batch!r} twice"
    axes = find_output_axes(inputs, outputs)
    for spec in outputs:
        if spec.name not in axes:
            return (
                f"the output {spec.name!r} is {list(spec.shape)}: nothing tells which part of it is"
                f" which sample's, where the batch is {batch!r}"
            )
    return ""


def join(feeds: Sequence[Arrays], axes: Mapping[str, int]) -> Arrays:
    """Return the inputs of several samples as those of one batch; what has no axis is the first's.

    Raises:
        ValueError: Their shapes differ.
    """
    return {
        name: np.concatenate([feed[name] for feed in feeds], axes[name]) if name in axes else array
        for name, array in feeds[0].items()
    }


def split(outputs: Arrays, axes: Mapping[str, int], count: int) -> List[Arrays]:
    """Return the outputs of each sample of a batch; those without an axis are left out."""
    parts = {name: np.split(outputs[name], count, axis) for name, axis in axes.items()}
    return [{name: parts[name][number] for name in parts} for number in range(count)]


class Joining:
    """How a model's samples are joined. Threads may share it.

    Args:
        model: The loader's ``Model``.

    Attributes:
        axes: The batch's axis in each input.
        output_axes: The batch's axis in each output that has one.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self._first = model.bundle.read_golden_inputs(0)
        sizes = shapes.find_shapes(self._first)
        self.axes = {} if self._is_one else find_axes(model.inputs, sizes)
        self.output_axes = find_output_axes(model.inputs, model.outputs) if self.axes else {}
        self._proven: Dict[Tuple[int, int], bool] = {}

    @property
    def _is_one(self) -> bool:
        """Whether the first input is one picture or text: the model does the preprocessing."""
        spec = self.model.inputs[0]
        all_described = self.model.bundle.manifest.get("input_descriptions") or {}
        described = all_described.get(spec.name) or {}
        return bool(spec.dtype == "uint8" and (described.get("image") or described.get("tokens")))

    @cached_property
    def samples(self) -> List[Sample]:
        """The golden samples that can be joined, and others, so that there are three at least.

        Those of the first one's shapes, with equal values in inputs without a batch. The others are
        the first with its values moved along the last axis by a third of it, and by two and turned
        round, which stay values that the model takes. A batch of equal samples would not tell a
        graph that mixes them, two in turn not one that reverses them.
        """
        goldens = map(self.model.bundle.read_golden_inputs, range(self.model.bundle.goldens))
        kind = self.find_kind(self._first)
        found = [
            Sample(feed, number, self.model.infer(feed))
            for number, feed in enumerate(goldens)
            if self.find_kind(feed) == kind
        ]
        for thirds in range(1, _LEAST + 1 - len(found)):
            feed = {
                name: _move(array, thirds) if name in self.axes else array
                for name, array in self._first.items()
            }
            found.append(Sample(feed, None, self.model.infer(feed)))
        return found

    def find_kind(self, feed: Arrays) -> Any:
        """Return what feeds have to share to be joined."""
        return [
            (name, array.shape, b"" if name in self.axes else array.tobytes())
            for name, array in sorted(feed.items())
        ]

    def explain_fixed(self) -> str:
        """Return why samples of this model cannot be joined at all; empty if they may be."""
        spec = self.model.inputs[0]
        if self.model.bundle.manifest.get("state"):
            return "the model has a state, and each stream has its own"
        if self._is_one:
            return f"the input {spec.name!r} is one picture or text"
        if not spec.shape or isinstance(spec.shape[0], int):
            return f"the input {spec.name!r} has the fixed shape {list(spec.shape)}"
        return explain_unsplit(self.model.inputs, self.model.outputs)

    @cached_property
    def are_told_apart(self) -> bool:
        """Whether a graph that mixes samples could be seen by the outputs of these.

        Of samples in turn, those at each two places of a batch have to differ in some batch: one's
        outputs are further from the other's than the limit asks of right ones, in one output that
        has a batch at least.
        """
        count, needed_db = len(self.samples), self.model.entry["min_sqnr_db"]
        found = [{name: each.outputs[name] for name in self.output_axes} for each in self.samples]
        return all(
            any(
                not self.compute_closeness_db(sample, found[(place + distance) % count])
                >= needed_db
                for place, sample in enumerate(self.samples)
            )
            for distance in range(1, count)
        )

    def find_bucket(self, feed: Arrays, count: int) -> Optional[int]:
        """Return the number of the variant's model for a batch of so many samples of these shapes.

        None if none takes it; 0 where one model takes all sizes.
        """
        if not self.model.buckets:
            return 0
        wanted = self._find_sizes(feed, count)
        takes = (self.model.can_take_sizes(bucket, wanted) for bucket in self.model.buckets)
        return next((number for number, fits in enumerate(takes) if fits), None)

    def _find_sizes(self, feed: Arrays, count: int) -> Dict[str, int]:
        dim = self.model.inputs[0].shape[0]
        sizes = self.model.bundle.shapes.find_sizes(shapes.find_shapes(feed))
        return {**sizes, dim: sizes.get(dim, 1) * count}

    def prove(self, count: int, bucket: int) -> float:
        """Run golden samples in batches of ``count``, each of them in each place once.

        Args:
            count: The samples of a batch.
            bucket: The number of the model that they run in, as :meth:`find_bucket` has it.

        Returns:
            How near the worst sample and output was, in dB, as ``Model.compute_closeness_db``.

        Raises:
            Refused: They do not fit into that model, or their outputs do not tell them apart or
                have other sizes than the model declares.
        """
        if not self._can_hold_goldens(count, bucket):
            known = shapes.format_sizes(self.model.buckets[bucket])
            raise providers.Refused(f"golden samples do not fit into the model for {known}")
        if not self.are_told_apart:
            raise providers.Refused(
                "the outputs of golden samples are too near to each other to tell them apart"
            )
        worst_db = float("inf")
        for begin in range(len(self.samples)):
            chosen = self.choose(begin, count)
            outputs = self._run_in(bucket, join([sample.feed for sample in chosen], self.axes))
            for sample, own in zip(chosen, self.split(outputs, count)):  # noqa: B905
                worst_db = min(worst_db, self.compute_closeness_db(sample, own))
        return worst_db

    def _can_hold_goldens(self, count: int, bucket: int) -> bool:
        return not self.model.buckets or bool(
            self.model.can_take_sizes(
                self.model.buckets[bucket], self._find_sizes(self._first, count)
            )
        )

    def _run_in(self, bucket: int, feed: Arrays) -> Arrays:
        if not self.model.buckets:
            return dict(self.model.infer(feed))
        names = [spec.name for spec in self.model.outputs]
        return dict(self.model.run_bucket(bucket, names, feed))

    def choose(self, begin: int, count: int) -> List[Sample]:
        """Return samples in turn, from one on."""
        return [self.samples[(begin + n) % len(self.samples)] for n in range(count)]

    def split(self, outputs: Arrays, count: int) -> List[Arrays]:
        """Return the outputs of each golden sample of a batch; without those that have no axis.

        Raises:
            Refused: An output does not hold so many samples.
        """
        alone = self.samples[0].outputs
        for name, axis in self.output_axes.items():
            expected = list(alone[name].shape)
            expected[axis] *= count
            if list(outputs[name].shape) != expected:
                raise providers.Refused(
                    f"the output {name!r} is {list(outputs[name].shape)} for a batch of {count}"
                    f" samples, and {list(alone[name].shape)} for one: it has no axis for them"
                )
        return split(outputs, self.output_axes, count)

    def compute_closeness_db(self, sample: Sample, outputs: Arrays) -> float:
        """Return how near outputs are to a sample's, in the worst of these outputs."""
        if sample.golden is None:
            return float(self.model.compare({n: sample.outputs[n] for n in outputs}, outputs))
        return float(self.model.compute_closeness_db(sample.golden, outputs, outputs))

    def is_proven(self, feed: Arrays, count: int) -> bool:
        """Return whether golden samples in batches of so many were near what is right.

        That is tried once for each size and model of the variant. One that is wrong ends it for
        all.
        """
        if self.explain_fixed() or self.model.entry["recipe"] == "int8-dynamic":
            return False  # int8-dynamic has one range for the whole batch: each depends on others
        bucket = self.find_bucket(feed, count)
        if bucket is None or not self._can_hold_goldens(count, bucket):
            return False
        if not all(self._proven.values()):
            return False
        if (count, bucket) not in self._proven:
            self._proven[count, bucket] = self._try(count, bucket)
        return self._proven[count, bucket]

    def _try(self, count: int, bucket: int) -> bool:
        try:
            return self.prove(count, bucket) >= float(self.model.entry["min_sqnr_db"])
        except _FAILURES:
            return False  # they are run one by one then

    def run(self, feeds: Sequence[Arrays]) -> List[Arrays]:
        """Return the outputs of samples that may be joined, in as few runs as there are models for.

        Raises:
            ValueError: The inputs are larger than any model of this variant.
        """
        found: List[Arrays] = []
        while len(found) < len(feeds):
            rest = feeds[len(found) :]
            count = next((n for n in range(len(rest), 1, -1) if self.is_proven(rest[0], n)), 1)
            if count == 1:
                found.append(self.model.run(rest[0]))
            else:
                found += self._run_joined(rest[:count])
        return found

    def _run_joined(self, feeds: Sequence[Arrays]) -> List[Arrays]:
        for feed in feeds:
            self.model.check_ranges(feed)
        outputs = self.model.watch(self.model.infer, join(feeds, self.axes))
        return split(outputs, self.output_axes, len(feeds))


def _move(array: np.ndarray, thirds: int) -> np.ndarray:
    """Return an array moved along its last axis; by two thirds also in the reverse order."""
    moved = np.roll(array, max(1, thirds * array.shape[-1] // 3), -1)
    return np.ascontiguousarray(np.flip(moved, -1)) if thirds > 1 else moved


def predict_all(
    model: Any, given: Sequence[Any], most: int = MOST, options: Optional[Any] = None
) -> Iterator[Dict[str, Any]]:
    """Yield the answers for each of several pictures, texts or dicts, in order.

    Those that follow each other and have the same shapes are joined to batches.

    Args:
        model: The loader's ``Model``.
        given: Each as ``Model.predict`` takes it alone.
        most: How many are joined at most.
        options: As ``Model.predict`` takes them.

    Raises:
        ValueError: As ``Model.predict``, with the number of the one that it is about.
        TypeError: A text is none.
    """
    joining = model.joining
    waiting: List[Any] = []
    for number, each in enumerate(given):
        try:
            feed = model.make_feed(each)
        except (TypeError, ValueError) as error:
            raise type(error)(f"number {number} of the list: {error}") from error
        full = len(waiting) >= most
        if waiting and (full or _differ(joining, feed.arrays, waiting[0].arrays)):
            yield from _answer(model, waiting, options)
            waiting = []
        waiting.append(feed)
    yield from _answer(model, waiting, options)


def _differ(joining: Joining, feed: Arrays, other: Arrays) -> bool:
    return bool(joining.find_kind(feed) != joining.find_kind(other))


def _answer(model: Any, feeds: Sequence[Any], options: Optional[Any]) -> Iterator[Dict[str, Any]]:
    found = model.joining.run([feed.arrays for feed in feeds])
    for feed, outputs in zip(feeds, found):  # noqa: B905 (strict is unknown to Python 3.8)
        yield model.make_answers(outputs, feed, options)

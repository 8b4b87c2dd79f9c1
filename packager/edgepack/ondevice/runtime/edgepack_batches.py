"""Joins samples to one batch, and splits its outputs back into those of each sample.

The batch is the first dimension of the first input, and in every other input the dimension of that
name; where it has no name or is fixed, every input's first dimension of that size. In an output it
is the axis that grows with the batch. Golden samples show whether a batch gives what they give one
by one: nothing else tells whether a graph mixes its samples.

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
    """What the session gave for it alone; empty for a golden sample."""


def find_axes(
    specs: Sequence[shapes.TensorSpec], sizes: Mapping[str, Sequence[int]]
) -> Dict[str, int]:
    """Return the batch's axis in each input that has one.

    Args:
        specs: The model's inputs.
        sizes: The shape of each in a sample.
    """
    first = specs[0]
    if not first.shape:
        return {}
    dim, size = first.shape[0], sizes[first.name][0]
    if isinstance(dim, str) and dim != shapes.UNKNOWN:
        return {spec.name: spec.shape.index(dim) for spec in specs if dim in spec.shape}
    return {name: 0 for name, shape in sizes.items() if shape and shape[0] == size}


def join(feeds: Sequence[Arrays], axes: Mapping[str, int]) -> Arrays:
    """Return the inputs of several samples as those of one batch; what has no axis is the first's.

    Raises:
        ValueError: Their shapes differ.
    """
    return {
        name: np.concatenate([feed[name] for feed in feeds], axes[name]) if name in axes else array
        for name, array in feeds[0].items()
    }


def find_output_axis(alone: Sequence[int], joined: Sequence[int], count: int) -> Optional[int]:
    """Return the axis of an output that holds ``count`` samples; None if there is no such axis."""
    pairs = list(zip(alone, joined))  # noqa: B905 (strict is unknown to Python 3.8)
    grown = [axis for axis, (one, all_) in enumerate(pairs) if one != all_]
    fits = len(alone) == len(joined) and len(grown) == 1
    return grown[0] if fits and joined[grown[0]] == alone[grown[0]] * count else None


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
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self._first = model.bundle.read_golden_inputs(0)
        sizes = shapes.find_shapes(self._first)
        self.axes = {} if self._is_one else find_axes(model.inputs, sizes)

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
        the first with its values moved along the last axis, which stay values that the model takes.
        A batch of equal samples would not tell a graph that mixes them, two in turn not one that
        reverses them.
        """
        goldens = map(self.model.bundle.read_golden_inputs, range(self.model.bundle.goldens))
        kind = self.find_kind(self._first)
        found = [
            Sample(feed, number, {})
            for number, feed in enumerate(goldens)
            if self.find_kind(feed) == kind
        ]
        for places in range(1, _LEAST + 1 - len(found)):
            feed = {
                name: np.roll(array, places, -1) if name in self.axes else array
                for name, array in self._first.items()
            }
            found.append(Sample(feed, None, self.model.run(feed)))
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
        return ""

    def takes(self, feed: Arrays, count: int) -> bool:
        """Return whether a model of the variant takes a batch of so many samples of this shape."""
        dim = self.model.inputs[0].shape[0]
        sizes = self.model.bundle.shapes.find_sizes(shapes.find_shapes(feed))
        return not self.model.buckets or any(
            self.model.can_take_sizes(bucket, {**sizes, dim: sizes.get(dim, 1) * count})
            for bucket in self.model.buckets
        )

    def prove(self, count: int) -> Tuple[float, Dict[str, int]]:
        """Run golden samples in batches of ``count``, each of them in each place once.

        Returns:
            How near the worst sample and output was, in dB, as ``Model.compute_closeness_db``; and
            the axis of the samples in each output.

        Raises:
            Refused: An output has no axis for the samples.
        """
        worst_db, axes = float("inf"), {}
        for begin in range(len(self.samples)):
            chosen = self.choose(begin, count)
            outputs = self.model.run(join([sample.feed for sample in chosen], self.axes))
            axes = self.find_output_axes(outputs, count)
            for sample, own in zip(chosen, split(outputs, axes, count)):  # noqa: B905
                worst_db = min(worst_db, self.compute_closeness_db(sample, own))
        return worst_db, axes

    def choose(self, begin: int, count: int) -> List[Sample]:
        """Return samples in turn, from one on."""
        return [self.samples[(begin + n) % len(self.samples)] for n in range(count)]

    def find_output_axes(self, outputs: Arrays, count: int) -> Dict[str, int]:
        """Return the axis of the samples in each output of a batch of golden samples.

        Raises:
            Refused: An output has none.
        """
        alone = self.model.bundle.manifest["goldens"][0]["outputs"][self.model.variant]
        axes: Dict[str, int] = {}
        for name, shape in ((entry["name"], entry["shape"]) for entry in alone):
            axis = find_output_axis(shape, outputs[name].shape, count)
            if axis is None:
                raise providers.Refused(
                    f"the output {name!r} is {list(outputs[name].shape)} for a batch of {count}"
                    f" samples, and {shape} for one: it has no axis for them"
                )
            axes[name] = axis
        return axes

    def compute_closeness_db(self, sample: Sample, outputs: Arrays) -> float:
        """Return how near outputs are to a sample's, in the worst of these outputs."""
        if sample.golden is None:
            return float(self.model.compare({n: sample.outputs[n] for n in outputs}, outputs))
        return float(self.model.compute_closeness_db(sample.golden, outputs, outputs))

    @cached_property
    def output_axes(self) -> Dict[str, int]:
        """The axis of the samples in each output, as a batch showed that gave the golden outputs.

        Empty if there is no such batch.
        """
        if self.explain_fixed() or self.model.entry["recipe"] == "int8-dynamic":
            return {}  # int8-dynamic has one range for the whole batch: each depends on the others
        count = next((n for n in range(2, MOST + 1) if self.takes(self._first, n)), 0)
        if not count:
            return {}
        try:
            found_db, axes = self.prove(count)
            return axes if found_db >= self.model.entry["min_sqnr_db"] else {}
        except _FAILURES:
            return {}  # they are run one by one then

    def run(self, feeds: Sequence[Arrays]) -> List[Arrays]:
        """Return the outputs of samples that may be joined, in as few runs as there are models for.

        Raises:
            ValueError: The inputs are larger than any model of this variant.
        """
        found: List[Arrays] = []
        while len(found) < len(feeds):
            rest = feeds[len(found) :]
            count = next((n for n in range(len(rest), 1, -1) if self._is_proven(rest[0], n)), 1)
            if count == 1:
                found.append(self.model.run(rest[0]))
            else:
                outputs = self.model.run(join(rest[:count], self.axes))
                found += split(outputs, self.output_axes, count)
        return found

    def _is_proven(self, feed: Arrays, count: int) -> bool:
        return bool(self.output_axes) and self.takes(feed, count)


def predict_all(model: Any, given: Sequence[Any], most: int = MOST) -> Iterator[Dict[str, Any]]:
    """Yield the answers for each of several pictures, texts or dicts, in order.

    Those that follow each other and have the same shapes are joined to batches.

    Args:
        model: The loader's ``Model``.
        given: Each as ``Model.predict`` takes it alone.
        most: How many are joined at most.

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
            yield from _answer(model, waiting)
            waiting = []
        waiting.append(feed)
    yield from _answer(model, waiting)


def _differ(joining: Joining, feed: Arrays, other: Arrays) -> bool:
    return bool(joining.find_kind(feed) != joining.find_kind(other))


def _answer(model: Any, feeds: Sequence[Any]) -> Iterator[Dict[str, Any]]:
    found = model.joining.run([feed.arrays for feed in feeds])
    for feed, outputs in zip(feeds, found):  # noqa: B905 (strict is unknown to Python 3.8)
        yield model.make_answers(outputs, feed)

"""Sizes of this bundle's inputs: padding up to a model with static shapes, and cutting back.

A variant for a provider that wants static shapes has one model for each of several sizes
(buckets). A call takes the smallest one that holds its inputs: they are filled up at the end, and
what the filling added is cut off the outputs. The builder proves its models with these functions.

Needs Python 3.8 or newer and numpy; nothing else.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

Arrays = Dict[str, np.ndarray]
Sizes = Mapping[str, int]
"""Symbolic dimension and its size."""
UNKNOWN = "?"
"""A dimension without a name."""


class TensorSpec(NamedTuple):
    """One input or output of the model."""

    name: str
    dtype: str
    """A numpy dtype name."""
    shape: Tuple[Union[int, str], ...]
    """An int where fixed; any size is taken where it is a name."""

    def check(self, array: np.ndarray) -> None:
        """Raise ValueError, saying what was expected, unless the array fits."""
        if array.dtype != np.dtype(self.dtype):
            raise ValueError(
                f"input {self.name!r} is {array.dtype}, expected {self.dtype}:"
                f" convert it with array.astype({self.dtype!r})"
            )
        pairs = zip(array.shape, self.shape)  # noqa: B905 (strict is unknown to Python 3.8)
        fits = array.ndim == len(self.shape) and all(
            isinstance(want, str) or size == want for size, want in pairs
        )
        if not fits:
            raise ValueError(
                f"input {self.name!r} has shape {list(array.shape)}, expected {list(self.shape)}"
            )


class InputShapes:
    """The symbolic dimensions of a model's inputs, and what fills them.

    Args:
        inputs: What the model takes.
        descriptions: By input, ``pad`` (default 0) and ``mask``: the manifest's
            ``input_descriptions``.
    """

    def __init__(
        self,
        inputs: Sequence[TensorSpec],
        descriptions: Optional[Mapping[str, Mapping[str, Any]]] = None,
    ) -> None:
        self.inputs = inputs
        given = descriptions or {}
        self.fills = {name: entry.get("pad") or 0 for name, entry in given.items()}
        self.masks = [s.name for s in inputs if given.get(s.name, {}).get("mask") is not None]

    @property
    def needed(self) -> List[TensorSpec]:
        """The inputs that a caller has to give: all but masks."""
        return [spec for spec in self.inputs if spec.name not in self.masks]

    def find_sizes(self, shapes: Mapping[str, Sequence[int]]) -> Dict[str, int]:
        """Return the size of each symbolic dimension, from the inputs' shapes.

        Raises:
            ValueError: Two inputs do not agree about one.
        """
        found: Dict[str, Tuple[int, str]] = {}
        for spec in self.inputs:
            pairs = zip(spec.shape, shapes.get(spec.name, ()))  # noqa: B905
            for dim, size in pairs:
                if isinstance(dim, int) or dim == UNKNOWN:
                    continue
                first, owner = found.setdefault(dim, (size, spec.name))
                if size != first:
                    raise ValueError(
                        f"the inputs do not fit together: {dim!r} is {first} in {owner!r} and"
                        f" {size} in {spec.name!r}"
                    )
        return {dim: size for dim, (size, _) in found.items()}

    def add_masks(self, feed: Arrays) -> Arrays:
        """Return the inputs with the masks that are missing: ones, of the other inputs' sizes."""
        missing = [s for s in self.inputs if s.name in self.masks and s.name not in feed]
        if not missing:
            return feed
        sizes = self.find_sizes(find_shapes(feed))
        made = {
            spec.name: np.ones([_find_size(dim, sizes) for dim in spec.shape], spec.dtype)
            for spec in missing
        }
        return {**feed, **made}

    def pad_feed(self, feed: Arrays, bucket: Sizes) -> Arrays:
        """Return the inputs filled up at the end to a bucket's sizes, which hold them."""
        return {
            spec.name: _pad_array(
                feed[spec.name],
                [bucket.get(dim, size) for dim, size in self._list_dims(spec, feed)],
                self.fills.get(spec.name, 0),
            )
            for spec in self.inputs
        }

    def resize_feed(self, feed: Arrays, sizes: Sizes) -> Arrays:
        """Return the inputs cut, or repeated from their beginning, to other sizes."""
        changed = {}
        for spec in self.inputs:
            array = feed[spec.name]
            for axis, (dim, size) in enumerate(self._list_dims(spec, feed)):
                if size and sizes.get(dim, size) != size:
                    array = np.take(array, np.arange(sizes[dim]) % size, axis=axis)
            changed[spec.name] = array
        return changed

    @staticmethod
    def _list_dims(spec: TensorSpec, feed: Arrays) -> List[Tuple[str, int]]:
        """Return name (empty where fixed) and size of each dimension."""
        pairs = zip(spec.shape, feed[spec.name].shape)  # noqa: B905
        return [(dim if isinstance(dim, str) else "", size) for dim, size in pairs]


def find_shapes(feed: Arrays) -> Dict[str, Tuple[int, ...]]:
    """Return the shape of each array."""
    return {name: array.shape for name, array in feed.items()}


def choose_bucket(buckets: Sequence[Sizes], sizes: Sizes, *, exact: bool = False) -> int:
    """Return the index of the first bucket that holds the sizes, or that has just these.

    Raises:
        ValueError: None does; names the sizes and the buckets.
    """
    for index, bucket in enumerate(buckets):
        if dict(bucket) == dict(sizes) or (not exact and can_hold(bucket, sizes)):
            return index
    known = "; ".join(map(format_sizes, buckets))
    how = "just the sizes" if exact else "sizes up to"
    raise ValueError(
        f"the inputs have {format_sizes(sizes)}, and this variant of the model takes {how} {known}"
    )


def can_hold(bucket: Sizes, sizes: Sizes) -> bool:
    """Return whether a bucket is as large as the sizes, or larger, in each dimension."""
    return all(size <= bucket.get(dim, size) for dim, size in sizes.items())


def format_sizes(sizes: Sizes) -> str:
    """Return sizes as text, such as ``batch 1, sequence 16``."""
    return ", ".join(f"{dim} {size}" for dim, size in sizes.items())


def cut_outputs(outputs: Arrays, slices: Sequence[Mapping[str, Any]], sizes: Sizes) -> Arrays:
    """Return the outputs with each axis in ``slices`` cut back to its dimension's size."""
    whole = dict(outputs)
    for entry in slices:
        name, axis, size = entry["output"], entry["axis"], sizes[entry["dim"]]
        whole[name] = whole[name][(slice(None),) * axis + (slice(size),)]
    return whole


def _pad_array(array: np.ndarray, shape: Sequence[int], fill: float) -> np.ndarray:
    if list(array.shape) == list(shape):
        return array
    filled = np.full(shape, fill, array.dtype)
    filled[tuple(slice(size) for size in array.shape)] = array
    return filled


def _find_size(dim: Union[int, str], sizes: Sizes) -> int:
    return sizes[dim] if isinstance(dim, str) else dim

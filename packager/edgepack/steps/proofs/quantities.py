"""Outputs that hold several quantities, as boxes in pixels and their scores."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from edgepack.base.arrays import Array
from edgepack.metrics.accuracy import find_quantities, find_quantity_axis
from edgepack.model.running import Arrays
from edgepack.steps.proofs.candidates import find_stride

_GAP = 4.0
"""Less than where accuracy is judged, for a limit of its own costs a quantity nothing. Offsets and
sizes of yunet's boxes are 4.2 apart, those of a YOLO for small pictures and its scores 4.6."""
Part = tuple[str, int]
"""An output, and the number of a quantity in it."""


@dataclass(frozen=True, eq=False)
class Quantities:
    """Which channels of an output are read in one unit, as far as their deviations tell.

    Those whose deviations lie apart by a gap of more than 4 are of different quantities. What is
    the same in all samples belongs to the smallest, or, if it is not 0, to the largest.
    """

    shape: tuple[int, ...]
    """The output's."""
    of_channel: Array
    """(channels,): the number of its quantity, that of the largest deviation first."""

    @classmethod
    def of(cls, shape: Sequence[int], found: Sequence[Array]) -> Quantities | None:
        """Return the quantities of an output, or None if it has only one.

        Args:
            shape: The output's, in all samples.
            found: What is kept of it in some samples.
        """
        axis = find_quantity_axis(shape)
        if axis is None or len(found) < 2 or len({each.shape for each in found}) > 1:
            return None
        one = cls(tuple(shape), np.zeros(shape[axis], np.int64))
        places = one._find_channels(found[0].size)
        values = np.stack([each.reshape(-1).astype(np.float64) for each in found])
        values = np.where(np.isfinite(values), values, 0.0)
        varied = np.bincount(places, np.var(values, axis=0), shape[axis])
        energy = np.bincount(places, np.mean(values**2, axis=0), shape[axis])
        groups = find_quantities(varied, energy, _GAP)
        if len(groups) < 2:
            return None
        of_channel = np.where(energy > 0, 0, len(groups) - 1)
        for number, group in enumerate(groups):
            of_channel[group] = number
        return cls(tuple(shape), of_channel)

    @property
    def count(self) -> int:
        """How many there are."""
        return int(self.of_channel.max()) + 1

    @property
    def size(self) -> int:
        """How many values of one channel follow each other."""
        axis = find_quantity_axis(self.shape)
        return int(np.prod(self.shape[axis + 1 :])) if axis is not None else 1

    @property
    def runs(self) -> list[tuple[int, int]]:
        """How many channels in a row are of which quantity."""
        grouped = itertools.groupby(self.of_channel.tolist())
        return [(len(list(run)), number) for number, run in grouped]

    def split(self, kept: Array) -> list[Array]:
        """Return the values of each quantity in what is kept of an output, as vectors.

        That is the whole for each, if the output has another size.
        """
        if kept.size != self._of_value.size:
            return [kept] * self.count
        return [kept.reshape(-1)[self._of_value == number] for number in range(self.count)]

    @cached_property
    def _of_value(self) -> Array:
        size = int(np.prod(self.shape))
        kept = len(range(0, size, find_stride(size)))
        return np.asarray(self.of_channel[self._find_channels(kept)])

    def _find_channels(self, count: int) -> Array:
        """Return the channels of so many kept values."""
        every = find_stride(int(np.prod(self.shape)))
        return np.asarray(np.arange(count) * every // self.size % len(self.of_channel))


def split_by_part(outputs: Arrays, several: Mapping[str, Quantities]) -> dict[Part, Array]:
    """Return what is kept of outputs by quantity; an output of one quantity is a part as it is."""
    parts: dict[Part, Array] = {}
    for name, kept in outputs.items():
        split: list[Any] = several[name].split(kept) if name in several else [kept]
        parts |= {(name, number): part for number, part in enumerate(split)}
    return parts

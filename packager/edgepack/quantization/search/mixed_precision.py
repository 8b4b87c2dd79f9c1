"""Mixed precision: takes more and more of a model out of 8 bits, starting with what costs most."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from edgepack.errors import format_list
from edgepack.quantization.search.costs import Costs, PlaceStretch
from edgepack.quantization.search.scheme import Scheme

WORTHWHILE_DB = 1.0
"""The gain that taking out twice as much must bring if that alone is not enough."""
_HURTS = "it costs the most accuracy"
_SHOWN = 3


@dataclass(frozen=True)
class FloatPlace:
    """What can be taken out of 8 bits: neighbouring nodes with their constants, or tensors."""

    cost: float
    nodes: tuple[str, ...] = ()
    tensors: tuple[str, ...] = ()
    wide: bool = False
    """Whether the tensors have 16 bits instead of none."""

    @property
    def density(self) -> float:
        """The cost of each of its nodes or tensors."""
        return self.cost / len(self.nodes or self.tensors)

    def leave_out(self, scheme: Scheme) -> Scheme:
        """Return a scheme without this place in 8 bits."""
        left = scheme.leave_float(dict.fromkeys(self.nodes, _HURTS))
        return left.widen_tensors(self.tensors, wide=self.wide)


@dataclass(frozen=True)
class Ladder:
    """Schemes that take more and more places out of 8 bits."""

    what: str
    """What the places become instead, for people."""
    scheme: Scheme
    places: Sequence[FloatPlace]
    """In the order in which they are taken out."""
    most: int
    """So many are taken out at most."""
    steps: int | None = None
    """In so many steps at most, of at least 2; None stands for no limit."""
    rest: float = 0.0
    """What all costs that is none of the places."""

    def list_counts(self) -> list[int]:
        """Return how many places each step takes out: 1, 2, 4 and so on, and at last the most.

        Where that would be too many steps, each is more than twice the one before.
        """
        factor = 2.0 if self.steps is None else max(2.0, self.most ** (1 / (self.steps - 1)))
        counts, size = [], 1.0
        while round(size) < self.most:
            counts.append(round(size))
            size *= factor
        return [*counts, self.most] if self.most else []

    def find_promising(self, missing_db: float) -> list[int]:
        """Return how many places to take out to gain so many dB, going by what they cost.

        It adds a half in case these are too few. Where the result is all that may be taken out, it
        is the highest number for which doubling gains a dB.
        """
        for count in range(1, self.most + 1):
            if self._compute_gain_db(count) >= missing_db:
                return list(dict.fromkeys((count, min(count + -(-count // 2), self.most))))
        counts = self.list_counts()
        gains = [self._compute_gain_db(count) for count in (0, *counts)]
        steps = [after - before for before, after in itertools.pairwise(gains)]
        taken = [count for count, gain in zip(counts, steps, strict=True) if gain >= WORTHWHILE_DB]
        return taken[-1:]

    def _compute_gain_db(self, count: int) -> float:
        costs = [place.cost for place in self.places]
        left = sum(costs[count:]) + self.rest
        return 10 * math.log10((sum(costs) + self.rest) / left) if left else math.inf

    def make_rung(self, count: int) -> tuple[str, Scheme]:
        """Return the scheme without the first places, and its name."""
        scheme = self.scheme
        for place in self.places[:count]:
            scheme = place.leave_out(scheme)
        names = [repr(n) for place in self.places[:count] for n in (*place.nodes, *place.tensors)]
        return f"{self.what}: {format_list(names, _SHOWN)}", scheme


def make_float_ladder(
    scheme: Scheme, costs: Costs, most: float, steps: int | None = None
) -> Ladder:
    """Return a ladder that leaves nodes and 8-bit tensors float, by cost per place, highest first.

    Args:
        scheme: What they are left out of, with plain weights.
        costs: Of its places.
        most: The share of the places that may be left float.
        steps: As in :class:`Ladder`.
    """
    nodes = [FloatPlace(each.cost, nodes=each.places) for each in costs.nodes if each.cost > 0]
    tensors = [
        place
        for place in _find_places(costs.tensors, wide=False)
        if scheme.wide.isdisjoint(place.tensors)
    ]
    places = sorted((*nodes, *tensors), key=lambda place: -place.density)
    return Ladder("float", scheme, places, _count_allowed(places, most), steps)


def make_wide_ladder(
    scheme: Scheme, costs: Costs, most: float = 1.0, steps: int | None = None
) -> Ladder:
    """Return a ladder that gives tensors 16 bits, in the order of their cost.

    Args:
        scheme: As in :func:`make_float_ladder`.
        costs: Of its places.
        most: The share of those that cost anything that may have 16 bits; all if not given.
        steps: As in :class:`Ladder`.
    """
    places = _find_places(costs.tensors, wide=True)
    rest = sum(each.cost for each in costs.nodes)
    return Ladder("16 bits", scheme, places, _count_allowed(places, most), steps, rest)


def _count_allowed(places: Sequence[FloatPlace], most: float) -> int:
    """Return how many of the first places together are no more than a share of all."""
    taken = np.cumsum([len(place.nodes or place.tensors) for place in places])
    return int(np.sum(taken <= most * taken[-1])) if places else 0


def _find_places(tensors: Iterable[PlaceStretch], *, wide: bool) -> list[FloatPlace]:
    return [
        FloatPlace(each.cost, tensors=each.places, wide=wide) for each in tensors if each.cost > 0
    ]

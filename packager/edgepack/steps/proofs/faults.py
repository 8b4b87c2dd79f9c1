"""Compares wrong models with goldens: which of them do the goldens detect?"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from edgepack.model.running import Arrays
from edgepack.steps.proofs.candidates import Candidates
from edgepack.steps.proofs.mutants import Mutant
from edgepack.steps.proofs.telling import Tolerance, measure_variations

_MOST_SWAPS = 8


@dataclass(frozen=True)
class Fault:
    """A fault of a model, and the samples that detect it."""

    what: str
    told_by: int | None
    """The place of the first golden that refuses it."""


@dataclass(frozen=True)
class FaultTrial:
    """Goldens, and the other data that show whether a fault matters."""

    candidates: Candidates
    found: Mapping[int, Arrays]
    """The right outputs of every candidate."""
    chosen: Sequence[int]
    """The candidates that are goldens."""
    tolerance: Tolerance

    def try_mutants(self, session: Any, mutants: Iterable[Mutant]) -> Iterator[Fault]:  # noqa: ANN401
        """Yield the mutants that a golden detects, or whose outputs are wrong for any candidate."""
        for mutant in mutants:
            changed = partial(self.candidates.run, session, weights=mutant.weights)
            yield from self._try_fault(mutant.what, cache(changed))

    def try_swaps(self) -> Iterator[Fault]:
        """Yield faults that swap a pair of outputs."""
        right = self.found[self.chosen[0]]
        alike = (
            (a, b)
            for a, b in itertools.combinations(right, 2)
            if (right[a].shape, right[a].dtype) == (right[b].shape, right[b].dtype)
        )
        for a, b in itertools.islice(alike, _MOST_SWAPS):
            swapped = {n: {**o, a: o[b], b: o[a]} for n, o in self.found.items()}
            yield from self._try_fault(f"the outputs {a!r} and {b!r} swapped", swapped.__getitem__)

    def try_constants(self, strangers: Sequence[Arrays]) -> Iterator[Fault]:
        """Yield models that give the same for all inputs.

        An output is its mean over the candidates, or all are those for one input that is no golden.
        """
        varying = {
            name: v for name, v in measure_variations(self.found.values()).items() if v.tells
        }
        for name, variation in varying.items():
            constant = {n: {**self.found[n], name: variation.mean} for n in self.chosen}
            yield Fault(f"the output {name!r} a constant", self._find_refusal(constant.__getitem__))
        others = [self.found[n] for n in self.found if n not in self.chosen]
        if varying and (stuck := [*others, *strangers]):
            places = [
                self._find_refusal(dict.fromkeys(self.chosen, each).__getitem__) for each in stuck
            ]
            known = [place for place in places if place is not None]
            told = max(known) if len(known) == len(places) else None
            yield Fault("the outputs of one input for all", told)

    def _try_fault(self, what: str, changed: Callable[[int], Arrays]) -> Iterator[Fault]:
        """Yield a fault unless it changes no candidate's outputs so much that it matters."""
        told = self._find_refusal(changed)
        if told is not None or any(
            self.tolerance.is_wrong(right, changed(n)) for n, right in self.found.items()
        ):
            yield Fault(what, told)

    def _find_refusal(self, changed: Callable[[int], Arrays]) -> int | None:
        """Return the place of the first golden that refuses what a model gives for a candidate."""
        telling = (
            place
            for place, number in enumerate(self.chosen)
            if self.tolerance.can_tell(self.found[number], changed(number))
        )
        return next(telling, None)

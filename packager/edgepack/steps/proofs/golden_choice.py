"""Chooses the samples for a bundle's goldens: those that detect most faults of a model."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from edgepack.base.arrays import Array
from edgepack.errors import BugError
from edgepack.metrics.accuracy import EQUAL_SQNR_DB
from edgepack.model.running import Arrays, make_session
from edgepack.samples.spreading import choose_spread
from edgepack.steps.base import Inputs, Notes
from edgepack.steps.proofs.candidates import CANDIDATES, Candidates, is_silent
from edgepack.steps.proofs.mutants import Mutant, open_mutable_session
from edgepack.steps.proofs.quantities import split_by_part
from edgepack.steps.proofs.telling import Tolerance, measure_variations

CHOICE = "choice.json"
_LEAST_LIMIT_DB = 8.0
"""The least that the goldens of any variant require where its kernels allow it."""
_POOL = 32
"""The most samples whose outputs are looked at; enough to find a class that one in twenty has."""
_RANDOM = 2
"""Random inputs are all of one kind."""


@dataclass(frozen=True)
class GoldenChoice:
    """The samples for goldens, which all variants of a bundle share, best first.

    Some of the samples are looked at, evenly spread. Those are taken whose outputs are farthest
    from each other's and from those for inputs that are no samples; silence only if there is
    nothing else. Then the weights of the model are changed: if another sample detects a change that
    no chosen sample detects, that one is taken instead. Inputs: ``model``, which has the right
    outputs; ``samples``, or ``made``, a set that stands in for them, else seeded random ones.
    """

    name: ClassVar[str] = "golden-choice"
    libraries: ClassVar[tuple[str, ...]] = ("numpy", "onnx", "onnxruntime")
    cacheable = True
    count: int
    processor: str
    """The kind of processor that this runs on: it decides the last bits."""

    def check(self, inputs: Inputs) -> None:
        """Accept any model that is prepared."""

    def run(self, inputs: Inputs, out: Path) -> Notes:
        """Write ``choice.json``: the numbers of the samples, as :class:`Candidates` has them."""
        candidates = Candidates.of(inputs)
        session = make_session(candidates.model)
        found = {number: candidates.run(session, number) for number in candidates.choose(_POOL)}
        silent = {n for n, outputs in found.items() if is_silent(candidates.make_feed(n), outputs)}
        count = min(self.count, _RANDOM) if candidates.samples is None else self.count
        tried = sort_farthest_first(found, silent, candidates.run_strangers(session), CANDIDATES)
        order = tried[:count]
        tried = [number for number in tried if number in order or number not in silent]

        plain, mutants = open_mutable_session(candidates.model, candidates.make_feed(order[0]))
        right = {number: candidates.run(plain, number) for number in tried}
        whole = {number: split_by_part(outputs, {}) for number, outputs in found.items()}
        noise_db = dict.fromkeys(whole[order[0]], EQUAL_SQNR_DB)
        tolerance = Tolerance(_LEAST_LIMIT_DB, measure_variations(whole.values()), noise_db)

        def is_detected(mutant: Mutant, number: int) -> bool:
            changed = candidates.run(plain, number, mutant.weights)
            return tolerance.can_tell(right[number], changed)

        # Trying changes that hardly any sample detects on all samples would take longer than all
        # the rest.
        changes = [mutant for mutant in mutants if not mutant.is_slight]
        telling = [next((n for n in tried if is_detected(mutant, n)), None) for mutant in changes]
        chosen = choose_covering(order, [number for number in telling if number is not None])
        (out / CHOICE).write_text(json.dumps(chosen), encoding="utf-8")
        kind = "random inputs" if candidates.samples is None else "samples"
        return Notes(
            f"{len(chosen)} of {len(found)} {kind} taken for goldens, those that catch most"
        )

    def verify(self, inputs: Inputs, out: Path) -> None:
        """Prove that there are samples, each once.

        Raises:
            StepError: There are none, one is there twice, or one is not among the candidates.
        """
        chosen, known = read_choice(out), Candidates.of(inputs).choose(_POOL)
        if not chosen or len(set(chosen)) < len(chosen) or not set(chosen) <= set(known):
            raise BugError(f"the samples {chosen} were taken for goldens, of {known}")


def read_choice(folder: Path) -> list[int]:
    """Return what :class:`GoldenChoice` wrote."""
    numbers: list[int] = json.loads((folder / CHOICE).read_text(encoding="utf-8"))
    return numbers


def sort_farthest_first(
    found: Mapping[int, Arrays], silent: set[int], strangers: Sequence[Arrays], count: int
) -> list[int]:
    """Return samples, each with outputs as far as can be from strangers' and those before.

    The first is far from the mean as well, which shows a constant; others may be near it. Distances
    are parts of an output's deviation over the samples, and their mean is taken over all outputs
    that have one. Where there is none, samples are spread evenly. Silent ones come last.
    """
    varying = {name: v for name, v in measure_variations(found.values()).items() if v.tells}
    loud = [number for number in found if number not in silent]
    if not varying:
        return choose_spread(loud, count) or choose_spread(list(found), count)

    def compute_distance(outputs: Mapping[str, Array], others: Mapping[str, Array]) -> float:
        total = 0.0
        for name, variation in varying.items():
            if outputs[name].shape == others[name].shape:
                apart = _make_finite(outputs[name]) - _make_finite(others[name])
                total += math.sqrt(float(np.sum(apart**2)) / variation.around_mean)
        return total / len(varying)

    mean = {name: v.mean for name, v in varying.items()}
    order: list[int] = []
    while len(order) < min(count, len(found)):
        seen = [*strangers, *(found[n] for n in order)] if order else [*strangers, mean]
        left = [n for n in loud if n not in order] or [n for n in found if n not in order]
        nearest = {n: min(compute_distance(found[n], others) for others in seen) for n in left}
        order.append(max(left, key=nearest.__getitem__))
    return order


def choose_covering(order: Sequence[int], telling: Sequence[int]) -> list[int]:
    """Return as many samples as are in ``order``: first those that detect most changes.

    Args:
        order: The samples that are taken if there are no changes.
        telling: For each change, the sample that detects it, from ``order`` or another one.
    """
    known = dict.fromkeys([*order, *telling])
    return sorted(known, key=lambda number: -telling.count(number))[: len(order)]


def _make_finite(output: Array) -> Array:
    """Return an output as :class:`~edgepack.metrics.accuracy.Variation` counts it."""
    values = output.astype(np.float64)
    return np.where(np.isfinite(values), values, 0.0)

"""The methods that may bring a quantized model's outputs nearer, in the order they are tried."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from edgepack.calibration.statistics import TensorStatistics
from edgepack.quantization.activations import (
    Activations,
    Candidate,
    ExactWeightsJudge,
    choose_activations,
)
from edgepack.quantization.closeness import Chosen, HeldOut
from edgepack.quantization.making import QdqSettings
from edgepack.quantization.rounding import round_weights
from edgepack.quantization.search import Method, Scheme, Tried

ROUNDED = "weights rounded and biases corrected for the outputs"


@dataclass(frozen=True)
class Improving:
    """What the methods need to know."""

    settings: QdqSettings
    statistics: Mapping[str, TensorStatistics]
    fitted_to: Chosen
    """The samples that weights are fitted to."""
    held_out: HeldOut

    def chosen_activations(self, scheme: Scheme) -> list[Candidate]:
        """Return what was tried for the activations of a scheme; weights are exact meanwhile."""
        judge = ExactWeightsJudge(self.settings.writer(scheme), self.held_out, scheme.left)
        return choose_activations(Activations.of(scheme.exact, self.statistics), judge)

    def methods(self, tried: list[Candidate]) -> list[Method]:
        """Return the methods, given what was tried for activations.

        Weights are rounded to suit the activations that were chosen. Should both together not bring
        the outputs nearer, each is tried alone.
        """
        best = next(each for each in reversed(tried) if each.is_kept).activations
        is_new = best is not tried[0].activations

        def both(scheme: Scheme) -> Iterator[Scheme]:
            yield self.fitted(_with(scheme, best) if is_new else scheme)

        def weights(scheme: Scheme) -> Iterator[Scheme]:
            if is_new and not scheme.weight_scales:
                yield self.fitted(scheme)

        def activations(scheme: Scheme) -> Iterator[Scheme]:
            if is_new and not scheme.weight_scales:
                yield _with(scheme, best)

        return [
            Method(ROUNDED, both),
            Method(f"{ROUNDED}, activations as they were", weights),
            Method("activations as chosen, nearest rounding", activations),
        ]

    def fitted(self, scheme: Scheme) -> Scheme:
        """Return a scheme with its exact weights rounded to suit its activations."""
        found = round_weights(self.settings.writer(scheme.plain), self.fitted_to, scheme.left)
        return replace(scheme, model=found.model, weight_scales=found.weight_scales)


def _with(scheme: Scheme, found: Activations) -> Scheme:
    return replace(
        scheme, exact=found.model, model=found.model, ranges=found.ranges, weight_scales={}
    )


def as_tried(candidates: list[Candidate]) -> list[Tried]:
    """Return what was tried for activations as lines of a search."""
    return [
        Tried(
            f"exact weights, {each.what}",
            "calibration",
            each.is_kept,
            each.closeness.sqnr_db,
            each.closeness.agreement,
        )
        for each in candidates
    ]

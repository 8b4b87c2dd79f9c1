"""Lists the methods that may bring a quantized model's outputs nearer, in the order of trial."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from edgepack.quantization.methods.rounding import round_weights
from edgepack.quantization.ranges.statistics import TensorStatistics
from edgepack.quantization.search.activations import (
    Activations,
    ExactWeightsJudge,
    choose_activations,
)
from edgepack.quantization.search.closeness import Chosen, HeldOut
from edgepack.quantization.search.making import QdqSettings
from edgepack.quantization.search.scheme import Scheme
from edgepack.quantization.search.search import Method, SearchLine

ROUNDED = "weights rounded and biases corrected for the outputs"


@dataclass(frozen=True)
class Improving:
    """What the methods need to know."""

    settings: QdqSettings
    statistics: Mapping[str, TensorStatistics]
    fitted_to: Chosen
    """The samples that weights are fitted to."""
    held_out: HeldOut

    def choose_activations(self, scheme: Scheme) -> tuple[Scheme, list[SearchLine]]:
        """Return a scheme with the activations that suit it best, and what was tried for them.

        Weights are exact meanwhile. Where nothing was better, the scheme is the given one.

        Raises:
            StepError: As :func:`choose_activations`.
            ModelError: As :func:`choose_activations`.
        """
        judge = ExactWeightsJudge(self.settings.make_writer(scheme), self.held_out, scheme.left)
        start = Activations.of(scheme.exact, self.statistics)
        best, tried = choose_activations(start, judge)
        return scheme if best is start else _apply_found(scheme, best), tried

    def list_methods(self, first: Scheme, chosen: Scheme) -> list[Method]:
        """Return the methods.

        Weights are rounded to suit the activations that were chosen. If both together do not bring
        the outputs nearer, each is tried alone.

        Args:
            first: The scheme that the methods start from.
            chosen: The same scheme, or the same with other activations.
        """

        def fit_chosen(_: Scheme) -> Iterator[Scheme]:
            yield self.fit_weights(chosen)

        def fit_first(scheme: Scheme) -> Iterator[Scheme]:
            if chosen is not first and scheme is first:
                yield self.fit_weights(first)

        def take_chosen(scheme: Scheme) -> Iterator[Scheme]:
            if chosen is not first and scheme is first:
                yield chosen

        return [
            Method(ROUNDED, fit_chosen),
            Method(f"{ROUNDED}, activations as they were", fit_first),
            Method("activations as chosen, nearest rounding", take_chosen),
        ]

    def fit_weights(self, scheme: Scheme) -> Scheme:
        """Return a scheme with its exact weights rounded to suit its activations."""
        found = round_weights(self.settings.make_writer(scheme.plain), self.fitted_to, scheme.left)
        return replace(scheme, model=found.model, weight_scales=found.weight_scales)


def _apply_found(scheme: Scheme, found: Activations) -> Scheme:
    return replace(
        scheme, exact=found.model, model=found.model, ranges=found.ranges, weight_scales={}
    )

"""What metrics of labels have in common whose value belongs to all samples together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

from edgepack.base.arrays import Array
from edgepack.errors import SamplesError
from edgepack.metrics.base import Arrays
from edgepack.project.outputs import OutputDescription

OWN = "for anything else name a metric of your own: docs/metrics.md"
Described = Mapping[str, OutputDescription]
"""What outputs mean, by name."""


class LabelledMetric(ABC):
    """Collects, sample by sample, how labels rate fp32's answers and a variant's."""

    higher_is_better: ClassVar[bool] = True
    best: ClassVar[float] = 1.0
    """No value is better."""

    @abstractmethod
    def add(self, reference: Arrays, output: Arrays, feed: Arrays) -> None:
        """Add the next sample's outputs, fp32's and the variant's, and the inputs of both.

        Raises:
            SamplesError: Its labels do not fit them.
            ValueError: An output does not have the shape that its description requires.
        """

    @abstractmethod
    def compute_values(self, chosen: Sequence[int]) -> dict[str, tuple[float, float]]:
        """Return values of some of the samples, fp32's and the variant's; the first decides."""


def find_output(metric: str, described: Described, *kinds: str) -> str:
    """Return the first output that is described as one of some kinds.

    Raises:
        SamplesError: None is.
    """
    for name, meaning in described.items():
        if meaning.kind in kinds:
            return name
    article = "an" if kinds[0][0] in "aeiou" else "a"
    raise SamplesError(
        f"the metric {metric} is of {article} {' or '.join(kinds)}, and no output is described as"
        " one",
        hint=f"describe it in edgepack.yaml: outputs: {{NAME: {{kind: {kinds[0]}, ...}}}}; {OWN}",
    )


def make_labels_error(metric: str, labels: Array | None, wanted: str) -> SamplesError:
    """Return the error for labels that are not what a metric takes."""
    given = "there are none" if labels is None else f"they are {labels.dtype} {list(labels.shape)}"
    return SamplesError(
        f"the metric {metric} takes labels {wanted}, and {given}",
        hint="give 'labels' under samples.evaluation as docs/metrics.md says",
    )

"""What the metrics of all kinds of outputs have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from edgepack.base.arrays import Array

Arrays = Mapping[str, Array]


@dataclass(frozen=True)
class Found:
    """What a metric found over all samples: the mean of ``values``, 1 for fp32's own outputs."""

    values: Sequence[float]
    """The variant's values by sample; samples without information are left out."""
    own: Sequence[float] = ()
    """fp32's values, whose mean is 1; empty if each is 1."""
    others: Mapping[str, float] = field(default_factory=dict)
    """Second figures, by name."""
    no_better: str | None = None
    """Why a variant that answers the same to every sample would be as good; None if it would not be
    as good."""


@dataclass(frozen=True)
class Nothing:
    """The result where the samples cannot distinguish variants."""

    reason: str


class OutputMetric(ABC):
    """Collects, sample by sample, how near the answers in one output are to fp32's."""

    name: ClassVar[str]
    """The metric's name in tables and manifests."""
    about: ClassVar[str]
    """What its value means, in words."""
    least: ClassVar[float] = 0.5
    """A variant that keeps less of fp32's answers ships only if the user names it: half of them,
    or, where chance or a constant reaches half, half of the rest."""

    @abstractmethod
    def add(self, reference: Array, output: Array, feed: Arrays) -> None:
        """Add one sample.

        Args:
            reference: The output that fp32 gives.
            output: That of the variant, whose shape may be another one.
            feed: The inputs of both, by name.

        Raises:
            ValueError: The reference does not have the shape that its description requires.
        """

    @abstractmethod
    def compute_value(self) -> Found | Nothing:
        """Return what was found over the samples that were added."""

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
    """The variant's, by sample; samples that tell nothing are left out."""
    own: Sequence[float] = ()
    """fp32's, whose mean is 1; empty stands for 1 each."""
    others: Mapping[str, float] = field(default_factory=dict)
    """Second figures, by name."""
    no_better: str = ""
    """Why a variant that answers the same to every sample would be as good; nothing if it would
    not."""


@dataclass(frozen=True)
class Nothing:
    """What is found where the samples do not tell one variant from another."""

    reason: str


class OutputMetric(ABC):
    """Collects, sample by sample, how near the answers in one output are to fp32's."""

    name: ClassVar[str]
    """As tables and manifests have it."""
    about: ClassVar[str]
    """What its value is, for people."""
    least: ClassVar[float] = 0.5
    """A variant that keeps less of fp32's answers is not shipped unless it is named: half of them,
    or, where chance or a constant has half, half of what is above that."""

    @abstractmethod
    def add(self, reference: Array, output: Array, feed: Arrays) -> None:
        """Add one sample.

        Args:
            reference: The output that fp32 gives.
            output: That of the variant, whose shape may be another one.
            feed: What both were given, by input.

        Raises:
            ValueError: The reference has not the shape that its description wants.
        """

    @abstractmethod
    def found(self) -> Found | Nothing:
        """Return what was found over the samples that were added."""

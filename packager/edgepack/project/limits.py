"""Limits: what a variant may lose, take and need, in the project file."""

from __future__ import annotations

import math
from typing import Annotated, Self

from pydantic import Field, model_validator

from edgepack.base.schema import Finite, StrictModel

_Most = Annotated[Finite, Field(gt=0)]


class AccuracyLimits(StrictModel):
    """What a variant may lose against fp32. Without a limit, nothing is refused."""

    metric_drop: Annotated[float, Field(ge=0)] | None = None
    """Absolute, in the metric's own unit."""
    min_sqnr_db: float | None = None
    """Signal to noise against fp32 in dB, for the worst group of channels of the worst output."""

    def compute_excess(self, drop: float, sqnr_db: float) -> tuple[float, float]:
        """Return by how much a drop is too large and an SQNR too small: (0, 0) if both are met.

        NaN meets no limit: the result is (inf, inf) if one of them is NaN.
        """
        if math.isnan(drop) or math.isnan(sqnr_db):
            return math.inf, math.inf
        most = math.inf if self.metric_drop is None else self.metric_drop
        least = -math.inf if self.min_sqnr_db is None else self.min_sqnr_db
        return max(0.0, drop - most), max(0.0, least - sqnr_db)


class Limits(AccuracyLimits):
    """All limits of a project: a build judges accuracy and size, a device the rest."""

    metric_at_least: Finite | None = None
    """The metric's own value, where more is better."""
    metric_at_most: Finite | None = None
    """The metric's own value, where less is better."""
    size_mb: _Most | None = None
    """The variant's model files with their weights, in 10^6 bytes."""
    p50_ms: _Most | None = None
    """The median latency of an inference."""
    p99_ms: _Most | None = None
    predict_ms: _Most | None = None
    """The median of the loader's ``predict``: from a decoded picture, a text or tensors to the
    answers."""
    first_ms: _Most | None = None
    """From the start of the process to the first answer, with the loader's checks."""
    load_ms: _Most | None = None
    """Making the session; with the model's file not in memory, where the device can do that."""
    memory_mb: _Most | None = None
    """The peak of the process's resident memory, in 10^6 bytes."""
    energy_mj: _Most | None = None
    """Of one inference, idle power included, in millijoules."""
    temperature_c: _Most | None = None
    """Of the hottest zone in the timed runs, in °C."""

    @property
    def accuracy(self) -> AccuracyLimits:
        """Those that decide how a model is made."""
        return AccuracyLimits(metric_drop=self.metric_drop, min_sqnr_db=self.min_sqnr_db)

    @property
    def need_samples(self) -> bool:
        """Whether evaluation samples are needed to judge some of them."""
        values = (self.metric_at_least, self.metric_at_most)
        return self.accuracy != AccuracyLimits() or values != (None, None)

    def override(self, others: Limits) -> Limits:
        """Return these limits with those that others set in their place; null takes one away.

        Raises:
            ValueError: Together they contradict each other.
        """
        return Limits.model_validate({**self.given, **others.model_dump(exclude_unset=True)})

    @property
    def given(self) -> dict[str, float]:
        """The limits that are set, by name."""
        return self.model_dump(exclude_none=True)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.metric_at_least is not None and self.metric_at_most is not None:
            raise ValueError(
                "metric_at_least and metric_at_most are both given, and one metric decides"
                " | give the one that says which values are good"
            )
        for smaller, larger, why in _ORDERED:
            small, large = getattr(self, smaller), getattr(self, larger)
            if small is not None and large is not None and small > large:
                raise ValueError(
                    f"{smaller}: {small:g} is above {larger}: {large:g}, and {why}"
                    f" | swap them, or leave {smaller} out"
                )
        return self


_ORDERED = (
    ("p50_ms", "p99_ms", "no median is above its p99"),
    ("load_ms", "first_ms", "the first answer comes after loading"),
)

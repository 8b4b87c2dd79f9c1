"""Chooses an output's metric by its description, else by its shape and type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from edgepack.base.arrays import Array
from edgepack.metrics.accuracy import find_class_scores
from edgepack.metrics.base import OutputMetric
from edgepack.metrics.classes import Agreement
from edgepack.metrics.decisions import Decisions
from edgepack.metrics.neighbours import Neighbours
from edgepack.metrics.numbers import EqualMetric, R2Metric
from edgepack.metrics.objects import Objects
from edgepack.metrics.regions import Regions
from edgepack.metrics.sequences import Tokens
from edgepack.metrics.signals import Signal
from edgepack.metrics.texts import Texts
from edgepack.project.outputs import OutputDescription

_BY_KIND: Mapping[str, Callable[[Any], OutputMetric]] = {
    "classification": lambda _: Agreement(),
    "detection": lambda given: Objects(given.model_dump()),
    "embedding": lambda given: Neighbours(given.model_dump()),
    "mask": lambda given: Regions(given.axis, given.threshold),
    "picture": lambda _: R2Metric(),
    "probability": lambda given: Decisions(given.threshold, sigmoid=given.activation == "sigmoid"),
    "regression": lambda given: R2Metric(given.threshold),
    "signal": lambda given: Signal(given.window),
    "text": lambda given: Texts(given.model_dump()),
    "tokens": lambda _: Tokens(),
}
"""The metric for each kind of description."""

METRIC_TEXTS: Mapping[str, str] = {
    metric.name: metric.about
    for metric in (
        Agreement, Decisions, EqualMetric, Neighbours, Objects, R2Metric, Regions, Signal, Texts,
        Tokens,
    )
}  # fmt: skip
"""What each metric's value means, in words, by name."""


def choose_metric(
    description: OutputDescription | None, reference: Array, *, may_be_scores: bool
) -> OutputMetric:
    """Return the metric of an output.

    Args:
        description: The project's, if it has one.
        reference: The output of a sample.
        may_be_scores: Whether an output without description is taken for class scores where it has
            their shape.
    """
    if description is not None and description.kind in _BY_KIND:
        return _BY_KIND[description.kind](description)
    if reference.dtype.kind != "f":
        return EqualMetric()
    if may_be_scores and find_class_scores(reference) is not None:
        return Agreement()
    return R2Metric()

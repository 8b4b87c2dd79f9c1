"""Computes over samples a variant's metric, how much worse than fp32's it is, and how certain."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field
from typing import Any, NamedTuple

import numpy as np

from edgepack.base.arrays import Array
from edgepack.base.schema import NotMeasured
from edgepack.base.statistics import t_quantile
from edgepack.base.worker import tell
from edgepack.errors import SamplesError
from edgepack.metrics.accuracy import (
    Drop,
    compute_mean_interval,
    compute_paired_drop,
    find_class_scores,
)
from edgepack.metrics.base import Nothing
from edgepack.metrics.of_labels import LabelledMetric
from edgepack.model.running import Arrays
from edgepack.project.outputs import OutputDescription
from edgepack.project.samples import PythonMetric
from edgepack.steps.proofs.hook_metric import HookMetric
from edgepack.steps.proofs.output_metrics import ByOutput, OutputMetrics

GROUPS = 10
"""Of samples, which are left out in turn for the interval of what is no mean over samples."""
LEAST_GROUPED = 2 * GROUPS
"""Samples."""


@dataclass
class Judge:
    """Collects what the metrics need, sample by sample."""

    labels: Array | None
    scores_output: str | None
    """The output that may hold class scores."""
    described: InitVar[Mapping[str, OutputDescription]]
    """By output."""
    keep_outputs: bool
    by_output: OutputMetrics = field(init=False)
    hits: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))
    """Top-1 hits of fp32 and of the variant."""
    agreements: list[float] = field(default_factory=list)
    outputs: tuple[list[Arrays], list[Arrays]] = field(default_factory=lambda: ([], []))
    fp32: dict[str, float] | None = None
    """The user's metric of fp32, once it was computed."""
    with_intervals: bool = False
    """Whether the user's metric is asked for parts of the set too, for the interval of a drop."""
    labelled: LabelledMetric | None = None
    """That of labels, where one is asked for that is no mean over samples."""

    def __post_init__(self, described: Mapping[str, OutputDescription]) -> None:
        self.by_output = OutputMetrics(described, self.scores_output)

    def add(self, reference: Arrays, output: Arrays, feed: Arrays) -> None:
        """Add one sample: what fp32 and the variant give for a feed.

        Raises:
            SamplesError: An output has not the shape that its description wants.
        """
        self.by_output.add(reference, output, feed)
        if self.labelled is not None:
            self.labelled.add(reference, output, feed)
        self._add_scores(reference, output)
        if self.keep_outputs:
            self.outputs[1].append(output)
            if self.fp32 is None:
                self.outputs[0].append(reference)

    def _add_scores(self, reference: Arrays, output: Arrays) -> None:
        if self.scores_output is None:
            return
        name = self.scores_output
        ours, theirs = find_class_scores(reference[name]), find_class_scores(output[name])
        if ours is None or theirs is None:
            return
        best, other = int(np.argmax(ours)), int(np.argmax(theirs))
        self.agreements.append(float(best == other))
        given = self.labels if self.labels is not None and self.labels.dtype.kind != "U" else None
        label = None if given is None else given[self.by_output.samples - 1]
        if label is not None and np.ndim(label) == 0 and self.labelled is None:
            label = _find_class_index(label, ours.size)
            self.hits[0].append(float(best == label))
            self.hits[1].append(float(other == label))

    def make_result(
        self,
        metric: str | PythonMetric | None,
        hook: HookMetric | None,
    ) -> dict[str, Any]:
        """Return the evaluation as JSON-ready values.

        Raises:
            SamplesError: The metric does not fit the outputs.
        """
        values: dict[str, Any] = {}
        by_output = self.by_output.compute_values()
        if hook is not None:
            found: _Metric | None = self._measure_hook(hook, values)
        elif self.labelled is not None:
            found = self._measure_labelled(self.labelled, values)
        else:
            found = self._measure_outputs(metric if isinstance(metric, str) else None, by_output)
        if found is None:
            reasons = {name: each for name, each in by_output.items() if isinstance(each, Nothing)}
            return NotMeasured(reason=_explain_untold(reasons)).model_dump()
        scored = len(self.agreements) == self.by_output.samples
        return {
            "metric": found.name,
            "output": found.output,
            "higher_is_better": found.higher_is_better,
            "samples": self.by_output.samples,
            "fp32": found.fp32,
            "value": found.value,
            "drop": found.drop.value,
            "drop_interval": found.drop.interval,
            "agreement": float(np.mean(self.agreements)) if scored else None,
            "values": values,
            **self.by_output.make_result(by_output),
        }

    def _measure_hook(self, hook: HookMetric, values: dict[str, Any]) -> _Metric:
        """Ask the user's metric; several values go into ``values``, by name."""
        if self.fp32 is None:
            self.fp32 = hook(self.outputs[0], "fp32")
        found = hook(self.outputs[1], "the variant")
        if found.keys() != self.fp32.keys():
            raise SamplesError(
                f"the metric {hook.metric.python} returned {', '.join(self.fp32)} for fp32 and"
                f" {', '.join(found)} for the variant",
                hint="return the same names for any outputs",
            )
        name = next(iter(found))
        if name != hook.metric.python:
            values |= {n: {"value": found[n], "fp32": self.fp32[n]} for n in found}
        higher, fp32, value = hook.metric.higher_is_better, self.fp32[name], found[name]
        sign = 1 if higher else -1
        drop = Drop(
            sign * (fp32 - value), self._compute_hook_interval(hook, sign, sign * (fp32 - value))
        )
        return _Metric(name, fp32, value, drop, higher_is_better=higher)

    def _compute_hook_interval(
        self, hook: HookMetric, sign: int, drop: float
    ) -> tuple[float, float] | None:
        """Return the 95 % interval of a drop of the user's metric, by the delete-a-group jackknife.

        None where it is not asked for, there are too few samples, or the function takes no fewer.
        """
        if not self.with_intervals or self.by_output.samples < LEAST_GROUPED:
            return None
        try:
            fp32, found = (
                np.array(hook.measure_groups(outputs, about, GROUPS), np.float64)
                for outputs, about in zip(self.outputs, ("fp32", "the variant"), strict=True)
            )
        except SamplesError as error:
            tell(
                f"{hook.metric.python} has no interval, as it takes no part of the samples: {error}"
            )
            return None
        return compute_jackknife_interval(drop, sign * (fp32 - found))

    def _measure_labelled(self, metric: LabelledMetric, values: dict[str, Any]) -> _Metric:
        """Return the metric of labels; several values go into ``values``, by name."""
        every = metric.compute_values(range(self.by_output.samples))
        name, (fp32, value) = next(iter(every.items()))
        if len(every) > 1:
            values |= {n: {"value": theirs, "fp32": ours} for n, (ours, theirs) in every.items()}
        sign = 1 if metric.higher_is_better else -1
        drop = sign * (fp32 - value)
        parts = self._measure_groups(metric)
        interval = compute_jackknife_interval(drop, sign * (parts[0] - parts[1])) if parts else None
        better = metric.higher_is_better
        return _Metric(name, fp32, value, Drop(drop, interval), higher_is_better=better)

    def _measure_groups(self, metric: LabelledMetric) -> tuple[Array, Array] | None:
        """Return the value that decides, fp32's and the variant's, without each group of samples.

        None where there are too few samples.
        """
        if self.by_output.samples < LEAST_GROUPED:
            return None
        found = [
            next(
                iter(
                    metric.compute_values(
                        [n for n in range(self.by_output.samples) if n % GROUPS != k]
                    ).values()
                )
            )
            for k in range(GROUPS)
        ]
        ours, theirs = np.array(found).T
        return ours, theirs

    def _measure_outputs(self, metric: str | None, by_output: ByOutput) -> _Metric | None:
        if metric == "top1" and not self._has_labels:
            raise SamplesError(
                "the metric top1 needs one vector of class scores per sample as first output,"
                " and one class index per sample as label",
                hint="use metric: {python: 'module:function', higher_is_better: true}",
            )
        if self._is_top1(metric):
            fp32, value = (float(np.mean(hits)) for hits in self.hits)
            return _Metric("top1", fp32, value, compute_paired_drop(*self.hits))
        worst = self.by_output.find_worst(by_output)
        if worst is None:
            return None
        output, name, found = worst
        value = float(np.mean(found.values))
        drop = compute_paired_drop(found.own or [1.0] * len(found.values), found.values)
        low, high = drop.interval or (drop.value, drop.value)
        # Nothing is nearer to fp32 than itself.
        interval = (max(0.0, low), high) if drop.interval else None
        return _Metric(name, 1.0, value, Drop(drop.value, interval), output)

    def compute_interval(
        self, metric: str | PythonMetric | None
    ) -> tuple[float, float] | NotMeasured:
        """Return the 95 % interval of the variant's metric, as far as it is a mean over samples."""
        if isinstance(metric, PythonMetric):
            return NotMeasured(reason=f"{metric.python} has no value for each sample")
        if self.labelled is not None:
            return self._compute_labelled_interval(self.labelled)
        if self._is_top1(metric):
            values = self.hits[1]
        elif worst := self.by_output.find_worst(self.by_output.compute_values()):
            values = list(worst[2].values)
        else:
            return NotMeasured(reason="the samples show nothing")
        # Hits and agreement are 1 at most.
        found = compute_mean_interval(values)
        return (found[0], min(1.0, found[1])) if found else NotMeasured(reason="it is one sample")

    def _compute_labelled_interval(
        self, metric: LabelledMetric
    ) -> tuple[float, float] | NotMeasured:
        parts = self._measure_groups(metric)
        if parts is None:
            return NotMeasured(reason=f"it takes {LEAST_GROUPED} samples")
        value = next(iter(metric.compute_values(range(self.by_output.samples)).values()))[1]
        low, high = compute_jackknife_interval(value, parts[1])
        if metric.higher_is_better:
            return low, min(high, metric.best)
        return max(low, metric.best), high

    def _is_top1(self, metric: str | None) -> bool:
        return metric == "top1" or (metric is None and self._has_labels)

    @property
    def _has_labels(self) -> bool:
        return len(self.hits[0]) == self.by_output.samples


def compute_jackknife_interval(value: float, without: Array) -> tuple[float, float]:
    """Return the 95 % interval of a value, by the delete-a-group jackknife and Student's t.

    Args:
        value: Of all samples.
        without: The value without each group of them: ``(GROUPS,)``.
    """
    variance = (GROUPS - 1) / GROUPS * float(np.sum((without - without.mean()) ** 2))
    half = t_quantile(0.975, GROUPS - 1) * math.sqrt(variance)
    return value - half, value + half


class _Metric(NamedTuple):
    """A metric's value, which output it is of if it is of one, and how much worse than fp32's."""

    name: str
    fp32: float
    value: float
    drop: Drop
    output: str = ""
    higher_is_better: bool = True


def _explain_untold(reasons: Mapping[str, Nothing]) -> str:
    told = "; ".join(f"{name!r}: {each.reason}" for name, each in reasons.items())
    return f"the evaluation samples show nothing about a variant: {told}"


def _find_class_index(label: Any, classes: int) -> int:  # noqa: ANN401  (a numpy scalar)
    index = int(label)
    if index != label or not 0 <= index < classes:
        raise SamplesError(
            f"the label {label} is not one of the model's {classes} classes, 0 to {classes - 1}",
            hint="labels are class indices: subtract 1 from each where yours begin at 1; for"
            " anything else name a metric of your own:"
            " metric: {python: 'module:function', higher_is_better: true}",
        )
    return index

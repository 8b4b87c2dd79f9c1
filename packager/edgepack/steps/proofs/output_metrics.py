"""How much of fp32's answers each output keeps, over samples, by the metric of its kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from edgepack.base.arrays import Array
from edgepack.base.schema import NotMeasured
from edgepack.errors import SamplesError
from edgepack.metrics.accuracy import (
    EQUAL_SQNR_DB,
    OutputCloseness,
    OutputR2,
    compute_mean_interval,
)
from edgepack.metrics.base import Found, Nothing, OutputMetric
from edgepack.metrics.choosing import choose_metric
from edgepack.metrics.classes import Agreement
from edgepack.metrics.numbers import R2Metric
from edgepack.model.running import Arrays
from edgepack.ondevice.runtime.edgepack_layouts import join_outputs
from edgepack.project.outputs import OutputDescription, list_read_too

ByOutput = Mapping[str, Found | Nothing]


@dataclass
class OutputMetrics:
    """Collects what each output's metric needs, sample by sample."""

    described: Mapping[str, OutputDescription]
    """By output."""
    scores_output: str | None
    """The output that may hold class scores."""
    metrics: dict[str, OutputMetric] = field(default_factory=dict)
    """By output: that of its kind."""
    numbers: dict[str, R2Metric] = field(default_factory=dict)
    """By output of floats: R², which all of them have."""
    closeness: dict[str, OutputCloseness] = field(default_factory=dict)
    samples: int = 0
    reshaped: Counter[str] = field(default_factory=Counter)
    """By output: in how many samples its shape is not fp32's, as where the data decide how many
    values there are. Those without a description are not judged unless no others are left."""

    def add(self, reference: Arrays, output: Arrays, feed: Arrays) -> None:
        """Add one sample: what fp32 and the variant give for a feed.

        Raises:
            SamplesError: An output has not the shape that its description wants.
        """
        read_too = {name for each in self.described.values() for name in list_read_too(each)}
        for name, array in reference.items():
            if array.dtype.kind == "f":
                self.closeness.setdefault(name, OutputCloseness()).add(array, output[name])
                self.numbers.setdefault(name, R2Metric()).add(array, output[name], feed)
            if array.shape != output[name].shape:
                self.reshaped[name] += 1
            if name not in read_too:
                self._add_to_metric(name, reference, output, feed)
        self.samples += 1

    def _add_to_metric(self, name: str, reference: Arrays, output: Arrays, feed: Arrays) -> None:
        read = [name, *list_read_too(self.described.get(name))]
        try:
            ours, theirs = (join_outputs([each[n] for n in read]) for each in (reference, output))
            self._choose_metric(name, ours).add(ours, theirs, feed)
        except ValueError as error:
            raise SamplesError(
                f"the output {name!r} of fp32 is not as it is described: {error}",
                hint="fix its description under 'outputs' in edgepack.yaml",
            ) from error

    def _choose_metric(self, name: str, reference: Array) -> OutputMetric:
        if name not in self.metrics:
            given, may_be_scores = self.described.get(name), name == self.scores_output
            self.metrics[name] = choose_metric(given, reference, may_be_scores=may_be_scores)
        return self.metrics[name]

    @property
    def r2(self) -> dict[str, OutputR2]:
        """By output of floats."""
        return {name: each.r2 for name, each in self.numbers.items()}

    @property
    def left_out(self) -> str:
        """Say which outputs are not judged, or nothing if all are."""
        judged = {*self._list_judged(self.metrics), *self._list_judged(self.closeness)}
        return "".join(
            f"; {name!r} has another shape than fp32's in {self.reshaped[name]} of"
            f" {self.samples} samples and is not judged"
            for name in self.reshaped
            if name not in judged
        )

    def _list_judged(self, outputs: Iterable[str]) -> list[str]:
        """Return those outputs that are described or keep their shape, or all if none is."""
        names = list(outputs)
        kept = [n for n in names if n not in self.reshaped or _is_described(self.described.get(n))]
        return kept or names

    def compute_values(self) -> dict[str, Found | Nothing]:
        """Return what the metric of its kind finds about each judged output."""
        return {
            name: self._find_metric(name).compute_value()
            for name in self._list_judged(self.metrics)
        }

    def make_result(self, by_output: ByOutput) -> dict[str, Any]:
        """Return what the evaluation says of outputs, as JSON-ready values."""
        floats = self._list_judged(self.closeness)
        worst = min(floats, key=lambda output: self.closeness[output].sqnr_db, default="")
        closeness = self.closeness.get(worst, OutputCloseness())
        r2 = {name: told for name, each in self.r2.items() if (told := each.compute_r2())}
        return {
            "worst": {
                "output": worst,
                "cosine": closeness.cosine,
                "sqnr_db": max(closeness.sqnr_db, -EQUAL_SQNR_DB),
            },
            "outputs": {
                name: _make_found(self._find_metric(name), each) for name, each in by_output.items()
            },
            "r2": {name: told.bound_values() for name, told in r2.items()},
            "says_nothing": self._explain_no_better(by_output),
            "says_little": self._explain_large_loss(by_output),
        }

    def find_worst(self, by_output: ByOutput) -> tuple[str, str, Found] | None:
        """Return the output that is kept worst, and by which metric: of those described, if any.

        Else the class scores decide, where there are any. Where the answers are the same for all
        samples, the numbers behind them stand in.
        """
        told: dict[str, tuple[str, Found]] = {}
        for name, kind_found in by_output.items():
            metric, found = self._find_metric(name), kind_found
            if isinstance(kind_found, Nothing) and name in self.numbers:
                metric = self.numbers[name]
                found = metric.compute_value()
            if isinstance(found, Found):
                told[name] = metric.name, found
        first = [name for name in told if _is_described(self.described.get(name))]
        first = first or [name for name in told if told[name][0] == Agreement.name]
        worst = min(first or told, key=lambda n: float(np.mean(told[n][1].values)), default=None)
        return None if worst is None else (worst, *told[worst])

    def _find_metric(self, name: str) -> OutputMetric:
        """Return the metric of an output's kind.

        Numbers of several units are no class scores, though nobody described them.
        """
        metric, numbers = self.metrics[name], self.numbers.get(name)
        if _is_described(self.described.get(name)) or not isinstance(metric, Agreement):
            return metric
        if metric.are_shares or numbers is None or numbers.r2.is_of_one_quantity:
            return metric
        return numbers

    def _explain_no_better(self, by_output: ByOutput) -> str:
        """Return why the variant is no better than a constant, or nothing."""
        for name, found in by_output.items():
            told = found
            if isinstance(found, Nothing) and name in self.numbers:
                # Where answers are the same for all samples, the numbers behind them have to tell.
                told = self.numbers[name].compute_value()
            if isinstance(told, Found) and told.no_better:
                return f"of {name!r}, {told.no_better}"
        return ""

    def _explain_large_loss(self, by_output: ByOutput) -> str:
        """Return which output keeps less than half of what fp32 says, or nothing."""
        first = [name for name in by_output if _is_described(self.described.get(name))]
        for name in first or by_output:
            found, metric = by_output[name], self._find_metric(name)
            if isinstance(found, Found) and np.mean(found.values) < metric.least:
                return f"{metric.name} of {name!r} is {np.mean(found.values):.3f}"
        return ""


def _is_described(given: OutputDescription | None) -> bool:
    return given is not None and given.kind != "raw"


def _make_found(metric: OutputMetric, found: Found | Nothing) -> dict[str, Any]:
    """Return what a metric found as the manifest has it."""
    if isinstance(found, Nothing):
        return NotMeasured(reason=found.reason).model_dump()
    interval = compute_mean_interval(found.values)
    return {
        "metric": metric.name,
        "value": float(np.mean(found.values)),
        "interval": interval and (interval[0], min(1.0, interval[1])),
        "others": dict(found.others),
    }

"""Judging a variant against fp32 on the evaluation samples, on this machine's CPU."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from edgepack.accuracy import Array, Drop, OutputCloseness, class_scores, paired_drop
from edgepack.bundle.manifest import Accuracy, Closeness
from edgepack.data import SampleSet
from edgepack.data.hook import save_arrays
from edgepack.data.sources import run_hook
from edgepack.errors import SamplesError, StepError
from edgepack.model.running import Arrays, make_session, run_session
from edgepack.project import PythonMetric
from edgepack.steps.base import MODEL, Inputs, Notes

EVALUATION = "evaluation.json"


@dataclass(frozen=True)
class Evaluation:
    """The metric of fp32 and of the variant, and how close their outputs are.

    Inputs: ``reference``, the prepared model; ``model``, the variant; ``samples``; ``project``,
    the project's folder, where the metric is a hook.
    """

    name: ClassVar[str] = "evaluation"
    libraries: ClassVar[tuple[str, ...]] = ("numpy", "onnxruntime")
    metric: str | PythonMetric | None
    scores_output: str | None
    """The output that may hold class scores."""
    interpreter: str | None
    processor: str

    @property
    def cacheable(self) -> bool:
        """A user's own metric may change without anything here knowing."""
        return not isinstance(self.metric, PythonMetric)

    def check(self, inputs: Inputs) -> None:
        """Make sure that the metric has the labels it needs.

        Raises:
            SamplesError: ``top1`` without labels.
        """
        if self.metric == "top1" and SampleSet.read(inputs["samples"]).labels is None:
            raise SamplesError(
                "the metric top1 needs labels and the evaluation samples have none",
                hint="give 'labels' under samples.evaluation, or use metric: agreement",
            )

    def run(self, inputs: Inputs, out: Path) -> Notes:
        """Write ``evaluation.json``."""
        samples = SampleSet.read(inputs["samples"])
        reference = make_session(inputs["reference"] / MODEL)
        variant = make_session(inputs["model"] / MODEL)
        hooked = isinstance(self.metric, PythonMetric)
        judge = Judge(samples.labels, self.scores_output, keep_outputs=hooked)
        for feed in samples:
            judge.add(run_session(reference, feed), run_session(variant, feed))
        result = judge.result(self.metric, self._call_hook(inputs))
        (out / EVALUATION).write_text(json.dumps(result, sort_keys=True), encoding="utf-8")
        return Notes(
            f"{result['metric']} {result['fp32']:.4f} to {result['value']:.4f}"
            f" on {result['samples']} samples, worst output {result['worst']['sqnr_db']:.1f} dB",
            result,
        )

    def verify(self, inputs: Inputs, out: Path) -> None:
        """Prove that the result holds numbers.

        Raises:
            StepError: The metric is NaN.
        """
        del inputs
        result = json.loads((out / EVALUATION).read_text(encoding="utf-8"))
        if not np.isfinite([result["fp32"], result["value"]]).all():
            raise StepError(
                f"the metric {result['metric']} is not a number: fp32 {result['fp32']},"
                f" variant {result['value']}",
                hint="check the metric's function and the labels",
            )

    def _call_hook(self, inputs: Inputs) -> Callable[[list[Arrays], Array | None], float]:
        def call(outputs: list[Arrays], labels: Array | None) -> float:
            if not isinstance(self.metric, PythonMetric):
                raise TypeError("only a Python metric has a hook")
            return hook_metric(
                self.metric.python, outputs, labels, inputs["project"], self.interpreter
            )

        return call


def hook_metric(
    name: str,
    outputs: list[Arrays],
    labels: Array | None,
    project: Path,
    interpreter: str | None,
) -> float:
    """Return what the user's metric says of all outputs of the set.

    Raises:
        SamplesError: The hook fails.
    """
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for n, arrays in enumerate(outputs):
            save_arrays(folder / f"{n}.npz", arrays)
        if labels is not None:
            np.save(folder / "labels.npy", labels, allow_pickle=False)
        run_hook(["metric", name, scratch], project, interpreter)
        return float(json.loads((folder / "value.json").read_text(encoding="utf-8")))


@dataclass
class Judge:
    """Collects what the metrics need, sample by sample."""

    labels: Array | None
    scores_output: str | None
    """The output that may hold class scores."""
    keep_outputs: bool
    closeness: dict[str, OutputCloseness] = field(default_factory=dict)
    hits: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))
    """Top-1 hits of fp32 and of the variant."""
    agreements: list[float] = field(default_factory=list)
    cosines: list[float] = field(default_factory=list)
    outputs: tuple[list[Arrays], list[Arrays]] = field(default_factory=lambda: ([], []))

    def add(self, reference: Arrays, output: Arrays) -> None:
        """Add the outputs of one sample."""
        for name, array in reference.items():
            if array.dtype.kind == "f":
                self.closeness.setdefault(name, OutputCloseness()).add(array, output[name])
        self._add_scores(reference, output)
        self.cosines.append(_worst_cosine(reference, output))
        if self.keep_outputs:
            self.outputs[0].append(reference)
            self.outputs[1].append(output)

    def _add_scores(self, reference: Arrays, output: Arrays) -> None:
        if self.scores_output is None:
            return
        name = self.scores_output
        ours, theirs = class_scores(reference[name]), class_scores(output[name])
        if ours is None or theirs is None:
            return
        index = len(self.agreements)
        best, other = int(np.argmax(ours)), int(np.argmax(theirs))
        self.agreements.append(float(best == other))
        if self.labels is not None and np.ndim(self.labels[index]) == 0:
            label = _class_index(self.labels[index], ours.size)
            self.hits[0].append(float(best == label))
            self.hits[1].append(float(other == label))

    def result(
        self,
        metric: str | PythonMetric | None,
        call_hook: Callable[[list[Arrays], Array | None], float],
    ) -> dict[str, Any]:
        """Return the evaluation as JSON-ready values.

        Raises:
            SamplesError: The metric does not fit the outputs.
        """
        name, higher, fp32, value, drop = self._metric(metric, call_hook)
        worst = min(self.closeness, key=lambda output: self.closeness[output].sqnr_db, default="")
        closeness = self.closeness.get(worst, OutputCloseness())
        scored = len(self.agreements) == len(self.cosines)
        return {
            "metric": name,
            "higher_is_better": higher,
            "samples": len(self.cosines),
            "fp32": fp32,
            "value": value,
            "drop": drop.value,
            "drop_interval": drop.interval,
            "agreement": float(np.mean(self.agreements)) if scored else None,
            "worst": {
                "output": worst,
                "cosine": closeness.cosine,
                "sqnr_db": max(closeness.sqnr_db, -EXTREME_DB),
            },
        }

    def _metric(
        self,
        metric: str | PythonMetric | None,
        call_hook: Callable[[list[Arrays], Array | None], float],
    ) -> tuple[str, bool, float, float, Drop]:
        if isinstance(metric, PythonMetric):
            fp32, value = (call_hook(outputs, self.labels) for outputs in self.outputs)
            sign = 1 if metric.higher_is_better else -1
            drop = Drop(sign * (fp32 - value), None)
            return metric.python, metric.higher_is_better, fp32, value, drop
        complete = len(self.hits[0]) == len(self.cosines)
        if metric == "top1" and not complete:
            raise SamplesError(
                "the metric top1 needs one vector of class scores per sample as first output,"
                " and one class index per sample as label",
                hint="use metric: {python: 'module:function', higher_is_better: true}",
            )
        if metric == "top1" or (metric is None and complete):
            fp32, value = (float(np.mean(hits)) for hits in self.hits)
            return "top1", True, fp32, value, paired_drop(*self.hits)
        scored = len(self.agreements) == len(self.cosines)
        same = self.agreements if scored else self.cosines
        name = "agreement" if scored else "agreement (cosine)"
        drop = paired_drop([1.0] * len(same), same)
        return name, True, 1.0, float(np.mean(same)), drop


def _class_index(label: Any, classes: int) -> int:  # noqa: ANN401  (a numpy scalar)
    index = int(label)
    if index != label or not 0 <= index < classes:
        raise SamplesError(
            f"the label {label} is not one of the model's {classes} classes, 0 to {classes - 1}",
            hint="labels are class indices; for anything else name a metric of your own:"
            " metric: {python: 'module:function', higher_is_better: true}",
        )
    return index


EXTREME_DB = 200.0
"""Stands for no signal at all in JSON, which has no infinity."""


def _worst_cosine(reference: Arrays, output: Arrays) -> float:
    """Return the smallest cosine over the outputs of one sample; of integers, the equal share."""
    worst = 1.0
    for name, array in reference.items():
        if array.dtype.kind == "f":
            one = OutputCloseness()
            one.add(array, output[name])
            worst = min(worst, one.cosine)
        elif array.size:
            worst = min(worst, float(np.mean(array == output[name])))
    return worst


def as_accuracy(result: dict[str, Any]) -> Accuracy:
    """Return an evaluation as the manifest holds it."""
    interval = result["drop_interval"]
    return Accuracy.model_validate(
        {
            **result,
            "drop_interval": tuple(interval) if interval else None,
            "worst": Closeness.model_validate(result["worst"]),
        }
    )

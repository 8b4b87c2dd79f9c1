"""Judging a variant against fp32 on the evaluation samples, on this machine's CPU."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from edgepack.accuracy import (
    EQUAL_SQNR_DB,
    R2,
    Array,
    Drop,
    OutputCloseness,
    OutputR2,
    array_cosine,
    class_scores,
    mean_interval,
    paired_drop,
)
from edgepack.bundle.manifest import Accuracy, Closeness, NotMeasured
from edgepack.data import SampleSet
from edgepack.data.hook import save_arrays
from edgepack.data.sources import run_hook
from edgepack.errors import SamplesError, StepError
from edgepack.model.running import Arrays, make_session, run_session
from edgepack.project import PythonMetric
from edgepack.steps.base import MODEL, Inputs, Notes
from edgepack.worker import report

EVALUATION = "evaluation.json"
NO_FP32 = "the model came quantized or float16, so there is no fp32 model to compare it with"
_AGREEMENT = "agreement"
_COSINE = "agreement (cosine)"


@dataclass(frozen=True)
class Evaluation:
    """The metric of fp32 and of the variant, and how close their outputs are.

    Inputs: ``reference``, the prepared fp32 model, where there is one; ``model``, the variant;
    ``samples``; ``project``, the project's folder, where the metric is a hook. Without a reference
    nothing is compared: a metric of labels or of the user's has its value, agreement has none.
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
        variant = make_session(inputs["model"] / MODEL)
        reference = make_session(inputs["reference"] / MODEL) if "reference" in inputs else None
        hooked = isinstance(self.metric, PythonMetric)
        judge = Judge(samples.labels, self.scores_output, keep_outputs=hooked)
        for done, feed in enumerate(samples, 1):
            output = run_session(variant, feed)
            judge.add(run_session(reference, feed) if reference else output, output)
            report(done, len(samples))
        hook = hook_of(self.metric, samples, inputs, self.interpreter)
        result = judge.result(self.metric, hook)
        if reference is None:
            result = uncompared(result)
        (out / EVALUATION).write_text(json.dumps(result, sort_keys=True), encoding="utf-8")
        return Notes(described(as_accuracy(result)) + judge.left_out, result)

    def verify(self, inputs: Inputs, out: Path) -> None:
        """Prove that the result holds numbers.

        Raises:
            StepError: The metric is NaN.
        """
        del inputs
        result = json.loads((out / EVALUATION).read_text(encoding="utf-8"))
        found = result.get("fp32"), result.get("value")
        values = result.get("values", {}).values()
        found = (*found, *(each[key] for each in values for key in ("fp32", "value")))
        numbers = [number for number in found if isinstance(number, float)]
        if not np.isfinite(numbers).all():
            raise StepError(
                f"the metric {result['metric']} is not a number: fp32 {result['fp32']},"
                f" variant {result['value']}{_told(result)}",
                hint="check the metric's function and the labels",
            )


@dataclass(frozen=True)
class HookMetric:
    """A metric of the user's own, for one set of samples."""

    metric: PythonMetric
    samples: SampleSet
    project: Path
    interpreter: str | None

    def __call__(self, outputs: list[Arrays], about: str) -> dict[str, float]:
        """Return what the function says of all outputs of the set: the value that decides first.

        A single number has the function's name.

        Args:
            outputs: Of each sample.
            about: Whose outputs they are, for what the function prints.

        Raises:
            SamplesError: The hook fails, or does not return the value that is to decide.
        """
        name, labels = self.metric.python, self.samples.labels
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            for n, arrays in enumerate(outputs):
                save_arrays(folder / f"{n}.npz", arrays)
            (folder / "names.json").write_text(json.dumps(self.samples.names), encoding="utf-8")
            if labels is not None:
                np.save(folder / "labels.npy", labels, allow_pickle=False)
            run_hook(["metric", name, scratch], self.project, self.interpreter, about)
            found = json.loads((folder / "value.json").read_text(encoding="utf-8"))
        return self._decisive_first(found if isinstance(found, dict) else {name: found})

    def _decisive_first(self, found: dict[str, float]) -> dict[str, float]:
        first = next(iter(found)) if self.metric.value is None else self.metric.value
        if first not in found:
            raise SamplesError(
                f"the metric {self.metric.python} returned {', '.join(found)}, not {first!r}",
                hint="'value' under 'metric' in edgepack.yaml names one of the values that the"
                " function returns, or leave it out: then the first decides",
            )
        return {first: found[first], **found}


def hook_of(
    metric: str | PythonMetric | None,
    samples: SampleSet,
    inputs: Inputs,
    interpreter: str | None,
) -> HookMetric | None:
    """Return what calls the user's metric, if it is one."""
    if not isinstance(metric, PythonMetric):
        return None
    return HookMetric(metric, samples, inputs["project"], interpreter)


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
    classes: Counter[int] = field(default_factory=Counter)
    """fp32's best class, by how many samples have it."""
    r2: dict[str, OutputR2] = field(default_factory=dict)
    """By output of floats."""
    cosines: list[dict[str, float]] = field(default_factory=list)
    """By sample, each output's cosine with fp32's; of integers, the share that is equal."""
    reshaped: Counter[str] = field(default_factory=Counter)
    """By output: in how many samples its shape is not fp32's, as where the data decide how many
    values there are. Such outputs are not judged unless no others are left."""
    outputs: tuple[list[Arrays], list[Arrays]] = field(default_factory=lambda: ([], []))
    fp32: dict[str, float] | None = None
    """What the user's metric says of fp32, once it was asked."""

    def add(self, reference: Arrays, output: Arrays) -> None:
        """Add the outputs of one sample."""
        for name, array in reference.items():
            if array.dtype.kind == "f":
                self.closeness.setdefault(name, OutputCloseness()).add(array, output[name])
                self.r2.setdefault(name, OutputR2()).add(array, output[name])
            if array.shape != output[name].shape:
                self.reshaped[name] += 1
        self._add_scores(reference, output)
        self.cosines.append({name: _cosine(reference[name], output[name]) for name in reference})
        if self.keep_outputs:
            self.outputs[1].append(output)
            if self.fp32 is None:
                self.outputs[0].append(reference)

    @property
    def left_out(self) -> str:
        """Say which outputs are not judged, or nothing if all are."""
        judged = {*self._judged(self.cosines[0]), *self._judged(self.closeness)}
        return "".join(
            f"; {name!r} has another shape than fp32's in {self.reshaped[name]} of"
            f" {len(self.cosines)} samples and is not judged"
            for name in self.reshaped
            if name not in judged
        )

    def _judged(self, outputs: Iterable[str]) -> list[str]:
        """Return those outputs that keep their shape, or all if none does."""
        names = list(outputs)
        return [name for name in names if name not in self.reshaped] or names

    @property
    def _worst_cosines(self) -> list[float]:
        """By sample: that of the worst output."""
        judged = self._judged(self.cosines[0])
        return [min((found[name] for name in judged), default=1.0) for found in self.cosines]

    def _add_scores(self, reference: Arrays, output: Arrays) -> None:
        if self.scores_output is None:
            return
        name = self.scores_output
        ours, theirs = class_scores(reference[name]), class_scores(output[name])
        if ours is None or theirs is None:
            return
        index = len(self.cosines)
        best, other = int(np.argmax(ours)), int(np.argmax(theirs))
        self.agreements.append(float(best == other))
        self.classes[best] += 1
        if self.labels is not None and np.ndim(self.labels[index]) == 0:
            label = _class_index(self.labels[index], ours.size)
            self.hits[0].append(float(best == label))
            self.hits[1].append(float(other == label))

    def result(
        self,
        metric: str | PythonMetric | None,
        hook: HookMetric | None,
    ) -> dict[str, Any]:
        """Return the evaluation as JSON-ready values.

        Raises:
            SamplesError: The metric does not fit the outputs.
        """
        values: dict[str, Any] = {}
        if hook is None:
            named = metric if isinstance(metric, str) else None
            name, higher, fp32, value, drop = self._metric(named)
        else:
            name, higher, fp32, value, drop = self._of_hook(hook, values)
        floats = self._judged(self.closeness)
        worst = min(floats, key=lambda output: self.closeness[output].sqnr_db, default="")
        closeness = self.closeness.get(worst, OutputCloseness())
        scored = len(self.agreements) == len(self.cosines)
        r2 = {name: found for name, each in self.r2.items() if (found := each.found())}
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
                "sqnr_db": max(closeness.sqnr_db, -EQUAL_SQNR_DB),
            },
            "r2": {name: found.bounded() for name, found in r2.items()},
            "says_nothing": self._says_nothing(r2),
            "values": values,
        }

    def _says_nothing(self, r2: Mapping[str, R2]) -> str:
        """Return why the variant is no better than a constant, or nothing."""
        count = len(self.cosines)
        # Where fp32 gives one class for all samples, classes tell nothing, and scores have to.
        by_class = len(self.agreements) == count and len(self.classes) > 1
        if by_class:
            same, (_, often) = int(sum(self.agreements)), self.classes.most_common(1)[0]
            if same <= often:
                return (
                    f"it has fp32's best class for {same} of {count} samples, and one class for all"
                    f" of them would have it for {often}"
                )
        for name, found in r2.items():
            if (by_class and name == self.scores_output) or found.beats_constants:
                continue
            return (
                f"the R² of {name!r} is {found.value:.3f} (95 % interval {found.low:.3f} to"
                f" {found.high:.3f}) over {count} samples, and a constant's is 0"
            )
        return ""

    def _of_hook(
        self, hook: HookMetric, values: dict[str, Any]
    ) -> tuple[str, bool, float, float, Drop]:
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
        drop = Drop((1 if higher else -1) * (fp32 - value), None)
        return name, higher, fp32, value, drop

    def _metric(self, metric: str | None) -> tuple[str, bool, float, float, Drop]:
        if metric == "top1" and not self._labelled:
            raise SamplesError(
                "the metric top1 needs one vector of class scores per sample as first output,"
                " and one class index per sample as label",
                hint="use metric: {python: 'module:function', higher_is_better: true}",
            )
        values = self._values(metric)
        value = float(np.mean(values))
        if values is self.hits[1]:
            return "top1", True, float(np.mean(self.hits[0])), value, paired_drop(*self.hits)
        name = _AGREEMENT if values is self.agreements else _COSINE
        drop = paired_drop([1.0] * len(values), values)
        low, high = drop.interval or (drop.value, drop.value)
        # Nothing is nearer to fp32 than itself.
        interval = (max(0.0, low), high) if drop.interval else None
        return name, True, 1.0, value, Drop(drop.value, interval)

    def interval(self, metric: str | PythonMetric | None) -> tuple[float, float] | NotMeasured:
        """Return the 95 % interval of the variant's metric, as far as it is a mean over samples."""
        if isinstance(metric, PythonMetric):
            return NotMeasured(reason=f"{metric.python} has no value for each sample")
        found = mean_interval(self._values(metric))
        # Hits, agreement and cosines are 1 at most.
        return (found[0], min(1.0, found[1])) if found else NotMeasured(reason="it is one sample")

    def _values(self, metric: str | None) -> list[float]:
        """Return the variant's value of each sample, of which the metric is the mean."""
        if metric == "top1" or (metric is None and self._labelled):
            return self.hits[1]
        scored = len(self.agreements) == len(self.cosines)
        return self.agreements if scored else self._worst_cosines

    @property
    def _labelled(self) -> bool:
        return len(self.hits[0]) == len(self.cosines)


def _told(result: dict[str, Any]) -> str:
    """Return the other values of a result, where the metric has several."""
    values = result.get("values", {}).items()
    return "".join(f"; {n}: fp32 {each['fp32']}, variant {each['value']}" for n, each in values)


def _class_index(label: Any, classes: int) -> int:  # noqa: ANN401  (a numpy scalar)
    index = int(label)
    if index != label or not 0 <= index < classes:
        raise SamplesError(
            f"the label {label} is not one of the model's {classes} classes, 0 to {classes - 1}",
            hint="labels are class indices: subtract 1 from each where yours begin at 1; for"
            " anything else name a metric of your own:"
            " metric: {python: 'module:function', higher_is_better: true}",
        )
    return index


def _cosine(reference: Array, output: Array) -> float:
    """Return the cosine of one output; of integers, the equal share; 0 if shapes differ."""
    if reference.shape != output.shape:
        return 0.0
    if reference.dtype.kind == "f":
        return array_cosine(reference, output)
    return float(np.mean(reference == output)) if reference.size else 1.0


def uncompared(result: dict[str, Any]) -> dict[str, Any]:
    """Return what is left of an evaluation whose reference was the model itself.

    That is the value of a metric of labels or of the user's. How near a model is to itself says
    nothing: drop, agreement and closeness go, and if the metric is agreement, everything does.
    """
    missing = NotMeasured(reason=NO_FP32).model_dump()
    if result["metric"] in {_AGREEMENT, _COSINE}:
        return missing
    compared = dict.fromkeys(("drop", "drop_interval", "agreement", "worst"))
    compared |= {"r2": {}, "says_nothing": ""}
    values = {n: {**each, "fp32": None} for n, each in result.get("values", {}).items()}
    return {**result, **compared, "fp32": missing, "values": values}


def as_accuracy(result: dict[str, Any]) -> Accuracy | NotMeasured:
    """Return an evaluation as the manifest holds it."""
    if "metric" not in result:
        return NotMeasured.model_validate(result)
    interval, worst = result["drop_interval"], result["worst"]
    return Accuracy.model_validate(
        {
            **result,
            "drop_interval": tuple(interval) if interval else None,
            "worst": Closeness.model_validate(worst) if worst else None,
        }
    )


def described(accuracy: Accuracy | NotMeasured) -> str:
    """Return an evaluation as one line."""
    if isinstance(accuracy, NotMeasured):
        return f"not measured: {accuracy.reason}"
    found = f"{accuracy.metric} {accuracy.value:.4f}"
    if isinstance(accuracy.fp32, NotMeasured) or accuracy.worst is None:
        return f"{found} on {accuracy.samples} samples"
    return (
        f"{accuracy.metric} {accuracy.fp32:.4f} to {accuracy.value:.4f}"
        f" on {accuracy.samples} samples, worst output {accuracy.worst.sqnr_db:.1f} dB"
    )

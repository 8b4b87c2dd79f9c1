"""Judging a variant against fp32 on the evaluation samples, on this machine's CPU."""

from __future__ import annotations

import json
import math
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from edgepack.base.arrays import Array
from edgepack.base.schema import NotMeasured
from edgepack.base.statistics import t_quantile
from edgepack.base.worker import report, tell
from edgepack.bundle.manifest import Accuracy, Drift
from edgepack.errors import SamplesError, StepError
from edgepack.metrics.accuracy import (
    EQUAL_SQNR_DB,
    Drop,
    OutputCloseness,
    OutputR2,
    class_scores,
    mean_interval,
    paired_drop,
)
from edgepack.metrics.base import Found, Nothing, OutputMetric
from edgepack.metrics.choosing import metric_for
from edgepack.metrics.classes import Agreement
from edgepack.metrics.labelled import LabelledMetric, labelled_metric
from edgepack.metrics.numbers import R2Metric
from edgepack.model.files import MODEL, model_file
from edgepack.model.running import Arrays, make_session
from edgepack.project.project import OutputDescription, PythonMetric
from edgepack.samples.hook import save_arrays
from edgepack.samples.sample_set import SampleSet
from edgepack.samples.sources import run_hook
from edgepack.steps.base import Inputs, Notes
from edgepack.steps.streams import StatePairs, answers, drift, run_streams

EVALUATION = "evaluation.json"
GROUPS = 10
"""Of samples, which are left out in turn for the interval of what is no mean over samples."""
LEAST_GROUPED = 2 * GROUPS
"""Samples."""
NO_FP32 = "the model came quantized or float16, so there is no fp32 model to compare it with"


@dataclass(frozen=True)
class Evaluation:
    """The metric of fp32 and of the variant, and how close their outputs are.

    Inputs: ``reference``, the prepared fp32 model, where there is one; ``model``, the variant, as
    the file that is shipped unless that is one of several; ``samples``; ``project``, the project's
    folder, where the metric is a hook. Without a reference nothing is compared: a metric of labels
    or of the user's has its value, agreement has none.
    """

    name: ClassVar[str] = "evaluation"
    libraries: ClassVar[tuple[str, ...]] = ("numpy", "onnxruntime")
    metric: str | PythonMetric | None
    scores_output: str | None
    """The output that may hold class scores."""
    described: tuple[tuple[str, OutputDescription], ...]
    """What the project says of outputs."""
    interpreter: str | None
    processor: str
    config: tuple[tuple[str, str], ...] = ()
    """Session config entries of the variant."""
    state: StatePairs = ()
    """Each model is fed its own. Outputs of the state are not judged."""

    @property
    def cacheable(self) -> bool:
        """A user's own metric may change without anything here knowing."""
        return not isinstance(self.metric, PythonMetric)

    def check(self, inputs: Inputs) -> None:
        """Make sure that the metric has the labels it needs.

        Raises:
            SamplesError: There are none, or they are of another kind.
        """
        samples = SampleSet.read(inputs["samples"])
        labelled_metric(self.metric, samples, dict(self.described))
        if self.metric == "top1" and samples.labels is None:
            raise SamplesError(
                "the metric top1 needs labels and the evaluation samples have none",
                hint="give 'labels' under samples.evaluation, or use metric: agreement",
            )

    def run(self, inputs: Inputs, out: Path) -> Notes:
        """Write ``evaluation.json``."""
        samples = SampleSet.read(inputs["samples"])
        variant = make_session(model_file(inputs["model"]), config=dict(self.config))
        reference = make_session(inputs["reference"] / MODEL) if "reference" in inputs else None
        hooked = isinstance(self.metric, PythonMetric)
        meant = dict(self.described)
        judge = Judge(
            samples.labels,
            self.scores_output,
            meant,
            keep_outputs=hooked,
            with_intervals=True,
            labelled=labelled_metric(self.metric, samples, meant),
        )
        runs = run_streams(variant, samples, self.state)
        expected = run_streams(reference, samples, self.state) if reference else None
        for done, (feed, output) in enumerate(runs, 1):
            own = answers(output, self.state)
            judge.add(answers(next(expected)[1], self.state) if expected else own, own, feed)
            report(done, len(samples))
        hook = hook_of(self.metric, samples, inputs, self.interpreter)
        result = judge.result(self.metric, hook)
        if "metric" in result and (found := drift(judge.r2, samples)):
            result["drift"] = found.model_dump()
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
        found = self._run("metric", outputs, about)
        return self._decisive_first(
            found if isinstance(found, dict) else {self.metric.python: found}
        )

    def groups(self, outputs: list[Arrays], about: str) -> list[float]:
        """Return the value that decides of the set without each of some groups of its samples.

        Raises:
            SamplesError: The hook fails with fewer samples.
        """
        found = self._run("groups", outputs, about, str(GROUPS))
        name = self.metric.value
        return [
            (each[name] if name else next(iter(each.values()))) if isinstance(each, dict) else each
            for each in found
        ]

    def _run(self, mode: str, outputs: list[Arrays], about: str, *more: str) -> Any:  # noqa: ANN401
        """Return what the function writes as JSON."""
        labels = self.samples.labels
        with tempfile.TemporaryDirectory(prefix="edgepack-metric-") as scratch:
            folder = Path(scratch)
            for n, arrays in enumerate(outputs):
                save_arrays(folder / f"{n}.npz", arrays)
            (folder / "names.json").write_text(json.dumps(self.samples.names), encoding="utf-8")
            if labels is not None:
                np.save(folder / "labels.npy", labels, allow_pickle=False)
            arguments = [mode, self.metric.python, scratch, *more]
            run_hook(arguments, self.project, self.interpreter, about)
            return json.loads((folder / "value.json").read_text(encoding="utf-8"))

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


_ByOutput = Mapping[str, Found | Nothing]


@dataclass
class Judge:
    """Collects what the metrics need, sample by sample."""

    labels: Array | None
    scores_output: str | None
    """The output that may hold class scores."""
    described: Mapping[str, OutputDescription]
    """By output."""
    keep_outputs: bool
    metrics: dict[str, OutputMetric] = field(default_factory=dict)
    """By output: that of its kind."""
    numbers: dict[str, R2Metric] = field(default_factory=dict)
    """By output of floats: R², which all of them have."""
    closeness: dict[str, OutputCloseness] = field(default_factory=dict)
    hits: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))
    """Top-1 hits of fp32 and of the variant."""
    agreements: list[float] = field(default_factory=list)
    samples: int = 0
    reshaped: Counter[str] = field(default_factory=Counter)
    """By output: in how many samples its shape is not fp32's, as where the data decide how many
    values there are. Those without a description are not judged unless no others are left."""
    outputs: tuple[list[Arrays], list[Arrays]] = field(default_factory=lambda: ([], []))
    fp32: dict[str, float] | None = None
    """What the user's metric says of fp32, once it was asked."""
    with_intervals: bool = False
    """Whether the user's metric is asked for parts of the set too, for the interval of a drop."""
    labelled: LabelledMetric | None = None
    """That of labels, where one is asked for that is no mean over samples."""

    def add(self, reference: Arrays, output: Arrays, feed: Arrays) -> None:
        """Add one sample: what fp32 and the variant give for a feed.

        Raises:
            SamplesError: An output has not the shape that its description wants.
        """
        for name, array in reference.items():
            if array.dtype.kind == "f":
                self.closeness.setdefault(name, OutputCloseness()).add(array, output[name])
                self.numbers.setdefault(name, R2Metric()).add(array, output[name], feed)
            if array.shape != output[name].shape:
                self.reshaped[name] += 1
            try:
                self._metric_for(name, array).add(array, output[name], feed)
            except ValueError as error:
                raise SamplesError(
                    f"the output {name!r} of fp32 is not as it is described: {error}",
                    hint="mend its description under 'outputs' in edgepack.yaml",
                ) from error
        if self.labelled is not None:
            self.labelled.add(reference, output)
        self._add_scores(reference, output)
        self.samples += 1
        if self.keep_outputs:
            self.outputs[1].append(output)
            if self.fp32 is None:
                self.outputs[0].append(reference)

    def _metric_for(self, name: str, reference: Array) -> OutputMetric:
        if name not in self.metrics:
            given, may_be_scores = self.described.get(name), name == self.scores_output
            self.metrics[name] = metric_for(given, reference, may_be_scores=may_be_scores)
        return self.metrics[name]

    @property
    def r2(self) -> dict[str, OutputR2]:
        """By output of floats."""
        return {name: each.r2 for name, each in self.numbers.items()}

    @property
    def left_out(self) -> str:
        """Say which outputs are not judged, or nothing if all are."""
        judged = {*self._judged(self.metrics), *self._judged(self.closeness)}
        return "".join(
            f"; {name!r} has another shape than fp32's in {self.reshaped[name]} of"
            f" {self.samples} samples and is not judged"
            for name in self.reshaped
            if name not in judged
        )

    def _judged(self, outputs: Iterable[str]) -> list[str]:
        """Return those outputs that are described or keep their shape, or all if none is."""
        names = list(outputs)
        kept = [n for n in names if n not in self.reshaped or _is_described(self.described.get(n))]
        return kept or names

    def _add_scores(self, reference: Arrays, output: Arrays) -> None:
        if self.scores_output is None:
            return
        name = self.scores_output
        ours, theirs = class_scores(reference[name]), class_scores(output[name])
        if ours is None or theirs is None:
            return
        best, other = int(np.argmax(ours)), int(np.argmax(theirs))
        self.agreements.append(float(best == other))
        if self.labels is not None and np.ndim(self.labels[self.samples]) == 0:
            label = _class_index(self.labels[self.samples], ours.size)
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
        by_output = self._found()
        if hook is not None:
            found: _Metric | None = self._of_hook(hook, values)
        elif self.labelled is not None:
            found = self._of_labels(self.labelled, values)
        else:
            found = self._metric(metric if isinstance(metric, str) else None, by_output)
        floats = self._judged(self.closeness)
        worst = min(floats, key=lambda output: self.closeness[output].sqnr_db, default="")
        closeness = self.closeness.get(worst, OutputCloseness())
        if found is None:
            reasons = {name: each for name, each in by_output.items() if isinstance(each, Nothing)}
            return NotMeasured(reason=_untold(reasons)).model_dump()
        r2 = {name: told for name, each in self.r2.items() if (told := each.found())}
        scored = len(self.agreements) == self.samples
        return {
            "metric": found.name,
            "output": found.output,
            "higher_is_better": found.higher_is_better,
            "samples": self.samples,
            "fp32": found.fp32,
            "value": found.value,
            "drop": found.drop.value,
            "drop_interval": found.drop.interval,
            "agreement": float(np.mean(self.agreements)) if scored else None,
            "worst": {
                "output": worst,
                "cosine": closeness.cosine,
                "sqnr_db": max(closeness.sqnr_db, -EQUAL_SQNR_DB),
            },
            "outputs": {
                name: _told_of(self._metric_of(name), each) for name, each in by_output.items()
            },
            "r2": {name: told.bounded() for name, told in r2.items()},
            "says_nothing": self._says_nothing(by_output),
            "says_little": self._says_little(by_output),
            "values": values,
        }

    def _found(self) -> dict[str, Found | Nothing]:
        """By judged output: what the metric of its kind found."""
        return {name: self._metric_of(name).found() for name in self._judged(self.metrics)}

    def _metric_of(self, name: str) -> OutputMetric:
        """Return the metric of an output's kind.

        Numbers of several units are no class scores, though nobody described them.
        """
        metric, numbers = self.metrics[name], self.numbers.get(name)
        if _is_described(self.described.get(name)) or not isinstance(metric, Agreement):
            return metric
        if metric.are_shares or numbers is None or numbers.r2.is_of_one_quantity:
            return metric
        return numbers

    def _says_nothing(self, by_output: _ByOutput) -> str:
        """Return why the variant is no better than a constant, or nothing."""
        for name, found in by_output.items():
            told = found
            if isinstance(found, Nothing) and name in self.numbers:
                # Where answers are the same for all samples, the numbers behind them have to tell.
                told = self.numbers[name].found()
            if isinstance(told, Found) and told.no_better:
                return f"of {name!r}, {told.no_better}"
        return ""

    def _says_little(self, by_output: _ByOutput) -> str:
        """Return which output keeps less than half of what fp32 says, or nothing."""
        first = [name for name in by_output if _is_described(self.described.get(name))]
        for name in first or by_output:
            found, metric = by_output[name], self._metric_of(name)
            if isinstance(found, Found) and np.mean(found.values) < metric.least:
                return f"{metric.name} of {name!r} is {np.mean(found.values):.3f}"
        return ""

    def _of_hook(self, hook: HookMetric, values: dict[str, Any]) -> _Metric:
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
            sign * (fp32 - value), self._interval_of_hook(hook, sign, sign * (fp32 - value))
        )
        return _Metric(name, fp32, value, drop, higher_is_better=higher)

    def _interval_of_hook(
        self, hook: HookMetric, sign: int, drop: float
    ) -> tuple[float, float] | None:
        """Return the 95 % interval of a drop of the user's metric, by the delete-a-group jackknife.

        None where it is not asked for, there are too few samples, or the function takes no fewer.
        """
        if not self.with_intervals or self.samples < LEAST_GROUPED:
            return None
        try:
            fp32, found = (
                np.array(hook.groups(outputs, about), np.float64)
                for outputs, about in zip(self.outputs, ("fp32", "the variant"), strict=True)
            )
        except SamplesError as error:
            tell(
                f"{hook.metric.python} has no interval, as it takes no part of the samples: {error}"
            )
            return None
        return jackknife_interval(drop, sign * (fp32 - found))

    def _of_labels(self, metric: LabelledMetric, values: dict[str, Any]) -> _Metric:
        """Return the metric of labels; several values go into ``values``, by name."""
        every = metric.values(range(self.samples))
        name, (fp32, value) = next(iter(every.items()))
        if len(every) > 1:
            values |= {n: {"value": theirs, "fp32": ours} for n, (ours, theirs) in every.items()}
        sign = 1 if metric.higher_is_better else -1
        drop = sign * (fp32 - value)
        parts = self._parts(metric)
        interval = jackknife_interval(drop, sign * (parts[0] - parts[1])) if parts else None
        better = metric.higher_is_better
        return _Metric(name, fp32, value, Drop(drop, interval), higher_is_better=better)

    def _parts(self, metric: LabelledMetric) -> tuple[Array, Array] | None:
        """Return the value that decides, fp32's and the variant's, without each group of samples.

        None where there are too few samples.
        """
        if self.samples < LEAST_GROUPED:
            return None
        found = [
            next(iter(metric.values([n for n in range(self.samples) if n % GROUPS != k]).values()))
            for k in range(GROUPS)
        ]
        ours, theirs = np.array(found).T
        return ours, theirs

    def _metric(self, metric: str | None, by_output: _ByOutput) -> _Metric | None:
        if metric == "top1" and not self._labelled:
            raise SamplesError(
                "the metric top1 needs one vector of class scores per sample as first output,"
                " and one class index per sample as label",
                hint="use metric: {python: 'module:function', higher_is_better: true}",
            )
        if self._by_labels(metric):
            fp32, value = (float(np.mean(hits)) for hits in self.hits)
            return _Metric("top1", fp32, value, paired_drop(*self.hits))
        worst = self._worst_output(by_output)
        if worst is None:
            return None
        output, name, found = worst
        value = float(np.mean(found.values))
        drop = paired_drop(found.own or [1.0] * len(found.values), found.values)
        low, high = drop.interval or (drop.value, drop.value)
        # Nothing is nearer to fp32 than itself.
        interval = (max(0.0, low), high) if drop.interval else None
        return _Metric(name, 1.0, value, Drop(drop.value, interval), output)

    def _worst_output(self, by_output: _ByOutput) -> tuple[str, str, Found] | None:
        """Return the output that is kept worst, and by which metric: of those described, if any.

        Else the class scores decide, where there are any. Where the answers are the same for all
        samples, the numbers behind them stand in.
        """
        told: dict[str, tuple[str, Found]] = {}
        for name, kind_found in by_output.items():
            metric, found = self._metric_of(name), kind_found
            if isinstance(kind_found, Nothing) and name in self.numbers:
                metric = self.numbers[name]
                found = metric.found()
            if isinstance(found, Found):
                told[name] = metric.name, found
        first = [name for name in told if _is_described(self.described.get(name))]
        first = first or [name for name in told if told[name][0] == Agreement.name]
        worst = min(first or told, key=lambda n: float(np.mean(told[n][1].values)), default=None)
        return None if worst is None else (worst, *told[worst])

    def interval(self, metric: str | PythonMetric | None) -> tuple[float, float] | NotMeasured:
        """Return the 95 % interval of the variant's metric, as far as it is a mean over samples."""
        if isinstance(metric, PythonMetric):
            return NotMeasured(reason=f"{metric.python} has no value for each sample")
        if self.labelled is not None:
            return self._interval_of_labels(self.labelled)
        if self._by_labels(metric):
            values = self.hits[1]
        elif worst := self._worst_output(self._found()):
            values = list(worst[2].values)
        else:
            return NotMeasured(reason="the samples tell nothing")
        # Hits and agreement are 1 at most.
        found = mean_interval(values)
        return (found[0], min(1.0, found[1])) if found else NotMeasured(reason="it is one sample")

    def _interval_of_labels(self, metric: LabelledMetric) -> tuple[float, float] | NotMeasured:
        parts = self._parts(metric)
        if parts is None:
            return NotMeasured(reason=f"it takes {LEAST_GROUPED} samples")
        value = next(iter(metric.values(range(self.samples)).values()))[1]
        low, high = jackknife_interval(value, parts[1])
        if metric.higher_is_better:
            return low, min(high, metric.best)
        return max(low, metric.best), high

    def _by_labels(self, metric: str | None) -> bool:
        return metric == "top1" or (metric is None and self._labelled)

    @property
    def _labelled(self) -> bool:
        return len(self.hits[0]) == self.samples


def jackknife_interval(value: float, without: Array) -> tuple[float, float]:
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


def _is_described(given: OutputDescription | None) -> bool:
    return given is not None and given.kind != "raw"


def _told_of(metric: OutputMetric, found: Found | Nothing) -> dict[str, Any]:
    """Return what a metric found as the manifest has it."""
    if isinstance(found, Nothing):
        return NotMeasured(reason=found.reason).model_dump()
    interval = mean_interval(found.values)
    return {
        "metric": metric.name,
        "value": float(np.mean(found.values)),
        "interval": interval and (interval[0], min(1.0, interval[1])),
        "others": dict(found.others),
    }


def _untold(reasons: Mapping[str, Nothing]) -> str:
    told = "; ".join(f"{name!r}: {each.reason}" for name, each in reasons.items())
    return f"the evaluation samples tell nothing of a variant: {told}"


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


def uncompared(result: dict[str, Any]) -> dict[str, Any]:
    """Return what is left of an evaluation whose reference was the model itself.

    That is the value of a metric of labels or of the user's. How near a model is to itself says
    nothing: drop, agreement and closeness go, and if the metric is agreement, everything does.
    """
    missing = NotMeasured(reason=NO_FP32).model_dump()
    if "metric" not in result:
        return missing
    if result.get("output", ""):
        return missing
    compared = dict.fromkeys(("drop", "drop_interval", "agreement", "worst"))
    compared |= {"outputs": {}, "r2": {}, "says_nothing": "", "says_little": "", "drift": None}
    values = {n: {**each, "fp32": None} for n, each in result.get("values", {}).items()}
    return {**result, **compared, "fp32": missing, "values": values}


def as_accuracy(result: dict[str, Any]) -> Accuracy | NotMeasured:
    """Return an evaluation as the manifest holds it."""
    if "metric" not in result:
        return NotMeasured.model_validate(result)
    return Accuracy.model_validate_json(json.dumps(result))


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
        f"{_drift_words(accuracy.drift)}"
    )


def _drift_words(found: Drift | None) -> str:
    if found is None:
        return ""
    return f", R² {found.first:.4f} at the beginning of streams and {found.last:.4f} at their end"

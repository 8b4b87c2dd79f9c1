"""Evaluates a device's answers while they come. Runs in a worker process: it loads onnxruntime."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from edgepack.base.schema import NotMeasured
from edgepack.bundle.manifest import Accuracy
from edgepack.devices.frames import encode
from edgepack.errors import SamplesError
from edgepack.measure.evaluate.kept_answers import read_as_they_come
from edgepack.metrics.labelled import choose_labelled_metric
from edgepack.model.custom_ops import registered
from edgepack.model.files import MODEL
from edgepack.model.running import Arrays, make_session, run_session
from edgepack.project.outputs import OutputDescription
from edgepack.project.samples import PythonMetric
from edgepack.samples.sample_set import SampleSet
from edgepack.steps.proofs.evaluation import is_finite
from edgepack.steps.proofs.evaluation_result import drop_comparison, make_accuracy
from edgepack.steps.proofs.hook_metric import make_hook
from edgepack.steps.proofs.judge import Judge
from edgepack.steps.streams import StatePairs, measure_drift, select_answers


@dataclass(frozen=True)
class Judging:
    """What is evaluated, and how."""

    answers: Path
    """The file of :class:`~.kept_answers.KeptAnswers`."""
    samples: Path
    """The folder of the evaluation set."""
    reference: Path | None
    """The folder of the prepared fp32 model; a model that came quantized or float16 has none."""
    references: Path | None
    """The file of that model's outputs for each sample; written if it does not exist yet."""
    metric: str | PythonMetric | None
    scores_output: str | None
    described: dict[str, OutputDescription]
    project: Path
    interpreter: str | None
    state: StatePairs = ()
    """The device's own state that was fed back to it."""
    library: Path | None = None
    """Of the model's custom operators, where it has some."""


@dataclass(frozen=True)
class Judged:
    """The metric, and how sure it is."""

    accuracy: Accuracy | NotMeasured
    interval: tuple[float, float] | NotMeasured
    """Of the metric's value, at 95 %."""


def judge_answers(given: Judging) -> Judged:
    """Return the metric over all samples; fp32 runs here, on each while the device runs others.

    Raises:
        SamplesError: The metric does not fit the outputs, or the user's fails or gives NaN.
        ModelError: The fp32 model does not run.
    """
    samples = SampleSet.read(given.samples)
    hooked = isinstance(given.metric, PythonMetric)
    judge = Judge(
        samples.labels,
        given.scores_output,
        given.described,
        keep_outputs=hooked,
        labelled=choose_labelled_metric(given.metric, samples, given.described),
    )
    outputs = (answer.outputs for answer in read_as_they_come(given.answers, len(samples)))
    if given.reference and given.references:
        files = given.reference, given.references
        references = _read_references(*files, samples, given.library)
        for feed, reference in zip(samples, references, strict=True):
            device = select_answers(next(outputs), given.state)
            judge.add(select_answers(reference, given.state), device, feed)
    else:
        for feed, output in zip(samples, outputs, strict=True):
            own = select_answers(output, given.state)
            judge.add(own, own, feed)

    hook = make_hook(given.metric, samples, {"project": given.project}, given.interpreter)
    result = judge.make_result(given.metric, hook)
    if not is_finite(result):
        raise SamplesError(
            f"the metric {result['metric']} of the device's answers is not a number: fp32"
            f" {result['fp32']}, device {result['value']}",
            hint="check the metric's function on the outputs that it gets",
        )
    if "metric" in result and (found := measure_drift(judge.by_output.r2, samples)):
        result["drift"] = found.model_dump()
    accuracy = make_accuracy(result if given.reference else drop_comparison(result))
    return Judged(accuracy, judge.compute_interval(given.metric))


def _read_references(
    model: Path, file: Path, samples: SampleSet, library: Path | None
) -> Iterator[Arrays]:
    if file.is_file():
        yield from (answer.outputs for answer in read_as_they_come(file, len(samples)))
        return
    with registered(library):
        session = make_session(model / MODEL)
    with file.open("wb") as written:
        for feed in samples:
            reference = run_session(session, feed)
            written.write(encode(reference))
            yield reference

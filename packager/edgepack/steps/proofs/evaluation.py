"""Compares a variant with fp32 on the evaluation samples, on this machine's CPU."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from edgepack.base.worker import report
from edgepack.errors import SamplesError, StepError
from edgepack.metrics.labelled import choose_labelled_metric
from edgepack.model.files import MODEL, find_model_file
from edgepack.model.running import Arrays, Session, make_session
from edgepack.project.outputs import OutputDescription
from edgepack.project.samples import PythonMetric
from edgepack.samples.sample_set import SampleSet
from edgepack.steps.base import Inputs, Notes
from edgepack.steps.proofs.evaluation_result import (
    describe_evaluation,
    drop_comparison,
    make_accuracy,
)
from edgepack.steps.proofs.hook_metric import make_hook
from edgepack.steps.proofs.judge import Judge
from edgepack.steps.proofs.reference_answers import read_answers
from edgepack.steps.streams import StatePairs, measure_drift, run_streams, select_answers

EVALUATION = "evaluation.json"


@dataclass(frozen=True)
class Evaluation:
    """The metric of fp32 and of the variant, and how close their outputs are.

    Inputs: ``reference``, the prepared fp32 model, where there is one; ``answers``, what it answers
    to the samples, so that it need not be run; ``model``, the variant, as the file that is shipped
    unless that is one of several; ``samples``; ``project``, the project's folder, where the metric
    is a hook. Without a reference nothing is compared: a metric of labels or of the user's has its
    value, agreement has none.
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
        """A user's own metric may change, and nothing here can detect that."""
        return not isinstance(self.metric, PythonMetric)

    def check(self, inputs: Inputs) -> None:
        """Make sure that the metric has the labels it needs.

        Raises:
            SamplesError: There are none, or they are of another kind.
        """
        samples = SampleSet.read(inputs["samples"])
        choose_labelled_metric(self.metric, samples, dict(self.described))
        if self.metric == "top1" and samples.labels is None:
            raise SamplesError(
                "the metric top1 needs labels and the evaluation samples have none",
                hint="give 'labels' under samples.evaluation, or use metric: agreement",
            )

    def run(self, inputs: Inputs, out: Path) -> Notes:
        """Write ``evaluation.json``."""
        variant = make_session(find_model_file(inputs["model"]), config=dict(self.config))
        result, left_out = self.measure(variant, SampleSet.read(inputs["samples"]), inputs)
        (out / EVALUATION).write_text(json.dumps(result, sort_keys=True), encoding="utf-8")
        return Notes(describe_evaluation(make_accuracy(result)) + left_out, result)

    def measure(
        self, variant: Session, samples: SampleSet, inputs: Inputs
    ) -> tuple[dict[str, Any], str]:
        """Return the result of a session on samples as JSON-ready values, and what it leaves out.

        Raises:
            SamplesError: The metric does not fit the outputs.
        """
        hooked = isinstance(self.metric, PythonMetric)
        meant = dict(self.described)
        judge = Judge(
            samples.labels,
            self.scores_output,
            meant,
            keep_outputs=hooked,
            with_intervals=True,
            labelled=choose_labelled_metric(self.metric, samples, meant),
        )
        runs = run_streams(variant, samples, self.state)
        expected = self._find_expected(samples, inputs)
        for done, (feed, output) in enumerate(runs, 1):
            own = select_answers(output, self.state)
            judge.add(select_answers(next(expected), self.state) if expected else own, own, feed)
            report(done, len(samples))
        hook = make_hook(self.metric, samples, inputs, self.interpreter)
        result = judge.make_result(self.metric, hook)
        if "metric" in result and (found := measure_drift(judge.by_output.r2, samples)):
            result["drift"] = found.model_dump()
        if expected is None:
            result = drop_comparison(result)
        return result, judge.by_output.left_out

    def _find_expected(self, samples: SampleSet, inputs: Inputs) -> Iterator[Arrays] | None:
        """Return what the reference gives for each sample; None where there is no reference."""
        if "reference" not in inputs:
            return None
        if "answers" in inputs and (answers := read_answers(inputs["answers"])) is not None:
            return answers
        session = make_session(inputs["reference"] / MODEL)
        return (outputs for _, outputs in run_streams(session, samples, self.state))

    def verify(self, inputs: Inputs, out: Path) -> None:
        """Prove that the result holds numbers.

        Raises:
            StepError: The metric is NaN.
        """
        del inputs
        result = json.loads((out / EVALUATION).read_text(encoding="utf-8"))
        if not is_finite(result):
            raise StepError(
                f"the metric {result['metric']} is not a number: fp32 {result['fp32']},"
                f" variant {result['value']}{_format_others(result)}",
                hint="check the metric's function and the labels",
            )


def is_finite(result: dict[str, Any]) -> bool:
    """Return whether all values of an evaluation's result are numbers."""
    found = result.get("fp32"), result.get("value")
    values = result.get("values", {}).values()
    found = (*found, *(each[key] for each in values for key in ("fp32", "value")))
    return bool(np.isfinite([number for number in found if isinstance(number, float)]).all())


def _format_others(result: dict[str, Any]) -> str:
    """Return the other values of a result, where the metric has several."""
    values = result.get("values", {}).items()
    return "".join(f"; {n}: fp32 {each['fp32']}, variant {each['value']}" for n, each in values)

"""Measures candidate models for a limit, as the finished variant will be judged."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from edgepack.base.worker import report
from edgepack.bundle.manifest import LEAST_SIMULATED
from edgepack.errors import SamplesError, StepError
from edgepack.metrics.accuracy import EQUAL_SQNR_DB
from edgepack.metrics.labelled import choose_labelled_metric
from edgepack.model.files import MODEL
from edgepack.model.running import make_session
from edgepack.project.samples import PythonMetric
from edgepack.quantization.search.closeness import Chosen, FloatOutputs
from edgepack.quantization.search.search import MOST_MEASURED, Measured
from edgepack.samples.sample_set import SampleSet
from edgepack.steps.base import Inputs
from edgepack.steps.proofs.hook_metric import make_hook
from edgepack.steps.proofs.judge import Judge
from edgepack.steps.proofs.simulated import choose_samples, open_simulation
from edgepack.steps.recipes.kind import LimitSearch
from edgepack.steps.streams import run_streams, select_answers


class LimitMetric:
    """The user's metric of a model on the evaluation samples; fp32's is computed only once.

    Where the search has a simulator that computes enough samples in its budget, it is the
    simulator's: the build judges by that as well. A simulator that fails on the first model is not
    asked again; a later model that it does not take meets no limit.
    """

    def __init__(self, search: LimitSearch, inputs: Inputs, scores_output: str | None) -> None:
        self._search = search
        self._scores_output = scores_output
        self._inputs = inputs
        self._simulation = search.simulation
        self._all = SampleSet.read(inputs["evaluation"])
        self._begin(self._all)
        self._is_chosen = False
        self._times = 0

    def __call__(self, model: Path) -> Measured:
        """Return what the metric says of a model.

        Raises:
            SamplesError: The metric does not fit the outputs.
        """
        self._times += 1
        try:
            found = self._measure_simulated(model)
        except StepError:
            if self._is_chosen:
                return Measured(float("inf"), -EQUAL_SQNR_DB, by=str(self._simulation))
            found = None
        except SamplesError:
            if self._samples is self._all:
                raise
            found = None  # too few of them show anything
        if found is None:
            self._simulation = None
            if self._samples is not self._all:
                self._begin(self._all)
            found = self._judge(make_session(model), by="")
        return found

    def _measure_simulated(self, model: Path) -> Measured | None:
        """Return what the simulator gives; None without one, or where it is too slow to decide.

        Raises:
            StepError: It fails.
        """
        simulation = self._simulation
        if simulation is None:
            return None
        with open_simulation(simulation, model) as session:
            if not self._is_chosen and not self._choose(session, simulation.budget_s):
                return None
            return self._judge(session, by=str(simulation))

    def _choose(self, session: Any, budget_s: float) -> bool:  # noqa: ANN401  (either kind)
        """Choose what a simulator computes; return whether that is enough to decide."""
        began = time.monotonic()
        next(run_streams(session, self._samples, self._search.state))
        seconds = max(time.monotonic() - began, 1e-6)
        chosen = choose_samples(self._samples, int(budget_s / seconds))
        if len(chosen) < min(LEAST_SIMULATED, len(self._samples)):
            return False
        if chosen is not self._samples:
            self._begin(chosen)
        self._is_chosen = True
        return True

    def _begin(self, samples: SampleSet) -> None:
        """Measure on these samples from now on."""
        self._samples = samples
        self._reference = FloatOutputs(
            self._inputs["reference"] / MODEL, Chosen(samples, tuple(range(len(samples))))
        )
        metric = self._search.metric
        self._hook = make_hook(metric, samples, self._inputs, self._search.interpreter)
        self._fp32: dict[str, float] | None = None

    def _judge(self, session: Any, *, by: str) -> Measured:  # noqa: ANN401  (either kind)
        metric, state, samples = self._search.metric, self._search.state, self._samples
        described = dict(self._search.described)
        judge = Judge(
            samples.labels,
            self._scores_output,
            described,
            keep_outputs=isinstance(metric, PythonMetric),
            fp32=self._fp32,
            labelled=choose_labelled_metric(metric, samples, described),
        )
        before, most = (self._times - 1) * len(samples), MOST_MEASURED * len(samples)
        doing = f"measuring accuracy for the limit, time {self._times} of at most {MOST_MEASURED}"
        runs = zip(run_streams(session, samples, state), self._reference, strict=True)
        for done, ((feed, output), expected) in enumerate(runs, 1):
            judge.add(select_answers(expected, state), select_answers(output, state), feed)
            report(before + done, most, doing)
        found = judge.make_result(metric, self._hook)
        self._fp32 = judge.fp32
        if "metric" not in found:
            # The samples show nothing about any variant, so a search would show nothing either.
            return Measured(0.0, EQUAL_SQNR_DB, by=by)
        return Measured(found["drop"], found["worst"]["sqnr_db"], by=by)

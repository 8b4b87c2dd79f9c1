"""What a variant computes in its provider's simulator: placement, golden outputs and the metric."""

from __future__ import annotations

import json
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from edgepack.base.schema import NotMeasured
from edgepack.errors import SamplesError
from edgepack.metrics.accuracy import EQUAL_SQNR_DB
from edgepack.model.files import find_model_file
from edgepack.model.running import run_session
from edgepack.model.simulating import SimulatedSession, Simulation, open_simulated
from edgepack.samples.sample_set import SampleSet
from edgepack.samples.spreading import choose_spread
from edgepack.steps.base import Inputs, Notes
from edgepack.steps.proofs.evaluation import Evaluation, is_finite
from edgepack.steps.proofs.evaluation_result import describe_evaluation, make_accuracy
from edgepack.steps.proofs.goldens import read_goldens, read_tensor

SIMULATED = "simulated.json"
OPENING_S = 300.0
"""The most that a simulator takes to open a model and to compute the golden outputs, in seconds."""


@dataclass(frozen=True)
class Simulated:
    """A variant in its provider's simulator.

    Inputs: ``model``, the file that is shipped; ``goldens``; where the variant is evaluated,
    ``samples``, ``reference`` and ``project`` as :class:`Evaluation` has them. If the samples take
    longer than the budget, they are spread over the set, and their number is a power of two, so
    that machines of about the same speed take the same.
    """

    name: ClassVar[str] = "simulated"
    libraries: ClassVar[tuple[str, ...]] = ("numpy", "onnxruntime")
    simulation: Simulation
    evaluation: Evaluation | None
    processor: str
    """The kind of processor that this runs on: it decides the last bits."""

    @property
    def cacheable(self) -> bool:
        """As the evaluation is."""
        return self.evaluation is None or self.evaluation.cacheable

    def check(self, inputs: Inputs) -> None:
        """Accept any model that its goldens were made of."""

    def run(self, inputs: Inputs, out: Path) -> Notes:
        """Write ``simulated.json``.

        Raises:
            StepError: The simulator refuses the model, crashes or takes too long.
        """
        with open_simulation(self.simulation, find_model_file(inputs["model"])) as session:
            closeness_db, seconds = _compare_goldens(session, inputs["goldens"])
            result = self._evaluate(session, inputs, seconds)
        found = {
            "simulator": str(self.simulation),
            "nodes": dict(session.nodes),
            "golden_sqnr_db": round(max(closeness_db, -EQUAL_SQNR_DB), 1),
            "accuracy": result,
        }
        (out / SIMULATED).write_text(json.dumps(found, sort_keys=True), encoding="utf-8")
        taken, every = session.nodes[self.simulation.provider], session.nodes.total()
        said = f"; {describe_evaluation(make_accuracy(result))}" if result else ""
        return Notes(
            f"{self.simulation}: {taken} of {every} nodes on {self.simulation.provider}, golden"
            f" outputs within {closeness_db:.1f} dB{said}",
            found,
        )

    def _evaluate(
        self, session: SimulatedSession, inputs: Inputs, seconds: float
    ) -> dict[str, Any] | None:
        """Return the result on as many samples as the budget allows, each of ``seconds``."""
        if self.evaluation is None:
            return None
        samples = SampleSet.read(inputs["samples"])
        chosen = choose_samples(samples, int(self.simulation.budget_s / max(seconds, 1e-6)))
        try:
            result, _ = self.evaluation.measure(session, chosen, inputs)
        except SamplesError as error:
            if len(chosen) == len(samples):
                raise
            reason = f"{len(chosen)} of {len(samples)} samples do not do: {error.problem}"
            return NotMeasured(reason=reason).model_dump()
        if not is_finite(result):
            return NotMeasured(reason=f"{result['metric']} is not a number there").model_dump()
        return result

    def verify(self, inputs: Inputs, out: Path) -> None:
        """Accept the result: it is a measurement, which the build judges."""


def open_simulation(
    simulation: Simulation, model: Path
) -> AbstractContextManager[SimulatedSession]:
    """Open a model in a simulator, for goldens and as many samples as its budget allows.

    Raises:
        StepError: The simulator refuses the model, crashes or takes too long.
    """
    return open_simulated(
        simulation.simulator,
        model,
        dict(simulation.options),
        dict(simulation.config),
        limit_s=OPENING_S + 2 * simulation.budget_s,
    )


def _compare_goldens(session: SimulatedSession, folder: Path) -> tuple[float, float]:
    """Return how near golden outputs are, as a device's loader counts it, and seconds for a run."""
    # It loads onnxruntime, which only workers may.
    from edgepack.ondevice.runtime.edgepack_loader import golden_closeness_db

    worst, quickest = float("inf"), float("inf")
    for golden in read_goldens(folder)["goldens"]:
        feed = {entry["name"]: read_tensor(folder, entry) for entry in golden["inputs"]}
        began = time.monotonic()
        outputs = run_session(session, feed)
        quickest = min(quickest, time.monotonic() - began)
        for entry in golden["outputs"]:
            expected = read_tensor(folder, entry)
            worst = min(worst, golden_closeness_db(entry, expected, outputs[entry["name"]]))
    return worst, quickest


def choose_samples(samples: SampleSet, allowed: int) -> SampleSet:
    """Return about as many samples as are allowed, one at least; of streams the first frames."""
    if allowed >= len(samples):
        return samples
    count = 1 << max(0, allowed.bit_length() - 1)
    chosen = range(count) if samples.streams else choose_spread(range(len(samples)), count)
    return samples.take(list(chosen))


def read_simulated(folder: Path) -> Any:  # noqa: ANN401  (plain JSON, written above)
    """Return what :class:`Simulated` wrote.

    ``simulator``, ``nodes`` by provider, ``golden_sqnr_db``, and ``accuracy``, an evaluation's
    result or None.
    """
    return json.loads((folder / SIMULATED).read_text(encoding="utf-8"))

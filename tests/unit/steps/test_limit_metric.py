"""The metric of candidates for a limit, as a simulator computes it or this machine's CPU."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from edgepack.errors import StepError
from edgepack.model.facts import TensorSpec
from edgepack.model.files import MODEL
from edgepack.model.running import make_session
from edgepack.model.simulating import Simulation, Simulator
from edgepack.project.limits import Limits
from edgepack.quantization.search.search import Measured
from edgepack.samples.sample_set import write_sample_set
from edgepack.steps.recipes import limit_metric
from edgepack.steps.recipes.kind import LimitSearch
from edgepack.steps.recipes.limit_metric import LimitMetric

from tests.support.nets import tiny_models

SIMULATION = Simulation(Simulator("sim", "1", "sim"), "SimExecutionProvider", (), (), budget_s=60.0)


class Noisy:
    """A session whose outputs are a tenth off: 20 dB."""

    def __init__(self, model: Path) -> None:
        self.session = make_session(model)
        self.get_outputs = self.session.get_outputs

    def run(self, names, feed):
        return [1.1 * output for output in self.session.run(names, feed)]


@dataclass
class Doubled:
    """A simulator in whose place noisy sessions are opened."""

    fails: Sequence[bool] = ()
    """Whether it refuses the first model, the second, and so on."""
    asked: list[Path] = field(default_factory=list)

    @contextmanager
    def open(self, _simulation: Simulation, model: Path) -> Iterator[Noisy]:
        self.asked.append(model)
        if tuple(self.fails[len(self.asked) - 1 : len(self.asked)]) == (True,):
            raise StepError("it does not take the model", hint="none")
        yield Noisy(model)


def measure_twice(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    simulator: Doubled,
    simulation: Simulation | None = SIMULATION,
) -> list[Measured]:
    """Return what the metric says, twice, of a model that computes what the float one does."""
    monkeypatch.setattr(limit_metric, "open_simulation", simulator.open)
    monkeypatch.setattr(limit_metric, "report", lambda *_: None)
    model = tiny_models.conv_net(folder / MODEL, batch=1)
    spec = TensorSpec("image", "float32", (1, 3, 8, 8))
    images = tiny_models.images(24)
    named = [(str(n), {"image": image[None]}) for n, image in enumerate(images)]
    (folder / "samples").mkdir()
    write_sample_set(folder / "samples", [spec], named, np.arange(24) % 4)
    search = LimitSearch(Limits(min_sqnr_db=30), None, None, simulation=simulation)
    given = {"evaluation": folder / "samples", "reference": folder}
    metric = LimitMetric(search, given, "scores")
    return [metric(model), metric(model)]


def test_metric_is_what_the_simulator_computes(tmp_path, monkeypatch) -> None:
    found = measure_twice(tmp_path, monkeypatch, simulator := Doubled())
    assert [each.by for each in found] == ["sim 1", "sim 1"]
    assert [each.sqnr_db for each in found] == pytest.approx([20, 20], abs=0.1)
    assert len(simulator.asked) == 2


def test_simulator_that_fails_on_the_first_model_is_not_asked_again(tmp_path, monkeypatch) -> None:
    found = measure_twice(tmp_path, monkeypatch, simulator := Doubled([True]))
    assert [each.by for each in found] == ["", ""]
    assert min(each.sqnr_db for each in found) > 100
    assert len(simulator.asked) == 1


def test_model_that_the_simulator_does_not_take_meets_no_limit(tmp_path, monkeypatch) -> None:
    _, second = measure_twice(tmp_path, monkeypatch, Doubled([False, True]))
    assert (second.by, math.isinf(second.drop)) == ("sim 1", True)
    assert Limits(min_sqnr_db=30).compute_excess(second.drop, second.sqnr_db) > (0.0, 0.0)


@pytest.mark.parametrize("simulation", [None, replace(SIMULATION, budget_s=1e-9)])
def test_simulator_that_is_not_there_or_too_slow_leaves_it_to_the_cpu(
    tmp_path, monkeypatch, simulation
) -> None:
    found = measure_twice(tmp_path, monkeypatch, simulator := Doubled(), simulation)
    assert [each.by for each in found] == ["", ""]
    assert min(each.sqnr_db for each in found) > 100
    assert len(simulator.asked) == (0 if simulation is None else 1)

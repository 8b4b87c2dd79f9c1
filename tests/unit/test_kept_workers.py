"""The worker processes that tests share."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator

import pytest
from edgepack.base.processes import Workers, use_pool
from edgepack.errors import StepError, ToolError
from edgepack.model.simulating import Simulator, open_simulated
from edgepack.trying.verify import check_goldens

from tests.support.doubles.kept_workers import KeptWorkers
from tests.support.reports.tiny_bundle import write_tiny_bundle


@pytest.fixture
def pool() -> Iterator[KeptWorkers]:
    kept = KeptWorkers()
    with use_pool(kept):
        yield kept
    for worker in kept.idle:
        worker.stop()


def test_worker_when_idle_as_its_build_fails_is_refused_to_that_and_kept_for_the_next(pool):
    with Workers(1) as workers:
        first = workers.call(os.getpid)
        workers.kill()
        with pytest.raises(ToolError, match="was stopped"):
            workers.call(os.getpid)
    with Workers(1) as workers:
        assert workers.call(os.getpid) == first


def test_worker_when_it_opened_a_simulator_is_not_kept(pool, tmp_path):
    simulator = Simulator("no-plugin", "1.0", "no_plugin")
    with (
        pytest.raises(StepError, match="no_plugin"),
        open_simulated(simulator, tmp_path / "m.onnx", {}, {}, limit_s=60),
    ):
        raise AssertionError("it has to be refused")
    assert pool.idle == []


def test_worker_when_it_ran_a_bundles_loader_which_loads_plugins_is_not_kept(pool, tmp_path):
    bundle = write_tiny_bundle(tmp_path / "tiny")
    with Workers(1) as workers:
        assert workers.call(check_goldens, bundle, "cpu-fp32").passed
    assert pool.idle == []


def test_worker_when_busy_as_its_build_fails_is_killed_and_not_kept(pool):
    compute = "import time; from edgepack.base.worker import report; report(0, 1); time.sleep(60)"
    with Workers(1) as workers, pytest.raises(ToolError, match="died with signal 9"):
        workers.call(exec, compute, {}, on_progress=lambda *_: workers.kill())
    assert pool.idle == []


def test_worker_when_kept_finds_the_modules_of_its_build(pool, tmp_path, monkeypatch):
    (tmp_path / "only_of_this_build.py").write_text("ANSWER = 42\n")
    with Workers(1) as workers:
        first = workers.call(os.getpid)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with Workers(1) as workers:
        assert workers.call(os.getpid) == first
        assert workers.call(importlib.util.find_spec, "only_of_this_build") is not None
        assert workers.call(os.getenv, "PYTHONPATH") == str(tmp_path)
    monkeypatch.delenv("PYTHONPATH")
    with Workers(1) as workers:
        assert workers.call(os.getpid) == first
        assert workers.call(importlib.util.find_spec, "only_of_this_build") is None
        assert workers.call(os.getenv, "PYTHONPATH") is None

"""What a build is said to need; how much it takes is measured by ``make bench``."""

from __future__ import annotations

from pathlib import Path

import pytest
from edgepack.builder import memory
from edgepack.builder.memory import Subject, estimate_bytes, estimate_step_bytes, format_memory
from edgepack.model.workload import ActivationSizes

LARGE = ActivationSizes(total_bytes=500_000_000, live_bytes=150_000_000)
SMALL = ActivationSizes(total_bytes=1_000_000, live_bytes=300_000)


def subject(*steps: str, weights: int = 1_000_000) -> Subject:
    return Subject(Path("m.onnx"), {}, weights, frozenset(steps))


def test_calibration_of_large_activations_holds_them_in_each_process(monkeypatch):
    monkeypatch.setattr(memory, "count_cores", lambda: 2)
    two = estimate_step_bytes("calibration", 0, LARGE)
    monkeypatch.setattr(memory, "count_cores", lambda: 1)
    assert two == 2 * estimate_step_bytes("calibration", 0, LARGE)
    assert estimate_step_bytes("calibration", 0, LARGE) >= LARGE.total_bytes


def test_calibration_of_small_activations_takes_one_process(monkeypatch):
    monkeypatch.setattr(memory, "count_cores", lambda: 4)
    assert estimate_step_bytes("calibration", 0, SMALL) < 2 * memory.WORKER_BYTES


@pytest.mark.parametrize(("name", "times"), [("int8-static", 1), ("layer-errors", 2)])
def test_step_that_observes_every_tensor_holds_those_of_each_model_that_it_runs(name, times):
    plain = estimate_step_bytes(name, 0, ActivationSizes(0, 0))
    assert estimate_step_bytes(name, 0, LARGE) >= plain + times * LARGE.total_bytes


@pytest.mark.parametrize(("more", "less"), [("int8-static", "int8-dynamic"), ("int8-dynamic", "")])
def test_recipe_that_keeps_several_models_holds_weights_more_often_than_one_that_does_not(
    more, less
):
    weights = 340_000_000
    assert (
        estimate_step_bytes(more, weights, SMALL)
        > estimate_step_bytes(less, weights, SMALL) + weights
    )


def test_build_needs_more_for_more_weights_jobs_and_activations():
    little = estimate_bytes(subject("fp32"), SMALL, 1)
    assert estimate_bytes(subject("fp32", weights=340_000_000), SMALL, 1) > little + 600_000_000
    assert estimate_bytes(subject("fp32"), SMALL, 2) > little
    assert estimate_bytes(subject("fp32"), LARGE, 1) > little
    assert estimate_bytes(subject("fp32", "calibration"), LARGE, 1) > estimate_bytes(
        subject("fp32"), LARGE, 1
    )


@pytest.mark.parametrize(("free", "warned"), [(899_999_999, True), (900_000_000, False)])
def test_text_when_more_is_needed_than_is_available_says_what_to_do(monkeypatch, free, warned):
    monkeypatch.setattr(memory, "read_available_memory", lambda: free)
    text = format_memory(900_000_000)
    assert text.startswith("a build needs about 0.9 GB of memory")
    assert ("--jobs 1" in text and "'dims'" in text) == warned

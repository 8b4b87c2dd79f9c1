"""The interval of a metric of the user's own."""

from __future__ import annotations

import numpy as np
import pytest
from edgepack.model.facts import TensorSpec
from edgepack.project.samples import PythonMetric
from edgepack.samples.sample_set import SampleSet, write_sample_set
from edgepack.steps.proofs.hook_metric import HookMetric
from edgepack.steps.proofs.judge import Judge

COUNT = 200
METRIC = """
import numpy as np

def right(outputs, labels):
    return {"mean": float(np.mean([o["y"].item() == y for o, y in zip(outputs, labels)])), "n": 1.0}
"""


@pytest.fixture
def hook(tmp_path):
    (tmp_path / "own.py").write_text(METRIC)
    folder = tmp_path / "set"
    folder.mkdir()
    signature = [TensorSpec("x", "float32", (1,))]
    samples = [(str(n), {"x": np.zeros(1, np.float32)}) for n in range(COUNT)]
    write_sample_set(folder, signature, samples, np.ones(COUNT))
    metric = PythonMetric(python="own:right", higher_is_better=True)
    return HookMetric(metric, SampleSet.read(folder), tmp_path, None)


def judged(hook, wrong):
    """The interval of a drop where fp32 is right on all samples, and the variant not on some."""
    judge = Judge(hook.samples.labels, None, {}, keep_outputs=True, with_intervals=True)
    for n in range(COUNT):
        judge.add({"y": np.ones(1)}, {"y": np.full(1, float(n not in wrong))}, {})
    found = judge.make_result(hook.metric, hook)
    return found["drop"], found["drop_interval"]


def test_interval_when_few_differ_is_near_that_of_hits(hook):
    wrong = np.random.default_rng(3).permutation(COUNT)[:30].tolist()
    drop, (low, high) = judged(hook, wrong)
    assert drop == pytest.approx(0.15)
    # Of 200 independent hits the standard error is 0.025; ten groups give it within a third or so.
    assert 0.03 < (high - low) / 2 < 0.1
    assert (low + high) / 2 == pytest.approx(drop)


def test_interval_when_none_differ_is_none_wide(hook):
    assert judged(hook, []) == (0.0, (0.0, 0.0))


def test_interval_when_the_function_wants_all_samples_is_none_and_that_is_said(hook, monkeypatch):
    said = []
    monkeypatch.setattr("edgepack.steps.proofs.judge.tell", said.append)
    (hook.project / "own.py").write_text(
        METRIC.replace("    return", f"    assert len(labels) == {COUNT}\n    return")
    )
    assert judged(hook, [1, 2]) == (pytest.approx(0.01), None)
    assert said[0].startswith("own:right has no interval, as it takes no part of the samples")

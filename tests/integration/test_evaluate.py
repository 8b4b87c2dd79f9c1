"""``edgepack evaluate`` through real transports."""

from __future__ import annotations

import os
import shutil

import pytest
import tiny_models
from edgepack.bench import evaluate
from edgepack.build import build
from edgepack.bundle import verify
from edgepack.demo import demo_device
from edgepack.demo_server import LoopbackServer
from edgepack.devices import load_device
from edgepack.errors import BundleError, UsageError


@pytest.fixture(scope="module")
def built_once(tmp_path_factory):
    folder = tmp_path_factory.mktemp("built")
    project = tiny_models.write_project(folder)
    [made] = build(project=project, targets=["host"], out=folder / "dist", use_cache=False).bundles
    return folder, made.bundle.path.relative_to(folder)


@pytest.fixture
def built(built_once, tmp_path):
    folder, bundle = built_once
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    return tmp_path / "edgepack.yaml", verify(tmp_path / bundle)


def test_evaluate_over_ssh_when_the_device_is_this_machine_agrees_with_the_build(built, tmp_path):
    project, bundle = built
    with LoopbackServer(tmp_path / "board") as server:
        accuracy = evaluate(bundle.path, demo_device(server), project=project)
    assert accuracy.variant == "cpu-int8-static"
    assert accuracy.measured == accuracy.simulated == bundle.manifest.variants[0].accuracy


def test_evaluate_when_a_variant_is_named_measures_that_one(built):
    project, bundle = built
    accuracy = evaluate(bundle.path, load_device("local"), project=project, variant="cpu-fp32")
    assert accuracy.variant == "cpu-fp32"
    assert accuracy.measured.drop == 0
    assert accuracy.measured.worst.sqnr_db > 60


def test_evaluate_when_the_metric_is_python_calls_it_here(built, tmp_path):
    project, _ = built
    (tmp_path / "mymetric.py").write_text("def mean(outputs, labels):\n    return len(outputs)\n")
    hook = "labels: labels, metric: {python: 'mymetric:mean', higher_is_better: true}}"
    project.write_text(project.read_text().replace("labels: labels}", hook))
    [made] = build(project=project, targets=["host"], out=tmp_path / "dist").bundles
    accuracy = evaluate(made.bundle.path, load_device("local"), project=project)
    assert (accuracy.measured.metric, accuracy.measured.value) == ("mymetric:mean", 24.0)


def test_evaluate_when_no_project_is_here_asks_for_it(built, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match=r"no edgepack\.yaml here") as caught:
        evaluate(built[1].path, load_device("local"))
    assert "--project" in caught.value.hint


def test_evaluate_when_the_model_changed_or_samples_are_missing_is_refused(built, tmp_path):
    project, bundle = built
    text = project.read_text()
    project.write_text(text[: text.index("samples:")])
    with pytest.raises(UsageError, match="has no evaluation samples"):
        evaluate(bundle.path, load_device("local"), project=project)
    project.write_text(text)
    tiny_models.conv_net(tmp_path / "net.onnx", opset=16)
    os.utime(tmp_path / "net.onnx")
    with pytest.raises(BundleError, match="was not made from"):
        evaluate(bundle.path, load_device("local"), project=project)

"""``edgepack evaluate`` through real transports."""

from __future__ import annotations

import json
import os
import shutil
import sys

import numpy as np
import pytest
from edgepack.builder.build import build
from edgepack.bundle.reading import verify
from edgepack.cli.main import run
from edgepack.demo.demo import make_demo_device
from edgepack.demo.server import LoopbackServer
from edgepack.devices.harness import Harness
from edgepack.devices.inventory import load_device
from edgepack.errors import (
    BundleError,
    DeviceError,
    RemoteCommandError,
    SamplesError,
    UsageError,
    VariantRefusedError,
)
from edgepack.measure.evaluate.evaluate import evaluate
from edgepack.project.profile import find_host_target
from edgepack.records.run import EvaluationReport
from edgepack.results.store.store import ResultsStore

from tests.support.doubles.watched_progress import Watched
from tests.support.nets import tiny_models
from tests.support.reports.tiny_bundle import write_tiny_bundle
from tests.support.servers.fault_proxy import FaultProxy, Wire
from tests.support.servers.loopback import ssh_device

SAMPLES = 300
SLOW = Wire(bytes_per_s=30_000)
"""So that not all answers are on their way when the wire is cut."""


@pytest.fixture(scope="module")
def built_once(tmp_path_factory):
    folder = tmp_path_factory.mktemp("built")
    project = tiny_models.write_project(folder)
    images, labels = tiny_models.images(SAMPLES, seed=2), np.arange(SAMPLES) % 4
    np.savez(folder / "eval.npz", image=images, labels=labels)
    [made] = build(project=project, targets=["host"], out=folder / "dist", use_cache=False).bundles
    return folder, made.bundle.path.relative_to(folder)


@pytest.fixture
def built(built_once, tmp_path):
    folder, bundle = built_once
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    return tmp_path / "edgepack.yaml", verify(tmp_path / bundle)


@pytest.mark.slow(reason="takes seconds")
def test_evaluate_over_ssh_when_the_device_is_this_machine_agrees_with_the_build(built, tmp_path):
    project, bundle = built
    with LoopbackServer(tmp_path / "board") as server:
        accuracy = evaluate(bundle.path, make_demo_device(server), project=project)
    assert accuracy.variant == "cpu-int8-static"
    assert accuracy.measured == accuracy.simulated == bundle.manifest.variants[0].accuracy


@pytest.mark.slow(reason="evaluates on a device")
def test_evaluate_when_a_variant_is_named_measures_that_one(built):
    project, bundle = built
    accuracy = evaluate(bundle.path, load_device("local"), project=project, variant="cpu-fp32")
    assert accuracy.variant == "cpu-fp32"
    assert accuracy.measured.drop == 0
    assert accuracy.measured.worst.sqnr_db > 60


@pytest.mark.slow(reason="evaluates on a device")
def test_evaluate_when_the_metric_is_python_calls_it_here(built, tmp_path):
    project, _ = built
    (tmp_path / "mymetric.py").write_text("def mean(outputs, labels):\n    return len(outputs)\n")
    hook = "labels: labels, metric: {python: 'mymetric:mean', higher_is_better: true}}"
    project.write_text(project.read_text().replace("labels: labels}", hook))
    [made] = build(project=project, targets=["host"], out=tmp_path / "dist").bundles
    accuracy = evaluate(made.bundle.path, load_device("local"), project=project)
    assert (accuracy.measured.metric, accuracy.measured.value) == ("mymetric:mean", SAMPLES)
    assert accuracy.interval.reason == "mymetric:mean has no value for each sample"


@pytest.mark.slow(reason="evaluates on a device")
def test_evaluate_when_the_metric_is_of_labels_and_no_mean_has_its_interval(built, tmp_path):
    project, _ = built
    text = project.read_text().replace("labels: labels}", "labels: labels, metric: f1}")
    project.write_text(text + "outputs: {scores: {kind: classification}}\n")
    [made] = build(project=project, targets=["host"], out=tmp_path / "dist").bundles
    accuracy = evaluate(made.bundle.path, load_device("local"), project=project)
    own = made.bundle.manifest.variants[0].accuracy
    assert own.metric == "f1"
    assert accuracy.measured == own
    low, high = accuracy.interval
    assert 0 < low < own.value < high < 1
    assert set(own.values) == {"f1", "micro_f1"}


@pytest.mark.slow(reason="evaluates on a device")
def test_evaluate_when_the_metric_of_the_devices_answers_is_nan_says_so(built, tmp_path):
    """Every comparison with NaN is false: no limit would be missed."""
    project, _ = built
    hook = tmp_path / "mymetric.py"
    hook.write_text("def mean(outputs, labels):\n    return float(len(outputs))\n")
    given = "labels: labels, metric: {python: 'mymetric:mean', higher_is_better: true}}"
    project.write_text(project.read_text().replace("labels: labels}", given))
    [made] = build(project=project, targets=["host"], out=tmp_path / "dist").bundles
    hook.write_text("def mean(outputs, labels):\n    return float('nan')\n")
    with pytest.raises(SamplesError, match="mymetric:mean of the device's answers is not a number"):
        evaluate(made.bundle.path, load_device("local"), project=project)


def test_evaluate_when_no_project_is_here_asks_for_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"no edgepack\.yaml here") as caught:
        evaluate(write_tiny_bundle(tmp_path / "bundle"), load_device("local"))
    assert "--project" in caught.value.hint


@pytest.mark.slow(reason="takes seconds")
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


class CutsAfter(Watched):
    """Cuts a wire once so many samples are answered, and remembers what was said."""

    def __init__(self, samples, cut):
        self._samples, self._cut = samples, cut
        self.notes = []

    def report(self, part, done, total):
        if part.endswith("samples") and done == self._samples:
            self._cut()

    def note(self, text):
        self.notes.append(text)


class CutsAtTheEnd(CutsAfter):
    """Cuts a wire when the harness has said that all samples are answered."""

    def report(self, part, done, total):
        pass

    def ended(self, part):
        if part.endswith("samples"):
            self._cut()


def kept_files(home):
    return list((home / ".cache/edgepack/evaluations").rglob("answers"))


@pytest.mark.slow(reason="evaluates on a device")
def test_evaluate_when_the_connection_is_lost_goes_on_from_there(built, tmp_path, own_home):
    project, bundle = built
    given = {"target": find_host_target(), "root": str(tmp_path / "root"), "python": sys.executable}
    with LoopbackServer(tmp_path / "board") as server:
        with FaultProxy(server.port, to_client=SLOW) as proxy:
            progress = CutsAfter(50, proxy.__exit__)
            device = ssh_device(server, port=proxy.port, **given)
            with pytest.raises(DeviceError, match="connection was lost"):
                evaluate(bundle.path, device, project=project, progress=progress)
        (kept,) = kept_files(own_home)
        device = ssh_device(server, **given)
        report = evaluate(bundle.path, device, project=project)
    assert 50 <= report.resumed <= SAMPLES  # all, if this machine is busier than the wire is slow
    assert progress.notes[-1].startswith(f"{report.resumed} of {SAMPLES} samples are answered")
    assert len(report.inference_ns) == report.measured.samples == SAMPLES
    assert report.measured == report.simulated
    assert not kept.exists()


@pytest.mark.slow(reason="evaluates on a device")
def test_evaluate_when_the_connection_is_lost_after_the_last_answer_keeps_all(built, tmp_path):
    project, bundle = built
    given = {"target": find_host_target(), "root": str(tmp_path / "root"), "python": sys.executable}
    with LoopbackServer(tmp_path / "board") as server, FaultProxy(server.port) as proxy:
        progress = CutsAtTheEnd(SAMPLES, proxy.__exit__)
        device = ssh_device(server, port=proxy.port, **given)
        with pytest.raises(DeviceError, match="connection was lost"):
            evaluate(bundle.path, device, project=project, progress=progress)
    assert progress.notes[-1].startswith(f"{SAMPLES} of {SAMPLES} samples are answered and kept")


@pytest.mark.slow(reason="evaluates on a device")
def test_evaluate_when_told_not_to_resume_begins_anew(built, own_home):
    project, bundle = built
    device = load_device("local")

    def interrupt():
        raise KeyboardInterrupt

    progress = CutsAfter(50, interrupt)
    with pytest.raises(KeyboardInterrupt):
        evaluate(bundle.path, device, project=project, progress=progress)
    assert progress.notes[-1].startswith(f"50 of {SAMPLES} samples are answered and kept")
    assert kept_files(own_home)
    assert evaluate(bundle.path, device, project=project, resume=False).resumed == 0
    assert not kept_files(own_home)


@pytest.mark.slow(reason="evaluates on a device")
def test_evaluate_command_stores_what_it_shows(built, tmp_path, monkeypatch, capsys):
    project, bundle = built
    argv = ["evaluate", str(bundle.path), "--device", "local", "--project", str(project)]
    assert run([*argv, "--json"]) == 0
    shown = EvaluationReport.model_validate_json(capsys.readouterr().out)
    assert ResultsStore().load(shown.id) == shown
    assert shown.placement.counts == {"CPUExecutionProvider": len(shown.placement.nodes)}
    hits = shown.measured.value * SAMPLES
    assert hits == pytest.approx(round(hits))
    assert shown.interval[0] < shown.measured.value < shown.interval[1]
    assert run(argv) == 0
    table = " ".join(capsys.readouterr().out.split())
    assert f"{shown.measured.value:.4f}" in table
    assert f"simulated on the host │ {shown.simulated.value:.4f}" in table


@pytest.mark.slow(reason="evaluates on a device")
def test_evaluate_command_when_nodes_ran_elsewhere_is_inconclusive(built, monkeypatch, capsys):
    project, bundle = built
    profile = Harness.profile

    def elsewhere(self, variant):
        found = profile(self, variant).model_dump(mode="json")
        found["nodes"][0]["provider"] = "AnyExecutionProvider"
        return type(profile(self, variant)).model_validate(found)

    monkeypatch.setattr(Harness, "profile", elsewhere)
    argv = ["evaluate", str(bundle.path), "--device", "local", "--project", str(project), "--json"]
    assert run(argv) == 11
    said = capsys.readouterr()
    (reason,) = json.loads(said.out)["reasons"]
    assert reason == "not all nodes ran on CPUExecutionProvider: 1 on AnyExecutionProvider"
    assert reason in said.err


@pytest.mark.slow(reason="evaluates on a device")
def test_evaluate_when_fp32_ran_before_takes_what_it_gave(built, own_home):
    project, bundle = built
    first = evaluate(bundle.path, load_device("local"), project=project)
    (references,) = (own_home / ".cache/edgepack/steps").glob("*/references")
    data = bytearray(references.read_bytes())
    data[-16:] = np.full(4, 1e3, "<f4").tobytes()  # scores of the last sample
    references.write_bytes(data)
    again = evaluate(bundle.path, load_device("local"), project=project)
    assert again.measured.worst.sqnr_db < first.measured.worst.sqnr_db


@pytest.mark.slow(reason="evaluates on a device")
def test_evaluate_when_a_label_is_no_class_stops_with_the_sample(built, tmp_path):
    project, bundle = built
    images, labels = tiny_models.images(SAMPLES, seed=2), np.full(SAMPLES, 9)
    np.savez(tmp_path / "eval.npz", image=images, labels=labels)
    with pytest.raises(SamplesError, match="label 9 is not one of the model's 4 classes"):
        evaluate(bundle.path, load_device("local"), project=project)


@pytest.mark.in_turns
@pytest.mark.slow(reason="evaluates on a device")
def test_evaluate_command_of_all_variants_ends_as_one_is_within_the_limits(
    built, monkeypatch, capsys
):
    project, bundle = built
    text = project.read_text()
    argv = ["evaluate", str(bundle.path), "--device", "local", "--project", str(project)]
    argv += ["--variant", "all"]
    project.write_text(f"{text}\nlimits: {{min_sqnr_db: 100}}\n")
    assert run([*argv, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [each["variant"] for each in shown["reports"]] == ["cpu-int8-static", "cpu-fp32"]
    values = [variant.accuracy.value for variant in bundle.manifest.variants]
    assert [each["measured"]["value"] for each in shown["reports"]] == values
    assert {row.id for row in ResultsStore().rows()} >= {each["id"] for each in shown["reports"]}
    assert run([*argv[:-1], "cpu-fp32"]) == 0
    assert run([*argv[:-1], "cpu-int8-static"]) == 10
    assert "the limit is 100 dB" in capsys.readouterr().err

    project.write_text(f"{text}\nlimits: {{min_sqnr_db: 300}}\n")
    assert run(argv) == 10
    assert "the limit is 300 dB" in capsys.readouterr().err

    def refuse(self, variant, *_):
        if variant == "cpu-fp32":
            raise kind("it does not fit there", hint="take another")
        return select(self, variant)

    select, kind = Harness.select, RemoteCommandError
    monkeypatch.setattr(Harness, "select", refuse)
    project.write_text(text)
    assert run(argv) == 9
    assert "failed: cpu-fp32: it does not fit there" in capsys.readouterr().err
    kind = VariantRefusedError
    assert run(argv) == 0
    told = capsys.readouterr().out
    assert "passed over cpu-fp32: it does not fit there" in told

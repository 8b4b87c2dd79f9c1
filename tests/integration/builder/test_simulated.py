"""Builds whose variants run in Qualcomm's simulator, which computes here what an HTP computes."""

from __future__ import annotations

import json
import platform
import shutil
from contextlib import nullcontext
from unittest.mock import Mock

import numpy as np
import onnx
import pytest
from edgepack.backends import qnn, simulators
from edgepack.backends.simulators import find_backend_simulator
from edgepack.base.machine import find_processor
from edgepack.base.processes import Workers
from edgepack.base.schema import NotMeasured
from edgepack.builder import judging
from edgepack.builder.build import build
from edgepack.bundle.manifest import Accuracy, Closeness
from edgepack.bundle.manifest import Simulated as Seen
from edgepack.cli.building import print_build
from edgepack.errors import StepError
from edgepack.model.facts import TensorSpec
from edgepack.model.files import MODEL
from edgepack.model.simulating import Simulation, Simulator, open_simulated
from edgepack.samples.sample_set import SampleSet, write_sample_set
from edgepack.steps.base import run_step
from edgepack.steps.proofs.golden_choice import GoldenChoice
from edgepack.steps.proofs.goldens import Goldens, read_goldens
from edgepack.steps.proofs.simulated import Simulated, choose_samples, read_simulated
from edgepack.steps.recipes import int8_static
from edgepack.steps.recipes.int8_static import Int8Static
from onnx import TensorProto, helper, numpy_helper

from tests.support.nets import int8_nets, tiny_models

U16 = "qnn-int8-static-u16"
QNN, CPU = "QNNExecutionProvider", "CPUExecutionProvider"

pytestmark = pytest.mark.skipif(
    (platform.system(), platform.machine()) != qnn.BACKEND.simulated_on,
    reason="Qualcomm's simulator is for Linux on x86-64",
)


def built(folder, *variants, **more):
    """Build the tiny project for phones with an HTP; return its result and the variants."""
    project = tiny_models.write_project(folder, "dims: {batch: 1}")
    result = build(
        project=project, targets=["android-qnn"], variants=variants, out=folder / "dist", **more
    )
    return result, result.bundles[0].bundle.manifest.variants


def test_variant_when_it_is_built_ran_in_the_simulator(tmp_path, capsys):
    result, [variant] = built(tmp_path, U16)
    found = variant.simulated
    assert isinstance(found, Seen)
    assert found.simulator.startswith("onnxruntime-qnn 2.")
    assert found.share(QNN) >= 0.8
    assert found.golden_sqnr_db >= variant.min_sqnr_db
    assert isinstance(found.accuracy, Accuracy)
    assert found.accuracy.metric == "top1"
    assert found.accuracy.samples == 24
    print_build(result)
    assert f"{U16} ran in the simulator of onnxruntime-qnn 2." in " ".join(
        capsys.readouterr().out.split()
    )
    readme = (result.bundles[0].bundle.path / "README.md").read_text()
    assert f"in the simulator of {found.simulator}: top1 {found.accuracy.value:.4f}" in readme
    again = json.loads((result.bundles[0].bundle.path / "manifest.json").read_text())
    assert again["variants"][0]["simulated"]["nodes"] == found.nodes


def write_unequal_project(folder):
    """A project whose model ends in channels of very unequal ranges, as a detector's head does."""
    random = np.random.default_rng(5)
    weights = random.standard_normal((6, 3, 1, 1)) * np.geomspace(1, 1000, 6).reshape(6, 1, 1, 1)
    graph = helper.make_graph(
        [helper.make_node("Conv", ["image", "w"], ["y"])],
        "head",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 6, 8, 8])],
        [numpy_helper.from_array(weights.astype(np.float32), "w")],
    )
    model = helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 17)])
    onnx.save(model, folder / "net.onnx")
    images = random.standard_normal((16, 3, 8, 8)).astype(np.float32)
    np.savez(folder / "samples.npz", image=images)
    (folder / "edgepack.yaml").write_text(
        "schema_version: 1\nname: head\nmodel: net.onnx\n"
        "samples: {calibration: {path: samples.npz}}\n"
    )
    return folder / "edgepack.yaml"


@pytest.mark.parametrize("mixed", [True, False])
def test_variant_when_8_bits_are_too_few_runs_on_a_chip_without_floats(
    tmp_path, monkeypatch, mixed
):
    if not mixed:
        monkeypatch.setattr(int8_static, "_can_take_16_bits", lambda _: False)
    result = build(
        project=write_unequal_project(tmp_path),
        targets=["android-qnn"],
        variants=["qnn-int8-static"],
        out=tmp_path / "dist",
        simulate_s=0,
    )
    (written,) = result.bundles
    model = written.bundle.path / written.bundle.manifest.variants[0].model
    simulator = find_backend_simulator(qnn.BACKEND)
    assert isinstance(simulator, Simulator)
    # The simulator's chip of this number has an HTP of version 68 that computes integers alone.
    options = {"backend_type": "htp", "soc_model": "93"}
    opened = open_simulated(simulator, model, options, {}, limit_s=120)
    with nullcontext() if mixed else pytest.raises(StepError, match="Conv"), opened as session:
        assert session.nodes[QNN] > session.nodes[CPU]


def test_variant_when_there_is_no_simulator_is_shipped_and_that_is_said(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(simulators, "find_simulator", lambda *_: None)
    result, [variant] = built(tmp_path, U16)
    assert isinstance(variant.simulated, NotMeasured)
    assert "pip install 'edgepack[qnn]'" in variant.simulated.reason
    print_build(result)
    assert f"{U16} was not simulated: " in " ".join(capsys.readouterr().out.split())


def test_variant_when_the_simulator_fails_is_shipped_and_why_is_said(tmp_path, monkeypatch):
    lost = Simulator("lost-plugin", "3.1", "no_such_module")
    monkeypatch.setattr(simulators, "find_simulator", lambda *_: lost)
    _, [variant] = built(tmp_path, U16)
    assert isinstance(variant.simulated, NotMeasured)
    assert "lost-plugin 3.1: No module named 'no_such_module'" in variant.simulated.reason


def test_variant_when_nothing_is_to_be_simulated_says_so(tmp_path):
    _, [variant] = built(tmp_path, U16, simulate_s=0)
    assert variant.simulated == NotMeasured(reason="the build was to simulate nothing")


def test_simulator_on_another_machine_is_not_there(monkeypatch):
    monkeypatch.setattr(simulators.platform, "machine", lambda: "aarch64")
    found = find_backend_simulator(qnn.BACKEND)
    assert isinstance(found, NotMeasured)
    assert "Linux on x86_64" in found.reason


@pytest.fixture(scope="module")
def proven(tmp_path_factory):
    """The folders of a quantized model and of its goldens, and the step that simulates it."""
    folder = tmp_path_factory.mktemp("proven")
    net = tiny_models.conv_net(folder / "net.onnx", batch=1)
    inputs = int8_nets.calibrated(folder / "steps", net, int8_nets.image_feeds())
    recipe = Int8Static(int8_nets.dialect("uint16", "int8"), 13, **int8_nets.QNN_RULES)
    int8_nets.run(recipe, inputs, folder / "int8")
    given = {"model": folder / "int8", "samples": inputs["samples"]}
    int8_nets.run(GoldenChoice(2, find_processor()), given, folder / "choice")
    given["choice"] = folder / "choice"
    int8_nets.run(Goldens(8.0, find_processor()), given, folder / "goldens")
    simulator = find_backend_simulator(qnn.BACKEND)
    assert isinstance(simulator, Simulator), "make test installs it"
    options = {"backend_type": "htp"}
    simulation = Simulation(simulator, QNN, tuple(options.items()), (), 10)
    step = Simulated(simulation, None, find_processor())
    return step, {"model": folder / "int8", "goldens": folder / "goldens"}


def simulate(step, inputs, out):
    """Return what a step found in the simulator."""
    with Workers(1) as workers:
        out.mkdir()
        workers.call(run_step, step, inputs, out)
    return read_simulated(out)


def test_model_when_it_is_the_one_of_the_goldens_reproduces_them(proven, tmp_path):
    step, inputs = proven
    found = simulate(step, inputs, tmp_path / "out")
    assert found["golden_sqnr_db"] > 30
    assert found["accuracy"] is None
    assert simulate(step, inputs, tmp_path / "again") == found


@pytest.mark.parametrize("wrong", ["weights", "a golden"])
def test_model_when_it_is_wrong_is_far_from_its_goldens(proven, tmp_path, wrong):
    step, inputs = proven
    copies = {name: tmp_path / name for name in inputs}
    for name, folder in copies.items():
        shutil.copytree(inputs[name], folder)
    if wrong == "weights":
        model = onnx.load(copies["model"] / MODEL)
        weights = max(model.graph.initializer, key=lambda tensor: np.prod(tensor.dims))
        values = numpy_helper.to_array(weights)
        weights.CopyFrom(numpy_helper.from_array(np.flip(values).copy(), weights.name))
        onnx.save(model, copies["model"] / MODEL)
    else:
        entry = read_goldens(copies["goldens"])["goldens"][1]["outputs"][0]
        values = np.fromfile(copies["goldens"] / entry["file"], np.float32)
        (-values).tofile(copies["goldens"] / entry["file"])
    assert simulate(step, copies, tmp_path / "out")["golden_sqnr_db"] < 8


@pytest.mark.parametrize(
    ("nodes", "golden_db", "reason"),
    [
        ({QNN: 9, CPU: 1}, 20.0, ""),
        ({QNN: 7, CPU: 3}, 20.0, "takes 70% of the nodes, 80% are needed"),
        ({CPU: 10}, 20.0, "takes 0% of the nodes, 80% are needed"),
        ({QNN: 9, CPU: 1}, 7.9, "golden outputs are 7.9 dB from the CPU's, 8 dB are needed"),
    ],
)
def test_variant_when_a_device_would_refuse_it_is_refused(
    tmp_path, monkeypatch, nodes, golden_db, reason
):
    found = Seen(simulator="sim 1", nodes=nodes, golden_sqnr_db=golden_db, accuracy=None)
    monkeypatch.setattr(judging, "read_simulation", lambda *_: found)
    monkeypatch.setattr(judging, "read_goldens", lambda _: {"min_sqnr_db": 8.0})
    variant = Mock(goldens="g", variant=Mock(placement=0.8, providers=[Mock()]))
    variant.variant.providers[0].name = QNN
    assert reason in judging.explain_refused(variant, Mock(artifacts={"g": Mock()}))
    assert bool(reason) == bool(judging.explain_refused(variant, Mock(artifacts={"g": Mock()})))


def simulated_accuracy(samples, drop):
    """What a simulator would find of a variant that loses so much of a metric there."""
    return Accuracy(
        metric="top1",
        output="scores",
        higher_is_better=True,
        samples=samples,
        fp32=1.0,
        value=1 - drop,
        drop=drop,
        drop_interval=(drop, drop),
        agreement=1 - drop,
        worst=Closeness(output="scores", cosine=0.999, sqnr_db=30),
    )


@pytest.fixture
def losing(monkeypatch):
    """Return a function after which every variant for the HTP loses so much in the simulator."""

    def run(samples, drop, on_cpu=0):
        found = Seen(
            simulator="sim 1",
            nodes={QNN: 10 - on_cpu, CPU: on_cpu},
            golden_sqnr_db=40.0,
            accuracy=simulated_accuracy(samples, drop),
        )
        monkeypatch.setattr(
            judging,
            "read_simulation",
            lambda variant, _: found if variant.variant.backend == "qnn" else None,
        )

    return run


@pytest.mark.parametrize(
    ("samples", "drop", "shipped"),
    [
        (24, 0.0, [U16, "cpu-int8-static"]),
        (24, 0.03, [U16, "cpu-fp32"]),  # something is lost: one in float
        (24, 0.2, ["cpu-int8-static", "cpu-fp32"]),  # too much is lost: they come last
        (23, 0.2, [U16, "cpu-int8-static"]),  # too few samples: the CPU's figure decides
    ],
)
def test_bundle_of_two_when_the_simulator_finds_a_loss_has_others(
    losing, tmp_path, samples, drop, shipped
):
    losing(samples, drop)
    _, variants = built(tmp_path, simulate_s=0)
    assert [variant.id for variant in variants] == shipped


def test_placement_is_by_what_the_simulator_took_and_not_by_what_was_predicted(
    losing, tmp_path, monkeypatch
):
    losing(24, 0.0, on_cpu=5)
    result, _ = built(tmp_path, simulate_s=0)
    refused = {each.variant: each for each in result.unused["android-qnn"]}
    assert refused[U16].stage == "refused"
    assert "sim 1 takes 50% of the nodes, 80% are needed" in refused[U16].reason
    losing(24, 0.0)
    monkeypatch.setattr(judging, "explain_unplaced", lambda *_: "predicted: none")
    _, variants = built(tmp_path, simulate_s=0)
    assert variants[0].id == U16


def test_warning_is_of_what_the_simulator_found(losing, tmp_path):
    losing(24, 0.2)
    result, _ = built(tmp_path, U16, simulate_s=0)
    assert any(f"{U16}: it loses 20% of fp32's top1" in each for each in result.warnings)


def test_limit_is_held_against_what_the_simulator_found(losing, tmp_path):
    losing(24, 0.2)
    project = tiny_models.write_project(tmp_path, "dims: {batch: 1}\nlimits: {metric_drop: 0.1}")
    result = build(project=project, targets=["android-qnn"], out=tmp_path / "dist", simulate_s=0)
    missed = {each.variant: each for each in result.unused["android-qnn"]}
    assert missed[U16].stage == "missed"
    assert "in the provider's simulator" in missed[U16].reason


U8 = "qnn-int8-static"


def searched(folder, **more):
    """Return what the search for a limit of SQNR did, and the variant."""
    project = tiny_models.write_project(folder, "dims: {batch: 1}\nlimits: {min_sqnr_db: 50}")
    result = build(
        project=project, targets=["android-qnn"], variants=[U8], out=folder / "dist", **more
    )
    [variant] = result.bundles[0].bundle.manifest.variants
    return [each for each in variant.tried if each.stage == "limit"], variant


@pytest.mark.slow(reason="searches in the simulator")
def test_limit_is_searched_for_in_the_simulator(tmp_path):
    lines, variant = searched(tmp_path)
    assert len(lines) > 1
    assert all(f" in {variant.simulated.simulator}" in each.why for each in lines)
    kept = [each for each in lines if each.kept][-1]
    assert kept.why.startswith("it meets the limit")
    there = variant.simulated.accuracy.worst.sqnr_db
    assert kept.sqnr_db == pytest.approx(there, abs=0.06)


@pytest.mark.slow(reason="searches for a limit")
@pytest.mark.parametrize("why", ["lost", "slow", "not asked"])
def test_limit_is_searched_for_on_the_cpu_where_the_simulator_cannot_decide(
    tmp_path, monkeypatch, why
):
    if why == "lost":
        lost = Simulator("lost-plugin", "3.1", "no_such_module")
        monkeypatch.setattr(simulators, "find_simulator", lambda *_: lost)
    lines, variant = searched(tmp_path, simulate_s={"slow": 1e-6, "not asked": 0}.get(why, 60))
    assert lines
    assert not any("lost-plugin" in each.why or "onnxruntime-qnn" in each.why for each in lines)
    kept = [each for each in lines if each.kept][-1]
    assert kept.sqnr_db == pytest.approx(variant.accuracy.worst.sqnr_db, abs=0.06)


@pytest.mark.parametrize(("allowed", "count"), [(1200, 24), (23, 16), (12, 8), (8, 8), (0, 1)])
def test_samples_when_the_simulator_is_slow_are_fewer_and_spread(tmp_path, allowed, count):
    images = tiny_models.images(24)
    spec = TensorSpec("image", "float32", (3, 8, 8))
    labels = np.arange(24)
    named = [(f"{n}", {"image": image}) for n, image in enumerate(images)]
    write_sample_set(tmp_path, [spec], named, labels)
    chosen = choose_samples(SampleSet.read(tmp_path), allowed)
    assert len(chosen) == count
    assert [int(name) for name in chosen.names] == chosen.labels.tolist()
    assert chosen.labels.tolist() == [number * 24 // count for number in range(count)]
    for number, inputs in zip(chosen.labels, chosen, strict=True):
        np.testing.assert_array_equal(inputs["image"], images[number])

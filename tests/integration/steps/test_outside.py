"""Inputs that no sample shows: what they break is found, mended where that is free, and said."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from edgepack.base.schema import NotMeasured
from edgepack.builder.build import build, dry_run
from edgepack.cli.building import print_build
from edgepack.errors import StepError
from edgepack.measure.bench.assemble import make_variant_facts
from edgepack.model.facts import read_signature
from edgepack.model.files import MODEL
from edgepack.model.reading import read_structure
from edgepack.model.running import make_session, run_session
from edgepack.ondevice.runtime.edgepack_loader import load
from edgepack.project.inputs import ImageInput, Stretch
from edgepack.quantization.search.outside import LEAST_ERROR, Outside
from edgepack.results.page.html import render_html
from edgepack.steps.base import read_notes
from edgepack.steps.proofs.outside import OUTSIDE, OutsideErrors, read_outside
from edgepack.steps.recipes.int8_static import Int8Static
from onnx import TensorProto, helper

from tests.support.doubles import worker_tasks
from tests.support.nets import int8_nets, tiny_models
from tests.support.reports.example_report import example_report

SHAPE = [1, 1, 4, 4]
COUNT = 16


def loud_net(path: Path) -> Path:
    """The input less 7, which lies near 0 for the samples of :func:`loud_feeds`, times weights."""
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["centred"], "first"),
        helper.make_node("Conv", ["centred", "w2"], ["y"], "second"),
    ]
    constants = [
        ("w1", np.ones((2, 1, 1, 1), np.float32)),
        ("b1", np.full(2, -7, np.float32)),
        ("w2", np.array([0.5, 0.7], np.float32).reshape(1, 2, 1, 1)),
    ]
    return saved(path, nodes, constants)


def loud_feeds(count: int = COUNT) -> np.ndarray:
    """Samples ``(count, *SHAPE)`` from 5 to 9: none is quiet."""
    return np.random.default_rng(1).uniform(5, 9, (count, *SHAPE)).astype(np.float32)


def hinge_net(path: Path) -> Path:
    """x + max(0, 1.4 - 2|x|): the second term is 0.2 at most where ``|x|`` is 0.6, 1.4 at 0."""
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["itself"], "itself"),
        helper.make_node("Conv", ["x", "w2"], ["signs"], "signs"),
        helper.make_node("Relu", ["signs"], ["sides"], "sides"),
        helper.make_node("Conv", ["sides", "w3", "b3"], ["inner"], "inner"),
        helper.make_node("Relu", ["inner"], ["hinge"], "hinge"),
        helper.make_node("Add", ["itself", "hinge"], ["sum"], "sum"),
        helper.make_node("Conv", ["sum", "w1"], ["y"], "last"),
    ]
    constants = [
        ("w1", np.ones((1, 1, 1, 1), np.float32)),
        ("w2", np.array([1, -1], np.float32).reshape(2, 1, 1, 1)),
        ("w3", np.full((1, 2, 1, 1), -2, np.float32)),
        ("b3", np.full(1, 1.4, np.float32)),
    ]
    return saved(path, nodes, constants)


def hinge_feeds(count: int = COUNT) -> np.ndarray:
    """Samples ``(count, *SHAPE)`` of either sign from 0.6 to 2 in size."""
    random = np.random.default_rng(2)
    sizes = random.uniform(0.6, 2, (count, *SHAPE))
    return (sizes * random.choice([-1, 1], sizes.shape)).astype(np.float32)


def saved(path, nodes, constants):
    value = (TensorProto.FLOAT, SHAPE)
    return tiny_models.save(path, nodes, [("x", *value)], [("y", *value)], constants)


def quantized(folder: Path, model: Path, samples: np.ndarray, *, mends: bool):
    """The folder of an int8 model, the outside of its inputs, and what that breaks."""
    feeds = [{"x": sample} for sample in samples]
    given = int8_nets.calibrated(folder, model, feeds)
    outside = Outside((("x", None),), read_signature(read_structure(model))[0], ())
    step = Int8Static(int8_nets.CPU, 13, cpu="x86-64", outside=outside if mends else None)
    int8_nets.run(step, given, folder / "int8")
    inputs = {"reference": given["model"], "model": folder / "int8", "samples": given["samples"]}
    int8_nets.run(OutsideErrors(outside, "x86-64"), inputs, folder / "outside")
    return inputs, read_outside(folder / "outside")


def test_silence_when_no_sample_is_quiet_is_found_with_its_error_in_deviations(tmp_path):
    samples = loud_feeds()
    model = loud_net(tmp_path / "net.onnx")
    inputs, found = quantized(tmp_path / "steps", model, samples, mends=False)
    sessions = [make_session(inputs[name] / MODEL) for name in ("reference", "model")]
    plain, silent = (
        [[run_session(session, {"x": x})["y"] for x in feeds] for session in sessions]
        for feeds in (samples, [np.zeros(SHAPE, np.float32)])
    )
    deviation = np.sqrt(np.mean((plain[0] - np.mean(plain[0], axis=0)) ** 2))
    due = np.sqrt(np.mean((silent[0][0] - silent[1][0]) ** 2)) / deviation
    (silence,) = (each for each in found if each["input"] == "silence")
    assert silence["error"] == pytest.approx(due, rel=1e-4)
    assert silence["error"] > 3  # about 5 is cut off, of values that deviate by 4 / sqrt(12)
    usual = np.sqrt(np.mean((np.subtract(*plain)) ** 2)) / deviation
    assert silence["plain"] == pytest.approx(usual, rel=1e-4)
    assert silence["plain"] < 0.1
    assert silence["output"] == "y"
    assert [each["error"] for each in found] == sorted([e["error"] for e in found], reverse=True)


def test_silence_when_holding_it_costs_the_samples_stays_broken_and_says_why(tmp_path):
    model = loud_net(tmp_path / "net.onnx")
    inputs, found = quantized(tmp_path / "steps", model, loud_feeds(), mends=True)
    assert "silence" in {each["input"] for each in found}
    tried = read_notes(inputs["model"]).facts["tried"]
    held, anew = (each for each in tried if "silence" in each["what"])
    assert not held["accepted"]
    assert "farther" in held["why"]
    assert anew["what"].startswith("all anew, with ")
    assert anew["why"].startswith("0 outputs are broken, and 3 were before; ")
    assert not anew["accepted"]


def test_silence_when_holding_it_costs_nothing_breaks_nothing_any_more(tmp_path):
    model = hinge_net(tmp_path / "net.onnx")
    _, broken = quantized(tmp_path / "as-it-is", model, hinge_feeds(), mends=False)
    assert "silence" in {each["input"] for each in broken}
    inputs, left = quantized(tmp_path / "mended", model, hinge_feeds(), mends=True)
    assert "silence" not in {each["input"] for each in left}
    tried = read_notes(inputs["model"]).facts["tried"]
    assert any(each["accepted"] for each in tried if each["what"].startswith("ranges that hold"))


def test_healthy_model_when_run_on_inputs_unlike_the_samples_says_nothing(tmp_path):
    model = tiny_models.conv_net(tmp_path / "net.onnx", batch=1)
    random = np.random.default_rng(3)
    levels = [0, 255, *random.uniform(0, 255, 22)]
    feeds = [
        {"image": np.clip(level + random.normal(0, 60, (1, 3, 8, 8)), 0, 255).astype(np.float32)}
        for level in levels
    ]
    given = int8_nets.calibrated(tmp_path / "steps", model, feeds)
    int8_nets.run(Int8Static(int8_nets.CPU, 13, cpu="x86-64"), given, tmp_path / "int8")
    picture = ImageInput(resize=Stretch(width=8, height=8))
    outside = Outside((("image", picture),), read_signature(read_structure(model))[0], ())
    inputs = {"reference": given["model"], "model": tmp_path / "int8", "samples": given["samples"]}
    notes = int8_nets.run(OutsideErrors(outside, "x86-64"), inputs, tmp_path / "outside")
    assert read_outside(tmp_path / "outside") == []
    assert notes.done.endswith("nothing")


def write_project(folder: Path) -> Path:
    """A project whose samples are never quiet."""
    folder.mkdir(exist_ok=True)
    loud_net(folder / "net.onnx")
    np.savez(folder / "samples.npz", x=loud_feeds())
    lines = ["schema_version: 1", "name: loud", "version: 1.0.0", "model: net.onnx", "samples:"]
    lines += [f"  {role}: {{path: samples.npz}}" for role in ("calibration", "evaluation")]
    path = folder / "edgepack.yaml"
    path.write_text("\n".join(lines) + "\n")
    return path


def built(project: Path, out: Path):
    """The result of a build for this host's CPU in int8."""
    return build(project=project, targets=["host"], variants=["cpu-int8-static"], out=out)


def test_build_when_silence_breaks_a_variant_warns_and_the_loader_counts_what_lies_outside(
    tmp_path,
):
    result = built(write_project(tmp_path), tmp_path / "dist")
    bundle = result.bundles[0].bundle
    (variant,) = bundle.manifest.variants
    assert "silence" in {each.input for each in variant.outside}
    assert all(each.error > LEAST_ERROR and each.output == "y" for each in variant.outside)
    (warning,) = (text for text in result.warnings if "varies by" in text)
    assert warning.startswith(f"{bundle.manifest.target} cpu-int8-static: with ")
    assert "silence (zeros)" in warning
    samples = loud_feeds()
    assert variant.input_ranges == {"x": (float(samples.min()), float(samples.max()))}
    model = load(bundle.path)
    model(samples[0])
    model(np.zeros(SHAPE, np.float32))
    assert model.outside == {"x": 0}
    model.counts_outside = True
    model(samples[0])
    model(np.zeros(SHAPE, np.float32))
    model(np.full(SHAPE, np.nan, np.float32))
    assert model.outside == {"x": 2}
    facts = make_variant_facts(bundle.manifest, variant)
    assert facts.outside == variant.outside
    assert facts.untold == variant.untold
    page = render_html([example_report(variants=[facts], variant_used=variant.id)])
    (silence,) = (each for each in variant.outside if each.input == "silence")
    row = f'silence (zeros)</th><td class="name">y</td><td class="n">{silence.error:.2g}</td>'
    assert row in page
    assert "Calibrated with &#39;x&#39; from 5" in page


@pytest.mark.slow(reason="takes seconds")
def test_variant_when_it_cannot_be_run_on_other_inputs_is_shipped_and_says_so(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr("edgepack.builder.planner.OutsideErrors", worker_tasks.RefusedProbing)
    monkeypatch.setenv("PYTHONPATH", str(Path(worker_tasks.__file__).parents[3]))
    result = built(write_project(tmp_path), tmp_path / "dist")
    result.require_all()
    (variant,) = result.bundles[0].bundle.manifest.variants
    assert variant.outside == NotMeasured(reason="no input can be changed")
    print_build(result)
    told = capsys.readouterr().out
    assert "cpu-int8-static was not run on inputs unlike the samples: no input can be" in told


def test_finding_when_it_is_forged_is_refused(tmp_path):
    inputs, _ = quantized(tmp_path, loud_net(tmp_path / "net.onnx"), loud_feeds(), mends=False)
    step = OutsideErrors(Outside((), (), ()), "x86-64")
    (tmp_path / "outside" / OUTSIDE).write_text('[{"output": "y", "error": 0.1}]')
    with pytest.raises(StepError, match=r"the error of 'y' is 0\.1"):
        step.verify(inputs, tmp_path / "outside")


def test_plan_when_inputs_are_masks_ids_or_states_changes_the_others_alone(tmp_path):
    """``frame_score`` is no next value of ``frame``: it has another rank."""
    value = TensorProto.FLOAT
    floats = {"frame": [1, 4], "mask": [1, "length"], "state": [1, 4], "sound": [1, "length"]}
    inputs = [(name, value, shape) for name, shape in floats.items()]
    inputs += [("picture", TensorProto.UINT8, [4, 4, 3]), ("ids", TensorProto.INT64, [1, "length"])]
    outputs = [("stateN", value, [1, 4]), ("frame_score", value, [1]), ("y", value, [1, "length"])]
    nodes = [
        helper.make_node("Relu", ["state"], ["stateN"]),
        helper.make_node("ReduceMax", ["frame"], ["frame_score"], axes=[1], keepdims=0),
        helper.make_node("Mul", ["mask", "sound"], ["y"]),
        helper.make_node("Identity", ["picture"], ["unused"]),
        helper.make_node("Identity", ["ids"], ["unused too"]),
    ]
    tiny_models.save(tmp_path / "net.onnx", nodes, inputs, outputs)
    arrays = {
        "frame": np.ones((2, 1, 4), np.float32),
        "mask": np.ones((2, 1, 6), np.float32),
        "state": np.ones((2, 1, 4), np.float32),
        "sound": np.ones((2, 1, 6), np.float32),
        "picture": np.ones((2, 4, 4, 3), np.uint8),
        "ids": np.ones((2, 1, 6), np.int64),
    }
    np.savez(tmp_path / "samples.npz", **arrays)
    (tmp_path / "edgepack.yaml").write_text(
        "schema_version: 1\nname: net\nversion: 1.0.0\nmodel: net.onnx\n"
        "inputs: {mask: {mask: length}}\ndims: {length: [4, 6, 8]}\n"
        "state: {stateN: state}\n"
        "samples: {calibration: {path: samples.npz}}\n"
    )
    plan = dry_run(project=tmp_path / "edgepack.yaml", targets=["host"])
    (step,) = (planned.step for planned in plan.steps if planned.step.name == "outside-errors")
    assert [name for name, _ in step.outside.changed] == ["frame", "sound", "picture"]  # type: ignore[attr-defined]
    assert step.outside.sizes == (("length", (4, 8)),)  # type: ignore[attr-defined]
    made = {variant.variant.recipe: variant.outside for variant in plan.bundles[0].variants}
    assert made["int8-static"] is not None
    assert made["fp32"] is None

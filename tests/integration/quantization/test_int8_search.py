"""int8 that is searched for: what is kept, repaired, refused, and what a limit makes of it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from edgepack.builder.build import build, dry_run
from edgepack.errors import LimitError, ModelError, StepError
from edgepack.metrics.accuracy import min_sqnr_db
from edgepack.model.facts import read_signature
from edgepack.model.files import MODEL
from edgepack.model.reading import read_structure
from edgepack.model.running import make_session, run_session
from edgepack.project.limits import Limits
from edgepack.project.samples import PythonMetric
from edgepack.quantization.search import improving
from edgepack.samples.sample_set import write_sample_set
from edgepack.steps.recipes.int8_static import Int8Static
from edgepack.steps.recipes.kind import LimitSearch
from onnx import TensorProto, helper, numpy_helper

from tests.support.nets import int8_nets, tiny_models

FLOAT = np.float32
CHANNELS = 8


def dead_channel_net(path, *, spoilt=(1,), gain=None, weight=4000.0):
    """Image [1, 8, 4, 4] through four convolutions; of the input, channel 0 is always zero.

    Of those that are spoilt, one weight is thousands of times as large as the others; the inputs
    that it meets are zero, so it changes nothing, but with one scale for the tensor the others
    become zero. ``gain`` multiplies the output before a sine, which makes noise of any error.
    """
    random = np.random.default_rng(7)
    nodes, constants, last = [], [], "image"
    for n in range(4):
        weights = random.standard_normal((CHANNELS, CHANNELS, 1, 1)).astype(FLOAT) / 3
        weights[0] = weights[:, 0] = 0
        if n in spoilt:
            weights[3, 0] = weight
        constants.append((f"w{n}", weights))
        nodes.append(helper.make_node("Conv", [last, f"w{n}"], [f"c{n}"], f"conv{n}"))
        last = f"c{n}"
    if gain is not None:
        nodes.append(helper.make_node("Mul", [last, "gain"], ["m"], "amplified"))
        nodes.append(helper.make_node("Sin", ["m"], ["y"], "sine"))
        constants.append(("gain", np.array(gain, FLOAT)))
    else:
        nodes[-1].output[0] = "y"
    value = (TensorProto.FLOAT, [1, CHANNELS, 4, 4])
    return tiny_models.save(path, nodes, [("image", *value)], [("y", *value)], constants)


def dead_channel_feeds(count=12, seed=3):
    images = np.random.default_rng(seed).standard_normal((count, 1, CHANNELS, 4, 4)).astype(FLOAT)
    images[:, :, 0] = 0
    return [{"image": image} for image in images]


def quantized(tmp_path, model, dialect, **settings):
    inputs = int8_nets.calibrated(tmp_path / "steps", model, dead_channel_feeds())
    return int8_nets.run(Int8Static(dialect, 13, **settings), inputs, tmp_path / "out")


def unseen_db(model, other, seed=99):
    """SQNR of a model against another, both as onnxruntime runs them, on samples of its own."""
    reference, found = {}, {}
    sessions = make_session(model), make_session(other)
    for n, feed in enumerate(dead_channel_feeds(6, seed)):
        reference[n], found[n] = (run_session(session, feed)["y"] for session in sessions)
    return min_sqnr_db(
        {"all": np.stack(list(reference.values()))}, {"all": np.stack(list(found.values()))}
    )


@pytest.mark.parametrize("name", ["qnn-8", "tensorrt"])
def test_layer_when_it_would_make_noise_of_the_outputs_is_repaired(tmp_path, name):
    model = dead_channel_net(tmp_path / "net.onnx")
    dialect = int8_nets.DIALECTS[name].model_copy(update={"per_channel": False})
    notes = quantized(tmp_path, model, dialect)
    assert unseen_db(model, tmp_path / "out" / MODEL) > 15
    plain = next(e for e in notes.facts["tried"] if "nearest rounding" in e["what"])
    assert plain["sqnr_db"] < 1
    assert "conv3" not in notes.facts["left_float"]


def test_model_when_it_stays_noise_is_refused(tmp_path):
    model = dead_channel_net(tmp_path / "net.onnx", spoilt=(), gain=1e5)
    with pytest.raises(
        StepError, match=r"int8 gives noise: .*; tried: .*nearest rounding"
    ) as refusal:
        quantized(tmp_path, model, int8_nets.TENSORRT)
    assert "--variant cpu-fp32" in refusal.value.hint


def test_model_when_quantized_twice_is_the_same_to_the_byte(tmp_path):
    model = dead_channel_net(tmp_path / "net.onnx")
    notes = [quantized(tmp_path / side, model, int8_nets.QNN_8) for side in "ab"]
    one, two = ((tmp_path / side / "out" / MODEL).read_bytes() for side in "ab")
    assert one == two
    assert notes[0] == notes[1]


def test_activations_when_choosing_them_fails_are_as_they_were_and_weights_rounded(
    tmp_path, monkeypatch
):
    def fail(*_):
        raise ModelError("onnxruntime refuses it", hint="")

    monkeypatch.setattr(improving, "choose_activations", fail)
    notes = quantized(tmp_path, dead_channel_net(tmp_path / "net.onnx", spoilt=()), int8_nets.CPU)
    tried = {each["what"]: each["accepted"] for each in notes.facts["tried"]}
    name = "choosing how activations are quantized failed, onnxruntime refuses it"
    assert tried[name] is False
    assert improving.ROUNDED in tried


METRIC = """
import os
import numpy as np

def score(outputs, labels):
    values = np.stack([each["y"] for each in outputs])
    with open("calls", "a") as file:
        file.write("x")
    if not os.path.exists("first.npy"):
        np.save("first.npy", values)
    return -float(np.abs(values - np.load("first.npy")).mean())
"""


def test_metric_when_it_is_a_function_is_asked_of_fp32_once(tmp_path):
    model = dead_channel_net(tmp_path / "net.onnx", spoilt=())
    inputs = int8_nets.calibrated(tmp_path / "steps", model, dead_channel_feeds())
    evaluation, project = tmp_path / "evaluation", tmp_path / "project"
    evaluation.mkdir()
    project.mkdir()
    (project / "mymetric.py").write_text(METRIC)
    named = [(str(n), feed) for n, feed in enumerate(dead_channel_feeds(4, seed=8))]
    write_sample_set(evaluation, read_signature(read_structure(model))[0], named)
    metric = PythonMetric(python="mymetric:score", higher_is_better=True)
    step = Int8Static(
        int8_nets.CPU, 13, search=LimitSearch(Limits(metric_drop=0.0), metric, interpreter=None)
    )
    inputs |= {"reference": inputs["model"], "evaluation": evaluation, "project": project}
    notes = int8_nets.run(step, inputs, tmp_path / "out")
    drops = [e["metric_drop"] for e in notes.facts["tried"] if e["on"] == "evaluation"]
    assert len(drops) > 1
    assert all(drop > 0 for drop in drops)
    assert len((project / "calls").read_text()) == 1 + len(drops)


def test_verify_when_16_bits_were_allowed_refuses_an_operator_of_two_widths(tmp_path):
    model = dead_channel_net(tmp_path / "net.onnx", spoilt=())
    quantized(tmp_path, model, int8_nets.QNN_8)
    steps, path = tmp_path / "steps", tmp_path / "out" / MODEL
    inputs = {name: steps / name for name in ("model", "samples", "statistics")}
    step = Int8Static(int8_nets.QNN_8, 21, mixed=True)
    step.verify(inputs, tmp_path / "out")
    file = onnx.load(path)
    quantizer = next(n for n in file.graph.node if n.input[0] == "c1")
    for node in (quantizer, next(n for n in file.graph.node if n.input[0] == quantizer.output[0])):
        node.input[2] = "wide"
        node.domain = "com.microsoft"
    file.graph.initializer.append(numpy_helper.from_array(np.array(0, np.uint16), "wide"))
    file.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    onnx.save(file, path)
    with pytest.raises(StepError, match="has activations of 8 and of 16 bits"):
        step.verify(inputs, tmp_path / "out")


def write_project(folder, limits=""):
    """A project whose int8 is worse than it need be, with samples for both purposes."""
    folder.mkdir(exist_ok=True)
    dead_channel_net(folder / "net.onnx", weight=20.0)
    # With many samples hardly anything is cut off at the ends of ranges: rounding is what counts.
    for name, count in (("cal", 200), ("eval", 16)):
        images = np.concatenate([feed["image"] for feed in dead_channel_feeds(count, count)])
        np.savez(folder / f"{name}.npz", image=images)
    path = folder / "edgepack.yaml"
    path.write_text(
        "schema_version: 1\nname: net\nmodel: net.onnx\n"
        "samples:\n  calibration: {path: cal.npz}\n  evaluation: {path: eval.npz}\n" + limits
    )
    return path


def built(folder, limits=""):
    project = write_project(folder, limits)
    return build(
        project=project, targets=["raspberry-pi"], variants=["cpu-int8-static", "cpu-fp32"],
        out=folder / "dist",
    )  # fmt: skip


def int8_of(result):
    variants = result.bundles[0].bundle.manifest.variants
    return next((v for v in variants if v.id == "cpu-int8-static"), None)


def test_plan_lets_those_providers_take_16_bits_that_can(tmp_path):
    project = write_project(tmp_path)
    plan = dry_run(project=project, targets=["android-qnn", "jetson"])
    by_id = {step.id: step for step in plan.steps}
    mixed = {}
    for bundle in plan.bundles:
        for variant in bundle.variants:
            if variant.variant.recipe == "int8-static":
                step = by_id[variant.model]
                mixed[variant.variant.id] = step.step.mixed  # type: ignore[attr-defined]
                opset = by_id[step.inputs["model"]].step.minimum  # type: ignore[attr-defined]
                assert opset == (21 if step.step.mixed or "u16" in variant.variant.id else 13)  # type: ignore[attr-defined]
    assert mixed == {
        "qnn-int8-static-u16": False,
        "qnn-int8-static": True,
        "cpu-int8-static": False,
        "tensorrt-int8-static": False,
    }


@pytest.mark.slow(reason="takes seconds")
def test_limit_when_int8_misses_it_leaves_float_what_it_must(tmp_path):
    without = int8_of(built(tmp_path / "a")).accuracy.worst.sqnr_db
    result = built(tmp_path / "b", f"limits: {{min_sqnr_db: {without + 2:.1f}}}\n")
    shipped = int8_of(result)
    assert shipped.accuracy.worst.sqnr_db >= without + 2
    model = onnx.load(result.bundles[0].bundle.path / shipped.model)
    kinds = {t.name: t.data_type for t in model.graph.initializer}
    weights = [kinds.get(n.input[1]) for n in model.graph.node if n.op_type == "Conv"]
    assert 1 <= weights.count(TensorProto.FLOAT) <= 3
    again = built(tmp_path / "b", f"limits: {{min_sqnr_db: {without + 2:.1f}}}\n")
    assert again.from_cache == again.steps


@pytest.mark.slow(reason="takes seconds")
def test_limit_when_out_of_reach_names_what_was_tried_and_the_best(tmp_path):
    result = built(tmp_path / "a", "limits: {min_sqnr_db: 90}\n")
    assert int8_of(result) is None
    with pytest.raises(LimitError, match="the limit is 90 dB") as missed:
        result.require_all()
    assert missed.value.exit_code == 10
    assert "this is the best of what was tried: " in str(missed.value)
    assert "float: " in str(missed.value)

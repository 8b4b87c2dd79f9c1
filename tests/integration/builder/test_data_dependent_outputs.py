"""int8 models with outputs that have as many values as the data say."""

from __future__ import annotations

import json

import numpy as np
import pytest
from edgepack.model.files import MODEL
from edgepack.model.running import make_session, run_session
from edgepack.quantization.search.closeness import split_samples
from edgepack.steps.proofs.evaluation import EVALUATION, Evaluation
from edgepack.steps.recipes.int8_static import Int8Static
from onnx import TensorProto, helper

from tests.support.nets import int8_nets, tiny_models

SAMPLES = 12


def net(path, *, with_map):
    """Image [1, 3, 8, 8] to the places [4, n] where a feature is above 0.5, and to the features."""
    random = np.random.default_rng(6)
    nodes = [
        helper.make_node("Conv", ["image", "w1", "b1"], ["c"], "first", pads=[1] * 4),
        helper.make_node("Relu", ["c"], ["r"], "relu"),
        helper.make_node("Conv", ["r", "w2", "b2"], ["features"], "second"),
        helper.make_node("Greater", ["features", "bar"], ["above"], "above"),
        helper.make_node("NonZero", ["above"], ["where"], "where"),
    ]
    constants = [("bar", np.float32([0.5]))]
    for n, shape in (("1", (8, 3, 3, 3)), ("2", (4, 8, 1, 1))):
        weights = random.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
        constants.append((f"w{n}", weights.astype(np.float32)))
        constants.append((f"b{n}", random.standard_normal(shape[0]).astype(np.float32)))
    outputs = [("where", TensorProto.INT64, [4, "n"])]
    if with_map:
        outputs.append(("features", TensorProto.FLOAT, [1, 4, 8, 8]))
    image = ("image", TensorProto.FLOAT, [1, 3, 8, 8])
    return tiny_models.save(path, nodes, [image], outputs, constants)


def steps(folder, *, with_map):
    model = net(folder / "net.onnx", with_map=with_map)
    inputs = int8_nets.calibrated(folder / "steps", model, int8_nets.image_feeds(SAMPLES))
    return inputs, Int8Static(int8_nets.CPU, 13, cpu="x86-64")


def test_int8_when_an_output_depends_on_the_data_is_judged_by_the_others(tmp_path):
    inputs, step = steps(tmp_path, with_map=True)
    notes = int8_nets.run(step, inputs, tmp_path / "int8")
    exact, found = (
        [run_session(make_session(folder / MODEL), feed) for feed in int8_nets.image_feeds(SAMPLES)]
        for folder in (inputs["model"], tmp_path / "int8")
    )
    counts = [[outputs["where"].shape[1] for outputs in each] for each in (exact, found)]
    differing = sum(a != b for a, b in zip(*counts, strict=True))
    assert differing > 0
    assert not notes.facts["left_float"]
    kept = [line for line in notes.facts["tried"] if line["accepted"]]
    assert kept[-1]["sqnr_db"] > 20

    given = {"reference": inputs["model"], "model": tmp_path / "int8", "samples": inputs["samples"]}
    said = int8_nets.run(Evaluation(None, None, (), None, "x86-64"), given, tmp_path / "evaluation")
    assert f"'where' has another shape than fp32's in {differing} of {SAMPLES} samples" in said.done
    result = json.loads((tmp_path / "evaluation" / EVALUATION).read_text())
    features = [np.stack([outputs["features"] for outputs in each]) for each in (exact, found)]
    channels = [np.moveaxis(each, 2, 0).reshape(4, -1).astype(float) for each in features]
    least = min(
        10 * np.log10(np.sum(a**2) / np.sum((a - b) ** 2)) for a, b in zip(*channels, strict=True)
    )
    assert result["worst"]["output"] == "features"
    assert result["worst"]["sqnr_db"] >= least
    assert result["worst"]["cosine"] > 0.99


def test_int8_when_all_outputs_depend_on_the_data_is_judged_by_their_sizes(tmp_path):
    inputs, step = steps(tmp_path, with_map=False)
    notes = int8_nets.run(step, inputs, tmp_path / "int8")
    exact, found = (places(folder) for folder in (inputs["model"], tmp_path / "int8"))
    held_out = split_samples(SAMPLES).held_out
    errors = [error(exact[n], found[n]) for n in held_out]
    assert sum(exact[n].shape != found[n].shape for n in held_out) > 0
    expected_db = 10 * np.log10(sum(exact[n].size for n in held_out) / sum(errors))
    kept = [line for line in notes.facts["tried"] if line["accepted"]]
    assert kept[-1]["sqnr_db"] == pytest.approx(expected_db, abs=0.06)


def places(folder):
    session = make_session(folder / MODEL)
    return [run_session(session, feed)["where"] for feed in int8_nets.image_feeds(SAMPLES)]


def error(exact, found):
    if exact.shape == found.shape:
        return np.sum(exact != found)
    return abs(exact.size - found.size)

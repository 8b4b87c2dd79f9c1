"""Detections in several outputs, from a build to predict and try: each cell is a box."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from edgepack.builder.build import build
from edgepack.cli.main import run
from edgepack.devices.inventory import load_device
from edgepack.errors import ProfileError
from edgepack.measure.evaluate.evaluate import evaluate
from edgepack.project.loading import read_project
from onnx import TensorProto, helper
from PIL import Image

from tests.integration.builder import test_labelled_boxes as labelled
from tests.support.nets.tiny_models import save
from tests.support.reports.tiny_bundle import import_loader

SIDE, CELL, CELLS = labelled.SIDE, labelled.CELL, np.array(labelled.CELLS, np.float32)
FLOAT = TensorProto.FLOAT
project = labelled.project
node = helper.make_node
CORNERS = np.hstack([CELLS - CELL / 2, CELLS + CELL / 2]).astype(np.float32)
NONE = np.zeros((1, len(CELLS), 1), np.float32)


def save_net(path: Path, nodes, constants, outputs) -> None:
    """Write a net that has the colours of each cell as ``(1, 16, 3)``."""
    weights = np.zeros((3, 3, CELL, CELL), np.float32)
    for colour in range(3):
        weights[colour, colour] = 1 / CELL**2
    before = [
        node("Conv", ["image", "w"], ["means"], "conv", strides=[CELL, CELL]),
        node("Reshape", ["means", "flat"], ["by_class"], "flatten"),
        node("Transpose", ["by_class"], ["colours"], "turn", perm=[0, 2, 1]),
        # Boxes come of the picture, as they do in models.
        node("ReduceMax", ["colours"], ["any"], "any", axes=[2], keepdims=1),
        node("Mul", ["any", "zero"], ["nothing"], "nothing"),
        node("Add", ["nothing", "cells"], ["boxes"], "boxes"),
    ]
    flat = ("flat", np.array([1, 3, len(CELLS)], np.int64))
    constants = [("w", weights), flat, ("zero", np.zeros(1, np.float32)), *constants]
    given = [(name, FLOAT, [1, len(CELLS), *rest]) for name, *rest in outputs]
    save(path, [*before, *nodes], [("image", FLOAT, [1, 3, SIDE, SIDE])], given, constants)


def faces(path: Path) -> None:
    """As UltraFace: scores with a background come first, then normalized corners."""
    nodes = [node("Concat", ["none", "colours"], ["scores"], "scores", axis=2)]
    constants = [("none", NONE), ("cells", CORNERS[None] / SIDE)]
    save_net(path, nodes, constants, [("scores", 4), ("boxes", 4)])


def priors(path: Path) -> None:
    """As RetinaFace, without suppression: offsets to priors, which are half as large as cells."""
    nodes = [node("Identity", ["colours"], ["scores"], "scores")]
    # Half a cell is a tenth of a prior's 5 times; twice as large is exp(0.2 * log(2) / 0.2).
    cells = np.tile(np.float32([5, 5, np.log(2) / 0.2, np.log(2) / 0.2]), (1, len(CELLS), 1))
    save_net(path, nodes, [("cells", cells)], [("boxes", 4), ("scores", 3)])
    side = CELL / 2 / SIDE
    lines = [f"{x},{y},{side},{side}" for x, y in ((CELLS - CELL / 4) / SIDE).tolist()]
    (path.parent / "priors.txt").write_text("\n".join(lines) + "\n")


def tensorflow(path: Path) -> None:
    """As TensorFlow's detection API: top, left, bottom, right, a score, and classes from 1 on."""
    nodes = [
        node("ReduceMax", ["colours"], ["scores"], "best", axes=[2], keepdims=0),
        node("ArgMax", ["colours"], ["index"], "index", axis=2, keepdims=0),
        node("Cast", ["index"], ["named"], "cast", to=FLOAT),
        node("Add", ["named", "one"], ["classes"], "from_one"),
    ]
    cells = CORNERS[None, :, [1, 0, 3, 2]] / SIDE
    constants = [("cells", cells), ("one", np.ones(1, np.float32))]
    save_net(path, nodes, constants, [("boxes", 4), ("classes",), ("scores",)])


NETS = {
    "scores: scores, background: true": faces,
    "scores: scores, priors: priors.txt": priors,
    "scores: scores, classes: classes, box: corners_yx, background: true": tensorflow,
}


def described_as(project: Path, keys: str) -> None:
    labelled.replaced(
        project,
        "output0: {kind: detection, layout: yolo",
        f"boxes: {{kind: detection, layout: ssd, {keys}",
    )
    if "priors" in keys:
        labelled.replaced(project, "files: [names.txt]", "files: [names.txt, priors.txt]")


@pytest.mark.parametrize("keys", NETS)
def test_ssd_when_built_is_judged_by_labels_predicted_and_tried(project, keys, capsys):
    folder = project.parent
    NETS[keys](folder / "model.onnx")
    described_as(project, keys)
    built = build(project=project, out=folder / "dist").bundles[0].bundle
    accuracy = built.manifest.variants[0].accuracy
    assert (accuracy.metric, accuracy.fp32, accuracy.value) == ("map", 1, 1)
    # The outputs that it is read with are not judged by themselves.
    assert {name: (each.metric, each.value) for name, each in accuracy.outputs.items()} == {
        "boxes": ("f1@0.5", 1)
    }
    assert accuracy.agreement is None
    pixels = np.zeros((32, 64, 3), np.uint8)
    pixels[16:, 32:48, 2], pixels[:16, :16, 0] = 250, 200
    model = import_loader().load(built.path)
    answers = model.predict(pixels)
    assert list(answers) == ["boxes"]
    first, second = answers["boxes"]
    assert (first.label, first.box) == ("blue", pytest.approx((32, 16, 48, 32), abs=1e-4))
    assert (second.label, second.box) == ("red", pytest.approx((0, 0, 16, 16), abs=1e-4))
    assert 0.7 < second.score < 200 / 255 < first.score < 250 / 255
    Image.fromarray(pixels).save(folder / "photo.png")
    assert run(["try", str(built.path), str(folder / "photo.png"), "--json"]) == 0
    tried = json.loads(capsys.readouterr().out)["inputs"][0]["outputs"]
    assert list(tried) == ["boxes"]
    found = tried["boxes"]["variants"]["cpu-fp32"]["answers"]
    assert [each["label"] for each in found] == ["blue", "red"]


@pytest.mark.parametrize("keys", NETS)
def test_ssd_when_in_int8_keeps_the_objects(project, keys):
    NETS[keys](project.parent / "model.onnx")
    described_as(project, keys)
    labelled.replaced(project, "recipe: fp32", "recipe: int8-static")
    assert labelled.built(project).value > 0.9


def test_ssd_when_the_form_is_another_is_refused_with_the_one_that_fits(project):
    faces(project.parent / "model.onnx")
    described_as(project, "scores: scores, background: true, box: centre, normalized: false")
    with pytest.raises(ProfileError) as caught:
        build(project=project, out=project.parent / "dist")
    assert caught.value.hint == "box: corners, normalized: true fits"


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ("scores: scoers", "the model has no output 'scoers'"),
        ("scores: boxes", "'boxes' is described twice: here and by 'boxes'"),
        ("scores: scores, classes: scores", "'scores' is described twice: here and by 'scores'"),
        ("scores: classes", r"classes: .*\[1, 16\]; for the layout 'ssd' .* \[1, 16, 3\]"),
        ("scores: scores, classes: classes, priors: other.txt", "none of the project's files"),
        ("scores: scores, classes: classes, priors: names.txt", "line 1 is 'red', expected four"),
        ("scores: scores, classes: classes, priors: few.txt", "has 1 boxes, and the output is"),
    ],
)
def test_ssd_when_outputs_or_files_do_not_fit_is_refused(project, keys, problem):
    tensorflow(project.parent / "model.onnx")
    (project.parent / "few.txt").write_text("0.5,0.5,1,1\n")
    described_as(project, keys)
    labelled.replaced(project, "files: [names.txt", "files: [few.txt, names.txt")
    if "priors: " in keys:
        labelled.replaced(project, ", priors.txt]", "]")
    with pytest.raises(ProfileError, match=problem) as caught:
        build(project=project, out=project.parent / "dist")
    assert caught.value.hint


def test_ssd_when_two_descriptions_name_an_output_is_refused(project):
    tensorflow(project.parent / "model.onnx")
    described_as(project, "scores: scores, classes: classes")
    labelled.replaced(project, "outputs: {", "outputs: {scores: {kind: probability}, ")
    with pytest.raises(ProfileError, match="'scores' is described twice: here and by 'scores'"):
        build(project=project, out=project.parent / "dist")


def test_ssd_when_priors_of_an_older_project_are_broken_is_a_clear_error(project):
    priors(project.parent / "model.onnx")
    described_as(project, "scores: scores, priors: priors.txt")
    (project.parent / "priors.txt").write_text("0.5,0.5,1\n")
    with pytest.raises(ProfileError, match=r"the priors 'priors.txt' cannot be read: line 1 is"):
        read_project(project).describe_outputs()


@pytest.mark.slow(reason="evaluates on a device")
@pytest.mark.parametrize("labels", [True, False])
def test_ssd_when_evaluated_on_a_device_has_the_metric_of_the_build(project, labels):
    tensorflow(project.parent / "model.onnx")
    described_as(project, "scores: scores, classes: classes, box: corners_yx, background: true")
    if not labels:
        labelled.replaced(project, ", labels: annotations.json, metric: map", "")
    built = build(project=project, out=project.parent / "dist").bundles[0].bundle
    found = evaluate(built.path, load_device("local"), project=project)
    assert found.measured == built.manifest.variants[0].accuracy
    assert found.measured.metric == ("map" if labels else "f1@0.5")


def test_ssd_when_scores_are_the_first_output_takes_them_for_no_class_scores(project):
    described_as(project, "scores: scores, background: true")
    assert read_project(project).find_scores_output(["scores", "boxes"]) is None

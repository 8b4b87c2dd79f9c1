"""A detector with keypoints, from a build to predict and try: each cell is a box with two."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from edgepack.builder.build import build
from edgepack.cli.main import run
from edgepack.errors import ProfileError
from edgepack.ondevice.runtime.edgepack_answers import Keypoint
from edgepack.trying import drawing
from onnx import helper
from PIL import Image

from tests.integration.builder import test_labelled_boxes as labelled
from tests.integration.builder.test_layouts import CELL, CELLS, save_net
from tests.support.reports.tiny_bundle import import_loader

project = labelled.project
LAYOUT = "layout: yolo"


def pose(path: Path) -> None:
    """Cells with scores, and two keypoints each: the centre, and one left above it."""
    sizes = np.full_like(CELLS, CELL)
    ones = np.ones((len(CELLS), 1), np.float32)
    constants = [
        ("cells", np.hstack([CELLS, sizes])[None]),
        ("points", np.hstack([CELLS, 0.75 * ones, CELLS - 2, 0.25 * ones])[None]),
    ]
    nodes = [helper.make_node("Concat", ["cells", "scores", "points"], ["output0"], "rows", axis=2)]
    save_net(path, nodes, constants, [1, len(CELLS), 13])


@pytest.fixture
def posed(project: Path) -> Path:
    pose(project.parent / "model.onnx")
    labelled.replaced(project, LAYOUT, f"{LAYOUT}, keypoints: 2")
    return project


def test_keypoints_when_built_are_predicted_and_tried(posed, capsys):
    folder = posed.parent
    built = build(project=posed, out=folder / "dist").bundles[0].bundle
    described = built.manifest.output_descriptions["output0"]
    assert (described.keypoints, described.keypoint_values) == (2, 3)
    accuracy = built.manifest.variants[0].accuracy
    assert (accuracy.metric, accuracy.value, accuracy.outputs["output0"].value) == ("map", 1, 1)
    pixels = np.zeros((32, 64, 3), np.uint8)
    pixels[16:, 32:48, 2] = 250
    (found,) = import_loader().load(built.path).predict(pixels)["output0"]
    assert found.box == pytest.approx((32, 16, 48, 32))
    # The picture is twice as large as its place in the input.
    flat = [(each.x, each.y, each.score) for each in found.keypoints]
    assert flat == [pytest.approx((40, 24, 0.75)), pytest.approx((36, 20, 0.25))]
    Image.fromarray(pixels).save(folder / "photo.png")
    assert run(["try", str(built.path), str(folder / "photo.png"), "--json"]) == 0
    tried = json.loads(capsys.readouterr().out)["inputs"][0]["outputs"]["output0"]
    (told,) = tried["variants"]["cpu-fp32"]["answers"]
    assert told["keypoints"][0] == {"x": 40.0, "y": 24.0, "score": 0.75}


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (
            "layout: yolo, keypoints: 4",
            r"with 3 labels and 4 keypoints of 3 values is \[1, boxes, 19",
        ),
        (
            "layout: yolo, keypoints: 2, keypoint_values: 2",
            r"2 keypoints of 2 values is \[1, boxes",
        ),
        ("layout: end2end, keypoints: 2", r"'end2end' with 3 labels and 2 keypoints of 3 values"),
        ("layout: yolov5, keypoints: 2", "'keypoints' belong to the layouts yolo and end2end"),
        ("layout: yolo, keypoint_values: 2", "'keypoints' and 'keypoint_values' go together"),
        ("layout: yolo, keypoints: 2, keypoint_values: null", "go together"),
        ("layout: yolo, keypoints: 2, keypoint_values: 4", "keypoint_values"),
        ("layout: yolo, keypoints: 0", "it must be greater than 0"),
    ],
)
def test_keypoints_when_they_do_not_fit_are_refused(project, line, problem):
    pose(project.parent / "model.onnx")
    labelled.replaced(project, LAYOUT, line)
    with pytest.raises(ProfileError, match=problem):
        build(project=project, out=project.parent / "dist")


def test_keypoints_when_more_than_the_row_holds_are_refused_without_labels_too(project):
    pose(project.parent / "model.onnx")
    labelled.replaced(project, f"{LAYOUT}, labels: names.txt", f"{LAYOUT}, keypoints: 3")
    with pytest.raises(ProfileError, match="a box and 3 keypoints of 3 values has 13 values and"):
        build(project=project, out=project.parent / "dist")


def test_keypoints_when_drawn_are_where_the_model_sees_them():
    points = [Keypoint(20, 30, 0.9), Keypoint(40, 30, None), Keypoint(60, 30, 0.4)]
    mark = drawing.BoxMark((10, 10, 70, 70), "a", "agrees", points)
    # The picture is drawn seven times as large.
    drawn = drawing.draw_boxes(np.zeros((80, 80, 3), np.uint8), [mark])
    found = [drawn.getpixel((7 * each.x, 7 * each.y)) for each in points]
    assert found == [drawing.COLOURS["agrees"]] * 2 + [(0, 0, 0)]

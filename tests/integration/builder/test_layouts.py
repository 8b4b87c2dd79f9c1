"""Detections as exporters write them, from a build to predict and try: each cell is a box."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from edgepack.builder.build import build
from edgepack.cli.main import run
from edgepack.errors import ProfileError
from onnx import TensorProto, helper
from PIL import Image

from tests.integration.builder import test_labelled_boxes as labelled
from tests.support.nets.tiny_models import save
from tests.support.reports.tiny_bundle import import_loader

SIDE, CELL, NAMES = labelled.SIDE, labelled.CELL, labelled.NAMES
CELLS = np.array(labelled.CELLS, np.float32)
FLOAT = TensorProto.FLOAT
project = labelled.project


def save_net(path: Path, nodes, constants, shape) -> None:
    """Write a net from the colours of each cell, ``scores`` ``(1, 16, 3)``, to ``output0``."""
    weights = np.zeros((3, 3, CELL, CELL), np.float32)
    for colour in range(3):
        weights[colour, colour] = 1 / CELL**2
    node = helper.make_node
    before = [
        node("Conv", ["image", "w"], ["means"], "conv", strides=[CELL, CELL]),
        node("Reshape", ["means", "flat"], ["by_class"], "flatten"),
        node("Transpose", ["by_class"], ["scores"], "turn", perm=[0, 2, 1]),
    ]
    flat = ("flat", np.array([1, 3, len(CELLS)], np.int64))
    inputs, outputs = [("image", FLOAT, [1, 3, SIDE, SIDE])], [("output0", FLOAT, shape)]
    save(path, [*before, *nodes], inputs, outputs, [("w", weights), flat, *constants])


def yolox(path: Path) -> None:
    """Offsets, logarithms and an object's score for each cell, then grids that find nothing."""
    node = helper.make_node
    nodes = [
        node("Mul", ["scores", "twice"], ["classes"], "twice"),
        node("Concat", ["values", "classes"], ["fine"], "values", axis=2),
        node("Concat", ["fine", "coarse"], ["output0"], "grids", axis=1),
    ]
    values = np.tile(np.float32([0.5, 0.5, 0, 0, 0.5]), (1, len(CELLS), 1))
    coarse = np.tile(np.float32([0.5, 0.5, 0, 0, 0.01, 1, 1, 1]), (1, 5, 1))
    constants = [("twice", np.float32([2])), ("values", values), ("coarse", coarse)]
    save_net(path, nodes, constants, [1, len(CELLS) + 5, 8])


def end2end(path: Path) -> None:
    """The best twelve cells as corners, with score and class, and rows without an object."""
    node = helper.make_node
    nodes = [
        node("ReduceMax", ["scores"], ["best"], "best", axes=[2], keepdims=1),
        node("ArgMax", ["scores"], ["index"], "index", axis=2, keepdims=1),
        node("Cast", ["index"], ["class"], "cast", to=FLOAT),
        node("Concat", ["corners", "best", "class"], ["rows"], "rows", axis=2),
        node("Squeeze", ["best", "last"], ["flat_best"], "squeeze"),
        node("TopK", ["flat_best", "twelve"], ["top", "order"], "top", axis=1),
        node("Squeeze", ["order", "first"], ["flat_order"], "order"),
        node("Gather", ["rows", "flat_order"], ["found"], "gather", axis=1),
        node("Concat", ["found", "nothing"], ["output0"], "pad", axis=1),
    ]
    corners = np.hstack([CELLS - CELL / 2, CELLS + CELL / 2])[None]
    constants = [
        ("corners", corners.astype(np.float32)),
        ("last", np.array([2], np.int64)),
        ("first", np.array([0], np.int64)),
        ("twelve", np.array([12], np.int64)),
        ("nothing", np.float32([[[0, 0, 0, 0, 0, -1]] * 2])),
    ]
    save_net(path, nodes, constants, [1, 14, 6])


NETS = {"yolox": yolox, "end2end": end2end}


@pytest.mark.parametrize("layout", NETS)
def test_layout_when_built_is_judged_by_labels_predicted_and_tried(project, layout, capsys):
    folder = project.parent
    NETS[layout](folder / "model.onnx")
    labelled.replaced(project, "layout: yolo", f"layout: {layout}")
    built = build(project=project, out=folder / "dist").bundles[0].bundle
    accuracy = built.manifest.variants[0].accuracy
    assert (accuracy.metric, accuracy.fp32, accuracy.value) == ("map", 1, 1)
    assert accuracy.outputs["output0"].metric == "f1@0.5"
    assert accuracy.outputs["output0"].value == 1
    pixels = np.zeros((32, 64, 3), np.uint8)
    pixels[16:, 32:48, 2], pixels[:16, :16, 0] = 250, 200
    model = import_loader().load(built.path)
    first, second = model.predict(pixels)["output0"]
    assert (first.label, first.box) == ("blue", pytest.approx((32, 16, 48, 32)))
    assert (second.label, second.box) == ("red", pytest.approx((0, 0, 16, 16)))
    # Scaling mixes the edges.
    assert 0.7 < second.score < 200 / 255 < first.score < 250 / 255
    Image.fromarray(pixels).save(folder / "photo.png")
    assert run(["try", str(built.path), str(folder / "photo.png"), "--json"]) == 0
    tried = json.loads(capsys.readouterr().out)["inputs"][0]["outputs"]["output0"]
    found = tried["variants"]["cpu-fp32"]["answers"]
    assert [each["label"] for each in found] == ["blue", "red"]


@pytest.mark.parametrize("layout", NETS)
def test_layout_when_in_int8_keeps_the_objects(project, layout):
    NETS[layout](project.parent / "model.onnx")
    labelled.replaced(project, "layout: yolo", f"layout: {layout}")
    labelled.replaced(project, "recipe: fp32", "recipe: int8-static")
    assert labelled.built(project).value > 0.9


@pytest.mark.parametrize("fits", NETS)
def test_layout_when_described_as_another_is_refused_with_the_one_that_fits(project, fits):
    NETS[fits](project.parent / "model.onnx")
    labelled.replaced(project, "layout: yolo, labels: names.txt, score: 0.5", "layout: yolov5")
    with pytest.raises(ProfileError) as caught:
        build(project=project, out=project.parent / "dist")
    assert caught.value.hint is not None
    assert f"layout: {fits} fits" in caught.value.hint


@pytest.mark.parametrize(
    ("net", "layout", "problem"),
    [
        (yolox, "yolox, strides: [8, 16]", r"strides \[8, 16\] an input of 32 x 32 .* \[1, 20, "),
        (yolox, "end2end", r"'end2end' with 3 labels is \[1, boxes, 6\]"),
        (end2end, "yolox, strides: [8]", r"has \[1, 16, values\]"),
        (yolox, "yolo, strides: [8]", "'strides' belongs to the layout yolox"),
        (yolox, "yolox, strides: []", "at least 1 item"),
    ],
)
def test_layout_when_shapes_do_not_fit_is_refused(project, net, layout, problem):
    net(project.parent / "model.onnx")
    labelled.replaced(project, "layout: yolo", f"layout: {layout}")
    with pytest.raises(ProfileError, match=problem):
        build(project=project, out=project.parent / "dist")

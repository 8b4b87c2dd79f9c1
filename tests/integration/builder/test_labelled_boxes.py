"""Builds and evaluations by boxes that are labelled as people have them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from edgepack.builder.build import build
from edgepack.bundle.manifest import Accuracy
from edgepack.errors import SamplesError
from onnx import TensorProto, helper
from PIL import Image

from tests.support.nets.tiny_models import save
from tests.support.slow_cases import slow_after

SIDE, CELL = 32, 8
CELLS = [(x + CELL / 2, y + CELL / 2) for y in range(0, SIDE, CELL) for x in range(0, SIDE, CELL)]
NAMES = ["red", "green", "blue"]
IDS = [9, 30, 4]
"""Of the categories: in another order than the classes."""
PICTURES = 24


def detector(path: Path, *, shift: float = 0.0) -> None:
    """Each cell of a grid is a box, whose scores are its colours: ``(1, 4 + 3, 16)``."""
    weights = np.zeros((3, 3, CELL, CELL), np.float32)
    for colour in range(3):
        weights[colour, colour] = 1 / CELL**2
    boxes = np.array([[(x + shift, y, CELL, CELL) for x, y in CELLS]], np.float32)
    nodes = [
        helper.make_node("Conv", ["image", "w"], ["means"], "conv", strides=[CELL, CELL]),
        helper.make_node("Reshape", ["means", "flat"], ["scores"], "flatten"),
        helper.make_node("ReduceMax", ["scores"], ["best"], "best", axes=[1], keepdims=1),
        helper.make_node("Mul", ["best", "zero"], ["nothing"], "nothing"),
        helper.make_node("Add", ["nothing", "cells"], ["boxes"], "boxes"),
        helper.make_node("Concat", ["boxes", "scores"], ["output0"], "output", axis=1),
    ]
    constants = [
        ("w", weights),
        ("flat", np.array([1, 3, len(CELLS)], np.int64)),
        ("zero", np.zeros(1, np.float32)),
        ("cells", boxes.transpose(0, 2, 1)),
    ]
    outputs = [("output0", TensorProto.FLOAT, [1, 7, len(CELLS)])]
    save(path, nodes, [("image", TensorProto.FLOAT, [1, 3, SIDE, SIDE])], outputs, constants)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Pictures 64 x 32 and 32 x 64: half as large in the input, with grey on both sides."""
    detector(tmp_path / "model.onnx")
    (tmp_path / "names.txt").write_text("\n".join(NAMES) + "\n")
    random = np.random.default_rng(0)
    images, boxes = [], []
    for folder in ("calibration", "pictures/a", "labels/a"):
        (tmp_path / folder).mkdir(parents=True)
    for n in range(PICTURES):
        width, height = (64, 32) if n % 3 else (32, 64)
        pixels = random.integers(0, 20, (height, width, 3)).astype(np.uint8)
        lines = []
        for cell in random.choice(8, 2, replace=False):
            y, x = (16 * int(at) for at in divmod(cell, width // 16))
            kind = int(random.integers(3))
            pixels[y : y + 16, x : x + 16, kind] = random.integers(150, 255)
            boxes.append({"image_id": n, "category_id": IDS[kind], "bbox": [x, y, 16, 16]})
            lines.append(f"{kind} {(x + 8) / width} {(y + 8) / height} {16 / width} {16 / height}")
        images.append({"id": n, "file_name": f"{n}.png", "width": width, "height": height})
        for folder in ("calibration", "pictures/a"):
            Image.fromarray(pixels).save(tmp_path / folder / f"{n}.png")
        (tmp_path / "labels/a" / f"{n}.txt").write_text("\n".join(lines))
    categories = [{"id": i, "name": name} for i, name in zip(IDS, NAMES, strict=True)]
    given = {"images": images, "annotations": boxes, "categories": categories}
    (tmp_path / "annotations.json").write_text(json.dumps(given))
    path = tmp_path / "edgepack.yaml"
    path.write_text(
        "schema_version: 1\nname: net\nversion: 1.0.0\nmodel: model.onnx\nfiles: [names.txt]\n"
        "inputs: {image: {image: {resize: {letterbox: 32}, scale: 0.00392157}}}\n"
        "outputs: {output0: {kind: detection, layout: yolo, labels: names.txt, score: 0.5}}\n"
        "samples:\n  calibration: {images: calibration}\n"
        "  evaluation: {images: pictures, labels: annotations.json, metric: map}\n"
        "targets: [{id: linux-x86-64, variants: [{backend: cpu, recipe: fp32}]}]\n"
    )
    return path


def replaced(project: Path, old: str, new: str) -> None:
    text = project.read_text()
    assert old in text
    project.write_text(text.replace(old, new))


def list_warnings(project: Path) -> list[str]:
    found = build(project=project, out=project.parent / "dist").warnings
    return [each for each in found if each.startswith("preprocessing")]


def built(project: Path) -> Accuracy:
    (variant,) = (
        build(project=project, out=project.parent / "dist").bundles[0].bundle.manifest.variants
    )
    assert isinstance(variant.accuracy, Accuracy)
    return variant.accuracy


def test_build_of_a_perfect_detector_with_cocos_labels_has_a_map_of_one(project):
    found = built(project)
    assert (found.metric, found.fp32, found.value, found.drop) == ("map", 1, 1, 0)
    assert set(found.values) == {"map", "map50", "f1"}


def test_build_with_yolos_labels_finds_the_same_and_map50_is_the_metric_of_boxes(project):
    replaced(project, "labels: annotations.json, metric: map", "labels: labels")
    found = built(project)
    assert (found.metric, found.value) == ("map50", 1)


@pytest.mark.parametrize("labels", slow_after(1, ["annotations.json", "labels"], reason="builds"))
def test_build_when_the_order_is_wrong_finds_the_right_one_by_the_boxes(project, labels):
    replaced(project, "annotations.json, metric: map", labels)
    assert list_warnings(project) == []
    replaced(project, "scale: 0.00392157", "order: BGR, scale: 0.00392157")
    [text] = list_warnings(project)
    assert "best detection is there in" in text
    assert "RGB from 0 to 1: the best detection is there in 24 of 24 pictures" in text
    assert "order: RGB, scale: 0.00392157, layout: NCHW}}}" in text


@pytest.mark.slow(reason="takes seconds")
def test_build_with_preprocessing_in_the_graph_finds_the_same(project):
    replaced(project, "outputs:", "preprocess: {in_graph: true}\noutputs:")
    assert built(project).value == 1


@pytest.mark.slow(reason="takes seconds")
def test_build_when_boxes_are_beside_what_is_there_has_less(project):
    detector(project.parent / "model.onnx", shift=0.1 * CELL)
    # 0.9 of 1.1 is shared: 0.82, enough for seven of ten overlaps. Boxes that reach beyond the
    # picture are cut at its edge, where they share 0.9.
    found = built(project)
    assert 0.7 <= found.value < 0.8
    assert found.values["map50"].value == 1


def test_build_when_categories_are_swapped_has_less(project):
    path = project.parent / "annotations.json"
    path.write_text(
        path.read_text().replace('"red"', '"x"').replace('"blue"', '"red"').replace('"x"', '"blue"')
    )
    assert built(project).value < 0.5


def test_build_when_a_label_changes_judges_anew(project):
    replaced(project, "annotations.json, metric: map", "labels")
    assert built(project).value == 1
    for path in (project.parent / "labels/a").glob("*.txt"):
        path.write_text("0 0.5 0.5 0.1 0.1\n")
    assert built(project).value < 0.1


@pytest.mark.slow(reason="takes seconds")
def test_build_with_a_limit_searches_by_map(project):
    replaced(project, "recipe: fp32}]}]", "recipe: int8-static}]}]\nlimits: {metric_drop: 0.05}")
    found = built(project)
    assert found.metric == "map"
    assert found.drop is not None
    assert found.drop <= 0.05


@pytest.mark.parametrize(
    ("labels", "said"),
    slow_after(
        1,
        [
            ("none.json", "cannot read .*none.json"),
            ("pictures", "has boxes for none of the 24 images"),
            ("names.json", "no boxes as COCO's annotations"),
        ],
        reason="starts workers anew",
    ),
)
def test_build_when_labels_are_missing_or_wrong_ends_with_one_error(project, labels, said):
    (project.parent / "names.json").write_text("{}")
    replaced(project, "annotations.json", labels)
    with pytest.raises(SamplesError, match=said):
        build(project=project, out=project.parent / "dist")


def test_build_when_labels_are_classes_says_what_map_takes(project):
    rows = [f"a/{n}.png,1" for n in range(PICTURES)]
    (project.parent / "labels.csv").write_text("\n".join(rows))
    replaced(project, "annotations.json", "labels.csv")
    with pytest.raises(SamplesError, match=r"the metric map takes labels \(samples, boxes, 5\)"):
        build(project=project, out=project.parent / "dist")

"""The metric of docs/metrics.md is built with, as it stands there."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from edgepack.base.progress import Lines
from edgepack.builder.build import build
from edgepack.bundle.manifest import Accuracy
from edgepack.cli.building import print_build
from edgepack.errors import SamplesError
from onnx import TensorProto, helper
from PIL import Image

from tests.support.nets.tiny_models import save

DOCS = Path(__file__).resolve().parents[2] / "docs"
SIDE, CELL = 16, 4
CELLS = [[x, y, x + CELL, y + CELL] for y in range(0, SIDE, CELL) for x in range(0, SIDE, CELL)]
PICTURES = 12
UNSEEN = 3
"""Of the pictures have a box that nothing shows."""


def detector(path: Path) -> None:
    """Boxes are the cells of a grid, their scores how bright they are."""
    nodes = [
        helper.make_node("Conv", ["image", "w"], ["gray"], "gray", strides=[CELL, CELL]),
        helper.make_node("Reshape", ["gray", "flat"], ["scores"], "scores"),
        helper.make_node("Unsqueeze", ["scores", "last"], ["column"], "column"),
        helper.make_node("Mul", ["column", "zero"], ["nothing"], "nothing"),
        helper.make_node("Add", ["nothing", "cells"], ["boxes"], "boxes"),
    ]
    weights = [
        ("w", np.full((1, 3, CELL, CELL), 1 / (3 * CELL * CELL), np.float32)),
        ("flat", np.array([1, len(CELLS)], np.int64)),
        ("last", np.array([2], np.int64)),
        ("zero", np.zeros(1, np.float32)),
        ("cells", np.array([CELLS], np.float32)),
    ]
    outputs = [
        ("boxes", TensorProto.FLOAT, [1, len(CELLS), 4]),
        ("scores", TensorProto.FLOAT, [1, len(CELLS)]),
    ]
    save(path, nodes, [("image", TensorProto.FLOAT, [1, 3, SIDE, SIDE])], outputs, weights)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The project file of the document, with pictures, their labels, and the model."""
    shutil.copy(DOCS / "examples/metric/detections.py", tmp_path)
    detector(tmp_path / "model.onnx")
    random = np.random.default_rng(0)
    for n in range(PICTURES):
        pixels = random.integers(0, 20, (SIDE, SIDE, 3)).astype(np.uint8)
        bright = random.choice(len(CELLS), 3, replace=False)
        for x1, y1, x2, y2 in (CELLS[cell] for cell in bright[:2]):
            pixels[y1:y2, x1:x2] = 250
        shown = bright[: 3 if n < UNSEEN else 2]
        name = Path("street" if n % 2 else "yard", f"{n}")
        for folder in ("pictures", "labels"):
            (tmp_path / folder / name.parent).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(tmp_path / "pictures" / f"{name}.png")
        text = json.dumps([CELLS[cell] for cell in shown])
        (tmp_path / "labels" / f"{name}.json").write_text(text)
    document = (DOCS / "metrics.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```yaml\n(.*?)^```", document, re.DOTALL | re.MULTILINE)
    (yaml,) = (block for block in blocks if "python:" in block)
    yaml = yaml.replace("venv/bin/python ", f"{sys.executable} ")
    # All pictures are evaluated with: the document's one folder is split in two.
    yaml = yaml.replace("{images: pictures}", "{images: calibration}")
    shutil.copytree(tmp_path / "pictures", tmp_path / "calibration")
    head = "schema_version: 1\nname: net\nversion: 1.0.0\nmodel: model.onnx\n"
    path = tmp_path / "edgepack.yaml"
    path.write_text(f"{head}targets: [{{id: linux-x86-64, variants: [VARIANT]}}]\n{yaml}")
    path.write_text(path.read_text().replace("VARIANT", "{backend: cpu, recipe: fp32}"))
    return path


def built(project: Path, out: Path) -> Accuracy:
    result = build(project=project, out=out, progress=Lines())
    print_build(result)
    (variant,) = result.bundles[0].bundle.manifest.variants
    assert isinstance(variant.accuracy, Accuracy)
    return variant.accuracy


@pytest.mark.slow(reason="takes seconds")
def test_metric_of_the_document_gives_both_values_and_its_prints_are_shown(
    project, tmp_path, capsys
):
    found = built(project, tmp_path / "dist")
    wanted = 2 * PICTURES + UNSEEN
    recall = 2 * PICTURES / wanted
    assert found.metric == "map50"
    assert list(found.values) == ["map50", "recall"]
    assert found.value == found.fp32 == pytest.approx(recall)  # all that is found is right
    assert found.values["recall"].value == pytest.approx(recall)
    told = capsys.readouterr()
    line = f"{2 * PICTURES} boxes found in {PICTURES} pictures, {wanted} wanted"
    for about in ("fp32", "the variant"):
        assert f"linux-x86-64 cpu-fp32: detections:score ({about}): {line}\n" in told.err
    assert f"cpu-fp32: recall {recall:.4f} (fp32 {recall:.4f})\n" in told.out


@pytest.mark.slow(reason="takes seconds")
def test_metric_when_another_value_is_to_decide_lets_that(project, tmp_path):
    text = project.read_text().replace(
        "higher_is_better: true}", "higher_is_better: true, value: recall}"
    )
    project.write_text(text)
    found = built(project, tmp_path / "dist")
    assert found.metric == "recall"
    assert list(found.others) == ["map50"]


def test_metric_when_the_value_that_decides_is_not_returned_says_what_is(project, tmp_path):
    text = project.read_text().replace(
        "higher_is_better: true}", "higher_is_better: true, value: f1}"
    )
    project.write_text(text)
    with pytest.raises(SamplesError, match="returned map50, recall, not 'f1'"):
        build(project=project, out=tmp_path / "dist")
    assert not list((tmp_path / "dist").glob("*"))


@pytest.mark.slow(reason="takes seconds")
def test_metric_when_it_returns_nothing_usable_says_so(project, tmp_path):
    (tmp_path / "detections.py").write_text("def score(outputs, labels):\n    return {}\n")
    with pytest.raises(SamplesError, match="it takes a number, or a dict of them by name"):
        build(project=project, out=tmp_path / "dist")

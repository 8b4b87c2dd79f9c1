"""Texts from a real build to predict and try: the colour of a column is a symbol."""

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

from tests.support.nets.tiny_models import save
from tests.support.reports.tiny_bundle import import_loader

HEIGHT, WIDTH, FLOAT = 8, 32, TensorProto.FLOAT
TEXT = "{kind: text, labels: alphabet.txt, blank: 1, axis: 1, activation: softmax}"
STATIC = "{backend: cpu, recipe: int8-static}"
LINES = f"""schema_version: 1
name: reader
model: net.onnx
files: [alphabet.txt]
inputs: {{image: {{image: {{resize: {{width: 32, height: 8}}, scale: 0.00392157}}}}}}
outputs: {{steps: {TEXT}}}
samples: {{calibration: {{path: samples.npz}}, evaluation: {{path: samples.npz}}}}
targets: [{{id: host, variants: [{{backend: cpu, recipe: fp32}}, {STATIC}]}}]
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    node = helper.make_node
    weights = np.float32(np.eye(3)[:, :, None, None] * 9).repeat(HEIGHT, axis=2) / HEIGHT
    nodes = [
        node("Conv", ["image", "w"], ["means"], "conv"),
        node("Squeeze", ["means", "two"], ["steps"], "squeeze"),
    ]
    inputs, outputs = [("image", FLOAT, [1, 3, HEIGHT, WIDTH])], [("steps", FLOAT, [1, 3, WIDTH])]
    save(
        tmp_path / "net.onnx",
        nodes,
        inputs,
        outputs,
        [("w", weights), ("two", np.array([2], np.int64))],
    )
    (tmp_path / "alphabet.txt").write_text("r\n \n")
    pixels = np.random.default_rng(2).uniform(0, 1, (40, 3, 1, 8)).astype(np.float32)
    pixels = pixels.repeat(HEIGHT, axis=2).repeat(WIDTH // 8, axis=3)
    np.savez(tmp_path / "samples.npz", image=pixels)
    path = tmp_path / "edgepack.yaml"
    path.write_text(LINES)
    return path


def photo(colours: str) -> np.ndarray:
    """Return a picture whose columns are red, green or blue."""
    columns = np.eye(3, dtype=np.uint8)[["rgb".index(each) for each in colours]] * 255
    return columns[None].repeat(HEIGHT, axis=0).repeat(WIDTH // len(colours), axis=1)


def test_predict_when_an_output_is_a_text_reads_it(project, tmp_path, capsys):
    built = build(project=project, out=tmp_path / "dist").bundles[0].bundle
    assert "print(answers['steps'])" in (built.path / "README.md").read_text()
    static = next(v for v in built.manifest.variants if v.recipe == "int8-static")
    assert static.accuracy.outputs["steps"].metric == "symbols"
    model = import_loader().load(built.path)
    # Red is 'r', green is the blank, blue a space.
    found = model.predict(photo("rrgrbbgb"))["steps"]
    assert (found.text, round(found.score, 2)) == ("rr  ", 1.0)
    assert model.predict(photo("gggg"))["steps"].text == ""
    Image.fromarray(photo("rgbr")).save(tmp_path / "photo.png")
    assert run(["try", str(built.path), str(tmp_path / "photo.png"), "--json"]) == 0
    tried = json.loads(capsys.readouterr().out)["inputs"][0]["outputs"]["steps"]
    assert {each["answers"]["text"] for each in tried["variants"].values()} == {"r r"}
    assert run(["try", str(built.path), str(tmp_path / "photo.png")]) == 0
    shown = capsys.readouterr().out
    assert "'r r'" in shown
    assert "SAME, the same text" in shown


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (
            "alphabet.txt, blank",
            "short.txt, blank",
            "'short.txt' has 1 symbols, and with the blank",
        ),
        ("alphabet.txt, blank", "long.txt, blank", "with 3 classes on axis 1"),
        ("axis: 1", "axis: -1", "with 32 classes on axis -1"),
        ("blank: 1", "blank: 3", "class 3 is none of the 3 classes"),
        ("blank: 1", "blank: -2", "greater than or equal to -1"),
        ("axis: 1", "axis: 2", "axis"),
        ("labels: alphabet.txt, ", "", "labels"),
        ("labels: alphabet.txt", "labels: none.txt", "'none.txt' is none of the project's files"),
    ],
)
def test_text_when_described_otherwise_is_refused(project, old, new, problem):
    (project.parent / "short.txt").write_text("r\n")
    (project.parent / "long.txt").write_text("r\ng\nb\n")
    text = LINES.replace("[alphabet.txt]", "[alphabet.txt, short.txt, long.txt]")
    project.write_text(text.replace(old, new))
    with pytest.raises(ProfileError, match=problem):
        build(project=project, out=project.parent / "dist")

"""Masks and probabilities from a real build to predict and try: a place is its best colour."""

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

SIDE, FLOAT = 32, TensorProto.FLOAT
LINES = """schema_version: 1
name: places
model: net.onnx
files: [colours.txt]
dims: {batch: 1}
inputs: {image: {image: {resize: {short_side: 32, crop: 32}, scale: 0.00392157}}}
outputs:
  places: {kind: mask, labels: colours.txt}
  bright: {kind: probability, threshold: 0.4}
  values: {kind: probability, activation: sigmoid}
samples: {calibration: {path: samples.npz}}
targets: [{id: host, variants: [{backend: cpu, recipe: fp32}]}]
"""


def net(path: Path) -> None:
    """Colours of places of 2 x 2 pixels, the mean of each colour, and all pixels."""
    node = helper.make_node
    nodes = [
        node("AveragePool", ["image"], ["places"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        node("GlobalAveragePool", ["image"], ["means"], "means"),
        node("Flatten", ["means"], ["bright"], "flatten"),
        node("Identity", ["image"], ["values"], "all"),
    ]
    outputs = [
        ("places", FLOAT, ["batch", 3, SIDE // 2, SIDE // 2]),
        ("bright", FLOAT, ["batch", 3]),
        ("values", FLOAT, ["batch", 3, SIDE, SIDE]),
    ]
    save(path, nodes, [("image", FLOAT, ["batch", 3, SIDE, SIDE])], outputs)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    net(tmp_path / "net.onnx")
    (tmp_path / "colours.txt").write_text("red\ngreen\nblue\n")
    pixels = np.random.default_rng(2).uniform(0, 1, (9, 3, SIDE, SIDE)).astype(np.float32)
    np.savez(tmp_path / "samples.npz", image=pixels)
    path = tmp_path / "edgepack.yaml"
    path.write_text(LINES)
    return path


def test_predict_when_outputs_are_a_mask_and_probabilities_gives_pixels_and_decisions(
    project, tmp_path, capsys
):
    bundle = build(project=project, out=tmp_path / "dist").bundles[0].bundle.path
    assert "print(answers['places'])" in (bundle / "README.md").read_text()
    pixels = np.zeros((64, 192, 3), np.uint8)
    pixels[:, 64:96, 2], pixels[:, 96:, 1] = 255, 255
    model = import_loader().load(bundle)
    found = model.predict(pixels)
    mask = found["places"]
    assert (mask.width, mask.height, list(mask.labels)) == (192, 64, ["red", "green", "blue"])
    wanted = [255] * 64 + [2] * 32 + [1] * 32 + [255] * 64
    assert (mask.classes[32] == wanted).all()
    assert [each.positive for each in found["bright"]] == [False, True, True]
    # More than a thousand values are a tensor.
    assert found["values"].shape == (1, 3, 32, 32)
    listed = model.predict([pixels, pixels])
    assert (listed[1]["places"].classes == mask.classes).all()
    Image.fromarray(pixels).save(tmp_path / "photo.png")
    assert run(["try", str(bundle), str(tmp_path / "photo.png"), "--json"]) == 0
    tried = json.loads(capsys.readouterr().out)["inputs"][0]["outputs"]
    assert set(tried) == {"places", "bright", "values"}


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (
            "{kind: mask, labels: two.txt}",
            r"'two.txt' has 2 labels, the output 3 classes on axis 1",
        ),
        ("{kind: mask, axis: 2}", "axis"),
    ],
)
def test_mask_when_described_otherwise_is_refused(project, line, problem):
    (project.parent / "two.txt").write_text("a\nb\n")
    text = LINES.replace("[colours.txt]", "[colours.txt, two.txt]")
    project.write_text(text.replace("{kind: mask, labels: colours.txt}", line))
    with pytest.raises(ProfileError, match=problem):
        build(project=project, out=project.parent / "dist")


def test_mask_when_its_one_value_lies_on_the_other_axis_is_refused(project):
    values = (
        [("image", FLOAT, ["batch", 3, SIDE, SIDE])],
        [("places", FLOAT, ["batch", SIDE, SIDE, 1])],
    )
    nodes = [
        helper.make_node("ReduceMean", ["image"], ["mean"], "mean", axes=[1], keepdims=1),
        helper.make_node("Transpose", ["mean"], ["places"], "turn", perm=[0, 2, 3, 1]),
    ]
    save(project.parent / "net.onnx", nodes, *values)
    kept = [line for line in LINES.splitlines() if "probability" not in line]
    text = "\n".join(kept).replace(", labels: colours.txt", "")
    project.write_text(text)
    with pytest.raises(ProfileError, match="one value for each place on axis -1") as caught:
        build(project=project, out=project.parent / "dist")
    assert caught.value.hint == "give axis: -1"
    project.write_text(text.replace("kind: mask", "kind: mask, axis: -1"))
    assert build(project=project, out=project.parent / "dist").bundles

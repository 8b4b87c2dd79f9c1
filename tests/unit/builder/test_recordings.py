"""``edgepack init --sounds``."""

from __future__ import annotations

import numpy as np
import pytest
from edgepack.builder.build import build
from edgepack.builder.scaffold import init
from edgepack.errors import SamplesError, UsageError
from edgepack.project.loading import read_project
from onnx import TensorProto, helper

from tests.support.media import write_sound
from tests.support.nets import tiny_models

LENGTH = 100


def listener(path, shape):
    nodes = [
        helper.make_node("Abs", ["x"], ["a"]),
        helper.make_node("ReduceMean", ["a"], ["m"], axes=[len(shape) - 1], keepdims=1),
        helper.make_node("Reshape", ["m", "one"], ["r"]),
        helper.make_node("MatMul", ["r", "w"], ["o"]),
    ]
    constants = [("one", np.array([1, 1])), ("w", np.array([[1, -1]], np.float32))]
    inputs, outputs = [("x", TensorProto.FLOAT, shape)], [("o", TensorProto.FLOAT, [1, 2])]
    return tiny_models.save(path, nodes, inputs, outputs, constants)


@pytest.fixture
def sounds(tmp_path):
    for n in range(10):
        values = np.full(LENGTH, 0.02 * n)
        write_sound(tmp_path / "sounds" / ("low", "high")[n > 4] / f"{n}.wav", values, rate=8000)
    return tmp_path / "sounds"


@pytest.mark.parametrize(
    ("shape", "given"),
    [
        ([1, LENGTH], {"rate": 8000, "channels": 1, "length": LENGTH, "hop": None}),
        (["n"], {"rate": 8000, "channels": 1, "length": None, "hop": None}),
        (["batch", 1, "n"], {"rate": 8000, "channels": 1, "length": None, "hop": None}),
    ],
)
def test_init_writes_what_sounds_have_and_how_they_are_labelled(tmp_path, sounds, shape, given):
    path = init(listener(tmp_path / "m.onnx", shape), sounds=sounds)
    project = read_project(path).project
    assert project.inputs["x"].sound.model_dump() == given
    assert project.samples.evaluation.sounds == "sounds"
    assert (project.samples.evaluation.labels, project.samples.evaluation.metric) == (
        "folders",
        "top1",
    )
    assert "n" not in project.dims
    if shape == [1, LENGTH]:
        [made] = build(project=path, variants=["cpu-fp32"], out=tmp_path / "dist").bundles
        assert made.bundle.manifest.variants[0].accuracy.metric == "top1"


def test_init_says_that_some_files_are_of_another_rate(tmp_path, sounds):
    write_sound(sounds / "low/11.wav", np.zeros(LENGTH), rate=44100)
    text = init(listener(tmp_path / "m.onnx", [1, LENGTH]), sounds=sounds).read_text()
    assert "# 1 of 11 have another rate or other channels: a build stops at these" in text


def test_init_when_a_sound_is_broken_or_missing_writes_nothing(tmp_path, sounds):
    model = listener(tmp_path / "m.onnx", [1, LENGTH])
    (sounds / "low/0.wav").write_bytes(b"RIFF")
    with pytest.raises(SamplesError, match="it begins with b'RIFF'"):
        init(model, sounds=sounds)
    with pytest.raises(SamplesError, match="there is no folder"):
        init(model, sounds=tmp_path / "none")
    for path in [*sounds.rglob("*.wav")][1:]:
        path.unlink()
    with pytest.raises(UsageError, match="there is only one sound"):
        init(model, sounds=sounds)
    assert not (tmp_path / "edgepack.yaml").exists()


def test_init_when_the_model_takes_no_sound_or_both_are_given_says_so(tmp_path, sounds):
    with pytest.raises(UsageError, match="does not take one sound") as caught:
        init(tiny_models.conv_net(tmp_path / "m.onnx"), sounds=sounds)
    assert caught.value.where == "--sounds"
    with pytest.raises(UsageError, match="--images and --sounds are given"):
        init(listener(tmp_path / "n.onnx", [1, LENGTH]), sounds=sounds, images=tmp_path)

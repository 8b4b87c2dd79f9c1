"""``/predict`` of ``edgepack serve``: sounds, and bundles of several models."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from edgepack.builder.build import build
from edgepack.builder.pipelines import build_pipeline
from edgepack.model.facts import TensorSpec
from edgepack.ondevice.runtime import edgepack_answers as answers
from edgepack.ondevice.runtime import edgepack_loader as loader
from edgepack.ondevice.runtime import edgepack_pipeline as pipelines
from edgepack.project.inputs import SoundInput
from edgepack.samples.sounds import read_sound_samples
from onnx import TensorProto, helper
from PIL import Image

from tests.support.media import write_sound
from tests.support.nets.pipeline_nets import draw_objects, write_find_project
from tests.support.nets.tiny_models import save
from tests.support.servers.service import serving

LENGTH = 300
RATE = 16000


@pytest.fixture(scope="module")
def ear(tmp_path_factory) -> Path:
    """A bundle that gives the value in the middle of a sound, and its mean."""
    folder = tmp_path_factory.mktemp("ear")
    weights = np.zeros((LENGTH, 2), np.float32)
    weights[LENGTH // 2, 0], weights[:, 1] = 1, 1 / LENGTH
    save(
        folder / "net.onnx",
        [helper.make_node("MatMul", ["sound", "w"], ["y"], "y")],
        [("sound", TensorProto.FLOAT, [1, LENGTH])],
        [("y", TensorProto.FLOAT, [1, 2])],
        [("w", weights)],
    )
    random = np.random.default_rng(4)
    for number in range(3):
        write_sound(folder / "sounds" / f"{number}.wav", random.uniform(-1, 1, LENGTH))
    project = folder / "edgepack.yaml"
    project.write_text(
        "schema_version: 1\nname: ear\nmodel: net.onnx\n"
        f"inputs: {{sound: {{sound: {{rate: {RATE}, length: {LENGTH}}}}}}}\n"
        "samples: {calibration: {sounds: sounds}}\n"
        "targets: [{id: host, variants: [{backend: cpu, recipe: fp32}]}]\n"
    )
    return build(project=project, out=folder / "dist").bundles[0].bundle.path


def test_a_sound_gets_what_its_samples_get(ear, tmp_path) -> None:
    """Each format, longer and shorter than the input, as the samples of a build are read."""
    random = np.random.default_rng(5)
    model, spec = loader.load(ear), TensorSpec("sound", "float32", (1, LENGTH))
    described = SoundInput(rate=RATE, length=LENGTH)
    with serving(ear) as service:
        for kind in ("s8", "s16", "s24", "s32", "f32"):
            for count in (LENGTH // 3, LENGTH, 2 * LENGTH):
                path = tmp_path / f"{kind}-{count}.wav"
                write_sound(path, random.uniform(-1, 1, count), kind=kind)
                [(_, feed)] = read_sound_samples([path], tmp_path, spec, described)
                wanted = model(feed)["y"].tolist()
                found = service.ask("/predict", path.read_bytes(), {"Content-Type": "audio/wav"})
                assert (found.status, found.document["answers"]["y"]) == (200, wanted)
                assert model.predict(path.read_bytes())["y"].tolist() == wanted


def test_a_sound_that_is_none_or_another_is_told_so(ear, tmp_path) -> None:
    values = np.zeros(LENGTH)
    write_sound(tmp_path / "fast.wav", values, rate=44100)
    write_sound(tmp_path / "two.wav", np.zeros((LENGTH, 2)))
    write_sound(tmp_path / "right.wav", values)
    write_sound(tmp_path / "odd.wav", np.full(LENGTH, np.nan), kind="f32")
    right = (tmp_path / "right.wav").read_bytes()
    with serving(ear) as service:
        for data, words in [
            ((tmp_path / "fast.wav").read_bytes(), "44100 Hz and 1 channel, and the input takes"),
            ((tmp_path / "two.wav").read_bytes(), "2 channels, and the input takes"),
            ((tmp_path / "odd.wav").read_bytes(), "not finite"),
            (right[:-1], "is broken off"),
            (b"", "is no .wav file"),
            (b"RIFF\0\0\0\0WAVE", "has no format"),
        ]:
            found = service.ask("/predict", data, {"Content-Type": "audio/x-wav"})
            assert (found.status, words in found.document["error"]) == (400, True), found.body
        found = service.ask("/predict", b"a fox", {"Content-Type": "text/plain"})
        assert (found.status, "taken are image/" in found.document["error"]) == (415, True)
        assert service.ask("/predict", right, {"Content-Type": "audio/wav"}).status == 200


def test_several_models_answer_as_the_pipeline_does(tmp_path) -> None:
    path = build_pipeline(write_find_project(tmp_path), out=tmp_path / "dist").bundles[0]
    bundle = path.bundle.path
    pipeline = pipelines.load(bundle)
    with serving(bundle) as service:
        described = service.ask("/v2/models/find").document
        assert [(each["name"], each["shape"]) for each in described["outputs"]] == [
            ("objects", [-1, 6]),
            ("stripes", [-1, 2]),
        ]
        labels = set()
        for pixels in draw_objects(4, seed=7)[0]:
            file = io.BytesIO()
            Image.fromarray(pixels).save(file, "PNG")
            found = service.ask("/predict", file.getvalue(), {"Content-Type": "image/png"})
            assert found.status == 200, found.body
            wanted = pipeline.predict(pixels)
            document = {
                "objects": answers.make_json(wanted["objects"]),
                "stripes": [answers.make_json(each) for each in wanted["stripes"]],
            }
            assert found.document["answers"] == json.loads(json.dumps(document))
            labels.update(each["label"] for each in found.document["answers"]["objects"])
        assert labels
        for data, headers, status, words in [
            (b"a fox", {"Content-Type": "text/plain"}, 415, "taken are image/jpeg, image/png"),
            (b"x", {"Content-Type": "image/png"}, 400, "cannot be read"),
        ]:
            found = service.ask("/predict", data, headers)
            assert (found.status, words in found.document["error"]) == (status, True), found.body
        found = service.ask("/predict?top=1", b"", {"Content-Type": "image/png"})
        assert (found.status, "no options" in found.document["error"]) == (400, True)

"""Builds from videos and folders of sounds."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from edgepack.builder.build import build
from edgepack.bundle.manifest import Accuracy, Manifest
from edgepack.errors import ProfileError, SamplesError
from onnx import TensorProto, helper

from tests.support.media import write_sound, write_video
from tests.support.nets.tiny_models import save
from tests.support.slow_cases import slow_after

SIDE, LENGTH = 16, 400
HEAD = (
    "schema_version: 1\nname: net\nversion: 1.0.0\nmodel: model.onnx\n"
    "targets: [{id: linux-x86-64, variants: [{backend: cpu, recipe: fp32}]}]\n"
)
IMAGE = (
    f"inputs: {{image: {{image: {{resize: {{width: {SIDE}, height: {SIDE}}},"
    " scale: 0.00392157}}}\n"
)


def make_brightness(path: Path, *, state: bool = False) -> None:
    """The mean of a picture; with a state the sum of all so far."""
    nodes = [
        helper.make_node("ReduceMean", ["image"], ["m"], axes=[1, 2, 3], keepdims=0),
        helper.make_node("Reshape", ["m", "one"], ["mean"]),
    ]
    inputs = [("image", TensorProto.FLOAT, [1, 3, SIDE, SIDE])]
    outputs = [("o", TensorProto.FLOAT, [1, 1])]
    if state:
        nodes += [
            helper.make_node("Add", ["mean", "sum"], ["o"]),
            helper.make_node("Identity", ["o"], ["next"]),
        ]
        inputs.append(("sum", TensorProto.FLOAT, [1, 1]))
        outputs.append(("next", TensorProto.FLOAT, [1, 1]))
    else:
        nodes.append(helper.make_node("Identity", ["mean"], ["o"]))
    save(path, nodes, inputs, outputs, [("one", np.array([1, 1], np.int64))])


def make_listener(path: Path) -> None:
    """Whether a sound is loud, or has a loud second half: two scores."""
    half = np.zeros((LENGTH, 2), np.float32)
    half[: LENGTH // 2, 0] = half[LENGTH // 2 :, 1] = 1 / LENGTH
    nodes = [
        helper.make_node("Abs", ["sound"], ["a"]),
        helper.make_node("MatMul", ["a", "w"], ["o"]),
    ]
    inputs = [("sound", TensorProto.FLOAT, [1, LENGTH])]
    save(path, nodes, inputs, [("o", TensorProto.FLOAT, [1, 2])], [("w", half)])


def built(folder: Path, text: str) -> Manifest:
    path = folder / "edgepack.yaml"
    path.write_text(HEAD + text)
    return build(project=path, out=folder / "dist").bundles[0].bundle.manifest


def write_sounds(folder: Path, count: int = 24) -> None:
    random = np.random.default_rng(0)
    for n in range(count):
        values = random.uniform(-0.1, 0.1, LENGTH + 50)
        part = slice(0, LENGTH // 2) if n % 2 == 0 else slice(LENGTH // 2, LENGTH)
        values[part] *= 9
        write_sound(folder / ("first", "second")[n % 2] / f"{n}.wav", values)


SAMPLES = (
    "samples:\n  calibration: {sounds: sounds}\n"
    "  evaluation: {sounds: sounds, labels: LABELS, metric: METRIC}\n"
)


@pytest.mark.parametrize(
    ("labels", "metric"),
    slow_after(
        1, [("folders", "top1"), ("labels.csv", "f1"), ("labels.csv", "top1")], reason="builds"
    ),
)
def test_build_from_a_folder_of_sounds_is_judged_by_their_labels(tmp_path, labels, metric):
    make_listener(tmp_path / "model.onnx")
    write_sounds(tmp_path / "sounds")
    files = sorted((tmp_path / "sounds").rglob("*.wav"))
    wrong = 3 if labels == "labels.csv" and metric == "top1" else 0
    rows = [
        f"{path.parent.name}/{path.name},{int((path.parent.name == 'second') != (n < wrong))}"
        for n, path in enumerate(files)
    ]
    (tmp_path / "labels.csv").write_text("\n".join(rows))
    text = (
        f"inputs: {{sound: {{sound: {{rate: 16000, length: {LENGTH}}}}}}}\n"
        "outputs: {o: {kind: classification}}\n"
    )
    given = SAMPLES.replace("LABELS", labels).replace("METRIC", metric)
    given = given.replace("calibration: {sounds: sounds}", "calibration: {sounds: sounds/first}")
    manifest = built(tmp_path, text + given)
    (variant,) = manifest.variants
    assert isinstance(variant.accuracy, Accuracy)
    assert variant.accuracy.metric == metric
    assert variant.accuracy.samples == 24
    assert variant.accuracy.value == pytest.approx(1 - wrong / 24)
    assert manifest.input_descriptions["sound"].sound is not None


@pytest.mark.slow(reason="builds")
def test_build_from_one_folder_of_sounds_for_both_splits_it(tmp_path):
    make_listener(tmp_path / "model.onnx")
    write_sounds(tmp_path / "sounds")
    text = f"inputs: {{sound: {{sound: {{rate: 16000, length: {LENGTH}}}}}}}\n"
    manifest = built(tmp_path, text + SAMPLES.replace(", labels: LABELS, metric: METRIC", ""))
    (variant,) = manifest.variants
    assert isinstance(variant.accuracy, Accuracy)
    assert 0 < variant.accuracy.samples < 12


@pytest.mark.parametrize(
    ("change", "error", "said"),
    slow_after(
        1,
        [
            (("rate: 16000", "rate: 8000"), SamplesError, "16000 Hz and 1 channel, and .* 8000 Hz"),
            ((f"length: {LENGTH}", "length: 7"), ProfileError, r"sounds would become .*7\]"),
            (("sounds: sounds", "sounds: none"), SamplesError, "there is no folder"),
            (("labels: folders", "labels: x.json"), ProfileError, "a sound has no boxes as labels"),
        ],
        reason="starts workers anew",
    ),
)
def test_build_from_sounds_that_do_not_fit_ends_with_one_error(tmp_path, change, error, said):
    make_listener(tmp_path / "model.onnx")
    write_sounds(tmp_path / "sounds", 4)
    text = f"inputs: {{sound: {{sound: {{rate: 16000, length: {LENGTH}}}}}}}\n"
    text += SAMPLES.replace("LABELS", "folders").replace("METRIC", "top1")
    with pytest.raises(error) as caught:
        built(tmp_path, text.replace(*change))
    caught.match(said)
    assert caught.value.hint


def test_build_from_a_video_of_both_sets_calibrates_by_what_comes_first(tmp_path):
    make_brightness(tmp_path / "model.onnx")
    write_video(tmp_path / "clip.mp4", [4 * k for k in range(60)])
    text = IMAGE + (
        "samples:\n  calibration: {video: clip.mp4, every: 2}\n"
        "  evaluation: {video: clip.mp4, fps: 5}\n"
    )
    manifest = built(tmp_path, text)
    (variant,) = manifest.variants
    assert isinstance(variant.accuracy, Accuracy)
    # 60 frames of 10 a second: 30 are taken, 24 of which calibrate.
    assert variant.accuracy.samples == 6


@pytest.mark.slow(reason="builds")
@pytest.mark.parametrize("clips", [1, 2])
def test_build_from_videos_with_a_state_has_a_stream_of_each(tmp_path, clips):
    make_brightness(tmp_path / "model.onnx", state=True)
    for n in range(clips):
        (tmp_path / "clips").mkdir(exist_ok=True)
        write_video(tmp_path / "clips" / f"{n}.mp4", [100 + 50 * n] * 12)
    text = IMAGE + (
        "state: {next: sum}\nsamples:\n  calibration: {video: clips/0.mp4}\n"
        "  evaluation: {video: clips, limit: 20}\n"
    )
    manifest = built(tmp_path, text)
    (variant,) = manifest.variants
    assert isinstance(variant.accuracy, Accuracy)
    assert variant.accuracy.samples == min(20, 12 * clips)


@pytest.mark.slow(reason="builds")
def test_build_with_preprocessing_in_the_model_takes_frames_as_they_are(tmp_path):
    make_brightness(tmp_path / "model.onnx")
    write_video(tmp_path / "clip.mp4", [4 * k for k in range(60)])
    text = IMAGE + (
        "preprocess: {in_graph: true}\n"
        "samples: {calibration: {video: clip.mp4}, evaluation: {video: clip.mp4}}\n"
    )
    (variant,) = built(tmp_path, text).variants
    assert isinstance(variant.accuracy, Accuracy)
    assert variant.accuracy.samples == 12


@pytest.mark.slow(reason="starts workers anew")
def test_build_from_a_broken_video_ends_with_one_error(tmp_path):
    make_brightness(tmp_path / "model.onnx")
    write_video(tmp_path / "clip.mp4", [0] * 60)
    data = (tmp_path / "clip.mp4").read_bytes()
    (tmp_path / "clip.mp4").write_bytes(data[: len(data) // 2])
    text = IMAGE + "samples: {calibration: {video: clip.mp4}}\n"
    with pytest.raises(SamplesError, match=r"cannot decode .*clip\.mp4"):
        built(tmp_path, text)


@pytest.mark.slow(reason="builds")
@pytest.mark.shared_data
def test_build_of_a_voice_detector_takes_its_recording_as_a_stream(tmp_path, shared_data):
    folder = shared_data / "audio/silero_vad"
    shutil.copy(folder / "silero_vad_16k_op15.onnx", tmp_path / "model.onnx")
    for name in ("sounds", "others"):
        (tmp_path / name).mkdir()
        shutil.copy(folder / "test.wav", tmp_path / name)
    text = (
        "dims: {batch: 1, sequence: 576}\nconstants: {sr: 16000}\nstate: {stateN: state}\n"
        "inputs: {input: {sound: {rate: 16000, length: 576, hop: 512}}}\n"
        "outputs: {output: {kind: probability}}\n"
        "samples: {calibration: {sounds: sounds}, evaluation: {sounds: others}}\n"
    )
    manifest = built(tmp_path, text)
    (variant,) = manifest.variants
    assert isinstance(variant.accuracy, Accuracy)
    assert variant.accuracy.metric == "decisions"
    assert variant.accuracy.samples > 1000

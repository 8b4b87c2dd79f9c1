"""Wrong preprocessing is noticed, what is right is found, and right preprocessing is left alone."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from edgepack.base.yaml_source import parse_yaml
from edgepack.builder.build import build
from edgepack.errors import ProfileError
from edgepack.metrics.precision import make_plane
from edgepack.model.facts import TensorSpec
from edgepack.model.files import MODEL
from edgepack.model.reading import read_model, write_model
from edgepack.preprocessing.alternatives import (
    format_flow,
    list_image_alternatives,
    normalize_pixels,
)
from edgepack.project.inputs import ImageInput
from edgepack.project.outputs import DetectionOutput
from edgepack.samples.sample_set import write_sample_set
from edgepack.samples.sources import read_image_samples
from edgepack.steps.base import run_step
from edgepack.steps.graph.prepared import fix_dims
from edgepack.steps.proofs.input_check import InputCheck
from edgepack.steps.proofs.input_runs import find_best
from edgepack.steps.proofs.read_answers import ReadAnswers
from onnx import TensorProto, helper
from PIL import Image

from tests.support.nets import brightness_nets, tiny_models
from tests.support.slow_cases import slow_after

STRETCH = {"width": 8, "height": 8}
RIGHT = ImageInput(resize=STRETCH, scale=1 / 127.5, mean=[1.0, 1.0, 1.0])
UNSCALED = ImageInput(resize=STRETCH)
SPEC = TensorSpec("image", "float32", (1, 3, 8, 8))


def image_of(description: str) -> ImageInput:
    return parse_yaml(description, name="edgepack.yaml").parse(ImageInput)


@pytest.fixture
def warned(tmp_path):
    """Run the step on 40 pictures, and return its warnings."""

    def run(image, *, labels=None, described=True, tensors=None, claimed=None, **net):
        pictures, classes = brightness_nets.pictures(40)
        if tensors is None:
            tensors = [normalize_pixels(picture, image) for picture in pictures]
        for name in ("model", "samples", "out"):
            (tmp_path / name).mkdir()
        brightness_nets.save(tmp_path / "model" / "model.onnx", **net)
        samples = ((str(n), {"image": tensor}) for n, tensor in enumerate(tensors))
        given = classes if labels is None else labels
        write_sample_set(tmp_path / "samples", (SPEC,), samples, None if given is False else given)
        images = (("image", image),) if described else ()
        step = InputCheck(images, "scores", (), "x86-64", claimed=claimed)
        inputs = {"model": tmp_path / "model", "samples": tmp_path / "samples"}
        return run_step(step, inputs, tmp_path / "out").facts["warnings"]

    return run


@pytest.mark.parametrize("net", [{}, {"norm": True}, {"classes": 5}], ids=str)
@pytest.mark.parametrize("labels", [None, False], ids=["labelled", "unlabelled"])
def test_check_when_preprocessing_is_right_says_nothing(warned, net, labels):
    assert warned(RIGHT, labels=labels, **net) == []


def test_check_when_the_scale_is_missing_says_so_and_which_line_is_right(warned):
    [text] = warned(UNSCALED)
    assert "fp32 is at chance level: it is right for 10 of 40 samples" in text
    assert "fp32 gives class 3 for 40 of 40 different samples" in text
    assert (
        "suspects are order, scale, mean and std, layout, how pictures are resized, or labels"
        in text
    )
    assert "is RGB from -1 to 1: right for 40 of 40" in text
    assert "as it is, RGB from 0 to 255: right for 10 of 40" in text
    assert f"write inputs: {{image: {{image: {format_flow(RIGHT)}}}}}" in text
    assert image_of(format_flow(RIGHT)).scale == pytest.approx(1 / 127.5, rel=1e-5)
    assert text.endswith("every number of this build is of a model that sees RGB from 0 to 255")


def test_check_when_the_order_is_wrong_finds_the_right_one(warned):
    [text] = warned(RIGHT.model_copy(update={"order": "BGR"}))
    assert "at chance level" in text
    assert "is RGB from -1 to 1: right for 40 of 40" in text
    assert "order: RGB" in text


@pytest.mark.parametrize("off", [1, -1])
def test_check_when_labels_are_one_off_says_what_to_add_to_them(warned, off):
    _, classes = brightness_nets.pictures(40)
    [text] = warned(RIGHT, labels=classes + off, classes=6)
    what = "subtract 1 from every label" if off > 0 else "add 1 to every label"
    assert "at chance level: it is right for 0 of 40" in text
    assert f"labels {-off:+d}: right for 40 of 40" in text
    assert what in text
    assert "write inputs" not in text


def never_by_chance(answers, labels):
    right = sum(a == b for a, b in zip(answers, labels, strict=True))
    return SimpleNamespace(right=right, count=len(labels), is_chance=False)


def test_check_when_the_model_is_too_large_to_try_others_tries_other_labels(warned, monkeypatch):
    # As where one answer of few is right by luck: then it is not clear that all are by chance.
    monkeypatch.setattr("edgepack.preprocessing.verdict.compare_with_chance", never_by_chance)
    monkeypatch.setattr("edgepack.steps.proofs.input_runs._BUDGET", 0.0)
    _, classes = brightness_nets.pictures(40)
    [text] = warned(RIGHT, labels=classes + 1, classes=6)
    assert "labels -1: right for 16 of 16" in text
    assert "subtract 1 from every label" in text


def test_check_when_labels_are_unrelated_says_that_nothing_tried_is_better(warned):
    random = np.random.default_rng(3)
    [text] = warned(RIGHT, labels=random.permutation(brightness_nets.pictures(40)[1]))
    assert "at chance level" in text
    assert "is clearly better" in text
    assert "write inputs" not in text


def test_check_when_accuracy_is_low_but_real_says_nothing(warned):
    random = np.random.default_rng(3)
    _, classes = brightness_nets.pictures(40)
    guessed = random.random(40) < 0.5
    hard = np.where(guessed, random.permutation(classes), classes)
    assert np.mean(hard == classes) < 0.7
    assert warned(RIGHT, labels=hard) == []


def test_check_when_accuracy_is_below_what_is_claimed_says_so(warned):
    labels = brightness_nets.pictures(40)[1]
    some = np.where(np.arange(40) % 2 == 0, labels, (labels + 1) % 10)
    [text] = warned(RIGHT, labels=some, claimed=0.9)
    first, suspects, *_ = text.split("\n    ")
    assert first.startswith("fp32 is right for 20 of 40 samples (95 % interval ")
    assert first.endswith("and 90.0% is claimed")
    assert suspects.startswith("suspects are order, scale, mean and std, layout")
    assert "none of" in text


def claimed_project(folder: Path, drawn: np.ndarray, labels: np.ndarray) -> Path:
    """A project of such pictures, whose makers claim nine of ten; it stretches them."""
    path = brightness_nets.write_project(folder, brightness_nets.RIGHT)
    for number, pixels in enumerate(drawn):
        Image.fromarray(pixels).save(folder / "photos" / f"{number:02}.png")
    rows = [f"{number:02}.png,{label}\n" for number, label in enumerate(labels)]
    (folder / "labels.csv").write_text("".join(rows))
    path.write_text(path.read_text().replace("labels.csv", "labels.csv, claimed: 0.9"))
    return path


def warnings_of(project: Path) -> list[str]:
    out = project.parent / "dist"
    return build(project=project, targets=["host"], variants=["cpu-fp32"], out=out).warnings


def hide_in_pixels(shades: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Each second pixel of each second row has the shade, which Pillow's nearest one takes."""
    drawn = others.repeat(16, axis=1).repeat(16, axis=2)
    drawn[:, 1::2, 1::2] = shades
    return drawn


def hide_in_the_middle(shades: np.ndarray, others: np.ndarray) -> np.ndarray:
    """The middle third has the shade, which a crop leaves alone."""
    drawn = others.repeat(8, axis=1).repeat(24, axis=2)
    drawn[:, :, 8:16] = shades
    return drawn


@pytest.mark.parametrize(
    ("hide", "found", "line"),
    [
        (hide_in_pixels, "filter: pillow-nearest}", "height: 8, filter: pillow-nearest}"),
        (hide_in_the_middle, "{short_side: 8, crop: 8}", "resize: {short_side: 8, crop: 8}"),
    ],
)
def test_build_when_pictures_are_resized_otherwise_than_claimed_names_what_is_right(
    tmp_path, hide, found, line
):
    shades, labels = brightness_nets.pictures(40)
    others = np.random.default_rng(6).permutation(shades)[:, :1, :1]
    [text] = warnings_of(claimed_project(tmp_path, hide(shades[:, :1, :1], others), labels))
    assert "and 90.0% is claimed" in text or "at chance level" in text
    best = next(line for line in text.split("\n    ") if line.startswith("best of"))
    assert best.startswith("best of ")
    assert found in best.partition(" (nearly")[0].partition("; as it is")[0]
    assert "right for 40 of 40, " in best
    assert " more (" in best
    assert line in text.partition("write inputs: ")[2]


@pytest.mark.parametrize("seed", range(4))
def test_build_when_no_way_to_resize_is_right_suspects_none(tmp_path, seed):
    """Of noise each way gives other answers, some of them right by luck; half the labels are."""
    random = np.random.default_rng(seed)
    shades, labels = brightness_nets.pictures(40)
    noise = random.normal(0, 120, (40, 13, 29, 1)) + random.normal(0, 25, (40, 1, 1, 1))
    drawn = np.clip(shades[:, :1, :1] + noise, 0, 255).astype(np.uint8)
    labels[::2] = random.permutation(labels[::2])
    [text] = warnings_of(claimed_project(tmp_path, drawn, labels))
    assert "is clearly better" in text
    assert "write inputs" not in text
    # Three filters and three fits are tried beside orders and values.
    assert f"none of {len(list_image_alternatives(RIGHT)) + 6} other ways" in text


@pytest.mark.parametrize("claimed", [0.5, 0.6, None])
def test_check_when_accuracy_is_as_claimed_says_nothing(warned, claimed):
    labels = brightness_nets.pictures(40)[1]
    some = np.where(np.arange(40) % 2 == 0, labels, (labels + 1) % 10)
    assert warned(RIGHT, labels=some, claimed=claimed) == []


def test_check_when_labels_are_texts_says_nothing(warned):
    assert warned(RIGHT, labels=np.array([f"text {n}" for n in range(40)])) == []


def test_check_when_most_samples_are_of_one_class_says_nothing(warned):
    tensors = [np.full((1, 3, 8, 8), 0.7 + n / 1000, np.float32) for n in range(40)]
    labels = np.where(np.arange(40) < 38, 3, 0)
    assert warned(RIGHT, labels=labels, tensors=tensors) == []


def test_check_when_unlabelled_outputs_hardly_vary_finds_what_tells_most(warned):
    tiny = RIGHT.model_copy(update={"scale": 1 / 127.5 / 255})
    [text] = warned(tiny, labels=False)
    assert "fp32's outputs hardly vary over 40 different samples: 'scores' by " in text
    assert "of at most 2.00 bits of the sample" in text
    assert "RGB from -1 to 1" in text
    assert "write inputs" in text


def test_check_when_the_first_normalization_saw_something_else_says_so(warned):
    [text] = warned(UNSCALED, labels=False, norm=True)
    assert "what reaches the first BatchNormalization, 'bn', is not what it was trained" in text
    assert "write inputs" in text


def test_check_when_the_model_scales_itself_says_which_nodes_do(warned):
    [text] = warned(RIGHT, labels=False, head=True)
    assert "the model begins with 'scaling' and 'centring', which take 0 to 255" in text


def test_check_when_the_model_scales_itself_and_gets_pixels_says_nothing(warned):
    assert warned(UNSCALED, labels=False, head=True) == []


def test_check_when_samples_are_tensors_says_what_to_multiply_them_by(warned):
    pictures, _ = brightness_nets.pictures(40)
    tensors = [picture.transpose(2, 0, 1)[None] / np.float32(255) for picture in pictures]
    [text] = warned(RIGHT, described=False, tensors=tensors, head=True)
    assert "at chance level" in text
    assert "is the samples' values multiplied by 255: right for 40 of 40" in text
    assert "give samples that are multiplied by 255" in text
    assert "nothing describes how the samples were made: check it" in text


def test_check_when_all_samples_are_equal_says_nothing(warned):
    assert warned(UNSCALED, tensors=[np.ones((1, 3, 8, 8), np.float32)] * 40) == []


def test_best_detection_when_an_output_has_boxes_is_the_one_with_the_best_score():
    output = np.zeros((1, 6, 9), np.float32)
    output[0, :, 5] = 8, 9, 6, 4, 0.2, 0.7
    meaning = DetectionOutput(kind="detection", layout="yolo")
    plane = make_plane(meaning.model_dump())
    assert find_best(output, meaning, plane).score == pytest.approx(0.7)
    assert find_best(np.zeros((1, 6, 0), np.float32), meaning, plane) is None


def test_check_when_scores_are_described_as_boxes_warns(tmp_path):
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["out"])]
    (tmp_path / "model").mkdir()
    tiny_models.save(
        tmp_path / "model" / MODEL,
        nodes,
        [("x", TensorProto.FLOAT, [1, 3, 8, 8])],
        [("out", TensorProto.FLOAT, [1, 6, 32])],
        [("shape", np.array([1, 6, 32]))],
    )
    spec = TensorSpec("x", "float32", (1, 3, 8, 8))
    random = np.random.default_rng(0)
    samples = ((str(n), {"x": random.random((1, 3, 8, 8), np.float32)}) for n in range(12))
    (tmp_path / "samples").mkdir()
    write_sample_set(tmp_path / "samples", (spec,), samples, None)
    described = (("out", DetectionOutput(kind="detection", layout="yolo")),)
    step = ReadAnswers(described, (640, 640), "x86-64")
    (tmp_path / "found").mkdir()
    inputs = {name: tmp_path / name for name in ("model", "samples")}
    with pytest.raises(ProfileError, match=r"'out' is not what .* boxes without area") as caught:
        run_step(step, inputs, tmp_path / "found")
    assert "the boxes are from 0 to 1" in caught.value.hint


@pytest.mark.parametrize("in_graph", slow_after(1, [False, True]), ids=["outside", "in_graph"])
def test_build_when_the_scale_is_missing_warns_with_the_line_to_write(tmp_path, in_graph):
    path = brightness_nets.write_project(tmp_path, "{resize: {width: 8, height: 8}}")
    if in_graph:
        path.write_text(path.read_text() + "preprocess: {in_graph: true}\n")
    result = build(project=path, targets=["host"], variants=["cpu-fp32"], out=tmp_path / "dist")
    [text] = result.warnings
    assert text.startswith("preprocessing: fp32 is at chance level")
    assert f"write inputs: {{image: {{image: {format_flow(RIGHT)}}}}}" in text


IMAGENET = {"short_side": 146, "crop": 128}


SQUEEZENET = ImageInput(
    resize={"short_side": 256, "crop": 224}, order="BGR", mean=[103.939, 116.779, 123.68]
)


@pytest.mark.slow(reason="runs a larger model")
@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        # So little is lost that it is the claim that shows it.
        ({"order": "RGB", "mean": [123.68, 116.779, 103.939]}, "best, BGR from -123.68 to 151.061"),
        ({"scale": 1 / 255, "mean": []}, "order: BGR, scale: 1"),
        ({"layout": "NHWC"}, ""),
    ],
)
def test_check_of_squeezenet_when_order_or_scale_is_wrong_finds_the_right_one(
    tmp_path, shared_data, wrong, found
):
    photos = shared_data / "imagenet"
    with (photos / "labels.csv").open() as file:
        rows = [row for row in csv.reader(file) if row[1].isdigit()][::10]
    for name in ("pictures", "model"):
        (tmp_path / name).mkdir()
    for row in rows:
        shutil.copy(photos / "images" / Path(row[0]).name, tmp_path / "pictures")
    labels = "".join(f"{Path(row[0]).name},{row[1]}\n" for row in rows)
    (tmp_path / "labels.csv").write_text(labels)
    shutil.copy(photos / "squeezenet1.1_fp32_opset13_dynbatch.onnx", tmp_path / "model.onnx")
    image = SQUEEZENET.model_copy(update=wrong)
    path = tmp_path / "edgepack.yaml"
    path.write_text(
        "schema_version: 1\nname: net\nversion: 1.0.0\nmodel: model.onnx\ndims: {N: 1}\n"
        f"inputs: {{data_0: {{image: {format_flow(image)}}}}}\n"
        "samples:\n  calibration: {images: pictures, limit: 8}\n"
        "  evaluation: {images: pictures, labels: labels.csv, claimed: 0.58}\n"
    )
    if not found:
        # What the input cannot be is refused before anything runs.
        with pytest.raises(ProfileError, match="an image would become"):
            build(project=path, targets=["host"], variants=["cpu-fp32"], out=tmp_path / "dist")
        return
    result = build(project=path, targets=["host"], variants=["cpu-fp32"], out=tmp_path / "dist")
    [text] = [each for each in result.warnings if each.startswith("preprocessing")]
    assert found in text
    assert "suspects are order, scale, mean and std, layout" in text


@pytest.fixture
def mobilenet_warned(tmp_path, shared_data):
    """Run the step on MobileNet v1 with 64 of the public photographs."""

    def run(image, *, labelled=True):
        photos = shared_data / "imagenet"
        with (photos / "labels.csv").open() as file:
            rows = [row for row in csv.reader(file) if row[1].isdigit()][::16]
        files = [photos / "images" / Path(row[0]).name for row in rows]
        for name in ("model", "samples", "out"):
            (tmp_path / name).mkdir()
        source = photos / "mobilenet_v1_0.25_128_fp32.onnx"
        prepared = read_model(source)
        fix_dims(prepared, {"N": 1})
        write_model(prepared, tmp_path / "model" / "model.onnx")
        spec = TensorSpec("input", "float32", (1, 3, 128, 128))
        labels = np.array([int(row[1]) for row in rows]) if labelled else None
        samples = read_image_samples(files, "input", image)
        write_sample_set(tmp_path / "samples", (spec,), samples, labels)
        step = InputCheck((("input", image),), "output", (), "x86-64")
        inputs = {"model": tmp_path / "model", "samples": tmp_path / "samples"}
        return run_step(step, inputs, tmp_path / "out").facts["warnings"]

    return run


@pytest.mark.parametrize("labelled", [True, False])
def test_check_of_mobilenet_when_the_scale_is_missing_finds_the_right_one(
    mobilenet_warned, labelled
):
    [text] = mobilenet_warned(ImageInput(resize=IMAGENET), labelled=labelled)
    assert ("right for" in text) == labelled
    assert "order: RGB, scale: 0.00784314, mean: [1, 1, 1], layout: NCHW}}}" in text


@pytest.mark.parametrize(("order", "labelled"), [("RGB", True), ("RGB", False), ("BGR", True)])
def test_check_of_mobilenet_when_it_is_right_or_nearly_says_nothing(
    mobilenet_warned, labelled, order
):
    right = ImageInput(resize=IMAGENET, order=order, scale=1 / 127.5, mean=[1.0, 1.0, 1.0])
    assert mobilenet_warned(right, labelled=labelled) == []

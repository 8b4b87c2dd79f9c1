"""Builds that are judged by labels of pictures: texts, numbers, sets, masks and pictures."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from edgepack.builder.build import build
from edgepack.bundle.manifest import Accuracy
from edgepack.errors import SamplesError
from onnx import TensorProto, helper
from onnxruntime import InferenceSession
from PIL import Image

from tests.support.nets.tiny_models import save
from tests.support.slow_cases import slow_after

SIDE, COUNT = 16, 24
SYMBOLS = "abc"


def make_net(path: Path, kind: str) -> None:
    """A model whose answer is the picture itself, its mean, or the mean of a channel."""
    side = [1, 3, SIDE, SIDE]
    nodes, constants, shape = {
        "picture": ([helper.make_node("Identity", ["image"], ["o"])], [], side),
        "mask": (
            [helper.make_node("Conv", ["image", "w"], ["o"])],
            [("w", np.eye(3, dtype=np.float32)[:, :, None, None])],
            side,
        ),
        "means": (
            [helper.make_node("ReduceMean", ["image"], ["o"], axes=[2, 3], keepdims=0)],
            [],
            [1, 3],
        ),
        "mean": (
            [
                helper.make_node("ReduceMean", ["image"], ["m"], axes=[2, 3], keepdims=0),
                helper.make_node("MatMul", ["m", "w"], ["o"]),
            ],
            [("w", np.full((3, 1), 1 / 3, np.float32))],
            [1, 1],
        ),
        # A column is a step: its mean red, green and blue say a, b or c, and darkness says nothing.
        "text": (
            [
                helper.make_node("ReduceMean", ["image"], ["m"], axes=[2], keepdims=0),
                helper.make_node("Concat", ["dark", "m"], ["o"], axis=1),
            ],
            [("dark", np.full((1, 1, SIDE), 0.3, np.float32))],
            [1, 4, SIDE],
        ),
    }[kind]
    outputs = [("o", TensorProto.FLOAT, shape)]
    save(path, nodes, [("image", TensorProto.FLOAT, side)], outputs, constants)


class Case:
    """A project of pictures that its model is right for, a quarter of them labelled wrong."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.random = np.random.default_rng(0)
        for name in ("pictures", "calibration", "labels"):
            (folder / name).mkdir()

    def write(self, net: str, output: str, metric: str, labels: str) -> Path:
        make_net(self.folder / "model.onnx", net)
        (self.folder / "symbols.txt").write_text("\n".join(SYMBOLS) + "\n")
        path = self.folder / "edgepack.yaml"
        path.write_text(
            "schema_version: 1\nname: net\nversion: 1.0.0\nmodel: model.onnx\n"
            "files: [symbols.txt]\n"
            f"inputs: {{image: {{image: {{resize: {{width: {SIDE}, height: {SIDE}}},"
            " scale: 0.00392157}}}\n"
            f"outputs: {{o: {output}}}\n"
            "samples:\n  calibration: {images: calibration}\n"
            f"  evaluation: {{images: pictures, labels: {labels}, metric: {metric}}}\n"
            "targets: [{id: linux-x86-64, variants: [{backend: cpu, recipe: fp32}]}]\n"
        )
        return path

    def save(self, n: int, pixels: np.ndarray) -> None:
        for folder in ("pictures", "calibration"):
            Image.fromarray(pixels).save(self.folder / folder / f"{n}.png")

    def save_rows(self, rows: list[tuple[str, str]]) -> None:
        text = "".join(f"{name},{label}\n" for name, label in [("file", "label"), *rows])
        (self.folder / "labels.csv").write_text(text)


def texts(case: Case, *, wrong: bool) -> Path:
    rows = []
    for n in range(COUNT):
        text = "".join(case.random.choice(list(SYMBOLS), case.random.integers(1, SIDE // 2)))
        pixels = np.zeros((SIDE, SIDE, 3), np.uint8)
        for place, symbol in enumerate(text):
            pixels[:, 2 * place, SYMBOLS.index(symbol)] = 255
        case.save(n, pixels)
        rows.append((f"{n}.png", "c" * len(text) if wrong and n % 4 == 0 else text))
    case.save_rows(rows)
    return case.write("text", "{kind: text, labels: symbols.txt, axis: 1}", "cer", "labels.csv")


def numbers(case: Case, *, wrong: bool) -> Path:
    levels = case.random.permutation(COUNT) * 10
    for n, level in enumerate(levels):
        case.save(n, np.full((SIDE, SIDE, 3), level, np.uint8))
    case.save_rows(
        [(f"{n}.png", f"{-v if wrong and n % 4 == 0 else v**2}.5") for n, v in enumerate(levels)]
    )
    return case.write("mean", "{kind: regression}", "spearman", "labels.csv")


def verified(case: Case, *, wrong: bool) -> Path:
    for n in range(COUNT):
        case.save(n, np.full((SIDE, SIDE, 3), 50 + 100 * (n % 2) + n, np.uint8))
    case.save_rows([(f"{n}.png", str(int(n % 2 != (wrong and n % 4 == 0)))) for n in range(COUNT)])
    return case.write("mean", "{kind: probability}", "eer", "labels.csv")


def sets(case: Case, *, wrong: bool) -> Path:
    rows = []
    for n in range(COUNT):
        there = case.random.integers(0, 2, 3)
        case.save(n, np.full((SIDE, SIDE, 3), 255 * there, np.uint8))
        shown = 1 - there if wrong and n % 4 == 0 else there
        rows += [(f"{n}.png", str(k)) for k in np.flatnonzero(shown)] or [(f"{n}.png", "")]
    case.save_rows(rows)
    return case.write("means", "{kind: probability}", "f1", "labels.csv")


def masks(case: Case, *, wrong: bool) -> Path:
    for n in range(COUNT):
        # Twice as large as the input, so that a class is of two times two pixels.
        classes = case.random.integers(0, 3, (SIDE, SIDE)).repeat(2, axis=0).repeat(2, axis=1)
        case.save(n, (np.eye(3)[classes] * 255).astype(np.uint8))
        labels = (classes + (wrong and n % 4 == 0)) % 3
        labels[0] = 255
        Image.fromarray(labels.astype(np.uint8)).save(case.folder / "labels" / f"{n}.png")
    return case.write("mask", "{kind: mask}", "miou", "labels")


def pictures(case: Case, *, wrong: bool) -> Path:
    for n in range(COUNT):
        pixels = case.random.integers(0, 256, (SIDE, SIDE, 3)).astype(np.uint8)
        case.save(n, pixels)
        shown = 255 - pixels if wrong and n % 4 == 0 else pixels
        Image.fromarray(shown).save(case.folder / "labels" / f"{n}.bmp")
    return case.write("picture", "{kind: picture}", "psnr", "labels")


def built(project: Path) -> Accuracy:
    (variant,) = (
        build(project=project, out=project.parent / "dist").bundles[0].bundle.manifest.variants
    )
    assert isinstance(variant.accuracy, Accuracy)
    return variant.accuracy


CASES = [
    (texts, "cer", 0, (0.05, 0.25)),
    (numbers, "spearman", 1, (-0.5, 0.8)),
    (verified, "eer", 0, (0.1, 0.5)),
    (sets, "f1", 1, (0.5, 0.85)),
    (masks, "miou", 1, (0.5, 0.7)),
    (pictures, "psnr", 100, (70, 80)),
]


@pytest.mark.parametrize("wrong", [False, True])
@pytest.mark.parametrize(
    ("make", "metric", "right", "less"), slow_after(1, CASES, reason="builds each kind")
)
def test_build_by_labels_of_pictures_is_right_where_they_are(
    tmp_path, make, metric, right, less, wrong
):
    found = built(make(Case(tmp_path), wrong=wrong))
    assert found.metric == metric
    assert found.higher_is_better == (metric not in ("cer", "eer"))
    assert found.drop == 0
    assert found.drop_interval == (0, 0)
    if wrong:
        assert less[0] < found.value < less[1]
    else:
        assert found.value == pytest.approx(right, abs=1e-3)


@pytest.mark.slow(reason="builds")
def test_build_when_a_label_changes_judges_anew(tmp_path):
    project = masks(Case(tmp_path), wrong=False)
    assert built(project).value == pytest.approx(1)
    for path in (tmp_path / "labels").glob("*.png"):
        Image.fromarray(1 - np.asarray(Image.open(path)).clip(0, 1)).save(path)
    assert built(project).value < 0.5


@pytest.mark.slow(reason="builds")
def test_build_with_a_limit_searches_by_the_metric_of_labels(tmp_path):
    project = masks(Case(tmp_path), wrong=False)
    text = project.read_text().replace("recipe: fp32}]}]", "recipe: int8-static}]}]")
    project.write_text(text + "limits: {metric_drop: 0.01}\n")
    found = built(project)
    assert found.metric == "miou"
    assert found.drop is not None
    assert found.drop <= 0.01


def keypoints(folder: Path) -> Path:
    case = Case(folder)
    images, objects = [], []
    for n in range(COUNT):
        x, y = (int(v) for v in case.random.integers(2, SIDE - 6, 2))
        pixels = np.zeros((SIDE, SIDE, 3), np.uint8)
        pixels[0, 0] = (x, y, 4)
        case.save(n, pixels)
        images.append({"id": n, "file_name": f"{n}.png"})
        about = {"image_id": n, "category_id": 1, "bbox": [x, y, 4, 4], "area": 16}
        objects.append(about | {"keypoints": [x, y, 2, x + 4, y + 4, 1]})
    given = {"images": images, "annotations": objects, "categories": [{"id": 1, "name": "x"}]}
    (folder / "poses.json").write_text(json.dumps(given))
    output = "{kind: detection, layout: yolo, keypoints: 2, keypoint_values: 2}"
    project = case.write("picture", output, "oks", "poses.json")
    # The first pixel says where the object is: rows of x, y, w, h, score and two points.
    weights = np.zeros((3, 9), np.float32)
    weights[0, [0, 5, 7]] = weights[1, [1, 6, 8]] = weights[2, [2, 3]] = 255
    weights[2, [0, 1]] = 255 / 2
    weights[2, [7, 8]] = 255
    nodes = [
        helper.make_node("Slice", ["image", "zero", "one", "axes"], ["corner"]),
        helper.make_node("Reshape", ["corner", "flat"], ["row"]),
        helper.make_node("MatMul", ["row", "w"], ["place"]),
        helper.make_node("Reshape", ["place", "shape"], ["first"]),
        helper.make_node("Add", ["first", "sure"], ["o"]),
    ]
    # Of twenty boxes the first has a score.
    sure = np.zeros((1, 9, 20), np.float32)
    sure[0, 4, 0] = 0.9
    constants = [
        ("zero", np.zeros(2, np.int64)),
        ("one", np.ones(2, np.int64)),
        ("axes", np.array([2, 3])),
        ("flat", np.array([1, 3])),
        ("w", weights),
        ("sure", sure),
        ("shape", np.array([1, 9, 1])),
    ]
    outputs = [("o", TensorProto.FLOAT, [1, 9, 20])]
    inputs = [("image", TensorProto.FLOAT, [1, 3, SIDE, SIDE])]
    save(folder / "model.onnx", nodes, inputs, outputs, constants)
    return project


@pytest.mark.slow(reason="builds")
def test_build_by_cocos_keypoints_is_right_where_they_are(tmp_path):
    project = keypoints(tmp_path)
    found = built(project)
    assert (found.metric, found.value) == ("oks", pytest.approx(1))
    assert set(found.values) == {"oks", "oks50", "f1"}
    path = tmp_path / "poses.json"
    given = json.loads(path.read_text())
    for each in given["annotations"]:
        each["keypoints"][0] += 2
    path.write_text(json.dumps(given))
    assert 0 < built(project).value < 0.8


@pytest.mark.parametrize(
    ("break_it", "said"),
    slow_after(
        1,
        [
            (lambda f: (f / "labels/3.png").unlink(), "there is no mask .*3.png"),
            (
                lambda f: Image.new("L", (5, 7)).save(f / "labels/3.png"),
                "has 5 x 7 pixels, and its image '3.png' has 32 x 32",
            ),
            (
                lambda f: Image.new("RGB", (32, 32)).save(f / "labels/3.png"),
                "Pillow's mode RGB, so its colours are no classes",
            ),
            (
                lambda f: [
                    Image.new("L", (32, 32), 255 * (n % 2)).save(f / f"labels/{n}.png")
                    for n in range(COUNT)
                ],
                "hold 0 and 255 only",
            ),
        ],
        reason="starts workers anew",
    ),
)
def test_build_when_masks_do_not_fit_says_which(tmp_path, break_it, said):
    project = masks(Case(tmp_path), wrong=False)
    break_it(tmp_path)
    with pytest.raises(SamplesError, match=said):
        built(project)


@pytest.mark.slow(reason="builds a larger model")
@pytest.mark.shared_data
def test_build_of_super_resolution_has_the_noise_that_its_pictures_have(tmp_path, shared_data):
    for name in ("small", "large"):
        (tmp_path / name).mkdir()
    due = []
    session = InferenceSession(str(shared_data / "dense/super_resolution_opset.onnx"))
    for n, path in enumerate(sorted((shared_data / "imagenet/images").glob("*"))[:200:50]):
        large = Image.open(path).convert("L").resize((672, 672), Image.Resampling.BICUBIC)
        small = large.resize((224, 224), Image.Resampling.BICUBIC)
        large.save(tmp_path / "large" / f"{n}.png")
        small.save(tmp_path / "small" / f"{n}.png")
        feed = np.asarray(small, np.float32)[None, None] * np.float32(0.00392157)
        (made,) = session.run(None, {"input": feed})
        wanted = np.asarray(large, np.float64)[None, None] / 255
        due.append(-10 * np.log10(((made.clip(0, 1) - wanted) ** 2).mean()))
    shutil.copy(shared_data / "dense/super_resolution_opset.onnx", tmp_path / "model.onnx")
    path = tmp_path / "edgepack.yaml"
    path.write_text(
        "schema_version: 1\nname: net\nversion: 1.0.0\nmodel: model.onnx\ndims: {batch_size: 1}\n"
        "inputs: {input: {image: {resize: {width: 224, height: 224}, order: GRAY,"
        " scale: 0.00392157}}}\n"
        "outputs: {output: {kind: picture}}\n"
        "samples: {evaluation: {images: small, labels: large, metric: psnr}}\n"
        "targets: [{id: linux-x86-64, variants: [{backend: cpu, recipe: fp32}]}]\n"
    )
    found = built(path)
    assert found.metric == "psnr"
    assert found.value == pytest.approx(np.mean(due), abs=0.01)
    assert 25 < found.value < 60

"""A detector, then a classifier of each object: built, proven together, and run by the loader."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from edgepack.builder.pipelines import build_pipeline
from edgepack.bundle.reading import load_bundle
from edgepack.errors import ModelError, ProfileError, SamplesError
from edgepack.ondevice.runtime import edgepack_crops as crops
from edgepack.ondevice.runtime import edgepack_pipeline as pipelines
from edgepack.ondevice.runtime.edgepack_pipeline import Chain, LoadError, load
from onnx import TensorProto, helper
from PIL import Image

from tests.support.nets.pipeline_nets import (
    COLOURS,
    FIND_STAGES,
    PIECE,
    SEEN,
    STRIPES,
    draw_objects,
    write_find_project,
    write_part,
)
from tests.support.nets.text_nets import word_pieces
from tests.support.nets.tiny_models import save
from tests.support.reports.tiny_bundle import change_manifest


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("find")


@pytest.fixture(scope="module")
def bundle(folder: Path) -> Path:
    return build_pipeline(write_find_project(folder), out=folder / "dist").bundles[0].bundle.path


def feed(pixels: Any) -> Any:
    """Return pixels as a model's input: divided by 255, channels first."""
    return (pixels.astype(np.float32) * np.float32(0.00392157)).transpose(2, 0, 1)[None]


def find_by_hand(folder: Path, picture: Any) -> list[tuple[Any, int, Any]]:
    """Return box, class and stripes' scores of each object by Pillow, numpy and onnxruntime alone.

    No cell's box overlaps another one's, so that none is suppressed.
    """
    finder, stripes = (
        ort.InferenceSession(folder / f"{name}.onnx", providers=["CPUExecutionProvider"])
        for name in ("finder", "stripes")
    )
    small = Image.fromarray(picture).resize((64, 48), Image.Resampling.BILINEAR)
    canvas = np.zeros((SEEN, SEEN, 3), np.uint8)
    canvas[8:56] = np.asarray(small)
    [rows] = finder.run(None, {"image": feed(canvas)})
    found = []
    for x, y, width, height, *scores in rows[0].T.tolist():
        if max(scores) < 0.4:
            continue
        corners = [x - width / 2, y - height / 2, x + width / 2, y + height / 2]
        box = [2 * (edge - (0, 8, 0, 8)[side]) for side, edge in enumerate(corners)]
        edges = [
            math.floor(min(max(edge, 0), (128, 96)[side % 2]) + 0.5)
            for side, edge in enumerate(box)
        ]
        piece = Image.fromarray(picture[edges[1] : edges[3], edges[0] : edges[2]])
        shown = np.asarray(piece.resize((PIECE, PIECE), Image.Resampling.BILINEAR))
        [kinds] = stripes.run(None, {"piece": feed(shown)})
        found.append((box, int(np.argmax(scores)), kinds[0]))
    return found


def test_each_object_gets_what_the_models_give_one_after_the_other(
    bundle: Path, folder: Path
) -> None:
    pipeline = load(bundle)
    count = 0
    for picture in draw_objects(8, seed=5)[0]:
        found = pipeline({"picture": picture})
        expected = find_by_hand(folder, picture)
        assert found["stripes"].shape == (len(expected), 2)
        assert list(found["objects"][:, 4]) == sorted(found["objects"][:, 4], reverse=True)
        for row, kinds in zip(found["objects"], found["stripes"], strict=True):
            [(box, colour, scores)] = [
                each for each in expected if np.allclose(row[:4], each[0], atol=0.01)
            ]
            assert int(row[5]) == colour
            assert np.allclose(kinds, scores, atol=1e-5), box
            count += 1
    assert count >= 10


def test_answers_are_what_was_drawn(bundle: Path) -> None:
    pipeline = load(bundle)
    pictures, drawn = draw_objects(12, seed=7)
    for picture, there in zip(pictures, drawn, strict=True):
        found = pipeline.predict(picture)
        said = {
            (each.label, kinds[0].label, tuple(round(edge / 8) for edge in each.box))
            for each, kinds in zip(found["objects"], found["stripes"], strict=True)
        }
        assert len(found["objects"]) == len(there)
        assert {(colour, kind) for colour, kind, _ in said} == {
            (COLOURS[colour], STRIPES[kind]) for colour, kind, _ in there
        }
        for each in found["objects"]:
            assert any(np.allclose(each.box, box, atol=3) for _, _, box in there)


def test_picture_without_objects_is_a_valid_one(bundle: Path) -> None:
    pipeline = load(bundle)
    found = pipeline(np.zeros((96, 128, 3), np.uint8))
    shapes = {name: (array.shape, array.dtype.name) for name, array in found.items()}
    assert shapes == {"objects": ((0, 6), "float32"), "stripes": ((0, 2), "float32")}
    assert pipeline.predict(np.zeros((5, 900, 3), np.uint8)) == {"objects": [], "stripes": []}
    assert pipeline.chain.crops == {1: 0}


def test_what_is_no_picture_is_said(bundle: Path) -> None:
    pipeline = load(bundle)
    with pytest.raises(ValueError, match="is float32, expected uint8"):
        pipeline(np.zeros((96, 128, 3), np.float32))
    with pytest.raises(ValueError, match=re.escape("expected uint8 [height, width, 3]")):
        pipeline(np.zeros((0, 128, 3), np.uint8))


def test_classifier_is_proven_with_what_the_detector_finds(bundle: Path) -> None:
    manifest = load_bundle(bundle / "parts/stripes").manifest
    assert manifest.provenance is not None
    assert manifest.provenance.evaluation is not None
    assert manifest.goldens_from == "samples"
    assert manifest.provenance.evaluation.samples == sum(map(len, draw_objects(24)[1][16:]))


def test_objects_and_what_is_said_of_them_are_checked(bundle: Path) -> None:
    manifest = json.loads((bundle / "manifest.json").read_text())
    [checks] = manifest["checks"].values()
    assert checks["objects"]["min_iou"] > 0.9
    assert checks["objects"]["unmatched"] == 0
    assert checks["stripes"]["min_db"] > 20
    assert load(bundle).golden_db == 200


def swap(rows: Any) -> Any:
    return rows[:, [1, 0, 3, 2, 4, 5]]


def scale(rows: Any) -> Any:
    return rows * np.float32([0.99, 0.99, 0.99, 0.99, 1, 1])


def count_from_one(rows: Any) -> Any:
    return rows + np.float32([0, 0, 0, 0, 0, 1])


def drop_the_last(rows: Any) -> Any:
    return rows[:-1]


@pytest.mark.parametrize(
    ("plant", "problem"),
    [
        (swap, "of the objects 'objects' of the pipeline are missing"),
        (scale, "of the union with the golden one"),
        (count_from_one, "of the objects 'objects' of the pipeline are missing"),
        (drop_the_last, "1 of the objects 'objects' of the pipeline are missing"),
    ],
)
def test_other_objects_are_refused(
    plant: Any, problem: str, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_rows = crops.make_rows
    monkeypatch.setattr(crops, "make_rows", lambda found: plant(make_rows(found)))
    with pytest.raises(LoadError, match=problem) as caught:
        load(bundle)
    assert "although each part is near its own" in str(caught.value)


def shrink(pieces: list[Any]) -> list[Any]:
    return [(number, piece[:-1, :-1]) for number, piece in pieces]


def transpose(pieces: list[Any]) -> list[Any]:
    return [(number, piece.transpose(1, 0, 2)) for number, piece in pieces]


def reorder(pieces: list[Any]) -> list[Any]:
    numbers, cut = [number for number, _ in pieces], [piece for _, piece in pieces]
    return list(zip(numbers, cut[::-1], strict=True))


@pytest.mark.parametrize("plant", [shrink, transpose, reorder])
def test_other_pieces_are_refused(
    plant: Any, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_rows = crops.cut_rows
    monkeypatch.setattr(crops, "cut_rows", lambda *given: plant(list(cut_rows(*given))))
    with pytest.raises(LoadError, match="the output 'stripes' of the pipeline is"):
        load(bundle)


def test_objects_in_another_order_are_the_same(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_rows = crops.make_rows
    monkeypatch.setattr(crops, "make_rows", lambda found: make_rows(found)[::-1])
    assert load(bundle).golden_db == 200


def test_most_and_margin_are_those_of_the_stage(bundle: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(bundle, tmp_path / "copy"))
    change_manifest(
        copy, lambda manifest: manifest["pipeline"]["stages"][1].update(most=1, margin=0.25)
    )
    manifest = pipelines.read_manifest(copy)
    whole = load(bundle)
    chain = Chain(manifest["pipeline"], {n: s.part for n, s in _stages(whole).items()})
    pictures, drawn = draw_objects(1, seed=5)
    picture, seen = pictures[0], []
    assert len(drawn[0]) == 3
    chain.watch = lambda name, fed, _: seen.append(name)
    best = whole(picture)["objects"][:1]
    assert np.array_equal(chain({"picture": picture})["objects"], best)
    assert seen == ["finder", "stripes"]
    with pytest.raises(LoadError, match="are missing"):
        load(copy)


def _stages(pipeline: pipelines.Pipeline) -> dict[str, pipelines.Stage]:
    return {stage.name: stage for stage in pipeline.chain.stages}


@pytest.mark.slow(reason="builds two models in two ways")
def test_int8_classifier_is_held_to_what_it_says_itself(tmp_path: Path) -> None:
    project = write_find_project(tmp_path, recipes="int8-static fp32")
    bundle = build_pipeline(project, out=tmp_path / "dist").bundles[0].bundle
    int8, fp32 = (check["stripes"].min_db for check in bundle.manifest.checks.values())
    assert 0 < int8 < fp32
    for name in ("cpu-int8-static", "cpu-fp32"):
        assert load(bundle.path, {"stripes": name}).variants["stripes"] == name


def test_samples_without_objects_are_refused(tmp_path: Path) -> None:
    project = write_find_project(tmp_path)
    np.savez(tmp_path / "first.npz", picture=np.zeros((3, 96, 128, 3), np.uint8))
    with pytest.raises(SamplesError, match="no object of 'found' was found in the calibration"):
        build_pipeline(project, out=tmp_path / "dist")


def test_goldens_have_objects_even_where_those_come_late(tmp_path: Path) -> None:
    project = write_find_project(tmp_path)
    pictures = draw_objects(3, seed=3)[0]
    late = np.concatenate([np.zeros((6, 96, 128, 3), np.uint8), pictures])
    np.savez(tmp_path / "rest.npz", picture=late)
    built = build_pipeline(project, out=tmp_path / "dist").bundles[0]
    assert built.unchecked == ()
    [checks] = built.bundle.manifest.checks.values()
    assert checks["objects"].unmatched == 0
    goldens = [golden["picture"] for golden in load(built.bundle.path).read_golden_inputs()]
    assert np.array_equal(goldens, late[5:])


def write_find_project_with_state(folder: Path, streams: list[int]) -> Path:
    """Write a project of which a third part keeps a state; 6 pictures without objects, then 2."""
    stages = "    - {run: total, outputs: {y: sum}}\n" + FIND_STAGES
    project = write_find_project(folder, stages=stages)
    values = [(name, TensorProto.FLOAT, [1]) for name in ("x", "s", "y")]
    add = [helper.make_node("Add", ["x", "s"], ["y"], "add")]
    save(folder / "total.onnx", add, values[:2], values[2:])
    part = write_part(folder, "total", more="state: {y: s}\n")
    text = project.read_text().replace("models: {", f"models: {{total: {part}, ")
    project.write_text(text.replace("[picture]", "[picture, x]").replace("[obj", "[sum, obj"))
    pictures = np.concatenate([np.zeros((6, 96, 128, 3), np.uint8), draw_objects(2, seed=3)[0]])
    given = {"picture": pictures, "x": np.ones((8, 1), np.float32), "stream": streams}
    np.savez(folder / "first.npz", **given)
    np.savez(folder / "rest.npz", **given)
    return project


def test_goldens_of_a_state_are_the_first_stream_with_objects(tmp_path: Path) -> None:
    project = write_find_project_with_state(tmp_path, [0, 0, 0, 0, 0, 1, 1, 1])
    built = build_pipeline(project, out=tmp_path / "dist").bundles[0]
    assert built.unchecked == ()
    pipeline = load(built.bundle.path)
    goldens = pipeline.read_golden_inputs()
    assert [bool(golden["picture"].any()) for golden in goldens] == [False, True, True]
    # The first of them begins a stream.
    assert [pipeline(golden)["sum"].tolist() for golden in goldens] == [[1], [2], [3]]


def test_objects_late_in_each_stream_are_refused(tmp_path: Path) -> None:
    project = write_find_project_with_state(tmp_path, [0] * 8)
    with pytest.raises(SamplesError, match=re.escape("stage 3 (stripes) would not be")) as caught:
        build_pipeline(project, out=tmp_path / "dist")
    assert "among the first 4 of a stream" in caught.value.hint


def test_pictures_without_samples_are_refused_by_their_place(tmp_path: Path) -> None:
    project = write_find_project(tmp_path)
    project.write_text(re.sub("samples:.*\n", "", project.read_text()))
    with pytest.raises(ProfileError, match="the project has no samples") as caught:
        build_pipeline(project)
    assert caught.value.where == f"{project}:8:7"
    assert "uint8 [samples, height, width, 3]" in caught.value.hint


def change_stripes(
    project: Path, nodes: list[Any], output: Any, inputs: Sequence[Any] = ()
) -> None:
    """Give the classifier other nodes, which make an output that nothing describes."""
    shape = ["batch", 3, PIECE, PIECE]
    folder = project.parent
    save(folder / "stripes.onnx", nodes, [("piece", TensorProto.FLOAT, shape), *inputs], [output])
    part = folder / "stripes.yaml"
    part.write_text(re.sub("outputs: .*\n", "", part.read_text()))


def test_integers_that_change_with_the_box_are_held_to_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With this margin some edges lie halfway between pixels.
    stages = FIND_STAGES.replace("most: 8", "most: 8, margin: 0.1")
    project = write_find_project(tmp_path, stages=stages)
    brightest = [
        helper.make_node("Flatten", ["piece"], ["values"], "flat"),
        helper.make_node("ArgMax", ["values"], ["stripes"], "place", axis=1),
    ]
    change_stripes(project, brightest, ("stripes", TensorProto.INT64, ["batch", 1]))
    built = build_pipeline(project, out=tmp_path / "dist").bundles[0]
    [checks] = built.bundle.manifest.checks.values()
    assert checks["stripes"].min_db is None
    assert checks["objects"].unmatched == 0
    assert built.unchecked == ("stripes",)
    # A device whose boxes are a little elsewhere is not refused for them.
    cut_rows = crops.cut_rows
    monkeypatch.setattr(crops, "cut_rows", lambda *given: shrink(list(cut_rows(*given))))
    pipeline = load(built.bundle.path)
    assert pipeline.golden_db == 200
    picture = draw_objects(1, seed=5)[0][0]
    smaller = pipeline(picture)["stripes"]
    monkeypatch.setattr(crops, "cut_rows", cut_rows)
    assert not np.array_equal(pipeline(picture)["stripes"], smaller)


def test_labels_that_do_not_fit_the_detector_are_said_with_the_sample(tmp_path: Path) -> None:
    project = write_find_project(tmp_path)
    model = onnx.load(tmp_path / "finder.onnx")
    sizes = model.graph.output[0].type.tensor_type.shape.dim
    sizes[1].dim_param, sizes[2].dim_param = "rows", "cells"
    onnx.save(model, tmp_path / "finder.onnx")
    (tmp_path / "colours.txt").write_text("".join(f"{n}\n" for n in range(6)))
    with pytest.raises(ModelError) as caught:
        build_pipeline(project, out=tmp_path / "dist")
    assert caught.value.problem.startswith("sample 0 of first.npz: stage 1 (finder): the output")
    assert "what the part's project says" in caught.value.hint


@pytest.mark.parametrize(
    ("pictures", "problem"),
    [
        (np.zeros((3, 0, 128, 3), np.uint8), "the picture is uint8 [0, 128, 3], expected"),
        (np.zeros((3, 1, 3, 96, 128), np.float32), "the picture is float32 [1, 3, 96, 128], exp"),
    ],
)
def test_samples_that_are_no_pictures_are_refused(
    pictures: Any, problem: str, tmp_path: Path
) -> None:
    project = write_find_project(tmp_path)
    np.savez(tmp_path / "first.npz", picture=pictures)
    with pytest.raises(SamplesError) as caught:
        build_pipeline(project, out=tmp_path / "dist")
    told = f"sample 0 of first.npz: input 'picture': {problem}"
    assert caught.value.problem.startswith(told)
    assert "astype" not in str(caught.value)
    assert "uint8 [samples, height, width, 3], RGB" in caught.value.hint


def test_more_than_one_row_for_an_object_is_refused(tmp_path: Path) -> None:
    project = write_find_project(tmp_path)
    twice = [
        helper.make_node("ReduceMean", ["piece"], ["mean"], "mean", axes=[2, 3], keepdims=0),
        helper.make_node("Concat", ["mean", "mean"], ["stripes"], "twice", axis=0),
    ]
    change_stripes(project, twice, ("stripes", TensorProto.FLOAT, ["rows", 3]))
    with pytest.raises(ModelError) as caught:
        build_pipeline(project, out=tmp_path / "dist")
    assert caught.value.problem == (
        "sample 0 of first.npz: stage 2 (stripes), object 1: the output 'stripes' is [2, 3] for one"
        " object, and its first axis has to be 1: a row for each object"
    )


@pytest.mark.parametrize(
    ("described", "problem"),
    [
        (
            "outputs: {stripes: {kind: embedding, pooling: mean, mask: words}}\ninputs: {",
            "pooled with a mask",
        ),
        (
            "inputs: {words: {tokens: {file: words.json, length: 3}}, ",
            "'words' is described as",
        ),
    ],
)
def test_what_has_no_answer_for_each_object_is_refused(
    described: str, problem: str, tmp_path: Path
) -> None:
    stages = FIND_STAGES.replace("most: 8", "most: 8, inputs: {words: counted}")
    project = write_find_project(tmp_path, stages=stages)
    project.write_text(project.read_text().replace("[picture]", "[picture, counted]"))
    nodes = [
        helper.make_node("ReduceMean", ["piece"], ["mean"], "mean", axes=[2], keepdims=0),
        helper.make_node("Cast", ["words"], ["floats"], "floats", to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["floats"], ["scale"], "scale"),
        helper.make_node("Mul", ["mean", "scale"], ["stripes"], "product"),
    ]
    inputs = [("words", TensorProto.INT64, [1, 3])]
    change_stripes(project, nodes, ("stripes", TensorProto.FLOAT, ["batch", 3, PIECE]), inputs)
    part = tmp_path / "stripes.yaml"
    (tmp_path / "words.json").write_text(json.dumps(word_pieces()))
    part.write_text(
        part.read_text().replace("files: [", "files: [words.json, ").replace("inputs: {", described)
    )
    with pytest.raises(ProfileError, match=problem) as caught:
        build_pipeline(project, out=tmp_path / "dist")
    assert caught.value.where == f"{project}:8:8"

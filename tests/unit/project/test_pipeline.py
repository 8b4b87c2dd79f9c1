"""Projects of several models: which files they name, and each mistake with its place."""

from __future__ import annotations

from pathlib import Path

import pytest
from edgepack.errors import ProfileError
from edgepack.project.loading import read_project
from edgepack.project.pipeline import is_pipeline, read_pipeline

TEXT = """schema_version: 1
name: wake
models:
  mel: mel.onnx
  classifier: parts/classifier.yaml
pipeline:
  inputs: [audio]
  stages:
    - run: mel
    - {run: classifier, inputs: {x: mel}}
  outputs: [score]
"""
PART = "schema_version: 1\nname: classifier\nmodel: classifier.onnx\nstate: {after: before}\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts/classifier.yaml").write_text(PART)
    (tmp_path / "mel.onnx").touch()
    path = tmp_path / "edgepack.yaml"
    path.write_text(TEXT)
    return path


def test_parts_are_models_and_projects(project: Path) -> None:
    loaded = read_pipeline(project)
    assert loaded.parts["mel"].model_path == project.parent / "mel.onnx"
    assert loaded.parts["classifier"].model_path == project.parent / "parts/classifier.onnx"
    assert loaded.parts["classifier"].project.state == {"after": "before"}
    assert [stage.part for stage in loaded.project.pipeline.stages] == ["mel", "classifier"]


def test_kind_of_project_is_told_by_its_keys(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = project.parent / "parts/classifier.yaml"
    assert is_pipeline(None, project)
    assert not is_pipeline(None, part)
    assert not is_pipeline(project.parent / "mel.onnx", None)
    monkeypatch.chdir(project.parent)
    assert is_pipeline(None, None)
    monkeypatch.chdir(part.parent)
    assert not is_pipeline(None, None)


@pytest.mark.parametrize(
    ("old", "new", "place", "problem", "hint"),
    [
        ("run: classifier", "run: clasifier", "10:8", "there is no part 'clasifier'", "classifier"),
        ("    - run: mel\n", "", "4:3", "no stage runs the part 'mel'", "add {run: mel}"),
        ("mel.onnx", "mell.onnx", "4:3", "there is no model 'mell.onnx'", "relative to"),
        ("mel.onnx", "mel.pt", "4:3", "the part 'mel' cannot be 'mel.pt'", "such as mel.onnx"),
        ("  outputs: [score]\n", "", "6:1", "the key 'outputs' is missing", "add it"),
        ("inputs: {x: mel}", "input: {x: mel}", "10:25", "unknown key 'input'", "'inputs'"),
        (
            "pipeline:",
            "samples: {evaluation: {path: a.npz, labels: y}}\npipeline:",
            "6:37",
            "unknown key 'labels'",
            "one of: limit, path, python",
        ),
        (
            "pipeline:",
            "samples: {calibration: {limit: 3}}\npipeline:",
            "6:11",
            "samples of a pipeline need exactly one source",
            "give one of path, python",
        ),
    ],
)
def test_mistake_has_its_place(
    old: str, new: str, place: str, problem: str, hint: str, project: Path
) -> None:
    project.write_text(TEXT.replace(old, new))
    with pytest.raises(ProfileError) as caught:
        read_pipeline(project)
    assert caught.value.problem.startswith(problem)
    assert hint in caught.value.hint
    assert caught.value.where == f"{project}:{place}"


def test_project_of_one_model_is_needed_elsewhere(project: Path) -> None:
    with pytest.raises(ProfileError, match="this project has several models") as caught:
        read_project(project)
    assert caught.value.where == f"{project}:3:1"


def test_part_that_has_parts_is_refused(project: Path) -> None:
    (project.parent / "parts/classifier.yaml").write_text(TEXT)
    with pytest.raises(ProfileError, match="this project has several models"):
        read_pipeline(project)


def test_limits_of_a_part_need_samples_of_its_own_or_of_the_pipeline(project: Path) -> None:
    part = project.parent / "parts/classifier.yaml"
    part.write_text(PART + "limits: {metric_drop: 0.01}\n")
    with pytest.raises(
        ProfileError, match="the part 'classifier' has limits of accuracy"
    ) as caught:
        read_pipeline(project)
    assert caught.value.where == f"{part}:5:1"
    project.write_text(TEXT + "samples: {evaluation: {path: evaluation.npz}}\n")
    assert read_pipeline(project).parts["classifier"].project.limits.metric_drop == 0.01
    with pytest.raises(ProfileError, match="limits of accuracy are given, and no evaluation"):
        read_project(part)


@pytest.mark.parametrize(
    ("more", "problem", "hint"),
    [
        ("", "takes pictures or texts, and parts of a pipeline take tensors", "give tensors to"),
        (
            "    - {crop: mel, picture: audio, boxes: b, most: 1}\n",
            "makes its input of a picture in the model, and where objects are cut out",
            "leave 'preprocess' out: the pipeline makes the input",
        ),
    ],
)
def test_part_that_makes_its_input_itself_is_told_what_does(
    more: str, problem: str, hint: str, project: Path
) -> None:
    part = project.parent / "parts/classifier.yaml"
    described = "inputs: {x: {image: {resize: {width: 8, height: 8}}}}\n"
    part.write_text(PART + described + "preprocess: {in_graph: true}\n")
    project.write_text(TEXT.replace("  stages:\n", f"  stages:\n{more}"))
    with pytest.raises(ProfileError) as caught:
        read_pipeline(project)
    assert problem in caught.value.problem
    assert hint in caught.value.hint
    assert caught.value.where == f"{part}:6:1"

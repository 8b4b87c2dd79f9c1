from __future__ import annotations

import os

import pytest
from edgepack.builder.planner import make_plan
from edgepack.errors import ProfileError
from edgepack.model.facts import read_model_facts
from edgepack.project.loading import read_project
from edgepack.project.profile import load_profile
from edgepack.steps.samples import ImageSamples
from PIL import Image

from tests.support.nets import tiny_models

INPUTS = "inputs: {image: {image: {resize: {width: 8, height: 8}}}}\n"


def plan(folder, samples):
    model = tiny_models.conv_net(folder / "m.onnx")
    path = folder / "edgepack.yaml"
    path.write_text(
        f"schema_version: 1\nname: m\nmodel: m.onnx\ndims: {{batch: 1}}\n{INPUTS}{samples}"
    )
    return make_plan(read_project(path), read_model_facts(model), [load_profile("linux-x86-64")])


def photos(folder, *names):
    for n, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (n * 9, 255 - n, n)).save(path)


def image_steps(found):
    return {
        planned.step.part: planned.id
        for planned in found.steps
        if isinstance(planned.step, ImageSamples)
    }


@pytest.mark.parametrize("second", ["cls", "./cls", "x/../cls/", "link"])
def test_plan_when_both_name_one_folder_splits_it(tmp_path, second):
    photos(tmp_path / "cls", *(f"{n}.png" for n in range(12)))
    (tmp_path / "x").mkdir()
    (tmp_path / "link").symlink_to("cls")
    found = plan(
        tmp_path,
        f"samples:\n  calibration: {{images: cls/}}\n  evaluation: {{images: {second}}}\n",
    )
    assert set(image_steps(found)) == {"calibration", "evaluation"}


def test_plan_when_a_class_is_added_makes_the_samples_anew(tmp_path):
    photos(tmp_path / "cls", "b/0.png", "c/0.png")
    samples = "samples: {evaluation: {images: cls, labels: folders, limit: 1}}\n"
    before = image_steps(plan(tmp_path, samples))
    photos(tmp_path / "cls", "b/0.png", "c/0.png", "d/0.png")
    assert image_steps(plan(tmp_path, samples)) != before


@pytest.mark.parametrize("pattern", ["", "/tmp/*"])
def test_plan_when_test_data_is_no_glob_is_an_error_with_its_place(tmp_path, pattern):
    with pytest.raises(ProfileError, match="'test_data' cannot be") as caught:
        plan(tmp_path, f'samples:\n  evaluation: {{test_data: "{pattern}"}}\n')
    assert "edgepack.yaml:7:" in caught.value.where


@pytest.mark.parametrize("source", ["python: 'a:b'", "test_data: 'set_*'"])
def test_project_when_the_source_takes_no_labels_refuses_them(tmp_path, source):
    with pytest.raises(ProfileError, match="'labels' goes with 'path', 'images' or 'sounds' only"):
        plan(tmp_path, f"samples: {{evaluation: {{{source}, labels: l.csv}}}}\n")


def test_plan_when_a_photo_has_a_name_that_is_no_text_takes_it(tmp_path):
    photos(tmp_path / "cls", os.fsdecode(b"\xff.png"))
    assert set(image_steps(plan(tmp_path, "samples: {calibration: {images: cls}}\n"))) == {"all"}

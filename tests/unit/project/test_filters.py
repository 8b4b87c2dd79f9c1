"""Which library resizes: the keys, what is written of them, and what is refused."""

from __future__ import annotations

from typing import get_args

import pytest
from edgepack.errors import ProfileError
from edgepack.ondevice.runtime.edgepack_resizing import DEFAULT, FILTERS
from edgepack.project.inputs import Filter, ImageInput
from edgepack.project.loading import read_project


def read_image(resize):
    return ImageInput.model_validate({"resize": resize})


def test_filters_are_those_that_devices_have():
    assert get_args(Filter) == tuple(FILTERS)


@pytest.mark.parametrize(
    ("resize", "written"),
    [
        ({"letterbox": 64}, {"letterbox": 64, "pad": 114}),
        ({"letterbox": 64, "filter": DEFAULT}, {"letterbox": 64, "pad": 114}),
        (
            {"width": 8, "height": 9, "filter": "cv2-area"},
            {"width": 8, "height": 9, "filter": "cv2-area"},
        ),
        (
            {"short_side": 9, "crop": 8, "filter": "torchvision-bicubic"},
            {"short_side": 9, "crop": 8, "filter": "torchvision-bicubic", "antialias": True},
        ),
        (
            {"letterbox": 64, "pad": 0, "filter": "tf-bilinear"},
            {"letterbox": 64, "pad": 0, "filter": "tf-bilinear", "antialias": False},
        ),
        (
            {"letterbox": 64, "pad": 0, "filter": "tf-bilinear", "antialias": True},
            {"letterbox": 64, "pad": 0, "filter": "tf-bilinear", "antialias": True},
        ),
    ],
)
def test_resize_when_written_has_what_is_not_the_default_and_the_librarys_choice(resize, written):
    image = read_image(resize)
    assert image.model_dump()["resize"] == written
    assert ImageInput.model_validate(image.model_dump()) == image


PROJECT = """\
schema_version: 1
name: net
model: net.onnx
inputs: {{x: {{image: {{resize: {resize}}}}}}}
preprocess: {{in_graph: {in_graph}}}
targets: [linux-x86-64]
"""


def read(tmp_path, resize, in_graph="false"):
    (tmp_path / "edgepack.yaml").write_text(PROJECT.format(resize=resize, in_graph=in_graph))
    return read_project(tmp_path / "edgepack.yaml")


def test_project_when_there_is_no_such_filter_lists_those_that_there_are(tmp_path):
    with pytest.raises(ProfileError, match="'filter' cannot be 'cv2-lanczos'") as caught:
        read(tmp_path, "{letterbox: 64, filter: cv2-lanczos}")
    assert "cv2-linear" in str(caught.value.hint)


@pytest.mark.parametrize("filter_", ["", ", filter: pillow-bicubic", ", filter: cv2-linear"])
def test_project_when_a_library_has_no_choice_of_antialiasing_says_which_have(tmp_path, filter_):
    with pytest.raises(ProfileError, match="which has no such choice") as caught:
        read(tmp_path, f"{{letterbox: 64{filter_}, antialias: false}}")
    assert "torchvision-bilinear, torchvision-bicubic, tf-bilinear" in str(caught.value.hint)


@pytest.mark.parametrize(
    "filter_",
    [
        "pillow-bicubic",
        "pillow-nearest",
        "cv2-cubic",
        "cv2-area",
        "cv2-nearest",
        "torchvision-bicubic, antialias: false",
    ],
)
def test_project_when_operators_cannot_resize_as_the_filter_does_is_refused(tmp_path, filter_):
    resize = f"{{letterbox: 64, filter: {filter_}}}"
    assert read(tmp_path, resize).project.inputs
    with pytest.raises(ProfileError, match="no operators resize 'x' as") as caught:
        read(tmp_path, resize, in_graph="true")
    assert "remove 'in_graph'" in str(caught.value.hint)


@pytest.mark.parametrize(
    "filter_",
    [
        "pillow-bilinear",
        "cv2-linear",
        "torchvision-bilinear",
        "torchvision-bicubic",
        "tf-bilinear",
    ],
)
def test_project_when_operators_resize_as_the_filter_does_is_read(tmp_path, filter_):
    assert read(tmp_path, f"{{letterbox: 64, filter: {filter_}}}", in_graph="true").project.pictures

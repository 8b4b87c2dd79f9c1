"""What else a picture could become, and getting its pixels back."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
from edgepack.base.yaml_source import parse_yaml
from edgepack.preprocessing.alternatives import (
    describe_image,
    find_pixels,
    format_flow,
    list_image_alternatives,
    list_resize_alternatives,
    list_tensor_alternatives,
    normalize_pixels,
)
from edgepack.project.inputs import Filter, ImageInput

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
IMAGES = [
    {},
    {"order": "BGR", "mean": [103.939, 116.779, 123.68]},
    {"scale": 1 / 255, "mean": MEAN, "std": STD},
    {"scale": 1 / 255, "mean": MEAN, "std": STD, "order": "BGR", "layout": "NHWC"},
    {"scale": 1 / 255**2, "mean": MEAN},
    {"order": "GRAY", "scale": -1 / 255, "mean": [-1.0]},
]


def image(**given) -> ImageInput:
    return ImageInput(resize={"width": 16, "height": 16}, **given)


@pytest.mark.parametrize("given", IMAGES, ids=str)
def test_pixels_when_a_tensor_is_undone_are_the_pictures_own(given):
    described = image(**given)
    channels = 1 if described.order == "GRAY" else 3
    pixels = np.random.default_rng(0).integers(0, 256, (16, 16, channels)).astype(np.uint8)
    np.testing.assert_array_equal(
        find_pixels(normalize_pixels(pixels, described), described), pixels
    )


def test_pixels_when_their_filter_gives_floats_keep_fractions_and_what_lies_beyond_255():
    resize = {"width": 2, "height": 1, "filter": "torchvision-bicubic"}
    described = ImageInput(resize=resize, scale=1 / 255, mean=MEAN, std=STD)
    pixels = np.array([[[0.25, 100.5, 263.0], [-7.5, 3.125, 255.0]]], np.float32)
    found = find_pixels(normalize_pixels(pixels, described), described)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, pixels, atol=1e-4)


@pytest.mark.parametrize("given", IMAGES, ids=str)
def test_alternatives_when_listed_differ_from_each_other_and_from_the_own(given):
    own = image(**given)
    pixels = np.random.default_rng(0).integers(0, 256, (16, 16, 3)).astype(np.uint8)
    if own.order == "GRAY":
        pixels = pixels[:, :, :1]
    tensor = normalize_pixels(pixels, own)
    found = [tensor, *(a.make_input(tensor, own) for a in list_image_alternatives(own))]
    assert len(found) > 5
    assert all(
        not np.allclose(one, other, rtol=1e-3)
        for number, one in enumerate(found)
        for other in found[:number]
    )


def test_alternatives_when_the_input_takes_both_layouts_hold_the_other_one():
    [other, *_] = list_image_alternatives(image(), ["NCHW", "NHWC"])
    assert other.image == image(layout="NHWC")
    assert other.sees == "RGB from 0 to 255 in NHWC"


def test_alternatives_when_the_scale_is_zero_are_none():
    assert list_image_alternatives(image(scale=0.0)) == []


@pytest.mark.parametrize("given", IMAGES, ids=str)
def test_flow_when_read_as_yaml_is_the_description(given):
    own = image(**given)
    read = parse_yaml(format_flow(own), name="edgepack.yaml").parse(ImageInput)
    assert (read.order, read.layout, read.resize) == (own.order, own.layout, own.resize)
    assert read.scale == pytest.approx(own.scale, rel=1e-5)
    assert (read.mean, read.std) == (pytest.approx(own.mean), pytest.approx(own.std))


@pytest.mark.parametrize(
    ("resize", "flow"),
    [
        ({"letterbox": 64}, "{letterbox: 64}"),
        (
            {"filter": "cv2-area", "short_side": 40, "crop": 32},
            "{short_side: 40, crop: 32, filter: cv2-area}",
        ),
        (
            {"filter": "tf-bilinear", "letterbox": 64, "pad": 0},
            "{letterbox: 64, pad: 0, filter: tf-bilinear, antialias: false}",
        ),
    ],
)
def test_flow_when_a_filter_is_given_has_it_behind_the_size(resize, flow):
    own = ImageInput.model_validate({"resize": resize})
    assert format_flow(own) == f"{{resize: {flow}, order: RGB, scale: 1, layout: NCHW}}"
    assert parse_yaml(format_flow(own), name="edgepack.yaml").parse(ImageInput) == own


def test_seen_when_gray_is_inverted_says_so():
    assert describe_image(image(order="GRAY", scale=-1.0, mean=[-255.0])) == (
        "GRAY from 0 to 255, white for black"
    )


def test_tensor_alternatives_when_there_are_no_channels_only_scale():
    flipped = [a for a in list_tensor_alternatives((1, 8, 8, 3)) if a.flipped == 3]
    assert len(flipped) == 3
    [down, up] = list_tensor_alternatives((1, 40))
    given = np.array([[0.0, 255.0]], np.float32)
    np.testing.assert_allclose(down.make_input(given, None), given / 255)
    np.testing.assert_allclose(up.make_input(given, None), given * 255)


SIZES = {
    "square": {"width": 16, "height": 16},
    "wide": {"width": 20, "height": 16},
    "letterbox": {"letterbox": 16, "pad": 3},
    "crop": {"short_side": 20, "crop": 16},
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", get_args(Filter))
def test_resizing_when_others_are_listed_changes_one_thing_of_few(name, size):
    own = ImageInput(resize={**SIZES[size], "filter": name}, scale=1 / 255, order="BGR")
    found = list_resize_alternatives(own, fits=True)
    assert 2 <= len(found) <= 8
    seen = [own.resize]
    for alternative in found:
        made = alternative.image
        assert made.resize not in seen
        seen.append(made.resize)
        assert made.model_copy(update={"resize": own.resize}) == own
        read = parse_yaml(alternative.write.partition(": ")[2], name="edgepack.yaml")
        assert read.parse(ImageInput).resize == made.resize
        assert f"resize: {{{format_flow(made).partition('{resize: {')[2].partition('}')[0]}}}" in (
            alternative.sees
        )
    fitted = {frozenset(each.model_dump()) - {"filter", "antialias"} for each in seen}
    assert len(fitted) == (1 if size == "wide" else 3)


def test_resizing_when_a_picture_is_cut_tries_the_usual_other_cut():
    own = ImageInput(resize={"short_side": 224, "crop": 224})
    assert {"short_side": 256, "crop": 224} in [
        each.image.resize.model_dump(include={"short_side", "crop"})
        for each in list_resize_alternatives(own, fits=True)
    ]


def test_resizing_without_antialiasing_tries_the_librarys_filters_without_it():
    own = ImageInput(resize={"letterbox": 8, "filter": "torchvision-bilinear", "antialias": False})
    found = [each.image.resize for each in list_resize_alternatives(own, fits=False)]
    assert ("torchvision-bicubic", False) in [(each.filter, each.antialias) for each in found]


def test_resizing_when_objects_are_labelled_where_they_lie_keeps_the_fit():
    own = ImageInput(resize={"letterbox": 16, "filter": "cv2-linear"})
    names = [a.image.resize.filter for a in list_resize_alternatives(own, fits=False)]
    assert names == ["pillow-bilinear", "cv2-cubic", "cv2-area", "cv2-nearest"]

"""Pictures to tensors on devices: bit for bit what Pillow and plain float32 arithmetic give."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from edgepack.ondevice.runtime import edgepack_images as images
from edgepack.ondevice.runtime import edgepack_resizing as resizing
from edgepack.project.inputs import ImageInput
from PIL import Image
from pydantic import ValidationError

SEED = 11


def noise(width, height, seed=SEED):
    """Pixels that reach 0 and 255, so that rounding and clipping both show."""
    values = np.random.default_rng(seed).integers(-60, 316, (height, width, 3))
    return np.clip(values, 0, 255).astype(np.uint8)


def by_pillow(pixels, width, height):
    image = Image.fromarray(pixels).resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(image)


def described(**values):
    return ImageInput.model_validate(values).model_dump()


def cut_out(scaled, place, side):
    """What is kept of a picture that is scaled and then cut."""
    return scaled[-place.top : side - place.top, -place.left : side - place.left]


def test_tensor_when_cut_is_that_of_the_whole_scaled_picture():
    drawn = np.random.default_rng(SEED).integers(1, 80, (40, 4)).tolist()
    for n, (width, height, side, crop) in enumerate(drawn):
        resize = {"short_side": max(side, crop), "crop": min(side, crop)}
        pixels = noise(width, height, n)
        place = images.find_placement(width, height, resize)
        whole = resizing.resize_pixels(pixels, place.width, place.height)
        found = images.make_tensor(pixels, described(resize=resize, layout="NHWC"))[0]
        assert np.array_equal(found, cut_out(whole, place, resize["crop"])), (pixels.shape, resize)


@pytest.mark.parametrize(("width", "height"), [(1, 3000), (3000, 1)])
def test_tensor_when_the_picture_is_long_and_thin_takes_no_more_memory_than_its_crop(width, height):
    pixels = noise(width, height)
    # Scaled it has 32 by 96,000 pixels: Pillow makes them all.
    resize = {"short_side": 32, "crop": 24}
    place = images.find_placement(width, height, resize)
    tracemalloc.start()
    found = images.make_tensor(pixels, described(resize=resize, layout="NHWC"))[0]
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    expected = cut_out(by_pillow(pixels, place.width, place.height), place, 24)
    assert np.array_equal(found, expected)
    assert most < 1_000_000


def test_gray_when_compared_is_pillows_for_every_colour_of_a_grid():
    steps = np.arange(0, 256, 15, np.uint8)
    grid = np.stack(np.meshgrid(steps, steps, steps), -1).reshape(-1, 18, 3)
    assert np.array_equal(
        images.make_gray(grid)[:, :, 0], np.asarray(Image.fromarray(grid).convert("L"))
    )


def test_placement_when_letterboxed_is_in_the_middle_and_keeps_the_shape():
    # 200 * 0.32 = 64 and 100 * 0.32 = 32, so 16 rows are left above and below.
    place = images.find_placement(200, 100, {"letterbox": 64, "pad": 0})
    assert place == (200, 100, 64, 32, 0, 16, 64, 64)


def test_placement_when_cropped_starts_left_of_the_input():
    # 300 by 150 becomes 80 by 40, of which the middle 32 are kept: 24 and 4 are cut before them.
    place = images.find_placement(300, 150, {"short_side": 40, "crop": 32})
    assert place == (300, 150, 80, 40, -24, -4, 32, 32)


def test_placement_when_a_side_is_half_way_between_two_sizes_takes_the_even_one():
    assert images.find_placement(5, 10, {"letterbox": 5, "pad": 0}).width == 2
    assert images.find_placement(7, 10, {"letterbox": 5, "pad": 0}).width == 4


def test_placement_when_a_picture_is_a_thread_keeps_one_pixel():
    assert images.find_placement(1, 900, {"letterbox": 30, "pad": 0}).width == 1


def test_tensor_when_letterboxed_is_filled_around_before_it_is_normalized():
    image = described(resize={"letterbox": 8, "pad": 100}, scale=0.5, mean=[1, 2, 3], std=[2, 4, 5])
    tensor = images.make_tensor(noise(8, 4), image)
    expected = (np.float32(50) - np.array([1, 2, 3], np.float32)) / np.array([2, 4, 5], np.float32)
    assert tensor.shape == (1, 3, 8, 8)
    assert np.array_equal(tensor[0, :, 0, 0], expected)
    assert np.array_equal(tensor[0, :, 7, 7], expected)


def test_tensor_when_its_filter_gives_floats_keeps_their_fractions_and_is_filled_around():
    resize = {"letterbox": 8, "pad": 7, "filter": "tf-bilinear"}
    pixels = np.zeros((2, 4, 3), np.uint8)
    pixels[1] = 101
    tensor = images.make_tensor(pixels, described(resize=resize, layout="NHWC"))
    # 4 rows of the picture between 2 of padding: a quarter and three quarters of the way.
    assert tensor[0, :, 3, 1].tolist() == [7, 7, 0, 25.25, 75.75, 101, 7, 7]


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("order", ["RGB", "BGR", "GRAY"])
def test_tensor_when_order_and_layout_are_given_is_what_numpy_gives(order, layout):
    pixels = noise(9, 7)
    image = described(resize={"width": 9, "height": 7}, order=order, layout=layout, scale=0.25)
    channels = {"RGB": pixels, "BGR": pixels[..., ::-1]}
    channels["GRAY"] = np.asarray(Image.fromarray(pixels).convert("L"))[..., None]
    expected = channels[order].astype(np.float32)[None] * np.float32(0.25)
    if layout == "NCHW":
        expected = expected.transpose(0, 3, 1, 2)
    tensor = images.make_tensor(pixels, image)
    assert tensor.dtype == np.float32
    assert tensor.flags.c_contiguous
    assert np.array_equal(tensor, expected)


@pytest.mark.parametrize(
    "wrong",
    [
        np.zeros((4, 4), np.uint8),
        np.zeros((4, 4, 4), np.uint8),
        np.zeros((4, 4, 3), np.float32),
        np.zeros((0, 4, 3), np.uint8),
    ],
)
def test_tensor_when_it_is_no_picture_says_what_one_is(wrong):
    with pytest.raises(ValueError, match=r"expected uint8 \[height, width, 3\] with RGB"):
        images.make_tensor(wrong, described(resize={"letterbox": 8}))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("key", ["scale", "mean", "std"])
def test_description_when_a_value_is_not_finite_is_refused(key, value):
    given = value if key == "scale" else [value]
    with pytest.raises(ValidationError, match="finite number"):
        described(resize={"letterbox": 8}, order="GRAY", **{key: given})

"""Each filter against the library that it is named after; floats against others' same kernels."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import cv2
import numpy as np
import pytest
from edgepack.ondevice.runtime.edgepack_resizing import FILTERS, gives_floats, resize_pixels
from PIL import Image, __version__

BEFORE_13 = int(__version__.partition(".")[0]) < 13
"""Whether this Pillow resizes the rows first even where much more height is lost than width."""
ON_X86 = platform.machine() in {"x86_64", "AMD64"}
"""Elsewhere OpenCV has kernels of its own, and its compilers join multiplying and adding."""
PILLOW = {
    "pillow-bilinear": Image.Resampling.BILINEAR,
    "pillow-bicubic": Image.Resampling.BICUBIC,
    "pillow-nearest": Image.Resampling.NEAREST,
}
CV2 = {
    "cv2-linear": cv2.INTER_LINEAR,
    "cv2-cubic": cv2.INTER_CUBIC,
    "cv2-area": cv2.INTER_AREA,
    "cv2-nearest": cv2.INTER_NEAREST,
}
FLOATS = [
    ("tf-bilinear", False),
    ("tf-bilinear", True),
    ("torchvision-bilinear", False),
    ("torchvision-bilinear", True),
    ("torchvision-bicubic", False),
    ("torchvision-bicubic", True),
]


def noise(width, height, seed=11, channels=3):
    """Pixels that reach 0 and 255, so that rounding and clipping both show."""
    values = np.random.default_rng(seed).integers(-60, 316, (height, width, channels))
    return np.clip(values, 0, 255).astype(np.uint8)


def draw_cases(count=150):
    """Pictures and sizes: larger, smaller, by whole factors, of one pixel, equal along an axis."""
    drawn = np.random.default_rng(5).integers(1, 70, (count, 4)).tolist()
    for n, sizes in enumerate(drawn):
        width, height, to_width, to_height = choose_sizes(n, *sizes)
        yield noise(width, height, n, 3 if n % 3 else 1), to_width, to_height


def choose_sizes(n, width, height, to_width, to_height):
    if n % 20 == 3:
        return width, 1, 1, to_height
    if n % 5 == 0:  # much more height than width is lost
        return width, 7 * height, to_width, to_height
    if n % 5 == 1:
        return to_width * (1 + n % 4), to_height * (1 + n % 3), to_width, to_height
    return width, height, width if n % 5 == 2 else to_width, to_height


def by_pillow(pixels, width, height, filter_):
    channels = [
        np.asarray(Image.fromarray(pixels[:, :, c]).resize((width, height), filter_))
        for c in range(pixels.shape[2])
    ]
    return np.stack(channels, 2)


@contextmanager
def own_code_of_cv2() -> Iterator[None]:
    """Switch Intel's IPP off, which wheels for x86-64 have and which makes INTER_CUBIC's pixels."""
    before = cv2.ipp.useIPP()
    cv2.ipp.setUseIPP(False)
    try:
        yield
    finally:
        cv2.ipp.setUseIPP(before)


def by_cv2(pixels, width, height, filter_):
    is_whole = filter_ == cv2.INTER_CUBIC and pixels.dtype == np.uint8
    with own_code_of_cv2() if is_whole else nullcontext():
        found = cv2.resize(pixels, (width, height), interpolation=filter_)
    return found.reshape(height, width, pixels.shape[2])


@pytest.mark.parametrize("name", PILLOW)
def test_resize_when_pillow_is_named_is_pillows_bit_for_bit(name):
    for pixels, width, height in draw_cases():
        lost_width, lost_height = pixels.shape[1] - width, pixels.shape[0] - height
        if BEFORE_13 and lost_height > 2 * max(lost_width, 0):
            continue
        found = resize_pixels(pixels, width, height, resize={"filter": name})
        assert found.dtype == np.uint8
        expected = by_pillow(pixels, width, height, PILLOW[name])
        assert np.array_equal(found, expected), (pixels.shape, width, height)


@pytest.mark.parametrize("name", CV2)
def test_resize_when_opencv_is_named_is_opencvs_bit_for_bit(name):
    for pixels, width, height in draw_cases():
        found = resize_pixels(pixels, width, height, resize={"filter": name})
        expected = by_cv2(pixels, width, height, CV2[name])
        assert found.dtype == np.uint8
        if ON_X86:
            assert np.array_equal(found, expected), (pixels.shape, width, height)
        else:
            assert np.abs(found.astype(int) - expected).max() <= 1


@pytest.mark.parametrize("size", [(1, 1), (1, 500), (500, 1), (2, 2), (640, 480), (1919, 1081)])
@pytest.mark.parametrize("name", CV2)
def test_resize_when_a_picture_is_large_or_of_one_pixel_is_opencvs(name, size):
    pixels = noise(*size)
    for to in ((1, 1), (1, 33), (33, 1), (320, 240), (213, 97)):
        found = resize_pixels(pixels, *to, resize={"filter": name})
        expected = by_cv2(pixels, *to, CV2[name])
        assert np.abs(found.astype(int) - expected).max() <= (0 if ON_X86 else 1), to


@pytest.mark.skipif(not ON_X86, reason="elsewhere compilers join multiplying and adding")
@pytest.mark.parametrize(
    ("size", "to"), [((300, 400), (640, 1000)), ((9, 2000), (7, 60000)), ((33, 3000), (5, 50000))]
)
def test_resize_when_cubic_values_lie_between_two_rounds_float32_as_opencv_does(size, to):
    """So many values have some that whole numbers, or float64, round otherwise."""
    pixels = noise(*size, channels=1)
    found = resize_pixels(pixels, *to, resize={"filter": "cv2-cubic"})
    assert np.array_equal(found, by_cv2(pixels, *to, cv2.INTER_CUBIC))


def test_resize_when_intels_ipp_makes_cubic_pixels_is_as_near_as_documents_say():
    far = count = 0
    for pixels, width, height in draw_cases():
        found = resize_pixels(pixels, width, height, resize={"filter": "cv2-cubic"})
        given = cv2.resize(pixels, (width, height), interpolation=cv2.INTER_CUBIC)
        apart = np.abs(found - given.reshape(found.shape).astype(int))
        assert apart.max() <= 1
        far, count = far + int(apart.sum()), count + apart.size
    assert far <= 0.06 * count


@pytest.mark.parametrize(("name", "antialias"), FLOATS)
def test_resize_when_floats_come_out_is_that_of_another_library_on_floats(name, antialias):
    """Pillow antialiases floats, OpenCV interpolates between them: both by the same kernels."""
    bicubic = name.endswith("bicubic")
    for pixels, width, height in draw_cases(60):
        resize = {"filter": name, "antialias": antialias}
        found = resize_pixels(pixels, width, height, resize=resize)
        values = pixels.astype(np.float32)
        if antialias:
            filter_ = PILLOW["pillow-bicubic" if bicubic else "pillow-bilinear"]
            expected = by_pillow(values, width, height, filter_)
        else:
            filter_ = cv2.INTER_CUBIC if bicubic else cv2.INTER_LINEAR
            expected = by_cv2(values, width, height, filter_)
        assert found.dtype == np.float32
        # Places are rounded to float32 in steps of each library's own.
        assert np.abs(found - expected).max() < 0.01, (pixels.shape, width, height)


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("antialias", [False, True])
def test_resize_when_a_part_is_wanted_is_that_part_of_the_whole(name, antialias):
    resize = {"filter": name, "antialias": antialias and gives_floats({"filter": name})}
    for pixels, width, height in draw_cases(40):
        whole = resize_pixels(pixels, width, height, resize=resize)
        columns, rows = range(width // 3, width // 2 + 1), range(height // 4, height)
        part = resize_pixels(pixels, width, height, columns, rows, resize)
        assert np.array_equal(part, whole[height // 4 :, width // 3 : width // 2 + 1])


@pytest.mark.parametrize("name", FILTERS)
def test_resize_when_the_size_is_the_same_keeps_every_value(name):
    pixels = noise(17, 9)
    assert np.array_equal(resize_pixels(pixels, 17, 9, resize={"filter": name}), pixels)


@pytest.mark.skipif(BEFORE_13, reason="this Pillow always resizes the rows first")
@pytest.mark.parametrize("lost_height", [39, 40, 41, 60])
def test_resize_when_height_loses_twice_what_width_loses_changes_the_order_as_pillow_does(
    lost_height,
):
    for seed in range(5):
        pixels = noise(60, 90, seed)
        expected = by_pillow(pixels, 40, 90 - lost_height, Image.Resampling.BILINEAR)
        assert np.array_equal(resize_pixels(pixels, 40, 90 - lost_height), expected)


def test_resize_when_there_is_no_such_filter_names_those_that_there_are():
    with pytest.raises(ValueError, match=r"no filter 'cv2-lanczos': .*cv2-linear, cv2-cubic"):
        resize_pixels(noise(2, 2), 1, 1, resize={"filter": "cv2-lanczos"})

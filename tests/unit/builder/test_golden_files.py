"""Golden inputs as palettes: what comes back has the same bits, and is worth it."""

from __future__ import annotations

import numpy as np
import pytest
from edgepack.builder.golden_files import pack_values
from edgepack.ondevice.runtime.edgepack_images import make_tensor
from edgepack.ondevice.runtime.edgepack_loader import unpack_values

RANDOM = np.random.default_rng(3)
PICTURE = RANDOM.integers(0, 256, (96, 128, 3), np.uint8)
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def described(**changes):
    given = {"resize": {"width": 64, "height": 48}, "order": "RGB", "scale": 1 / 255}
    return {**given, "mean": MEAN, "std": STD, "layout": "NCHW", **changes}


def pack(array):
    return pack_values(array.tobytes(), array.dtype.name, array.shape)


@pytest.mark.parametrize(
    ("changes", "channels"),
    [
        ({}, 3),
        ({"layout": "NHWC"}, 3),
        ({"order": "BGR", "resize": {"letterbox": 64, "pad": 114}}, 3),
        ({"mean": [], "std": []}, 1),
        ({"order": "GRAY", "mean": [0.5], "std": []}, 1),
    ],
)
def test_picture_when_packed_is_about_a_fourth_and_comes_back_bit_by_bit(changes, channels):
    tensor = make_tensor(PICTURE, described(**changes))
    data, palette = pack(tensor)
    assert len(palette.sizes) == channels
    assert len(data) == tensor.size + 4 * sum(palette.sizes) < 0.4 * tensor.nbytes
    found = unpack_values(data, tensor.dtype, palette.model_dump())
    assert found.tobytes() == tensor.tobytes()


@pytest.mark.parametrize(
    "array",
    [
        np.float32([0.0, -0.0, np.nan, -np.nan, np.inf] * 40),
        RANDOM.integers(-9, 9, (2, 3, 30), np.int64),
        RANDOM.integers(0, 9, (2, 4, 5, 40)).astype(np.float64) * 0.1,
    ],
    ids=["signs of zero and what is no number", "int64", "float64 of two samples"],
)
def test_values_when_few_differ_come_back_bit_by_bit(array):
    data, palette = pack(array)
    found = unpack_values(data, array.dtype, palette.model_dump())
    assert (found.dtype, found.tobytes()) == (array.dtype, array.tobytes())


@pytest.mark.parametrize(
    "array",
    [
        RANDOM.random((1, 3, 64, 64)).astype(np.float32),
        PICTURE,
        np.float32(1.0),
        np.zeros((0, 3), np.float32),
        np.float32([1, 2, 3]),
        np.arange(300, dtype=np.float32).repeat(9),
        np.float16([1, 2] * 50),
    ],
    ids=[
        "many values",
        "bytes",
        "one",
        "none",
        "few",
        "more than a byte tells apart",
        "two bytes each",
    ],
)
def test_values_when_a_palette_saves_little_stay_as_they_are(array):
    assert pack(array) is None


@pytest.mark.parametrize(
    ("change", "palette", "said"),
    [
        (lambda data: data[:-1] + b"\x02", {}, "a byte is beyond its channel's palette"),
        (lambda data: data[:6], {}, "it has 6 bytes, its palette alone 8"),
        (bytes, {"step": 0}, "a palette cannot have the step 0 and the sizes"),
        (bytes, {"sizes": []}, "a palette cannot have the step 1 and the sizes"),
        (bytes, {"sizes": [2, 257]}, "a palette cannot have .* 257"),
        (bytes, {"sizes": [3, -1]}, "a palette cannot have .* -1"),
    ],
)
def test_file_when_its_palette_does_not_fit_is_refused(change, palette, said):
    data, found = pack(np.float32([1, 2] * 50))
    with pytest.raises(ValueError, match=said):
        unpack_values(change(data), np.dtype("<f4"), {**found.model_dump(), **palette})

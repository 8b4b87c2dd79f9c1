"""Camera frames to pictures: colours by the standards' own factors, strides, turning, refusals."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from edgepack.ondevice.runtime.edgepack_frames import YUV_WEIGHTS, Frame, Plane, make_pixels
from edgepack.ondevice.runtime.edgepack_images import find_factor, find_placement
from PIL import Image

LUMA_SHARES = {"bt601": (0.299, 0.114), "bt709": (0.2126, 0.0722)}
NOISE = np.random.default_rng(3).integers(0, 256, 100_000, np.uint8)


def i420(width, height, **changes):
    columns, rows = (width + 1) // 2, (height + 1) // 2
    sizes = [(height, width), (rows, columns), (rows, columns)]
    planes = [Plane(NOISE[n:][: h * w], w, 1) for n, (h, w) in enumerate(sizes)]
    return Frame("yuv420", width, height, planes, **changes)


def by_standard(y, u, v, matrix, of_range):
    """RGB of one pixel in floats, from the shares of red and blue in the luma."""
    red, blue = LUMA_SHARES[matrix]
    if of_range == "video":
        y, u, v = (y - 16) / 219 * 255, (u - 128) / 224 * 255, (v - 128) / 224 * 255
    else:
        u, v = u - 128, v - 128
    r, b = y + 2 * (1 - red) * v, y + 2 * (1 - blue) * u
    g = (y - red * r - blue * b) / (1 - red - blue)
    return np.clip([r, g, b], 0, 255)


@pytest.mark.parametrize(("matrix", "of_range"), list(YUV_WEIGHTS))
def test_pixels_when_the_frame_is_yuv_are_the_standards_rounded(matrix, of_range):
    frame = i420(7, 5, matrix=matrix, range=of_range)
    found = make_pixels(frame).astype(int)
    y, u, v = (np.asarray(plane.data, int) for plane in frame.planes)
    for row, column in product(range(5), range(7)):
        chroma = row // 2 * 4 + column // 2
        expected = by_standard(y[row * 7 + column], u[chroma], v[chroma], matrix, of_range)
        assert np.abs(found[row, column] - expected).max() <= 0.51, (row, column)


# No sum of the full range is a half.
@pytest.mark.parametrize(("matrix", "y"), [("bt601", 100), ("bt709", 13)])
def test_pixels_when_a_sum_is_a_half_are_rounded_up(matrix, y):
    luma, black, v_in_red, u_in_green, v_in_green, u_in_blue = YUV_WEIGHTS[matrix, "video"]
    every = np.arange(256)
    u, v = (part - 128 for part in np.meshgrid(every, every, indexing="ij"))
    light = (y - black) * luma
    sums = [light + v * v_in_red, light - u * u_in_green - v * v_in_green, light + u * u_in_blue]
    assert any(np.any((each % 65536 == 32768) & (each > 0)) for each in sums)
    expected = np.clip([(2 * each + 65536) // 131072 for each in sums], 0, 255)

    chroma = [np.asarray(part + 128, np.uint8).ravel() for part in (u, v)]
    planes = [Plane(np.full(512 * 512, y, np.uint8), 512, 1), *(Plane(c, 256, 1) for c in chroma)]
    found = make_pixels(Frame("yuv420", 512, 512, planes, matrix=matrix, range="video"))
    assert np.array_equal(found[::2, ::2], expected.transpose(1, 2, 0))


def test_pixels_when_the_frame_is_gray_are_its_luma():
    gray = bytes([128])
    for luma in range(256):
        frame = Frame("yuv420", 1, 1, [Plane(bytes([luma]), 1, 1), *[Plane(gray, 1, 1)] * 2])
        assert make_pixels(frame).tolist() == [[[luma] * 3]]


@pytest.mark.parametrize(("rotation", "factor"), list(product((0, 90, 180, 270), (2, 4, 8))))
def test_pixels_when_blocks_are_averaged_are_those_of_averages(rotation, factor):
    frame = i420(37, 29, rotation=rotation)
    found = make_pixels(frame, factor)
    blocks = []
    for plane, side in zip(frame.planes, (factor, factor // 2, factor // 2), strict=True):
        rows = np.rot90(np.asarray(plane.data).reshape(-1, plane.row_stride), -rotation // 90)
        height, width = found.shape[0], found.shape[1]
        averages = np.zeros((height, width), int)
        for row, column in product(range(height), range(width)):
            block = rows[row * side : (row + 1) * side, column * side : (column + 1) * side]
            averages[row, column] = np.floor(block.mean() + 0.5)
        blocks.append(averages)
    upright = (37, 29) if rotation in (90, 270) else (29, 37)
    assert found.shape == (upright[0] // factor, upright[1] // factor, 3)
    for row, column in product(range(found.shape[0]), range(found.shape[1])):
        expected = by_standard(*(block[row, column] for block in blocks), "bt601", "full")
        assert np.abs(found[row, column] - expected).max() <= 0.51


@pytest.mark.parametrize(
    ("size", "factor"),
    [((4000, 3000), 8), ((640, 480), 4), ((639, 480), 2), ((160, 120), 1), ((9000, 1), 1)],
)
def test_factor_when_the_picture_is_larger_leaves_enough_of_it(size, factor):
    place = find_placement(*size, {"letterbox": 160, "pad": 114})
    assert find_factor(place) == factor


def test_pixels_when_u_and_v_share_a_buffer_are_those_of_three_planes():
    apart = i420(31, 17)
    y, u, v = (plane.data for plane in apart.planes)
    shared = np.full((9, 40), 7, np.uint8)
    shared[:, :32:2], shared[:, 1:32:2] = u.reshape(9, 16), v.reshape(9, 16)
    # The buffer ends right behind its last sample.
    data = memoryview(shared.tobytes())[: 8 * 40 + 32]
    planes = [Plane(y, 31, 1), Plane(data, 40, 2), Plane(data[1:], 40, 2)]
    assert np.array_equal(make_pixels(Frame("yuv420", 31, 17, planes)), make_pixels(apart))


@pytest.mark.parametrize(
    ("rotation", "turn"),
    [
        (90, Image.Transpose.ROTATE_270),
        (180, Image.Transpose.ROTATE_180),
        (270, Image.Transpose.ROTATE_90),
    ],
)
def test_pixels_when_the_frame_is_turned_are_upright_as_pillow_turns(rotation, turn):
    upright = make_pixels(i420(6, 3))
    found = make_pixels(i420(6, 3, rotation=rotation))
    assert found.flags.c_contiguous
    assert np.array_equal(found, np.asarray(Image.fromarray(upright).transpose(turn)))


@pytest.mark.parametrize(("form", "order"), [("rgba", [0, 1, 2, 3]), ("bgra", [2, 1, 0, 3])])
def test_pixels_when_the_frame_is_transparent_are_laid_over_white_as_pillow_does(form, order):
    value, opacity = np.meshgrid(np.arange(256, dtype=np.uint8), np.arange(256, dtype=np.uint8))
    pixels = np.stack([value, 255 - value, np.full_like(value, 9), opacity], axis=2)
    white = Image.new("RGBA", (256, 256), "white")
    expected = Image.alpha_composite(white, Image.fromarray(pixels)).convert("RGB")
    padded = np.full((256, 1030), 3, np.uint8)
    padded[:, :1024] = pixels[:, :, order].reshape(256, 1024)
    frame = Frame(form, 256, 256, [Plane(padded.tobytes(), 1030, 4)])
    assert np.array_equal(make_pixels(frame), np.asarray(expected))


def test_pixels_when_the_frame_is_rgb_are_its_own():
    pixels = NOISE[: 5 * 4 * 3].reshape(5, 4, 3)
    assert np.array_equal(make_pixels(Frame("rgb", 4, 5, [Plane(pixels, 12, 3)])), pixels)


def released():
    view = memoryview(bytes(12))
    view.release()
    return view


@pytest.mark.parametrize(
    ("frame", "problem"),
    [
        (Frame("nv12", 2, 2, []), "format is 'nv12', expected yuv420, rgb, rgba, bgra"),
        (Frame("rgb", 0, 2, []), "0 x 2 pixels"),
        (Frame("rgb", 2, -1, []), "2 x -1 pixels"),
        (Frame("yuv420", 2, 2, [Plane(bytes(4), 2, 1)] * 2), "2 planes, yuv420 has 3"),
        (i420(2, 2, rotation=45), "rotation is 45, expected 0, 90, 180 or 270"),
        (i420(2, 2, matrix="bt2020"), "'bt2020'"),
        (i420(2, 2, range="tv"), "'tv'"),
        (Frame("rgba", 2, 2, [Plane(bytes(16), 8, 3)]), "pixel stride of 3, 4 are needed"),
        (Frame("rgb", 2, 2, [Plane(bytes(16), 5, 3)]), "row stride of 5, a row has 6 bytes"),
        (Frame("rgb", 2, 2, [Plane(bytes(13), 8, 3)]), "has 13 bytes, 14 are needed"),
        (
            Frame("rgb", 2, 2, [Plane(released(), 6, 3)]),
            "cannot be read: .*before they are released",
        ),
        (Frame("rgb", 2, 2, [Plane(None, 6, 3)]), "cannot be read: "),
    ],
)
def test_pixels_when_the_frame_cannot_be_one_is_refused(frame, problem):
    with pytest.raises(ValueError, match=problem):
        make_pixels(frame)


def test_pixels_when_the_last_row_ends_behind_its_last_pixel_are_read():
    assert make_pixels(Frame("rgb", 2, 2, [Plane(bytes(14), 8, 3)])).shape == (2, 2, 3)

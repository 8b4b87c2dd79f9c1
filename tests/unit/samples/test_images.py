from __future__ import annotations

import numpy as np
import pytest
from edgepack.errors import SamplesError
from edgepack.ondevice.runtime.edgepack_images import make_tensor
from edgepack.project.inputs import ImageInput
from edgepack.samples.images import (
    decode_pixels,
    list_image_files,
    read_image_pixels,
    read_image_size,
    read_image_tensor,
)
from edgepack.samples.sources import read_picture_samples
from PIL import Image


def picture(path, width=40, height=20):
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    Image.fromarray(pixels).save(path)
    return pixels


def describe(**values):
    return ImageInput.model_validate(values)


PLAIN = describe(resize={"width": 4, "height": 4})


def test_short_side_crop_when_no_scaling_is_needed_cuts_the_centre(tmp_path):
    pixels = picture(tmp_path / "a.png")
    tensor = read_image_tensor(tmp_path / "a.png", describe(resize={"short_side": 20, "crop": 10}))
    assert tensor.shape == (1, 3, 10, 10)
    assert np.array_equal(tensor[0].transpose(1, 2, 0), pixels[5:15, 15:25])


def test_normalization_when_bgr_applies_scale_mean_and_std_in_that_order(tmp_path):
    pixels = picture(tmp_path / "a.png", 8, 8)
    tensor = read_image_tensor(
        tmp_path / "a.png",
        describe(
            resize={"width": 8, "height": 8},
            order="BGR",
            scale=0.5,
            mean=[1.0, 2.0, 3.0],
            std=[2.0, 4.0, 8.0],
            layout="NHWC",
        ),
    )
    expected = (pixels[:, :, ::-1] * 0.5 - np.array([1, 2, 3])) / np.array([2, 4, 8])
    assert tensor.shape == (1, 8, 8, 3)
    assert np.allclose(tensor[0], expected)


def test_short_side_crop_when_the_image_is_long_and_thin_scales_only_what_is_kept(
    tmp_path, monkeypatch
):
    pixels = picture(tmp_path / "a.png", 2, 500)
    # 32 by 8000, of which the middle is cut.
    whole = Image.fromarray(pixels).resize((32, 8000), Image.Resampling.BILINEAR)
    expected = np.asarray(whole.crop((4, 3988, 28, 4012)))
    monkeypatch.delattr(Image.Image, "resize")
    described = describe(resize={"short_side": 32, "crop": 24}, layout="NHWC")
    assert np.array_equal(read_image_tensor(tmp_path / "a.png", described)[0], expected)
    gray = describe(resize={"short_side": 32, "crop": 24}, order="GRAY")
    assert read_image_tensor(tmp_path / "a.png", gray).shape == (1, 1, 24, 24)


def test_letterbox_when_the_image_is_wide_pads_above_and_below(tmp_path):
    picture(tmp_path / "a.png")
    tensor = read_image_tensor(tmp_path / "a.png", describe(resize={"letterbox": 40, "pad": 7}))
    assert tensor.shape == (1, 3, 40, 40)
    assert (tensor[:, :, :10] == 7).all()
    assert (tensor[:, :, 30:] == 7).all()


@pytest.mark.parametrize(
    "filter_",
    [
        "pillow-bicubic",
        "pillow-nearest",
        "cv2-linear",
        "cv2-cubic",
        "cv2-area",
        "torchvision-bilinear",
        "tf-bilinear",
    ],
)
@pytest.mark.parametrize("order", ["RGB", "GRAY"])
def test_tensor_when_a_filter_is_named_is_what_devices_make_of_the_pixels(tmp_path, filter_, order):
    pixels = picture(tmp_path / "a.png", 61, 33)
    resize = {"short_side": 24, "crop": 20, "filter": filter_}
    image = describe(resize=resize, order=order, scale=1 / 255)
    found = read_image_tensor(tmp_path / "a.png", image)
    assert np.array_equal(found, make_tensor(pixels, image.model_dump()))
    usual = describe(resize={"short_side": 24, "crop": 20}, order=order, scale=1 / 255)
    assert not np.array_equal(found, read_image_tensor(tmp_path / "a.png", usual))


def test_grey_when_asked_has_one_channel(tmp_path):
    picture(tmp_path / "a.png", 8, 8)
    described = describe(resize={"width": 8, "height": 8}, order="GRAY")
    assert read_image_tensor(tmp_path / "a.png", described).shape == (1, 1, 8, 8)


def test_image_when_broken_or_absent_names_the_file(tmp_path):
    (tmp_path / "bad.png").write_bytes(b"no image")
    with pytest.raises(SamplesError, match=r"bad\.png"):
        read_image_tensor(tmp_path / "bad.png", describe(resize={"letterbox": 8}))
    (tmp_path / "empty").mkdir()
    with pytest.raises(SamplesError, match="there are no images"):
        list_image_files(tmp_path / "empty")
    with pytest.raises(SamplesError, match="there is no folder"):
        list_image_files(tmp_path / "none")


def test_image_when_it_has_too_many_pixels_says_to_scale_it_down(tmp_path, monkeypatch):
    picture(tmp_path / "a.png")
    # Pillow refuses twice as many.
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 399)
    with pytest.raises(SamplesError, match=r"a\.png' is too large: .*800 pixels") as caught:
        read_image_pixels(tmp_path / "a.png")
    assert "scale it down" in str(caught.value.hint)


def test_limit_when_given_spreads_over_the_names(tmp_path):
    for n in range(10):
        Image.new("RGB", (4, 4)).save(tmp_path / f"{n}.png")
    assert [path.name for path in list_image_files(tmp_path, 3)] == ["0.png", "3.png", "6.png"]


def test_image_when_exif_says_turned_is_turned_upright(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by 90 degrees
    pixels = np.zeros((4, 8), np.uint8)
    pixels[:, 4:] = 200
    Image.fromarray(pixels).save(tmp_path / "a.png", exif=exif)
    described = describe(resize={"width": 4, "height": 8}, order="GRAY")
    expected = np.repeat(np.array([0, 200], np.float32), 4)[:, None] * np.ones((1, 4))
    assert np.array_equal(read_image_tensor(tmp_path / "a.png", described)[0, 0], expected)


@pytest.mark.parametrize("orientation", [None, *range(10)])
@pytest.mark.parametrize("suffix", ["png", "jpg", "webp"])
def test_size_is_that_of_the_pixels(tmp_path, suffix, orientation):
    exif = Image.Exif()
    if orientation is not None:
        exif[0x0112] = orientation
    path = tmp_path / f"a.{suffix}"
    Image.new("RGB", (6, 4)).save(path, exif=exif)
    assert read_image_size(path) == read_image_pixels(path).shape[1::-1]


def test_size_of_what_is_no_image_is_refused_as_its_pixels_are(tmp_path):
    (tmp_path / "a.png").write_bytes(b"\x89PNG")
    with pytest.raises(SamplesError, match=r"cannot read .* as an image"):
        read_image_size(tmp_path / "a.png")


@pytest.mark.parametrize("exif", [b"no header", b"MM", b"MM\0*\0\0"])
def test_image_when_its_exif_is_broken_names_the_file(tmp_path, exif):
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png", exif=b"Exif\0\0" + exif)
    with pytest.raises(SamplesError, match=r"a\.png"):
        read_image_tensor(tmp_path / "a.png", describe(resize={"letterbox": 8}))


@pytest.mark.parametrize(
    ("dtype", "kind", "mode"),
    [("uint16", "PNG", "I;16"), ("int32", "TIFF", "I"), ("float32", "TIFF", "F")],
)
def test_image_when_it_has_more_than_8_bits_is_refused(tmp_path, dtype, kind, mode):
    path = tmp_path / "a.png"
    Image.fromarray(np.full((4, 4), 1000, dtype)).save(path, format=kind)
    with pytest.raises(SamplesError, match=rf"8 bits a channel \(Pillow mode {mode}\)"):
        read_image_tensor(path, describe(resize={"letterbox": 8}))


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_image_when_transparent_shows_white(tmp_path, mode):
    image = Image.new("RGBA", (4, 4), (0, 0, 0, 0))
    image.convert(mode).save(tmp_path / "a.png", **({"transparency": 0} if mode == "P" else {}))
    tensor = read_image_tensor(tmp_path / "a.png", describe(resize={"width": 4, "height": 4}))
    assert (tensor == 255).all()


def test_pixels_when_the_file_is_turned_and_transparent_are_upright_over_white(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    pixels = np.zeros((2, 3, 4), np.uint8)
    pixels[:, 0] = (10, 20, 30, 255)
    Image.fromarray(pixels).save(tmp_path / "a.png", exif=exif)
    expected = np.full((3, 2, 3), 255)
    expected[0] = (10, 20, 30)
    assert np.array_equal(read_image_pixels(tmp_path / "a.png"), expected)
    assert np.array_equal(decode_pixels((tmp_path / "a.png").read_bytes(), "a"), expected)


def test_pictures_when_files_are_wanted_are_their_bytes(tmp_path):
    picture(tmp_path / "a.png")
    ((title, feed),) = read_picture_samples([tmp_path / "a.png"], "image", PLAIN, as_files=True)
    assert (title, feed["image"].tobytes()) == ("a.png", (tmp_path / "a.png").read_bytes())


def test_pictures_when_the_model_would_scale_one_beyond_bounds_names_the_file(tmp_path):
    Image.new("RGB", (1, 60_000)).save(tmp_path / "thin.png")
    described = describe(resize={"short_side": 256, "crop": 224})
    with pytest.raises(SamplesError, match=r"thin\.png: .*256 x 15360000 in the model"):
        list(read_picture_samples([tmp_path / "thin.png"], "image", described))


def test_pictures_when_files_are_wanted_and_no_model_decodes_them_names_the_file(tmp_path):
    picture(tmp_path / "a.bmp")
    with pytest.raises(SamplesError, match=r"a\.bmp' is neither JPEG nor PNG"):
        list(read_picture_samples([tmp_path / "a.bmp"], "image", PLAIN, as_files=True))

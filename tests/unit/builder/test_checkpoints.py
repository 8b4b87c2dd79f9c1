"""What ``init`` reads of a checkpoint's files beside the model."""

from __future__ import annotations

import json
import zipfile

import numpy as np
import pytest
from edgepack.builder.checkpoints import read_checkpoint
from edgepack.builder.scaffold import init
from edgepack.project.inputs import ImageInput
from edgepack.project.loading import read_project
from onnx import TensorProto, helper
from PIL import Image

from tests.support.nets import tiny_models

USUAL = ImageInput(resize={"short_side": 256, "crop": 224}, scale=0.00392157)
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
SQUARE = {"width": 224, "height": 224}
VIT = {
    "image_processor_type": "ViTImageProcessor",
    "do_normalize": True,
    "do_rescale": True,
    "do_resize": True,
    "image_mean": [0.5] * 3,
    "image_std": [0.5] * 3,
    "resample": 2,
    "rescale_factor": 0.00392156862745098,
    "size": {"height": 224, "width": 224},
}
CLIP = {
    "feature_extractor_type": "CLIPFeatureExtractor",
    "crop_size": 224,
    "do_center_crop": True,
    "do_normalize": True,
    "do_resize": True,
    "image_mean": MEAN,
    "image_std": STD,
    "resample": 3,
    "size": 224,
}
CONVNEXT = {
    "image_processor_type": "ConvNextImageProcessor",
    "crop_pct": 0.875,
    "do_normalize": True,
    "do_resize": True,
    "image_mean": MEAN,
    "image_std": STD,
    "resample": 3,
    "size": {"shortest_edge": 224},
}
TIMM = {
    "architecture": "resnet50",
    "num_classes": 3,
    "pretrained_cfg": {
        "input_size": [3, 224, 224],
        "interpolation": "bicubic",
        "crop_pct": 0.95,
        "crop_mode": "center",
        "mean": MEAN,
        "std": STD,
        "test_input_size": [3, 288, 288],
        "test_crop_pct": 1.0,
    },
}


def changed(given, **changes):
    return {k: v for k, v in {**given, **changes}.items() if v != "gone"}


def of_timm(**changes):
    return {**TIMM, "pretrained_cfg": changed(TIMM["pretrained_cfg"], **changes)}


def told(folder, name, given, usual=USUAL):
    (folder / name).write_text(given if isinstance(given, str) else json.dumps(given))
    return read_checkpoint(folder / "model.onnx", usual)


@pytest.mark.parametrize(
    ("given", "resize", "others"),
    [
        (VIT, SQUARE, ([0.5] * 3, [0.5] * 3, "RGB", "bilinear")),
        (changed(VIT, do_normalize=False), SQUARE, ([], [], "RGB", "bilinear")),
        (changed(VIT, size=224), SQUARE, ([0.5] * 3, [0.5] * 3, "RGB", "bilinear")),
        (CLIP, {"short_side": 224, "crop": 224}, (MEAN, STD, "RGB", "bicubic")),
        (
            changed(CLIP, size={"shortest_edge": 256}, crop_size={"height": 224, "width": 224}),
            {"short_side": 256, "crop": 224},
            (MEAN, STD, "RGB", "bicubic"),
        ),
        (
            changed(
                CLIP, do_flip_channel_order=True, do_normalize=False, size={"shortest_edge": 288}
            ),
            {"short_side": 288, "crop": 224},
            ([], [], "BGR", "bicubic"),
        ),
        (CONVNEXT, {"short_side": 256, "crop": 224}, (MEAN, STD, "RGB", "bicubic")),
        (
            changed(CONVNEXT, crop_pct="gone"),
            {"short_side": 256, "crop": 224},
            (MEAN, STD, "RGB", "bicubic"),
        ),
    ],
)
def test_processors_of_transformers_say_how_pictures_become_the_input(
    tmp_path, given, resize, others
):
    found = told(tmp_path, "preprocessor_config.json", given)
    assert found.image is not None
    assert found.image.resize.model_dump(exclude={"filter"}) == resize
    assert found.image.resize.filter == f"pillow-{found.filter or 'bilinear'}"
    assert (found.image.mean, found.image.std, found.image.order, found.filter) == others
    assert found.image.scale == 0.00392157
    assert found.why == "preprocessor_config.json"
    assert found.refused == ()


@pytest.mark.parametrize(
    ("given", "resize"),
    [
        (changed(VIT, size=[224, 224]), {"width": 224, "height": 224}),
        (
            {"feature_extractor_type": "ConvNextFeatureExtractor", "size": 224, "crop_pct": 0.875},
            {"short_side": 256, "crop": 224},
        ),
    ],
)
def test_older_processors_are_read(tmp_path, given, resize):
    found = told(tmp_path, "preprocessor_config.json", given)
    assert found.image.resize.model_dump(exclude={"filter"}) == resize
    assert found.why == "preprocessor_config.json"


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (changed(VIT, size={"height": 256, "width": 256}, crop_size=224), "does not do"),
        (changed(VIT, keep_aspect_ratio=True), "in its own way"),
        (changed(CLIP, image_processor_type="DeiTImageProcessor"), "in its own way"),
        (changed(VIT, size=[224, 384]), "does not do"),
        (changed(VIT, size="224"), "does not do"),
    ],
)
def test_processors_that_resize_in_another_way_leave_a_guess(tmp_path, given, why):
    found = told(tmp_path, "preprocessor_config.json", given)
    assert why in found.why
    assert found.why.endswith("resize is a guess")


@pytest.mark.parametrize("key", ["rescale_offset", "include_top"])
def test_processors_that_rescale_twice_are_refused(tmp_path, key):
    found = told(tmp_path, "preprocessor_config.json", changed(VIT, **{key: True}))
    assert found.image is None
    assert "rescales a second time" in found.refused[0]


def test_processors_of_convnext_stretch_from_384_on(tmp_path):
    usual = USUAL.model_copy(
        update={"resize": ImageInput(resize={"width": 384, "height": 384}).resize}
    )
    given = changed(CONVNEXT, size={"shortest_edge": 384})
    found = told(tmp_path, "preprocessor_config.json", given, usual)
    assert found.image.resize.model_dump(exclude={"filter"}) == {"width": 384, "height": 384}


@pytest.mark.parametrize(
    ("given", "scale"),
    [
        (changed(VIT, do_rescale=False), 1.0),
        (changed(VIT, rescale_factor=1 / 127.5), 1 / 127.5),
        (changed(VIT, rescale_factor="gone", do_rescale="gone"), 0.00392157),
    ],
)
def test_processors_say_the_scale(tmp_path, given, scale):
    found = told(tmp_path, "preprocessor_config.json", given)
    assert found.image.scale == pytest.approx(scale)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (changed(VIT, size={"height": 384, "width": 384}), "it makes 384 x 384, and the model"),
        (changed(VIT, size={"shortest_edge": 800, "longest_edge": 1333}), "does not do"),
        (changed(VIT, do_resize=False), "it resizes nothing"),
    ],
)
def test_processors_whose_size_does_not_fit_leave_it_a_guess(tmp_path, given, why):
    found = told(tmp_path, "preprocessor_config.json", given)
    assert found.image.resize == USUAL.resize
    assert found.image.mean == [0.5] * 3
    assert why in found.why
    assert "guess" in found.why


@pytest.mark.parametrize(
    ("given", "side", "resize", "why"),
    [
        (TIMM, 224, {"short_side": 235, "crop": 224}, "config.json"),
        (TIMM, 288, {"short_side": 288, "crop": 288}, "config.json"),
        (
            TIMM,
            256,
            {"short_side": 269, "crop": 256},
            "config.json; it was trained at 224 x 224",
        ),
        (of_timm(crop_mode="squash", crop_pct=1.0), 224, SQUARE, "config.json"),
        (
            of_timm(crop_mode="border"),
            224,
            USUAL.resize.model_dump(),
            "is border with 0.95: resize",
        ),
    ],
)
def test_timms_configuration_says_how_pictures_become_the_input(tmp_path, given, side, resize, why):
    own = {"resize": {"short_side": 300, "crop": side}} if side != 224 else {}
    usual = ImageInput.model_validate({**USUAL.model_dump(), **own})
    found = told(tmp_path, "config.json", given, usual)
    assert found.image.resize.model_dump(exclude={"filter"}) == resize
    assert found.image.resize.filter == f"pillow-{found.filter or 'bilinear'}"
    assert (found.image.scale, found.image.mean, found.image.std) == (0.00392157, MEAN, STD)
    assert found.filter == "bicubic"
    assert why in found.why


@pytest.mark.parametrize(
    ("name", "layers", "due", "why"),
    [
        ("mobilenetv2_1.00_224", (), (2 * 0.00392157, "RGB", [1.0] * 3), "mode 'tf'"),
        ("resnet50", (), (1.0, "BGR", [103.939, 116.779, 123.68]), "mode 'caffe'"),
        ("resnet50v2", (), (2 * 0.00392157, "RGB", [1.0] * 3), "mode 'tf'"),
        ("densenet121", (), (0.00392157, "RGB", MEAN), "mode 'torch'"),
        ("mine", ("Rescaling",), (1.0, "RGB", []), "layer Rescaling takes pixels"),
    ],
)
def test_archives_of_keras_say_the_scale(tmp_path, name, layers, due, why):
    given = {"config": {"name": name, "layers": [{"class_name": each} for each in layers]}}
    with zipfile.ZipFile(tmp_path / "model.keras", "w") as archive:
        archive.writestr("config.json", json.dumps(given))
    found = read_checkpoint(tmp_path / "model.onnx", USUAL)
    assert (found.image.scale, found.image.order, found.image.mean) == due
    assert found.image.resize == USUAL.resize
    assert why in found.why


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("preprocessor_config.json", "{", "preprocessor_config.json was not taken: "),
        ("preprocessor_config.json", "[1]", "it holds no JSON object"),
        ("preprocessor_config.json", changed(VIT, image_std=[0, 1, 1]), "'std' holds a 0"),
        ("preprocessor_config.json", changed(VIT, image_mean=["a"]), "could not convert"),
        ("config.json", of_timm(crop_pct=2), "crop 224 is larger"),
        ("model.keras", "no archive", "File is not a zip file"),
    ],
)
def test_files_that_are_broken_are_named_and_left_out(tmp_path, name, given, said):
    found = told(tmp_path, name, given)
    assert found.image is None
    (text,) = found.refused
    assert said in text


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("preprocessor_config.json", {"feature_extractor_type": "Wav2Vec2FeatureExtractor"}),
        ("config.json", {"model_type": "vit", "hidden_size": 768}),
    ],
)
def test_files_that_say_nothing_about_pictures_change_nothing(tmp_path, name, given):
    found = told(tmp_path, name, given)
    assert (found.image, found.refused) == (None, ())


def test_gray_inputs_take_the_first_mean_and_std(tmp_path):
    usual = USUAL.model_copy(update={"order": "GRAY"})
    found = told(tmp_path, "preprocessor_config.json", VIT, usual)
    assert (found.image.order, found.image.mean, found.image.std) == ("GRAY", [0.5], [0.5])


def scores_net(path, classes):
    path.parent.mkdir(parents=True, exist_ok=True)
    nodes = [
        helper.make_node("ReduceMean", ["image"], ["m"], axes=[2, 3], keepdims=0),
        helper.make_node("Slice", ["m", "zero", "end", "axis"], ["scores"]),
    ]
    constants = [("zero", [0]), ("end", [classes]), ("axis", [1])]
    return tiny_models.save(
        path,
        nodes,
        [("image", TensorProto.FLOAT, [1, 3, 224, 224])],
        [("scores", TensorProto.FLOAT, [1, classes])],
        [(name, np.array(value, np.int64)) for name, value in constants],
    )


@pytest.mark.parametrize("photos", [False, True])
def test_init_writes_what_files_in_the_folder_above_say(tmp_path, photos):
    model = scores_net(tmp_path / "onnx/model.onnx", 3)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(CLIP))
    labels = {"id2label": {"0": "cat", "1": "dog, hound", "2": "cow"}}
    (tmp_path / "config.json").write_text(json.dumps(labels))
    folder = None
    if photos:
        folder = tmp_path / "photos"
        folder.mkdir()
        for n in range(3):
            Image.new("RGB", (300, 300), (n * 50, 9, 99)).save(folder / f"{n}.png")
    text = init(model, images=folder).read_text()
    assert "# preprocessor_config.json" in text
    assert "resize: {short_side: 224, crop: 224, filter: pillow-bicubic}" in text
    assert (tmp_path / "onnx/names.txt").read_text() == "cat\ndog, hound\ncow\n"
    project = read_project(tmp_path / "onnx/edgepack.yaml").project
    assert project.outputs["scores"].kind == "classification"
    if photos:
        assert project.inputs["image"].image.mean == MEAN


def test_init_when_names_are_not_the_models_leaves_them(tmp_path):
    model = scores_net(tmp_path / "model.onnx", 2)
    (tmp_path / "config.json").write_text(json.dumps({"id2label": {"0": "a", "1": "b", "2": "c"}}))
    text = init(model).read_text()
    assert not (tmp_path / "names.txt").exists()
    assert "labels: names.txt" not in text


def test_init_when_nobody_named_the_classes_writes_no_names(tmp_path):
    model = scores_net(tmp_path / "model.onnx", 2)
    given = {"id2label": {"0": "LABEL_0", "1": "LABEL_1"}}
    (tmp_path / "config.json").write_text(json.dumps(given))
    init(model)
    assert not (tmp_path / "names.txt").exists()


def test_init_says_which_file_it_did_not_take(tmp_path):
    model = scores_net(tmp_path / "model.onnx", 3)
    (tmp_path / "preprocessor_config.json").write_text("{")
    assert "# preprocessor_config.json was not taken: " in init(model).read_text()

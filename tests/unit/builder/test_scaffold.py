from __future__ import annotations

import shlex

import numpy as np
import onnx
import pytest
from edgepack.builder.scaffold import init
from edgepack.cli.main import run
from edgepack.errors import SamplesError, ToolError, UsageError
from edgepack.project.loading import read_project
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from tests.support.nets import brightness_nets, tiny_models
from tests.support.nets.branch_nets import rated
from tests.support.nets.stream_nets import gru

FLOAT, HALF, IDS = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT64
NO_IMAGE = {
    "ids": [("ids", IDS, [1, 16])],
    "several": [("a", FLOAT, [1, 3, 8, 8]), ("b", FLOAT, [1, 3, 8, 8])],
    "half": [("a", HALF, [1, 3, 8, 8])],
    "unknown size": [("a", FLOAT, [1, 3, None, None])],
    "batch of two": [("a", FLOAT, [2, 3, 8, 8])],
}


def photos(folder, count):
    folder.mkdir()
    for n in range(count):
        Image.new("RGB", (8, 8), (n, n, n)).save(folder / f"{n}.png")
    return folder


def copies(path, inputs):
    nodes = [helper.make_node("Identity", [name], [f"{name}_out"]) for name, _, _ in inputs]
    outputs = [(f"{name}_out", kind, shape) for name, kind, shape in inputs]
    return tiny_models.save(path, nodes, inputs, outputs)


@pytest.mark.parametrize("inputs", NO_IMAGE.values(), ids=NO_IMAGE)
def test_init_when_images_do_not_fit_the_model_says_why_and_writes_nothing(tmp_path, inputs):
    model = copies(tmp_path / "m.onnx", inputs)
    name = inputs[0][0]
    with pytest.raises(UsageError, match=f"but {len(inputs)} input.*{name}: ") as caught:
        init(model, images=photos(tmp_path / "photos", 3))
    assert caught.value.where == "--images"
    assert not (tmp_path / "edgepack.yaml").exists()


@pytest.mark.parametrize(("count", "error"), [(0, SamplesError), (1, UsageError)])
def test_init_when_images_are_too_few_to_split_writes_nothing(tmp_path, count, error):
    model = tiny_models.conv_net(tmp_path / "m.onnx")
    with pytest.raises(error):
        init(model, images=photos(tmp_path / "photos", count))
    assert not (tmp_path / "edgepack.yaml").exists()


def test_init_when_two_images_are_given_splits_their_folder(tmp_path):
    model = tiny_models.conv_net(tmp_path / "m.onnx")
    project = read_project(init(model, images=photos(tmp_path / "photos", 2))).project
    assert project.samples.calibration.images == project.samples.evaluation.images == "photos"
    assert project.dims == {"batch": 1}


def test_init_when_the_disk_is_full_leaves_nothing_and_says_so(tmp_path, monkeypatch):
    def full(handle):
        raise OSError(28, "No space left on device")

    model = tiny_models.conv_net(tmp_path / "m.onnx")
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(ToolError, match="No space left on device") as caught:
        init(model)
    assert "free some space" in caught.value.hint
    assert list(tmp_path.iterdir()) == [model]


def test_init_command_when_the_path_has_a_space_prints_a_command_that_can_be_pasted(
    tmp_path, capsys
):
    model = tiny_models.conv_net(tmp_path / "my models" / "m.onnx")
    assert run(["init", str(model)]) == 0
    command = shlex.split(capsys.readouterr().out.partition("then run: ")[2])
    assert command[:4] == ["edgepack", "build", "--project", str(model.with_name("edgepack.yaml"))]


NAMES = "{0: 'person', 1: 'traffic\\nlight'}"


def with_metadata(path, output, **metadata):
    """A model of one image whose metadata says what ultralytics' exporter does."""
    nodes = [helper.make_node("Identity", ["scores"], ["out"])]
    inputs = [("images", FLOAT, [1, 3, 32, 32]), ("scores", FLOAT, output)]
    tiny_models.save(path, nodes, inputs, [("out", FLOAT, output)])
    model = onnx.load(path)
    del model.graph.input[1]
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(output, np.float32), "scores"))
    helper.set_model_props(model, metadata)
    onnx.save(model, path)
    return path


@pytest.mark.parametrize(("shape", "layout"), [([1, 6, 21], "yolo"), ([1, 21, 6], "end2end")])
def test_init_when_metadata_tells_of_a_detection_describes_its_answers(tmp_path, shape, layout):
    model = with_metadata(tmp_path / "m.onnx", shape, task="detect", names=NAMES)
    project = read_project(init(model, images=photos(tmp_path / "photos", 2))).project
    assert project.files == ["names.txt"]
    assert (tmp_path / "names.txt").read_text() == "person\ntraffic light\n"
    described = project.outputs["out"]
    assert (described.kind, described.layout, described.labels) == (
        "detection",
        layout,
        "names.txt",
    )


@pytest.mark.parametrize(
    ("names", "written"), [("{1: 'b', 0: 'a'}", "a\nb\n"), ("{1: 'a', 2: 'b'}", None)]
)
def test_init_when_classes_are_numbered_in_another_order_writes_them_by_index(
    tmp_path, names, written
):
    init(with_metadata(tmp_path / "m.onnx", [1, 2], task="classify", names=names))
    file = tmp_path / "names.txt"
    assert (file.read_text() if file.exists() else None) == written


def test_init_when_a_detection_has_no_images_yet_leaves_its_answers_to_be_uncommented(tmp_path):
    model = with_metadata(tmp_path / "m.onnx", [1, 6, 21], task="detect", names=NAMES)
    path = init(model)
    assert read_project(path).project.outputs == {}
    assert "# outputs: {out: {kind: detection" in path.read_text()


def test_init_when_metadata_tells_of_a_classification_describes_its_answers(tmp_path):
    model = with_metadata(tmp_path / "m.onnx", [1, 2], task="classify", names=NAMES)
    (tmp_path / "names.txt").write_text("my own\n")
    described = read_project(init(model)).project.outputs["out"]
    assert (described.kind, described.labels) == ("classification", "names.txt")
    assert (tmp_path / "names.txt").read_text() == "my own\n"


@pytest.mark.parametrize(
    ("output", "task"), [([1, 300, 7], "detect"), ([1, 5, 21], "detect"), ([1, 6, 21], "segment")]
)
def test_init_when_an_output_is_not_what_the_metadata_would_make_describes_nothing(
    tmp_path, output, task
):
    model = with_metadata(tmp_path / "m.onnx", output, task=task, names=NAMES)
    assert "outputs:" not in init(model).read_text()
    assert not (tmp_path / "names.txt").exists()


def test_init_when_a_model_of_images_has_a_row_of_scores_proposes_to_describe_it(tmp_path):
    path = init(with_metadata(tmp_path / "m.onnx", [1, 10]))
    text = path.read_text()
    assert not read_project(path).project.outputs
    path.write_text(text.replace("# outputs:", "outputs:"))
    [meaning] = read_project(path).project.outputs.values()
    assert meaning.kind == "classification"


def test_init_when_a_tokenizer_lies_there_says_whether_devices_run_it(tmp_path):
    model = copies(tmp_path / "m.onnx", [("input_ids", IDS, [1, 16])])
    (tmp_path / "tokenizer.json").write_text('{"normalizer": {"type": "NFC"}}')
    path = init(model)
    assert "tokenizer.json does not run on devices: its normalizer is NFC" in path.read_text()


MARK = "   # guessed, check"


def written(path):
    """The lines of a project file, without indentation."""
    return [line.strip() for line in path.read_text().splitlines()]


def shades(folder, count=40, *, by_class=False):
    """Photos that brightness_nets tells apart, in one folder or in one for each class."""
    found, classes = brightness_nets.pictures(count)
    rows = []
    for number, (picture, label) in enumerate(zip(found, classes, strict=True)):
        name = f"class{label}/{number}.png" if by_class else f"{number}.png"
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(folder / name)
        rows.append(f"{number}.png,{label}\n")
    return rows


def test_init_when_an_input_is_a_single_number_proposes_to_make_it_constant(tmp_path):
    path = init(rated(tmp_path / "net.onnx"))
    [line] = [line for line in path.read_text().splitlines() if "constants:" in line]
    assert line == "# constants: {rate: 0}"
    path.write_text(path.read_text().replace(line, line.removeprefix("# ")))
    assert read_project(path).project.constants == {"rate": 0}
    assert (
        "constants:" not in init(tiny_models.conv_net(tmp_path / "other" / "conv.onnx")).read_text()
    )


def test_init_when_outputs_may_feed_inputs_proposes_the_state(tmp_path):
    path = init(gru(tmp_path / "net.onnx"))
    [line] = [line for line in path.read_text().splitlines() if "state:" in line]
    assert line == "# state: {h_out: h}   # guessed, check"
    path.write_text(path.read_text().replace(line, line.removeprefix("# ")))
    assert read_project(path).project.state == {"h_out": "h"}
    assert "state:" not in init(tiny_models.conv_net(tmp_path / "other" / "c.onnx")).read_text()


def test_init_when_it_guesses_marks_each_guess(tmp_path):
    model = tiny_models.conv_net(tmp_path / "m.onnx")
    lines = written(init(model, images=photos(tmp_path / "photos", 2)))
    marked = [line.partition(":")[0] for line in lines if line.endswith(MARK)]
    assert marked == ["dims", "resize", "order", "scale", "# outputs"]
    assert "layout: NCHW" in lines


@pytest.mark.parametrize("labelled", [True, False])
def test_init_when_photos_favour_one_way_guesses_it_and_says_what_was_measured(tmp_path, labelled):
    model = brightness_nets.save(tmp_path / "m.onnx")
    rows = shades(tmp_path / "photos")
    if labelled:
        (tmp_path / "labels.csv").write_text("".join(rows))
    path = init(model, images=tmp_path / "photos")
    image = read_project(path).project.inputs["image"].image
    assert (image.order, image.scale * 255 - sum(image.mean[:1])) == ("RGB", pytest.approx(1, 1e-4))
    measured = "right for 32 of 32" if labelled else "bits of the sample"
    [comment] = [line for line in written(path) if "ways tried on 32 photos" in line]
    assert measured in comment


def test_init_when_the_model_does_not_run_says_that_nothing_was_tried(tmp_path):
    model = copies(tmp_path / "m.onnx", [("a", FLOAT, [1, 3, 8, 8])])
    loaded = onnx.load(model)
    loaded.graph.node[0].op_type = "Unheard"
    del loaded.graph.output[0].type.tensor_type.shape.dim[2:]
    onnx.save(loaded, model)
    path = init(model, images=photos(tmp_path / "photos", 2))
    [reason] = [line for line in written(path) if line.startswith("# not tried: ")]
    assert "Unheard" in reason


@pytest.mark.parametrize("place", ["photos/labels.csv", "labels.csv"])
def test_init_when_a_csv_of_labels_lies_there_takes_it(tmp_path, place):
    rows = shades(tmp_path / "photos")
    (tmp_path / place).write_text("".join(rows))
    model = brightness_nets.save(tmp_path / "m.onnx")
    evaluation = read_project(init(model, images=tmp_path / "photos")).project.samples.evaluation
    assert (evaluation.labels, evaluation.metric) == (place, "top1")


def test_init_when_each_class_has_a_folder_takes_them_as_labels(tmp_path):
    shades(tmp_path / "photos", by_class=True)
    model = brightness_nets.save(tmp_path / "m.onnx")
    evaluation = read_project(init(model, images=tmp_path / "photos")).project.samples.evaluation
    assert (evaluation.labels, evaluation.metric) == ("folders", "top1")


def test_init_when_folders_are_not_the_classes_says_so(tmp_path):
    shades(tmp_path / "photos", by_class=True)
    path = init(brightness_nets.save(tmp_path / "m.onnx", classes=6), images=tmp_path / "photos")
    assert read_project(path).project.samples.evaluation.labels is None
    assert "4 folders are not the model's 6 classes" in path.read_text()


@pytest.mark.parametrize(
    ("rows", "reason"),
    [("0.png,1\n", "has no label for"), (None, "label 4, and classes are")],
)
def test_init_when_a_csv_of_labels_does_not_fit_says_why(tmp_path, rows, reason):
    own = shades(tmp_path / "photos", 4)
    text = rows or "".join(own).replace(",3", ",4")
    (tmp_path / "photos" / "labels.csv").write_text(text)
    path = init(brightness_nets.save(tmp_path / "m.onnx"), images=tmp_path / "photos")
    assert read_project(path).project.samples.evaluation.labels is None
    assert "photos/labels.csv was not taken: " in path.read_text()
    assert reason in path.read_text()


def test_init_when_the_model_scales_itself_gives_it_pixels(tmp_path):
    model = brightness_nets.save(tmp_path / "m.onnx", head=True)
    shades(tmp_path / "photos")
    path = init(model, images=tmp_path / "photos")
    image = read_project(path).project.inputs["image"].image
    assert (image.scale, image.mean) == (1.0, [])
    assert "the model begins with 'scaling' and 'centring', which take 0 to 255" in path.read_text()


@pytest.mark.parametrize(
    ("mean", "deviation", "scale", "means"),
    [
        (120.0, 60.0, 1.0, []),
        (0.45, 0.25, 0.00392157, []),
        (0.0, 1.0, 0.00392157, [0.485, 0.456, 0.406]),
        (-0.1, 0.5, 0.00784314, [1.0, 1.0, 1.0]),
    ],
)
def test_init_when_a_batch_normalization_begins_takes_what_it_saw(
    tmp_path, mean, deviation, scale, means
):
    values = [np.ones(3), np.zeros(3), np.full(3, mean), np.full(3, deviation**2)]
    names = ["g", "b", "m", "v"]
    node = helper.make_node("BatchNormalization", ["x", *names], ["y"], "bn")
    value = (FLOAT, [1, 3, 8, 8])
    weights = [(n, v.astype(np.float32)) for n, v in zip(names, values, strict=True)]
    model = tiny_models.save(tmp_path / "m.onnx", [node], [("x", *value)], [("y", *value)], weights)
    path = init(model)
    text = path.read_text()
    assert f"the BatchNormalization 'bn' saw {mean:.3g}, give or take {deviation:.3g}" in text
    assert f"scale: {scale:g} " in text
    assert ("mean: [" in text) == bool(means)
    assert all(f"{value:g}" in text for value in means)


@pytest.mark.parametrize(("shape", "resize"), [([1, 4], "short_side"), ([1, 1, 8, 8], "letterbox")])
def test_init_when_the_output_is_no_row_of_scores_shows_the_whole_picture(tmp_path, shape, resize):
    model = with_metadata(tmp_path / "m.onnx", shape)
    [line] = [line for line in written(init(model)) if "resize: " in line]
    assert line.startswith(f"#       resize: {{{resize}: ")


@pytest.mark.parametrize(
    ("shape", "filtered"), [([1, 4], False), ([1, 1, 8, 8], True), ([1, 8, 3], True)]
)
def test_init_when_ultralytics_exported_it_letterboxes_as_its_training_does(
    tmp_path, shape, filtered
):
    model = with_metadata(tmp_path / "m.onnx", shape, names="{0: 'cat'}", stride="32")
    [line] = [line for line in written(init(model)) if "resize: " in line]
    assert ("filter: cv2-linear}" in line) == filtered


def test_init_when_height_and_width_are_free_gives_them_a_size(tmp_path):
    model = copies(tmp_path / "m.onnx", [("a", FLOAT, ["n", 3, "height", "width"])])
    project = read_project(init(model, images=photos(tmp_path / "photos", 2))).project
    assert project.dims == {"n": 1, "height": 640, "width": 640}
    assert project.inputs["a"].image.resize.letterbox == 640
    (tmp_path / "edgepack.yaml").unlink()
    assert "# Images need a size: dims: {n: 1, height: 640, width: 640}" in written(init(model))


@pytest.mark.parametrize(("size", "crop"), [(8, None), (16, 8)])
def test_init_when_photos_have_the_size_of_the_input_cuts_nothing(tmp_path, size, crop):
    (tmp_path / "photos").mkdir()
    for shade in (0, 255):
        picture = Image.new("RGB", (size, size), (shade, 0, 0))
        picture.save(tmp_path / "photos" / f"{shade}.png")
    path = init(tiny_models.conv_net(tmp_path / "m.onnx"), images=tmp_path / "photos")
    resize = read_project(path).project.inputs["image"].image.resize
    assert getattr(resize, "crop", None) == crop


def test_init_when_photos_lie_elsewhere_names_them_in_full(tmp_path):
    near, far = tmp_path / "a" / "photos", tmp_path / "photos"
    tmp_path.joinpath("a").mkdir()
    for folder, expected in ((near, "../photos"), (far, str(far))):
        model = tiny_models.conv_net(tmp_path / "a" / "b" / "m.onnx")
        path = init(model, images=photos(folder, 2))
        assert read_project(path).project.samples.calibration.images == expected
        path.unlink()


def test_init_when_a_photo_is_broken_tries_the_others_and_names_it(tmp_path, capsys):
    model = tiny_models.conv_net(tmp_path / "m.onnx")
    folder = photos(tmp_path / "photos", 4)
    (folder / "torn.png").write_bytes((folder / "0.png").read_bytes()[:40])
    assert run(["init", str(model), "--images", str(folder)]) == 0
    said = capsys.readouterr().err
    assert "warning: a build will stop at a photo: cannot read" in said
    assert "torn.png" in said
    resize = read_project(tmp_path / "edgepack.yaml").project.inputs["image"].image.resize
    assert (resize.width, resize.height) == (8, 8)


def test_init_when_a_build_refuses_the_model_says_so_and_writes_what_the_model_tells(
    tmp_path, capsys
):
    nodes = [helper.make_node("Blur", ["x"], ["y"], domain="my.company")]
    model = tiny_models.save(
        tmp_path / "m.onnx", nodes, [("x", FLOAT, [1, 3, 8, 8])], [("y", FLOAT, [1, 3, 8, 8])]
    )
    assert run(["init", str(model)]) == 0
    said = capsys.readouterr().err
    assert "warning: a build refuses this model: custom operators, of 'my.company'" in said
    assert (
        "The model does not say what its output means" in (tmp_path / "edgepack.yaml").read_text()
    )

from __future__ import annotations

import shlex

import numpy as np
import onnx
import pytest
import tiny_models
from edgepack.cli.main import run
from edgepack.errors import SamplesError, ToolError, UsageError
from edgepack.project import read_project
from edgepack.scaffold import init
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

FLOAT, HALF, IDS = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT64
NO_IMAGE = {
    "ids": [("ids", IDS, [1, 16])],
    "several": [("a", FLOAT, [1, 3, 8, 8]), ("b", FLOAT, [1, 3, 8, 8])],
    "half": [("a", HALF, [1, 3, 8, 8])],
    "unknown size": [("a", FLOAT, [1, 3, "height", "width"])],
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
    command = shlex.split(capsys.readouterr().out.partition("then: ")[2])
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


def test_init_when_metadata_tells_of_a_detection_describes_its_answers(tmp_path):
    model = with_metadata(tmp_path / "m.onnx", [1, 6, 21], task="detect", names=NAMES)
    project = read_project(init(model, images=photos(tmp_path / "photos", 2))).project
    assert project.files == ["names.txt"]
    assert (tmp_path / "names.txt").read_text() == "person\ntraffic light\n"
    described = project.outputs["out"]
    assert (described.kind, described.layout, described.labels) == (
        "detection",
        "yolo",
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
    ("output", "task"), [([1, 300, 6], "detect"), ([1, 5, 21], "detect"), ([1, 6, 21], "segment")]
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

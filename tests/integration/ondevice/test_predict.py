"""From pictures and texts to answers: a bundle as built, loaded as its user does."""

from __future__ import annotations

import json
import subprocess
import sys
from types import ModuleType

import numpy as np
import pytest
from edgepack.builder.build import build
from edgepack.errors import ProfileError
from onnx import TensorProto, helper
from PIL import Image

from tests.support.nets.text_nets import WORDS, text_net, word_pieces
from tests.support.nets.tiny_models import save
from tests.support.reports.tiny_bundle import import_loader

SIDE, WIDTH = 32, 4
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "fox", "##es"]
TABLE = np.random.default_rng(1).standard_normal((len(VOCAB), WIDTH)).astype(np.float32)
# Centre, size, a score for each of two classes; the second is suppressed by the first.
BOXES = np.array(
    [[16, 16, 8, 4, 0.9, 0.1], [17, 16, 8, 4, 0.8, 0.1], [4, 14, 20, 4, 0.2, 0.7]], np.float32
)
FILES = "files: [labels.txt, colours.txt, tokenizer.json]"
INPUTS = """inputs:
  picture: {image: {resize: {letterbox: 32, pad: 0}, scale: 0.5}}
  input_ids: {tokens: {file: tokenizer.json, length: 6}}"""
OUTPUTS = """outputs:
  boxes: {kind: detection, layout: yolo, labels: labels.txt}
  colours: {kind: classification, labels: colours.txt, top: 2}
  hidden: {kind: embedding, pooling: mean, mask: attention_mask}"""


def tokenizer():
    around = [{"SpecialToken": {"id": word, "type_id": 0}} for word in ("[CLS]", "[SEP]")]
    tokens = {w: {"id": w, "ids": [VOCAB.index(w)], "tokens": [w]} for w in ("[CLS]", "[SEP]")}
    template = {
        "type": "TemplateProcessing",
        "single": [around[0], {"Sequence": {"id": "A", "type_id": 0}}, around[1]],
        "special_tokens": tokens,
    }
    return word_pieces(VOCAB, post_processor=template)


def net(path):
    """A picture and ids to boxes, mean colours and one vector per token."""
    node = helper.make_node
    nodes = [
        node("ReduceMean", ["picture"], ["mean"], "mean", axes=[1, 2, 3], keepdims=1),
        node("Squeeze", ["mean", "axis3"], ["mean3"], "squeeze"),
        node("Mul", ["mean3", "tiny"], ["nothing"], "nothing"),
        node("Add", ["rows", "nothing"], ["boxes"], "boxes"),
        node("GlobalAveragePool", ["picture"], ["pooled"], "pool"),
        node("Flatten", ["pooled"], ["colours"], "flatten"),
        node("Gather", ["table", "input_ids"], ["embedded"], "gather"),
        node("Cast", ["attention_mask"], ["shown"], "cast", to=FLOAT),
        node("Unsqueeze", ["shown", "axis2"], ["shown3"], "unsqueeze"),
        node("Mul", ["embedded", "shown3"], ["hidden"], "hidden"),
    ]
    constants = [
        ("axis2", np.array([2], np.int64)),
        ("axis3", np.array([3], np.int64)),
        ("tiny", np.float32(1e-30)),
        ("rows", BOXES.T[None].copy()),
        ("table", TABLE),
    ]
    places = ["batch", "sequence"]
    return save(
        path,
        nodes,
        [
            ("picture", FLOAT, ["batch", 3, SIDE, SIDE]),
            ("input_ids", INT64, places),
            ("attention_mask", INT64, places),
        ],
        [
            ("boxes", FLOAT, ["batch", 6, 3]),
            ("colours", FLOAT, ["batch", 3]),
            ("hidden", FLOAT, [*places, WIDTH]),
        ],
        constants,
    )


def write_project(folder, *lines):
    net(folder / "net.onnx")
    (folder / "labels.txt").write_text("cat\ndog\n")
    (folder / "colours.txt").write_text("red\ngreen\nblue\n")
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer()))
    rng = np.random.default_rng(2)
    np.savez(
        folder / "samples.npz",
        picture=rng.uniform(0, 1, (4, 3, SIDE, SIDE)).astype(np.float32),
        input_ids=rng.integers(0, len(VOCAB), (4, 5)),
        attention_mask=np.ones((4, 5), np.int64),
    )
    project = folder / "edgepack.yaml"
    head = ["schema_version: 1", "name: net", "model: net.onnx", "dims: {batch: 1}"]
    head.append("samples: {calibration: {path: samples.npz}}")
    head.append("targets: [{id: host, variants: [{backend: cpu, recipe: fp32}]}]")
    project.write_text("\n".join([*head, *lines]) + "\n")
    return project


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    folder = tmp_path_factory.mktemp("predict")
    project = write_project(folder, FILES, INPUTS, OUTPUTS)
    return build(project=project, out=folder / "dist").bundles[0].bundle.path


@pytest.fixture(scope="module")
def loader() -> ModuleType:
    return import_loader()


def picture(width=100, height=50):
    return np.random.default_rng(3).integers(0, 256, (height, width, 3), np.uint8)


def test_predict_when_all_is_described_gives_labels_boxes_and_vectors(bundle, loader):
    pixels = picture()
    found = loader.load(bundle).predict({"picture": pixels, "input_ids": "The foxes"})
    # 100 by 50 in 32 by 32: 16 rows from row 8 on, 3.125 pixels for one.
    best, other = found["boxes"]
    assert (best.label, best.score) == ("cat", pytest.approx(0.9))
    assert best.box == pytest.approx((37.5, 18.75, 62.5, 31.25))
    assert (other.label, other.score) == ("dog", pytest.approx(0.7))
    assert other.box == pytest.approx((0, 12.5, 43.75, 25))
    scaled = Image.fromarray(pixels).resize((32, 16), Image.Resampling.BILINEAR)
    means = np.asarray(scaled, np.float64).mean(axis=(0, 1)) * 0.5 / 2
    ranked = np.argsort(-means)[:2]
    assert [each.label for each in found["colours"]] == [
        ("red", "green", "blue")[index] for index in ranked
    ]
    assert [each.score for each in found["colours"]] == pytest.approx(means[ranked], rel=1e-5)
    ids = [VOCAB.index(word) for word in ("[CLS]", "the", "fox", "##es", "[SEP]")]
    assert found["hidden"][0] == pytest.approx(TABLE[ids].mean(axis=0), abs=1e-6)


def test_predict_when_options_are_given_answers_with_them(bundle, loader):
    model, given = loader.load(bundle), {"picture": picture(), "input_ids": "The foxes"}
    options = loader.AnswerOptions(score=0.75, top=3)
    found = model.predict(given, options=options)
    assert [each.label for each in found["boxes"]] == ["cat"]
    assert len(found["colours"]) == 3
    listed = model.predict([given, given], options=loader.AnswerOptions(top=3))
    assert [len(answers["colours"]) for answers in listed] == [3, 3]
    with pytest.raises(ValueError, match="'horse', and the labels are 'cat', 'dog'"):
        model.predict(given, options=loader.AnswerOptions(allow=["horse"]))


def test_predict_when_a_frame_is_given_sees_it_upright(bundle, loader):
    pixels = picture()
    frame = loader.Frame("rgb", 50, 100, [loader.Plane(np.rot90(pixels).tobytes(), 150, 3)], 90)
    ids = {"input_ids": "The foxes"}
    model = loader.load(bundle)
    given = model.predict({"picture": loader.make_pixels(frame), **ids})
    assert given["boxes"] == model.predict({"picture": pixels, **ids})["boxes"]


def test_predict_when_a_picture_or_text_is_none_says_what_is_wanted(bundle, loader):
    model = loader.load(bundle)
    with pytest.raises(ValueError, match=r"expected uint8 \[height, width, 3\]"):
        model.predict({"picture": np.zeros((3, 8, 8), np.float32), "input_ids": "fox"})
    with pytest.raises(TypeError, match="'input_ids' is a text, not a list"):
        model.predict({"picture": picture(), "input_ids": ["fox"]})
    with pytest.raises(ValueError, match="pass a dict with picture, input_ids"):
        model.predict(picture())
    with pytest.raises(ValueError, match="the inputs are"):
        model.predict({"picture": picture()})


def test_predict_when_a_file_was_removed_says_that_the_bundle_is_damaged(bundle, loader, tmp_path):
    copied = tmp_path / "copied"
    subprocess.run(["cp", "-r", bundle, copied], check=True)
    (copied / "files" / "labels.txt").unlink()
    with pytest.raises(loader.LoadError, match=r"damaged: .*labels\.txt"):
        loader.load(copied).predict({"picture": picture(), "input_ids": "fox"})


def test_examples_in_the_readme_when_run_print_answers(bundle):
    blocks = (bundle / "README.md").read_text().split("```python\n")[1:]
    example = "\n".join(block.split("```")[0] for block in blocks)
    assert "'attention_mask'" not in blocks[1]
    argv = [sys.executable, "-B", "-c", example]
    done = subprocess.run(argv, cwd=bundle, capture_output=True, text=True, timeout=60, check=True)
    assert "Detection(index=0, label='cat', score=0.89" in done.stdout


WRONG = {
    "labels that are not carried": (
        "files: [colours.txt, tokenizer.json]",
        INPUTS,
        OUTPUTS,
        "'labels.txt' is none of the project's files",
    ),
    "labels for a class too few": (
        FILES,
        INPUTS,
        OUTPUTS.replace("colours.txt", "labels.txt"),
        "'labels.txt' has 2 labels, the output 3 classes",
    ),
    "another layout": (
        FILES,
        INPUTS,
        OUTPUTS.replace("yolo", "yolov5"),
        r"the layout 'yolov5' with 2 labels is \[1, boxes, 7\]",
    ),
    "labels for a detection too many": (
        FILES,
        INPUTS,
        OUTPUTS.replace("labels.txt}", "colours.txt}"),
        r"the layout 'yolo' with 3 labels is \[1, boxes, 7\] or \[1, 7, boxes\]",
    ),
    "a detection without a picture": (
        FILES,
        INPUTS.replace("image: {resize: {letterbox: 32, pad: 0}, scale: 0.5}", "pad: 0"),
        OUTPUTS,
        "0 inputs are described as images",
    ),
    "a detection in a file": (
        FILES,
        INPUTS,
        f"{OUTPUTS}\npreprocess: {{in_graph: true, extensions: [decode_image]}}",
        "the size of one that the model decodes is not known",
    ),
    "another size of picture": (
        FILES,
        INPUTS.replace("letterbox: 32", "letterbox: 64"),
        OUTPUTS,
        r"an image would become float32\[1, 3, 64, 64\]",
    ),
    "a picture for ids": (
        FILES,
        INPUTS.replace(
            "tokens: {file: tokenizer.json, length: 6}", "image: {resize: {letterbox: 8}}"
        ),
        "",
        r"the input is input_ids: int64\[1, sequence\], and an image",
    ),
    "a mask that is no input": (
        FILES,
        INPUTS,
        OUTPUTS.replace("mask: attention_mask", "mask: attention"),
        "no input 'attention'",
    ),
    "pooling without positions": (
        FILES,
        INPUTS,
        "outputs: {colours: {kind: embedding, pooling: max}}",
        r"pooling takes \[batch, positions, values\]",
    ),
    "scores in two axes": (
        FILES,
        INPUTS,
        "outputs: {boxes: {kind: classification}}",
        "a classification is one row of scores",
    ),
    "tokens for a picture": (
        FILES,
        "inputs: {picture: {tokens: {file: tokenizer.json, length: 6}}}",
        "",
        r"not ids \[1, tokens\]",
    ),
    "labels of an output that stays raw": (
        FILES,
        INPUTS,
        "outputs: {hidden: {kind: raw, labels: classes.txt}}",
        "'classes.txt' is none of the project's files",
    ),
    "a mask of tokens that is no input": (
        FILES,
        INPUTS.replace("length: 6", "length: 6, attention_mask: input_mask"),
        "",
        "the model has no input 'input_mask'",
    ),
    "a mask of tokens that is no row of them": (
        FILES,
        INPUTS.replace("length: 6", "length: 6, attention_mask: picture"),
        "",
        r"float32\[1, 3, 32, 32\], not int32 or int64 \[1, sequence\]",
    ),
    "two texts for one mask": (
        FILES,
        f"{INPUTS}\n  attention_mask: {{tokens: {{file: tokenizer.json, length: 6}}}}",
        "",
        "'attention_mask' would be filled twice",
    ),
    "no room for tokens": (
        FILES,
        INPUTS.replace("length: 6", "length: 2"),
        OUTPUTS,
        "2 tokens hold nothing beside the 2 special ones",
    ),
    "another filling": (
        FILES,
        INPUTS.replace("length: 6}", "length: 6}, pad: 1"),
        OUTPUTS,
        "pads with 0, the loader with 1",
    ),
    "a file that is no tokenizer": (
        FILES,
        INPUTS.replace("tokenizer.json", "labels.txt"),
        OUTPUTS,
        "'labels.txt' is not a tokenizer that runs on devices: it is no JSON",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_build_when_a_description_cannot_be_so_says_why_and_where(tmp_path, case):
    *lines, message = WRONG[case]
    project = write_project(tmp_path, *lines)
    with pytest.raises(ProfileError, match=message) as caught:
        build(project=project, out=tmp_path / "dist")
    assert caught.value.where.startswith(f"{project}:")


def test_build_when_the_tokenizer_is_another_kind_names_its_part(tmp_path):
    project = write_project(tmp_path, FILES, INPUTS, OUTPUTS)
    other = {**tokenizer(), "model": {"type": "BPE"}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(other))
    with pytest.raises(ProfileError, match="its model is BPE, not WordPiece") as caught:
        build(project=project, out=tmp_path / "dist")
    assert "docs/answers.md" in caught.value.hint


def test_build_when_the_tokenizer_has_more_words_than_the_model_rows_says_so(tmp_path):
    text_net(tmp_path / "model.onnx")
    words = [*WORDS, *(f"word{n}" for n in range(301 - len(WORDS)))]
    (tmp_path / "tokenizer.json").write_text(json.dumps(word_pieces(words)))
    project = tmp_path / "edgepack.yaml"
    project.write_text(
        "schema_version: 1\nname: text\nmodel: model.onnx\ntargets: [linux-x86-64]\n"
        "files: [tokenizer.json]\n"
        "inputs: {input_ids: {tokens: {file: tokenizer.json, length: 6}}}\n"
    )
    with pytest.raises(
        ProfileError, match=r"ids up to 300, for 'word288', .* of 300 rows"
    ) as caught:
        build(project=project, out=tmp_path / "dist")
    assert "the model was trained with" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "'colours.txt' is empty"), ("red\rgreen\rblue\r", "has 1 labels, the output 3 classes")],
)
def test_build_when_labels_are_no_lines_says_so(tmp_path, text, message):
    project = write_project(tmp_path, FILES, INPUTS, OUTPUTS)
    (tmp_path / "colours.txt").write_bytes(text.encode())
    with pytest.raises(ProfileError, match=message):
        build(project=project, out=tmp_path / "dist")


def test_labels_when_a_line_holds_a_carriage_return_are_those_of_other_platforms(
    bundle, loader, tmp_path
):
    copied = tmp_path / "copied"
    subprocess.run(["cp", "-r", bundle, copied], check=True)
    (copied / "files" / "labels.txt").write_bytes(b"c\rat\r\ndog\r\n")
    found = loader.load(copied).predict({"picture": picture(), "input_ids": "fox"})
    assert [each.label for each in found["boxes"]] == ["cat", "dog"]


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        ("{batch: 1, sequence: 5}", "with 5 tokens"),
        ("{batch: 1, sequence: [4, 5]}", "more than the largest size of 'sequence', 5"),
        ("{batch: 1, sequence: {min: 1, opt: 4, max: 5}}", "the largest size of 'sequence', 5"),
    ],
)
def test_build_when_sizes_do_not_hold_the_tokens_says_which_length_does(tmp_path, dims, message):
    project = write_project(tmp_path, FILES, INPUTS, OUTPUTS)
    project.write_text(project.read_text().replace("dims: {batch: 1}", f"dims: {dims}"))
    with pytest.raises(ProfileError, match=message) as caught:
        build(project=project, out=tmp_path / "dist")
    assert caught.value.hint == "give length: 5"

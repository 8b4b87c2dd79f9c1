"""Operators of onnxruntime-extensions: decoding images and making token ids in the model."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from edgepack.builder.build import build, dry_run
from edgepack.errors import ModelError, ProfileError, StepError
from edgepack.model.running import make_session
from edgepack.project.inputs import ImageInput
from edgepack.project.loading import read_project
from edgepack.samples.images import read_image_pixels
from edgepack.samples.tokenizers import parse_tokenizer
from edgepack.steps.in_graph.in_graph import open_picture_session, require_equal
from edgepack.steps.in_graph.pictures import make_pictures
from onnx import TensorProto, helper
from PIL import Image

from tests.support.nets import text_nets
from tests.support.nets.tiny_models import conv_net, save
from tests.support.reports.tiny_bundle import change_manifest, import_loader, write_tiny_bundle

if importlib.util.find_spec("onnxruntime_extensions") is None and not os.environ.get("CI"):
    pytest.skip("onnxruntime-extensions has no wheel here", allow_module_level=True)
ORIENTATION = 0x112
"""The EXIF tag."""
DECODING = "preprocess: {in_graph: true, extensions: [decode_image]}"


def write(folder: Path, *lines: str) -> Path:
    conv_net(folder / "net.onnx")
    (folder / "photos").mkdir()
    for number, pixels in enumerate(make_pictures(["h", "w", 3], [(30, 50), (64, 33), (9, 8)])):
        Image.fromarray(pixels).save(folder / "photos" / f"{number}.png")
    path = folder / "edgepack.yaml"
    text = [
        "schema_version: 1",
        "name: net",
        "model: net.onnx",
        "inputs: {image: {image: {resize: {letterbox: 8}, scale: 0.0039}}}",
        *lines,
    ]
    path.write_text("\n".join(text) + "\n")
    return path


def own_operator(path: Path) -> Path:
    """A model that holds an operator of onnxruntime-extensions itself."""
    node = helper.make_node("DecodeImage", ["file"], ["y"], "d", domain="com.microsoft.extensions")
    save(
        path,
        [node],
        [("file", TensorProto.UINT8, ["n"])],
        [("y", TensorProto.UINT8, ["h", "w", 3])],
    )
    model = onnx.load(str(path))
    model.opset_import.append(helper.make_opsetid("com.microsoft.extensions", 1))
    onnx.save(model, str(path))
    return path


@pytest.mark.parametrize(
    ("target", "why"), [("android", "Google Play refuses"), ("ios", "stopped at 0.13.0: let")]
)
def test_plan_when_the_target_is_a_phone_leaves_decoding_out_and_says_why(tmp_path, target, why):
    plan = dry_run(project=write(tmp_path, DECODING), targets=[target], variants=["cpu-fp32"])
    (unused,) = plan.bundles[0].unused
    assert unused.reason.startswith(
        "decode_image needs onnxruntime-extensions, whose library for phones"
    )
    assert why in unused.reason


def test_plan_when_the_model_has_such_an_operator_itself_leaves_phones_out(tmp_path):
    model = own_operator(tmp_path / "own.onnx")
    plan = dry_run(model, targets=["android"], variants=["cpu-fp32"])
    (unused,) = plan.bundles[0].unused
    assert unused.reason.startswith(
        "com.microsoft.extensions:DecodeImage needs onnxruntime-extensions"
    )


def test_plan_when_the_file_is_ort_says_that_it_takes_onnx(tmp_path):
    ort = "{backend: cpu, recipe: fp32, model_format: {ort: fixed, platform: arm}}"
    target = f"targets: [{{id: raspberry-pi, variants: [{ort}]}}]"
    plan = dry_run(project=write(tmp_path, DECODING, target))
    (unused,) = plan.bundles[0].unused
    assert "not put into .ort files" in unused.reason


def test_project_when_decoding_is_asked_for_alone_says_what_it_goes_with(tmp_path):
    path = write(tmp_path, "preprocess: {extensions: [decode_image]}")
    with pytest.raises(ProfileError, match="without 'in_graph'"):
        read_project(path)


def test_session_when_the_package_is_missing_says_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime_extensions", None)
    with pytest.raises(ModelError) as caught:
        make_session(own_operator(tmp_path / "own.onnx"))
    assert "edgepack[extensions]" in caught.value.hint


def test_session_when_the_package_is_loaded_leaves_the_environment_of_later_processes(
    tmp_path, monkeypatch
):
    for name in ("onnxruntime_extensions", "onnxruntime_extensions.cvt"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    before = dict(os.environ)
    make_session(own_operator(tmp_path / "own.onnx"))
    assert "onnxruntime_extensions.cvt" in sys.modules
    assert dict(os.environ) == before


def test_loader_when_the_package_is_missing_passes_the_variant_over(tmp_path, monkeypatch):
    loader = import_loader()
    bundle = write_tiny_bundle(tmp_path / "tiny")
    change_manifest(bundle, lambda m: m["variants"][1]["requires"].update(extensions=True))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(loader.LoadError, match="onnxruntime-extensions is not installed"):
        loader.load(bundle, variant="cpu-fp32")


@pytest.mark.slow(reason="builds for a target")
def test_model_when_given_a_file_decodes_it_and_gives_what_its_pixels_give(tmp_path):
    loader = import_loader()
    samples = "samples: {calibration: {images: photos}, evaluation: {images: photos}}"
    models = {}
    for name, line in (("files", DECODING), ("pixels", "preprocess: {in_graph: true}")):
        project = write(tmp_path / name, line, samples, "targets: [host]")
        result = build(project=project, out=tmp_path / name / "dist")
        result.require_all()
        models[name] = loader.load(result.bundles[0].bundle.path)
        manifest = result.bundles[0].bundle.manifest
        readme = (result.bundles[0].bundle.path / "README.md").read_text()
        assert ("'image': np.fromfile('picture.jpg', 'uint8')," in readme) == (name == "files")
        assert ("onnxruntime-extensions" in manifest.runtime) == (name == "files")
    assert models["files"].inputs[0].shape == ("image_bytes",)
    for path in sorted((tmp_path / "files" / "photos").glob("*.png")):
        file = np.frombuffer(path.read_bytes(), np.uint8)
        found = models["files"]({"image": file})["scores"]
        assert np.array_equal(found, models["pixels"]({"image": read_image_pixels(path)})["scores"])


def file_of(image: Image.Image, form: str, **options: object) -> np.ndarray:
    file = io.BytesIO()
    image.save(file, form, **options)
    return np.frombuffer(file.getvalue(), np.uint8)


def turned() -> Image.Exif:
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    return exif


GRADIENT = Image.fromarray(np.add.outer(np.arange(60), np.arange(90)).astype(np.uint8))


@pytest.mark.parametrize("order", ["RGB", "BGR", "GRAY"])
@pytest.mark.parametrize("form", ["png", "jpeg"])
def test_proof_when_a_file_is_gray_takes_it(tmp_path, form, order):
    image = ImageInput.model_validate({"resize": {"letterbox": 16}, "order": order})
    session = open_picture_session(image, tmp_path, as_file=True)
    require_equal("image", image, file_of(GRADIENT, form), session)


@pytest.mark.parametrize("what", ["transparent", "turned"])
def test_proof_when_a_file_is_no_upright_opaque_picture_says_what_to_do(tmp_path, what):
    image = ImageInput.model_validate({"resize": {"letterbox": 16}})
    given = (
        file_of(GRADIENT.convert("RGB"), "png", exif=turned())
        if what == "turned"
        else file_of(Image.merge("LA", (GRADIENT, GRADIENT)), "png")
    )
    session = open_picture_session(image, tmp_path, as_file=True)
    with pytest.raises(StepError, match=r"a picture of [0-9]+ bytes is") as caught:
        require_equal("image", image, given, session)
    assert "save it upright and opaque" in caught.value.hint


WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello", "world", "##s", "!"]


def with_tokenizer(path: Path) -> Path:
    """UTF-8 bytes to the ids of their tokens, all in the graph.

    Each byte becomes a text of its own, white space a space, and these are joined.
    """
    own = {"domain": "ai.onnx.contrib"}
    places = [(b" " if b in b"\t\n\r" else bytes([b])) + b"\t%d" % b for b in range(1, 256)]
    nodes = [
        helper.make_node("Cast", ["text"], ["codes"], "codes", to=TensorProto.INT64),
        helper.make_node("Unsqueeze", ["codes", "one"], ["column"], "column"),
        helper.make_node(
            "VectorToString",
            ["column"],
            ["letters"],
            "letters",
            map=b"\n".join(places),
            unk="",
            **own,
        ),
        helper.make_node("StringJoin", ["letters", "nothing", "zero"], ["whole"], "join", **own),
        helper.make_node(
            "BertTokenizer",
            ["whole"],
            ["ids", "types", "mask"],
            "tokens",
            vocab_file="\n".join(WORDS),
            do_lower_case=1,
            **own,
        ),
    ]
    constants = [
        ("one", np.array([1])),
        ("zero", np.array([0])),
        ("nothing", np.array([""], object)),
    ]
    text, ids = ("text", TensorProto.UINT8, ["n"]), ("ids", TensorProto.INT64, ["tokens"])
    model = onnx.load(str(save(path, nodes, [text], [ids], constants)))
    model.opset_import.append(helper.make_opsetid("ai.onnx.contrib", 1))
    onnx.save(model, str(path))
    return path


def test_model_when_it_holds_a_tokenizer_of_its_own_is_built_and_takes_texts(tmp_path):
    np.savez(tmp_path / "texts.npz", text=np.frombuffer(b"hello world!", np.uint8)[None])
    with_tokenizer(tmp_path / "net.onnx")
    project = tmp_path / "edgepack.yaml"
    project.write_text(
        "schema_version: 1\nname: net\nmodel: net.onnx\nsamples: {evaluation: {path: texts.npz}}\n"
    )
    out = tmp_path / "dist"
    result = build(project=project, targets=["host"], variants=["cpu-fp32"], out=out)
    result.require_all()
    bundle = result.bundles[0].bundle
    assert bundle.manifest.variants[0].requires.extensions
    text = np.frombuffer(b"Hello,\nworlds!", np.uint8)
    found = import_loader().load(bundle.path)({"text": text})["ids"]
    tokens = ["[CLS]", "hello", "[UNK]", "world", "##s", "!", "[SEP]"]
    assert found.tolist() == [WORDS.index(token) for token in tokens]


TOKENS = "inputs: {input_ids: {tokens: {file: tokenizer.json, length: 6}}}"
TOKENIZING = "preprocess: {extensions: [tokenize]}"


def write_text_project(folder: Path, described: dict, *lines: str, tokens: int | str = 6) -> Path:
    folder.mkdir(exist_ok=True)
    text_nets.text_net(folder / "net.onnx", tokens)
    (folder / "tokenizer.json").write_text(json.dumps(described))
    texts = ["hello world", "hello worlds, hello!", "Zoë 日 x"]
    np.savez(folder / "texts.npz", input_ids=np.array(texts), labels=np.arange(3))
    head = ["schema_version: 1", "name: net", "model: net.onnx", "files: [tokenizer.json]"]
    path = folder / "edgepack.yaml"
    path.write_text("\n".join([*head, *(lines or (TOKENS, TOKENIZING))]) + "\n")
    return path


@pytest.mark.slow(reason="builds a model with an int8 variant and one without for each tokenizer")
@pytest.mark.parametrize("tokens", [6, "tokens"])
@pytest.mark.parametrize("kind", ["word_pieces", "byte_pairs"])
def test_model_when_given_a_text_makes_its_tokens_and_gives_what_these_give(tmp_path, kind, tokens):
    loader, described = import_loader(), getattr(text_nets, kind)()
    samples = "samples: {calibration: {path: texts.npz}, evaluation: {path: texts.npz}}"
    given = TOKENS, TOKENIZING, samples
    project = write_text_project(tmp_path / "texts", described, *given, tokens=tokens)
    result = build(project=project, targets=["linux-x86-64"], out=tmp_path / "dist")
    result.require_all()
    bundle = result.bundles[0].bundle
    assert [variant.id for variant in bundle.manifest.variants] == ["cpu-fp32", "cpu-int8-static"]
    assert bundle.manifest.goldens_from == "samples"
    assert "np.frombuffer('some text'.encode(), 'uint8')" in (bundle.path / "README.md").read_text()
    plain = write_text_project(tmp_path / "ids", described, "version: 0.0.0", tokens=tokens)
    out, fp32 = tmp_path / "plain", "cpu-fp32"
    ids = build(project=plain, targets=["linux-x86-64"], out=out, variants=[fp32])
    ids.require_all()
    paths = [each.bundles[0].bundle.path for each in (result, ids)]
    models = [loader.load(path, variant=fp32) for path in paths]
    assert models[0].inputs[0].shape == ("input_ids_bytes",)
    tokenizer = parse_tokenizer(json.dumps(described))
    for text in ("hello worlds", "Zoë!", "", "hello hello hello hello hello"):
        encoded = tokenizer.encode(text, 6, pad=tokens == 6)
        feed = {"input_ids": encoded.input_ids, "attention_mask": encoded.attention_mask}
        expected = models[1]({name: np.array([row]) for name, row in feed.items()})
        found = models[0].predict(text)["vector"]
        assert np.allclose(found, expected["vector"], atol=1e-6)
    int8 = loader.load(bundle.path, variant="cpu-int8-static")
    close = int8.predict("hello worlds")["vector"] - models[0].predict("hello worlds")["vector"]
    assert np.abs(close).max() < 0.1


@pytest.mark.parametrize("target", ["android", "ios"])
def test_plan_when_the_target_is_a_phone_leaves_tokenizing_out_and_says_why(tmp_path, target):
    project = write_text_project(tmp_path, text_nets.byte_pairs())
    plan = dry_run(project=project, targets=[target], variants=["cpu-fp32"])
    (unused,) = plan.bundles[0].unused
    assert unused.reason.startswith(
        "tokenize needs onnxruntime-extensions, whose library for phones"
    )
    assert unused.reason.endswith(
        "which makes the token ids of WordPiece itself without 'tokenize'"
    )


def test_plan_when_a_model_with_a_tokenizer_is_to_be_ort_says_that_it_takes_onnx(tmp_path):
    ort = "{backend: cpu, recipe: fp32, model_format: {ort: fixed, platform: arm}}"
    target = f"targets: [{{id: raspberry-pi, variants: [{ort}]}}]"
    lines = TOKENS, TOKENIZING, target
    plan = dry_run(project=write_text_project(tmp_path, text_nets.word_pieces(), *lines))
    (unused,) = plan.bundles[0].unused
    assert "not put into .ort files" in unused.reason


WRONG = {
    "no tokens": (("preprocess: {extensions: [tokenize]}",), "no input has a tokenizer"),
    "several sizes": (
        (TOKENS, TOKENIZING, "dims: {tokens: [4, 6]}"),
        "'tokens' has several sizes, and a model that makes the tokens itself",
    ),
    "another size": ((TOKENS, TOKENIZING, "dims: {tokens: 5}"), "with 5 tokens"),
    "a mask for an answer": (
        (
            TOKENS,
            TOKENIZING,
            "dims: {tokens: 6}",
            "outputs: {words: {kind: embedding, pooling: mean, mask: attention_mask}}",
        ),
        "'attention_mask' is made in the model, up to 6 tokens, and is not known outside it",
    ),
    "a mask described": (
        (TOKENS.replace("}}}", "}}, attention_mask: {pad: 0}}"), TOKENIZING),
        "'attention_mask' is described, and the model makes it of the text",
    ),
}


@pytest.mark.parametrize(("lines", "message"), WRONG.values(), ids=WRONG)
def test_project_when_it_cannot_be_says_what_of_it(tmp_path, lines, message):
    project = write_text_project(tmp_path, text_nets.word_pieces(), *lines, tokens="tokens")
    with pytest.raises(ProfileError, match=message):
        dry_run(project=project, targets=["linux-x86-64"])


def test_project_when_the_tokenizer_is_no_word_piece_points_to_models_that_hold_it(tmp_path):
    project = write_text_project(tmp_path, text_nets.byte_pairs(), TOKENS)
    with pytest.raises(ProfileError, match="its normalizer is missing") as caught:
        dry_run(project=project, targets=["linux-x86-64"])
    assert "preprocess: {extensions: [tokenize]}" in caught.value.hint


def test_project_when_no_model_holds_the_tokenizer_says_so(tmp_path):
    described = text_nets.byte_pairs(normalizer={"type": "NFKC"})
    with pytest.raises(ProfileError, match="runs in models: its normalizer is NFKC") as caught:
        dry_run(project=write_text_project(tmp_path, described), targets=["linux-x86-64"])
    assert "extensions" not in caught.value.hint

"""Operators of onnxruntime-extensions: image decoding in the model, where there can be some."""

from __future__ import annotations

import importlib.util
import io
import os
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from edgepack.build import build, dry_run
from edgepack.data.images import image_pixels
from edgepack.errors import ModelError, ProfileError, StepError
from edgepack.model.running import make_session
from edgepack.project import ImageInput, read_project
from edgepack.steps.in_graph import picture_session, require_equal
from edgepack.steps.pictures import made_pictures
from onnx import TensorProto, helper
from PIL import Image
from tiny_bundle import change_manifest, import_loader, write_tiny_bundle
from tiny_models import conv_net, save

if importlib.util.find_spec("onnxruntime_extensions") is None and not os.environ.get("CI"):
    pytest.skip("onnxruntime-extensions has no wheel here", allow_module_level=True)
ORIENTATION = 0x112
"""The EXIF tag."""
DECODING = "preprocess: {in_graph: true, extensions: [decode_image]}"


def write(folder: Path, *lines: str) -> Path:
    conv_net(folder / "net.onnx")
    (folder / "photos").mkdir()
    for number, pixels in enumerate(made_pictures(["h", "w", 3], [(30, 50), (64, 33), (9, 8)])):
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
    ((_, reason),) = plan.bundles[0].left_out
    assert reason.startswith("decode_image needs onnxruntime-extensions, whose library for phones")
    assert why in reason


def test_plan_when_the_model_has_such_an_operator_itself_leaves_phones_out(tmp_path):
    model = own_operator(tmp_path / "own.onnx")
    plan = dry_run(model, targets=["android"], variants=["cpu-fp32"])
    ((_, reason),) = plan.bundles[0].left_out
    assert reason.startswith("com.microsoft.extensions:DecodeImage needs onnxruntime-extensions")


def test_plan_when_the_file_is_ort_says_that_it_takes_onnx(tmp_path):
    ort = "{backend: cpu, recipe: fp32, model_format: {ort: fixed, platform: arm}}"
    target = f"targets: [{{id: raspberry-pi, variants: [{ort}]}}]"
    plan = dry_run(project=write(tmp_path, DECODING, target))
    ((_, reason),) = plan.bundles[0].left_out
    assert "not put into .ort files" in reason


def test_project_when_decoding_is_asked_for_alone_says_what_it_goes_with(tmp_path):
    path = write(tmp_path, "preprocess: {extensions: [decode_image]}")
    with pytest.raises(ProfileError, match="without 'in_graph'"):
        read_project(path)


def test_session_when_the_package_is_missing_says_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime_extensions", None)
    with pytest.raises(ModelError) as caught:
        make_session(own_operator(tmp_path / "own.onnx"))
    assert "edgepack[extensions]" in caught.value.hint


def test_loader_when_the_package_is_missing_passes_the_variant_over(tmp_path, monkeypatch):
    loader = import_loader()
    bundle = write_tiny_bundle(tmp_path / "tiny")
    change_manifest(bundle, lambda m: m["variants"][1]["requires"].update(extensions=True))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(loader.LoadError, match="onnxruntime-extensions is not installed"):
        loader.load(bundle, variant="cpu-fp32")


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
        assert np.array_equal(found, models["pixels"]({"image": image_pixels(path)})["scores"])


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
    session = picture_session(image, tmp_path, as_file=True)
    require_equal("image", image, file_of(GRADIENT, form), session)


@pytest.mark.parametrize("what", ["transparent", "turned"])
def test_proof_when_a_file_is_no_upright_opaque_picture_says_what_to_do(tmp_path, what):
    image = ImageInput.model_validate({"resize": {"letterbox": 16}})
    given = (
        file_of(GRADIENT.convert("RGB"), "png", exif=turned())
        if what == "turned"
        else file_of(Image.merge("LA", (GRADIENT, GRADIENT)), "png")
    )
    session = picture_session(image, tmp_path, as_file=True)
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

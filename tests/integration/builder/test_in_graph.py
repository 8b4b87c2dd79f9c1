"""Bundles whose model takes pictures: built with preprocessing in the graph, and run."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from edgepack.base.machine import find_architecture
from edgepack.builder.build import build, dry_run
from edgepack.bundle.manifest import Manifest
from edgepack.devices.inventory import load_device
from edgepack.errors import EdgepackError, ProfileError, SamplesError
from edgepack.measure.evaluate.evaluate import evaluate
from edgepack.project.inputs import ImageInput
from edgepack.project.loading import read_project
from edgepack.samples.images import read_image_pixels, read_image_tensor
from edgepack.steps.in_graph.pictures import make_pictures
from edgepack.trying.verify import verify as verify_here
from onnx import TensorProto, helper
from PIL import Image

from tests.support.nets.tiny_models import conv_net, save
from tests.support.reports.tiny_bundle import import_loader

IMAGE = "{resize: {letterbox: 8, pad: 114}, scale: 0.0039, mean: [0.4, 0.5, 0.6]}"
IN_GRAPH = "preprocess: {in_graph: true}"
PLATFORM = "arm" if find_architecture() == "aarch64" else "amd64"
RECIPES = """targets:
- id: host
  variants: [{backend: cpu, recipe: fp32}, {backend: cpu, recipe: int8-static}]
"""
OTHERS = f"""targets:
- id: host
  variants:
  - {{backend: cpu, recipe: int8-dynamic}}
  - {{backend: cpu, recipe: int8-static,
     model_format: {{ort: fixed, platform: {PLATFORM}}}}}
  - {{backend: cpu, recipe: fp32,
     model_format: {{ort: runtime, platform: {PLATFORM}}}}}
- {{id: ios, variants: [{{backend: coreml, recipe: fp16}}, {{backend: cpu, recipe: fp32}}]}}
- {{id: android-nnapi, variants: [{{backend: nnapi, recipe: int8-static, placement: 0.1}}]}}
"""


@pytest.fixture(scope="module")
def loader() -> ModuleType:
    return import_loader()


def photos(folder: Path, count: int = 12) -> None:
    """Pictures of different sizes, and a label for each."""
    random = np.random.default_rng(2)
    sizes = random.integers(5, 90, (count, 2)).tolist()
    folder.mkdir()
    for number, pixels in enumerate(make_pictures(["h", "w", 3], sizes)):
        Image.fromarray(pixels).save(folder / f"{number}.png")
    rows = "".join(f"{number}.png,{number % 4}\n" for number in range(count))
    (folder / "labels.csv").write_text("file,label\n" + rows)


def write(folder: Path, *lines: str, image: str = IMAGE) -> Path:
    """A project with a network for pictures and photographs as samples."""
    conv_net(folder / "net.onnx")
    photos(folder / "photos")
    path = folder / "edgepack.yaml"
    text = [
        "schema_version: 1",
        "name: net",
        "model: net.onnx",
        f"inputs: {{image: {{image: {image}}}}}",
        *lines,
    ]
    path.write_text("\n".join(text) + "\n")
    return path


SAMPLES = """samples:
  calibration: {images: photos}
  evaluation: {images: photos, labels: photos/labels.csv, metric: top1}
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> dict[str, Path]:
    """The host's bundle, and ``plain``, that of the same project without in_graph."""
    bundles = {}
    for name, lines in (("host", [IN_GRAPH]), ("plain", [])):
        folder = tmp_path_factory.mktemp(name)
        result = build(project=write(folder, SAMPLES, RECIPES, *lines), out=folder / "dist")
        result.require_all()
        bundles[name] = result.bundles[0].bundle.path
    return bundles


def manifest(bundle: Path) -> Manifest:
    return Manifest.model_validate_json((bundle / "manifest.json").read_text())


def test_build_when_preprocessing_is_in_the_graph_takes_pictures(built):
    found = manifest(built["host"])
    assert found.preprocess.in_graph
    assert found.inputs[0].model_dump() == {
        "name": "image",
        "dtype": "uint8",
        "shape": ["image_height", "image_width", 3],
    }
    assert found.outputs[0].shape == [1, 4]
    assert found.goldens_from == "samples"
    golden = found.goldens[0].inputs[0]
    data = np.fromfile(built["host"] / golden.path, np.uint8).reshape(golden.shape)
    assert any(np.array_equal(data, read_image_pixels(path)) for path in photo_files(built))


def photo_files(built: dict[str, Path]) -> list[Path]:
    return sorted((built["host"].parents[1] / "photos").glob("*.png"))


@pytest.mark.slow(reason="builds for three targets")
def test_build_when_recipes_and_formats_differ_ships_each_with_its_goldens_met(tmp_path):
    project = write(tmp_path, SAMPLES, IN_GRAPH, OTHERS)
    result = build(project=project, out=tmp_path / "dist")
    result.require_all()
    shipped = [[v.id for v in made.bundle.manifest.variants] for made in result.bundles]
    assert shipped == [
        ["cpu-int8-dynamic", "cpu-int8-static", "cpu-fp32"],
        ["coreml-fp16", "cpu-fp32"],
        ["nnapi-int8-static"],
    ]
    checks = verify_here(result.bundles[0].bundle.path).goldens
    assert [(check.variant, check.passed is False) for check in checks] == [
        (name, False) for name in shipped[0]
    ]


@pytest.mark.parametrize("variant", ["cpu-fp32", "cpu-int8-static"])
def test_model_when_given_a_photograph_gives_what_the_plain_one_gives_of_its_tensor(
    built, loader, variant
):
    image = ImageInput.model_validate(
        {"resize": {"letterbox": 8}, "scale": 0.0039, "mean": [0.4, 0.5, 0.6]}
    )
    model, plain = (loader.load(built[name], variant=variant) for name in ("host", "plain"))
    for path in photo_files(built):
        found = model({"image": read_image_pixels(path)})["scores"]
        expected = plain({"image": read_image_tensor(path, image)})["scores"]
        assert np.array_equal(model.predict(read_image_pixels(path))["scores"], found)
        # A level of 255 in some pixels, and where int8 rounds.
        assert np.abs(found - expected).max() < 0.02 * np.abs(expected).max()


def test_accuracy_when_pictures_are_evaluated_is_that_of_the_plain_build(built):
    ours, plain = (manifest(built[name]).variants[0].accuracy for name in ("host", "plain"))
    assert (ours.metric, ours.samples) == (plain.metric, plain.samples) == ("top1", plain.samples)
    assert ours.fp32 == ours.value == plain.value


@pytest.mark.slow(reason="evaluates on a device")
def test_evaluate_when_the_model_takes_pictures_sends_them_and_agrees_with_the_build(built):
    project = built["host"].parents[1] / "edgepack.yaml"
    report = evaluate(built["host"], load_device("local"), project=project, variant="cpu-fp32")
    assert report.measured == report.simulated == manifest(built["host"]).variants[0].accuracy


@pytest.mark.parametrize(
    ("dims", "shape"),
    [
        ("dims: {image_height: 20, image_width: 30}", [20, 30, 3]),
        ("dims: {}", ["image_height", "image_width", 3]),
    ],
)
def test_build_when_samples_are_pixels_in_a_npz_takes_them(tmp_path, loader, dims, shape):
    project = write(
        tmp_path,
        IN_GRAPH,
        "samples: {evaluation: {path: eval.npz}}",
        "targets: [host]",
        dims,
    )
    pixels = np.stack(list(make_pictures([20, 30, 3], [(20, 30)] * 8)))
    np.savez(tmp_path / "eval.npz", image=pixels)
    result = build(project=project, variants=["cpu-fp32"], out=tmp_path / "dist")
    result.require_all()
    bundle = result.bundles[0].bundle
    assert bundle.manifest.inputs[0].shape == shape
    assert bundle.manifest.goldens_from == "samples"
    assert loader.load(bundle.path)({"image": pixels[0]})["scores"].shape == (1, 4)


def test_build_when_there_are_no_samples_makes_pictures_for_the_goldens(tmp_path):
    project = write(tmp_path, IN_GRAPH, "targets: [host]")
    bundle = build(project=project, variants=["cpu-fp32"], out=tmp_path / "dist").bundles[0].bundle
    assert bundle.manifest.goldens_from == "seeded random"
    for golden in bundle.manifest.goldens:
        data = np.fromfile(bundle.path / golden.inputs[0].path, np.uint8)
        assert data.std() > 30


def test_build_when_sizes_are_listed_makes_a_static_model_for_each(tmp_path, loader):
    static = "targets: [{id: host, variants: [{backend: cpu, recipe: fp32, shapes: static}]}]"
    dims = "dims: {image_height: [20, 40], image_width: [30]}"
    project = write(tmp_path, IN_GRAPH, static, dims, "samples: {evaluation: {python: 'own:all'}}")
    (tmp_path / "own.py").write_text(
        "import numpy as np\n"
        "def all():\n"
        "    for height in (20, 40, 20):\n"
        "        yield {'image': np.full((height, 30, 3), height, np.uint8)}\n"
    )
    result = build(project=project, out=tmp_path / "dist")
    result.require_all()
    bundle = result.bundles[0].bundle
    (variant,) = bundle.manifest.variants
    assert [bucket.dims for bucket in variant.buckets] == [
        {"image_height": 20, "image_width": 30},
        {"image_height": 40, "image_width": 30},
    ]
    # Padding changes a picture, so its very size is taken alone.
    assert variant.exact
    model = loader.load(bundle.path)
    assert model({"image": np.zeros((40, 30, 3), np.uint8)})["scores"].shape == (1, 4)
    with pytest.raises(ValueError, match="image_height"):
        model({"image": np.zeros((39, 30, 3), np.uint8)})


def test_plan_when_shapes_are_to_be_static_says_which_sizes_are_missing(tmp_path):
    static = "targets: [{id: host, variants: [{backend: cpu, recipe: fp32, shapes: static}]}]"
    plan = dry_run(project=write(tmp_path, IN_GRAPH, static))
    (unused,) = plan.bundles[0].unused
    assert (unused.variant, unused.stage) == ("cpu-fp32", "refused")
    assert "the input 'image' has the dimension 'image_height'" in unused.reason
    assert "'dims' in edgepack.yaml" in unused.reason


def test_build_when_a_provider_takes_static_shapes_alone_names_the_nodes_it_leaves(tmp_path):
    """NNAPI leaves what comes before the picture has the input's size, and takes the network."""
    nnapi = (
        "targets: [{id: android-nnapi, variants: [{backend: nnapi, recipe: fp32, placement: 0.9}]}]"
    )
    result = build(project=write(tmp_path, IN_GRAPH, nnapi), out=tmp_path / "dist")
    with pytest.raises(EdgepackError, match=r"preprocess/image/Resize"):
        result.require_all()


@pytest.mark.parametrize(
    ("lines", "image", "message"),
    [
        ([IN_GRAPH], "{resize: {letterbox: 9}}", r"makes float32\[1, 3, 9, 9\]"),
        ([IN_GRAPH], "{resize: {letterbox: 8}, order: GRAY}", r"makes float32\[1, 1, 8, 8\]"),
        ([IN_GRAPH, "dims: {batch: 4}"], IMAGE, "'batch' is 1 in what preprocessing"),
        ([IN_GRAPH, "dims: {image_hight: 4}"], IMAGE, "has a symbolic dimension 'image_hight'"),
    ],
)
def test_plan_when_pictures_do_not_fit_the_model_says_why(tmp_path, lines, image, message):
    project = write(tmp_path, *lines, "targets: [host]", image=image)
    with pytest.raises(ProfileError, match=message):
        dry_run(project=project)


def test_project_when_no_image_is_described_says_what_to_add(tmp_path):
    conv_net(tmp_path / "net.onnx")
    path = tmp_path / "edgepack.yaml"
    path.write_text(f"schema_version: 1\nname: net\nmodel: net.onnx\n{IN_GRAPH}\n")
    with pytest.raises(ProfileError, match="no input says what is done to images"):
        read_project(path)


def test_build_when_samples_hold_tensors_says_that_pictures_are_taken(tmp_path):
    samples = "samples: {evaluation: {path: eval.npz}}"
    project = write(tmp_path, IN_GRAPH, samples, "targets: [host]")
    np.savez(tmp_path / "eval.npz", image=np.zeros((4, 3, 8, 8), np.float32))
    with pytest.raises(SamplesError, match="has float32 for 'image', the model takes uint8"):
        build(project=project, variants=["cpu-fp32"], out=tmp_path / "dist")


def test_build_when_another_input_stands_beside_the_picture_leaves_it(tmp_path, loader):
    """A picture and a number of each batch; the number's batch is that of one picture."""
    nodes = [
        helper.make_node("ReduceMean", ["image"], ["mean"], "mean", keepdims=0),
        helper.make_node("Mul", ["gain", "mean"], ["y"], "gain"),
    ]
    project = write(tmp_path, IN_GRAPH, "targets: [host]", image="{resize: {letterbox: 4, pad: 0}}")
    save(
        tmp_path / "net.onnx",
        nodes,
        [("gain", TensorProto.FLOAT, ["n", 2]), ("image", TensorProto.FLOAT, ["n", 3, 4, "w"])],
        [("y", TensorProto.FLOAT, ["n", 2])],
    )
    result = build(project=project, variants=["cpu-fp32"], out=tmp_path / "dist")
    result.require_all()
    bundle = result.bundles[0].bundle
    assert [tensor.shape for tensor in bundle.manifest.inputs] == [
        [1, 2],
        ["image_height", "image_width", 3],
    ]
    gain, pixels = np.array([[1.0, 2.0]], np.float32), np.full((9, 9, 3), 50, np.uint8)
    found = loader.load(bundle.path)({"gain": gain, "image": pixels})["y"]
    assert np.allclose(found, [[50, 100]])


def test_plan_when_the_model_has_a_dimension_of_the_pictures_name_keeps_them_apart(tmp_path):
    project = write(tmp_path, IN_GRAPH, "targets: [host]", image="{resize: {letterbox: 4}}")
    shape = ["n", 3, "image_height", "image_width"]
    value = (TensorProto.FLOAT, shape)
    relu = helper.make_node("Relu", ["image"], ["y"], "relu")
    save(tmp_path / "net.onnx", [relu], [("image", *value)], [("y", *value)])
    bundle = build(project=project, variants=["cpu-fp32"], out=tmp_path / "dist").bundles[0].bundle
    assert bundle.manifest.inputs[0].shape == ["image_height_1", "image_width_1", 3]
    assert bundle.manifest.outputs[0].shape == [1, 3, 4, 4]

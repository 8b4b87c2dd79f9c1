"""Preprocessing as ONNX nodes, held against Pillow itself on pictures of many sizes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from edgepack.errors import StepError
from edgepack.model.facts import TensorSpec
from edgepack.model.running import make_session
from edgepack.project.inputs import ImageInput
from edgepack.samples.images import list_image_files, read_image_pixels, read_image_tensor
from edgepack.samples.sample_set import SampleSet
from edgepack.steps.in_graph import in_graph
from edgepack.steps.in_graph.in_graph import (
    compute_level_differences,
    open_picture_session,
    require_equal,
)
from edgepack.steps.in_graph.picture_samples import InGraphProbes, TensorSamples
from edgepack.steps.in_graph.pictures import make_pictures
from edgepack.steps.in_graph.preprocessing import find_tensor_shape, make_picture_nodes, put_before
from onnx import TensorProto, helper
from PIL import Image

from tests.support.nets.tiny_models import conv_net, save

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
DESCRIPTIONS = {
    "letterbox": {"resize": {"letterbox": 64, "pad": 7}, "scale": 1 / 255},
    "odd-letterbox": {"resize": {"letterbox": 45}, "order": "BGR", "layout": "NHWC"},
    "crop": {"resize": {"short_side": 40, "crop": 33}, "scale": 1 / 255, "mean": MEAN, "std": STD},
    "crop-of-gray": {"resize": {"short_side": 32, "crop": 32}, "order": "GRAY", "mean": [12.5]},
    "stretch": {"resize": {"width": 48, "height": 27}, "order": "BGR", "std": [2.0, 3.0, 4.0]},
    "stretched-gray": {"resize": {"width": 5, "height": 90}, "order": "GRAY", "layout": "NHWC"},
    "negative-scale": {"resize": {"letterbox": 20}, "scale": -1 / 127.5, "mean": [-1, -1, -1]},
    "opencv": {"resize": {"letterbox": 64, "filter": "cv2-linear"}, "scale": 1 / 255},
    "opencv-crop-of-gray": {
        "resize": {"short_side": 40, "crop": 33, "filter": "cv2-linear"},
        "order": "GRAY",
    },
    "opencv-stretched": {
        "resize": {"width": 48, "height": 27, "filter": "cv2-linear"},
        "order": "BGR",
        "layout": "NHWC",
    },
    "torchvision": {
        "resize": {"short_side": 40, "crop": 33, "filter": "torchvision-bilinear"},
        "scale": 1 / 255,
        "std": STD,
    },
    "torchvision-between": {
        "resize": {
            "width": 48,
            "height": 27,
            "filter": "torchvision-bilinear",
            "antialias": False,
        },
        "order": "BGR",
    },
    "torchvision-bicubic": {
        "resize": {"letterbox": 45, "filter": "torchvision-bicubic"},
        "layout": "NHWC",
    },
    "tensorflow": {
        "resize": {"letterbox": 64, "filter": "tf-bilinear"},
        "order": "GRAY",
        "mean": [127.5],
    },
    "tensorflow-antialiased": {
        "resize": {"letterbox": 30, "pad": 0, "filter": "tf-bilinear", "antialias": True}
    },
}
MOST = {"pillow-bilinear": 1.0, "cv2-linear": 0.0}
"""How many levels of 255 a filter's values are away; those of floats less than a tenth."""
EDGES = ((1, 1), (1, 50), (50, 1), (2, 3), (64, 64), (45, 45), (40, 33), (640, 480), (700, 13))


def described(name: str) -> ImageInput:
    return ImageInput.model_validate(DESCRIPTIONS[name])


def sizes(count: int, *, most: int) -> list[tuple[int, int]]:
    random = np.random.default_rng(7)
    return [tuple(size) for size in random.integers(1, most, (count, 2)).tolist()]


def worst(image: ImageInput, pictures, folder: Path) -> float:
    """The largest difference to the tensors that Pillow makes of the same files, in levels."""
    session, found = open_picture_session(image, folder), 0.0
    for pixels in pictures:
        Image.fromarray(pixels).save(folder / "picture.bmp")
        expected = read_image_tensor(folder / "picture.bmp", image)
        tensor = session.run(None, {"pixels": pixels})[0]
        assert (tensor.dtype, tensor.shape) == (expected.dtype, expected.shape)
        found = max(found, compute_level_differences(expected, tensor, image).max())
    return found


@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_nodes_when_pictures_have_any_size_are_within_a_level_of_pillow(tmp_path, name):
    made = make_pictures(["height", "width", 3], [*EDGES, *sizes(12, most=300)])
    image = described(name)
    assert worst(image, made, tmp_path) <= MOST.get(image.resize.filter, 0.1)


@pytest.mark.in_turns
@pytest.mark.slow(reason="three thousand pictures")
@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_nodes_when_pictures_have_many_sizes_are_within_a_level_of_pillow(tmp_path, name):
    made = make_pictures(["height", "width", 3], sizes(400, most=900), seed=5)
    assert worst(described(name), made, tmp_path) <= 1


@pytest.mark.shared_data
@pytest.mark.parametrize("name", ["letterbox", "crop", "crop-of-gray", "stretch"])
def test_nodes_when_pictures_are_photographs_are_within_a_level_of_pillow(
    tmp_path, shared_data, name
):
    files = list_image_files(shared_data / "imagenet" / "images", limit=10)
    assert worst(described(name), map(read_image_pixels, files), tmp_path) <= 1


def test_nodes_when_nothing_is_scaled_are_exact(tmp_path):
    image = ImageInput.model_validate(
        {"resize": {"width": 30, "height": 20}, "scale": 1 / 3, "mean": MEAN, "std": STD}
    )
    pixels = next(make_pictures([20, 30, 3], [(20, 30)]))
    expected = (pixels * np.float32(1 / 3) - np.float32(MEAN)) / np.float32(STD)
    tensor = open_picture_session(image, tmp_path).run(None, {"pixels": pixels})[0]
    assert np.array_equal(tensor[0], expected.transpose(2, 0, 1))


def test_levels_apart_when_one_value_is_off_says_how_many_levels():
    image = described("crop")
    expected = np.zeros((1, 3, 2, 2), np.float32)
    found = expected.copy()
    found[0, 1, 0, 0] += 3 / 255 / STD[1]
    assert compute_level_differences(expected, found, image).max() == pytest.approx(3, abs=1e-3)


def test_proof_when_the_nodes_are_wrong_names_input_size_and_distance(tmp_path):
    lying = open_picture_session(described("odd-letterbox"), tmp_path)
    honest = described("odd-letterbox").model_copy(update={"order": "RGB"})
    pixels = next(make_pictures(["h", "w", 3], [(20, 30)]))
    with pytest.raises(StepError, match=r"'photo' of a picture of 20 x 30 is .* levels"):
        require_equal("photo", honest, pixels, lying)


def test_shape_when_the_layout_differs_is_that_of_the_nodes(tmp_path):
    for name in DESCRIPTIONS:
        pixels = next(make_pictures(["h", "w", 3], [(9, 11)]))
        tensor = open_picture_session(described(name), tmp_path).run(None, {"pixels": pixels})[0]
        assert tensor.shape == find_tensor_shape(described(name))


def test_nodes_when_named_apart_read_nothing_else():
    made = make_picture_nodes("front", "pixels", described("crop"))
    names = {*(node.output[0] for node in made.nodes), *(t.name for t in made.constants)}
    read = {name for node in made.nodes for name in node.input if name}
    assert all(name.startswith("front/") for name in names)
    assert read <= names | {"pixels"}


def test_model_when_a_branch_reads_the_input_gets_the_tensor_there_too(tmp_path):
    """The branches of an If read the outer input; one tensor has the name of the new nodes."""
    value = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3, 4, 4])
    branches = {
        key: helper.make_graph([helper.make_node(op, ["photo"], ["y"], key)], key, [], [value])
        for key, op in (("then_branch", "Abs"), ("else_branch", "Neg"))
    }
    nodes = [
        helper.make_node("ReduceMax", ["photo"], ["preprocess/photo"], "max", keepdims=0),
        helper.make_node("Cast", ["preprocess/photo"], ["yes"], "cast", to=TensorProto.BOOL),
        helper.make_node("If", ["yes"], ["out"], "if", **branches),
    ]
    path = save(
        tmp_path / "if.onnx",
        nodes,
        [("photo", TensorProto.FLOAT, [1, 3, 4, 4])],
        [("out", TensorProto.FLOAT, [1, 3, 4, 4])],
        opset=18,
    )
    model = onnx.load(str(path))
    image = ImageInput.model_validate({"resize": {"width": 4, "height": 4}, "scale": -1.0})
    pixels = helper.make_tensor_value_info("photo", TensorProto.UINT8, ["h", "w", 3])
    put_before(model, pixels, image)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, str(path))
    picture = np.full((4, 4, 3), 7, np.uint8)
    # -7 is not 0, so the first branch is taken, which gives its absolute value.
    assert (make_session(path).run(None, {"photo": picture})[0] == 7).all()


def test_step_when_the_model_preprocesses_otherwise_is_not_proven(tmp_path):
    """The tensors are right, and the model that was written makes others."""
    conv_net(tmp_path / "before" / "model.onnx", opset=18)
    signature = (TensorSpec("image", "uint8", ("h", "w", 3)),)
    probes = InGraphProbes(signature, ("image",), (), 4)
    steps = {
        order: in_graph.InGraph(
            signature,
            (("image", ImageInput.model_validate({"resize": {"letterbox": 8}, "order": order})),),
        )
        for order in ("RGB", "BGR")
    }
    inputs = {"model": tmp_path / "before", "samples": tmp_path / "samples"}
    for folder in ("samples", "after"):
        (tmp_path / folder).mkdir()
    probes.run({}, tmp_path / "samples")
    steps["RGB"].run(inputs, tmp_path / "after")
    steps["RGB"].verify(inputs, tmp_path / "after")
    with pytest.raises(StepError, match=r"outputs are .* dB from those of the model"):
        steps["BGR"].verify(inputs, tmp_path / "after")


def test_model_when_it_decodes_files_says_the_rank_of_what_is_decoded(tmp_path):
    """OpenVINO 2025.4.1 makes no session where one is not known, and nothing infers it."""
    model = onnx.load(str(conv_net(tmp_path / "net.onnx", opset=18)))
    image = ImageInput.model_validate({"resize": {"letterbox": 8}})
    put_before(model, helper.make_tensor_value_info("image", TensorProto.UINT8, ["n"]), image)
    decoded = next(node.output[0] for node in model.graph.node if node.op_type == "DecodeImage")
    known = {value.name: len(value.type.tensor_type.shape.dim) for value in model.graph.value_info}
    assert known[decoded] == 3


def test_step_when_the_model_takes_float16_gives_it_that(tmp_path):
    save(
        tmp_path / "before" / "model.onnx",
        [helper.make_node("Relu", ["image"], ["y"], "relu")],
        [("image", TensorProto.FLOAT16, [1, 3, 8, 8])],
        [("y", TensorProto.FLOAT16, [1, 3, 8, 8])],
        opset=18,
    )
    image = ImageInput.model_validate({"resize": {"letterbox": 8}, "scale": 0.0039})
    signature = (TensorSpec("image", "uint8", ("h", "w", 3)),)
    step = in_graph.InGraph(signature, (("image", image),))
    inputs = {"model": tmp_path / "before", "samples": tmp_path / "samples"}
    for folder in ("samples", "after", "tensors"):
        (tmp_path / folder).mkdir()
    InGraphProbes(signature, ("image",), (), 2).run({}, tmp_path / "samples")
    step.run(inputs, tmp_path / "after")
    step.verify(inputs, tmp_path / "after")
    taken = (TensorSpec("image", "float16", (1, 3, 8, 8)),)
    TensorSamples(taken, (("image", image),)).run(inputs, tmp_path / "tensors")
    assert SampleSet.read(tmp_path / "tensors").read_inputs(0)["image"].dtype == np.float16


def test_step_when_the_input_is_an_output_too_says_so(tmp_path):
    path = save(
        tmp_path / "model" / "model.onnx",
        [helper.make_node("Relu", ["x"], ["y"], "relu")],
        [("x", TensorProto.FLOAT, [1, 3, 4, 4])],
        [("y", TensorProto.FLOAT, [1, 3, 4, 4]), ("x", TensorProto.FLOAT, [1, 3, 4, 4])],
        opset=18,
    )
    step = in_graph.InGraph((), (("x", described("crop")),))
    with pytest.raises(StepError, match="'x' is an output"):
        step.check({"model": path.parent})

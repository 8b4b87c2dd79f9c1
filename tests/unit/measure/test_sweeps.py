"""The shapes that a sweep asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from edgepack.bundle.manifest import GoldenTensor, Manifest, Tensor
from edgepack.bundle.reading import load_bundle
from edgepack.errors import UsageError
from edgepack.measure.bench.sweeps import find_batch, make_sweep_points
from edgepack.project.inputs import ImageInput, InputDescription, Preprocess, TokensInput

from tests.support.reports.tiny_bundle import write_tiny_bundle


def with_inputs(manifest: Manifest, inputs: dict[str, tuple[list[Any], list[int]]]) -> Manifest:
    """Return a manifest with other inputs: their dimensions, and the shapes of the golden ones."""
    golden = manifest.goldens[0]
    tensors = [
        GoldenTensor(name=name, path="x", dtype="float32", shape=shape)
        for name, (_, shape) in inputs.items()
    ]
    specs = [Tensor(name=name, dtype="float32", shape=dims) for name, (dims, _) in inputs.items()]
    update = {"inputs": specs, "goldens": [golden.model_copy(update={"inputs": tensors})]}
    return manifest.model_copy(update=update)


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    folder: Path = tmp_path_factory.mktemp("bundle")
    return load_bundle(write_tiny_bundle(folder / "tiny")).manifest


@pytest.fixture
def text(manifest: Manifest) -> Manifest:
    inputs = {"ids": (["n", "length"], [1, 12]), "mask": (["n", "length"], [1, 12])}
    return with_inputs(manifest, inputs)


def test_batch_when_its_dimension_has_a_name_changes_it_in_every_input(text: Manifest) -> None:
    point, other = make_sweep_points(text, [4, 1], [])
    assert point == {"ids": [4, 12], "mask": [4, 12]}
    assert (find_batch(text, point), find_batch(text, other)) == (4, 1)


def test_batch_when_its_dimension_is_fixed_changes_what_has_its_size(manifest: Manifest) -> None:
    fixed = with_inputs(manifest, {"x": ([1, 3, 8], [1, 3, 8]), "s": ([2], [2]), "k": ([], [])})
    assert make_sweep_points(fixed, [4], []) == [{"x": [4, 3, 8], "s": [2], "k": []}]


def test_shape_when_given_takes_other_inputs_along(text: Manifest) -> None:
    assert make_sweep_points(text, [], ["ids=2x64"]) == [{"ids": [2, 64], "mask": [2, 64]}]
    both = make_sweep_points(text, [], ["ids=2x64,mask=2x32"])
    assert both == [{"ids": [2, 64], "mask": [2, 32]}]


@pytest.mark.parametrize(
    ("batches", "shapes", "said"),
    [
        ([0], [], "a batch has 0 samples"),
        ([], ["x=1x3x8x8,3"], "'3' is no shape"),
        ([], ["x"], "'x' is no shape"),
        ([], ["y=1x3x8x8"], "the model has no input 'y'"),
        ([], ["x=1x3x8"], "the input 'x' has the dimensions"),
        ([], ["x=1x3x0x8"], "the input 'x' has the dimensions"),
    ],
)
def test_sweep_when_a_point_is_none_says_what_is_wrong(
    manifest: Manifest, batches: list[int], shapes: list[str], said: str
) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        make_sweep_points(manifest, batches, shapes)
    assert caught.value.hint


def test_batch_when_the_input_is_a_number_says_so(manifest: Manifest) -> None:
    with pytest.raises(UsageError, match="a single number"):
        make_sweep_points(with_inputs(manifest, {"k": ([], [])}), [2], [])


def test_batch_when_the_first_input_is_a_picture_is_one_and_cannot_be_changed(
    manifest: Manifest,
) -> None:
    dims = ["image_height", "image_width", 3]
    plain = with_inputs(manifest, {"image": (dims, [480, 640, 3])})
    image = ImageInput.model_validate({"resize": {"letterbox": 8}})
    described = {"image": InputDescription(image=image)}
    update = {"input_descriptions": described, "preprocess": Preprocess(in_graph=True)}
    pictures = plain.model_copy(update=update)
    assert find_batch(pictures, {"image": [480, 640, 3]}) == 1
    with pytest.raises(UsageError, match="is one picture"):
        make_sweep_points(pictures, [4], [])


def test_batch_when_the_first_input_is_a_text_is_one_however_long_it_is(manifest: Manifest) -> None:
    plain = with_inputs(manifest, {"ids": (["ids_bytes"], [80])})
    tokens = TokensInput(file="tokenizer.json", length=128)
    described = {"ids": InputDescription(tokens=tokens)}
    update = {"input_descriptions": described, "preprocess": Preprocess(extensions=["tokenize"])}
    assert find_batch(plain.model_copy(update=update), {"ids": [80]}) == 1

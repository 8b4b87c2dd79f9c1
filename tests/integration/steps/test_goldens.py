"""Goldens that tell a model from one that was broken on purpose, through the loader."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import pytest
from edgepack.base.machine import find_processor
from edgepack.builder.build import build
from edgepack.bundle.reading import load_bundle
from edgepack.model.facts import TensorSpec
from edgepack.model.files import MODEL
from edgepack.samples.sample_set import write_sample_set
from edgepack.steps.base import run_step
from edgepack.steps.proofs.golden_choice import CHOICE, GoldenChoice, read_choice
from edgepack.steps.proofs.goldens import Goldens, read_goldens
from onnx import TensorProto, helper, numpy_helper

from tests.support.nets import tiny_models
from tests.support.reports.tiny_bundle import import_loader
from tests.support.slow_cases import slow_after

FLOAT = TensorProto.FLOAT
IMAGE = ("image", FLOAT, ["batch", 3, 8, 8])


@pytest.fixture(scope="module")
def loader() -> ModuleType:
    return import_loader()


def built(folder: Path, samples: np.ndarray, *variants: str, extra: str = "") -> Path:
    """Build the model in a folder for this machine and return the bundle's folder."""
    np.savez(folder / "samples.npz", image=samples)
    project = folder / "edgepack.yaml"
    project.write_text(
        "schema_version: 1\nname: tiny\nmodel: model.onnx\ndims: {batch: 1}\n"
        "samples: {calibration: {path: samples.npz}, evaluation: {path: samples.npz}}\n" + extra,
        encoding="utf-8",
    )
    out = folder / "dist"
    result = build(project=project, targets=["host"], variants=variants, out=out)
    return result.bundles[0].bundle.path


def shipped(bundle: Path) -> tuple[Path, onnx.ModelProto]:
    """Return the file of the only variant's model, and the model."""
    [entry] = json.loads((bundle / "manifest.json").read_text())["variants"]
    return bundle / entry["model"], onnx.load(str(bundle / entry["model"]))


def largest(model: onnx.ModelProto) -> onnx.TensorProto:
    return max(model.graph.initializer, key=lambda tensor: np.prod(tensor.dims))


def overwrite(tensor: onnx.TensorProto) -> None:
    values = numpy_helper.to_array(tensor)
    noise = np.random.default_rng(7).standard_normal(values.shape) * values.std()
    tensor.CopyFrom(numpy_helper.from_array(noise.astype(values.dtype), tensor.name))


def test_goldens_when_most_samples_are_silence_are_made_of_the_others(tmp_path, loader):
    tiny_models.conv_net(tmp_path / "model.onnx")
    samples = np.zeros((24, 3, 8, 8), np.float32)
    samples[[5, 11, 17]] = tiny_models.images(3)
    bundle = built(tmp_path, samples, "cpu-fp32")
    first = loader.Bundle(bundle).read_golden_inputs(0)["image"]
    assert any(np.array_equal(first[0], samples[n]) for n in (5, 11, 17))
    assert loader.load(bundle).variant == "cpu-fp32"
    path, model = shipped(bundle)
    overwrite(largest(model))
    onnx.save(model, str(path))
    with pytest.raises(loader.LoadError, match="dB near the golden one"):
        loader.load(bundle)


def two_heads(path: Path) -> None:
    """Image to two outputs of one shape and size that differ from each other."""
    random = np.random.default_rng(2)
    weights = [(name, random.standard_normal((192, 6)).astype(np.float32)) for name in ("wa", "wb")]
    nodes = [
        helper.make_node("Flatten", ["image"], ["f"]),
        helper.make_node("MatMul", ["f", "wa"], ["a"]),
        helper.make_node("MatMul", ["f", "wb"], ["b"]),
    ]
    outputs = [("a", FLOAT, ["batch", 6]), ("b", FLOAT, ["batch", 6])]
    tiny_models.save(path, nodes, [IMAGE], outputs, weights)


def test_goldens_when_outputs_are_swapped_refuse_the_model(tmp_path, loader):
    two_heads(tmp_path / "model.onnx")
    bundle = built(tmp_path, tiny_models.images(16), "cpu-fp32")
    path, model = shipped(bundle)
    swap = {"a": "b", "b": "a"}
    for node in model.graph.node:
        node.output[0] = swap.get(node.output[0], node.output[0])
    onnx.save(model, str(path))
    with pytest.raises(loader.LoadError, match="dB near the golden one"):
        loader.load(bundle)


def boxes_and_scores(path: Path, *, weak: bool = False) -> None:
    """Image to 4 channels of pixels and 3 of scores, for 16 places."""
    random = np.random.default_rng(5)
    factors = np.array([100.0] * 4 + [0.3 if weak else 1.0] * 3, np.float32)
    weights = [
        ("w", (random.standard_normal((192, 7 * 16)) / 14).astype(np.float32)),
        ("shape", np.array([1, 7, 16], np.int64)),
        ("factors", factors.reshape(1, 7, 1)),
    ]
    nodes = [
        helper.make_node("Flatten", ["image"], ["flat"]),
        helper.make_node("MatMul", ["flat", "w"], ["values"]),
        helper.make_node("Sigmoid", ["values"], ["shares"]),
        helper.make_node("Reshape", ["shares", "shape"], ["rows"]),
        helper.make_node("Mul", ["rows", "factors"], ["found"]),
    ]
    tiny_models.save(path, nodes, [IMAGE], [("found", FLOAT, [1, 7, 16])], weights)


@pytest.mark.parametrize("variant", slow_after(1, ["cpu-fp32", "cpu-int8-dynamic"]))
def test_goldens_when_scores_beside_boxes_are_weak_refuse_the_model(tmp_path, loader, variant):
    boxes_and_scores(tmp_path / "model.onnx")
    bundle = built(tmp_path, tiny_models.images(16), variant)
    [golden] = load_bundle(bundle).manifest.goldens[0].outputs[variant]
    assert golden.quantities is not None
    assert (golden.quantities.size, golden.quantities.runs) == (16, [[4, 0], [3, 1]])
    assert loader.load(bundle)
    path, _ = shipped(bundle)
    boxes_and_scores(path, weak=True)
    with pytest.raises(loader.LoadError, match="dB near the golden one"):
        loader.load(bundle)


def nearly_constant(path: Path, *, constant: bool = False) -> None:
    """Image to scores of about 3 that differ between images by a hundredth of that."""
    random = np.random.default_rng(3)
    scale = 0.0 if constant else 0.02
    weights = [
        ("w", (scale * random.standard_normal((192, 64)) / 14).astype(np.float32)),
        ("v", (random.standard_normal((64, 6))).astype(np.float32) / 8),
        ("base", np.full(6, 3.0, np.float32)),
    ]
    nodes = [
        helper.make_node("Flatten", ["image"], ["f"]),
        helper.make_node("MatMul", ["f", "w"], ["h"]),
        helper.make_node("MatMul", ["h", "v"], ["m"]),
        helper.make_node("Add", ["m", "base"], ["scores"]),
    ]
    tiny_models.save(path, nodes, [IMAGE], [("scores", FLOAT, ["batch", 6])], weights)


def test_goldens_when_an_output_varies_little_refuse_a_constant(tmp_path, loader):
    nearly_constant(tmp_path / "model.onnx")
    bundle = built(tmp_path, tiny_models.images(16), "cpu-int8-dynamic")
    manifest = load_bundle(bundle).manifest
    [golden] = manifest.goldens[0].outputs["cpu-int8-dynamic"]
    values = np.fromfile(bundle / golden.path, np.float32)
    assert 10 * np.log10(np.sum(values**2) / np.sum((values - 3) ** 2)) > 20, "it is 20 dB near"
    assert manifest.variants[0].min_sqnr_db == 20
    assert golden.extra_db > 15
    path, _ = shipped(bundle)
    assert loader.load(bundle)
    nearly_constant(path, constant=True)
    with pytest.raises(loader.LoadError, match="dB near the golden one"):
        loader.load(bundle)


def with_dead_weights(path: Path) -> None:
    """:func:`tiny_models.conv_net` beside a large layer that adds nothing to its scores."""
    model = onnx.load(str(tiny_models.conv_net(path)))
    random = np.random.default_rng(4)
    dead = (random.standard_normal((192, 4)) * 1e-9).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(dead, "dead"))
    model.graph.node[-1].output[0] = "alive"
    model.graph.node.extend(
        [
            helper.make_node("Flatten", ["image"], ["flat_image"]),
            helper.make_node("MatMul", ["flat_image", "dead"], ["nothing"]),
            helper.make_node("Add", ["alive", "nothing"], ["scores"]),
        ]
    )
    onnx.save(model, str(path))


def test_weights_that_change_nothing_are_no_faults_that_goldens_could_tell(tmp_path):
    with_dead_weights(tmp_path / "model.onnx")
    bundle = built(tmp_path, tiny_models.images(16), "cpu-fp32")
    manifest = load_bundle(bundle).manifest
    assert manifest.variants[0].untold == []
    [told] = [line for line in manifest.steps if line.startswith("goldens-")]
    # Of w1, dead and w2, each changed thrice, six changes matter; a constant and a stuck model.
    assert told.endswith("tell 8 of 8 wrong models from the right one")


def with_rare_branch(path: Path) -> None:
    """:func:`tiny_models.conv_net` and a layer that only bright images reach."""
    model = onnx.load(str(tiny_models.conv_net(path)))
    random = np.random.default_rng(4)
    rare = random.standard_normal((192, 4)).astype(np.float32)
    model.graph.initializer.extend(
        [
            numpy_helper.from_array(rare, "rare"),
            numpy_helper.from_array(np.array([5.0], np.float32), "bright"),
        ]
    )
    model.graph.node[-1].output[0] = "common"
    model.graph.node.extend(
        [
            helper.make_node("Sub", ["image", "bright"], ["above"]),
            helper.make_node("Relu", ["above"], ["only_bright"]),
            helper.make_node("Flatten", ["only_bright"], ["flat_image"]),
            helper.make_node("MatMul", ["flat_image", "rare"], ["more"]),
            helper.make_node("Add", ["common", "more"], ["scores"]),
        ]
    )
    onnx.save(model, str(path))


def test_goldens_hold_the_one_sample_that_reaches_a_layer_or_say_that_they_do_not(tmp_path):
    with_rare_branch(tmp_path / MODEL)
    images = np.clip(tiny_models.images(24), -4, 4)
    images[9] += 6
    spec = TensorSpec("image", "float32", (1, 3, 8, 8))
    samples = tmp_path / "samples"
    samples.mkdir()
    named = ((str(n), {"image": image[None]}) for n, image in enumerate(images))
    write_sample_set(samples, [spec], named)
    inputs = {"model": tmp_path, "samples": samples, "choice": tmp_path / "choice"}
    (tmp_path / "choice").mkdir()
    run_step(GoldenChoice(4, find_processor()), inputs, tmp_path / "choice")
    chosen = read_choice(tmp_path / "choice")
    assert 9 in chosen

    def untold(choice: list[int], out: Path) -> list[str]:
        (tmp_path / "choice" / CHOICE).write_text(json.dumps(choice))
        out.mkdir()
        run_step(Goldens(60.0, find_processor()), inputs, out)
        return [what for what, told_by in read_goldens(out)["faults"] if told_by is None]

    assert untold(chosen, tmp_path / "all") == []
    others = untold([0, 3, 6, 12], tmp_path / "others")
    assert others == [
        "the weights 'rare' shuffled",
        "a channel of the weights 'rare' at 0",
        "the largest of the weights 'rare' mirrored",
    ]


def large(path: Path) -> None:
    """Image to a picture of 3 x 512 x 512."""
    weights = [
        ("w", np.random.default_rng(6).standard_normal((3, 3, 3, 3)).astype(np.float32)),
        ("scales", np.array([1, 1, 64, 64], np.float32)),
    ]
    nodes = [
        helper.make_node("Conv", ["image", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Resize", ["c", "", "scales"], ["y"], mode="linear"),
    ]
    outputs = [("y", FLOAT, ["batch", 3, 512, 512])]
    tiny_models.save(path, nodes, [IMAGE], outputs, weights)


@pytest.mark.slow(reason="takes seconds")
def test_goldens_when_outputs_are_large_hold_some_of_their_values(tmp_path, loader):
    large(tmp_path / "model.onnx")
    bundle = built(tmp_path, tiny_models.images(12), "cpu-fp32")
    manifest = load_bundle(bundle).manifest
    golden = sum(file.size_bytes for file in manifest.files if file.role == "golden")
    assert golden < 4 * 2**18 + 4 * 3 * 8 * 8 * 4 + 1
    [entry] = manifest.goldens[0].outputs["cpu-fp32"]
    assert entry.shape == [1, 3, 512, 512]
    model = loader.load(bundle)
    whole = model.run(model.bundle.read_golden_inputs(0))["y"]
    kept = np.fromfile(bundle / entry.path, np.float32)
    assert np.allclose(kept, whole.reshape(-1)[:: entry.stride], atol=1e-4)
    path, broken = shipped(bundle)
    overwrite(largest(broken))
    onnx.save(broken, str(path))
    with pytest.raises(loader.LoadError, match="dB near the golden one"):
        loader.load(bundle)


def test_bundle_when_goldens_would_be_larger_than_the_model_and_4_mib_has_fewer(tmp_path):
    nodes = [helper.make_node("GlobalAveragePool", ["image"], ["y"])]
    image = ("image", FLOAT, ["batch", 3, 400, 400])
    tiny_models.save(tmp_path / "model.onnx", nodes, [image], [("y", FLOAT, ["batch", 3, 1, 1])])
    samples = np.random.default_rng(8).standard_normal((6, 3, 400, 400)).astype(np.float32)
    bundle = built(tmp_path, samples, "cpu-fp32")
    assert len(load_bundle(bundle).manifest.goldens) == 2, "of 1.92 MB each"

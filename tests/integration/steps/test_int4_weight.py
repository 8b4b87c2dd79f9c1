"""The int4-weight step, and a bundle with it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from edgepack.backends.targets import find_misfits
from edgepack.builder.build import build
from edgepack.bundle.manifest import Accuracy
from edgepack.errors import StepError
from edgepack.model.facts import read_signature
from edgepack.model.files import MODEL
from edgepack.model.reading import read_model, read_structure, write_model
from edgepack.model.running import make_session, run_session
from edgepack.project.profile import VariantChange, change_profile, load_profile
from edgepack.samples.sample_set import write_sample_set
from edgepack.steps.base import Notes, run_step
from edgepack.steps.recipes.int4_weight import Int4Weight
from edgepack.trying.verify import verify as verify_here
from onnx import TensorProto, helper, numpy_helper

from tests.support.nets.tiny_models import conv_net, save

WIDTH, DEPTH = 96, 6
node = helper.make_node


def normal(*shape, seed):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def activations(count: int, seed: int) -> np.ndarray:
    """Return inputs that lie near a space of few dimensions, as activations of networks do."""
    found = normal(count, 12, seed=seed) @ normal(12, WIDTH, seed=9)
    return found + 0.05 * normal(count, WIDTH, seed=seed + 1)


def encoder(path: Path) -> Path:
    """A stack of matrix products whose output, a vector of length 1, has errors of all of them."""
    nodes, constants, last = [], [], "x"
    for layer in range(DEPTH):
        nodes += [
            node("MatMul", [last, f"w{layer}"], [f"h{layer}"], f"product{layer}"),
            node("Relu", [f"h{layer}"], [f"r{layer}"], f"relu{layer}"),
        ]
        weights = normal(WIDTH, WIDTH, seed=20 + layer) * np.sqrt(2 / WIDTH)
        constants.append((f"w{layer}", weights.astype(np.float32)))
        last = f"r{layer}"
    nodes += [
        node("Gemm", [last, "head", "bias"], ["e"], "head", transB=1),
        node("LpNormalization", ["e"], ["embedding"], "unit", axis=1),
    ]
    constants += [("head", normal(WIDTH, WIDTH, seed=5)), ("bias", normal(WIDTH, seed=6))]
    return save(
        path,
        nodes,
        [("x", TensorProto.FLOAT, ["rows", WIDTH])],
        [("embedding", TensorProto.FLOAT, ["rows", WIDTH])],
        constants,
    )


@pytest.fixture
def folder(tmp_path) -> Path:
    encoder(tmp_path / "in" / MODEL)
    inputs, _ = read_signature(read_structure(tmp_path / "in" / MODEL))
    for name, count, seed in (("calibration", 160, 30), ("samples", 32, 90)):
        (tmp_path / name).mkdir()
        rows = [(str(n), {"x": row[None]}) for n, row in enumerate(activations(count, seed))]
        write_sample_set(tmp_path / name, inputs, rows)
    return tmp_path


def quantize(folder: Path, *inputs: str) -> Notes:
    (folder / "out").mkdir()
    given = {name: folder / name for name in inputs}
    return run_step(Int4Weight(13), {"model": folder / "in", **given}, folder / "out")


def sizes(folder: Path) -> tuple[int, int]:
    return tuple((folder / part / MODEL).stat().st_size for part in ("in", "out"))


def test_encoder_when_rounded_by_samples_keeps_its_embeddings(folder):
    notes = quantize(folder, "calibration", "samples")
    old, new = (make_session(folder / part / MODEL) for part in ("in", "out"))
    for row in activations(40, seed=500):
        ours, theirs = (run_session(s, {"x": row[None]})["embedding"] for s in (old, new))
        assert float(np.vdot(ours, theirs)) > 0.97
    before, after = sizes(folder)
    assert after < before / 5
    assert notes.facts["compensated"]
    assert notes.facts["float32_bytes"] == 4 * (DEPTH + 1) * WIDTH**2
    assert notes.facts["int4_bytes"] < notes.facts["float32_bytes"] / 6
    assert notes.facts["quantized_nodes"] == DEPTH + 1
    assert "rounded by what they are multiplied with" in notes.done


def test_encoder_when_rounding_to_nearest_loses_too_much_is_refused(folder):
    with pytest.raises(StepError, match=r"'embedding' is too far.*0\.98 is the least") as caught:
        quantize(folder, "samples")
    assert "calibration samples" in caught.value.hint


def test_model_when_a_calibration_set_is_of_one_sample_is_rounded_to_nearest_or_better(tmp_path):
    weights = [("w", normal(64, 48, seed=1))]
    nodes = [node("MatMul", ["x", "w"], ["y"], "m")]
    value = ("x", TensorProto.FLOAT, [1, 64])
    save(tmp_path / "in" / MODEL, nodes, [value], [("y", TensorProto.FLOAT, [1, 48])], weights)
    inputs, _ = read_signature(read_structure(tmp_path / "in" / MODEL))
    (tmp_path / "calibration").mkdir()
    write_sample_set(tmp_path / "calibration", inputs, [("0", {"x": normal(1, 64, seed=2)})])
    assert quantize(tmp_path, "calibration").facts["worst_cosine"] > 0.98


def test_model_when_it_has_only_convolutions_is_refused(tmp_path):
    conv_net(tmp_path / "in" / MODEL, batch=1)
    with pytest.raises(StepError, match="nothing in the model can be in 4 bits") as caught:
        quantize(tmp_path)
    assert "int8-static" in caught.value.hint


def test_model_when_in_4_bits_already_is_refused(folder):
    quantize(folder, "calibration", "samples")
    (folder / "again").mkdir()
    with pytest.raises(StepError, match=r"quantized already \(weight-only\)"):
        run_step(Int4Weight(13), {"model": folder / "out"}, folder / "again")


def change(folder: Path, ending: str, values) -> None:
    model = read_model(folder / "out" / MODEL)
    for tensor in model.graph.initializer:
        if tensor.name.endswith(ending):
            array = numpy_helper.to_array(tensor)
            tensor.CopyFrom(numpy_helper.from_array(values(array), tensor.name))
    write_model(model, folder / "out" / MODEL)


@pytest.mark.parametrize(
    ("ending", "values", "message"),
    [
        ("_scale", lambda a: np.full_like(a, np.nan), "a scale is not a positive number"),
        ("_zero", lambda a: a[:, :1], "bytes of codes"),
        ("_int4", lambda a: ~a, r"error is as large as|is too far"),
    ],
)
def test_step_when_it_lies_is_caught(folder, ending, values, message):
    quantize(folder, "calibration", "samples")
    change(folder, ending, values)
    inputs = {"model": folder / "in", "samples": folder / "samples"}
    with pytest.raises(StepError, match=message):
        Int4Weight(13).verify(inputs, folder / "out")


def test_step_when_its_file_is_still_float_is_caught(folder):
    (folder / "out").mkdir()
    write_model(read_model(folder / "in" / MODEL), folder / "out" / MODEL)
    with pytest.raises(StepError, match="nothing in the model can be in 4 bits"):
        Int4Weight(13).verify({"model": folder / "in"}, folder / "out")


def test_encoder_when_rounded_twice_has_the_same_bytes(folder):
    quantize(folder, "calibration", "samples")
    first = (folder / "out" / MODEL).read_bytes()
    again = folder / "again"
    again.mkdir()
    inputs = {name: folder / name for name in ("calibration", "samples")}
    run_step(Int4Weight(13), {"model": folder / "in", **inputs}, again)
    assert (again / MODEL).read_bytes() == first


def int4_target(pin: str):
    profile = change_profile(
        load_profile("linux-x86-64"), [VariantChange(backend="cpu", recipe="int4-weight")]
    )
    runtime = profile.runtime.model_copy(update={"packages": {"onnxruntime": pin}})
    return profile.model_copy(update={"runtime": runtime})


@pytest.mark.parametrize("pin", ["==1.22.1", ">=1.20,<2"])
def test_variant_when_the_pinned_runtime_is_too_old_is_refused(pin):
    profile = int4_target(pin)
    found = find_misfits(profile.variants[0], profile)
    assert [misfit.key for misfit in found] == [("recipe",)]
    assert "does not load weights in blocks of 4 bits" in found[0].problem


@pytest.mark.parametrize("pin", ["==1.23.2", "==1.31.1"])
def test_variant_when_the_pinned_runtime_is_new_enough_fits(pin):
    profile = int4_target(pin)
    assert find_misfits(profile.variants[0], profile) == []


PROJECT = """
schema_version: 1
name: embedder
version: 1.0.0
model: in/model.onnx
samples: {calibration: {path: calibration.npz}, evaluation: {path: evaluation.npz}}
targets: [{id: linux-x86-64, variants: [{backend: cpu, recipe: int4-weight}]}]
"""


def test_bundle_when_built_for_int4_weight_is_whole_and_meets_its_goldens(folder):
    for name, count, seed in (("calibration", 160, 30), ("evaluation", 32, 90)):
        np.savez(folder / f"{name}.npz", x=activations(count, seed))
    (folder / "edgepack.yaml").write_text(PROJECT)
    result = build(project=folder / "edgepack.yaml", out=folder / "dist")
    result.require_all()
    bundle = result.bundles[0].bundle
    (variant,) = bundle.manifest.variants
    assert (variant.id, variant.recipe, variant.dialect) == ("cpu-int4-weight", "int4-weight", None)
    assert isinstance(variant.accuracy, Accuracy)
    assert variant.accuracy.worst is not None
    assert variant.accuracy.worst.sqnr_db > 10
    model = onnx.load(bundle.path / variant.model)
    assert sum(n.op_type == "MatMulNBits" for n in model.graph.node) == DEPTH + 1
    (check,) = verify_here(bundle.path).goldens
    assert check.passed, check.outcome

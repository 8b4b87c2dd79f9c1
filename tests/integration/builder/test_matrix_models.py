"""Models of matrix products try int8-dynamic before int8-static; convolutional ones do not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from edgepack.base.processes import Workers
from edgepack.builder.build import build, dry_run
from edgepack.builder.inspect import inspect
from edgepack.builder.offering import offer_int8_dynamic
from edgepack.builder.plan import PlannedBundle
from edgepack.model.facts import read_model_facts
from edgepack.project.profile import load_profile
from onnx import TensorProto, helper

from tests.support.nets.tiny_models import conv_net, save

node = helper.make_node
FLOAT = TensorProto.FLOAT
PROJECT = "schema_version: 1\nname: net\nversion: 1.0.0\nmodel: net.onnx\n"


def mixer(folder: Path) -> Path:
    """Two products over a sequence, as in a transformer."""
    random = np.random.default_rng(4)
    first = random.standard_normal((32, 64)).astype(np.float32)
    constants = [("a", first), ("b", random.standard_normal((64, 32)).astype(np.float32) / 8)]
    nodes = [
        node("MatMul", ["x", "a"], ["h"], "up"),
        node("Relu", ["h"], ["r"], "relu"),
        node("MatMul", ["r", "b"], ["y"], "down"),
    ]
    value = (FLOAT, [1, 12, 32])
    return save(folder / "net.onnx", nodes, [("x", *value)], [("y", *value)], constants)


def bundle(folder: Path, targets=("linux-x86-64",), **options) -> PlannedBundle:
    (found,) = dry_run(folder / "net.onnx", targets=list(targets), **options).bundles
    return found


def ids(planned: PlannedBundle) -> list[str]:
    return [variant.variant.id for variant in planned.variants]


def with_samples(folder: Path, extra: str = "") -> Path:
    for name, seed in (("cal", 1), ("ev", 2)):
        values = np.random.default_rng(seed).standard_normal((16, 12, 32)).astype(np.float32)
        np.savez(folder / f"{name}.npz", x=values)
    path = folder / "edgepack.yaml"
    samples = "samples: {calibration: {path: cal.npz}, evaluation: {path: ev.npz}}\n"
    path.write_text(f"{PROJECT}{samples}{extra}\n")
    return path


def test_plan_when_products_are_matrices_puts_int8_dynamic_first_and_says_why(tmp_path):
    mixer(tmp_path)
    planned = bundle(tmp_path)
    assert ids(planned) == ["cpu-int8-dynamic", "cpu-fp32"]
    first = planned.variants[0]
    assert first.variant.dialect is not None
    assert (first.variant.dialect.activations, first.variant.dialect.weights) == ("uint8", "int8")
    lines = list(dry_run(tmp_path / "net.onnx", targets=["linux-x86-64"]).describe())
    assert any("100% of the multiply-adds are in matrix products" in line for line in lines)


def test_offer_when_a_profile_names_its_variants_otherwise_has_an_id_of_its_own(tmp_path):
    model = mixer(tmp_path)
    profile = load_profile("linux-x86-64")
    static, *others = profile.variants
    named = [static.model_copy(update={"id": name}) for name in ("fast", "faster")]
    changed = profile.model_copy(update={"variants": [*named, *others]})
    with Workers(1) as workers:
        (found,), offers = offer_int8_dynamic(
            model, read_model_facts(model), [changed], (), workers
        )
    expected = ["cpu-int8-dynamic", "fast", "faster", *(variant.id for variant in others)]
    assert [variant.id for variant in found.variants] == expected
    assert set(offers) == {("linux-x86-64", "cpu-int8-dynamic")}


def test_plan_when_the_model_is_convolutional_is_as_the_profile_has_it(tmp_path):
    conv_net(tmp_path / "net.onnx", batch=1)
    assert ids(bundle(tmp_path)) == ["cpu-fp32"]


def test_plan_when_the_project_names_the_variants_is_left_to_it(tmp_path):
    mixer(tmp_path)
    variants = "[{backend: cpu, recipe: int8-static}, {backend: cpu, recipe: fp32}]"
    path = with_samples(tmp_path, f"targets: [{{id: linux-x86-64, variants: {variants}}}]")
    (planned,) = dry_run(project=path).bundles
    assert ids(planned) == ["cpu-int8-static", "cpu-fp32"]


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("raspberry-pi", ["cpu-int8-dynamic", "cpu-fp32"]),
        (
            "jetson",
            ["tensorrt-fp16", "cuda-fp16", "cpu-int8-dynamic", "cpu-fp32"],
        ),
    ],
)
def test_plan_when_other_providers_come_before_the_cpu_leaves_them_first(
    tmp_path, target, expected
):
    mixer(tmp_path)
    assert ids(bundle(tmp_path, [target])) == expected


def test_variant_when_it_was_added_can_be_asked_for_by_name(tmp_path):
    mixer(tmp_path)
    assert ids(bundle(tmp_path, variants=["cpu-int8-dynamic"])) == ["cpu-int8-dynamic"]


def test_bundle_when_built_has_int8_dynamic_before_int8_static(tmp_path):
    mixer(tmp_path)
    result = build(project=with_samples(tmp_path), targets=["linux-x86-64"], out=tmp_path / "dist")
    result.require_all()
    shipped = [variant.id for variant in result.bundles[0].bundle.manifest.variants]
    assert shipped == ["cpu-int8-dynamic", "cpu-int8-static", "cpu-fp32"]


@pytest.mark.slow(reason="takes seconds")
def test_variant_when_it_was_added_and_misses_a_limit_is_left_out_without_an_error(tmp_path):
    mixer(tmp_path)
    path = with_samples(tmp_path, "limits: {min_sqnr_db: 100}")
    result = build(project=path, targets=["linux-x86-64"], out=tmp_path / "dist")
    assert {error.where for error in result.errors} <= {"linux-x86-64 cpu-int8-static"}
    left = {left.variant: left for left in result.bundles[0].bundle.manifest.unused}
    assert left["cpu-int8-dynamic"].stage == "missed"
    assert "the limit is 100 dB" in left["cpu-int8-dynamic"].reason


def test_inspection_when_products_are_matrices_shows_int8_dynamic(tmp_path):
    mixer(tmp_path)
    found = inspect(tmp_path / "net.onnx", ["linux-x86-64"])
    assert [v.variant for v in found.variants] == [
        "cpu-int8-dynamic",
        "cpu-int8-static",
        "cpu-fp32",
    ]
    assert found.variants[0].unused is None

"""What a build ends with: warnings, errors in their order, and diagnoses that decide nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny_models
import worker_tasks
from edgepack.build import BuildResult, MissedLimit, build
from edgepack.build.judging import RefusedVariant
from edgepack.bundle.manifest import NotMeasured
from edgepack.cli.printing import print_build, print_json
from edgepack.errors import LimitError, ModelError
from onnx import TensorProto, helper

NOTHING = BuildResult((), (), (), (), (), (), 0, 0)
REFUSED = RefusedVariant("pi", "cpu-int8-dynamic", "top1 drops by 0.5000, the limit is 0.1")


@pytest.mark.slow(reason="builds without a cache")
@pytest.mark.parametrize(
    ("count", "equal", "warning"),
    [(1, False, "one sample tells little"), (9, True, "all 9 samples are equal")],
)
def test_build_when_calibration_samples_tell_little_warns_in_text_and_json(
    tmp_path, capsys, count, equal, warning
):
    project = tiny_models.write_project(tmp_path)
    images = tiny_models.images(count, seed=1)
    np.savez(tmp_path / "cal.npz", image=np.zeros_like(images) + 0.5 if equal else images)
    result = build(project=project, targets=["host"], out=tmp_path / "dist")
    assert any(text.startswith(f"calibration: {warning}") for text in result.warnings)
    print_build(result)
    assert f"warning: calibration: {warning}" in capsys.readouterr().out
    print_json(result)
    assert json.loads(capsys.readouterr().out)["warnings"] == list(result.warnings)


def test_build_when_two_targets_share_samples_warns_once(tmp_path):
    project = tiny_models.write_project(tmp_path)
    np.savez(tmp_path / "cal.npz", image=tiny_models.images(1, seed=1))
    result = build(project=project, targets=["linux-x86-64", "android"], out=tmp_path / "dist")
    assert len(result.bundles) == 2
    assert sum("one sample tells little" in text for text in result.warnings) == 1


def test_result_when_variants_miss_limits_and_others_are_left_out_raises_the_limit():
    missed = MissedLimit("pi", "cpu-int8-static", "top1 drops by 0.2000, the limit is 0.1")
    result = replace(NOTHING, missed=(missed,), refused=(REFUSED,))
    with pytest.raises(LimitError, match=r"pi cpu-int8-static: top1 drops by 0\.2000") as caught:
        result.require_all()
    assert caught.value.exit_code == 10


def test_result_when_a_target_has_no_bundle_names_target_variants_and_reasons():
    result = replace(NOTHING, refused=(REFUSED,))
    with pytest.raises(ModelError, match="no bundle was written for pi, because") as caught:
        result.require_all()
    assert "pi cpu-int8-dynamic: top1 drops by 0.5000" in caught.value.problem
    assert "provider takes" not in caught.value.problem


def write_product(folder: Path, extra: str) -> Path:
    """A project of one matrix product, for which int8-dynamic is offered."""
    random = np.random.default_rng(2)
    value = (TensorProto.FLOAT, [1, 12, 32])
    weights = random.standard_normal((32, 32)).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], "product")]
    tiny_models.save(folder / "net.onnx", nodes, [("x", *value)], [("y", *value)], [("w", weights)])
    np.savez(folder / "ev.npz", x=random.standard_normal((8, 12, 32)).astype(np.float32))
    path = folder / "edgepack.yaml"
    path.write_text(
        "schema_version: 1\nname: net\nversion: 1.0.0\nmodel: net.onnx\n"
        f"samples: {{evaluation: {{path: ev.npz}}}}\n{extra}\n"
    )
    return path


@pytest.mark.parametrize("named", [True, False])
def test_offered_variant_when_it_misses_a_limit_is_an_error_only_if_it_was_named(tmp_path, named):
    project = write_product(tmp_path, "limits: {min_sqnr_db: 100}")
    variants = ["cpu-int8-dynamic"] if named else []
    result = build(
        project=project, targets=["linux-x86-64"], variants=variants, out=tmp_path / "dist"
    )
    if not named:
        result.require_all()
        assert [v.id for v in result.bundles[0].bundle.manifest.variants] == ["cpu-fp32"]
        return
    with pytest.raises(LimitError, match=r"cpu-int8-dynamic: .* the limit is 100 dB"):
        result.require_all()


@pytest.mark.slow(reason="builds without a cache")
def test_variant_when_its_diagnosis_fails_is_shipped_and_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("edgepack.build.planning.LayerErrors", worker_tasks.RefusedDiagnosis)
    monkeypatch.setenv("PYTHONPATH", str(Path(worker_tasks.__file__).parent))
    project = tiny_models.write_project(tmp_path)
    result = build(
        project=project, targets=["host"], variants=["cpu-int8-static"], out=tmp_path / "dist"
    )
    result.require_all()
    (variant,) = result.bundles[0].bundle.manifest.variants
    assert variant.layers == NotMeasured(reason="no tensor can be looked at")
    print_build(result)
    told = capsys.readouterr().out
    assert "the errors of cpu-int8-static's nodes were not measured: no tensor can be" in told

"""What a build ends with: warnings, errors in their order, and diagnoses that decide nothing."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from edgepack.base.progress import Lines
from edgepack.base.schema import NotMeasured
from edgepack.builder.build import BuildResult, build
from edgepack.bundle.reading import load_bundle
from edgepack.bundle.unused import Unused
from edgepack.cli.building import print_build
from edgepack.cli.main import run
from edgepack.cli.printing import print_json
from edgepack.errors import BugError, LimitError, ModelError, ProfileError, StepError
from onnx import TensorProto, helper

from tests.support.doubles import worker_tasks
from tests.support.nets import tiny_models
from tests.support.slow_cases import slow_after

LOST = "top1 drops by 0.5000, the limit is 0.1"
DYNAMIC = Unused(variant="cpu-int8-dynamic", stage="missed", reason=LOST, hint="raise it")
RESULT = BuildResult((), {"pi": (DYNAMIC,)}, (), (), (), 0, 0)


@pytest.mark.slow(reason="builds without a cache")
@pytest.mark.parametrize(
    ("count", "equal", "warning"),
    [(1, False, "one sample shows little"), (9, True, "all 9 samples are equal")],
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


def test_build_when_its_onnxruntime_is_newer_than_the_pin_warns_once(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules["edgepack.builder.build"], "version", lambda _: "99.1.0")
    project = tiny_models.write_project(tmp_path)
    result = build(project=project, targets=["host"], variants=["cpu-fp32"], out=tmp_path / "dist")
    (told,) = [text for text in result.warnings if "99.1.0" in text]
    assert f"requires {result.bundles[0].bundle.manifest.runtime['onnxruntime'][2:]}" in told


def test_build_tells_what_it_tried_in_the_manifest_and_to_those_who_ask(tmp_path, capsys):
    limited = tiny_models.write_project(tmp_path, "limits: {metric_drop: 0.5}")
    result = build(project=limited, targets=["host"], out=tmp_path / "dist", progress=Lines())
    int8, fp32 = result.bundles[0].bundle.manifest.variants
    assert fp32.tried == []
    assert {each.stage for each in int8.tried} == {"activations", "model", "limit"}
    assert all(each.why for each in int8.tried)
    first = next(each for each in int8.tried if each.stage == "model")
    assert first.kept
    assert first.why == "what the search starts from, with weights rounded too"
    assert int8.tried[-1].why == "it meets the limit"
    told = capsys.readouterr()
    assert "build 1/" in told.err
    assert "nearest rounding" not in told.err
    print_build(result)
    brief = capsys.readouterr().out
    assert "--verbose shows what was tried for int8" in brief
    assert "it meets the limit" not in brief
    print_build(result, verbose=True)
    assert "it meets the limit" in capsys.readouterr().out


def test_table_of_a_build_names_its_columns_and_says_equal(tmp_path, capsys):
    project = tiny_models.write_project(tmp_path)
    build_result = build(project=project, targets=["host"], out=tmp_path / "dist")
    print_build(build_result)
    text = capsys.readouterr().out
    (row,) = [line for line in text.splitlines() if line.startswith("│ cpu-fp32")]
    cells = [cell.strip() for cell in row.split("│")[2:-1]]
    size, in_int8, top1, same, r2 = cells
    manifest = build_result.bundles[0].bundle.manifest
    accuracy = manifest.variants[-1].accuracy
    (model,) = (f.size_bytes for f in manifest.files if f.path == manifest.variants[-1].model)
    assert float(size) == pytest.approx(model / 1e6, abs=0.005)
    assert (in_int8, same, r2) == ("n/a", "100.0%", "1")
    assert float(top1) == pytest.approx(accuracy.value, abs=1e-4)
    assert f"top1 on {accuracy.samples} samples, on this computer's CPU" in text


def test_build_when_two_targets_share_samples_warns_once(tmp_path):
    project = tiny_models.write_project(tmp_path)
    np.savez(tmp_path / "cal.npz", image=tiny_models.images(1, seed=1))
    result = build(project=project, targets=["linux-x86-64", "android"], out=tmp_path / "dist")
    assert len(result.bundles) == 2
    assert sum("one sample shows little" in text for text in result.warnings) == 1


def test_result_when_variants_miss_limits_and_others_are_left_out_raises_the_limit():
    lost = "top1 drops by 0.2000, the limit is 0.1"
    missed = LimitError(lost, hint="raise it", where="pi cpu-int8-static")
    result = replace(RESULT, errors=(missed,))
    with pytest.raises(LimitError, match=r"pi cpu-int8-static: top1 drops by 0\.2000") as caught:
        result.require_all()
    assert caught.value.exit_code == 10


def test_result_when_a_target_has_no_bundle_names_target_variants_and_reasons():
    with pytest.raises(ModelError, match="no bundle was written for pi, because") as caught:
        RESULT.require_all()
    assert f"\n  pi cpu-int8-dynamic: {LOST}\n    hint: raise it" in caught.value.problem
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
    monkeypatch.setattr("edgepack.builder.planner.LayerErrors", worker_tasks.RefusedDiagnosis)
    monkeypatch.setenv("PYTHONPATH", str(Path(worker_tasks.__file__).parents[3]))
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


@pytest.mark.parametrize(
    ("quantizer", "bug"),
    slow_after(
        1,
        [
            (worker_tasks.TornQuantizer, "ZeroDivisionError: 7 channels by 0"),
            (worker_tasks.RefutedQuantizer, "BugError: node 'conv' has activations of 8 and of 16"),
        ],
        reason="starts workers anew",
    ),
)
def test_variant_when_making_it_meets_a_bug_is_lost_alone_and_the_bug_is_told(
    tmp_path, monkeypatch, capsys, quantizer, bug
):
    monkeypatch.setattr("edgepack.steps.recipes.int8_static.Int8Static", quantizer)
    monkeypatch.setenv("PYTHONPATH", str(Path(worker_tasks.__file__).parents[3]))
    project = tiny_models.write_project(tmp_path)
    out = tmp_path / "dist"
    code = run(["build", "--project", str(project), "--target", "host", "--out", str(out)])
    said = capsys.readouterr().err
    assert code == BugError.exit_code
    assert "BUG in edgepack" in said
    assert "Traceback (most recent call last)" in said
    assert bug in said
    assert "please report it" in said
    (folder,) = (path for path in out.iterdir() if path.is_dir())
    (variant,) = load_bundle(folder).manifest.variants
    assert variant.id == "cpu-fp32"


@pytest.mark.slow(reason="takes seconds")
@pytest.mark.parametrize(("asked", "code"), [([], 0), (["--variant", "cpu-int8-static"], 10)])
def test_variant_when_it_is_no_better_than_a_constant_is_not_shipped(
    tmp_path, monkeypatch, capsys, asked, code
):
    monkeypatch.setattr(
        "edgepack.steps.recipes.int8_static.Int8Static", worker_tasks.ConstantQuantizer
    )
    monkeypatch.setenv("PYTHONPATH", str(Path(worker_tasks.__file__).parents[3]))
    project = tiny_models.write_project(tmp_path)
    out = tmp_path / "dist"
    asked = ["--target", "host", "--out", str(out), *asked]
    assert run(["build", "--project", str(project), *asked]) == code
    said = "".join(capsys.readouterr())
    assert re.search(r"it is no better than a constant: of '\w+', .* 24 samples", said)
    shipped = [
        variant.id for folder in out.glob("*/") for variant in load_bundle(folder).manifest.variants
    ]
    assert shipped == ([] if asked[4:] else ["cpu-fp32"])


def write_unquantizable(folder: Path, targets: str) -> Path:
    """A project with samples, of a model that has nothing to quantize."""
    value = (TensorProto.FLOAT, [1, 8])
    nodes = [helper.make_node("Relu", ["x"], ["y"], "relu")]
    tiny_models.save(folder / "net.onnx", nodes, [("x", *value)], [("y", *value)])
    np.savez(folder / "cal.npz", x=np.eye(8, dtype=np.float32))
    path = folder / "edgepack.yaml"
    path.write_text(
        "schema_version: 1\nname: net\nversion: 1.0.0\nmodel: net.onnx\n"
        f"samples: {{calibration: {{path: cal.npz}}}}\ntargets: [{targets}]\n"
    )
    return path


OWN_ORDER = "{id: linux-x86-64, variants: [{backend: cpu, recipe: int8-static}, {backend: cpu, recipe: fp32}]}"  # noqa: E501


@pytest.mark.parametrize(
    ("targets", "variants", "named"),
    [
        ("linux-x86-64", [], False),
        ("linux-x86-64", ["cpu-int8-static", "cpu-fp32"], True),
        (OWN_ORDER, [], True),
    ],
)
def test_int8_that_cannot_be_made_is_an_error_only_where_it_was_asked_for(
    tmp_path, targets, variants, named
):
    project = write_unquantizable(tmp_path, targets)
    result = build(project=project, variants=variants, out=tmp_path / "dist")
    manifest = result.bundles[0].bundle.manifest
    assert [v.id for v in manifest.variants] == ["cpu-fp32"]
    if named:
        with pytest.raises(StepError, match="nothing in the model could be quantized"):
            result.require_all()
        return
    result.require_all()
    (left,) = manifest.unused
    assert (left.variant, left.stage) == ("cpu-int8-static", "failed")
    assert "nothing in the model could be quantized" in left.reason


def test_int8_that_the_project_names_without_samples_is_refused(tmp_path):
    project = write_unquantizable(tmp_path, OWN_ORDER)
    project.write_text(project.read_text().replace("samples:", "# samples:"))
    with pytest.raises(ProfileError, match="'cpu-int8-static' cannot be built: it needs") as caught:
        build(project=project, out=tmp_path / "dist")
    assert caught.value.where.startswith(f"{project}:6:")
    assert "samples: {calibration: {path: samples.npz}}" in caught.value.hint
    assert not (tmp_path / "dist").exists()


def test_model_alone_is_told_that_its_samples_were_random_and_how_to_give_real_ones(tmp_path):
    model = tiny_models.conv_net(tmp_path / "my net.onnx")
    result = build(model, targets=["host"], out=tmp_path / "dist")
    (warning,) = result.warnings
    assert "everything was proven on random inputs" in warning
    init = f"edgepack init '{model}' --images photos/"
    assert init in warning
    assert init in result.bundles[0].bundle.manifest.unused[0].hint


def test_project_with_samples_is_not_told_that_there_are_none(tmp_path):
    project = write_unquantizable(tmp_path, "linux-x86-64")
    result = build(project=project, variants=["cpu-fp32"], out=tmp_path / "dist")
    assert not [text for text in result.warnings if "random" in text]


def test_bundle_without_evaluation_samples_has_fp32_first(tmp_path):
    project = tiny_models.write_project(tmp_path)
    text = project.read_text()
    project.write_text("\n".join(line for line in text.splitlines() if "evaluation" not in line))
    (made,) = build(project=project, targets=["host"], out=tmp_path / "dist").bundles
    assert [v.id for v in made.bundle.manifest.variants] == ["cpu-fp32", "cpu-int8-static"]


def test_build_when_a_model_is_too_large_ships_those_that_are_not(tmp_path):
    # fp32 has 2.2 kB; int8 with its scales has 3.9.
    limited = tiny_models.write_project(tmp_path, "limits: {size_mb: 0.003}")
    result = build(project=limited, targets=["host"], out=tmp_path / "dist")
    (bundle,) = result.bundles
    assert [v.id for v in bundle.bundle.manifest.variants] == ["cpu-fp32"]
    assert result.errors == ()
    (missed,) = [each for each in bundle.bundle.manifest.unused if each.stage == "missed"]
    assert re.fullmatch(r"its model has 0.003\d+ MB, the limit is 0.003 MB", missed.reason)
    assert missed.hint.startswith("cpu-fp32 met all limits; or ")


def test_build_when_every_model_is_too_large_ends_with_the_size_of_each(tmp_path):
    keys = "targets: [{id: host, limits: {size_mb: 0.0001}}]"
    result = build(project=tiny_models.write_project(tmp_path, keys), out=tmp_path / "dist")
    assert result.bundles == ()
    assert [type(error) for error in result.errors] == [LimitError, LimitError]
    assert all("the limit is 0.0001 MB" in error.problem for error in result.errors)

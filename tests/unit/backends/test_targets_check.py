"""Profiles that a backend would not run as they say are refused, with the place and the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest
from edgepack.backends.targets import check_target, load_target, read_project_targets
from edgepack.base.resources import find_targets_dir
from edgepack.builder.build import dry_run
from edgepack.cli.main import run
from edgepack.errors import ProfileError
from edgepack.project.loading import read_project
from edgepack.project.profile import OrtFormat, find_target_files

from tests.support.nets import tiny_models

SYMMETRIC = "{activations: int8, weights: int8, symmetric: true, per_channel: true}"
XNNPACK = "providers: [{name: XnnpackExecutionProvider}]"
SHIPPED = sorted(path.stem for path in find_targets_dir().glob("*.yaml"))


@pytest.mark.parametrize("target", SHIPPED)
def test_shipped_profile_when_checked_is_one_that_its_backends_take(target):
    assert load_target(target).variants


def own(tmp_path: Path, target: str, *changes: tuple[str, str]) -> Path:
    text = (find_targets_dir() / f"{target}.yaml").read_text()
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new, 1)
    path = tmp_path / f"{target}.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("target", "old", "new", "problem"),
    [
        ("jetson", "trt_fp16_enable", "trt_fp16_enabled", "trt_fp16_enable'?"),
        ("raspberry-pi", "backend: cpu", "backend: gpu", "there is no backend 'gpu'"),
        ("linux-x86-64", "id: cpu-fp32", "id: cpu-float", "call it cpu-fp32"),
        ("android-nnapi", "activations: uint8", "activations: int8", "uint8"),
        ("android-xnnpack", "activations: int8", "activations: uint8", "activations"),
        ("jetson", "symmetric: true", "symmetric: false", "symmetric"),
        ("linux-x86-64", "activations: uint8", "activations: int8", "slower than fp32"),
        ("ios", "MLComputeUnits: ALL", "MLComputeUnits: All", "ALL"),
        ("android-xnnpack", "session.intra_op.allow_spinning", "session.intra_op.spin", "session."),
        ("raspberry-pi", "recipe: fp32", "recipe: fp16", "cannot take the recipe 'fp16'"),
        ("intel", "name: OpenVINOExecutionProvider", "name: CUDAExecutionProvider", "does not go"),
        ("intel", "{cache}", "{cahce}", "fills in {cache} alone"),
        ("intel", "==1.24.1", "=>1.24.1", "says no versions of onnxruntime-openvino"),
        ("jetson", '">=3.10,<3.14"', '"3.10"', "says no Python versions"),
        ("linux-x86-64", "family: linux", "family: android", "family: linux"),
        ("android-nnapi", "platform: arm", "platform: amd64", "platform: arm"),
        ("intel", "{name: CPUExecutionProvider}", "{name: OpenVINOExecutionProvider}", "twice"),
        ("web", "activations: uint8", "activations: int8", "the CPU of wasm32 runs int8"),
        ("web", "family: web", "family: android", "write family: web"),
        (
            "web",
            "recipe: fp32",
            "recipe: fp32\n    model_format: {ort: fixed, platform: arm}",
            "write model_format: onnx",
        ),
        ("web", "name: WebGpuExecutionProvider", "name: WebGPU", "does not go with"),
        (
            "linux-x86-64",
            "id: cpu-fp32\n    backend: cpu",
            "id: webgpu-fp32\n    backend: webgpu",
            "(web)",
        ),
    ],
)
def test_profile_when_its_backend_would_not_run_it_says_where_and_why(
    tmp_path, target, old, new, problem
):
    changes = [(old, new)]
    if new == "recipe: fp16":
        changes.append(("id: cpu-fp32", "id: cpu-fp16"))
    path = own(tmp_path, target, *changes)
    last = new.splitlines()[-1]
    line = next(n for n, text in enumerate(path.read_text().splitlines(), 1) if last in text)
    with pytest.raises(ProfileError) as caught:
        check_target(path)
    said = f"{caught.value}"
    assert problem in f"{said} {caught.value.hint}"
    assert f"{path}:{line}:" in said


def test_profile_when_its_pin_is_a_range_is_taken(tmp_path):
    runtime = "model_format: {ort: runtime, platform: amd64}"
    path = own(
        tmp_path, "linux-x86-64",
        ("==1.31.1", ">=1.30,<1.32"),
        ("recipe: fp32", f"recipe: fp32\n    {runtime}"),
    )  # fmt: skip
    assert check_target(path).find_variant("cpu-fp32").model_format != "onnx"
    path.write_text(path.read_text().replace(">=1.30", ">=1.29"))
    with pytest.raises(ProfileError, match="does not load"):
        check_target(path)


def test_command_when_one_of_several_profiles_is_wrong_checks_them_all(tmp_path, capsys):
    wrong = own(tmp_path, "ios", ("MLComputeUnits: ALL", "MLComputeUnits: All"))
    good, bad = own(tmp_path, "intel"), own(tmp_path, "android-nnapi", ("uint8", "int8"))
    assert run(["targets", "check", str(wrong), str(good), str(bad), str(tmp_path / "no")]) == 3
    said = capsys.readouterr()
    assert said.out == f"{good}: {check_target(good).title}: ok\n"
    errors = [line for line in said.err.splitlines() if line.startswith("error: ")]
    assert errors[0].startswith(f"error: {wrong}:")
    assert f"error: {bad}:" in said.err
    assert errors[-1] == f"error: there is no file {str(tmp_path / 'no')!r}"
    assert said.err.count("hint: ") == len(errors)


def test_profile_when_it_has_many_faults_names_all_in_order(tmp_path):
    path = own(
        tmp_path,
        "jetson",
        ("trt_fp16_enable", "trt_fp16"),
        ("symmetric: true", "symmetric: false"),
    )
    with pytest.raises(ProfileError) as caught:
        check_target(path)
    assert "trt_fp16" in str(caught.value)
    assert "symmetric" in caught.value.hint


def test_command_when_a_profile_is_wrong_exits_with_3(tmp_path, capsys):
    path = own(tmp_path, "ios", ("MLComputeUnits: ALL", "MLComputeUnits: All"))
    assert run(["targets", "check", str(path)]) == 3
    assert "MLComputeUnits" in capsys.readouterr().err
    assert run(["targets", "check", *map(str, find_target_files().values())]) == 0


def test_build_when_a_profile_is_wrong_is_refused_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "targets").mkdir()
    own(tmp_path / "targets", "ios", ("MLComputeUnits: ALL", "MLComputeUnits: All"))
    model = tiny_models.relu(tmp_path / "net.onnx")
    with pytest.raises(ProfileError, match="MLComputeUnits"):
        dry_run(model, targets=["ios"])


def profiles(tmp_path: Path, targets: str):
    return list(read_project_targets(read_project(tiny_models.write_project(tmp_path, targets))))


def test_project_when_it_changes_a_targets_variants_gets_just_those(tmp_path):
    [intel] = profiles(
        tmp_path,
        "targets: [{id: intel, variants: [{backend: cpu, recipe: int8-dynamic},"
        " {backend: openvino, recipe: int8-static}]}]",
    )
    dynamic, static = intel.variants
    assert (dynamic.id, dynamic.dialect.weights) == ("cpu-int8-dynamic", "int8")
    assert dynamic.providers[0].name == "CPUExecutionProvider"
    assert static == load_target("intel").find_variant("openvino-cpu-int8-static")


def test_project_when_it_names_all_gets_every_target(tmp_path):
    assert [profile.id for profile in profiles(tmp_path, "targets: [all]")] == [
        *find_target_files()
    ]


def test_project_when_it_gives_all_of_a_variant_needs_nothing_of_the_profile(tmp_path):
    [pi] = profiles(
        tmp_path,
        "targets: [{id: raspberry-pi, variants: [{backend: xnnpack, recipe: fp32,"
        " providers: [{name: XnnpackExecutionProvider}, {name: CPUExecutionProvider}],"
        " placement: 0.5}]}]",
    )
    [variant] = pi.variants
    assert (variant.id, variant.placement) == ("xnnpack-fp32", 0.5)


@pytest.mark.parametrize(
    ("target", "given", "format_"),
    [
        ("linux-x86-64", "true", OrtFormat(ort="fixed", platform="amd64")),
        ("raspberry-pi", "true", OrtFormat(ort="fixed", platform="arm")),
        ("android-nnapi", "false", "onnx"),
    ],
)
def test_project_when_a_variant_is_optimized_gets_the_file_of_the_devices_processor(
    tmp_path, target, given, format_
):
    variant = f"{{backend: cpu, recipe: fp32, optimized: {given}}}"
    [profile] = profiles(tmp_path, f"targets: [{{id: {target}, variants: [{variant}]}}]")
    assert profile.variants[0].model_format == format_


@pytest.mark.parametrize(
    ("variant", "problem", "column"),
    [
        (
            "{backend: cpu, recipe: fp32, optimized: true, model_format: onnx}",
            "'optimized' and 'model_format' are both given",
            0,
        ),
        (
            f"{{backend: xnnpack, recipe: fp32, optimized: true, {XNNPACK}}}",
            "does not run files of format 'ort-fixed'",
            0,
        ),
        ("{backend: tensorrt, recipe: fp16}", "no variant with backend 'tensorrt'", 0),
        ("{backend: cpu, recipe: fp16}", "cannot take the recipe", "recipe"),
        (
            f"{{backend: cpu, recipe: int8-static, dialect: {SYMMETRIC}}}",
            "slower than fp32",
            "activations",
        ),
    ],
)
def test_project_when_a_change_does_not_fit_says_where(tmp_path, variant, problem, column):
    text = f"targets: [{{id: linux-x86-64, variants: [{variant}]}}]"
    with pytest.raises(ProfileError, match=problem) as caught:
        profiles(tmp_path, text)
    expected = text.index(variant if column == 0 else column) + 1
    assert caught.value.where.endswith(f":{expected}")
    assert caught.value.hint


def test_project_when_a_target_is_given_twice_is_refused_unless_it_is_the_same(tmp_path):
    change = "{id: linux-x86-64, variants: [{backend: cpu, recipe: fp32}]}"
    assert len(profiles(tmp_path, "targets: [linux-x86-64, linux-x86-64]")) == 2
    assert len(profiles(tmp_path, f"targets: [{change}, {change}]")) == 2
    text = f"targets: [linux-x86-64, {change}]"
    with pytest.raises(ProfileError, match="'linux-x86-64' is given twice") as caught:
        profiles(tmp_path, text)
    assert caught.value.where.endswith(f":{text.index('id: ') + 1}")


def test_profile_when_it_names_no_backend_says_where_and_what_is_near(tmp_path):
    path = own(
        tmp_path, "intel",
        ("backend: openvino", "backend: openvivo"), ("id: openvino", "id: openvivo"),
    )  # fmt: skip
    line, text = next(
        (number, text)
        for number, text in enumerate(path.read_text().splitlines(), 1)
        if "openvivo" in text and "backend" in text
    )
    with pytest.raises(ProfileError, match="there is no backend 'openvivo'") as caught:
        check_target(path)
    assert caught.value.where == f"{path}:{line}:{text.index('backend') + 1}"
    assert "did you mean 'openvino'" in caught.value.hint


def test_project_when_a_variant_of_its_own_names_no_backend_says_where_and_what_is_near(tmp_path):
    text = "targets: [{id: intel, variants: [{backend: openvivo, recipe: fp32}]}]"
    with pytest.raises(ProfileError, match="there is no backend 'openvivo'") as caught:
        profiles(tmp_path, text)
    assert caught.value.where.endswith(f":{text.index('backend') + 1}")
    assert "did you mean 'openvino'" in caught.value.hint

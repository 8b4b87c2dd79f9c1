from __future__ import annotations

import json
from pathlib import Path

import pytest
from edgepack.backends.registry import BACKENDS
from edgepack.base.progress import Lines
from edgepack.base.resources import find_targets_dir
from edgepack.builder.build import build, dry_run
from edgepack.cli.main import run
from edgepack.errors import ProfileError, UsageError
from edgepack.project.elsewhere import ELSEWHERE
from edgepack.project.profile import (
    Runtime,
    VariantChange,
    change_profile,
    find_own_profile,
    find_target_files,
    load_profile,
    read_profile,
)

from tests.support.nets import tiny_models

SHIPPED = sorted(path.stem for path in find_targets_dir().glob("*.yaml"))


@pytest.mark.parametrize("target", SHIPPED)
def test_shipped_profile_when_loaded_is_consistent_with_its_backends(target):
    profile = load_profile(target)
    for variant in profile.variants:
        backend = BACKENDS[variant.backend]
        assert variant.recipe in backend.recipes
        assert {provider.name for provider in variant.providers} <= backend.providers


@pytest.mark.parametrize("target", SHIPPED)
def test_shipped_profile_when_it_states_a_fact_has_its_source(target):
    profile = load_profile(target)
    sourced = {source.of for source in profile.sources}
    stated = [name for name in ("python", "min_version") if getattr(profile.device, name)]
    device = {f"device.{name}" for name in stated}
    assert device | {"runtime.max_ir", "runtime.max_opset"} <= sourced
    if profile.runtime.providers:
        assert "runtime.providers" in sourced
    for variant in profile.variants:
        assert variant.dialect is None or f"variants.{variant.id}.dialect" in sourced


def test_raspberry_pi_when_loaded_has_int8_before_fp32():
    ids = [variant.id for variant in load_profile("raspberry-pi").variants]
    assert ids == ["cpu-int8-static", "cpu-fp32"]


def test_unknown_target_when_loaded_offers_the_nearest():
    with pytest.raises(UsageError, match="did you mean 'raspberry-pi'"):
        load_profile("rasberry-pi")


@pytest.fixture
def own_targets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder ``targets`` here, with a profile that has a shipped one's name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "targets").mkdir()
    text = (find_targets_dir() / "linux-x86-64.yaml").read_text().replace("title: ", "title: My ")
    (tmp_path / "targets" / "linux-x86-64.yaml").write_text(text)
    return tmp_path / "targets"


def test_build_when_the_profile_is_not_a_shipped_one_says_which_file(own_targets, capsys):
    model = tiny_models.relu(own_targets.parent / "net.onnx")
    build(model, targets=["linux-x86-64", "linux-aarch64"], progress=Lines())
    notes = [line for line in capsys.readouterr().err.splitlines() if "profile" in line]
    file = Path("targets", "linux-x86-64.yaml")
    assert notes == [f"target linux-x86-64: its profile is {file}, not one that edgepack ships"]


def test_own_profile_file_when_here_is_the_shipped_folder_is_none(monkeypatch):
    monkeypatch.chdir(find_targets_dir().parent)
    assert find_own_profile("linux-x86-64") is None


def test_targets_when_listed_show_their_files(own_targets, capsys):
    assert run(["targets", "list"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert lines["linux-x86-64"].endswith(str(Path("targets", "linux-x86-64.yaml")))
    assert lines["raspberry-pi"].endswith(str(find_targets_dir() / "raspberry-pi.yaml"))


def test_targets_when_one_is_broken_are_listed_all_the_same(own_targets, capsys):
    text = (find_targets_dir() / "raspberry-pi.yaml").read_text()
    broken = text.replace("schema_version: 1", "schema_version: 2")
    (own_targets / "foo.yaml").write_text(broken)
    assert run(["targets", "list"]) == 3
    said = capsys.readouterr()
    assert "raspberry-pi" in said.out
    assert ": 'schema_version' cannot be 2" in said.out
    assert "hint: edgepack targets check targets/foo.yaml" in said.err
    assert run(["targets", "list", "--json"]) == 3
    rows = {row["id"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["foo"]["error"].startswith(str(Path("targets", "foo.yaml:")))
    assert rows["raspberry-pi"]["error"] == ""


def test_project_when_it_names_an_unknown_target_says_where(tmp_path):
    project = tiny_models.write_project(tmp_path, "targets: [host, rasberry-pi]", samples=False)
    with pytest.raises(ProfileError, match="did you mean 'raspberry-pi'") as caught:
        dry_run(project=project)
    line = project.read_text().splitlines().index("targets: [host, rasberry-pi]") + 1
    assert caught.value.where == f"{project}:{line}:17"


def test_own_targets_folder_when_present_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "targets").mkdir()
    text = (find_targets_dir() / "raspberry-pi.yaml").read_text().replace("title: ", "title: My ")
    (tmp_path / "targets" / "raspberry-pi.yaml").write_text(text)
    assert load_profile("raspberry-pi").title.startswith("My ")
    assert find_target_files()["raspberry-pi"].parent.name == "targets"


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("recipe: fp32", "recipe: fp23", r"'recipe' cannot be 'fp23'\n.*did you mean 'fp32'"),
        ("per_channel: true", "per_chanel: true", "unknown key 'per_chanel'"),
        ("id: cpu-fp32", "id: cpu-int8-static", "two variants are called 'cpu-int8-static'"),
        ("id: raspberry-pi", "id: pi", "is not the file's name"),
    ],
)
def test_profile_when_wrong_says_what_and_where(tmp_path, old, new, problem):
    text = (find_targets_dir() / "raspberry-pi.yaml").read_text().replace(old, new, 1)
    path = tmp_path / "raspberry-pi.yaml"
    path.write_text(text)
    with pytest.raises(ProfileError, match=problem) as caught:
        read_profile(path)
    assert f"{path}:" in str(caught.value)


@pytest.mark.parametrize(
    ("device", "problem"),
    [
        ("{os: browser, arch: wasm32, min_version: '1'}", "described by neither"),
        ("{os: browser, arch: wasm32, python: '>=3.11'}", "leave 'python' out"),
        ("{os: browser, arch: aarch64}", "browser is no aarch64"),
        ("{os: linux, arch: wasm32, python: '>=3.11'}", "linux is no wasm32"),
        ("{os: linux, arch: aarch64}", "described by 'python'"),
        ("{os: ios, arch: aarch64, python: '>=3.11'}", "described by 'min_version'"),
        ("{os: ios, arch: aarch64, min_version: '1', python: '>=3.11'}", "give just that"),
    ],
)
def test_device_when_described_by_what_such_have_not_says_by_what(tmp_path, device, problem):
    text = (find_targets_dir() / "web.yaml").read_text()
    path = tmp_path / "web.yaml"
    path.write_text(text.replace("{os: browser, arch: wasm32}", device))
    with pytest.raises(ProfileError) as caught:
        read_profile(path)
    assert problem in f"{caught.value}"


@pytest.mark.parametrize(
    ("packages", "pinned"),
    [
        ({"onnxruntime": "==1.31.1"}, ("onnxruntime", "1.31.1")),
        ({"numpy": ">=1.26", "onnxruntime-gpu": ">=1.24,<2"}, ("onnxruntime-gpu", "1.24")),
        ({"onnxruntime": "<1.10,>=1.9"}, ("onnxruntime", "1.9")),
        (
            {"onnxruntime-extensions": "==0.15.2", "onnxruntime": "==1.31.1"},
            ("onnxruntime", "1.31.1"),
        ),
        (
            {"onnxruntime-ep-openvino": "==0.1", "onnxruntime": "==1.31.1"},
            ("onnxruntime", "1.31.1"),
        ),
        (
            {"onnxruntime-plugin-of-tomorrow": "==0.1", "onnxruntime": "==1.31.1"},
            ("onnxruntime", "1.31.1"),
        ),
        (
            {"x:onnxruntime-android-qnn": "2.6.0", "y:onnxruntime-android": "1.29.0-rc.1"},
            ("y:onnxruntime-android", "1.29.0-rc.1"),
        ),
        ({"onnxruntime": ""}, None),
        ({"numpy": ">=1.26"}, None),
    ],
)
def test_onnxruntime_of_a_runtime_when_packages_go_into_it_is_the_package_itself(packages, pinned):
    assert Runtime(packages=packages, max_ir=13, max_opset=26).onnxruntime == pinned


@pytest.mark.parametrize(
    ("name", "exists", "use"),
    [
        ("directml", "Windows ML", "linux-x86-64"),
        ("WinML", "Windows ML", "models/cpu-fp32.onnx"),
        ("migraphx", "ROCm", "rocm.docs.amd.com"),
        ("vitisai", "Zynq and Versal", "linux-aarch64"),
        ("rk3588", "for the RK1808 alone", "RKNN-Toolkit2"),
        ("webgpu", "the target 'web'", "models/cpu-fp32.onnx"),
        ("wasm", "called 'web'", "--target web"),
    ],
)
def test_target_when_it_is_what_edgepack_has_none_for_says_what_exists(name, exists, use):
    with pytest.raises(UsageError) as caught:
        load_profile(name)
    assert caught.value.problem.startswith(f"there is no target '{name}': ")
    assert exists in caught.value.problem
    assert use in caught.value.hint


def test_elsewhere_has_no_name_of_a_target_and_none_twice():
    names = [name for each in ELSEWHERE for name in each.names]
    assert not set(names) & set(find_target_files())
    assert len(names) == len(set(names))
    assert all(each.source for each in ELSEWHERE)


@pytest.mark.parametrize(
    ("ask", "error"),
    [
        (lambda: load_profile("android").find_variant("nnapi-int8-static"), UsageError),
        (
            lambda: change_profile(
                load_profile("android"), [VariantChange(backend="nnapi", recipe="fp32")]
            ),
            ValueError,
        ),
    ],
    ids=["on the command line", "in a project"],
)
def test_variant_when_another_target_has_its_provider_is_answered_with_that(ask, error):
    with pytest.raises(error, match="'android' has no variant") as caught:
        ask()
    said = f"{caught.value} {getattr(caught.value, 'hint', '')}"
    assert "nnapi is the target 'android-nnapi': take that" in said

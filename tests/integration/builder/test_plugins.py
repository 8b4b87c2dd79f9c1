"""Execution providers that edgepack does not know, which a user's own profile names.

Qualcomm's plugin stands for one, under a name that edgepack does not know: it takes the name by
which it is registered. On x86-64 it computes in a simulator of the NPU, and its device is a CPU.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import json
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from edgepack.backends import qnn
from edgepack.backends.targets import check_target
from edgepack.builder.build import build
from edgepack.builder.inspect import inspect
from edgepack.devices.checking import check
from edgepack.devices.inventory import Device, LocalEntry
from edgepack.errors import ProfileError

from tests.support.nets import tiny_models
from tests.support.reports.tiny_bundle import change_manifest

PROFILE = """\
schema_version: 1
id: acme-board
title: A board with an accelerator that edgepack does not know
family: linux
device: {os: linux, arch: x86-64, python: ">=3.11"}
runtime:
  packages: {onnxruntime: "==1.31.1", numpy: ">=1.26", onnxruntime-qnn: "==2.7.0"}
  max_ir: 13
  max_opset: 26
variants:
  - id: plugin-acme-int8-static
    backend: plugin
    recipe: int8-static
    dialect: {activations: uint8, weights: uint8, symmetric: false, per_channel: false}
    providers:
      - name: AcmeExecutionProvider
        options: {backend_type: htp}
        plugin:
          package: onnxruntime-qnn
          library: onnxruntime_qnn/libonnxruntime_providers_qnn.so
          device: {type: CPU}
          ops: [Conv, Flatten, Gemm, GlobalAveragePool, QuantizeLinear, DequantizeLinear]
      - {name: CPUExecutionProvider}
    placement: 0.5
  - id: cpu-fp32
    backend: cpu
    recipe: fp32
    providers: [{name: CPUExecutionProvider}]
sources: []
"""
ANY = "{package: onnxruntime-qnn, library: a.so, ops: [Conv]}"
VARIANT = "plugin-acme-int8-static"
LOAD = """
import json, sys
import edgepack_loader as loader
model = loader.load()
nodes = loader.profile_nodes(model.bundle, model.entry, runs=1)
sys.stdout.write("\\n" + json.dumps({
    "variant": model.variant,
    "passed_over": dict(model.passed_over),
    "golden": model.golden_sqnr_db,
    "providers": sorted({node["provider"] for node in nodes}),
}) + "\\n")
"""


def write_profile(folder: Path, *changes: tuple[str, str]) -> Path:
    text = PROFILE
    for before, after in changes:
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    path = folder / "targets" / "acme-board.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ((', onnxruntime-qnn: "==2.7.0"', ""), "runtime.packages has no onnxruntime-qnn"),
        (("backend: cpu", "backend: plugin"), "nothing says where CPUExecutionProvider is from"),
        (
            (
                "fp32\n    providers: [{name: CPUExecutionProvider}]",
                f"fp32\n    providers: [{{name: CPUExecutionProvider, plugin: {ANY}}}]",
            ),
            "is not the first of backend plugin",
        ),
        (("onnxruntime_qnn/lib", "/usr/lib/lib"), "library"),
        (("onnxruntime_qnn/lib", "onnxruntime_qnn/../lib"), "library"),
        (("type: CPU", "type: TPU"), "'type' cannot be 'TPU'"),
    ],
)
def test_profile_with_a_plugin_that_no_loader_could_register_is_refused(tmp_path, change, why):
    path = write_profile(tmp_path, change)
    if "backend: plugin" in change[1]:
        path.write_text(path.read_text().replace("id: cpu-fp32", "id: plugin-fp32"))
    with pytest.raises(ProfileError) as caught:
        check_target(path)
    assert why in str(caught.value)
    assert str(path.name) in caught.value.where


def test_nodes_are_predicted_from_the_operators_that_the_profile_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_profile(tmp_path, ("Conv, Flatten, ", "Conv, "))
    project = tiny_models.write_project(tmp_path, "dims: {batch: 1}\ntargets: [acme-board]")
    [variant] = [v for v in inspect(project=project).variants if v.variant == VARIANT]
    assert variant.provider == "AcmeExecutionProvider"
    assert 0 < variant.taken < variant.nodes
    assert {finding.node for finding in variant.findings} == {"'flat' (Flatten)"}
    assert variant.findings[0].reason.startswith("Flatten is not among the operators")


def test_device_check_knows_the_package_of_a_plugin_whatever_its_name(tmp_path, monkeypatch):
    """pytest stands for the package: it is installed, and nothing in its name says onnxruntime."""
    monkeypatch.chdir(tmp_path)
    write_profile(
        tmp_path,
        ('onnxruntime-qnn: "==2.7.0"', 'pytest: ">=1"'),
        ("package: onnxruntime-qnn", "package: pytest"),
    )
    entry = LocalEntry(
        transport="local", target="acme-board", python=sys.executable, root=str(tmp_path / "root")
    )
    found = check(Device("here", entry))
    assert not [problem for problem in found.problems if "pytest" in problem]
    assert found.absent == ()
    write_profile(tmp_path, ("package: onnxruntime-qnn", "package: acme-ep"))
    text = (tmp_path / "targets/acme-board.yaml").read_text()
    (tmp_path / "targets/acme-board.yaml").write_text(text.replace("onnxruntime-qnn:", "acme-ep:"))
    found = check(Device("here", entry))
    assert [absent.provider for absent in found.absent] == ["AcmeExecutionProvider"]
    assert [problem for problem in found.problems if "no usable acme-ep" in problem]


def lacks_plugin():
    """Whether the plugin that stands for one is not here, or lacks the library that it needs."""
    try:
        ctypes.CDLL("libatomic.so.1")
        importlib.metadata.version("onnxruntime-qnn")
    except (OSError, importlib.metadata.PackageNotFoundError):
        return True
    return (platform.system(), platform.machine()) != qnn.BACKEND.simulated_on


needs_plugin = pytest.mark.skipif(lacks_plugin(), reason="Qualcomm's plugin is for Linux on x86-64")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("built")
    write_profile(folder)
    project = tiny_models.write_project(folder, "dims: {batch: 1}\ntargets: [acme-board]")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        [made] = build(project=project, out=folder / "dist").bundles
    return made.bundle


@pytest.fixture
def bundle(built, tmp_path):
    """A copy of the bundle, which a test may break."""
    return Path(shutil.copytree(built.path, tmp_path / "bundle"))


def load(bundle: Path):
    done = subprocess.run(
        [sys.executable, "-B", "-c", LOAD],
        cwd=bundle,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # The plugin prints, too, and at any time.
    [line] = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return json.loads(line)


def change_provider(bundle: Path, key: str, value) -> None:
    def change(manifest):
        provider = manifest["variants"][0]["providers"][0]
        (provider if key in provider else provider["plugin"])[key] = value

    change_manifest(bundle, change)


@needs_plugin
def test_loader_registers_the_plugin_and_computes_with_it(built, bundle):
    assert built.manifest.runtime["onnxruntime-qnn"] == "==2.7.0"
    assert "onnxruntime-qnn==2.7.0" in (bundle / "requirements.txt").read_text()
    found = load(bundle)
    assert (found["variant"], found["passed_over"]) == (VARIANT, {})
    assert found["golden"] >= built.manifest.variants[0].min_sqnr_db
    assert "AcmeExecutionProvider" in found["providers"]


@needs_plugin
@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("device", {"type": "NPU", "vendor": None}, "lists no NPU on this machine, only CPU of"),
        ("device", {"type": None, "vendor": "Acme"}, "lists no device of Acme on this machine"),
        ("package", "acme-ep", "acme-ep does not load: it is not installed"),
        ("library", "onnxruntime_qnn/libacme.so", "has no file onnxruntime_qnn/libacme.so"),
        ("library", "onnxruntime_qnn/__init__.py", "does not load"),
        ("options", {"backend_type": "cpu"}, "AcmeExecutionProvider"),
    ],
)
def test_loader_passes_over_a_plugin_that_it_cannot_use_and_says_why(bundle, key, value, why):
    change_provider(bundle, key, value)
    found = load(bundle)
    assert found["variant"] == "cpu-fp32"
    assert why in found["passed_over"][VARIANT]

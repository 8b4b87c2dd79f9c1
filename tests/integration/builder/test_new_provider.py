"""An execution provider that edgepack does not have, added as the table of what touches what says.

onnxruntime here has no such provider either: its variants are built and their placement predicted,
and the loader passes them over.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import edgepack
import pytest
from edgepack.base.resources import find_data_root

from tests.support.nets import tiny_models

ROOT = Path(__file__).resolve().parents[3]
MODULE = '''"""A made-up accelerator: products alone, in float16 or float32, of known shape."""

from __future__ import annotations

from edgepack.backends.base import Backend, Misfit, Refusal
from edgepack.model.graph import Graph
from edgepack.project.profile import DeviceKind, Variant


def find_misfits(variant: Variant, device: DeviceKind) -> list[Misfit]:
    """Refuse macOS."""
    if device.os != "macos":
        return []
    return [Misfit(("backend",), "Abacus has no driver for macOS", "use the CPU there")]


def find_refusals(graph: Graph, variant: Variant) -> dict[int, Refusal]:
    """Return all but products."""
    del variant
    products = ("Conv", "Gemm", "MatMul")
    return {
        node.index: Refusal(f"Abacus has no {node.op}", "leave it to the CPU")
        for node in graph.nodes
        if node.op not in products
    }


BACKEND = Backend(
    name="abacus",
    provider="AbacusExecutionProvider",
    recipes=frozenset({"fp32", "fp16"}),
    misfits=find_misfits,
    refusals=find_refusals,
    static_shapes=True,
    rewrites=("flatten-to-reshape", "fold-batch-norm"),
    float32_ops=frozenset({"Gemm"}),
)
'''
PROFILE = """\
schema_version: 1
id: abacus-board
title: A board with an Abacus
family: linux
device: {os: linux, arch: x86-64, python: ">=3.11"}
runtime:
  packages: {onnxruntime: "==1.31.1", numpy: ">=1.26"}
  max_ir: 13
  max_opset: 26
  providers:
    AbacusExecutionProvider: {about: The vendor of the Abacus has a wheel., commands: []}
variants:
  - id: abacus-fp16
    backend: abacus
    recipe: fp16
    providers: [{name: AbacusExecutionProvider}, {name: CPUExecutionProvider}]
    placement: 0.3
  - id: cpu-fp32
    backend: cpu
    recipe: fp32
    providers: [{name: CPUExecutionProvider}]
sources: []
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    """A copy of edgepack with one file and one line more, and a profile beside a project."""
    root = tmp_path_factory.mktemp("checkout")
    package = root / "packager" / "edgepack"
    shutil.copytree(edgepack.__path__[0], package, ignore=shutil.ignore_patterns("__pycache__"))
    for folder in ("targets", "templates"):
        (root / folder).symlink_to(find_data_root() / folder)
    (package / "backends" / "abacus.py").write_text(MODULE)
    registry = package / "backends" / "registry.py"
    text, count = re.subn(
        r"^from edgepack\.backends import \((?s:(.*))^\}",
        r'from edgepack.backends import (\n    abacus,\1    "abacus": abacus.BACKEND,\n}',
        registry.read_text(),
        flags=re.MULTILINE,
    )
    assert count == 1
    registry.write_text(text)
    (root / "project" / "targets").mkdir(parents=True)
    (root / "project" / "targets" / "abacus-board.yaml").write_text(PROFILE)
    tiny_models.write_project(root / "project", "targets: [abacus-board]\ndims: {batch: 1}")
    return root


def command(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PYTHONPATH": str(checkout / "packager"),
        "XDG_CACHE_HOME": str(checkout / "cache"),
    }
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=checkout / "project",
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_table_when_read_names_what_these_tests_add():
    pages = [(ROOT / name).read_text() for name in ("README.md", "CONTRIBUTING.md")]
    rows = re.findall(r"^\| an execution provider \| (.*) \|$", "\n".join(pages), re.MULTILINE)
    assert len(rows) == 1
    always, _, where_needed = rows[0].partition("; ")
    assert re.findall(r"`(.*?)`", always) == [
        "backends/<name>.py",
        "BACKEND",
        "BACKENDS",
        "backends/registry.py",
        "targets/<id>.yaml",
    ]
    assert "ondevice/runtime/edgepack_names.py" in where_needed


@pytest.mark.slow(reason="takes seconds")
def test_profile_of_a_new_provider_when_checked_is_held_against_its_facts(checkout):
    file = checkout / "project" / "targets" / "abacus-board.yaml"
    done = command(checkout, "-m", "edgepack", "targets", "check", str(file))
    assert (done.returncode, done.stderr) == (0, "")
    wrong = checkout / "abacus-board.yaml"
    wrong.write_text(PROFILE.replace("abacus-fp16", "abacus-int8-dynamic").replace(
        "recipe: fp16",
        "recipe: int8-dynamic\n    dialect:"
        " {activations: uint8, weights: int8, symmetric: false, per_channel: true}",
    ))  # fmt: skip
    done = command(checkout, "-m", "edgepack", "targets", "check", str(wrong))
    assert done.returncode == 3
    assert "the backend 'abacus' cannot take the recipe 'int8-dynamic'" in done.stderr
    assert "it takes fp16, fp32" in done.stderr


@pytest.mark.slow(reason="takes seconds")
def test_model_when_inspected_for_a_new_provider_is_judged_by_its_rules(checkout):
    done = command(checkout, "-m", "edgepack", "inspect", "--json")
    assert done.returncode == 0, done.stderr
    variants = {each["variant"]: each for each in json.loads(done.stdout)["variants"]}
    found = variants["abacus-fp16"]
    assert found["provider"] == "AbacusExecutionProvider"
    assert found["unused"] is None
    assert 0 < found["taken"] < found["nodes"]
    assert "Abacus has no Relu" in {finding["reason"] for finding in found["findings"]}


@pytest.mark.slow(reason="takes seconds")
def test_bundle_when_built_for_a_new_provider_ships_it_and_runs_without_it(checkout):
    done = command(checkout, "-m", "edgepack", "build", "--out", str(checkout / "dist"))
    assert done.returncode == 0, done.stderr
    bundle = checkout / "dist" / "net-1.2.3-abacus-board"
    manifest = json.loads((bundle / "manifest.json").read_text())
    assert [v["id"] for v in manifest["variants"]] == ["abacus-fp16", "cpu-fp32"]
    first = manifest["variants"][0]
    assert first["providers"][0]["name"] == "AbacusExecutionProvider"
    assert first["predicted"]["share"] > 0.3
    told = "import json, edgepack_loader; m = edgepack_loader.load();"
    told += " print(json.dumps([m.entry['id'], m.passed_over]))"
    loaded = subprocess.run(
        [sys.executable, "-c", told], cwd=bundle, capture_output=True, text=True, check=True
    )
    used, passed_over = json.loads(loaded.stdout)
    assert used == "cpu-fp32"
    [[name, reason]] = passed_over
    assert name == "abacus-fp16"
    assert reason.startswith("AbacusExecutionProvider is not in this onnxruntime")
    assert reason.endswith("The vendor of the Abacus has a wheel.")

"""The layers of CONTRIBUTING.md, held by the imports themselves."""

from __future__ import annotations

import ast
from pathlib import Path

import edgepack
import pytest

PACKAGE = Path(edgepack.__file__).parent
LAYERS = [
    {"errors", "base", "ondevice", "__init__"},
    {"model", "bundle", "project", "samples", "apps", "backends"},
    {"metrics", "preprocessing"},
    {"quantization", "steps"},
    {"records", "devices", "deploy", "measure", "results", "builder", "trying"},
    {"demo", "api"},
    {"cli", "__main__"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
MODULES = sorted(PACKAGE.rglob("*.py"))


def unit_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_units(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("edgepack."):
            found.add(node.module.split(".")[1])
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.startswith("edgepack.")]
            found |= {name.split(".")[1] for name in names}
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda p: p.relative_to(PACKAGE).as_posix())
def test_module_when_it_imports_stays_on_its_layer_or_below(path):
    own = unit_of(path)
    above = {unit for unit in imported_units(path) if LEVEL[unit] > LEVEL[own]}
    assert not above, f"{own} imports {above} from a layer above"


def test_library_when_searched_prints_nothing_itself():
    for path in MODULES:
        if unit_of(path) in ("cli", "ondevice") or path.name == "progress.py":
            continue
        calls = [n.func for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)]
        names = {call.id for call in calls if isinstance(call, ast.Name)}
        assert not names & {"print", "input", "exit"}, path


def test_pure_modules_when_searched_open_no_files():
    for name in ("builder/plan", "base/statistics", "metrics/accuracy"):
        tree = ast.parse((PACKAGE / f"{name}.py").read_text(encoding="utf-8"))
        calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
        methods = {call.attr for call in calls if isinstance(call, ast.Attribute)}
        functions = {call.id for call in calls if isinstance(call, ast.Name)}
        assert not methods & {"read_text", "read_bytes", "write_text", "write_bytes", "unlink"}
        assert "open" not in functions | methods

"""The rooms of CONTRIBUTING.md and who may use whom, held by the imports themselves."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import edgepack

PACKAGE = Path(edgepack.__file__).parent
MAY_USE = {
    "base": "",
    "ondevice": "",
    "model": "base",
    "converters": "base",
    "project": "base ondevice converters",
    "backends": "base ondevice model project",
    "bundle": "base project",
    "samples": "base ondevice model project",
    "apps": "base ondevice model project bundle",
    "metrics": "base ondevice project samples",
    "records": "base ondevice project backends bundle",
    "devices": "base project backends records",
    "preprocessing": "base ondevice project metrics",
    "quantization": "base model project samples metrics",
    "native": "base ondevice project bundle records devices",
    "deploy": "base ondevice project bundle records devices native",
    "registry": "base ondevice project bundle devices deploy",
    "jobs": "base bundle deploy",
    "results": "base bundle records quantization",
    "steps": (
        "base converters ondevice model project backends bundle samples metrics preprocessing "
        "quantization"
    ),
    "builder": (
        "base converters ondevice model project backends bundle samples apps metrics records "
        "preprocessing quantization steps"
    ),
    "trying": "base ondevice model project bundle samples metrics results",
    "serving": "ondevice",
    "fleets": "base model project bundle registry",
    "measure": (
        "base ondevice model project backends bundle samples metrics records devices "
        "native deploy steps builder"
    ),
    "demo": "base project bundle records devices deploy results builder measure",
    "api": (
        "base ondevice converters model project backends bundle metrics records devices deploy "
        "registry jobs results builder trying serving fleets measure demo"
    ),
    "cli": "base api",
    "__main__": "cli",
}
"""Each room, and those that it may import from; ``errors`` is everybody's. A room stands below
those that it uses, so there is no cycle."""
MODULES = sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(("edgepack", *parts)).removesuffix(".__init__")


NAMES = {name_of(path): path for path in MODULES}


@functools.cache
def read_nodes(path: Path) -> list[ast.AST]:
    """Return a module's imports and calls, within functions too."""
    kinds = (ast.Import, ast.ImportFrom, ast.Call)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [node for node in ast.walk(tree) if isinstance(node, kinds)]


def list_called(path: Path) -> list[ast.expr]:
    return [node.func for node in read_nodes(path) if isinstance(node, ast.Call)]


def imports(path: Path) -> Iterator[tuple[str, str]]:
    """Yield modules of edgepack that are imported, and what of them."""
    for node in read_nodes(path):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield (whole, "") if whole in NAMES else (node.module or "", alias.name)


@functools.cache
def uses(path: Path) -> frozenset[tuple[str, str]]:
    found = imports(path)
    return frozenset((module, name) for module, name in found if module.split(".")[0] == "edgepack")


def room_of(module: str) -> str:
    return [*module.split("."), ""][1]


def test_module_when_it_imports_uses_rooms_that_its_own_may_use():
    for name, path in NAMES.items():
        own = room_of(name)
        used = {room_of(module) for module, _ in uses(path)} - {own, "errors", ""}
        refused = used - set(MAY_USE.get(own, "").split())
        assert not refused, f"{name} may not import from {refused}: see MAY_USE in {__file__}"


def test_rooms_when_they_use_others_stand_above_them():
    rooms = list(MAY_USE)
    for number, room in enumerate(rooms):
        assert set(MAY_USE[room].split()) <= set(rooms[:number]), room
    assert {room_of(name) for name in NAMES} - {"", "errors"} == set(rooms)


def test_table_when_a_room_stops_using_another_loses_it():
    used = {(room_of(name), room_of(m)) for name, path in NAMES.items() for m, _ in uses(path)}
    allowed = {(room, other) for room, others in MAY_USE.items() for other in others.split()}
    assert allowed <= used, f"no longer used: {allowed - used}"


def test_modules_when_they_import_each_other_form_no_cycle():
    left = {name: {module for module, _ in uses(path)} - {name} for name, path in NAMES.items()}
    while free := [name for name, used in left.items() if not used & left.keys()]:
        for name in free:
            del left[name]
    assert not left, f"in a cycle, or above one: {sorted(left)}"


def test_module_when_it_imports_takes_no_private_names():
    for path in MODULES:
        private = {(m, n) for m, n in uses(path) if n.startswith("_") and not n.startswith("__")}
        assert not private, path


def test_library_when_searched_prints_nothing_itself():
    for path in MODULES:
        if room_of(name_of(path)) in ("cli", "ondevice") or path.name == "progress.py":
            continue
        names = {call.id for call in list_called(path) if isinstance(call, ast.Name)}
        assert not names & {"print", "input", "exit"}, path


def test_pure_modules_when_searched_open_no_files():
    for name in ("builder/plan", "base/statistics", "metrics/accuracy"):
        calls = list_called(PACKAGE / f"{name}.py")
        methods = {call.attr for call in calls if isinstance(call, ast.Attribute)}
        functions = {call.id for call in calls if isinstance(call, ast.Name)}
        assert not methods & {"read_text", "read_bytes", "write_text", "write_bytes", "unlink"}
        assert "open" not in functions | methods

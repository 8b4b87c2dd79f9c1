"""The Python of docs/python.md and docs/api.md, run; and what importing edgepack costs."""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import json
import platform
import re
import subprocess
import sys
from pathlib import Path

import edgepack
import pytest
from edgepack import api
from edgepack.bundle.reading import load_bundle

from tests.docs import write_api
from tests.support.nets.tiny_models import conv_net
from tests.support.reports.tiny_bundle import write_tiny_bundle

PACKAGE = Path(edgepack.__file__).parent
PAGE = Path(__file__).resolve().parents[2] / "docs" / "python.md"


def write_devices(folder: Path, *names: str) -> None:
    """Write an inventory of devices with the tag lab, which are folders of this machine."""
    entry = {"transport": "local", "target": "linux-x86-64", "python": sys.executable}
    devices = {n: {**entry, "tags": ["lab"], "root": str(folder / n)} for n in names}
    (folder / "devices.yaml").write_text(json.dumps({"schema_version": 1, "devices": devices}))


@pytest.mark.slow(reason="takes seconds")
def test_pages_script_of_a_farm_when_run_pushes_verifies_leases_and_audits(
    tmp_path, monkeypatch, capsys
):
    text = PAGE.read_text(encoding="utf-8")
    (example,) = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    bundle = write_tiny_bundle(tmp_path / "dist" / "tiny-1.0.0-linux-x86-64")
    write_devices(tmp_path, "a", "b")
    monkeypatch.chdir(tmp_path)
    exec(compile(example, str(PAGE), "exec"), {})
    digest = load_bundle(bundle).digest
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [f"{name} done {digest[:16]} " for name in ("a", "b")]
    assert lines.count(platform.release()) == 2
    assert [line.split()[:2] for line in lines[-2:]] == [["a", digest], ["b", digest]]
    assert {(tmp_path / name / "tiny" / "current").resolve().name for name in ("a", "b")} == {
        digest[:16]
    }


def examples() -> list[str]:
    """Return the examples at the top of the page about ``edgepack.api``, in their order."""
    text = write_api.PAGE.read_text(encoding="utf-8")
    found = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [example for example in found if "def " not in example]


@pytest.mark.slow(reason="takes seconds")
def test_pages_example_when_run_builds_verifies_and_measures(tmp_path, monkeypatch, capsys):
    conv_net(tmp_path / "detector.onnx")
    monkeypatch.chdir(tmp_path)
    first = examples()[0].replace('"quick"', '"smoke"')
    exec(compile(first, "docs/api.md", "exec"), {})
    verified, measured = capsys.readouterr().out.splitlines()
    assert verified.endswith("files have their hashes")
    assert measured.split()[0] == "cpu-fp32"
    assert measured.split()[1] in ("valid", "invalid", "inconclusive")


@pytest.mark.slow(reason="takes seconds")
def test_pages_example_of_a_rollout_when_run_pushes_to_all(tmp_path, monkeypatch, capsys):
    bundle = write_tiny_bundle(tmp_path / "dist" / "tiny-1.0.0-linux-x86-64")
    write_devices(tmp_path, "a", "b")
    monkeypatch.chdir(tmp_path)
    exec(compile(examples()[1], "docs/api.md", "exec"), {"api": api, "Path": Path})
    assert capsys.readouterr().out == "Counter({'done': 2}) []\n"
    release = load_bundle(bundle).digest[:16]
    current = {(tmp_path / name / "tiny" / "current").resolve().name for name in ("a", "b")}
    assert current == {release}


def test_api_when_a_type_checker_reads_it_exports_each_name_once_under_itself():
    """A type checker takes an import for a public name only where it is written ``X as X``."""
    tree = ast.parse(inspect.getsource(api))
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    exported = [a.name for node in nodes for a in node.names if a.asname == a.name]
    starred: dict[str, object] = {}
    exec("from edgepack.api import *", starred)
    assert sorted(exported) == dir(api) == sorted(starred.keys() - {"__builtins__"})


def test_names_of_the_api_when_followed_are_defined_under_that_name_where_it_says():
    for name in dir(api):
        assert write_api.definition(name), name
        assert getattr(api, name) is getattr(importlib.import_module(api._read_homes()[name]), name)


def test_functions_of_the_api_when_read_are_documented_and_typed():
    for name in dir(api):
        node = write_api.definition(name)
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            assert ast.get_docstring(node), name
        if isinstance(node, ast.FunctionDef):
            assert node.returns, name


def names_in_signatures() -> set[str]:
    """Return the names that stand in the types of what functions of the API take and give."""
    nodes = [write_api.definition(name) for name in dir(api)]
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
    arguments = [a for node in functions for a in (*node.args.args, *node.args.kwonlyargs)]
    types = [*(a.annotation for a in arguments), *(node.returns for node in functions)]
    return {each.id for type_ in types for each in ast.walk(type_) if isinstance(each, ast.Name)}


def test_types_when_they_stand_in_signatures_are_in_the_api():
    of_python = {"Any", "Callable", "Iterable", "Iterator", "Mapping", "Path", "Sequence"}
    of_python |= {"datetime", *dir(builtins)}
    words = {"Format", "Tool", "Result"}  # of one of a few words each, or of any type
    assert names_in_signatures() - of_python - words - {"Table"} <= set(dir(api))


def test_name_when_the_api_has_it_not_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'deploy'"):
        _ = api.deploy  # type: ignore[attr-defined]


def test_push_when_searched_in_the_library_is_one_function():
    named = {
        f"{path.relative_to(PACKAGE).as_posix()}: {node.name}"
        for path in PACKAGE.rglob("*.py")
        if path.relative_to(PACKAGE).parts[0] not in ("cli", "ondevice")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name in ("push", "rollback", "deploy")
    }
    assert named == {"deploy/push.py: push", "deploy/push.py: rollback"}


def test_api_when_imported_imports_none_of_what_it_stands_for():
    script = (
        "import sys, edgepack.api; print([n for n in sys.modules if n.startswith('edgepack.')])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert done.stdout == b"['edgepack.api']\n"


def test_package_when_imported_imports_nothing_else_of_itself():
    script = "import sys, edgepack; print([n for n in sys.modules if n.startswith('edgepack.')])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert done.stdout == b"[]\n"

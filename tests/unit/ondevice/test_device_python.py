"""What runs on devices is Python 3.8 with nothing but numpy and onnxruntime."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest
from edgepack.base.resources import find_ondevice_dir

FILES = sorted(find_ondevice_dir().glob("*/edgepack_*.py"))
OWN = {path.stem for path in FILES}
OPTIONAL = {"edgepack_phases.py": {"PIL"}}
"""What a file does without where it is not there."""
SERVICE = {"PIL", "fastapi", "orjson", "prometheus_client", "starlette", "uvicorn"}
"""What requirements-serve.txt names."""
ALLOWED = {*sys.stdlib_module_names, "numpy", "onnxruntime", *OWN}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_device_file_parses_when_python_is_3_8(path: Path) -> None:
    ast.parse(path.read_text(), feature_version=(3, 8))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_device_file_imports_only_what_every_device_has(path: Path) -> None:
    imported = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level:
            # `from . import edgepack_x`, and `from .edgepack_x import name`.
            named = str(node.module or "").split(".")[-1]
            imported |= {named} if named in OWN else {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(str(node.module).partition(".")[0])
    more = SERVICE if path.parent.name == "service" else OPTIONAL.get(path.name, set())
    assert imported <= ALLOWED | more

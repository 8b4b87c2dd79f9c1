"""A converter whose script a test writes: it runs in a Python that finds it, like a framework."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import Any

from edgepack.converters.base import Converter
from edgepack.converters.running import Inside


def write_python(folder: Path, script: str) -> str:
    """Write a script, and a Python that has it among its packages; return the Python's path."""
    packages = folder / "packages"
    packages.mkdir(parents=True, exist_ok=True)
    (packages / "double.py").write_text(textwrap.dedent(script), encoding="utf-8")
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={packages} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return str(python)


def make_inside(folder: Path, script: str, **settings: Any) -> Inside:
    """Return a converter with a script of the test's, and a model file."""
    source = folder / "net.double"
    source.write_bytes(b"double")
    converter = Converter(
        name="double",
        words="Double",
        recognise=lambda path: path.suffix == ".double",
        script="double",
        packages=("double",),
        lock=None,
        tolerance=1e-3,
    )
    return Inside(converter, write_python(folder, script), source, {}, **settings)

"""The wheel holds what it should, and works away from the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel, built from the sdist as an installer would."""
    out = tmp_path_factory.mktemp("dist")
    done = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)],
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return next(out.glob("*.whl"))


@pytest.mark.slow(reason="builds a wheel")
def test_wheel_when_listed_holds_the_package_and_its_data(wheel):
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    sources = {
        path.relative_to(ROOT / "packager").as_posix()
        for path in (ROOT / "packager" / "edgepack").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    data = {
        f"edgepack/_data/{path.relative_to(ROOT).as_posix()}"
        for folder in ("targets", "templates", "examples/digits")
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert names == sources | data


@pytest.mark.slow(reason="builds and installs a wheel")
def test_wheel_when_installed_elsewhere_finds_its_targets(wheel, tmp_path):
    place = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"]
    subprocess.run([*pip, "--target", str(place), str(wheel)], check=True)
    script = (
        "import edgepack, sys; from edgepack.cli.main import run;"
        "print(edgepack.__file__); sys.exit(run(['targets', 'show', 'raspberry-pi']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(place)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == str(place / "edgepack" / "__init__.py")
    assert f"# {place / 'edgepack' / '_data' / 'targets' / 'raspberry-pi.yaml'}" in done.stdout

"""The wheel works away from the checkout; ``make dist`` holds its contents to the commit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import edgepack
import pytest
from edgepack.base.revision import read_revision

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


@pytest.mark.slow(reason="builds and installs a wheel")
def test_wheel_when_installed_elsewhere_finds_its_targets_and_commit(wheel, tmp_path):
    place = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"]
    subprocess.run([*pip, "--target", str(place), str(wheel)], check=True)
    script = (
        "import edgepack, sys; from edgepack.cli.main import run; print(edgepack.__file__);"
        "run(['--version']); sys.exit(run(['targets', 'show', 'raspberry-pi']))"
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
    where, version = done.stdout.splitlines()[:2]
    assert where == str(place / "edgepack" / "__init__.py")
    commit = read_revision(ROOT).commit
    assert version.startswith(f"edgepack {edgepack.__version__} (commit {commit[:7]}, 20")
    assert f"# {place / 'edgepack' / '_data' / 'targets' / 'raspberry-pi.yaml'}" in done.stdout

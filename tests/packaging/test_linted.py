"""What ``make lint`` reads: every tracked Python file, by ruff and by mypy."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from mypy.main import process_options

from tests.packaging.check_types import ROOT, checked, tracked

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="there is no git")


def read_by_ruff(*options: str) -> set[str]:
    """The Python files that ruff names as those it would check."""
    argv = [sys.executable, "-m", "ruff", "check", "--show-files", *options, "."]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True)
    paths = {Path(line).relative_to(ROOT).as_posix() for line in done.stdout.splitlines()}
    return {path for path in paths if path.endswith(".py")}


def read_by_mypy(*options: str) -> set[str]:
    """The package's files, as mypy finds them by itself, and those of check_types.py."""
    sources, _ = process_options(list(options))
    found = {Path(str(source.path)).as_posix() for source in sources}
    return found | set(checked())


def test_ruff_when_asked_what_it_reads_names_every_tracked_python_file():
    assert set(tracked("*.py")) - read_by_ruff() == set()


@pytest.mark.parametrize("folder", ["base", "builder", "packager/edgepack/builder"])
def test_ruff_when_a_folder_is_excluded_is_seen_to_leave_it_out(folder):
    assert set(tracked("*.py")) - read_by_ruff("--config", f'exclude = ["{folder}"]')


def test_mypy_when_asked_what_it_reads_names_every_tracked_python_file(monkeypatch):
    monkeypatch.chdir(ROOT)
    assert set(tracked("*.py")) - read_by_mypy() == set()


def test_mypy_when_a_folder_is_excluded_is_seen_to_leave_it_out(monkeypatch):
    monkeypatch.chdir(ROOT)
    assert set(tracked("*.py")) - read_by_mypy("--exclude", "packager/edgepack/builder/")

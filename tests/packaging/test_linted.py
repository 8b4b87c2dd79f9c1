"""What ``make lint`` reads: every tracked file of a language that it has a tool for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def tracked(*patterns: str) -> set[str]:
    """The paths below the root that git tracks, as far as they still are there."""
    done = subprocess.run(
        ["git", "ls-files", "-z", "--", *patterns], cwd=ROOT, capture_output=True, check=True
    )
    return {name for name in done.stdout.decode().split("\0")[:-1] if (ROOT / name).is_file()}


def read_by_ruff(*options: str) -> set[str]:
    """The Python files that ruff names as those it would check."""
    argv = [sys.executable, "-m", "ruff", "check", "--show-files", *options, "."]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True)
    paths = {Path(line).relative_to(ROOT).as_posix() for line in done.stdout.splitlines()}
    return {path for path in paths if path.endswith(".py")}


def test_ruff_when_asked_what_it_reads_names_every_tracked_python_file():
    assert tracked("*.py") - read_by_ruff() == set()


@pytest.mark.parametrize("folder", ["build", "builder", "packager/edgepack/builder"])
def test_ruff_when_a_folder_is_excluded_is_seen_to_leave_it_out(folder):
    assert tracked("*.py") - read_by_ruff("--config", f'exclude = ["{folder}"]')

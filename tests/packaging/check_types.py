"""``make lint``: mypy reads every tracked Python file that is not the package's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path("packager")


def main() -> int:
    argv = [sys.executable, "-m", "mypy", "--config-file", "tests/mypy.ini", *checked()]
    return subprocess.run(argv, cwd=ROOT, check=False).returncode


def checked() -> list[str]:
    """Return the tracked Python files that are not the package's."""
    return [name for name in tracked("*.py") if PACKAGE not in Path(name).parents]


def tracked(*patterns: str) -> list[str]:
    """Return the paths below the root that git tracks, as far as they still are there."""
    done = subprocess.run(
        ["git", "ls-files", "-z", "--", *patterns], cwd=ROOT, capture_output=True, check=True
    )
    return [name for name in done.stdout.decode().split("\0")[:-1] if (ROOT / name).is_file()]


if __name__ == "__main__":
    sys.exit(main())

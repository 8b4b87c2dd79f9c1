"""``make lint``: mypy reads every tracked Python file that is not the package's.

mypy knows a module by its name, and programs have modules of the same names (``run.py``): it runs
once for each folder that has no tests, and once for all the rest.
"""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path("packager")


def main() -> int:
    argv = [sys.executable, "-m", "mypy", "--config-file", "tests/mypy.ini"]
    codes = [
        subprocess.run([*argv, *map(str, group)], cwd=ROOT, check=False).returncode
        for group in groups(map(Path, tracked("*.py")))
    ]
    return max(codes)


def tracked(*patterns: str) -> list[str]:
    """Return the paths below the root that git tracks, as far as they still are there."""
    done = subprocess.run(
        ["git", "ls-files", "-z", "--", *patterns], cwd=ROOT, capture_output=True, check=True
    )
    return [name for name in done.stdout.decode().split("\0")[:-1] if (ROOT / name).is_file()]


def groups(files: Iterable[Path]) -> list[list[Path]]:
    """Return the files that are not the package's, those of one run of mypy together."""
    theirs = [file for file in files if PACKAGE not in file.parents]
    tested = {file.parent for file in theirs if file.name.startswith("test_")}
    found: defaultdict[Path, list[Path]] = defaultdict(list)
    for file in theirs:
        alone = Path("tests") in file.parents and file.parent not in tested
        found[file.parent if alone else ROOT].append(file)
    return list(found.values())


if __name__ == "__main__":
    sys.exit(main())

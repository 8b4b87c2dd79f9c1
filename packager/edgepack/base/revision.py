"""Finds the commit that edgepack was made from.

A wheel and an sdist carry ``commit.txt``, which their build wrote (``hatch_build.py``). A checkout
has ``.git``, which is read here as gitrepository-layout(5) describes it: git may be missing, and
refuses the checkouts of other users.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from edgepack import __version__
from edgepack.base.resources import find_data_root
from edgepack.errors import ToolError

_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


@dataclass(frozen=True)
class Revision:
    """A commit: its whole hexadecimal name, and its day in UTC where a build noted it."""

    commit: str
    date: str | None = None

    def __str__(self) -> str:
        return f"commit {self.commit[:7]}" + (f", {self.date}" if self.date else "")


def format_version() -> str:
    """Return the version, and the commit if known: ``0.1.0 (commit 1a2b3c4, 2026-11-23)``.

    For a checkout there is no day, and the commit is its newest one even if files have changed
    since.
    """
    try:
        known = read_revision(find_data_root())
    except (ToolError, OSError, ValueError):
        known = None  # a damaged installation reports its version and its bugs, too
    return f"{__version__} ({known})" if known else __version__


def read_revision(root: Path) -> Revision | None:
    """Return the commit from which a checkout, an sdist or an installation's data was made.

    Raises:
        OSError: A file of it cannot be read.
        ValueError: A file of it is damaged.
    """
    noted = root / "commit.txt"
    if noted.is_file():
        return Revision(*noted.read_text(encoding="ascii").split())
    git = root / ".git"
    if git.is_file():  # a worktree or a submodule
        git = root / git.read_text(encoding="utf-8").removeprefix("gitdir:").strip()
    if not git.is_dir():
        return None
    shared = git / "commondir"
    common = git / shared.read_text(encoding="utf-8").strip() if shared.is_file() else git
    commit = _resolve((git / "HEAD").read_text(encoding="utf-8"), git, common)
    return Revision(commit) if commit else None


def _resolve(content: str, git: Path, common: Path) -> str | None:
    """Return the commit that a reference's content leads to; None on a branch without a commit."""
    for _ in range(5):  # git follows as many
        name = content.removeprefix("ref:").strip()
        if _COMMIT.fullmatch(name):
            return name
        files = [folder / name for folder in (git, common) if (folder / name).is_file()]
        content = files[0].read_text(encoding="utf-8") if files else _read_packed_ref(common, name)
    return None


def _read_packed_ref(common: Path, name: str) -> str:
    packed = common / "packed-refs"
    lines = packed.read_text(encoding="utf-8").splitlines() if packed.is_file() else []
    return next((line.split()[0] for line in lines if line.endswith(f" {name}")), "")

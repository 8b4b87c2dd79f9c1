"""Which commit edgepack was made of.

A wheel and an sdist carry ``commit.txt``, which their build wrote (``hatch_build.py``). A checkout
has ``.git``, which is read here as gitrepository-layout(5) and gitformat-pack(5) describe it: git
may be missing, and refuses the checkouts of other users.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from edgepack import __version__
from edgepack.errors import ToolError
from edgepack.resources import data_root

_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_COMMITTED = re.compile(rb"^committer .* (\d+) [+-]\d{4}$", re.MULTILINE)
_INDEX_MAGIC = b"\xfftOc\0\0\0\2"
_INDEX_NAMES = 8 + 256 * 4
_IS_COMMIT = 1
_LONGEST_HEADER = 1 << 14


@dataclass(frozen=True)
class Revision:
    """A commit: its whole hexadecimal name, and its day in UTC, where that is cheap to know."""

    commit: str
    date: str | None = None

    def __str__(self) -> str:
        return f"commit {self.commit[:7]}" + (f", {self.date}" if self.date else "")


def version_text() -> str:
    """Return the version, and the commit if known: ``0.1.0 (commit 1a2b3c4, 2026-11-23)``.

    It names the newest commit also of a checkout that has been changed since.
    """
    try:
        known = revision(data_root())
    except (ToolError, OSError, ValueError, zlib.error):
        known = None  # the version and the report of a bug are told by a damaged installation, too
    return f"{__version__} ({known})" if known else __version__


def revision(root: Path) -> Revision | None:
    """Return the commit that a checkout, an sdist or an installation's data was made of.

    Raises:
        OSError: A file of it cannot be read.
        ValueError: A file of it is damaged.
        zlib.error: A file of it is damaged.
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
    return Revision(commit, _day(common / "objects", commit)) if commit else None


def _resolve(content: str, git: Path, common: Path) -> str | None:
    """Return the commit that a reference's content leads to; None on a branch without a commit."""
    for _ in range(5):  # git follows as many
        name = content.removeprefix("ref:").strip()
        if _COMMIT.fullmatch(name):
            return name
        files = [folder / name for folder in (git, common) if (folder / name).is_file()]
        content = files[0].read_text(encoding="utf-8") if files else _packed_ref(common, name)
    return None


def _packed_ref(common: Path, name: str) -> str:
    packed = common / "packed-refs"
    lines = packed.read_text(encoding="utf-8").splitlines() if packed.is_file() else []
    return next((line.split()[0] for line in lines if line.endswith(f" {name}")), "")


def _day(objects: Path, commit: str) -> str | None:
    loose = objects / commit[:2] / commit[2:]
    content = zlib.decompress(loose.read_bytes()) if loose.is_file() else _packed(objects, commit)
    committed = _COMMITTED.search(content.partition(b"\n\n")[0])
    return f"{datetime.fromtimestamp(int(committed[1]), UTC):%Y-%m-%d}" if committed else None


def _packed(objects: Path, commit: str) -> bytes:
    """Return a commit from a pack; nothing where it is stored as a difference, as few are."""
    name = bytes.fromhex(commit)
    for index in sorted((objects / "pack").glob("*.idx")):
        table = index.read_bytes()
        count = int.from_bytes(table[_INDEX_NAMES - 4 : _INDEX_NAMES], "big")
        at = table.find(name, _INDEX_NAMES, _INDEX_NAMES + count * len(name))
        if at < 0 or not table.startswith(_INDEX_MAGIC):
            continue
        offsets = _INDEX_NAMES + count * (len(name) + 4) + (at - _INDEX_NAMES) // len(name) * 4
        with index.with_suffix(".pack").open("rb") as pack:
            pack.seek(int.from_bytes(table[offsets : offsets + 4], "big"))
            entry = pack.read(_LONGEST_HEADER)
        if entry[0] >> 4 & 7 != _IS_COMMIT:
            return b""
        start = next(at for at, byte in enumerate(entry) if byte < 0x80) + 1
        return zlib.decompressobj().decompress(entry[start:])
    return b""

"""Checks paths in a manifest, so that no file is written elsewhere or over another one."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Annotated

from pydantic import AfterValidator, Field

_NAME_BYTES = 255
"""The longest name on ext4, f2fs and APFS."""


def _require_inside(path: str) -> str:
    """Return a relative path after checking that it stays inside its folder on every system."""
    parts = path.split("/")
    if any(part in ("", ".", "..") for part in parts) or "\\" in path:
        raise ValueError(f"the path {path!r} leaves the bundle, or is not in its plain form")
    if any(len(part.encode("utf-8")) > _NAME_BYTES for part in parts):
        raise ValueError(f"the path {path[:60]!r}... has a name of more than {_NAME_BYTES} bytes")
    if any(unicodedata.category(char) in ("Cc", "Cs") for char in path):
        raise ValueError(f"the path {path!r} has a control character")
    return path


BundlePath = Annotated[str, Field(max_length=1024), AfterValidator(_require_inside)]
"""Relative, with forward slashes, and inside the bundle."""


def require_apart(paths: Iterable[str]) -> None:
    """Check that all paths are different files on every file system.

    Some file systems treat ``A`` and ``a``, or two ways to write ``é`` in Unicode, as one name.

    Raises:
        ValueError: Two paths are the same file, or one is a file and another is inside it.
    """
    files: dict[str, str] = {}
    folders: dict[str, str] = {}
    for path in paths:
        for parent in PurePosixPath(path).parents[:-1]:
            name = folders.setdefault(_fold_path(str(parent)), str(parent))
            if name != str(parent):
                raise ValueError(_explain_clash(name, str(parent)))
        if _fold_path(path) in files:
            raise ValueError(_explain_clash(files[_fold_path(path)], path))
        files[_fold_path(path)] = path
    for key in files.keys() & folders.keys():
        raise ValueError(_explain_clash(files[key], folders[key] + "/"))


def _explain_clash(one: str, other: str) -> str:
    if one == other:
        return f"{one!r} is listed twice"
    return f"{one!r} and {other!r} are one on some file systems"


def _fold_path(path: str) -> str:
    """Return the key that caseless matches of a path share (The Unicode Standard, D145)."""
    return unicodedata.normalize("NFD", unicodedata.normalize("NFD", path).casefold())

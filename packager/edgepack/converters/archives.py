"""Looks into archives before any framework reads them."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Collection
from pathlib import Path

from edgepack.base.machine import read_available_memory
from edgepack.errors import ModelError

_MOST_GROWTH = 100
"""How many times as large a member may become: weights are stored as they are, or nearly so, and
Deflate's own limit is 1032 (zlib's Technical Details)."""
_SMALL = 1 << 20


def require_whole_zip(path: Path, needed: Collection[str], what: str) -> None:
    """Check that a file is a whole ZIP archive of harmless names that has some members.

    Every member is read to its end, and so held against its checksum.

    Raises:
        ModelError: It is not.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            _require_harmless(archive, path)
            broken = archive.testzip()
            missing = sorted(set(needed) - set(archive.namelist()))
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise ModelError(
            f"this is not {what}: it is no whole ZIP archive ({error})",
            hint="check that the file was copied whole",
            where=path.name,
        ) from error
    if broken:
        raise ModelError(
            f"its member {broken!r} is damaged", hint="copy the file again", where=path.name
        )
    if missing:
        raise ModelError(
            f"this is not {what}: it has no {', '.join(missing)}",
            hint="save the whole model with the framework that made it",
            where=path.name,
        )


def _require_harmless(archive: zipfile.ZipFile, path: Path) -> None:
    for member in archive.infolist():
        name = member.filename
        grows = member.file_size > _MOST_GROWTH * max(1, member.compress_size)
        if name.startswith(("/", "\\")) or ".." in Path(name).parts:
            problem = f"its member {name!r} leads out of the folder it is unpacked in"
        elif grows and member.file_size > _SMALL:
            problem = f"its member {name!r} would become {member.file_size / 1e6:.0f} MB"
        else:
            continue
        raise ModelError(problem, hint="do not use this file", where=path.name)
    total, free = sum(each.file_size for each in archive.infolist()), read_available_memory()
    if total > free:
        raise ModelError(
            f"its members would become {total / 1e6:.0f} MB, and {free / 1e6:.0f} MB of memory are"
            " free",
            hint="convert it where there is more memory, if you trust it",
            where=path.name,
        )

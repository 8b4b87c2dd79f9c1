"""Runtime libraries on disk, beside the bundles that share them."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterable
from pathlib import Path

from edgepack.apps.library import NAME, make_library
from edgepack.apps.npm import ROOT
from edgepack.apps.render import RenderedFile, render_library
from edgepack.base.files import holding
from edgepack.bundle.archive import copy_file, write_archive
from edgepack.bundle.writing import refuse_foreign, replacing
from edgepack.project.profile import Profile

MARK = "edgepack-runtime.json"
"""The file of a library's folder that lists the others with their sha256."""


def list_code(profile: Profile) -> dict[str, bytes]:
    """Return what the bundles of a target's family share, by its path in their runtime library.

    Raises:
        ProfileError: The target pins no onnxruntime.
    """
    return {file.path: file.data for file in render_library(profile.family, make_library(profile))}


def require_places(profiles: Iterable[Profile], out: Path) -> None:
    """Check that nothing else lies where the runtime libraries of targets will be.

    Raises:
        UsageError: Something does.
    """
    for family in {profile.family for profile in profiles}:
        refuse_foreign(out / f"{NAME}-{family}", MARK)


def write_library(profile: Profile, out: Path) -> Path:
    """Write the runtime library of a target's family, and return its folder.

    It is replaced whole or not at all, as is the npm package beside it, ``edgepack-runtime-V.tgz``,
    which browsers get. A library that stands there byte for byte is left alone.

    Raises:
        ProfileError: The target pins no onnxruntime.
        ToolError: The place cannot be written.
        UsageError: Something else is there.
    """
    library = make_library(profile)
    files = render_library(profile.family, library)
    listed = {file.path: hashlib.sha256(file.data).hexdigest() for file in files}
    told = {"name": NAME, "version": library.version, "files": listed}
    mark = RenderedFile(MARK, f"{json.dumps(told, indent=2)}\n".encode(), "644", "source")
    final = out / f"{NAME}-{profile.family}"
    with holding(final):
        if not all(_stands(final / file.path, file.data) for file in [*files, mark]):
            with replacing(final, MARK) as folder:
                for file in [*files, mark]:
                    path = folder / file.path
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(file.data)
        if profile.family == "web":
            _write_package(final, out / f"{NAME}-{library.version}.tgz")
    return final


def _write_package(library: Path, package: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="edgepack-") as scratch:
        written = Path(scratch) / package.name
        write_archive(library, written, root=ROOT)
        if not _stands(package, written.read_bytes()):
            copy_file(written, package)


def _stands(path: Path, data: bytes) -> bool:
    return path.is_file() and path.read_bytes() == data

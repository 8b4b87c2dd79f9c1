"""Writes a recipe for Yocto that installs a bundle, with the archive that it fetches.

The recipe was never run by bitbake. Source: the Yocto Project Reference Manual 5.2, variables and
classes; ``S`` is below ``UNPACKDIR`` since 5.1, and below ``WORKDIR`` before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from edgepack.base.files import hash_file
from edgepack.bundle.archive import write_archive
from edgepack.bundle.manifest import MANIFEST
from edgepack.bundle.reading import AnyBundle
from edgepack.bundle.writing import make_write_error
from edgepack.fleets.hooks import fill, read_template
from edgepack.fleets.packages import (
    PACKAGE_PATTERN,
    make_package_name,
    make_version,
    require_packages,
)

_RUNTIME = "onnxruntime"
"""What layers that have a recipe for it call it."""


def write_recipe(found: AnyBundle, to: Path, depends: Sequence[str]) -> Path:
    """Write ``edgepack-PROJECT-TARGET_VERSION.bb`` and ``files/BUNDLE.tar.gz`` beside it.

    They lie in a folder ``edgepack-PROJECT-TARGET``.

    Args:
        found: The bundle.
        to: The folder: one of recipes in a layer.
        depends: What the package needs on the device; none for ``onnxruntime``.

    Returns:
        The path of the recipe.

    Raises:
        UsageError: The version is none of Debian's, which Yocto takes, too; or something to depend
            on is no package.
        ToolError: The folder cannot be written.
    """
    manifest = found.manifest
    require_packages(depends, PACKAGE_PATTERN)
    version = make_version(manifest.version)
    package = make_package_name(f"{manifest.name}-{manifest.target}")
    folder, bundle = to / package, f"{manifest.name}-{manifest.version}-{manifest.target}"
    archive, recipe = folder / "files" / f"{bundle}.tar.gz", folder / f"{package}_{version}.bb"
    try:
        archive.parent.mkdir(parents=True, exist_ok=True)
        write_archive(found.path, archive, root=bundle)
        listed = (found.path / MANIFEST).read_bytes()
        text = fill(
            read_template("recipe.bb"),
            PROJECT=manifest.name,
            PACKAGE=make_package_name(manifest.name),
            TARGET=manifest.target,
            BUNDLE=bundle,
            SHA256=hash_file(archive),
            MANIFEST=hashlib.md5(listed, usedforsecurity=False).hexdigest(),
            DEPENDS=" ".join(depends or (_RUNTIME,)),
        )
        recipe.write_bytes(text)
    except OSError as error:
        raise make_write_error(to, error) from error
    return recipe

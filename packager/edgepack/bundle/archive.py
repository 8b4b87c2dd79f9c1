"""The archive of a bundle: ``.tar.gz`` whose bytes depend on nothing but the files."""

from __future__ import annotations

import gzip
import os
import shutil
import tarfile
import tempfile
from pathlib import Path

from edgepack.bundle.writing import not_writable

# Weights hardly compress: higher levels take several times as long for a percent.
_LEVEL = 1


def write_archive(bundle: Path, archive: Path) -> None:
    """Write the files of a bundle, sorted by path, with fixed owners and times."""
    # No file name and no time go into the gzip header.
    with (
        archive.open("wb") as raw,
        gzip.GzipFile("", "wb", compresslevel=_LEVEL, fileobj=raw, mtime=0) as stream,
        tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for path in sorted(p for p in bundle.rglob("*") if p.is_file()):
            _add(tar, path, f"{bundle.name}/{path.relative_to(bundle).as_posix()}")


def _add(tar: tarfile.TarFile, path: Path, name: str) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = path.stat().st_size
    entry.mode = path.stat().st_mode & 0o755
    with path.open("rb") as file:
        tar.addfile(entry, file)


def copy_file(source: Path, target: Path) -> None:
    """Copy a file so that the target is the old one or the new one, whole.

    Raises:
        BundleError: The place cannot be written, or the disk is full.
    """
    partial: str | None = None
    try:
        handle, partial = tempfile.mkstemp(prefix=f".{target.name}-", dir=target.parent)
        os.close(handle)
        shutil.copyfile(source, partial)
        Path(partial).chmod(0o644)
        os.replace(partial, target)  # noqa: PTH105  (atomic)
    except OSError as error:
        raise not_writable(target.parent, error) from error
    finally:
        if partial:
            Path(partial).unlink(missing_ok=True)

"""Writes and unpacks a bundle's archive, a ``.tar.gz`` whose bytes depend only on the files."""

from __future__ import annotations

import gzip
import os
import shutil
import tarfile
import tempfile
import zlib
from contextlib import ExitStack
from pathlib import Path, PurePosixPath

from edgepack.bundle.writing import make_write_error
from edgepack.errors import BundleError

# Weights hardly compress: higher levels take several times as long for a percent.
_LEVEL = 1


def write_archive(bundle: Path, archive: Path, *, root: str) -> None:
    """Write the files of a bundle, sorted by path, with fixed owners and times.

    Args:
        bundle: Its folder.
        archive: The file to write.
        root: The folder that the archive has its files in.
    """
    # No file name and no time go into the gzip header.
    with (
        archive.open("wb") as raw,
        gzip.GzipFile("", "wb", compresslevel=_LEVEL, fileobj=raw, mtime=0) as stream,
        tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for path in sorted(p for p in bundle.rglob("*") if p.is_file()):
            _add(tar, path, f"{root}/{path.relative_to(bundle).as_posix()}")


def _add(tar: tarfile.TarFile, path: Path, name: str) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = path.stat().st_size
    entry.mode = path.stat().st_mode & 0o755
    with path.open("rb") as file:
        tar.addfile(entry, file)


def open_folder(bundle: Path, stack: ExitStack) -> Path:
    """Return a bundle's folder; an archive's is temporary, and is deleted with the stack.

    Raises:
        BundleError: As :func:`unpack_archive`.
    """
    if not bundle.is_file():
        return bundle
    scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="edgepack-"))
    return unpack_archive(bundle, Path(scratch))


def unpack_archive(archive: Path, folder: Path) -> Path:
    """Unpack a bundle into an empty folder, and return the bundle's own folder in it.

    An archive may come from anywhere: only files and folders within the folder are accepted.
    Everything else is refused, links too.

    Raises:
        BundleError: The archive cannot be read, or does not have exactly one bundle.
    """
    try:
        # Not tarfile's own filters, which Python 3.11 has from 3.11.4 on: Debian 12 has 3.11.2.
        with tarfile.open(archive, "r:gz") as tar:
            for entry in tar:
                _unpack(tar, entry, archive, folder)
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise BundleError(
            f"cannot unpack {str(archive)!r}: {error}",
            hint="name a bundle's folder, or the .tar.gz that 'edgepack build' wrote",
        ) from error
    inside = list(folder.iterdir())
    if len(inside) != 1 or not inside[0].is_dir():
        raise BundleError(
            f"{str(archive)!r} does not hold one bundle", hint="build the bundle again"
        )
    return inside[0]


def _unpack(tar: tarfile.TarFile, entry: tarfile.TarInfo, archive: Path, folder: Path) -> None:
    name = PurePosixPath(entry.name)
    is_inside = not name.is_absolute() and ".." not in name.parts
    if not is_inside or not (entry.isreg() or entry.isdir()):
        raise BundleError(
            f"{str(archive)!r} holds {entry.name!r}, which is no file in a bundle's folder",
            hint="do not trust this archive: take it from where the bundle was built",
        )
    place = folder / name
    content = tar.extractfile(entry)
    if content is None:
        place.mkdir(parents=True, exist_ok=True)
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    with content, place.open("xb") as file:
        shutil.copyfileobj(content, file)
    place.chmod(0o644 | entry.mode & 0o111)


def copy_file(source: Path, target: Path, *, by_way_of: Path | None = None) -> None:
    """Copy a file atomically: the target is the whole old file or the whole new one.

    Args:
        source: The file.
        target: Its new place.
        by_way_of: Where it lies before it is whole, on the same file system; default: the
            target's folder.

    Raises:
        ToolError: The place cannot be written, or the disk is full.
    """
    partial: str | None = None
    try:
        handle, partial = tempfile.mkstemp(
            prefix=f".{target.name}-", dir=by_way_of or target.parent
        )
        os.close(handle)
        shutil.copyfile(source, partial)
        Path(partial).chmod(0o644)
        os.replace(partial, target)  # noqa: PTH105  (atomic)
    except OSError as error:
        raise make_write_error(target.parent, error) from error
    finally:
        if partial:
            Path(partial).unlink(missing_ok=True)

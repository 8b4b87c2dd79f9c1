"""Writes files whole or not at all, and reads them with their schema version."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TypeVar

from pydantic import BaseModel, ValidationError

from edgepack.errors import BundleError, ToolError, UsageError

ModelT = TypeVar("ModelT", bound=BaseModel)


PRIVATE, SHARED = 0o600, 0o644
"""The modes of new files: those that edgepack keeps, and those that its user names."""


def write_atomically(path: Path, data: str | bytes, *, mode: int = PRIVATE) -> None:
    """Replace a file, which keeps its mode, so that a crash leaves the old one or the new one.

    Args:
        path: The file; folders above it are made.
        data: The file's new content.
        mode: The mode of a file that is new.

    Raises:
        OSError: The file cannot be written; the old one is unchanged.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        # That is what mkdir says of a file in the way.
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from None
    handle, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-", suffix=".partial")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        Path(partial).chmod(mode)
        if path.exists():
            shutil.copymode(path, partial)
        Path(partial).replace(path)
    finally:
        Path(partial).unlink(missing_ok=True)


@contextmanager
def locked(path: Path, *, mode: int = PRIVATE) -> Iterator[Path]:
    """Hold a file while it is read, changed and replaced; who else wants to change it waits.

    Only who calls this waits. The lock is the file's own (``flock``), so that nothing lies beside
    it: as :func:`write_atomically` puts another file in its place, a lock counts only if the file
    is still the one at the path.

    Args:
        path: The file; folders above it are made, and an empty file if there is none.
        mode: The mode of a file that is new.

    Yields:
        The path of the file itself where ``path`` is a symbolic link.

    Raises:
        OSError: The file cannot be opened for writing.
    """
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode), "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if not _is_at(path, file):
                continue
            try:
                yield path
            finally:
                # Nothing was written into a new file.
                if _is_at(path, file) and not path.stat().st_size:
                    path.unlink()
            return


@contextmanager
def holding(place: Path) -> Iterator[None]:
    """Hold a file or folder that is replaced in several moves; who else replaces it so waits.

    The lock lies in the user's cache while it is held: a folder cannot be locked everywhere, and
    nothing is left beside it.

    Raises:
        ToolError: The cache cannot be written to.
    """
    import platformdirs

    name = hashlib.sha256(os.fsencode(place.resolve())).hexdigest()[:32]
    lock = platformdirs.user_cache_path("edgepack") / "locks" / name
    with writing("a lock", lock, "free some space, or set XDG_CACHE_HOME"), locked(lock):
        yield


def _is_at(path: Path, file: BinaryIO) -> bool:
    """Return whether an open file is still the one at a path."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def hash_file(path: Path) -> str:
    """Return the sha256 of a file, in hexadecimal digits.

    Raises:
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def require_writable(path: Path, option: str) -> None:
    """Check early that a file named by an option can be written, so that no measurement is lost.

    Raises:
        UsageError: It cannot be written. An existing file stays unchanged.
    """
    if path.is_file():
        return
    try:
        write_atomically(path, "")
        path.unlink()
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written: {error.strerror}", hint="choose another file", where=option
        ) from error


ELSEWHERE = "free some space, or name a file in a folder that can be written to"
"""What to do where the user named the file."""


@contextmanager
def writing(
    what: str,
    path: Path,
    hint: str = "free some space, or set XDG_DATA_HOME to a folder that can be written to",
) -> Iterator[None]:
    """Turn a failure to write into one clear error.

    Args:
        what: What is written: ``the report``.
        path: The path.
        hint: What to do; the default fits files in the user's data directory.

    Raises:
        ToolError: The block raised an :class:`OSError`.
    """
    try:
        yield
    except OSError as error:
        raise ToolError(
            f"cannot write {what}: {error.strerror}",
            hint=hint,
            where=str(path),
        ) from error


def read_model(path: Path, model: type[ModelT], *, version: int, what: str, remedy: str) -> ModelT:
    """Read a JSON file that has a ``schema_version``.

    Args:
        path: The file.
        model: The model of its content.
        version: The schema version that ``model`` describes.
        what: What the file is, for errors: ``the report``.
        remedy: The hint of an error about a broken file.

    Raises:
        BundleError: It cannot be read, is broken, or is of another schema version.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        problem = f"{what} cannot be read: {error}"
        raise BundleError(problem, hint=remedy, where=str(path)) from error
    return parse_model(raw, model, version=version, what=what, remedy=remedy, where=str(path))


def parse_model(
    raw: bytes, model: type[ModelT], *, version: int, what: str, remedy: str, where: str
) -> ModelT:
    """Parse JSON that has a ``schema_version``; see :func:`read_model`.

    Raises:
        BundleError: It is broken, or of another schema version.
    """
    try:
        document = json.loads(raw)
        found = document.get("schema_version") if isinstance(document, dict) else None
        if found == version:
            return model.model_validate_json(raw)
        problem = f"{what} has schema version {found!r}, this edgepack reads {version}"
        remedy = "read it with the edgepack that wrote it: pip install --upgrade edgepack"
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        problem = f"{what} cannot be read: {place}: {first['msg']}"
    except (ValueError, RecursionError) as error:
        problem = f"{what} cannot be read: {error}"
    raise BundleError(problem, hint=remedy, where=where)

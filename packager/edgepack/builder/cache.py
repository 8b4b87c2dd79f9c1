"""The content-addressed cache of step outputs: ``<cache>/steps/<key>/``.

An entry exists as a whole or not at all: a step writes into a folder beside it, which is renamed.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import edgepack
from edgepack.base.files import hash_file
from edgepack.base.machine import find_vectors
from edgepack.builder.entries import INDEX, DamagedError, write_entry
from edgepack.builder.shared import SharedCache, open_shared_cache
from edgepack.errors import ToolError
from edgepack.steps.base import Step, find_settings

_COMPUTING = {"numpy", "onnxruntime"}
"""Libraries that choose their kernels by the processor."""
_NO_PLACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM}


@dataclass(frozen=True)
class Artifact:
    """The output of a step: a folder whose files have known hashes."""

    path: Path
    digest: str
    """Sha256 over names and hashes of the files."""
    files: Mapping[str, str]
    """File name to sha256."""

    def count_bytes(self) -> int:
        """Return the size of all files."""
        return sum((self.path / name).stat().st_size for name in self.files)

    def require_whole(self) -> None:
        """Check that the files are unchanged, before a step uses them.

        Raises:
            ToolError: A file was changed.
        """
        for name, sha256 in self.files.items():
            if hash_file(self.path / name) != sha256:
                raise ToolError(
                    f"the cache is damaged: {name!r} in {str(self.path)!r} has changed",
                    hint="remove that folder, or build with --no-cache",
                )


def make_step_key(step: Step, inputs: Mapping[str, str]) -> str:
    """Return the cache key of a step whose inputs have the given digests."""
    value = {**find_settings(step), "inputs": dict(inputs), "code": hash_code()}
    if _COMPUTING & {*step.libraries}:
        value["vectors"] = find_vectors()
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


@cache
def hash_code() -> str:
    """Return a digest of edgepack's own source: another version's outputs are not reused."""
    return hash_tree(Path(edgepack.__file__).parent, "*.py")


def hash_tree(folder: Path, pattern: str) -> str:
    """Return a digest of the names and contents of the files below a folder that match."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob(pattern) if path.is_file()):
        digest.update(f"{path.relative_to(folder)}\0{hash_file(path)}\n".encode())
    return digest.hexdigest()


@dataclass(frozen=True)
class StepCache:
    """Step outputs in a folder, and where a team shares its own, in a store behind it."""

    folder: Path
    shared: SharedCache | None = None

    def find(self, key: str) -> Artifact | None:
        """Return a finished output, or None. A file whose size changed makes it unfinished."""
        path = self.folder / key
        try:
            index = json.loads((path / INDEX).read_text(encoding="utf-8"))
            whole = all((path / n).stat().st_size == size for n, size in index["sizes"].items())
        except (OSError, ValueError, KeyError):
            return None
        return Artifact(path, index["digest"], index["files"]) if whole else None

    def fetch(self, key: str) -> Artifact | None:
        """Return an output that is in the team's store, now in the folder too.

        None if none is there that can be used, or it cannot be kept here.
        """
        shared = self.shared
        if shared is None or (chunks := shared.find(key)) is None:
            return None
        try:
            found = self.keep(key, lambda out: write_entry(key, chunks, out, shared.secret))
        except DamagedError as error:
            shared.report_damage(key, error)
            return None
        except (ToolError, OSError) as error:
            shared.report_unkept(key, error)
            return None
        shared.fetched += 1
        return found

    def share(self, key: str, artifact: Artifact) -> None:
        """Send an output that was made here to the team's store, where there is one."""
        if self.shared is not None:
            self.shared.send(key, artifact.path)

    def keep(
        self, key: str, fill: Callable[[Path], object], *, by_content: bool = False
    ) -> Artifact:
        """Let ``fill`` write into an empty folder, which becomes the entry, whole or not at all.

        Builds may do this for the same key at the same time: the first one's entry stays. With
        ``by_content`` the key and the written files together name the entry.

        Raises:
            ToolError: The cache cannot be written, or the disk is full.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            partial = Path(tempfile.mkdtemp(prefix=f".{key[:16]}-", dir=self.folder))
        except OSError as error:
            raise _make_write_error(self.folder, error) from error
        try:
            fill(partial)
            digest = _write_index(partial)
            return self._install(partial, f"{key[:40]}-{digest[:24]}" if by_content else key)
        except OSError as error:
            if error.errno not in _NO_PLACE:
                raise
            raise _make_write_error(self.folder, error) from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def _install(self, partial: Path, key: str) -> Artifact:
        found = self.find(key)
        if found is not None:
            return found
        shutil.rmtree(self.folder / key, ignore_errors=True)
        try:
            os.rename(partial, self.folder / key)  # noqa: PTH104  (rename(2) is atomic)
        except OSError:
            if self.find(key) is None:
                raise
        installed = self.find(key)
        if installed is None:
            raise FileNotFoundError(2, "an entry vanished as it was written", str(key))
        return installed


def _write_index(folder: Path) -> str:
    """Write the hashes and sizes of the files, and return the digest of all of them."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    hashes = {path.name: hash_file(path) for path in files}
    digest = hashlib.sha256(json.dumps(hashes, sort_keys=True).encode()).hexdigest()
    sizes = {path.name: path.stat().st_size for path in files}
    index = {"files": hashes, "sizes": sizes, "digest": digest}
    (folder / INDEX).write_text(json.dumps(index), encoding="utf-8")
    return digest


def open_own_cache() -> StepCache:
    """Return the user's cache, shared by all projects, and by a team where one has a store.

    Raises:
        UsageError: The environment names a store that there cannot be.
        ToolError: The libraries for it are not installed.
    """
    from platformdirs import user_cache_path

    return StepCache(user_cache_path("edgepack") / "steps", open_shared_cache())


def open_temporary_cache(stack: ExitStack) -> StepCache:
    """Return an empty cache that is deleted when the stack closes: ``--no-cache`` uses it."""
    return StepCache(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="edgepack-"))))


def _make_write_error(folder: Path, error: OSError) -> ToolError:
    return ToolError(
        f"cannot write to the cache {str(folder)!r}: {error.strerror or error}",
        hint="free some space there and in the folder for temporary files (TMPDIR), or point"
        " XDG_CACHE_HOME to a folder that can be written",
    )

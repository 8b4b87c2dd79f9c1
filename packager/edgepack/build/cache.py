"""The content-addressed cache of step outputs: ``<cache>/steps/<key>/``.

An entry is there whole or not at all: a step writes into a folder beside it, which is renamed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import edgepack
from edgepack.errors import ToolError
from edgepack.steps import Step, settings_of

_INDEX = "artifact.json"


@dataclass(frozen=True)
class Artifact:
    """The output of a step: a folder whose files have known hashes."""

    path: Path
    digest: str
    """Sha256 over names and hashes of the files."""
    files: Mapping[str, str]
    """File name to sha256."""


def step_key(step: Step, inputs: Mapping[str, str]) -> str:
    """Return the cache key of a step whose inputs have the given digests."""
    value = {**settings_of(step), "inputs": dict(inputs), "code": code_digest()}
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


@cache
def code_digest() -> str:
    """Return a digest of edgepack's own source: another version's outputs are not reused."""
    folder = Path(edgepack.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"{path.relative_to(folder)}\0{file_sha256(path)}\n".encode())
    return digest.hexdigest()


@dataclass(frozen=True)
class StepCache:
    """Step outputs in a folder."""

    folder: Path

    def find(self, key: str) -> Artifact | None:
        """Return a finished output, or None. A file whose size changed makes it unfinished."""
        path = self.folder / key
        try:
            index = json.loads((path / _INDEX).read_text(encoding="utf-8"))
            whole = all((path / n).stat().st_size == size for n, size in index["sizes"].items())
        except (OSError, ValueError, KeyError):
            return None
        return Artifact(path, index["digest"], index["files"]) if whole else None

    @contextmanager
    def writing(self, key: str) -> Iterator[Path]:
        """Give an empty folder; when the block ends well it becomes the entry, else it goes.

        Raises:
            ToolError: The cache cannot be written, or the disk is full.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            partial = Path(tempfile.mkdtemp(prefix=f".{key[:16]}-", dir=self.folder))
        except OSError as error:
            raise _not_writable(self.folder, error) from error
        try:
            yield partial
            self._finish(partial, key)
        except OSError as error:
            raise _not_writable(self.folder, error) from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def _finish(self, partial: Path, key: str) -> None:
        files = sorted(path for path in partial.iterdir() if path.is_file())
        hashes = {path.name: file_sha256(path) for path in files}
        index = {
            "files": hashes,
            "sizes": {path.name: path.stat().st_size for path in files},
            "digest": hashlib.sha256(json.dumps(hashes, sort_keys=True).encode()).hexdigest(),
        }
        (partial / _INDEX).write_text(json.dumps(index), encoding="utf-8")
        final = self.folder / key
        if final.exists():
            shutil.rmtree(final)
        os.rename(partial, final)  # noqa: PTH104  (Path.rename would hide that it is atomic)


def own_cache() -> StepCache:
    """Return the user's cache, shared by all projects."""
    from platformdirs import user_cache_path

    return StepCache(user_cache_path("edgepack") / "steps")


def temporary_cache(stack: ExitStack) -> StepCache:
    """Return an empty cache that goes when the stack closes: what ``--no-cache`` builds in."""
    return StepCache(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="edgepack-"))))


def file_sha256(path: Path) -> str:
    """Return the sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _not_writable(folder: Path, error: OSError) -> ToolError:
    return ToolError(
        f"cannot write to the cache {str(folder)!r}: {error.strerror or error}",
        hint="free some space, or point XDG_CACHE_HOME to a folder that can be written",
    )

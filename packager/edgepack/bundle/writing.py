"""Writes a bundle: files into a folder beside the final one, manifest last, then one rename."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from edgepack.bundle.manifest import (
    MANIFEST,
    MANIFEST_DIGEST,
    UNLISTED,
    BundleFile,
    Manifest,
    Role,
)
from edgepack.bundle.paths import require_apart
from edgepack.bundle.pipeline import PipelineManifest
from edgepack.bundle.reading import Bundle, parse_manifest, parse_pipeline_manifest
from edgepack.bundle.sbom import SBOM, make_pipeline_sbom, make_sbom
from edgepack.errors import BundleError, ToolError, UsageError

_SERVED = "requirements-serve.txt"
"""What the service's packages are; its role is ``service``."""


@dataclass
class BundleWriter:
    """Collects the files of one bundle in a folder; equal files are written once."""

    folder: Path
    files: dict[str, BundleFile] = field(default_factory=dict)
    _by_digest: dict[tuple[str, Role], str] = field(default_factory=dict)

    def add(
        self, path: str, data: bytes, *, role: Role, mode: Literal["644", "755"] = "644"
    ) -> str:
        """Write a file and return its path in the bundle, or the path of an earlier equal file.

        Raises:
            BundleError: Another file has the same path.
        """
        digest = hashlib.sha256(data).hexdigest()
        if role in ("model", "golden") and (digest, role) in self._by_digest:
            return self._by_digest[digest, role]
        if path in self.files:
            raise BundleError(
                f"two files of the bundle want to be {path!r}",
                hint="rename one of the 'files' in edgepack.yaml",
            )
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        target.chmod(int(mode, 8))
        self.files[path] = BundleFile(
            path=path, sha256=digest, size_bytes=len(data), mode=mode, role=role
        )
        self._by_digest[digest, role] = path
        return path

    def finish(self, make_manifest: Callable[[list[BundleFile]], Manifest]) -> Manifest:
        """Write the SBOM, the manifest and its digest: from here on the bundle is complete.

        Raises:
            BundleError: Two files have one name on some file systems, or the manifest is not valid.
        """
        try:
            require_apart([*UNLISTED, *self.files])
        except ValueError as error:
            raise BundleError(
                f"two files of the bundle have too similar names: {error}",
                hint="rename one of the 'files' in edgepack.yaml",
            ) from error
        manifest = make_manifest(self._list_files())
        self.add(SBOM, make_sbom(manifest, self._read_served()), role="document")
        manifest = manifest.model_copy(update={"files": self._list_files()})
        text = (manifest.model_dump_json(indent=2) + "\n").encode()
        parse_manifest(text)
        self._write_manifest(text)
        return manifest

    def finish_pipeline(
        self, make_manifest: Callable[[list[BundleFile]], PipelineManifest]
    ) -> None:
        """Write the SBOM, the manifest of several models and its digest."""
        manifest = make_manifest(self._list_files())
        self.add(SBOM, make_pipeline_sbom(manifest, self._read_served()), role="document")
        manifest = manifest.model_copy(update={"files": self._list_files()})
        text = (manifest.model_dump_json(indent=2) + "\n").encode()
        parse_pipeline_manifest(text)
        self._write_manifest(text)

    def add_bundle(self, path: str, bundle: Bundle) -> None:
        """Copy a bundle into a folder of this one, as it is."""
        names = {file.path: file for file in bundle.manifest.files}
        for name in (MANIFEST, MANIFEST_DIGEST):
            data = (bundle.path / name).read_bytes()
            names[name] = BundleFile(
                path=name,
                sha256=hashlib.sha256(data).hexdigest(),
                size_bytes=len(data),
                mode="644",
                role="document",
            )
        for name, file in names.items():
            place = self.folder / path / name
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(bundle.path / name, place)
            place.chmod(int(file.mode, 8))
            self.files[f"{path}/{name}"] = file.model_copy(update={"path": f"{path}/{name}"})

    def _read_served(self) -> str:
        """Return what the service needs; empty where it is not in the bundle."""
        file = self.files.get(_SERVED)
        return (self.folder / _SERVED).read_text() if file and file.role == "service" else ""

    def _write_manifest(self, text: bytes) -> None:
        (self.folder / MANIFEST).write_bytes(text)
        line = f"{hashlib.sha256(text).hexdigest()}  {MANIFEST}\n"
        (self.folder / MANIFEST_DIGEST).write_text(line, encoding="ascii")
        for name in (MANIFEST, MANIFEST_DIGEST):
            (self.folder / name).chmod(0o644)

    def _list_files(self) -> list[BundleFile]:
        return [self.files[path] for path in sorted(self.files)]


def require_writable_folder(folder: Path) -> None:
    """Check that a folder, or the parent that it would be made in, is writable.

    So no work is lost at the end. The check leaves no file.

    Raises:
        UsageError: It cannot be written to, or is no folder.
    """
    try:
        there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise UsageError(
            f"cannot write to {str(folder)!r}: {error.strerror or error}",
            hint="choose a folder that can be written with --out",
            where="--out",
        ) from error


@contextmanager
def replacing(final: Path, mark: str = MANIFEST) -> Iterator[Path]:
    """Yield an empty folder that replaces ``final`` when the block ends without an error.

    Whatever happens in the block, ``final`` is the whole old folder or the whole new one.

    Args:
        final: The folder.
        mark: A file that every folder of this kind has.

    Raises:
        ToolError: The place cannot be written, or the disk is full.
        UsageError: ``final`` is there and has no ``mark``.
    """
    refuse_foreign(final, mark)
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{final.name}-", dir=final.parent))
    except OSError as error:
        raise make_write_error(final.parent, error) from error
    try:
        partial.chmod(0o755)
        yield partial
        _swap(partial, final)
    except OSError as error:
        raise make_write_error(final.parent, error) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def refuse_foreign(final: Path, mark: str) -> None:
    """Refuse to replace a folder of another kind: it is somebody's work.

    Raises:
        UsageError: ``final`` is there and has no ``mark``.
    """
    if final.exists() and not (final / mark).is_file():
        raise UsageError(
            f"{str(final)!r} is there already, and none of edgepack's: it has no {mark}",
            hint="move it away, or choose another folder with --out",
        )


def _swap(partial: Path, final: Path) -> None:
    old = partial.with_name(f"{partial.name}.old")
    if final.exists():
        os.rename(final, old)  # noqa: PTH104  (rename(2) is what makes this safe)
    os.rename(partial, final)  # noqa: PTH104
    shutil.rmtree(old, ignore_errors=True)


def make_write_error(folder: Path, error: OSError) -> ToolError:
    """Return the error for an output folder that cannot be written."""
    return ToolError(
        f"cannot write to {str(folder)!r}: {error.strerror or error}",
        hint="free some space there, or make the folder writable for your user",
    )

"""Reads and verifies bundles. Of a bundle only the models are executed.

A bundle of several models has bundles in it, its parts. What sends, signs and checks bundles takes
both kinds (:func:`load_any`, :func:`verify_any`), everything else those of one model.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from edgepack.base.files import hash_file
from edgepack.bundle.manifest import (
    MANIFEST,
    MANIFEST_DIGEST,
    SCHEMA_VERSION,
    UNLISTED,
    BundleFile,
    GoldenTensor,
    Manifest,
)
from edgepack.bundle.pipeline import PipelineManifest
from edgepack.errors import BundleError

_BUILD_AGAIN = "the bundle was changed or copied incompletely: build it again, or copy it again"


@dataclass(frozen=True)
class Bundle:
    """A bundle whose files match its manifest."""

    path: Path
    manifest: Manifest
    digest: str
    """The sha256 of ``manifest.json``, and so of the bundle's whole content."""


@dataclass(frozen=True)
class PipelineBundle:
    """A bundle of several models whose files match its manifest."""

    path: Path
    manifest: PipelineManifest
    digest: str
    """The sha256 of ``manifest.json``, and so of the bundle's whole content."""


AnyBundle = Bundle | PipelineBundle
"""What is sent to devices as one."""


def load_bundle(path: Path) -> Bundle:
    """Return a bundle of one model after checking the manifest's digest; files are not read.

    Raises:
        BundleError: There is no bundle, its manifest was changed or has another version, or it has
            several models.
    """
    text, digest = _read_manifest(path)
    return Bundle(path, parse_manifest(text), digest)


def load_any(path: Path) -> AnyBundle:
    """Return a bundle of one model or several, as :func:`load_bundle` does."""
    text, digest = _read_manifest(path)
    manifest = parse_any(text)
    if isinstance(manifest, PipelineManifest):
        return PipelineBundle(path, manifest, digest)
    return Bundle(path, manifest, digest)


def _read_manifest(path: Path) -> tuple[bytes, str]:
    """Return the bytes of a manifest, and their digest."""
    try:
        text = (path / MANIFEST).read_bytes()
        expected = (path / MANIFEST_DIGEST).read_text(encoding="ascii")
    except FileNotFoundError as error:
        missing = f"{Path(error.filename).name} is missing" if path.exists() else "it is not there"
        raise BundleError(
            f"{str(path)!r} is not a complete bundle: {missing}",
            hint="name the folder that 'edgepack build' wrote, as dist/NAME-VERSION-TARGET",
        ) from error
    except NotADirectoryError as error:
        raise BundleError(
            f"{str(path)!r} is a file, not a bundle's folder",
            hint="name the bundle's folder, not its archive: 'edgepack build' writes both; tar -xf"
            " unpacks the archive",
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise BundleError(f"cannot read {str(path)!r}: {error}", hint=_BUILD_AGAIN) from error
    digest = hashlib.sha256(text).hexdigest()
    if expected != f"{digest}  {MANIFEST}\n":
        raise BundleError(
            f"{MANIFEST} does not have the hash that {MANIFEST_DIGEST} says", hint=_BUILD_AGAIN
        )
    return text, digest


def parse_manifest(text: bytes) -> Manifest:
    """Return a manifest.

    Raises:
        BundleError: It is not a manifest, has another version, or is one of several models.
    """
    given = _read_version(text)
    if given.get("kind") == "pipeline" and isinstance(given.get("parts"), dict):
        raise BundleError(
            f"this is a bundle of several models: {', '.join(given['parts'])}",
            hint="name one of them, as BUNDLE/parts/NAME; build, verify, sign, push and bench take"
            " the whole",
        )
    return _parse(Manifest, text)


def parse_any(text: bytes) -> Manifest | PipelineManifest:
    """Return the manifest of a bundle of one model or several.

    Raises:
        BundleError: It is none, or has another version.
    """
    if _read_version(text).get("kind") == "pipeline":
        return _parse(PipelineManifest, text)
    return parse_manifest(text)


def parse_pipeline_manifest(text: bytes) -> PipelineManifest:
    """Return the manifest of a bundle of several models.

    Raises:
        BundleError: It is none, or has another version.
    """
    _read_version(text)
    return _parse(PipelineManifest, text)


_AnyManifest = TypeVar("_AnyManifest", Manifest, PipelineManifest)


def _read_version(text: bytes) -> dict[str, Any]:
    """Return a manifest as plain JSON after checking its version."""
    try:
        given = json.loads(text)
        version = given.get("schema_version")
    except (ValueError, AttributeError, RecursionError) as error:
        raise BundleError(f"{MANIFEST} is not JSON: {error}", hint=_BUILD_AGAIN) from error
    if version != SCHEMA_VERSION:
        raise BundleError(
            f"{MANIFEST} has schema version {version!r}, this edgepack reads {SCHEMA_VERSION}",
            hint="build the bundle with this edgepack, or use the one that built it",
        )
    return dict(given)


def _parse(model: type[_AnyManifest], text: bytes) -> _AnyManifest:
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise BundleError(
            f"{MANIFEST} is wrong at {place}: {first['msg']}", hint=_BUILD_AGAIN
        ) from error


def verify(path: Path) -> Bundle:
    """Return a bundle of one model after checking every file against the manifest.

    Raises:
        BundleError: A file is missing, altered, a link, of another mode, or not in the manifest; or
            the bundle has several models.
    """
    bundle = load_bundle(path)
    _check_content(bundle)
    return bundle


def verify_any(path: Path) -> AnyBundle:
    """Return a bundle of one model or several after checking every file, of its parts too.

    Raises:
        BundleError: As :func:`verify`, or a part is not the one that it was built of.
    """
    found = load_any(path)
    _check_content(found)
    if isinstance(found, PipelineBundle):
        for name, part in found.manifest.parts.items():
            if verify(path / part.path).digest != part.digest:
                raise BundleError(f"the part {name!r} is another one", hint=_BUILD_AGAIN)
    return found


def _check_content(found: AnyBundle) -> None:
    path, manifest = found.path, found.manifest
    plain, links = _list_files(path)
    for entry in manifest.files:
        if entry.path not in plain:
            raise BundleError(
                f"{entry.path!r} is missing from the bundle, or a link is in its place",
                hint=_BUILD_AGAIN,
            )
        _check_file(path / entry.path, entry)
    for golden in manifest.goldens:
        for tensors in (golden.inputs, *golden.outputs.values()):
            for tensor in tensors:
                _check_tensor(path, tensor)
    known = {entry.path for entry in manifest.files}.union(UNLISTED)
    for name in sorted((plain - known) | links):
        raise BundleError(
            f"{name!r} is in the bundle and not in its manifest",
            hint="remove it (Python writes __pycache__ when a bundle is imported from), or"
            " build the bundle again",
        )


def _count_item_bytes(dtype: str) -> int:
    """Return the size of a value: numpy, which knows it, takes longer to import than to read."""
    return 1 if dtype == "bool" else int(dtype.strip("abcdefghijklmnopqrstuvwxyz")) // 8


def _check_tensor(root: Path, tensor: GoldenTensor) -> None:
    values, width = -(-prod(tensor.shape) // tensor.stride), _count_item_bytes(tensor.dtype)
    expected = values * width
    if tensor.palette is not None:
        expected = values + width * sum(tensor.palette.sizes)
    found = (root / tensor.path).stat().st_size
    if found != expected:
        packed = "" if tensor.palette is None else " with their palette"
        raise BundleError(
            f"{tensor.path!r} has {found} bytes, and {values} values of {tensor.dtype}{packed} take"
            f" {expected}",
            hint=_BUILD_AGAIN,
        )


def _list_files(root: Path) -> tuple[set[str], set[str]]:
    """Return the plain files and the links below a folder; no link is followed."""
    plain, links = set(), set()
    for folder, folders, files in os.walk(root):
        for entry in (Path(folder, name) for name in (*folders, *files)):
            name = entry.relative_to(root).as_posix()
            if entry.is_symlink():
                links.add(name)
            elif entry.is_file():
                plain.add(name)
    return plain, links


def _check_file(path: Path, entry: BundleFile) -> None:
    name, mode = entry.path, entry.mode
    if hash_file(path) != entry.sha256 or path.stat().st_size != entry.size_bytes:
        raise BundleError(
            f"{name!r} does not have the hash and size that the manifest says", hint=_BUILD_AGAIN
        )
    if (path.stat().st_mode & 0o100 != 0) != (mode == "755"):
        raise BundleError(f"{name!r} has not the mode {mode}", hint=f"chmod {mode} {name}")

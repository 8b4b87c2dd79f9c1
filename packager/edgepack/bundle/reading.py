"""Reads and verifies bundles. Of a bundle only the models are executed."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from math import prod
from pathlib import Path

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
from edgepack.errors import BundleError

_BUILD_AGAIN = "the bundle was changed or copied incompletely: build it again, or copy it again"


@dataclass(frozen=True)
class Bundle:
    """A bundle whose files match its manifest."""

    path: Path
    manifest: Manifest
    digest: str
    """The sha256 of ``manifest.json``, and so of the bundle's whole content."""


def load_bundle(path: Path) -> Bundle:
    """Return a bundle after checking the manifest's digest; files are not read.

    Raises:
        BundleError: There is no bundle, or its manifest was changed or has another version.
    """
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
    return Bundle(path, parse_manifest(text), digest)


def parse_manifest(text: bytes) -> Manifest:
    """Return a manifest.

    Raises:
        BundleError: It is not a manifest, or has another version.
    """
    try:
        version = json.loads(text).get("schema_version")
    except (ValueError, AttributeError, RecursionError) as error:
        raise BundleError(f"{MANIFEST} is not JSON: {error}", hint=_BUILD_AGAIN) from error
    if version != SCHEMA_VERSION:
        raise BundleError(
            f"{MANIFEST} has schema version {version!r}, this edgepack reads {SCHEMA_VERSION}",
            hint="build the bundle with this edgepack, or use the one that built it",
        )
    try:
        return Manifest.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise BundleError(
            f"{MANIFEST} is wrong at {place}: {first['msg']}", hint=_BUILD_AGAIN
        ) from error


def verify(path: Path) -> Bundle:
    """Return a bundle after checking every file against the manifest.

    Raises:
        BundleError: A file is missing, altered, a link, of another mode, or not in the manifest.
    """
    bundle = load_bundle(path)
    plain, links = _list_files(path)
    for entry in bundle.manifest.files:
        if entry.path not in plain:
            raise BundleError(
                f"{entry.path!r} is missing from the bundle, or a link is in its place",
                hint=_BUILD_AGAIN,
            )
        _check_file(path / entry.path, entry)
    for golden in bundle.manifest.goldens:
        for tensors in (golden.inputs, *golden.outputs.values()):
            for tensor in tensors:
                _check_tensor(path, tensor)
    known = {entry.path for entry in bundle.manifest.files}.union(UNLISTED)
    for name in sorted((plain - known) | links):
        raise BundleError(
            f"{name!r} is in the bundle and not in its manifest",
            hint="remove it (Python writes __pycache__ when a bundle is imported from), or"
            " build the bundle again",
        )
    return bundle


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

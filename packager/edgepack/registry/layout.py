"""Writes a bundle as an OCI image layout in one tar file, for tools that bring it to a registry.

Source: image-layout.md of the OCI image specification 1.1. The artifact is the one that
:mod:`.publishing` sends; its referrers are in the index too, so a copy of all has the signature.
"""

from __future__ import annotations

import io
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from edgepack.bundle.manifest import MANIFEST_SIGNATURE
from edgepack.bundle.reading import AnyBundle
from edgepack.bundle.writing import make_write_error
from edgepack.registry.artifact import Artifact
from edgepack.registry.documents import Index
from edgepack.registry.publishing import make_artifacts
from edgepack.registry.repository import compute_digest

REF_NAME = "org.opencontainers.image.ref.name"


def write_layout(bundle: AnyBundle, to: Path) -> Path:
    """Write ``NAME-VERSION-TARGET.oci.tar`` into a folder, and return its path.

    The same bundle, signed by the same signature, gives the same bytes. The version is the name
    under which tools find it: ``oci-archive:FILE:VERSION``.

    Raises:
        BundleError: A registry would not take a manifest with so many files.
        ToolError: The folder cannot be written.
    """
    signature = bundle.path / MANIFEST_SIGNATURE
    artifacts = make_artifacts(bundle, signature.read_bytes() if signature.is_file() else None)
    target = to / f"{bundle.manifest.id}.oci.tar"
    try:
        to.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{bundle.manifest.id}-", dir=to) as scratch:
            whole = Path(scratch, "whole.tar")
            with tarfile.open(whole, "w", format=tarfile.GNU_FORMAT) as tar:
                _add(tar, "oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
                _add(tar, "index.json", _make_index(artifacts, bundle.manifest.version))
                for digest, content in _list_blobs(artifacts):
                    _add(tar, f"blobs/{digest.replace(':', '/')}", content)
            whole.replace(target)
    except OSError as error:
        raise make_write_error(to, error) from error
    return target


def _make_index(artifacts: list[Artifact], version: str) -> bytes:
    first, *others = (artifact.descriptor for artifact in artifacts)
    named = {**(first.annotations or {}), REF_NAME: version.replace("+", "_")}
    return Index(manifests=[first.model_copy(update={"annotations": named}), *others]).encode()


def _list_blobs(artifacts: list[Artifact]) -> Iterator[tuple[str, bytes | Path]]:
    """Yield each blob once, with its digest."""
    found: dict[str, bytes | Path] = {}
    for artifact in artifacts:
        found[compute_digest(artifact.content)] = artifact.content
        found |= {blob.descriptor.digest: blob.content for blob in artifact.blobs}
    yield from sorted(found.items())


def _add(tar: tarfile.TarFile, name: str, content: bytes | Path) -> None:
    entry = tarfile.TarInfo(name)
    entry.mode = 0o644
    if isinstance(content, bytes):
        entry.size = len(content)
        tar.addfile(entry, io.BytesIO(content))
        return
    with content.open("rb") as file:
        entry.size = content.stat().st_size
        tar.addfile(entry, file)

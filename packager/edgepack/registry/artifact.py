"""How a bundle lies in a registry: an OCI image manifest with a layer for each file.

Media types and the config are those of CNCF's ModelPack (model-spec, specs-go/v1/mediatype.go,
annotations.go and schema/config-schema.json). Layers are the files themselves, not compressed, so
that a layer's digest is the hash that ``manifest.json`` has of the file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgepack.bundle.manifest import MANIFEST, MANIFEST_SIGNATURE, BundleFile
from edgepack.bundle.reading import AnyBundle
from edgepack.bundle.sbom import SBOM
from edgepack.errors import RegistryError
from edgepack.registry.documents import (
    EMPTY,
    EMPTY_TYPE,
    MANIFEST_TYPE,
    TITLE,
    Descriptor,
    ImageManifest,
)
from edgepack.registry.repository import compute_digest

ARTIFACT_TYPE = "application/vnd.cncf.model.manifest.v1+json"
CONFIG_TYPE = "application/vnd.cncf.model.config.v1+json"
CHUNKS_TYPE = "application/vnd.edgepack.chunks.v1+json"
SIGNATURE_TYPE = "application/vnd.edgepack.signature.v1"
SBOM_TYPE = "application/vnd.cyclonedx+json"
FILE_PATH = "org.cncf.model.filepath"
CHUNKS = ".edgepack/chunks.json"
"""The layer with the chunks of large files, so that a device asks for ranges of what it lacks."""
LEAST_CHUNKED = 1 << 16
"""The size in bytes beyond which a file's chunks are listed."""
RELEASE = "dev.edgepack.manifest"
"""The annotation with the release's digest: the SHA-256 of ``manifest.json``, in hex."""
PROJECT = "dev.edgepack.project"
TARGET = "dev.edgepack.target"
VERSION = "org.opencontainers.image.version"

_CONFIG_FILES = "application/vnd.cncf.model.weight.config.v1.raw"
_CODE = "application/vnd.cncf.model.code.v1.raw"
_TYPES = {
    "model": "application/vnd.cncf.model.weight.v1.raw",
    "golden": "application/vnd.cncf.model.dataset.v1.raw",
    "document": "application/vnd.cncf.model.doc.v1.raw",
    "loader": _CODE,
    "harness": _CODE,
    "source": _CODE,
    "library": _CODE,
}
"""By role; those of others are files of configuration."""

Chunks = Mapping[str, Sequence[tuple[str, int]]]
"""By path, the SHA-256 in hex and the size in bytes of each chunk, in order."""


@dataclass(frozen=True)
class Blob:
    """Bytes that a registry keeps."""

    descriptor: Descriptor
    content: bytes | Path
    """They, or the file that has them."""


@dataclass(frozen=True)
class Artifact:
    """An image manifest, and the blobs that it names."""

    manifest: ImageManifest
    blobs: tuple[Blob, ...]
    content: bytes
    """Of the manifest."""

    @property
    def descriptor(self) -> Descriptor:
        """What leads to the manifest, in a list of referrers too."""
        return Descriptor(
            media_type=MANIFEST_TYPE,
            digest=compute_digest(self.content),
            size=len(self.content),
            artifact_type=self.manifest.artifact_type,
            annotations=self.manifest.annotations,
        )


@dataclass(frozen=True)
class Facts:
    """What an image manifest says of its bundle; nothing of it is proven."""

    bundle: str
    """``NAME-VERSION-TARGET``."""
    project: str
    version: str
    target: str
    release: str
    """The SHA-256 of its ``manifest.json``, in hex."""


def read_facts(manifest: ImageManifest, where: str) -> Facts:
    """Return what an image manifest says of its bundle.

    Args:
        manifest: What a tag or digest leads to.
        where: The address, for the error.

    Raises:
        RegistryError: It has no bundle.
    """
    said = manifest.annotations or {}
    names = (TITLE, PROJECT, VERSION, TARGET, RELEASE)
    is_bundle = manifest.artifact_type == ARTIFACT_TYPE and all(name in said for name in names)
    if not is_bundle or not re.fullmatch("[0-9a-f]{64}", said[RELEASE]):
        raise RegistryError(
            "this is no bundle of edgepack",
            hint="look at what it is: skopeo inspect --raw; 'edgepack publish' writes bundles",
            where=where,
        )
    return Facts(*(said[name] for name in names))


def make_artifact(bundle: AnyBundle, chunks: Chunks) -> Artifact:
    """Return a bundle as it lies in a registry; the same bundle gives the same bytes.

    Args:
        bundle: Whose files are whole.
        chunks: Those of each file of more than :data:`LEAST_CHUNKED` bytes.
    """
    manifest = bundle.manifest
    text = (bundle.path / MANIFEST).read_bytes()
    listed = {path: [list(chunk) for chunk in each] for path, each in sorted(chunks.items())}
    blobs = [
        _make_layer(_CONFIG_FILES, MANIFEST, text),
        *(_make_file(bundle.path, file) for file in manifest.files),
        _make_layer(CHUNKS_TYPE, CHUNKS, _encode({"schema_version": 1, "files": listed})),
    ]
    layers = [blob.descriptor for blob in blobs]
    config = {
        "descriptor": {
            "name": manifest.name,
            "version": manifest.version,
            "title": manifest.id,
            "description": f"A bundle for {manifest.target}",
        },
        "config": {"format": "onnx"},
        "modelfs": {"type": "layers", "diffIds": [layer.digest for layer in layers]},
    }
    annotations = {
        TITLE: manifest.id,
        VERSION: manifest.version,
        PROJECT: manifest.name,
        TARGET: manifest.target,
        RELEASE: bundle.digest,
    }
    return _assemble(ARTIFACT_TYPE, _make_blob(CONFIG_TYPE, _encode(config)), blobs, annotations)


def make_referrer(
    subject: Descriptor,
    artifact_type: str,
    files: Iterable[tuple[str, str, bytes | Path]],
    annotations: Mapping[str, str] | None = None,
) -> Artifact:
    """Return what refers to a manifest.

    Args:
        subject: The manifest.
        artifact_type: What it is.
        files: Media type, name and content of each layer.
        annotations: Those of the referrer.
    """
    config = _make_blob(EMPTY_TYPE, EMPTY)
    blobs = [_make_layer(kind, title, content) for kind, title, content in files]
    plain = Descriptor(media_type=MANIFEST_TYPE, digest=subject.digest, size=subject.size)
    return _assemble(artifact_type, config, blobs, annotations, plain)


def make_signature(subject: Descriptor, signature: bytes) -> Artifact:
    """Return the referrer with the signature of a bundle."""
    return make_referrer(subject, SIGNATURE_TYPE, [(SIGNATURE_TYPE, MANIFEST_SIGNATURE, signature)])


def make_sbom_referrers(subject: Descriptor, bundle: AnyBundle) -> list[Artifact]:
    """Return the referrer with a bundle's SBOM, or with those of its parts, if it has any."""
    found = [file for file in bundle.manifest.files if Path(file.path).name == SBOM]
    files = [(SBOM_TYPE, file.path, bundle.path / file.path) for file in found]
    return [make_referrer(subject, SBOM_TYPE, files)] if files else []


def _assemble(
    artifact_type: str,
    config: Blob,
    blobs: Sequence[Blob],
    annotations: Mapping[str, str] | None,
    subject: Descriptor | None = None,
) -> Artifact:
    manifest = ImageManifest(
        artifact_type=artifact_type,
        config=config.descriptor,
        layers=[blob.descriptor for blob in blobs],
        subject=subject,
        annotations=dict(annotations) if annotations else None,
    )
    return Artifact(manifest, (config, *blobs), manifest.encode())


def _make_blob(media_type: str, content: bytes) -> Blob:
    digest = compute_digest(content)
    return Blob(Descriptor(media_type=media_type, digest=digest, size=len(content)), content)


def _make_layer(media_type: str, title: str, content: bytes | Path) -> Blob:
    data = content if isinstance(content, bytes) else content.read_bytes()
    blob = _make_blob(media_type, data)
    return Blob(_entitle(blob.descriptor, title), content)


def _make_file(folder: Path, file: BundleFile) -> Blob:
    descriptor = Descriptor(
        media_type=_TYPES.get(file.role, _CONFIG_FILES),
        digest=f"sha256:{file.sha256}",
        size=file.size_bytes,
    )
    return Blob(_entitle(descriptor, file.path), folder / file.path)


def _entitle(descriptor: Descriptor, title: str) -> Descriptor:
    return descriptor.model_copy(update={"annotations": {FILE_PATH: title, TITLE: title}})


def _encode(document: object) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()

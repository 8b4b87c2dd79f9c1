"""Gets bundles from a registry or a bucket as folders; nothing counts that was not hashed here.

``manifest.json`` has the hash that the image manifest says, and names each other file by its own
hash. What the registry's layers call their files decides nothing about where something is written.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from edgepack.base.files import holding
from edgepack.base.progress import Progress, Silent, Task, Work
from edgepack.bundle.archive import copy_file
from edgepack.bundle.manifest import (
    MANIFEST,
    MANIFEST_DIGEST,
    MANIFEST_SIGNATURE,
    BundleFile,
    Manifest,
)
from edgepack.bundle.pipeline import PipelineManifest
from edgepack.bundle.reading import parse_any, verify_any
from edgepack.bundle.signing import Signature
from edgepack.bundle.writing import replacing
from edgepack.errors import BundleError, RegistryError, UsageError, suggest_nearest
from edgepack.registry.artifact import CHUNKS, TARGET, Facts, read_facts
from edgepack.registry.bucket import open_repository
from edgepack.registry.connection import pooled
from edgepack.registry.documents import Descriptor, ImageManifest
from edgepack.registry.reference import Reference, is_reference
from edgepack.registry.referrers import FoundSignature, find_signature
from edgepack.registry.repository import LIES, Found, Repository

MOST_MANIFEST = 64 << 20
"""Bytes of a ``manifest.json`` that is read."""
MOST_NAME = 255
"""Characters of ``NAME-VERSION-TARGET``, which is a folder's name (NAME_MAX of POSIX on Linux)."""


@dataclass(frozen=True)
class Fetched:
    """A bundle that was got from a registry."""

    reference: str
    """Its address with the digest of its image manifest."""
    path: Path
    """The bundle's folder."""
    bundle: str
    """``NAME-VERSION-TARGET``."""
    release: str
    """The SHA-256 of its ``manifest.json``."""
    signature: Signature | None
    """None where it is not signed."""
    bytes_fetched: int
    """0 where all of it was here already."""


@dataclass(frozen=True)
class FetchOptions:
    """How bundles are got."""

    allowed_signers: Path | None = None
    """The file that names signers; default: ``~/.ssh/allowed_signers``."""
    require_signature: bool = False
    plain_http: bool = False
    """Whether the registry is asked without TLS, although it is not on this machine."""


_OPTIONS = FetchOptions()


def fetch(
    reference: Reference,
    *,
    out: Path | None = None,
    options: FetchOptions = _OPTIONS,
    progress: Progress | None = None,
) -> list[Fetched]:
    """Get the bundles that a tag or a digest leads to.

    Where there is no such tag, those are meant that have ``-`` and their target behind it.

    Args:
        reference: Which.
        out: The folder that their folders go into. Default: the user's cache, where a bundle lies
            by the digest of its image manifest, and is hashed again before it is taken from there.
        options: How.
        progress: Where to report; default: nowhere.

    Raises:
        BundleError: What the registry sends is not what it says, or not what the bundle's manifest
            says; or a required signature is missing. Nothing half-written is left.
        UsageError: There is no such tag or digest.
        RegistryError: The registry refuses, does not answer, or has something else there.
        ToolError: urllib3 or ssh-keygen is missing, or the place cannot be written.
    """
    repository = open_repository(reference, plain_http=options.plain_http)
    names = [reference.name]
    if not reference.digest and repository.read_manifest(reference.name) is None:
        names = list_tagged(repository, reference.name)
    return [_fetch(repository, name, out, options, progress or Silent()) for name in names]


def find_folders(
    words: Sequence[str],
    *,
    options: FetchOptions = _OPTIONS,
    progress: Progress | None = None,
) -> list[Path]:
    """Return paths as they are, and the folders of what is in registries, got as by :func:`fetch`.

    Args:
        words: Paths, and addresses that begin with ``oci://`` or ``s3://``.
        options: How they are got.
        progress: Where to report; default: nowhere.

    Raises:
        EdgepackError: As :func:`fetch`; or a word is no address.
    """
    found: list[Path] = []
    for word in words:
        if is_reference(word):
            got = fetch(Reference.parse(word), options=options, progress=progress)
            found += [each.path for each in got]
        else:
            found.append(Path(word))
    return found


def list_tagged(repository: Repository, name: str) -> list[str]:
    """Return a tag, or those of several targets that were published under it.

    Raises:
        UsageError: There is none; or there are both, so that one may have been left behind.
    """
    tags = repository.list_tags()
    found = [
        tag
        for tag in tags
        if tag.startswith(f"{name}-") and tag == f"{name}-{_find_target(repository, tag)}"
    ]
    if name in tags and found:
        raise UsageError(
            f"there are {name!r} and {', '.join(map(repr, found))}, and one may be left behind",
            hint=f"name one of those with a target, or the digest of what {name!r} leads to:"
            f" 'edgepack channel show {repository.reference.at(name)} --json' has it",
            where=str(repository.reference.at("")),
        )
    if name in tags:
        return [name]
    if not found:
        raise UsageError(
            f"there is no tag {name!r} in {repository.reference.at('')}",
            hint=suggest_nearest(name, tags),
        )
    return found


def _find_target(repository: Repository, tag: str) -> str:
    """Return what a tag says of its bundle's target; empty where it leads to no bundle."""
    try:
        manifest, _ = repository.read_image(tag)
    except RegistryError as error:
        if error.transient:
            raise
        return ""
    return (manifest.annotations or {}).get(TARGET, "")


def _fetch(
    repository: Repository, name: str, out: Path | None, options: FetchOptions, progress: Progress
) -> Fetched:
    found = find_bundle(repository, name)
    where = str(repository.reference.at(name))
    facts, text, digest = found.facts, found.text, found.image.digest
    signature = find_signature(repository, digest, text, options.allowed_signers)
    if options.require_signature:
        require_known(signature, where)
    source = _Source(repository, found.manifest, where, progress)
    path = out / facts.bundle if out else _find_cache() / digest.removeprefix("sha256:")
    with holding(path):
        if not out:
            # What a killed one left: nobody else writes there while this one holds the place.
            for left in path.parent.glob(f".{path.name}-*"):
                shutil.rmtree(left, ignore_errors=True)
        if out or not _is_whole(path, facts):
            sent = source.write(path, text, found.bundle, signature)
        else:
            sent = 0
            _put_signature(path, signature)
    return Fetched(
        reference=where if name.startswith("sha256:") else f"{where}@{digest}",
        path=path,
        bundle=facts.bundle,
        release=facts.release,
        signature=signature.signature if signature else None,
        bytes_fetched=sent,
    )


def _find_cache() -> Path:
    import platformdirs

    return platformdirs.user_cache_path("edgepack") / "registry"


def _is_whole(path: Path, facts: Facts) -> bool:
    """Return whether a folder has all files of a release; whatever else is there is replaced."""
    if not path.exists():
        return False
    try:
        return verify_any(path).digest == facts.release
    except BundleError:
        return False


def _put_signature(path: Path, found: FoundSignature | None) -> None:
    """Let a bundle in the cache have the signature that the registry has now."""
    place = path / MANIFEST_SIGNATURE
    if found is None:
        place.unlink(missing_ok=True)
    elif not place.exists() or place.read_bytes() != found.content:
        with tempfile.NamedTemporaryFile(prefix="edgepack-") as scratch:
            scratch.write(found.content)
            scratch.flush()
            copy_file(Path(scratch.name), place, by_way_of=path.parent)


@dataclass(frozen=True)
class FoundBundle:
    """A bundle in a registry, of which ``manifest.json`` was read and hashed."""

    manifest: ImageManifest
    image: Found
    """The image manifest's bytes."""
    facts: Facts
    """What ``manifest.json`` says, and not what the registry calls it."""
    text: bytes
    """``manifest.json``."""
    bundle: Manifest | PipelineManifest


def find_bundle(repository: Repository, name: str) -> FoundBundle:
    """Return the bundle that a tag or a digest leads to; its files are not looked at.

    Raises:
        UsageError: There is no such tag or digest.
        RegistryError: It leads to what is no bundle.
        BundleError: There is no ``manifest.json``; it is not the one that the image manifest names
            as its release; or it says something else of itself than the image manifest does.
    """
    manifest, image = repository.read_image(name)
    where = str(repository.reference.at(name))
    said = read_facts(manifest, where)
    text = _read_bundle_manifest(repository, manifest, said)
    bundle = parse_any(text)
    if len(bundle.id) > MOST_NAME:
        raise BundleError(
            f"the bundle's name has {len(bundle.id)} characters, and no folder can be called so",
            hint=LIES,
            where=where,
        )
    facts = Facts(bundle.id, bundle.name, bundle.version, bundle.target, said.release)
    for what, true in asdict(facts).items():
        if (called := asdict(said)[what]) != true:
            raise BundleError(
                f"the registry says {called[:100]!r} of the bundle's {what}, and {MANIFEST} says"
                f" {true!r}",
                hint=LIES,
                where=where,
            )
    return FoundBundle(manifest, image, facts, text, bundle)


def _read_bundle_manifest(repository: Repository, manifest: ImageManifest, facts: Facts) -> bytes:
    layer = manifest.find_layer(MANIFEST)
    if layer is None or layer.digest != f"sha256:{facts.release}":
        raise BundleError(
            f"the registry's manifest names the release {facts.release[:16]} and has"
            f" {'another' if layer else 'no'} {MANIFEST}",
            hint=LIES,
            where=str(repository.reference),
        )
    return repository.read_bytes(layer, MOST_MANIFEST)


def require_known(found: FoundSignature | None, where: str) -> None:
    """Check that a known signer has signed a bundle.

    Raises:
        BundleError: It is not signed, or by somebody whom the allowed signers do not name.
    """
    if found is None:
        raise BundleError(
            "the bundle is not signed", hint="edgepack sign it, and publish it again", where=where
        )
    if found.signature.signer is None:
        raise BundleError(
            f"the bundle is {found.signature}, and {found.signature.unknown}",
            hint="if you trust this key, add it to the allowed signers: docs/pushing.md",
            where=where,
        )


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    path.chmod(0o644)


@dataclass(frozen=True)
class _Source:
    """A bundle in a registry, whose files are got."""

    repository: Repository
    manifest: ImageManifest
    where: str
    progress: Progress

    def write(
        self,
        path: Path,
        text: bytes,
        bundle: Manifest | PipelineManifest,
        signature: FoundSignature | None,
    ) -> int:
        """Write the bundle's folder, whole or not at all, and return how many bytes were got."""
        files = bundle.files
        layers = self._match(files)
        size = sum(file.size_bytes for file in files)
        title = f"{bundle.id}: fetching"
        digest = f"{hashlib.sha256(text).hexdigest()}  {MANIFEST}\n"
        with replacing(path) as folder:
            _write(folder / MANIFEST, text)
            _write(folder / MANIFEST_DIGEST, digest.encode("ascii"))
            with (
                self.progress.start_task(Work(title, size, unit="bytes")) as task,
                pooled() as pool,
            ):
                for _ in pool.map(lambda file: self._get(file, layers, folder, task), files):
                    pass
            if signature:
                _write(folder / MANIFEST_SIGNATURE, signature.content)
            verify_any(folder)
        return size

    def _match(self, files: Sequence[BundleFile]) -> dict[str, Descriptor]:
        """Return the layer of each file.

        Raises:
            BundleError: The layers are not exactly the bundle's files.
        """
        layers = {layer.title: layer for layer in self.manifest.layers}
        expected = {MANIFEST, CHUNKS, *(file.path for file in files)}
        problems = [
            f"{title!r} is none of the bundle's files" for title in layers.keys() - expected
        ]
        for file in files:
            layer = layers.get(file.path)
            if layer is None:
                problems.append(f"{file.path!r} is missing")
            elif (layer.digest, layer.size) != (f"sha256:{file.sha256}", file.size_bytes):
                problems.append(f"{file.path!r} is another file than {MANIFEST} says")
        if problems:
            more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
            raise BundleError(
                f"the registry's layers are not the bundle's files: {min(problems)}{more}",
                hint=LIES,
                where=self.where,
            )
        return layers

    def _get(
        self, file: BundleFile, layers: dict[str, Descriptor], folder: Path, task: Task
    ) -> None:
        place = folder / file.path
        place.parent.mkdir(parents=True, exist_ok=True)
        with place.open("xb") as target:
            self.repository.read_blob(layers[file.path], target)
        place.chmod(int(file.mode, 8))
        task(file.path, by=file.size_bytes)

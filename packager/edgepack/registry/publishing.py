"""Writes bundles into a registry: blobs that it lacks, the manifest, what refers to it, then tags.

Who follows a tag finds the signature there already. Publishing again what is there sends nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

from edgepack.base.progress import Progress, Silent, Task, Work
from edgepack.bundle.manifest import MANIFEST_SIGNATURE
from edgepack.bundle.reading import AnyBundle, verify_any
from edgepack.bundle.signing import (
    Signature,
    find_fingerprint,
    read_signature,
    require_signature,
)
from edgepack.deploy.fleet.bundles import load_bundles_by_target
from edgepack.deploy.transfer.chunks import cut_file
from edgepack.errors import BundleError, RegistryError, UsageError
from edgepack.registry.artifact import (
    LEAST_CHUNKED,
    Artifact,
    Blob,
    Facts,
    make_artifact,
    make_sbom_referrers,
    make_signature,
    read_facts,
)
from edgepack.registry.bucket import open_repository
from edgepack.registry.channels import Move, find_entry, plan_move
from edgepack.registry.connection import pooled
from edgepack.registry.documents import MANIFEST_TYPE, MOST_BYTES, Descriptor
from edgepack.registry.fetching import FoundBundle, find_bundle, list_tagged, require_known
from edgepack.registry.reference import Reference, is_digest, require_tag
from edgepack.registry.referrers import find_signature
from edgepack.registry.repository import Repository


@dataclass(frozen=True)
class Published:
    """A bundle in a registry."""

    reference: str
    """Its address with its tag and digest."""
    digest: str
    """Of the image manifest."""
    tags: tuple[str, ...]
    bundle: str
    target: str
    release: str
    """The SHA-256 of its ``manifest.json``."""
    signer: str | None
    """None where it is not signed, or where the allowed signers do not name the key."""
    is_signed: bool
    blobs_sent: int
    bytes_sent: int
    blobs_there: int
    """How many the registry had already."""


@dataclass(frozen=True)
class PublishOptions:
    """How bundles are published."""

    move: bool = False
    """Whether a tag may be moved that leads to another bundle."""
    require_signature: bool = False
    allowed_signers: Path | None = None
    """The file that names signers; default: ``~/.ssh/allowed_signers``."""
    plain_http: bool = False
    """Whether the registry is asked without TLS, although it is not on this machine."""
    channel: str = ""
    """The channel that is moved to the bundle; empty: none."""
    key: Path | None = None
    """Whose signature the channel's entry gets; see :func:`edgepack.bundle.signing.sign`."""
    downgrade: bool = False
    """Whether the channel may go back to an older version, and devices with it."""
    sequence: int | None = None
    """The least number of the channel's entry; default: the next one. What the channel leads to
    does not count then, unless a known signer has signed it."""
    gate: Callable[[str], None] | None = None
    """Raises an error for a release, by the SHA-256 of its ``manifest.json``, that must not go out;
    nothing is sent then."""


_OPTIONS = PublishOptions()


def publish(
    paths: Sequence[Path],
    reference: Reference,
    *,
    options: PublishOptions = _OPTIONS,
    progress: Progress | None = None,
) -> list[Published]:
    """Publish bundles to a repository.

    One gets the tag of the reference, several get it with ``-`` and their targets. Without a tag in
    the reference it is the project's version.

    Args:
        paths: Folders of bundles of one project, or folders that hold such.
        reference: Where.
        options: How.
        progress: Where to report; default: nowhere.

    Raises:
        BundleError: A bundle is not whole, or lacks a required signature.
        UsageError: There are two bundles for a target; or a tag leads to another bundle already; or
            a tag of a bucket is to be moved.
        RegistryError: The registry refuses, or does not answer.
        ToolError: urllib3 or ssh-keygen is missing.
    """
    progress = progress or Silent()
    if reference.digest:
        raise UsageError(
            f"{reference} names a digest, and publishing makes one",
            hint="name a tag: oci://HOST/REPOSITORY:TAG",
        )
    if options.channel or options.move:
        reference.require_registry("only registries move tags and have channels")
    bundles = load_bundles_by_target(paths)
    repository = open_repository(reference, plain_http=options.plain_http)
    several = len(bundles) > 1
    offered = [
        _offer(bundle, _choose_tag(reference, bundle, several=several), options, progress)
        for bundle in bundles.values()
    ]
    ready = []
    for offer in offered:
        if not options.move:
            require_free(repository, offer.tags[0], offer.descriptor.digest)
        suffix = f"-{offer.facts.target}" if several else ""
        ready.append(_plan(offer, suffix, repository, options, progress))
    return [_publish(offer, repository, progress) for offer in ready]


def promote(
    reference: Reference,
    after: str,
    *,
    options: PublishOptions,
    progress: Progress | None = None,
) -> list[Published]:
    """Move a channel to exactly the bundles that another channel, any tag or a digest leads to.

    Where there is no such tag, those are meant that have ``-`` and their target behind it, and the
    channel that is moved is called in the same way.

    Args:
        reference: The repository.
        after: The channel, tag or digest that goes before. With a key in the options, a channel
            counts only where it has an entry of that key or of a known signer.
        options: How; they name the ``channel``.
        progress: Where to report; default: nowhere.

    Raises:
        BundleError: A bundle lacks a required signature, or is not what the registry says of it.
        UsageError: There is no such tag, or there are both it and those with a target; nobody known
            has signed where it leads; or the channel has a newer version, or is of another project
            or target.
        RegistryError: The registry refuses, or does not answer.
        ToolError: urllib3 or ssh-keygen is missing.
    """
    progress = progress or Silent()
    reference.require_registry("only registries have channels")
    repository = open_repository(reference, plain_http=options.plain_http)
    ready = [
        _plan(
            _take(repository, tag, options), tag.removeprefix(after), repository, options, progress
        )
        for tag in ([after] if is_digest(after) else list_tagged(repository, after))
    ]
    return [_publish(offer, repository, progress) for offer in ready]


def make_artifacts(whole: AnyBundle, signature: bytes | None) -> list[Artifact]:
    """Return a bundle as it lies in a registry, and after it what refers to it.

    Args:
        whole: The bundle, whose files were verified.
        signature: That of its manifest; None: it has none.

    Raises:
        BundleError: It has too many files for a registry.
    """
    path = whole.path
    chunks = {
        file.path: [(chunk.sha256, chunk.size) for chunk in cut_file(path / file.path)]
        for file in whole.manifest.files
        if file.size_bytes > LEAST_CHUNKED
    }
    artifact = make_artifact(whole, chunks)
    if len(artifact.content) > MOST_BYTES:
        raise BundleError(
            f"{str(path)!r} has {len(whole.manifest.files)} files, and registries take no manifest"
            f" of more than {MOST_BYTES >> 20} MiB",
            hint="put them into fewer 'files' in edgepack.yaml: a .zip or .tar",
        )
    subject = artifact.descriptor
    signatures = [make_signature(subject, signature)] if signature else []
    return [artifact, *make_sbom_referrers(subject, whole), *signatures]


@dataclass(frozen=True)
class _Offer:
    """A bundle that is whole, or was published, and as what it is published."""

    facts: Facts
    descriptor: Descriptor
    """Of the image manifest."""
    content: bytes
    """Of the image manifest."""
    artifacts: tuple[Artifact, ...]
    """What is sent."""
    tags: tuple[str, ...]
    signature: Signature | None


def _choose_tag(reference: Reference, bundle: AnyBundle, *, several: bool) -> str:
    tag = reference.tag or _make_version_tag(bundle.manifest.version)
    return require_tag(f"{tag}-{bundle.manifest.target}" if several else tag)


def _make_version_tag(version: str) -> str:
    return version.replace("+", "_")


def _offer(bundle: AnyBundle, tag: str, options: PublishOptions, progress: Progress) -> _Offer:
    path = bundle.path
    whole = verify_any(path)
    check = require_signature if options.require_signature else read_signature
    signature = check(path, options.allowed_signers)
    if signature is None:
        progress.note(f"{path} is not signed: devices that know your signers refuse it")
    elif signature.manifest_sha256 != whole.digest:
        raise BundleError(
            f"{str(path)!r} was changed while its signature was checked",
            hint="publish again when nothing builds or signs it any more",
        )
    artifacts = make_artifacts(
        whole, (path / MANIFEST_SIGNATURE).read_bytes() if signature else None
    )
    artifact = artifacts[0]
    facts = read_facts(artifact.manifest, str(path))
    return _Offer(facts, artifact.descriptor, artifact.content, tuple(artifacts), (tag,), signature)


def _take(repository: Repository, tag: str, options: PublishOptions) -> _Offer:
    """Return what a tag leads to, with its signature."""
    found = find_bundle(repository, tag)
    if options.key is not None:
        _require_moved(repository, tag, found, options.key, options.allowed_signers)
    content, digest = found.image.content, found.image.digest
    signature = find_signature(repository, digest, found.text, options.allowed_signers)
    if options.require_signature:
        require_known(signature, str(repository.reference.at(tag)))
    descriptor = Descriptor(media_type=MANIFEST_TYPE, digest=digest, size=len(content))
    return _Offer(
        found.facts, descriptor, content, (), (), signature.signature if signature else None
    )


def _require_moved(
    repository: Repository, name: str, found: FoundBundle, key: Path, allowed_signers: Path | None
) -> None:
    """Check that a known signer has moved a channel here, unless its name says which bundle it is.

    Whoever may write to the repository moves its tags, and a new entry is signed for what they lead
    to.

    Raises:
        UsageError: No known signer has.
    """
    facts = found.facts
    version = _make_version_tag(facts.version)
    is_version = version[0].isdigit() and name in (version, f"{version}-{facts.target}")
    if is_version or is_digest(name):
        return
    entry = find_entry(
        repository, found.image.digest, facts, name, allowed_signers, find_fingerprint(key)
    )
    if entry is None or not entry.is_known:
        raise UsageError(
            f"neither your key nor a signer whom you know has signed that {name!r} leads to"
            f" {facts.bundle}",
            hint="--allowed-signers FILE names who may sign; or name the bundle itself: --after"
            f" {found.image.digest}",
            where="--after",
        )


def _plan(
    offer: _Offer,
    suffix: str,
    repository: Repository,
    options: PublishOptions,
    progress: Progress,
) -> _Offer:
    """Return an offer with the channel that is moved to it, after all that may refuse it."""
    if options.gate:
        options.gate(offer.facts.release)
    if not options.channel:
        return offer
    channel = require_tag(f"{options.channel}{suffix}", "--channel")
    if channel in offer.tags:
        raise UsageError(
            f"{channel!r} is the tag and the channel",
            hint="leave the tag away: the bundle gets its version as another tag",
            where="--channel",
        )
    other = f"{options.channel}-{offer.facts.target}" if not suffix else options.channel
    _require_only(repository, channel, other, offer.facts.target, options)
    move = Move(channel, options.key, options.downgrade, options.sequence, options.allowed_signers)
    entry = plan_move(repository, offer.facts, offer.descriptor, move, progress)
    if entry is not None and options.key is None:
        progress.note(f"the entry of {channel} is not signed: devices that know signers refuse it")
    return replace(
        offer,
        artifacts=(*offer.artifacts, *([entry] if entry else [])),
        tags=(*offer.tags, channel),
    )


def _require_only(
    repository: Repository, channel: str, other: str, target: str, options: PublishOptions
) -> None:
    """Check that a target has not another channel of the name already, which devices follow.

    Raises:
        UsageError: It has.
    """
    try:
        found = None if repository.read_manifest(other) is None else find_bundle(repository, other)
    except (BundleError, RegistryError) as error:
        if error.transient:
            raise
        return  # no device takes what is no bundle
    if found is None or found.facts.target != target:
        return
    own = find_fingerprint(options.key) if options.key else ""
    entry = find_entry(
        repository, found.image.digest, found.facts, other, options.allowed_signers, own
    )
    if entry is not None and (entry.is_known or options.key is None):
        raise UsageError(
            f"devices of {target} may follow the channel {other!r}, and {channel!r} would leave"
            " them behind",
            hint=f"publish each target by itself: that of {target} with --channel {other}; or with"
            f" --channel {options.channel}-{target} when its devices are enrolled there",
            where="--channel",
        )


def require_free(repository: Repository, tag: str, digest: str) -> None:
    """Check that a tag leads nowhere yet, or to a digest.

    Raises:
        UsageError: It leads to another one.
    """
    found = repository.read_manifest(tag)
    if found is not None and found.digest != digest:
        raise UsageError(
            f"{repository.reference.at(tag)} leads to {found.digest} already, and this bundle is"
            f" {digest}",
            hint="choose another tag; --move moves this one, and --channel is for tags that move",
        )


def _publish(offer: _Offer, repository: Repository, progress: Progress) -> Published:
    sent = send_artifacts(offer.artifacts, repository, offer.facts.bundle, progress)
    digest = offer.descriptor.digest
    for tag in offer.tags:
        found = repository.read_manifest(tag)
        if found is None or found.digest != digest:
            repository.write_manifest(tag, offer.content)
    # Without the referrers API, somebody who published meanwhile may have written a list without
    # these.
    for each in offer.artifacts:
        if each.manifest.subject is not None:
            _send_manifest(each, repository)
    return Published(
        reference=f"{repository.reference.at(offer.tags[0])}@{digest}",
        digest=digest,
        tags=offer.tags,
        bundle=offer.facts.bundle,
        target=offer.facts.target,
        release=offer.facts.release,
        signer=offer.signature.signer if offer.signature else None,
        is_signed=offer.signature is not None,
        blobs_sent=sent.blobs,
        bytes_sent=sent.size,
        blobs_there=sent.there,
    )


@dataclass(frozen=True)
class Sent:
    """What was sent, and what was there."""

    blobs: int
    size: int
    there: int


def send_artifacts(
    artifacts: Sequence[Artifact], repository: Repository, title: str, progress: Progress
) -> Sent:
    """Send blobs that the repository lacks, then manifests; each manifest finds its blobs there.

    Args:
        artifacts: Those that refer to others come after them.
        repository: Where.
        title: What is sent, for the progress.
        progress: Where to report.
    """
    blobs = {blob.descriptor.digest: blob for each in artifacts for blob in each.blobs}
    with pooled() as pool:
        there = dict(zip(blobs, pool.map(repository.has_blob, blobs), strict=True))
        missing = [blob for digest, blob in blobs.items() if not there[digest]]
        size = sum(blob.descriptor.size for blob in missing)
        if missing:
            with progress.start_task(Work(f"{title}: publishing", size, unit="bytes")) as task:
                _send_blobs(missing, repository, pool, task)
    for each in artifacts:
        _send_manifest(each, repository)
    return Sent(len(missing), size, len(blobs) - len(missing))


def _send_blobs(
    blobs: Iterable[Blob], repository: Repository, pool: ThreadPoolExecutor, task: Task
) -> None:
    def send(blob: Blob) -> None:
        descriptor = blob.descriptor
        repository.write_blob(descriptor.digest, descriptor.size, _open(blob.content))
        task(descriptor.title or descriptor.media_type, by=descriptor.size)

    for _ in pool.map(send, blobs):
        pass


def _open(content: bytes | Path) -> Callable[[], BinaryIO]:
    return (
        (lambda: BytesIO(content)) if isinstance(content, bytes) else (lambda: content.open("rb"))
    )


def _send_manifest(artifact: Artifact, repository: Repository) -> None:
    descriptor, subject = artifact.descriptor, artifact.manifest.subject
    if subject is not None:
        known = {each.digest for each in repository.list_referrers(subject.digest)}
        if descriptor.digest not in known:
            repository.write_referrer(descriptor, artifact.content, subject.digest)
    elif not repository.has_manifest(descriptor.digest):
        repository.write_manifest(descriptor.digest, artifact.content)

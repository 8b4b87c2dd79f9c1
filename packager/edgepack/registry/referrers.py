"""Reads what refers to a bundle in a registry: its signatures, and the entries of channels.

Whoever may write to a repository may add referrers, so none counts before it is checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from edgepack.bundle.manifest import MANIFEST_SIGNATURE
from edgepack.bundle.signing import NAMESPACE, Signature, check_message
from edgepack.errors import BundleError, RegistryError
from edgepack.registry.artifact import SIGNATURE_TYPE
from edgepack.registry.documents import Descriptor
from edgepack.registry.repository import Repository

MOST = 32
"""Of one kind that are looked at."""
_MOST_BYTES = 1 << 16


def list_referrers(repository: Repository, subject: str, artifact_type: str) -> list[Descriptor]:
    """Return those of one kind that refer to a manifest."""
    found = repository.list_referrers(subject)
    return [each for each in found if each.artifact_type == artifact_type]


def read_layers(
    repository: Repository, subject: str, referrers: Iterable[Descriptor]
) -> Iterator[Mapping[str, bytes]]:
    """Yield each referrer's layers by their names; those that are not what they should be are left.

    Args:
        repository: Where.
        subject: The digest that they have to refer to.
        referrers: Which.
    """
    for descriptor in referrers:
        try:
            manifest, _ = repository.read_image(descriptor.digest)
            if manifest.subject is None or manifest.subject.digest != subject:
                continue
            yield {
                layer.title: repository.read_bytes(layer, _MOST_BYTES)
                for layer in manifest.layers[:4]
            }
        except (BundleError, RegistryError) as error:
            if error.transient:
                raise


@dataclass(frozen=True)
class FoundSignature:
    """A signature of a bundle's manifest, and its bytes."""

    signature: Signature
    content: bytes


def find_signature(
    repository: Repository, subject: str, message: bytes, allowed_signers: Path | None = None
) -> FoundSignature | None:
    """Return a bundle's signature: of a known signer, if there is one; None if it is not signed.

    Args:
        repository: Where the bundle is.
        subject: The digest of its image manifest.
        message: Its ``manifest.json``.
        allowed_signers: Who may sign. Default: ``~/.ssh/allowed_signers``, if it exists.

    Raises:
        BundleError: There are signatures, and all are of something else.
        UsageError: There is no such file of allowed signers.
        ToolError: ssh-keygen is missing or too old.
    """
    referrers = list_referrers(repository, subject, SIGNATURE_TYPE)
    refused: BundleError | None = None
    found: FoundSignature | None = None
    for layers in read_layers(repository, subject, referrers[-MOST:]):
        content = layers.get(MANIFEST_SIGNATURE, b"")
        try:
            signature = check_message(message, content, NAMESPACE, allowed_signers)
        except BundleError as error:
            refused = error
            continue
        found = FoundSignature(signature, content)
        if signature.signer is not None:
            return found
    if found is None and refused is not None:
        raise refused
    return found

"""Lists where the tags of a repository lead."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edgepack.errors import EdgepackError
from edgepack.registry.bucket import open_repository
from edgepack.registry.channels import find_entry
from edgepack.registry.fetching import find_bundle
from edgepack.registry.reference import Reference
from edgepack.registry.referrers import find_signature
from edgepack.registry.repository import Repository


@dataclass(frozen=True)
class ListedTag:
    """Where a tag leads."""

    tag: str
    digest: str = ""
    """Of the image manifest."""
    bundle: str = ""
    """``NAME-VERSION-TARGET``."""
    version: str = ""
    target: str = ""
    release: str = ""
    """The SHA-256 of its ``manifest.json``."""
    signature: str = ""
    """Whose signature the bundle has, in words; empty if it is not signed."""
    sequence: int | None = None
    """Of the tag's entry as a channel; None where it is none."""
    entry_signature: str = ""
    """Whose signature the entry has, in words; empty if it is not signed."""
    downgrade: bool = False
    problem: str = ""
    """Why nothing is known of it: what it leads to is no bundle, or is broken."""


def list_tags(
    reference: Reference, *, allowed_signers: Path | None = None, plain_http: bool = False
) -> list[ListedTag]:
    """Return where each tag of a repository leads, or the one tag that the address names.

    Args:
        reference: The repository.
        allowed_signers: The file that names signers; default: ``~/.ssh/allowed_signers``.
        plain_http: Whether it is asked without TLS, although it is not on this machine.

    Raises:
        UsageError: There is no such repository, or no such file of allowed signers.
        RegistryError: The registry refuses, or does not answer.
        ToolError: urllib3 or ssh-keygen is missing.
    """
    repository = open_repository(reference, plain_http=plain_http)
    tags = [reference.tag] if reference.tag else repository.list_tags()
    found = []
    for tag in tags:
        try:
            found.append(_look_at(repository, tag, allowed_signers))
        except EdgepackError as error:
            if error.transient or reference.tag:
                raise
            found.append(ListedTag(tag, problem=error.first_line))
    return found


def _look_at(repository: Repository, tag: str, allowed_signers: Path | None) -> ListedTag:
    found = find_bundle(repository, tag)
    facts, digest = found.facts, found.image.digest
    signed = find_signature(repository, digest, found.text, allowed_signers)
    entry = find_entry(repository, digest, facts, tag, allowed_signers)
    return ListedTag(
        tag=tag,
        digest=digest,
        bundle=facts.bundle,
        version=facts.version,
        target=facts.target,
        release=facts.release,
        signature=str(signed.signature) if signed else "",
        sequence=entry.entry.sequence if entry else None,
        entry_signature=str(entry.signature) if entry and entry.signature else "",
        downgrade=bool(entry and entry.entry.downgrade),
    )

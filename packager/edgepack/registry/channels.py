"""Channels: tags that are moved from release to release, with an entry that is signed.

A tag alone says nothing about order: whoever may write to the repository may move it back. So a
channel's entry refers to the manifest that the tag leads to, and counts up. Devices take none that
counts less than one that they have seen, and go back to an older version only where it says so.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from edgepack.base.schema import StrictModel
from edgepack.bundle.signing import Signature, check_message, sign_message
from edgepack.errors import BundleError, UsageError
from edgepack.registry.artifact import (
    SIGNATURE_TYPE,
    Artifact,
    Facts,
    make_referrer,
    read_facts,
)
from edgepack.registry.documents import Descriptor
from edgepack.registry.referrers import MOST, list_referrers, read_layers
from edgepack.registry.repository import Repository

CHANNEL_TYPE = "application/vnd.edgepack.channel.v1+json"
NAMESPACE = "edgepack-channel"
"""Of the signatures of entries: a signature of a bundle is none of an entry."""
ENTRY = "channel.json"
ENTRY_SIGNATURE = "channel.json.sig"
CHANNEL = "dev.edgepack.channel"
SEQUENCE = "dev.edgepack.sequence"
_LARGEST = 2**53 - 1
"""The largest number that every reader of JSON has exactly."""


class ChannelEntry(StrictModel):
    """What a channel leads to, as its owner says."""

    schema_version: Literal[1] = 1
    channel: Annotated[str, Field(max_length=128)]
    """The tag."""
    project: Annotated[str, Field(max_length=255)]
    target: Annotated[str, Field(max_length=255)]
    release: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    """The SHA-256 of the bundle's ``manifest.json``."""
    sequence: Annotated[int, Field(ge=1, le=_LARGEST)]
    """Counts up with each move of the channel."""
    downgrade: bool
    """Whether devices go back to this release from a newer version."""

    def encode(self) -> bytes:
        """Return the bytes that are signed."""
        return json.dumps(self.model_dump(), separators=(",", ":")).encode()


@dataclass(frozen=True)
class FoundEntry:
    """An entry in a registry."""

    entry: ChannelEntry
    signature: Signature | None
    """None where it is not signed."""

    @property
    def signer(self) -> str | None:
        """Who signed it, if the allowed signers name them."""
        return self.signature.signer if self.signature else None


@dataclass(frozen=True)
class Move:
    """How a channel is moved."""

    channel: str
    """The tag."""
    key: Path | None = None
    """Whose signature the entry gets; None: none."""
    downgrade: bool = False
    sequence: int | None = None
    """The least number that the entry gets; default: the next one."""
    allowed_signers: Path | None = None


def compare_versions(one: str, other: str) -> int:
    """Return less than 0, 0 or more, as one version is older, the same or newer than another.

    Numbers count by their value, words by their letters; a word is older than a number, and what is
    missing is 0: ``1.0.0-rc2`` < ``1.0.0-rc10`` < ``1.0`` = ``1.0.0`` < ``1.0.1``.
    """
    sides = (re.findall(r"[0-9]+|[A-Za-z]+", version) for version in (one, other))
    for pair in zip_longest(*sides, fillvalue="0"):
        left, right = map(_rank, pair)
        if left != right:
            return -1 if left < right else 1
    return 0


def _rank(word: str) -> tuple[bool, int, str]:
    return (True, int(word), "") if word.isdigit() else (False, 0, word)


def find_entry(
    repository: Repository,
    subject: str,
    facts: Facts,
    channel: str,
    allowed_signers: Path | None = None,
) -> FoundEntry | None:
    """Return a channel's entry for a manifest: the newest of a known signer, else the newest.

    Args:
        repository: Where.
        subject: The digest of the manifest.
        facts: What the manifest says of its bundle.
        channel: The tag.
        allowed_signers: Who may sign. Default: ``~/.ssh/allowed_signers``, if it exists.

    Raises:
        UsageError: There is no such file of allowed signers.
        ToolError: ssh-keygen is missing or too old.
    """
    found: list[FoundEntry] = []
    referrers = [
        each
        for each in list_referrers(repository, subject, CHANNEL_TYPE)
        if (each.annotations or {}).get(CHANNEL, channel) == channel
    ]
    newest = sorted(referrers, key=_read_sequence)[-MOST:]
    for layers in read_layers(repository, subject, newest):
        entry = _parse(layers.get(ENTRY, b""), facts, channel)
        if entry is None:
            continue
        signature = None
        if ENTRY_SIGNATURE in layers:
            try:
                signature = check_message(
                    layers[ENTRY], layers[ENTRY_SIGNATURE], NAMESPACE, allowed_signers
                )
            except BundleError:
                continue
        found.append(FoundEntry(entry, signature))
    known = [each for each in found if each.signer is not None]
    return max(known or found, key=lambda each: each.entry.sequence, default=None)


def _read_sequence(descriptor: Descriptor) -> int:
    text = (descriptor.annotations or {}).get(SEQUENCE, "")
    return int(text) if re.fullmatch("[0-9]{1,16}", text) else 0


def _parse(content: bytes, facts: Facts, channel: str) -> ChannelEntry | None:
    """Return an entry if it is one of this channel and of this release."""
    try:
        entry = ChannelEntry.model_validate_json(content)
    except ValidationError:
        return None
    fits = (facts.project, facts.target, facts.release, channel)
    return entry if fits == (entry.project, entry.target, entry.release, entry.channel) else None


def plan_move(
    repository: Repository, facts: Facts, subject: Descriptor, move: Move
) -> Artifact | None:
    """Return the entry that a channel gets; None where the channel is there already.

    Args:
        repository: Where.
        facts: What the manifest that the channel is to lead to says of its bundle.
        subject: The manifest's descriptor.
        move: How.

    Raises:
        UsageError: The channel is of another project or target, or has a newer version and this is
            no downgrade.
        RegistryError: The channel leads to what is no bundle.
        ToolError: ssh-keygen is missing or could not sign.
    """
    sequence = move.sequence or 1
    if repository.read_manifest(move.channel) is not None:
        before, found = repository.read_image(move.channel)
        was = read_facts(before, str(repository.reference.at(move.channel)))
        _require_fitting(repository, was, facts, move)
        entry = find_entry(repository, found.digest, was, move.channel, move.allowed_signers)
        if entry is not None:
            if found.digest == subject.digest and _says_it(entry, move):
                return None
            sequence = max(sequence, entry.entry.sequence + 1)
    made = ChannelEntry(
        channel=move.channel,
        project=facts.project,
        target=facts.target,
        release=facts.release,
        sequence=sequence,
        downgrade=move.downgrade,
    ).encode()
    files: list[tuple[str, str, bytes | Path]] = [(CHANNEL_TYPE, ENTRY, made)]
    if move.key is not None:
        signature = sign_message(made, NAMESPACE, move.key)
        files.append((SIGNATURE_TYPE, ENTRY_SIGNATURE, signature))
    annotations = {CHANNEL: move.channel, SEQUENCE: str(sequence)}
    return make_referrer(subject, CHANNEL_TYPE, files, annotations)


def _says_it(found: FoundEntry, move: Move) -> bool:
    """Return whether an entry says already what a move would say."""
    return (
        found.entry.downgrade == move.downgrade
        and found.entry.sequence >= (move.sequence or 1)
        and (move.key is None or found.signature is not None)
    )


def _require_fitting(repository: Repository, was: Facts, now: Facts, move: Move) -> None:
    where = str(repository.reference.at(move.channel))
    for what, old, new in (
        ("project", was.project, now.project),
        ("target", was.target, now.target),
    ):
        if old != new:
            raise UsageError(
                f"the channel is of the {what} {old!r}, and this bundle is of {new!r}",
                hint="choose another channel, or another repository for each project",
                where=where,
            )
    if compare_versions(now.version, was.version) < 0 and not move.downgrade:
        raise UsageError(
            f"the channel has {was.version}, and this bundle is {now.version}, which is older",
            hint="--downgrade lets devices go back on purpose",
            where=where,
        )

"""Channels: tags that are moved from release to release, with an entry that is signed.

A tag alone says nothing about order: whoever may write to the repository may move it back. So a
channel's entry refers to the manifest that the tag leads to, and counts up. Devices take none that
counts less than one that they have seen, and go back to an older version only where it says so.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cmp_to_key
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from edgepack.base.progress import Progress
from edgepack.base.schema import StrictModel
from edgepack.bundle.signing import Signature, check_message, find_fingerprint, sign_message
from edgepack.errors import BundleError, RegistryError, UsageError
from edgepack.registry.artifact import SIGNATURE_TYPE, Artifact, Facts, make_referrer
from edgepack.registry.documents import Descriptor
from edgepack.registry.fetching import find_bundle
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
"""The largest sequence: what every reader of JSON has exactly."""


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
    withdrawn: Annotated[str, Field(max_length=255)] | None = None
    """The newest version that the channel went back from, as long as this one is older: a device
    that was off at that time still has it."""

    def encode(self) -> bytes:
        """Return the bytes that are signed."""
        return json.dumps(self.model_dump(exclude_none=True), separators=(",", ":")).encode()


@dataclass(frozen=True)
class FoundEntry:
    """An entry in a registry."""

    entry: ChannelEntry
    signature: Signature | None
    """None where it is not signed."""
    is_known: bool
    """Whether the allowed signers name who signed it, or it was signed with the user's own key."""


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
    if not word.isdigit():
        return (False, 0, word)
    digits = word.lstrip("0")  # int() takes no number of thousands of digits
    return (True, len(digits), digits)


def find_entry(
    repository: Repository,
    subject: str,
    facts: Facts,
    channel: str,
    allowed_signers: Path | None = None,
    own: str = "",
) -> FoundEntry | None:
    """Return a channel's entry for a manifest: the newest of a known signer, else the newest.

    Args:
        repository: Where.
        subject: The digest of the manifest.
        facts: What the manifest says of its bundle.
        channel: The tag.
        allowed_signers: Who may sign. Default: ``~/.ssh/allowed_signers``, if it exists.
        own: The fingerprint of a key that is known without them.

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
        signature, is_known = None, False
        if ENTRY_SIGNATURE in layers:
            try:
                signature = check_message(
                    layers[ENTRY], layers[ENTRY_SIGNATURE], NAMESPACE, allowed_signers
                )
            except BundleError:
                continue
            is_known = signature.signer is not None or signature.fingerprint == own
        found.append(FoundEntry(entry, signature, is_known))
    known = [each for each in found if each.is_known]
    return max(known or found, key=lambda each: each.entry.sequence, default=None)


def _read_sequence(descriptor: Descriptor) -> int:
    text = (descriptor.annotations or {}).get(SEQUENCE, "")
    return int(text) if re.fullmatch("[0-9]{1,18}", text) else 0


def _parse(content: bytes, facts: Facts, channel: str) -> ChannelEntry | None:
    """Return an entry if it is one of this channel and of this release."""
    try:
        entry = ChannelEntry.model_validate_json(content)
    except ValidationError:
        return None
    fits = (facts.project, facts.target, facts.release, channel)
    return entry if fits == (entry.project, entry.target, entry.release, entry.channel) else None


@dataclass(frozen=True)
class _Before:
    """Where a channel leads before it is moved."""

    facts: Facts
    digest: str
    found: FoundEntry | None


def plan_move(
    repository: Repository, facts: Facts, subject: Descriptor, move: Move, progress: Progress
) -> Artifact | None:
    """Return the entry that a channel gets; None where the channel is there already.

    What others have put there decides nothing that is signed: with a key, only an entry of a known
    signer tells from which number to count on.

    Args:
        repository: Where.
        facts: What the bundle that the channel is to lead to says of itself.
        subject: The manifest's descriptor.
        move: How.
        progress: Who is told what the operator might not expect.

    Raises:
        UsageError: The channel is of another project or target, or has a newer version and this is
            no downgrade; nobody known has signed where it leads; or no number is left.
        RegistryError: The channel leads to what is no bundle.
        BundleError: It leads to what is not what it says.
        ToolError: ssh-keygen is missing or could not sign.
    """
    own = find_fingerprint(move.key) if move.key else ""
    before = _find_before(repository, move, own)
    sequence = move.sequence or 1
    withdrawn = None
    if before is not None:
        _require_fitting(repository, before.facts, facts, move)
        withdrawn = _find_withdrawn(before, facts.version)
        if before.found is not None:
            sequence = max(sequence, before.found.entry.sequence + 1)
    downgrade = move.downgrade or withdrawn is not None
    if before is not None and before.found is not None and before.digest == subject.digest:
        entry = before.found.entry
        if entry.downgrade == downgrade and _says_it(before.found, move, own):
            progress.note(
                f"{move.channel} leads there already: --sequence {entry.sequence + 1} writes a new"
                " entry, so that devices try this release again"
            )
            return None
    _require_number(sequence, str(repository.reference.at(move.channel)))
    if downgrade and not move.downgrade:
        progress.note(
            f"{move.channel} went back from {withdrawn}: its entry still says downgrade, for"
            " devices that were off then"
        )
    made = ChannelEntry(
        channel=move.channel,
        project=facts.project,
        target=facts.target,
        release=facts.release,
        sequence=sequence,
        downgrade=downgrade,
        withdrawn=withdrawn,
    ).encode()
    files: list[tuple[str, str, bytes | Path]] = [(CHANNEL_TYPE, ENTRY, made)]
    if move.key is not None:
        signature = sign_message(made, NAMESPACE, move.key)
        files.append((SIGNATURE_TYPE, ENTRY_SIGNATURE, signature))
    annotations = {CHANNEL: move.channel, SEQUENCE: str(sequence)}
    return make_referrer(subject, CHANNEL_TYPE, files, annotations)


def _find_before(repository: Repository, move: Move, own: str) -> _Before | None:
    """Return where the channel leads; None where it leads nowhere, or nothing of it counts.

    ``move.sequence`` says that nothing counts but what a known signer has signed.
    """
    if repository.read_manifest(move.channel) is None:
        return None
    try:
        bundle = find_bundle(repository, move.channel)
    except (BundleError, RegistryError) as error:
        if error.transient or move.sequence is None:
            raise
        return None
    facts, digest = bundle.facts, bundle.image.digest
    found = find_entry(repository, digest, facts, move.channel, move.allowed_signers, own)
    if move.key is None or (found is not None and found.is_known):
        return _Before(facts, digest, found)
    if move.sequence is not None:
        return None
    raise UsageError(
        "neither your key nor a signer whom you know has signed where the channel leads",
        hint="--allowed-signers FILE names who may sign; or --sequence N goes on from a number"
        " above what devices have seen (edgepack device pulled)",
        where=str(repository.reference.at(move.channel)),
    )


def _find_withdrawn(before: _Before, version: str) -> str | None:
    """Return the newest version that devices may have from the channel, if this one is older."""
    earlier = before.found.entry.withdrawn if before.found else None
    had = [before.facts.version, *([earlier] if earlier else [])]
    newer = [each for each in had if compare_versions(version, each) < 0]
    return max(newer, key=cmp_to_key(compare_versions), default=None)


def _says_it(found: FoundEntry, move: Move, own: str) -> bool:
    """Return whether an entry says already what a move would say, and who signs it."""
    if found.entry.sequence < (move.sequence or 1):
        return False
    if move.key is None:
        return True
    if not own or found.signature is None:
        return found.is_known
    return found.signature.fingerprint == own


def _require_number(sequence: int, where: str) -> None:
    if sequence > _LARGEST:
        raise UsageError(
            f"{sequence} is above the largest number of an entry, {_LARGEST}",
            hint="choose a smaller --sequence; what nobody known has signed is passed over with"
            " --key and --sequence; else choose another channel",
            where=where,
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

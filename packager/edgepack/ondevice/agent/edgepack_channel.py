"""What a channel of a registry offers: which release, and whether an operator has signed for it.

A tag is not signed, and whoever may write to the registry may move it. So two signatures decide:
the one over the bundle's ``manifest.json``, which names every file by its SHA-256; and the one over
the channel's entry, which says of one release that it is this channel's, and with a sequence what
came after what. ``ssh-keygen`` checks both against the signers that were pinned at enrolment.

Needs Python 3.8 or newer, and nothing else.
"""

import hashlib
import itertools
import json
import os
import re
import subprocess
import tempfile
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

if __package__:
    from .edgepack_registry import Problem, Registry, is_digest, parse_object
else:
    from edgepack_registry import (  # type: ignore[import-not-found,no-redef]
        Problem,
        Registry,
        is_digest,
        parse_object,
    )

SIGNATURE_KIND = "application/vnd.edgepack.signature.v1"
ENTRY_KIND = "application/vnd.edgepack.channel.v1+json"
MANIFEST = "manifest.json"
CHUNKS = ".edgepack/chunks.json"
TITLE = "org.opencontainers.image.title"
CHANNEL = "dev.edgepack.channel"
SEQUENCE = "dev.edgepack.sequence"
BUNDLE_NAMESPACE = "edgepack"
ENTRY_NAMESPACE = "edgepack-channel"
MOST_REFERRERS = 32
"""Of one kind that are looked at, the last: others may have pushed as many as they like."""
LARGEST = (1 << 53) - 1
"""The highest sequence: JSON's numbers are exact to here everywhere (RFC 8259, 6)."""
DOCUMENT_BYTES = 64 << 20
SMALL_BYTES = 1 << 16
WHOLE_BYTES = 1 << 16
"""A larger file is cut into chunks, and the registry's chunks document says where."""
CHUNK_BYTES = 1 << 18
"""The most bytes of a chunk, as a push cuts them."""
VERIFY_S = 60.0


class Layer(NamedTuple):
    """A blob of the registry that is a file."""

    digest: str
    size: int


class Entry(NamedTuple):
    """What an operator has signed of a channel."""

    sequence: int
    release: str
    """The SHA-256 of the bundle's manifest."""
    downgrade: bool
    """Whether the release may be older than the one that a device has."""


class Offer(NamedTuple):
    """A release that a channel offers, with what proves it."""

    entry: Entry
    manifest: bytes
    document: Dict[str, Any]
    """What the manifest says."""
    signature: bytes
    layers: Dict[str, Layer]
    chunks: Dict[str, List[Tuple[str, int]]]
    """By file: the SHA-256 and the size of each of its chunks."""


class Follower(NamedTuple):
    """Whose channel it is."""

    channel: str
    project: str
    target: str
    signers: str
    """The file of allowed signers."""


def read_entry(registry: Registry, digest: str, follower: Follower) -> Entry:
    """Return the last entry of a channel for an image manifest that a pinned signer has signed.

    Raises:
        Problem: ``unsigned`` if there is none; or the registry cannot be read.
    """
    # What a descriptor says is not signed: it decides only which are read, and in which order.
    listed = [
        one
        for one in registry.list_referrers(digest, ENTRY_KIND)
        if find_annotation(one, CHANNEL) in ("", follower.channel)
    ]
    listed.sort(key=find_sequence)
    best: Optional[Entry] = None
    for one in listed[-MOST_REFERRERS:][::-1]:
        files = read_referrer(registry, one, digest, ["channel.json", "channel.json.sig"])
        entry = parse_entry(files[0], follower) if files else None
        if entry is None or (best is not None and entry.sequence <= best.sequence):
            continue
        if is_signed(files[0], files[1], ENTRY_NAMESPACE, follower.signers):
            best = entry
    if best is None:
        raise Problem(
            "unsigned",
            "none of %d entries of the channel %s is signed by a pinned signer: publish it with"
            " --channel and --key" % (len(listed), follower.channel),
        )
    return best


def read_referrer(
    registry: Registry, descriptor: Dict[str, Any], subject: str, titles: List[str]
) -> List[bytes]:
    """Return files of what refers to a manifest; none if it is not what it should be.

    Anybody who may write to the registry may have put it there, and must not keep others from use.
    """
    try:
        layers = read_files(registry, descriptor["digest"], subject)
        if any(title not in layers for title in titles):
            return []
        return [registry.read_blob(layers[title].digest, SMALL_BYTES) for title in titles]
    except Problem as problem:
        if problem.result not in ("corrupt", "missing"):
            raise
        return []


def find_sequence(descriptor: Dict[str, Any]) -> int:
    """Return what a descriptor says of its entry's sequence; it may say anything."""
    said = find_annotation(descriptor, SEQUENCE)
    return int(said) if re.fullmatch(r"[0-9]{1,18}", said) else -1


def find_annotation(descriptor: Dict[str, Any], name: str) -> str:
    """Return an annotation of a descriptor; nothing if it has none."""
    annotations = descriptor.get("annotations")
    said = annotations.get(name) if isinstance(annotations, dict) else None
    return said if isinstance(said, str) else ""


def parse_entry(text: bytes, follower: Follower) -> Optional[Entry]:
    """Return an entry; None if it is none of this channel, project and target."""
    try:
        said = json.loads(text.decode("utf-8"))
        fits = (
            said["schema_version"] == 1
            and said["channel"] == follower.channel
            and said["project"] == follower.project
            and said["target"] == follower.target
        )
        sequence, release, downgrade = said["sequence"], said["release"], said["downgrade"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    is_entry = (
        fits
        and type(sequence) is int
        and 0 < sequence <= LARGEST
        and isinstance(downgrade, bool)
        and isinstance(release, str)
        and re.fullmatch("[0-9a-f]{64}", release) is not None
    )
    return Entry(sequence, release, downgrade) if is_entry else None


def read_files(registry: Registry, digest: str, subject: Optional[str] = None) -> Dict[str, Layer]:
    """Return the layers of a manifest by their titles; with ``subject``, of one that refers to it.

    Raises:
        Problem: The manifest cannot be had, or is none.
    """
    manifest = registry.read_manifest(digest)
    refers = manifest.get("subject")
    if subject is not None and not (isinstance(refers, dict) and refers.get("digest") == subject):
        return {}
    found: Dict[str, Layer] = {}
    layers = manifest.get("layers")
    for one in layers if isinstance(layers, list) else []:
        title, layer = parse_layer(one)
        if title in found:
            raise Problem("corrupt", "%s has two layers %r" % (digest, title))
        found[title] = layer
    return found


def parse_layer(one: Any) -> Tuple[str, Layer]:
    """Return a layer with its title."""
    try:
        title, size = one["annotations"][TITLE], one["size"]
        if isinstance(title, str) and type(size) is int and size >= 0 and is_digest(one["digest"]):
            return title, Layer(one["digest"], size)
    except (KeyError, TypeError):
        pass
    raise Problem("corrupt", "a layer has no title, size and digest")


def read_offer(registry: Registry, digest: str, entry: Entry, follower: Follower) -> Offer:
    """Return what an image manifest offers, once everything about it is proven but the files.

    Raises:
        Problem: ``unsigned`` if no pinned signer has signed the bundle; ``corrupt`` if the layers
            are not the bundle's files, or the release is not the entry's.
    """
    layers = read_files(registry, digest)
    if MANIFEST not in layers:
        raise Problem("corrupt", "%s is no bundle: it has no %s" % (digest, MANIFEST))
    manifest = registry.read_blob(layers[MANIFEST].digest, DOCUMENT_BYTES)
    if hashlib.sha256(manifest).hexdigest() != entry.release:
        raise Problem("corrupt", "the signed entry of the channel is about another release")
    document = parse_object(manifest, MANIFEST)
    for key, wanted in (("name", follower.project), ("target", follower.target)):
        if document.get(key) != wanted:
            raise Problem("corrupt", "the bundle's %s is not %s" % (key, wanted))
    signature = read_signature(registry, digest, manifest, follower.signers)
    require_files(document, layers)
    chunks = read_chunks(registry, layers, document)
    return Offer(entry, manifest, document, signature, layers, chunks)


def read_signature(registry: Registry, digest: str, manifest: bytes, signers: str) -> bytes:
    """Return the signature of a bundle's manifest by a pinned signer."""
    listed = registry.list_referrers(digest, SIGNATURE_KIND)
    for one in listed[-MOST_REFERRERS:][::-1]:
        for signature in read_referrer(registry, one, digest, [MANIFEST + ".sig"]):
            if signature.isascii() and is_signed(manifest, signature, BUNDLE_NAMESPACE, signers):
                return signature
    raise Problem(
        "unsigned",
        "none of %d signatures of the bundle is by a pinned signer: edgepack sign, and publish it"
        " again" % len(listed),
    )


def require_files(document: Dict[str, Any], layers: Dict[str, Layer]) -> None:
    """Raise unless the layers are the files of the manifest, by hash and size."""
    try:
        listed = {
            one["path"]: Layer("sha256:" + one["sha256"], one["size_bytes"])
            for one in document["files"]
        }
    except (KeyError, TypeError):
        raise Problem("corrupt", "the bundle's manifest lists no files") from None
    others = {path: layer for path, layer in layers.items() if path not in (MANIFEST, CHUNKS)}
    if listed != others:
        wrong = sorted(path for path in {*listed, *others} if listed.get(path) != others.get(path))
        raise Problem("corrupt", "layer and manifest differ about %r" % wrong[0])


def read_chunks(
    registry: Registry, layers: Dict[str, Layer], document: Dict[str, Any]
) -> Dict[str, List[Tuple[str, int]]]:
    """Return the chunks of each file. Nobody has signed them: the file's hash decides at the end.

    Raises:
        Problem: A large file has none, or they cannot be its.
    """
    told: Any = {}
    if CHUNKS in layers:
        content = registry.read_blob(layers[CHUNKS].digest, DOCUMENT_BYTES)
        told = parse_object(content, CHUNKS).get("files")
    found: Dict[str, List[Tuple[str, int]]] = {}
    for one in document["files"]:
        path, size = one["path"], one["size_bytes"]
        if size <= WHOLE_BYTES:
            found[path] = [(one["sha256"], size)] if size else []
            continue
        try:
            found[path] = [(str(sha256), int(length)) for sha256, length in told[path]]
        except (KeyError, TypeError, ValueError, OverflowError):
            raise Problem("corrupt", "%s says nothing of %r" % (CHUNKS, path)) from None
        sizes = [length for _, length in found[path]]
        if sum(sizes) != size or not all(0 < length <= CHUNK_BYTES for length in sizes):
            raise Problem("corrupt", "%s has chunks of %r that are not its" % (CHUNKS, path))
    return found


def is_signed(message: bytes, signature: bytes, namespace: str, signers: str) -> bool:
    """Return whether one of the pinned signers has signed a message for this use.

    Enrolment takes no signers whose keys are valid for a time only: this device's clock would
    decide.
    """
    with tempfile.TemporaryDirectory(prefix="edgepack-") as folder:
        path = os.path.join(folder, "signature")
        with open(path, "wb") as file:
            file.write(signature)
        files = ["-f", signers, "-s", path]
        found = run_ssh_keygen(["-Y", "find-principals", *files], b"")
        # Before OpenSSH 8.5 the principals of one key are printed as the file has them.
        for principal in re.split(r"[,\n]", found.stdout.decode("utf-8", "replace")):
            if not principal or principal.startswith("!"):
                continue
            argv = ["-Y", "verify", *files, "-I", principal, "-n", namespace]
            if run_ssh_keygen(argv, message).returncode == 0:
                return True
    return False


def run_ssh_keygen(argv: List[str], message: bytes) -> "subprocess.CompletedProcess[bytes]":
    """Return how ssh-keygen ended."""
    try:
        done = subprocess.run(
            ["ssh-keygen", *argv],  # noqa: S607  (where it is differs)
            input=message,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=VERIFY_S,
            check=False,
        )
    except FileNotFoundError:
        raise Problem("settings", "there is no ssh-keygen on this device's PATH") from None
    except subprocess.TimeoutExpired:
        raise Problem("settings", "ssh-keygen does not end") from None
    if b"usage: ssh-keygen" in done.stderr:
        raise Problem("settings", "ssh-keygen is older than OpenSSH 8.2 and knows no signatures")
    return done


def is_older(version: str, other: str) -> bool:
    """Return whether a version comes before another.

    Numbers count by their value and words by their text; a word comes before a number, and what is
    missing is the number 0: 1.0.0-rc2 < 1.0.0-rc10 < 1.0 = 1.0.0 < 1.0.1.
    """
    parts = (re.findall(r"\d+|[A-Za-z]+", text) for text in (version, other))
    for one, two in itertools.zip_longest(*parts, fillvalue="0"):
        keys = [(1, int(x), "") if x.isdigit() else (0, 0, x) for x in (one, two)]
        if keys[0] != keys[1]:
            return keys[0] < keys[1]
    return False

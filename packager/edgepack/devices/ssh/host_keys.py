"""Decides which host keys are trusted. None is ever trusted silently.

A revoked key is never trusted. Otherwise a fingerprint in the inventory decides alone. Without one,
edgepack's own known_hosts file decides if it has the host's key, else the user's and the system's
files do. A certificate of an authority that these have for the host is as good as the key itself.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Literal

from edgepack.base.files import locked, write_atomically, writing
from edgepack.base.processes import run_program
from edgepack.devices.ssh.certificates import HostCertificate, find_flaw, parse_certificate
from edgepack.devices.ssh.config import SshSettings, expand_tokens
from edgepack.devices.ssh.revocation import is_revoked
from edgepack.errors import DeviceError

_COMMAND_S = 20.0
"""How long a ``KnownHostsCommand`` may take."""


@dataclass(frozen=True)
class HostKey:
    """A server's public key as it goes over the wire."""

    kind: str
    """``ssh-ed25519`` and so on."""
    blob: bytes
    certificate: bytes | None = field(default=None, compare=False)
    """The certificate that the server sent with it, as it goes over the wire."""

    @property
    def fingerprint(self) -> str:
        """As OpenSSH prints it: ``SHA256:`` and base64 without padding."""
        digest = base64.b64encode(hashlib.sha256(self.blob).digest()).decode()
        return "SHA256:" + digest.rstrip("=")


@dataclass(frozen=True)
class KnownHost:
    """One line of a known_hosts file."""

    marker: str
    """``@revoked``, ``@cert-authority`` or nothing."""
    names: str
    key: HostKey
    path: Path
    line: int

    def is_for(self, name: str) -> bool:
        """Return whether the line is about a host: hashed, or a list of patterns.

        Source: sshd(8), section SSH_KNOWN_HOSTS FILE FORMAT.
        """
        if self.names.startswith("|1|"):
            return _is_hash_of(self.names, name)
        patterns = self.names.split(",")
        if any(p.startswith("!") and _is_match(p[1:], name) for p in patterns):
            return False
        return any(_is_match(p, name) for p in patterns)


def _is_hash_of(hashed: str, name: str) -> bool:
    try:
        salt, digest = (base64.b64decode(part) for part in hashed.split("|")[2:])
    except ValueError:
        return False
    return hmac.compare_digest(hmac.new(salt, name.encode(), "sha1").digest(), digest)


def _is_match(pattern: str, name: str) -> bool:
    if "*" not in pattern and "?" not in pattern:
        return pattern.lower() == name.lower()
    expression = re.escape(pattern.lower()).replace(r"\*", ".*").replace(r"\?", ".")
    return re.fullmatch(expression, name.lower()) is not None


def find_own_known_hosts() -> Path:
    """Return edgepack's own known_hosts file, in OpenSSH's format."""
    import platformdirs

    return platformdirs.user_config_path("edgepack") / "known_hosts"


def read_known_hosts(path: Path) -> Sequence[KnownHost]:
    """Return the lines of a known_hosts file; like OpenSSH, skip invalid lines.

    Raises:
        DeviceError: The file cannot be read.
    """
    try:
        state = path.stat()
        return _read_unchanged(path, (state.st_mtime_ns, state.st_size, state.st_ino))
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise DeviceError(
            f"cannot read the host keys in {path}: {error.strerror}",
            hint="make the file readable: nothing is trusted without it",
        ) from error


@lru_cache(maxsize=16)
def _read_unchanged(path: Path, _stamp: tuple[int, int, int]) -> Sequence[KnownHost]:
    """Read a file once for all hosts, as long as it stays what it is."""
    return tuple(_parse_lines(path.read_text(encoding="utf-8", errors="replace"), path))


def _parse_lines(text: str, path: Path) -> Iterator[KnownHost]:
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        marker = words.pop(0) if line.startswith("@") else ""
        if len(words) >= 3 and not line.startswith("#"):
            try:
                key = HostKey(words[1], base64.b64decode(words[2], validate=True))
            except binascii.Error:
                continue
            yield KnownHost(marker, words[0], key, path, number)


def list_printed_hosts(settings: SshSettings, received: HostKey | None) -> Sequence[KnownHost]:
    """Return the lines that a ``KnownHostsCommand`` prints; this runs it.

    Args:
        settings: Of the host.
        received: The key that it has shown; None before it has shown one.

    Raises:
        DeviceError: It failed: nothing is trusted without it, as with OpenSSH.
    """
    if not settings.known_hosts_command:
        return ()
    encoded = base64.b64encode(received.blob).decode() if received else "NONE"
    tokens = {
        "f": received.fingerprint if received else "NONE",
        "H": settings.known_as,
        "I": "HOSTNAME" if received else "ORDER",
        "K": encoded,
        "t": received.kind if received else "NONE",
    }
    argv = [expand_tokens(word, settings, tokens) for word in settings.known_hosts_command]
    result = run_program(argv, timeout_s=_COMMAND_S)
    if result.exit_code:
        raise DeviceError(
            f"KnownHostsCommand {argv[0]!r} failed with exit code"
            f" {result.exit_code}{result.last_lines}",
            hint="run it by hand; nothing is trusted without it",
        )
    return tuple(_parse_lines(result.text, Path(argv[0])))


def find_known_hosts(settings: SshSettings, received: HostKey | None = None) -> list[KnownHost]:
    """Return the lines about a host from the files, and the command, that decide about it.

    What any of them revokes stays revoked.

    Args:
        settings: Of the host.
        received: The key that it has shown; None before it has shown one.

    Raises:
        DeviceError: A file cannot be read, or the command failed.
    """
    own = [
        entry for entry in read_known_hosts(find_own_known_hosts()) if _is_about(entry, settings)
    ]
    own_decides = any(not entry.marker for entry in own)
    lines = chain.from_iterable(map(read_known_hosts, settings.known_hosts))
    others = [
        entry
        for entry in chain(lines, list_printed_hosts(settings, received))
        if _is_about(entry, settings) and (entry.marker == "@revoked" or not own_decides)
    ]
    return own + others


def _is_about(entry: KnownHost, settings: SshSettings) -> bool:
    """Return whether a line is about a host; like OpenSSH, one with a marker may omit the port."""
    if entry.is_for(settings.known_as):
        return True
    return bool(entry.marker) and entry.is_for(settings.certified_as)


def list_known_kinds(known: Sequence[KnownHost]) -> list[str]:
    """Return the kinds of key known for a host, to ask the server for these first."""
    return list(dict.fromkeys(entry.key.kind for entry in known if not entry.marker))


def has_authority(known: Sequence[KnownHost]) -> bool:
    """Return whether a host may prove itself with a certificate."""
    return any(entry.marker == "@cert-authority" for entry in known)


@dataclass(frozen=True)
class KeyProblem:
    """Why a received key is not trusted."""

    kind: Literal["unknown", "changed", "revoked", "not the pinned one"]
    error: DeviceError


def find_problem(
    received: HostKey, settings: SshSettings, *, pinned: str | None, device: str
) -> KeyProblem | None:
    """Return why a key is not trusted, or None if it is.

    Raises:
        DeviceError: A file of known or revoked keys cannot be read.
    """
    known = find_known_hosts(settings, received)
    certificate, flaw = _read_certificate(received, known, settings)
    by = _find_revocation(received, certificate, known, settings, device)
    if by is not None:
        return KeyProblem("revoked", _make_revoked_error(received, by, settings, device))
    if pinned is not None:
        if received.fingerprint == pinned:
            return None
        shown = [f"{pinned}  ('host_key' in devices.yaml)"]
        error = _make_changed_error(received, shown, settings, device)
        return KeyProblem("not the pinned one", error)
    plain = [entry for entry in known if not entry.marker]
    if any(entry.key == received for entry in plain) or (certificate and not flaw):
        return None
    if plain:
        shown = [f"{e.key.fingerprint}  ({e.key.kind}, {e.path}:{e.line})" for e in plain]
        return KeyProblem("changed", _make_changed_error(received, shown, settings, device))
    return KeyProblem("unknown", _make_unknown_error(received, flaw, settings, device))


def _read_certificate(
    received: HostKey, known: Sequence[KnownHost], settings: SshSettings
) -> tuple[HostCertificate | None, str]:
    """Return the certificate that came with a key, and why it does not prove the key."""
    if received.certificate is None:
        return None, "it has shown no certificate" if has_authority(known) else ""
    try:
        certificate = parse_certificate(received.certificate)
    except ValueError as error:
        return None, f"its certificate cannot be read: {error}"
    authority = HostKey(certificate.authority_kind, certificate.authority_blob)
    if not any(e.marker == "@cert-authority" and e.key == authority for e in known):
        flaw = f"it is signed by {authority.fingerprint}, which no @cert-authority line names"
    elif certificate.key_blob != received.blob:
        flaw = "it is of another key"
    else:
        flaw = find_flaw(certificate, settings.certified_as, time.time())
    said = f"its certificate {certificate.key_id!r} cannot be used: {flaw}" if flaw else ""
    return certificate, said


def _find_revocation(
    received: HostKey,
    certificate: HostCertificate | None,
    known: Sequence[KnownHost],
    settings: SshSettings,
    device: str,
) -> str | None:
    """Return where a key, or the authority of its certificate, is revoked; None if nowhere."""
    keys = [received.blob, *([certificate.authority_blob] if certificate else [])]
    for entry in known:
        if entry.marker == "@revoked" and entry.key.blob in keys:
            return f"{entry.path}:{entry.line}"
    path = settings.revoked_host_keys
    blobs = [*keys, *([received.certificate] if received.certificate else [])]
    return str(path) if path is not None and is_revoked(blobs, path, device) else None


def _make_revoked_error(
    received: HostKey, by: str, settings: SshSettings, device: str
) -> DeviceError:
    return DeviceError(
        f"the host key of {settings.known_as}, or who certified it, is revoked ({by})\n"
        f"  {received.kind} {received.fingerprint}",
        hint=f"give the device a new host key, then: edgepack device trust {device}",
        where=device,
    )


def _make_changed_error(
    received: HostKey, known: Sequence[str], settings: SshSettings, device: str
) -> DeviceError:
    lines = "".join(f"\n  known:    {line}" for line in known)
    remedy = f"edgepack device trust {device}"
    if "host_key" in known[0]:
        remedy = f"correct host_key in devices.yaml, or remove it and: {remedy}"
    return DeviceError(
        f"the host key of {settings.known_as} has changed: someone may be in the middle{lines}\n"
        f"  received: {received.fingerprint}  ({received.kind})",
        hint="find out whether the device got a new key (reinstalled, new SD card); only then:"
        f" {remedy}",
        where=device,
    )


def _make_unknown_error(
    received: HostKey, flaw: str, settings: SshSettings, device: str
) -> DeviceError:
    return DeviceError(
        f"the host key of {settings.known_as} is not known{flaw and f'; {flaw}'}\n"
        f"  {received.kind} {received.fingerprint}",
        hint="compare it with what 'ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub' prints on"
        f" the device, then: edgepack device trust {device}",
        where=device,
    )


def write_trusted(name: str, key: HostKey) -> Path:
    """Make ``key`` the one key that edgepack's own file has for a host; return the file.

    The file is replaced atomically.

    Raises:
        ToolError: It cannot be written.
    """
    own = find_own_known_hosts()
    with writing("the host key", own), locked(own) as path:
        entries = read_known_hosts(path)
        drop = {entry.line for entry in entries if not entry.marker and entry.is_for(name)}
        old = path.read_text(encoding="utf-8").splitlines()
        lines = [line for number, line in enumerate(old, start=1) if number not in drop]
        lines.append(f"{name} {key.kind} {base64.b64encode(key.blob).decode()}")
        write_atomically(path, "\n".join(lines) + "\n")
    return own

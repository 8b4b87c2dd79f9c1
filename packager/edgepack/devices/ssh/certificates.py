"""Host certificates of OpenSSH: a host key with names and a time, signed by an authority.

Source: PROTOCOL.certkeys of OpenSSH 9.2; what is checked is what its ``sshkey_cert_check_host``
checks.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

SUFFIX = "-cert-v01@openssh.com"
"""Of the names of kinds of certificates."""

_HOST = 2
# How many fields the public key of a kind has; as bytes, strings and numbers look the same.
_KEY_FIELDS = {
    "ssh-ed25519": 1,
    "ecdsa-sha2-nistp256": 2,
    "ecdsa-sha2-nistp384": 2,
    "ecdsa-sha2-nistp521": 2,
    "ssh-rsa": 2,
}
_RSA_SIGNATURES = ("rsa-sha2-256", "rsa-sha2-512")
"""SHA-1 is no longer safe: OpenSSH's CASignatureAlgorithms leaves it out too."""


@dataclass(frozen=True)
class HostCertificate:
    """What a certificate says; nothing of it is true before :func:`find_flaw` has found none."""

    key_blob: bytes
    """The certified key, as it goes over the wire without a certificate."""
    is_for_hosts: bool
    key_id: str
    principals: tuple[str, ...]
    """Names of hosts; none stands for all (ssh-keygen(1), section CERTIFICATES)."""
    valid_after: int
    """Unix time."""
    valid_before: int
    """Unix time; the first second in which it is valid no more."""
    has_critical_options: bool
    authority_kind: str
    authority_blob: bytes
    signed: bytes
    """What the signature is of."""
    signature: bytes


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def take(self, size: int) -> bytes:
        end = self.position + size
        if end > len(self.data):
            raise ValueError("it ends too early")
        part, self.position = self.data[self.position : end], end
        return part

    def number(self, code: str) -> int:
        return int(struct.unpack(code, self.take(struct.calcsize(code)))[0])

    def string(self) -> bytes:
        return self.take(self.number(">I"))

    def strings(self) -> list[bytes]:
        """Return all strings that are left."""
        found = []
        while self.position < len(self.data):
            found.append(self.string())
        return found


def _packed(*parts: bytes) -> bytes:
    return b"".join(struct.pack(">I", len(part)) + part for part in parts)


def parse_certificate(blob: bytes) -> HostCertificate:
    """Return what a certificate says.

    Raises:
        ValueError: It is none, or of a kind that is not known.
    """
    reader = _Reader(blob)
    kind = reader.string().decode("ascii").removesuffix(SUFFIX)
    if kind not in _KEY_FIELDS:
        raise ValueError(f"a certificate of a {kind} key is not known")
    reader.string()  # the nonce
    fields = [reader.string() for _ in range(_KEY_FIELDS[kind])]
    reader.number(">Q")  # the serial number
    type_ = reader.number(">I")
    key_id = reader.string().decode("utf-8", "replace")
    principals = [name.decode("utf-8") for name in _Reader(reader.string()).strings()]
    valid_after, valid_before = reader.number(">Q"), reader.number(">Q")
    critical = reader.string()
    reader.string()  # extensions may be ignored
    reader.string()  # reserved
    authority = reader.string()
    signed = blob[: reader.position]
    signature = reader.string()
    if reader.position != len(blob):
        raise ValueError("something follows its end")
    return HostCertificate(
        key_blob=_packed(kind.encode(), *fields),
        is_for_hosts=type_ == _HOST,
        key_id=key_id,
        principals=tuple(principals),
        valid_after=valid_after,
        valid_before=valid_before,
        has_critical_options=bool(critical),
        authority_kind=_Reader(authority).string().decode("ascii"),
        authority_blob=authority,
        signed=signed,
        signature=signature,
    )


def find_flaw(certificate: HostCertificate, host: str, now: float) -> str:
    """Return why a certificate does not prove that a key is a host's; empty if it does.

    That its authority is one to believe is for the caller to know.

    Args:
        certificate: The certificate.
        host: The name by which the host is called.
        now: Unix time.
    """
    names = certificate.principals
    flaws = [
        (not certificate.is_for_hosts, "it is a user's certificate"),
        (now < certificate.valid_after, "it is not valid yet: compare the clocks"),
        (now >= certificate.valid_before, "it has expired"),
        (names and host.lower() not in names, f"it is for {', '.join(names)} and not for {host}"),
        (certificate.has_critical_options, "it has critical options, and none is known for hosts"),
    ]
    found = next((flaw for is_so, flaw in flaws if is_so), "")
    if not found and not _is_signed(certificate):
        return f"its {certificate.authority_kind} signature is wrong, or of an unsafe kind"
    return found


def _is_signed(certificate: HostCertificate) -> bool:
    import paramiko

    makers: dict[str, Callable[..., paramiko.PKey]] = {
        "ssh-ed25519": paramiko.Ed25519Key,
        "ssh-rsa": paramiko.RSAKey,
    }
    kind = certificate.authority_kind
    if kind not in _KEY_FIELDS:
        return False
    try:
        algorithm, _ = _Reader(certificate.signature).strings()
        if algorithm.decode("ascii") not in (_RSA_SIGNATURES if kind == "ssh-rsa" else (kind,)):
            return False
        key = makers.get(kind, paramiko.ECDSAKey)(data=certificate.authority_blob)
        signature = paramiko.Message(certificate.signature)
        return bool(key.verify_ssh_sig(certificate.signed, signature))
    except (ValueError, paramiko.SSHException):
        return False

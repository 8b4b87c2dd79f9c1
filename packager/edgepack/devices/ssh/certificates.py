"""Host certificates of OpenSSH: a host key with names and a time, signed by an authority.

Source: PROTOCOL.certkeys of OpenSSH 9.2; what is checked is what its ``sshkey_cert_check_host``
checks.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.serialization import SSHCertificate
    from cryptography.hazmat.primitives.serialization.ssh import SSHCertPublicKeyTypes

SUFFIX = "-cert-v01@openssh.com"
"""Of the names of kinds of certificates."""

_RSA_SIGNATURES = (b"rsa-sha2-256", b"rsa-sha2-512")
"""SHA-1 is no longer safe: OpenSSH's CASignatureAlgorithms leaves it out too."""


@dataclass(frozen=True)
class HostCertificate:
    """What a certificate says; do not trust it before :func:`find_flaw` finds no flaw."""

    blob: bytes
    """The certificate as it goes over the wire."""
    said: SSHCertificate
    key_blob: bytes
    """The certified key, as it goes over the wire without a certificate."""
    authority_blob: bytes

    @property
    def key_id(self) -> str:
        """Its authority's name for it."""
        return self.said.key_id.decode("utf-8", "replace")

    @property
    def authority_kind(self) -> str:
        """The kind of its authority's key."""
        return read_kind(self.authority_blob)


def read_kind(blob: bytes) -> str:
    """Return the kind of a key or certificate as it goes over the wire."""
    return blob[4 : 4 + int.from_bytes(blob[:4], "big")].decode("ascii")


def parse_certificate(blob: bytes) -> HostCertificate:
    """Return what a certificate says.

    Raises:
        ValueError: It is not a certificate, or of an unknown kind.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_ssh_public_identity

    kind = read_kind(blob)
    if not kind.endswith(SUFFIX):
        raise ValueError(f"{kind!r} is not a kind of certificate")
    try:
        line = kind.encode() + b" " + base64.b64encode(blob)
        said = cast("SSHCertificate", load_ssh_public_identity(line))
        key_blob, authority_blob = _make_blob(said.public_key()), _make_blob(said.signature_key())
    except (UnsupportedAlgorithm, NotImplementedError) as error:
        raise ValueError(f"it is of a kind that is not known: {error}") from error
    if read_kind(key_blob) + SUFFIX != kind:  # a security key's are made plain ones
        raise ValueError(f"a certificate of a {kind.removesuffix(SUFFIX)} key is not known")
    return HostCertificate(blob, said, key_blob, authority_blob)


def _make_blob(key: SSHCertPublicKeyTypes) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    line = key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return base64.b64decode(line.split()[1])


def find_flaw(certificate: HostCertificate, host: str, now: float) -> str:
    """Return why a certificate does not prove that a key is a host's; empty if it does.

    The caller has to check that its authority is trusted.

    Args:
        certificate: The certificate.
        host: The name by which the host is called.
        now: Unix time.
    """
    from cryptography.hazmat.primitives.serialization import SSHCertificateType

    said = certificate.said
    # None stands for all (ssh-keygen(1), section CERTIFICATES).
    names = [name.decode("utf-8", "replace") for name in said.valid_principals]
    flaws = [
        (said.type != SSHCertificateType.HOST, "it is a user's certificate"),
        (now < said.valid_after, "it is not valid yet: compare the clocks"),
        (now >= said.valid_before, "it has expired"),
        (names and host.lower() not in names, f"it is for {', '.join(names)} and not for {host}"),
        (said.critical_options, "it has critical options, and none is known for hosts"),
    ]
    found = next((flaw for is_so, flaw in flaws if is_so), "")
    if not found and not _is_signed(certificate):
        return f"its {certificate.authority_kind} signature is wrong, or of an unsafe kind"
    return found


def _is_signed(certificate: HostCertificate) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

    authority = certificate.said.signature_key()
    try:
        certificate.said.verify_cert_signature()
    except (InvalidSignature, ValueError):
        return False
    if not isinstance(authority, RSAPublicKey):
        return True
    # A blob ends with its signature: the algorithm, four bytes with the length of the rest, and the
    # rest, which is as long as the authority's modulus, or verification would have failed.
    signature_bytes = (authority.key_size + 7) // 8
    return certificate.blob[: -4 - signature_bytes].endswith(_RSA_SIGNATURES)

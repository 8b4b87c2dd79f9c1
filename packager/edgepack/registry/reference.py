"""Addresses of bundles in registries: ``oci://host[:port]/repository[:tag][@sha256:digest]``.

Repositories, tags and digests are as the OCI distribution specification 1.1 has them (spec.md,
"Pulling manifests"). A bucket takes a registry's place as ``s3://bucket/prefix``, with the same
tags and digests; buckets are called as the user guide of Amazon S3 says ("General purpose bucket
naming rules").
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import Self

from edgepack.errors import UsageError

SCHEME = "oci://"
BUCKET_SCHEME = "s3://"
_HOST = (
    r"(?:\[[0-9a-fA-F:.]{2,45}\]|[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252}[A-Za-z0-9])?)(?::[0-9]{1,5})?"
)
_WORD = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_TAG = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}"
_NAME = rf"(?::(?P<tag>{_TAG}))?(?:@(?P<digest>sha256:[0-9a-f]{{64}}))?"
_REFERENCE = re.compile(
    rf"(?P<scheme>oci://)(?P<host>{_HOST})/(?P<repository>{_WORD}(?:/{_WORD})*){_NAME}"
)
_BUCKET = r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]"
_PREFIX = r"[A-Za-z0-9_][A-Za-z0-9_.=-]*"
_IN_BUCKET = re.compile(
    rf"(?P<scheme>s3://)(?P<host>{_BUCKET})/(?P<repository>{_PREFIX}(?:/{_PREFIX})*){_NAME}"
)


@dataclass(frozen=True)
class Reference:
    """A repository in a registry, or a prefix in a bucket, and what of it."""

    host: str
    """With its port, if it is given; or the bucket."""
    repository: str
    """Or the prefix."""
    tag: str = ""
    """Empty if none is given."""
    digest: str = ""
    """``sha256:`` and 64 hex digits of an image manifest; empty if none is given."""
    scheme: str = SCHEME

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return what an address says.

        Raises:
            UsageError: It is none.
        """
        found = (_IN_BUCKET if text.startswith(BUCKET_SCHEME) else _REFERENCE).fullmatch(text)
        if found is None or len(found["repository"]) > 255:
            raise UsageError(
                f"{text!r} is no address in a registry",
                hint="write oci://HOST/REPOSITORY:TAG or oci://HOST/REPOSITORY@sha256:DIGEST, with"
                " the repository in lower case: oci://registry.example.com/models/detector:1.0.0;"
                " or s3://BUCKET/PREFIX:TAG",
            )
        return cls(**{name: value or "" for name, value in found.groupdict().items()})

    def at(self, name: str) -> Self:
        """Return the same repository's ``name``: a tag, or a digest."""
        if name.startswith("sha256:"):
            return replace(self, tag="", digest=name)
        return replace(self, tag=name, digest="")

    @property
    def name(self) -> str:
        """What is asked for: the digest, else the tag.

        Raises:
            UsageError: The address says neither.
        """
        if not self.digest and not self.tag:
            raise UsageError(
                f"{self} does not say which bundle",
                hint=f"name a tag, as {self}:1.0.0, or a digest; 'edgepack channel show {self}'"
                " lists the tags",
            )
        return self.digest or self.tag

    @property
    def is_bucket(self) -> bool:
        """Whether it is in a bucket, and in no registry."""
        return self.scheme == BUCKET_SCHEME

    def require_registry(self, what: str) -> None:
        """Check that it is in a registry.

        Args:
            what: What only registries can do, for the error.

        Raises:
            UsageError: It is in a bucket.
        """
        if self.is_bucket:
            raise UsageError(
                f"{what}, and {self} is in a bucket, where nothing that is written is changed",
                hint="publish to a registry for that: oci://HOST/REPOSITORY",
            )

    @property
    def is_loopback(self) -> bool:
        """Whether the registry is on this machine, by its name alone."""
        host = self.host if self.host.endswith("]") else re.sub(r":[0-9]+$", "", self.host)
        try:
            return ip_address(host.strip("[]")).is_loopback
        except ValueError:
            return host == "localhost"

    def __str__(self) -> str:
        digest = f"@{self.digest}" if self.digest else ""
        return f"{self.scheme}{self.host}/{self.repository}{self.tag and f':{self.tag}'}{digest}"


def is_digest(name: str) -> bool:
    """Return whether a name is a digest, and no tag."""
    return re.fullmatch("sha256:[0-9a-f]{64}", name) is not None


def is_reference(text: str) -> bool:
    """Return whether a word is an address in a registry or a bucket, and no path."""
    return text.startswith((SCHEME, BUCKET_SCHEME))


def require_tag(tag: str, where: str = "") -> str:
    """Return a name that a tag can have.

    Raises:
        UsageError: A tag cannot be called so.
    """
    if not re.fullmatch(_TAG, tag):
        raise UsageError(
            f"{tag!r} can be no tag in a registry",
            hint="letters, digits, '_', '.' and '-', at most 128, the first no '.' or '-'",
            where=where,
        )
    return tag

"""Reads and writes blobs, manifests, tags and referrers of one repository in a registry.

Source: the OCI distribution specification 1.1, with its referrers API and the tags that stand for
it in older registries ("Referrers Tag Schema").
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, BinaryIO
from urllib.parse import quote

from edgepack.errors import BundleError, RegistryAwayError, RegistryError, UsageError
from edgepack.registry.connection import BLOCK, Body, Connection, retry
from edgepack.registry.documents import (
    INDEX_TYPE,
    MANIFEST_TYPE,
    MOST_BYTES,
    Descriptor,
    ImageManifest,
    Index,
    Tags,
    parse,
)
from edgepack.registry.reference import Reference

if TYPE_CHECKING:
    from urllib3 import BaseHTTPResponse

_MOST_PAGES = 100
_INDEX_TRIES = 5
_NEXT = re.compile(r'<([^>]+)>\s*;\s*rel="?next"?')
LIES = "do not trust this registry: get the bundle from where it was built, and ask who keeps it"
"""What to do where a registry sends other bytes than it was asked for."""


@dataclass(frozen=True)
class Found:
    """A manifest as it lies in a registry."""

    content: bytes
    digest: str
    """Of the content, computed here."""
    media_type: str


def compute_digest(content: bytes) -> str:
    """Return the digest of some bytes as registries write it."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


class Repository:
    """What keeps bundles under one address; threads may share it.

    What is read is believed only after it was hashed here. Each method raises RegistryError where
    what keeps them refuses, and RegistryAwayError where it does not answer.
    """

    def __init__(self, reference: Reference) -> None:
        self.reference = reference

    def has_blob(self, digest: str) -> bool:
        """Return whether it has a blob."""
        raise NotImplementedError

    def has_manifest(self, digest: str) -> bool:
        """Return whether it has a manifest."""
        raise NotImplementedError

    def write_blob(self, digest: str, size: int, body: Body) -> None:
        """Send a blob, from its beginning at each try.

        Args:
            digest: Its digest.
            size: In bytes.
            body: Opens it.
        """
        raise NotImplementedError

    def read_blob(self, descriptor: Descriptor, file: BinaryIO) -> None:
        """Write a blob into an empty file; a transfer that breaks goes on where it broke.

        Raises:
            BundleError: What is sent has not the digest and size that it should have.
        """
        found = hashlib.sha256()
        done = 0

        def receive() -> None:
            nonlocal found, done
            with self._receive(descriptor.digest, done) as (begin, pieces):
                if begin != done:
                    file.seek(0)
                    file.truncate()
                    found, done = hashlib.sha256(), 0
                for piece in pieces:
                    done += len(piece)
                    if done > descriptor.size:
                        raise self._make_lie(descriptor.digest, "is longer than it says")
                    found.update(piece)
                    file.write(piece)
            if done < descriptor.size:
                raise RegistryAwayError(
                    f"{self.reference.host} sends {done} of {descriptor.size} bytes",
                    hint="try again; if it stays so, ask who keeps it",
                    where=str(self.reference),
                )

        retry(receive)
        if f"sha256:{found.hexdigest()}" != descriptor.digest:
            raise self._make_lie(descriptor.digest, "has another digest")

    def _receive(
        self, digest: str, begin: int
    ) -> AbstractContextManager[tuple[int, Iterable[bytes]]]:
        """Yield a blob's bytes from one of them on, or from the first, and which that is."""
        raise NotImplementedError

    def read_bytes(self, descriptor: Descriptor, most: int) -> bytes:
        """Return a blob of at most ``most`` bytes, as :meth:`read_blob`.

        Raises:
            BundleError: It is larger.
        """
        if descriptor.size > most:
            raise self._make_lie(descriptor.digest, f"has more than {most} bytes")
        file = BytesIO()
        self.read_blob(descriptor, file)
        return file.getvalue()

    def read_manifest(self, name: str) -> Found | None:
        """Return what a tag or digest leads to; None if there is none.

        Raises:
            BundleError: It has not the digest that was asked for, or that is said of it.
        """
        raise NotImplementedError

    def read_image(self, name: str) -> tuple[ImageManifest, Found]:
        """Return the image manifest that a tag or digest leads to, and its bytes.

        Raises:
            UsageError: There is none.
            RegistryError: It is something else.
            BundleError: As :meth:`read_manifest`.
        """
        found = self.read_manifest(name)
        where = str(self.reference.at(name))
        if found is None:
            raise UsageError(
                f"there is no {name!r} in {self.reference.at('') if name else self.reference}",
                hint=f"'edgepack channel show {self.reference.at('')}' lists the tags",
            )
        return parse(ImageManifest, found.content, "manifest", where), found

    def write_manifest(self, name: str, content: bytes, media_type: str = MANIFEST_TYPE) -> bool:
        """Put a manifest under a tag or its digest.

        Returns:
            Whether what it refers to knows of it by that.
        """
        raise NotImplementedError

    def list_tags(self) -> list[str]:
        """Return all tags, but for those that stand for lists of referrers.

        Raises:
            UsageError: Nothing was ever published there.
        """
        raise NotImplementedError

    def list_referrers(self, digest: str) -> list[Descriptor]:
        """Return what refers to a manifest."""
        raise NotImplementedError

    def write_referrer(self, descriptor: Descriptor, content: bytes, subject: str) -> None:
        """Put a manifest that refers to another one, and let it be found there.

        Raises:
            RegistryError: Others write the list of referrers at the same time, again and again.
        """
        raise NotImplementedError

    def _make_lie(self, digest: str, what: str) -> BundleError:
        return BundleError(
            f"what {self.reference.host} sends as {digest} {what}",
            hint=LIES,
            where=str(self.reference),
        )


class RegistryRepository(Repository):
    """A repository of a registry; its methods raise what :meth:`Connection.ask` does."""

    def __init__(self, reference: Reference, *, plain_http: bool = False) -> None:
        super().__init__(reference)
        self._connection = Connection(reference, plain_http=plain_http)
        self._has_referrers_api: bool | None = None

    def has_blob(self, digest: str) -> bool:
        """Return whether it has a blob."""
        return self._has(f"blobs/{digest}", {})

    def has_manifest(self, digest: str) -> bool:
        """Return whether it has a manifest."""
        return self._has(f"manifests/{digest}", {"Accept": f"{MANIFEST_TYPE}, {INDEX_TYPE}"})

    def _has(self, path: str, headers: dict[str, str]) -> bool:
        def ask() -> bool:
            with self._connection.ask("HEAD", path, expect=(200, 404), headers=headers) as answer:
                return answer.status == 200

        return retry(ask)

    def write_blob(self, digest: str, size: int, body: Body) -> None:
        """Send a blob; see :meth:`Repository.write_blob`."""

        def send() -> None:
            with self._connection.ask("POST", "blobs/uploads/", expect=(202,)) as at:
                place = at.headers.get("Location", "")
            if not place:
                raise RegistryError(
                    f"{self.reference.host} takes an upload, and does not say where to",
                    hint="look at what is in front of the registry: a proxy that drops Location",
                    where=str(self.reference),
                )
            separator = "&" if "?" in place else "?"
            headers = {"Content-Type": "application/octet-stream", "Content-Length": str(size)}
            place = self._connection.resolve(f"{self._connection.base}blobs/uploads/", place)
            address = f"{place}{separator}digest={quote(digest, safe='')}"
            with self._connection.ask("PUT", address, expect=(201,), headers=headers, body=body):
                pass

        retry(send)

    @contextmanager
    def _receive(self, digest: str, begin: int) -> Iterator[tuple[int, Iterable[bytes]]]:
        headers = {"Range": f"bytes={begin}-"} if begin else {}
        path = f"blobs/{digest}"
        with self._connection.ask("GET", path, expect=(200, 206), headers=headers) as answer:
            pieces = iter(lambda: answer.read(BLOCK), b"")
            yield begin if _continues(answer, begin) else 0, pieces

    def read_manifest(self, name: str) -> Found | None:
        """Return what a tag or digest leads to; see :meth:`Repository.read_manifest`."""
        types = f"{MANIFEST_TYPE}, {INDEX_TYPE}"

        def ask() -> Found | None:
            path = f"manifests/{name}"
            headers = {"Accept": types}
            with self._connection.ask("GET", path, expect=(200, 404), headers=headers) as answer:
                if answer.status == 404:
                    return None
                content = self._read_all(answer)
                media_type = answer.headers.get("Content-Type", "").partition(";")[0].strip()
                said = answer.headers.get("Docker-Content-Digest", "")
            found = Found(content, compute_digest(content), media_type)
            if name.startswith("sha256:") and name != found.digest:
                raise self._make_lie(name, "has another digest")
            if said.startswith("sha256:") and said != found.digest:
                raise self._make_lie(said, "has another digest")
            return found

        return retry(ask)

    def write_manifest(self, name: str, content: bytes, media_type: str = MANIFEST_TYPE) -> bool:
        """Put a manifest under a tag or its digest; see :meth:`Repository.write_manifest`."""

        def send() -> bool:
            headers = {"Content-Type": media_type}
            path = f"manifests/{name}"
            try:
                with self._connection.ask(
                    "PUT", path, expect=(200, 201, 202), headers=headers, body=lambda: content
                ) as answer:
                    return "OCI-Subject" in answer.headers
            except RegistryError as error:
                if error.status not in (400, 404):
                    raise
                # While somebody else writes the same blob, distribution 2.8 does not know it.
                raise RegistryAwayError(
                    error.problem, hint=error.hint, where=error.where
                ) from error

        return retry(send)

    def list_tags(self) -> list[str]:
        """Return all tags; see :meth:`Repository.list_tags`."""
        tags: list[str] = []
        path = "tags/list?n=1000"
        for _ in range(_MOST_PAGES):
            found, path = self._read_page(path)
            if found is None:
                raise UsageError(
                    f"there is no repository {self.reference.at('')}",
                    hint="look at its name; 'edgepack publish' makes it",
                )
            tags += parse(Tags, found, "list of tags", str(self.reference)).tags or []
            if not path:
                break
        return sorted(tag for tag in tags if not re.fullmatch("sha256-[0-9a-f]{64}", tag))

    def list_referrers(self, digest: str) -> list[Descriptor]:
        """Return what refers to a manifest."""
        if self._has_referrers_api is not False:
            manifests: list[Descriptor] = []
            path = f"referrers/{digest}"
            for _ in range(_MOST_PAGES):
                found, path = self._read_page(path)
                if found is None:
                    break
                self._has_referrers_api = True
                where = str(self.reference)
                manifests += parse(Index, found, "list of referrers", where).descriptors
                if not path:
                    break
            if self._has_referrers_api:
                return manifests
            self._has_referrers_api = False
        return self._read_index(digest).descriptors

    def write_referrer(self, descriptor: Descriptor, content: bytes, subject: str) -> None:
        """Put what refers to a manifest; see :meth:`Repository.write_referrer`."""
        if self.write_manifest(descriptor.digest, content):
            self._has_referrers_api = True
            return
        for _ in range(_INDEX_TRIES):
            index = self._read_index(subject)
            if any(each.digest == descriptor.digest for each in index.descriptors):
                return
            both = Index(manifests=[*index.manifests, descriptor])
            self.write_manifest(_make_tag(subject), both.encode(), INDEX_TYPE)
        there = {each.digest for each in self._read_index(subject).descriptors}
        if descriptor.digest not in there:
            raise RegistryError(
                f"others write what refers to {subject} at the same time",
                hint="publish again when they have ended",
                where=str(self.reference),
            )

    def _read_index(self, digest: str) -> Index:
        found = self.read_manifest(_make_tag(digest))
        if found is None:
            return Index()
        return parse(Index, found.content, "list of referrers", str(self.reference))

    def _read_page(self, path: str) -> tuple[bytes | None, str]:
        """Return a list and where it goes on; None if there is no such list."""

        def ask() -> tuple[bytes | None, str]:
            with self._connection.ask("GET", path, expect=(200, 404)) as answer:
                if answer.status == 404:
                    return None, ""
                more = _NEXT.search(answer.headers.get("Link", ""))
                return self._read_all(answer), more[1] if more else ""

        return retry(ask)

    def _read_all(self, answer: BaseHTTPResponse) -> bytes:
        content = b""
        while piece := answer.read(BLOCK):
            content += piece
            if len(content) > MOST_BYTES:
                raise RegistryError(
                    f"{self.reference.host} sends a manifest of more than {MOST_BYTES >> 20} MiB",
                    hint=LIES,
                    where=str(self.reference),
                )
        return content


def _make_tag(digest: str) -> str:
    return digest.replace(":", "-")


def _continues(answer: BaseHTTPResponse, done: int) -> bool:
    """Return whether an answer begins where an earlier one broke."""
    if answer.status != 206:
        return done == 0
    return answer.headers.get("Content-Range", "").startswith(f"bytes {done}-")

"""Reads and writes blobs, manifests, tags and referrers below a prefix of a bucket.

Blobs lie as in an OCI image layout (image-layout.md of the OCI image specification 1.1). In place
of its ``index.json``, which all who publish would have to change, there is an object for each tag
and for each referrer, with the descriptor of what it leads to:

- ``blobs/sha256/HEX``: a file, or a manifest
- ``tags/TAG``
- ``referrers/sha256/HEX/HEX``: of what is referred to, and of what refers to it

Nothing is ever changed: what is there stays, and is hashed here by whoever reads it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from edgepack.base.object_store import (
    explain_store_problem,
    list_store_problems,
    open_bucket,
    require_libraries,
)
from edgepack.errors import BundleError, RegistryAwayError, RegistryError, UsageError
from edgepack.registry.connection import BLOCK, CONNECT_S, READ_S, Body, ValueT, retry
from edgepack.registry.documents import MANIFEST_TYPE, MOST_BYTES, Descriptor, parse
from edgepack.registry.reference import Reference, is_digest
from edgepack.registry.repository import (
    LIES,
    Found,
    RegistryRepository,
    Repository,
    compute_digest,
)

if TYPE_CHECKING:
    from obstore.store import S3Store

AT_ONCE = 64 << 20
"""The largest blob, in bytes, that is sent in one request, from memory. Larger ones are sent in
parts, for which obstore knows no ``If-None-Match``: two who send the same one at the same moment
both do, and it is the same bytes."""
_WHOLE_S = 3600.0
"""How long a request may take, its content included."""
_MOST_LISTED, _MOST_READ = 10_000, 64
"""Names in a folder of the prefix, and referrers of one manifest."""


def open_repository(reference: Reference, *, plain_http: bool = False) -> Repository:
    """Return what keeps bundles at an address.

    Args:
        reference: In a registry or a bucket.
        plain_http: Whether a registry is asked without TLS, although it is not on this machine.

    Raises:
        UsageError: It is a bucket, and ``plain_http`` is set.
        ToolError: The libraries for it are missing.
    """
    if not reference.is_bucket:
        return RegistryRepository(reference, plain_http=plain_http)
    if plain_http:
        raise UsageError(
            f"--plain-http is about registries, and {reference} is in a bucket",
            hint="AWS_ENDPOINT_URL=http://... names a store without TLS",
            where="--plain-http",
        )
    return Bucket(reference)


class Bucket(Repository):
    """A prefix of a bucket.

    Raises:
        ToolError: obstore or boto3 is not installed.
    """

    def __init__(self, reference: Reference) -> None:
        super().__init__(reference)
        require_libraries(f"{reference.at('')} is in a bucket")
        url = f"{reference.scheme}{reference.host}/{reference.repository}"
        self._reader = open_bucket(url, connect_s=CONNECT_S, whole_s=_WHOLE_S, answer_s=READ_S)
        self._writer = open_bucket(url, connect_s=CONNECT_S, whole_s=_WHOLE_S)

    def has_blob(self, digest: str) -> bool:
        """Return whether it has a blob."""
        return self._has(_make_path(digest))

    def has_manifest(self, digest: str) -> bool:
        """Return whether it has a manifest."""
        return self.has_blob(digest)

    def write_blob(self, digest: str, size: int, body: Body) -> None:
        """Send a blob; see :meth:`Repository.write_blob`."""
        if size > AT_ONCE:
            self._ask(
                "write", _make_path(digest), lambda store, path: _send(store, path, digest, body)
            )
            return
        self._create(_make_path(digest), b"".join(_prove(_read_pieces(body), digest)))

    @contextmanager
    def _receive(self, digest: str, begin: int) -> Iterator[tuple[int, Iterable[bytes]]]:
        pieces = self._read(_make_path(digest), begin)
        if pieces is None:
            raise self._make_gap(digest)
        yield begin, pieces

    def read_manifest(self, name: str) -> Found | None:
        """Return what a tag or digest leads to; see :meth:`Repository.read_manifest`."""
        digest = name
        if not is_digest(name):
            tag = self._read_all(f"tags/{name}")
            if tag is None:
                return None
            digest = parse(Descriptor, tag, f"tag {name!r}", str(self.reference)).digest
        content = self._read_all(_make_path(digest))
        if content is None:
            if digest is name:
                return None
            raise self._make_gap(digest)
        if compute_digest(content) != digest:
            raise self._make_lie(digest, "has another digest")
        return Found(content, digest, MANIFEST_TYPE)

    def write_manifest(self, name: str, content: bytes, media_type: str = MANIFEST_TYPE) -> bool:
        """Put a manifest under a tag or its digest.

        Raises:
            UsageError: The tag leads to another one, as it always will.
        """
        digest = compute_digest(content)
        self._create(_make_path(digest), content)
        if is_digest(name):
            return False
        tag = Descriptor(media_type=media_type, digest=digest, size=len(content))
        if not self._create(f"tags/{name}", tag.encode()):
            found = self.read_manifest(name)
            if found is None or found.digest != digest:
                raise UsageError(
                    f"{self.reference.at(name)} leads to another bundle: somebody was faster",
                    hint="choose another tag; tags in a bucket are never moved",
                )
        return False

    def list_tags(self) -> list[str]:
        """Return all tags; see :meth:`Repository.list_tags`."""
        tags = self._list("tags/")
        if not tags:
            raise UsageError(
                f"there is nothing at {self.reference.at('')}",
                hint="look at its name; 'edgepack publish' makes it",
            )
        return tags

    def list_referrers(self, digest: str) -> list[Descriptor]:
        """Return what refers to a manifest."""
        place = f"referrers/{digest.replace(':', '/')}/"
        found = []
        for name in self._list(place)[:_MOST_READ]:
            try:
                content = self._read_all(f"{place}{name}") or b""
                found.append(parse(Descriptor, content, "referrer", str(self.reference)))
            except RegistryError as error:
                if error.transient:
                    raise  # else others who may write there have left something
        return found

    def write_referrer(self, descriptor: Descriptor, content: bytes, subject: str) -> None:
        """Put what refers to a manifest; see :meth:`Repository.write_referrer`."""
        self.write_manifest(descriptor.digest, content)
        name = descriptor.digest.partition(":")[2]
        self._create(f"referrers/{subject.replace(':', '/')}/{name}", descriptor.encode())

    def _has(self, path: str) -> bool:
        import obstore

        return self._ask("read", path, obstore.head) is not None

    def _create(self, path: str, content: bytes) -> bool:
        """Write an object unless it is there; return whether it was not."""
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        def send(store: S3Store, path: str) -> bool:
            try:
                store.put(path, content, mode="create", use_multipart=False)
            except (AlreadyExistsError, PreconditionError) as error:
                # One of two who write at the same moment is answered so before the other has ended.
                if not self._has(path):
                    raise RegistryAwayError(
                        f"somebody writes {path} at the same time, and did not end",
                        hint="publish again",
                        where=str(self.reference),
                    ) from error
                return False
            return True

        return self._ask("write", path, send) or False

    def _read(self, path: str, begin: int = 0) -> Iterator[bytes] | None:
        """Return an object's bytes as they arrive; None if there is none."""
        import obstore

        def get(store: S3Store, path: str) -> Iterator[bytes]:
            answer = obstore.get(store, path, options={"range": {"offset": begin}} if begin else {})
            return map(bytes, answer.stream(min_chunk_size=BLOCK))

        pieces = self._ask_once("read", path, get)
        return None if pieces is None else self._explain_all(pieces)

    def _explain_all(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        while True:
            try:
                piece = next(pieces, None)
            except list_store_problems() as error:
                raise self._make_away(error) from error
            if piece is None:
                return
            yield piece

    def _read_all(self, path: str) -> bytes | None:
        def read() -> bytes | None:
            pieces = self._read(path)
            if pieces is None:
                return None
            content = b""
            for piece in pieces:
                content += piece
                if len(content) > MOST_BYTES:
                    raise RegistryError(
                        f"{path} has more than {MOST_BYTES >> 20} MiB",
                        hint=LIES,
                        where=str(self.reference),
                    )
            return content

        return retry(read)

    def _list(self, place: str) -> list[str]:
        """Return the names of what lies in a folder of the prefix, at most so many."""

        def read(store: S3Store, path: str) -> list[str]:
            pages = store.list(path.rstrip("/"), chunk_size=_MOST_LISTED)
            return [each["path"] for each in next(iter(pages), [])]

        found = self._ask("read", place, read) or []
        return sorted(path.rpartition("/")[2] for path in found)

    def _ask(self, what: str, path: str, action: Callable[[S3Store, str], ValueT]) -> ValueT | None:
        return retry(lambda: self._ask_once(what, path, action))

    def _ask_once(
        self, what: str, path: str, action: Callable[[S3Store, str], ValueT]
    ) -> ValueT | None:
        """Return what an action returns of the store that reads or writes; None: nothing is there.

        Raises:
            RegistryAwayError: The store does not answer.
            RegistryError: It refuses.
        """
        try:
            return action(self._reader if what == "read" else self._writer, path)
        except FileNotFoundError as error:
            if what == "read":
                return None
            raise self._explain(error) from error
        except list_store_problems() as error:
            raise self._explain(error) from error

    def _explain(self, error: Exception) -> RegistryError:
        from botocore.exceptions import BotoCoreError
        from obstore.exceptions import GenericError, PermissionDeniedError, UnauthenticatedError

        if isinstance(error, GenericError):
            return self._make_away(error)
        hint = "look at the bucket's name, AWS_ENDPOINT_URL and AWS_DEFAULT_REGION"
        if isinstance(error, PermissionDeniedError | UnauthenticatedError | BotoCoreError):
            hint = (
                "look at AWS_PROFILE, AWS_ACCESS_KEY_ID and so on; s3:GetObject and s3:ListBucket"
                " read, s3:PutObject writes"
            )
        return RegistryError(self._describe(error), hint=hint, where=str(self.reference))

    def _make_away(self, error: Exception) -> RegistryAwayError:
        return RegistryAwayError(
            self._describe(error), hint="try again later", where=str(self.reference)
        )

    def _describe(self, error: Exception) -> str:
        return f"the store of {self.reference.host} fails: {explain_store_problem(error)}"

    def _make_gap(self, digest: str) -> BundleError:
        return BundleError(
            f"the bundle lacks {_make_path(digest)}, which was removed there",
            hint="publish it again, or get it from where it was built",
            where=str(self.reference),
        )


def _make_path(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _send(store: S3Store, path: str, digest: str, body: Body) -> None:
    store.put(path, _prove(_read_pieces(body), digest), use_multipart=True)


def _read_pieces(body: Body) -> Iterator[bytes]:
    found = body()
    if isinstance(found, bytes):
        yield found
        return
    with found:
        while piece := found.read(BLOCK):
            yield piece


def _prove(pieces: Iterable[bytes], digest: str) -> Iterator[bytes]:
    """Yield pieces, and raise at their end unless they are what the object is called after.

    A store does not check that, and what is wrong there would stay.
    """
    found = hashlib.sha256()
    for piece in pieces:
        found.update(piece)
        yield piece
    if f"sha256:{found.hexdigest()}" != digest:
        raise BundleError(
            f"a file changed while it was sent as {digest}",
            hint="publish again when nothing builds or changes the bundle any more",
        )

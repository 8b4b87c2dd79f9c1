"""A registry in this process, with the referrers API, that lies and fails as a test tells it to.

It does what the OCI distribution specification 1.1 says of blobs, manifests, tags and referrers, as
far as edgepack asks. :mod:`.registry` is a real one, without that API.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

INDEX = "application/vnd.oci.image.index.v1+json"


@dataclass
class Reply:
    """What is answered."""

    status: int
    content: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    said_length: int | None = None
    """What Content-Length says, if it is not the content's."""


Change = Callable[[str, str, Reply], Reply]
"""Gets method, path and the true reply, and returns the one that is given."""


@dataclass
class PlayedRegistry:
    """What it has, what it was asked, and what it changes in its answers."""

    host: str = ""
    blobs: dict[str, bytes] = field(default_factory=dict)
    manifests: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    """Media type and bytes by digest."""
    tags: dict[str, str] = field(default_factory=dict)
    asked: list[tuple[str, str]] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)
    """The ``Authorization`` of each request."""
    change: Change | None = None

    def address(self, name: str) -> str:
        """Return the address of something in it: ``tiny:1.0.0``."""
        return f"oci://{self.host}/{name}"

    def document(self, name: str) -> Any:
        """Return the manifest of a tag or digest."""
        return json.loads(self.manifests[self.tags.get(name, name)][1])

    def put(self, content: bytes, tag: str = "") -> str:
        """Put a manifest there by hand, and return its digest."""
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        self.manifests[digest] = (json.loads(content)["mediaType"], content)
        if tag:
            self.tags[tag] = digest
        return digest


@contextmanager
def played_registry() -> Iterator[PlayedRegistry]:
    """Play a registry on loopback."""
    played = PlayedRegistry()

    class Handler(_Handler):
        registry = played

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        played.host = f"127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield played
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    registry: ClassVar[PlayedRegistry]
    protocol_version = "HTTP/1.1"

    def log_message(self, *_words: object) -> None:
        pass

    def do_GET(self) -> None:
        self._reply(self._find())

    def do_HEAD(self) -> None:
        self._reply(self._find())

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        base = urlsplit(self.path).path
        self._reply(Reply(202, headers={"Location": f"{base}session?state=1"}))

    def do_PUT(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        parts = urlsplit(self.path)
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        if "/blobs/uploads/" in parts.path:
            right = parse_qs(parts.query)["digest"] == [digest]
            if right:
                self.registry.blobs[digest] = content
            self._reply(Reply(201 if right else 400))
            return
        name = parts.path.rpartition("/")[2]
        self.registry.manifests[digest] = (self.headers["Content-Type"], content)
        if not name.startswith("sha256:"):
            self.registry.tags[name] = digest
        subject = json.loads(content).get("subject")
        headers = {"OCI-Subject": subject["digest"]} if subject else {}
        self._reply(Reply(201, headers=headers))

    def _find(self) -> Reply:
        found = re.fullmatch(r"/v2/.+/(blobs|manifests|referrers|tags)/([^/]+)", self._path)
        kind, name = (found[1], found[2]) if found else ("", "")
        if kind == "blobs" and name in self.registry.blobs:
            return self._cut(self.registry.blobs[name])
        if kind == "manifests":
            digest = self.registry.tags.get(name, name)
            if digest in self.registry.manifests:
                media_type, content = self.registry.manifests[digest]
                headers = {"Content-Type": media_type, "Docker-Content-Digest": digest}
                return Reply(200, content, headers)
        if kind == "referrers":
            return self._list_referrers(name)
        if kind == "tags" and self.registry.tags:
            return Reply(200, json.dumps({"name": "x", "tags": [*self.registry.tags]}).encode())
        return Reply(404, b'{"errors":[{"code":"NOT_FOUND","message":"there is no such thing"}]}')

    def _cut(self, content: bytes) -> Reply:
        found = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if found is None:
            return Reply(200, content)
        begin = int(found[1])
        said = f"bytes {begin}-{len(content) - 1}/{len(content)}"
        return Reply(206, content[begin:], {"Content-Range": said})

    def _list_referrers(self, digest: str) -> Reply:
        found = []
        for own, (media_type, content) in self.registry.manifests.items():
            document = json.loads(content)
            if (document.get("subject") or {}).get("digest") == digest:
                found.append(
                    {
                        "mediaType": media_type,
                        "digest": own,
                        "size": len(content),
                        "artifactType": document.get("artifactType"),
                        "annotations": document.get("annotations") or {},
                    }
                )
        index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": found}
        return Reply(200, json.dumps(index).encode(), {"Content-Type": INDEX})

    @property
    def _path(self) -> str:
        return urlsplit(self.path).path

    def _reply(self, reply: Reply) -> None:
        self.registry.asked.append((self.command, self._path))
        self.registry.shown.append(self.headers.get("Authorization", ""))
        if self.registry.change:
            reply = self.registry.change(self.command, self._path, reply)
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        length = len(reply.content) if reply.said_length is None else reply.said_length
        self.send_header("Content-Length", str(length))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(reply.content)
        if length != len(reply.content):
            self.close_connection = True

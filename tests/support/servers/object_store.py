"""moto's S3 server on 127.0.0.1, which breaks its answers when a test says how."""

from __future__ import annotations

import io
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

BUCKET = "team"
Environ = dict[str, Any]
App = Callable[[Environ, Any], Iterable[bytes]]


@dataclass
class ObjectStore:
    """A server with one empty bucket."""

    endpoint: str
    fault: Callable[[str, str], str] = lambda method, path: ""
    """By method and path of a request: ``5xx``, ``denied``, ``gone``, ``slow``, ``dripping``,
    ``flipped``, ``other`` (another entry's bytes), ``short`` (of half the length, and it says so),
    ``truncated`` (the connection ends), ``deep`` (JSON that no parser takes), ``huge`` (it says
    that 600 MB come); nothing lets it be."""
    asked: list[tuple[str, str, int]] = field(default_factory=list)
    """Method, path and answer of each request for an object."""
    over: threading.Event = field(default_factory=threading.Event)

    @property
    def environment(self) -> Mapping[str, str]:
        """What a build is told of it."""
        return {
            "EDGEPACK_CACHE_STORE": f"s3://{BUCKET}/builds",
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": "operator",
            "AWS_SECRET_ACCESS_KEY": "canary-of-a-secret",
            "AWS_DEFAULT_REGION": "eu-central-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def list_objects(self) -> dict[str, bytes]:
        """Return all that the bucket has."""
        from moto.core.models import DEFAULT_ACCOUNT_ID
        from moto.s3.models import s3_backends

        bucket = s3_backends[DEFAULT_ACCOUNT_ID]["aws"].buckets[BUCKET]
        return {str(name): bytes(key.value) for name, key in bucket.keys.items()}

    def write_object(self, name: str, content: bytes) -> None:
        """Put an object there, in place of one that is there."""
        from moto.core.models import DEFAULT_ACCOUNT_ID
        from moto.s3.models import s3_backends

        s3_backends[DEFAULT_ACCOUNT_ID]["aws"].put_object(BUCKET, name, content)

    def count(self, method: str, answer: int) -> int:
        """Return how many requests there were that were answered so."""
        return sum((each[0], each[2]) == (method, answer) for each in self.asked)


@contextmanager
def object_store() -> Iterator[ObjectStore]:
    """Start the server in a thread, and stop it at the end."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from moto.s3.models import s3_backends
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"

        def log(self, kind: str, message: str, *args: object) -> None:
            pass

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    store = ObjectStore("")
    app = DomainDispatcherApplication(create_backend_app)
    server = make_server(
        "127.0.0.1",
        0,
        lambda environ, start: _answer(store, app, environ, start),
        threaded=True,
        request_handler=Quiet,
    )
    store.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    for account in s3_backends.values():
        account["aws"].reset()
    _make_bucket(store.endpoint)
    try:
        yield store
    finally:
        store.over.set()
        server.shutdown()
        thread.join()
        server.server_close()


def _make_bucket(endpoint: str) -> None:
    import urllib.request

    headers = {
        "Authorization": "AWS4-HMAC-SHA256 Credential=operator/20260101/us-east-1/s3/aws4_request,"
        " SignedHeaders=host, Signature=0"
    }
    request = urllib.request.Request(f"{endpoint}/{BUCKET}", method="PUT", headers=headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.status == 200


def _answer(store: ObjectStore, app: App, environ: Environ, start: Any) -> Iterable[bytes]:
    method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
    entry = path.startswith(f"/{BUCKET}/")
    fault = store.fault(method, path) if entry else ""
    if fault in ("5xx", "denied", "gone"):
        code = {"5xx": 503, "denied": 403, "gone": 404}[fault]
        environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        store.asked.append((method, path, code))
        words = "NoSuchBucket" if fault == "gone" else "AccessDenied"
        body = f"<Error><Code>{words}</Code><AWSAccessKeyId>operator</AWSAccessKeyId></Error>"
        start(f"{code} no", [("Content-Length", str(len(body)))])
        return [body.encode()]
    if fault == "slow":
        store.over.wait(60)
    status, headers, body = _ask(app, environ)
    if entry:
        store.asked.append((method, path, int(status.split()[0])))
    if fault and method == "GET" and status.startswith("20"):
        return _break(store, fault, (status, headers, body), start)
    start(status, headers)
    return [body]


def _ask(app: App, environ: Environ) -> tuple[str, list[tuple[str, str]], bytes]:
    """Return moto's whole answer."""
    found: list[Any] = []

    def begin(status: str, headers: list[tuple[str, str]], _: object = None) -> None:
        found[:] = [status, headers]

    length = int(environ.get("CONTENT_LENGTH") or 0)
    environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(length))
    body = b"".join(app(environ, begin))
    return found[0], found[1], body


def _break(
    store: ObjectStore, fault: str, answer: tuple[str, list[tuple[str, str]], bytes], start: Any
) -> Iterable[bytes]:
    status, headers, body = answer
    if fault == "flipped":
        at = len(body) - 1
        body = body[:at] + bytes([body[at] ^ 1])
    elif fault == "other":
        others = store.list_objects()
        body = next(each for each in others.values() if each != body)
    elif fault == "short":
        body = body[: len(body) // 2]
    elif fault == "deep":
        body = b"[" * 200_000 + b"\n\n"
    if fault in ("other", "short", "deep", "huge"):
        headers = [h for h in headers if h[0].lower() not in ("content-length", "etag")]
        size = 600_000_000 if fault == "huge" else len(body)
        headers.append(("Content-Length", str(size)))
    start(status, headers)
    if fault == "truncated":
        return iter([body[: len(body) // 2]])
    if fault == "dripping":
        return _drip(store, body)
    return [body]


def _drip(store: ObjectStore, body: bytes) -> Iterator[bytes]:
    for at in range(len(body)):
        yield body[at : at + 1]
        if store.over.wait(0.05):
            return

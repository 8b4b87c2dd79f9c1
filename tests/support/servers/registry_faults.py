"""What stands between a device and a registry, and disturbs what it is told to disturb."""

from __future__ import annotations

import base64
import http.client
import json
import re
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

BLOCK = 1 << 16
PAGE = 20
"""Referrers of a page."""
Change = Callable[["Answer"], None]


@dataclass
class Answer:
    """What the registry answers, before it is passed on."""

    status: int
    headers: dict[str, str]
    body: bytes
    cut_at: int | None = None
    """After how many bytes of the body the connection ends."""


@dataclass
class Fault:
    """A disturbance of requests whose method and path match."""

    matches: str
    change: Change
    times: int = 1 << 30
    without: tuple[str, ...] = ()
    """Headers that the registry is not told of."""
    seen: int = 0


def answer_with(status: int, **headers: str) -> Change:
    """Answer this instead."""

    def change(answer: Answer) -> None:
        answer.status = status
        answer.headers = {name.replace("_", "-"): value for name, value in headers.items()}
        answer.body = b"{}"

    return change


def cut_at(size: int) -> Change:
    """End the connection after so many bytes of the body."""

    def change(answer: Answer) -> None:
        answer.cut_at = size

    return change


def flip_a_byte(answer: Answer) -> None:
    """Change one byte of the body."""
    if answer.body:
        place = len(answer.body) // 2
        changed = bytes([answer.body[place] ^ 1])
        answer.body = answer.body[:place] + changed + answer.body[place + 1 :]


def leave(_: Answer) -> None:
    """Change nothing: for what a request is told, and for watching."""


def replace_body(body: bytes) -> Change:
    """Answer with another body."""

    def change(answer: Answer) -> None:
        answer.body = body
        answer.headers.pop("Docker-Content-Digest", None)

    return change


@dataclass
class Gate:
    """Says what is disturbed, and has seen what was asked."""

    host: str = ""
    """Where devices ask."""
    faults: list[Fault] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    """Method and path of every request, with its range."""
    tokens: set[str] = field(default_factory=set)
    """Where there are some, a request needs one of them; ``/token`` gives the next."""
    login: str = ""
    """``user:password`` that ``/token`` wants, or every request where ``is_basic`` is set."""
    is_basic: bool = False
    broken_tokens: int = 0
    """How many times ``/token`` fails."""
    has_referrers: bool = False
    """Whether it has the referrers API, which the registry behind it lacks."""
    watch: Callable[[Any], object] = lambda _: None
    """Is given the headers of each request."""

    def disturb(self, matches: str, change: Change, times: int = 1 << 30, **more: Any) -> Fault:
        """Add a fault."""
        fault = Fault(matches, change, times, **more)
        self.faults.append(fault)
        return fault

    def forget(self) -> None:
        """Disturb nothing, want no login, and have seen nothing."""
        for each in (self.faults, self.asked, self.tokens):
            each.clear()
        self.login, self.is_basic, self.broken_tokens = "", False, 0

    def find(self, line: str) -> Fault | None:
        """Return the first fault for a request that is not used up."""
        for fault in self.faults:
            if re.search(fault.matches, line) and fault.seen < fault.times:
                fault.seen += 1
                return fault
        return None


@contextmanager
def gate(registry: str, certificate: Path | None = None) -> Iterator[Gate]:
    """Stand in front of a registry; with a certificate and its key in a file, over TLS."""
    found = Gate()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        gate = found
        upstream = registry

        def do_GET(self) -> None:
            handle(self)

        def do_HEAD(self) -> None:
            handle(self)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # a client went away
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    found.host = f"127.0.0.1:{server.server_address[1]}"
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def handle(handler: Any) -> None:
    """Answer one request."""
    gate: Gate = handler.gate
    line = f"{handler.command} {handler.path}"
    ranged = handler.headers.get("Range")
    gate.asked.append(f"{line} {ranged}" if ranged else line)
    gate.watch(handler.headers)
    answer = _refuse(gate, handler) or _pass_on(gate, handler, line)
    handler.send_response(answer.status)
    for name, value in answer.headers.items():
        if name.lower() not in ("content-length", "connection", "transfer-encoding", "date"):
            handler.send_header(name, value)
    length = answer.headers.get("Content-Length") if handler.command == "HEAD" else None
    handler.send_header("Content-Length", length or str(len(answer.body)))
    handler.send_header("Connection", "close")
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(answer.body[: answer.cut_at])
    handler.close_connection = True


def _refuse(gate: Gate, handler: Any) -> Answer | None:
    """Return what is answered to who has not logged in."""
    said = handler.headers.get("Authorization") or ""
    basic = "Basic " + base64.b64encode(gate.login.encode()).decode()
    if handler.path.startswith("/token"):
        if gate.login and said != basic:
            return Answer(401, {}, b"{}")
        if gate.broken_tokens > 0:
            gate.broken_tokens -= 1
            return Answer(503, {}, b"")
        token = f"t{len(gate.asked)}"
        gate.tokens.add(token)
        return Answer(
            200, {"Content-Type": "application/json"}, json.dumps({"token": token}).encode()
        )
    if gate.is_basic:
        challenge = {"WWW-Authenticate": 'Basic realm="here"'}
        return None if said == basic else Answer(401, challenge, b"{}")
    if gate.tokens and said.removeprefix("Bearer ") not in gate.tokens:
        realm = f'Bearer realm="http://{gate.host}/token",service="here",scope="repository:x:pull"'
        return Answer(401, {"WWW-Authenticate": realm}, b"{}")
    return None


def _list_page(answer: Answer, path: str) -> None:
    """Make a page of the referrers API of the list that a tag has (distribution-spec 1.1)."""
    if answer.status == http.client.NOT_FOUND:
        answer.status, answer.body = 200, json.dumps({"manifests": []}).encode()
    index = json.loads(answer.body)
    here, _, at = path.partition("&from=")
    begin = int(at or 0)
    listed = index["manifests"]
    answer.body = json.dumps({**index, "manifests": listed[begin : begin + PAGE]}).encode()
    if begin + PAGE < len(listed):
        answer.headers["Link"] = f'<{here}&from={begin + PAGE}>; rel="next"'


def _pass_on(gate: Gate, handler: Any, line: str) -> Answer:
    fault = gate.find(line)
    headers = {
        name: value
        for name in ("Accept", "Range")
        if (value := handler.headers.get(name)) and not (fault and name in fault.without)
    }
    connection = http.client.HTTPConnection(handler.upstream, timeout=30.0)
    try:
        asked = re.match("(/v2/.+)/referrers/sha256:([0-9a-f]+)", handler.path)
        path = handler.path
        if gate.has_referrers and asked:
            path = f"{asked[1]}/manifests/sha256-{asked[2]}"
        connection.request(handler.command, path, headers=headers)
        found = connection.getresponse()
        answer = Answer(found.status, dict(found.getheaders()), found.read())
        if path != handler.path:
            _list_page(answer, handler.path)
    finally:
        connection.close()
    if fault is not None:
        fault.change(answer)
    return answer


@contextmanager
def forward_proxy() -> Iterator[tuple[str, list[str]]]:
    """Play a proxy of plain HTTP that wants a login; yield its address and what it was asked."""
    asked: list[str] = []
    wanted = "Basic " + base64.b64encode(b"bob:pr0xy").decode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.headers.get("Proxy-Authorization") != wanted:
                self.send_error(407)
                return
            asked.append(self.path)
            host, _, path = self.path.removeprefix("http://").partition("/")
            connection = http.client.HTTPConnection(host, timeout=30.0)
            names = ("Accept", "Range", "Authorization")
            headers = {name: self.headers[name] for name in names if name in self.headers}
            connection.request(self.command, f"/{path}", headers=headers)
            found = connection.getresponse()
            self.send_response(found.status)
            for name, value in found.getheaders():
                if name.lower() not in ("connection", "transfer-encoding", "date", "server"):
                    self.send_header(name, value)
            self.end_headers()
            self.wfile.write(found.read())
            connection.close()

        def do_HEAD(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://bob:pr0xy@127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

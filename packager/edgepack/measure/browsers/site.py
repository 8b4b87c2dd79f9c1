"""Serves the page in which a browser measures, and talks to it.

The page's address has a random token, and every other address is unknown. There is one page at a
time: whoever opens the address while it is there is told so. Its worker asks for the next command
with the answer to the last one; ``ondevice/browser/worker.js`` documents these messages.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar, Self
from urllib.parse import parse_qs, unquote, urlsplit

from edgepack.devices.answers import parse_json
from edgepack.devices.harness import MAX_RUN_BYTES
from edgepack.errors import (
    DeviceError,
    RemoteCommandError,
    TooSlowError,
    VariantRefusedError,
    format_one_line,
)

Served = Mapping[str, Path | bytes]
"""What the page may fetch, by its path below the page's address."""
Json = dict[str, Any]

SILENT_S = 30.0
"""A page says every two seconds that it is there; after so long without a word it is gone."""
POLL_S = 15.0
"""How long a request waits for the next command. Browsers give up after minutes."""
_LOOK_S = 0.2
_STOP_LOOK_S = 0.05
_MAX_BODY_BYTES = 1 << 30
_MAX_HEADER_BYTES = MAX_RUN_BYTES
_BYTES = "application/octet-stream"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript",
    ".mjs": "text/javascript",
    ".json": "application/json",
    ".wasm": "application/wasm",
}
_HEADERS = {
    # A page with these two is cross-origin isolated, which threads of WebAssembly need.
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
    # It loads nothing from anywhere else.
    "Content-Security-Policy": "default-src 'none'; script-src 'self' 'wasm-unsafe-eval';"
    " worker-src 'self'; connect-src 'self'",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_ENDED = "see what it says above; 'browser' and 'options' in devices.yaml name what is started"
_GONE = "measure again, and keep the page open and in front"
_TOO_LARGE = "measure a model with smaller outputs: a browser answers in one piece"
_BUSY = "Another page measures already. Close it first, then load this one again."


@dataclass
class _Page:
    """What is known of the page, for the threads that answer its requests."""

    id: str = ""
    """Empty while no page is open."""
    heard_at: float = 0.0
    problem: str = ""
    remedy: str = _GONE
    is_hidden: bool = False
    """As it said last."""
    was_hidden: bool = False
    number: int = 0
    """Of the last command; the worker's first message answers number 0."""
    renewed: int = 0
    """Of the command with which the present worker began."""
    command: bytes | None = None
    """What the worker has not fetched yet."""
    answer: bytes | None = None
    """To the last command."""
    changed: threading.Condition = field(default_factory=threading.Condition)


class Site:
    """The server of one device's page, while the context lasts.

    Args:
        name: The device's name, for messages.
        listen: Address and port.
        served: What the page may fetch.

    Raises:
        DeviceError: The address cannot be listened at.
    """

    def __init__(self, name: str, listen: str, served: Served) -> None:
        self.name = name
        self.served = served
        self.token = secrets.token_urlsafe(18)
        self._page = _Page()
        host, _, port = listen.rpartition(":")
        self._shown_host = host
        try:
            self._server = _Server((host.strip("[]"), int(port)), self)
        except (OSError, OverflowError) as error:
            raise DeviceError(
                f"the page cannot be served at {listen}: {error}",
                hint="give an address of this machine and a free port with 'listen' in"
                " devices.yaml; port 0 is any that is free",
                where=name,
            ) from error

    def __enter__(self) -> Self:
        serve = self._server.serve_forever
        self._thread = threading.Thread(target=serve, args=(_STOP_LOOK_S,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._page.changed:
            self._page.problem = "edgepack has ended"
            self._page.changed.notify_all()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        """The page's address; with this machine's name where all its addresses are listened at."""
        shown = self._shown_host
        if self._server.server_address[0] in ("0.0.0.0", "::"):  # noqa: S104  (what was asked for)
            shown = socket.gethostname()
        return f"http://{shown}:{self._server.server_port}/{self.token}/"

    @property
    def was_hidden(self) -> bool:
        """Whether the page was not to be seen at some moment since :meth:`forget_hidden`."""
        return self._page.was_hidden

    def forget_hidden(self) -> None:
        """Begin to look whether the page is to be seen."""
        page = self._page
        with page.changed:
            page.was_hidden = page.is_hidden

    def forget_page(self) -> None:
        """Begin anew with another page."""
        self._page = _Page()

    def open(self, timeout_s: float, watch: Callable[[], str]) -> None:
        """Wait until the page is open.

        Args:
            timeout_s: For how long.
            watch: Returns why it will not be opened; nothing while it may.

        Raises:
            DeviceError: It was not opened.
        """
        self._wait(timeout_s, watch, "the page was not opened")

    def renew(self, watch: Callable[[], str], timeout_s: float) -> None:
        """Have the page begin with a new worker, whatever the last one is at.

        The page learns it by the answer to its next word: a worker that computes asks for nothing.

        Raises:
            DeviceError: The page is gone.
        """
        page = self._page
        with page.changed:
            page.number += 1
            page.renewed = page.number
            page.answer = page.command = None
            page.changed.notify_all()
        self._wait(timeout_s, watch, "the page began no new worker")

    def ask(
        self, command: Json, body: bytes, *, timeout_s: float, watch: Callable[[], str]
    ) -> tuple[bytes, bytes]:
        """Have the worker do something.

        Returns:
            The answer's header, which is JSON, and what follows it.

        Raises:
            DeviceError: The page is gone.
            TooSlowError: It took longer than ``timeout_s``.
            VariantRefusedError: No variant works there.
            RemoteCommandError: It failed, or the answer is none.
        """
        self._send(command, body)
        answer = self._wait(timeout_s, watch, "")
        header, rest = _split(answer, self.name)
        said = _read_header(header, self.name)
        if why := said.get("refused"):
            raise VariantRefusedError(
                str(why), hint="measure another variant: --variant ID", where=self.name
            )
        if why := said.get("failed"):
            raise RemoteCommandError(
                f"the page failed: {format_one_line(str(why), 400)}",
                hint="build the bundle again if it is of another edgepack; the browser's console"
                " may say more",
                where=self.name,
            )
        return header, rest

    def _send(self, command: Json, body: bytes) -> None:
        page = self._page
        with page.changed:
            page.number += 1
            page.answer = None
            page.command = _join({**command, "number": page.number}, body)
            page.changed.notify_all()

    def _wait(self, timeout_s: float, watch: Callable[[], str], late: str) -> bytes:
        """Return the answer to the last command."""
        page = self._page
        end = time.monotonic() + timeout_s
        with page.changed:
            while page.answer is None:
                if ended := watch():
                    raise DeviceError(ended, hint=_ENDED, where=self.name)
                if why := page.problem or self._explain_silence():
                    raise DeviceError(why, hint=page.remedy, where=self.name)
                if time.monotonic() > end:
                    raise self._make_late(late, timeout_s)
                page.changed.wait(_LOOK_S)
            return page.answer

    def _explain_silence(self) -> str:
        page = self._page
        if page.id and time.monotonic() - page.heard_at > SILENT_S:
            return (
                f"the page has said nothing for {SILENT_S:.0f} s: its process crashed, or the"
                " browser or its device sleeps"
            )
        return ""

    def _make_late(self, late: str, timeout_s: float) -> DeviceError | TooSlowError:
        if late:
            return DeviceError(
                f"{late} within {timeout_s:g} s",
                hint=f"open {self.url} in a browser that has JavaScript modules and WebAssembly;"
                " 'opening_s' in devices.yaml waits longer",
                where=self.name,
            )
        return TooSlowError(
            f"the page took longer than {timeout_s:g} s",
            hint="measure a smaller model, or take a shorter preset",
            where=self.name,
        )

    # What follows is called by the threads that answer requests.

    def greet(self) -> str | None:
        """Return an id for a page that was opened; None if there is one already."""
        page = self._page
        with page.changed:
            if page.id and time.monotonic() - page.heard_at <= SILENT_S:
                return None
            page.id, page.heard_at = secrets.token_hex(8), time.monotonic()
            return page.id

    def hear(self, page_id: str, *, hidden: bool | None, worker: str) -> bool:
        """Note that the page is there; return whether it is the one that measures.

        Args:
            page_id: Whose word it is.
            hidden: Whether it is not to be seen; None where its worker asks, who does not know.
            worker: The number of the worker that asks; empty where the page itself does.
        """
        page = self._page
        with page.changed:
            if not page_id or page_id != page.id or page.problem:
                return False
            page.heard_at = time.monotonic()
            if hidden is not None:
                page.is_hidden = hidden
                page.was_hidden |= hidden
            return worker in ("", str(page.renewed))

    def lose(self, page_id: str, problem: str, remedy: str = _GONE) -> None:
        """Note that the page is gone, or cannot go on."""
        page = self._page
        with page.changed:
            if page_id == page.id and not page.problem:
                page.problem, page.remedy = problem, remedy
                page.changed.notify_all()

    @property
    def renewed(self) -> int:
        """The number that the page's worker has to have."""
        return self._page.renewed

    def exchange(self, page_id: str, worker: str, number: str, answer: bytes) -> bytes | None:
        """Take a worker's answer to a command, and wait for the next; None if none comes."""
        page = self._page
        end = time.monotonic() + POLL_S
        with page.changed:
            if number == str(page.number) and page.answer is None and page.id == page_id:
                page.answer = answer
                page.changed.notify_all()
            while page.command is None and not page.problem and time.monotonic() < end:
                if worker != str(page.renewed):
                    return None
                page.changed.wait(_LOOK_S)
            if page is not self._page or page_id != page.id or worker != str(page.renewed):
                return None
            command, page.command = page.command, None
            return command


def _join(header: Json, body: bytes) -> bytes:
    text = json.dumps(header).encode()
    return b"".join([struct.pack(">I", len(text)), text, body])


def _split(answer: bytes, device: str) -> tuple[bytes, bytes]:
    size = struct.unpack(">I", answer[:4])[0] if len(answer) >= 4 else len(answer) + 1
    if 4 + size > len(answer):
        raise _make_garbled_error(answer, "is cut off", device)
    return answer[4 : 4 + size], answer[4 + size :]


def _read_header(header: bytes, device: str) -> Json:
    try:
        found = parse_json(header, max_bytes=_MAX_HEADER_BYTES)
    except ValueError as error:
        raise _make_garbled_error(header, str(error), device) from error
    if not isinstance(found, dict):
        raise _make_garbled_error(header, "is no object", device)
    return found


def _make_garbled_error(data: bytes, problem: str, device: str) -> RemoteCommandError:
    return RemoteCommandError(
        f"the page's answer {problem}; it began with {data[:80].decode('utf-8', 'replace')!r}",
        hint="load the page anew, without extensions that change pages",
        where=device,
    )


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], site: Site) -> None:
        self.site = site
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of a browser that hangs up."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server  # type: ignore[mutable-override]
    protocol_version = "HTTP/1.1"
    timeout: ClassVar[float | None] = 600.0
    """Seconds until a connection that nothing comes from is closed."""

    def do_GET(self) -> None:
        """Send a file of the page."""
        path = self._read_path()
        found = None if path is None else self.server.site.served.get(path)
        if path is None or found is None:
            self._send(404, b"there is nothing here")
            return
        data = found if isinstance(found, bytes) else found.read_bytes()
        self._send(200, data, _TYPES.get(Path(path or "page.html").suffix, _BYTES))

    def do_POST(self) -> None:
        """Answer the page, or its worker."""
        size = int(self.headers.get("Content-Length", "-1"))
        path = self._read_path()
        if path is None or size < 0:
            self.close_connection = True
            self._send(404, b"there is nothing here")
            return
        asked = {key: values[0] for key, values in parse_qs(urlsplit(self.path).query).items()}
        if size > _MAX_BODY_BYTES:
            self.close_connection = True
            why = f"the page's answer has {size} bytes, and at most {_MAX_BODY_BYTES} are taken"
            self.server.site.lose(asked.get("page", ""), why, _TOO_LARGE)
            self._send(413, why.encode())
            return
        body = self.rfile.read(size)
        self._answer(path, asked, body)

    def _answer(self, path: str, asked: Mapping[str, str], body: bytes) -> None:
        site, page = self.server.site, asked.get("page", "")
        match path:
            case "hello":
                made = site.greet()
                self._send(200 if made else 409, (made or _BUSY).encode(), "text/plain")
            case "closed":
                site.lose(page, "the page was closed")
                self._send(204)
            case "failed":
                said = format_one_line(body.decode("utf-8", "replace"), 400)
                site.lose(page, f"the page failed: {said}")
                self._send(204)
            case "alive" | "next" if not self._hear(page, asked):
                self._send(409, _BUSY.encode())
            case "alive":
                self._send(200, str(site.renewed).encode(), "text/plain")
            case "next":
                worker, number = asked.get("worker", ""), asked.get("answers", "")
                command = site.exchange(page, worker, number, body)
                self._send(204 if command is None else 200, command or b"")
            case _:
                self._send(404, b"there is nothing here")

    def _hear(self, page: str, asked: Mapping[str, str]) -> bool:
        hidden = asked["hidden"] == "1" if "hidden" in asked else None
        return self.server.site.hear(page, hidden=hidden, worker=asked.get("worker", ""))

    def _read_path(self) -> str | None:
        """Return the path below the page's address; None of any other address."""
        path, prefix = urlsplit(self.path).path, f"/{self.server.site.token}/"
        if not hmac.compare_digest(path[: len(prefix)].encode(), prefix.encode()):
            return None
        return unquote(path[len(prefix) :])

    def _send(self, status: int, data: bytes = b"", kind: str = _BYTES) -> None:
        self.send_response(status)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if status != 204:
            self.wfile.write(data)

    def log_message(self, *words: object) -> None:
        """Say nothing."""


@contextmanager
def serving(name: str, listen: str, served: Served) -> Iterator[Site]:
    """Serve a device's page while the context lasts.

    Raises:
        DeviceError: The address cannot be listened at.
    """
    with Site(name, listen, served) as site:
        yield site

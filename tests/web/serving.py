"""A web server on 127.0.0.1 for a page that uses bundles, with the headers that a query asks for.

``/page.html?isolated`` is cross-origin isolated, ``?csp`` has a Content-Security-Policy, with
``?csp&alone`` one that forbids workers. ``/dist``
holds the bundles and, in ``/dist/runtime``, the code that they share.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

PACKAGE = "/node_modules/onnxruntime-web/dist"
IMPORTS = {
    "#onnxruntime": f"{PACKAGE}/ort.wasm.bundle.min.mjs",
    "#onnxruntime-webgpu": f"{PACKAGE}/ort.webgpu.bundle.min.mjs",
    "edgepack-runtime": "/dist/edgepack-runtime/index.js",
    "edgepack-runtime/generated.js": "/dist/edgepack-runtime/generated.js",
}
PAGE = f"""\
<!doctype html>
<meta charset="utf-8">
<script type="importmap" nonce="n">{json.dumps({"imports": IMPORTS})}</script>
<script type="module" nonce="n">window.proof = await import("/page.js");</script>
"""
ISOLATED = {
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
}
POLICY = (
    "default-src 'none'; script-src 'self' 'nonce-n' 'wasm-unsafe-eval'; connect-src 'self';"
    " worker-src 'self'"
)


class Site(ThreadingHTTPServer):
    """The server.

    Attributes:
        asked: The paths that were asked for, without queries.
    """

    def __init__(self, folder: Path, pages: Path) -> None:
        self.folder = folder
        self.pages = pages
        self.asked: list[str] = []
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(SimpleHTTPRequestHandler):
    server: Site
    extensions_map = {
        "": "application/octet-stream",
        ".css": "text/css",
        ".html": "text/html",
        ".js": "text/javascript",
        ".mjs": "text/javascript",
        ".wasm": "application/wasm",
        ".json": "application/json",
    }

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        self.server.asked.append(path)
        if path != "/page.html":
            super().do_GET()
            return
        data = PAGE.encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def end_headers(self) -> None:
        words = urlsplit(self.headers.get("Referer", "") + self.path).query
        if "isolated" in words or self.path.endswith((".js", ".mjs")):
            for name, value in ISOLATED.items():
                self.send_header(name, value)
        if urlsplit(self.path).path == "/page.html" and "csp" in words:
            policy = POLICY.replace("worker-src 'self'", "worker-src 'none'")
            self.send_header("Content-Security-Policy", policy if "alone" in words else POLICY)
        self.send_header("Cache-Control", "no-store")
        super().end_headers()

    def translate_path(self, path: str) -> str:
        name = unquote(urlsplit(path).path).lstrip("/")
        own = self.server.pages / name
        return str(own if own.is_file() else self.server.folder / name)

    def log_message(self, *words: Any) -> None:
        """Say nothing."""


@contextmanager
def serving(folder: Path, pages: Path) -> Iterator[Site]:
    """Serve a folder, and the scripts of another, while the context lasts."""
    with Site(folder, pages) as site:
        thread = threading.Thread(target=site.serve_forever)
        thread.start()
        try:
            yield site
        finally:
            site.shutdown()
            thread.join()

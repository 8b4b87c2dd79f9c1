"""Keep chunks on a host that devices are behind, and serve them over HTTPS until stdin ends.

Runs with nothing but Python 3.8. What it needs comes on stdin: a line of words, then as many bytes
as its last word says.

``identity TOKEN SIZE``: the certificate to show and its key, in PEM. Comes first.
``chunk SHA256 SIZE``: a chunk.
``listen ADDRESS 0``: listen on this address of this host, and print the port, five digits in a
line.

``POST /`` with ``Authorization: Bearer TOKEN`` and the SHA-256 of chunks, a JSON list, answers with
these, one behind the other. Chunks lie in a file without a name: whatever happens, none is left.

Exit codes: 0 stdin has ended, 28 no space left, 1 other.
"""

import errno
import hashlib
import hmac
import http.server
import json
import os
import socket
import ssl
import sys
import tempfile
import threading
from typing import Dict, List, Optional, Tuple

PIECE = 1 << 18
WAIT_S = 60
QUESTION_BYTES = 16 << 20


class Store:
    """Chunks in a file."""

    def __init__(self) -> None:
        self.file = tempfile.TemporaryFile()  # noqa: SIM115  (it lives as long as the program)
        self.places: Dict[str, Tuple[int, int]] = {}
        self.end = 0

    def add(self, sha256: str, data: bytes) -> None:
        """Keep a chunk; those who ask for it from now on get it."""
        if hashlib.sha256(data).hexdigest() != sha256:
            raise ValueError("the hash of a chunk is wrong")
        os.lseek(self.file.fileno(), self.end, os.SEEK_SET)
        done = 0
        while done < len(data):
            done += os.write(self.file.fileno(), data[done:])
        self.places[sha256] = self.end, len(data)
        self.end += len(data)

    def read(self, offset: int, size: int) -> bytes:
        """Return bytes of the file; threads may do so while others are added."""
        return os.pread(self.file.fileno(), size, offset)


class Server(http.server.ThreadingHTTPServer):
    """A server on one address."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: str, store: Store, context: ssl.SSLContext, token: str) -> None:
        self.store = store
        self.context = context
        self.token = token
        found = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
        self.address_family = found[0]
        super().__init__(found[4], Handler)  # type: ignore[arg-type]

    def server_bind(self) -> None:
        """Take a port, without asking anybody for this host's name."""
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def get_request(self) -> Tuple[socket.socket, object]:
        """Return a connection; its thread shakes hands, so that nobody waits for a slow one."""
        connected, address = super().get_request()
        connected.settimeout(WAIT_S)
        secure = self.context.wrap_socket(
            connected, server_side=True, do_handshake_on_connect=False
        )
        return secure, address

    def handle_error(self, *_: object) -> None:
        """Forget who asked: it sees that its connection has ended."""


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers one question."""

    server: Server  # type: ignore[mutable-override]

    def do_POST(self) -> None:
        """Send the chunks that are asked for."""
        size = int(self.headers.get("Content-Length", "0"))
        said = self.headers.get("Authorization", "").encode("utf-8", "replace")
        if not hmac.compare_digest(said, b"Bearer " + self.server.token.encode("ascii")):
            self.send_error(403)
            return
        if size > QUESTION_BYTES:
            self.send_error(413)
            return
        wanted = json.loads(self.rfile.read(size).decode("ascii"))
        found = [self.server.store.places.get(sha256) for sha256 in wanted]
        if None in found:
            self.send_error(404)
            return
        places = [place for place in found if place is not None]
        self.send_response(200)
        self.send_header("Content-Length", str(sum(length for _, length in places)))
        self.end_headers()
        for offset, length in join(places):
            for start in range(0, length, PIECE):
                piece = min(PIECE, length - start)
                self.wfile.write(self.server.store.read(offset + start, piece))

    def log_message(self, *_: object) -> None:
        """Print nothing: nobody reads it."""


def join(places: List[Tuple[int, int]]) -> List[Tuple[int, int]]:
    """Return places in a file with those that follow each other as one."""
    joined: List[Tuple[int, int]] = []
    for offset, size in places:
        if joined and sum(joined[-1]) == offset:
            joined[-1] = joined[-1][0], joined[-1][1] + size
        else:
            joined.append((offset, size))
    return joined


def read_identity(pem: bytes) -> ssl.SSLContext:
    """Return the server's side of TLS; the key is in a file for a moment, for Python wants one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    handle, path = tempfile.mkstemp()
    try:
        os.write(handle, pem)
        context.load_cert_chain(path)
    finally:
        os.close(handle)
        os.remove(path)
    return context


def serve() -> None:
    """Do what stdin says."""
    store = Store()
    context: Optional[ssl.SSLContext] = None
    token = ""
    stream = sys.stdin.buffer
    while True:
        words = stream.readline().decode("ascii").split()
        if not words:
            return
        operation, value, size = words
        data = stream.read(int(size))
        if len(data) < int(size):
            return
        if operation == "identity":
            token, context = value, read_identity(data)
        elif operation == "chunk":
            store.add(value, data)
        elif operation == "listen" and context is not None:
            server = Server(value, store, context, token)
            threading.Thread(target=server.serve_forever, daemon=True).start()
            sys.stdout.write("%05d\n" % server.server_address[1])
            sys.stdout.flush()


if __name__ == "__main__":
    try:
        serve()
    except (OSError, ValueError) as problem:
        sys.stderr.write("%s\n" % problem)
        sys.exit(28 if getattr(problem, "errno", 0) in (errno.ENOSPC, errno.EDQUOT) else 1)

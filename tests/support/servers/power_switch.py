"""A power switch on 127.0.0.1, as labgrid's model ``rest`` speaks with one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

BOOT_ID = "/proc/sys/kernel/random/boot_id"


@dataclass
class PowerSwitch:
    """What was switched, and what happens then."""

    url: str
    seen: list[str] = field(default_factory=list)
    on_put: Callable[[str], None] = lambda _: None


@contextmanager
def power_switch() -> Iterator[PowerSwitch]:
    """Start one, whose outlet 3 is switched by ``PUT`` of ``0`` and ``1``."""
    switch = PowerSwitch("")

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            value = self.rfile.read(int(self.headers["Content-Length"])).decode()
            switch.seen.append(f"{self.path} {value}")
            switch.on_put(value)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    switch.url = f"http://127.0.0.1:{server.server_port}/relay/{{index}}/value"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield switch
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def make_boot_id(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let programs of this machine read the boot ID from a file, whose path is returned."""
    programs, boot_id = folder / "programs", folder / "boot_id"
    programs.mkdir()
    boot_id.write_text("first\n")
    (programs / "cat").write_text(
        f'#!/bin/sh\n[ "$*" = {BOOT_ID} ] && set -- {boot_id}\nexec /bin/cat "$@"\n'
    )
    (programs / "cat").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=":")
    return boot_id

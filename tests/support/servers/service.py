"""``edgepack serve`` in a process of its own, on a free port, for as long as a block."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

START_S = 60.0


class Answer(NamedTuple):
    """What the service answered."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)


class Service:
    """A running service."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.log = log
        self.url = ""

    @property
    def lines(self) -> str:
        """What it said so far."""
        return self.log.read_text()

    @property
    def address(self) -> str:
        return self.url.partition("://")[2]

    def ask(
        self, path: str, data: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        request = urllib.request.Request(self.url + path, data, dict(headers or {}))
        try:
            with urllib.request.urlopen(request, timeout=START_S) as response:
                return Answer(response.status, response.headers, response.read())
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, error.headers, error.read())

    def wait_until(self, holds, what: str) -> None:
        """Return once something holds; fail if it does not within a minute."""
        until = time.monotonic() + START_S
        while not holds():
            assert self.process.poll() is None, self.lines
            assert time.monotonic() < until, f"never came: {what}\n{self.lines}"
            time.sleep(0.02)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(START_S)


@contextmanager
def serving(
    *arguments: str | Path, command: tuple[str, ...] = (), env: Mapping[str, str] | None = None
) -> Iterator[Service]:
    """Start a service, wait until it is ready, and stop it at the end."""
    started = command or (sys.executable, "-m", "edgepack", "serve")
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("wb") as to:
            process = subprocess.Popen(
                [*started, *map(str, arguments), "--port", "0"],
                stderr=to,
                stdout=to,
                env={**os.environ, **(env or {})},
            )
        service = Service(process, log)
        try:
            found = re.compile(r"^(https?://\S+)$", re.MULTILINE)
            service.wait_until(lambda: found.search(service.lines), "its address")
            service.url = found.search(service.lines)[1]
            if service.url.startswith("http:"):
                service.wait_until(
                    lambda: service.ask("/v2/health/ready").status == 200, "being ready"
                )
            yield service
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()

"""A real registry on loopback: Debian's docker-registry (distribution 2.8, without referrers)."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

START_S = 30
USER, PASSWORD = "alice", "correct-horse"
_HTPASSWD = f"{USER}:$2b$04$viTtW9XIJNjxKeGq8zW.seg2JDCQo.tcRUrujkY0xfe.I.HOb8MQ6\n"
_REQUEST = re.compile(rb'"([A-Z]+) (/v2/\S*) HTTP/1.1" (\d{3})')


@dataclass(frozen=True)
class Registry:
    """A registry that runs."""

    host: str
    """With its port."""
    folder: Path
    """Where it keeps blobs and manifests."""
    log: Path
    pid: int

    def address(self, name: str) -> str:
        """Return the address of something in it: ``tiny:1.0.0``."""
        return f"oci://{self.host}/{name}"

    def list_requests(self) -> list[tuple[str, str, int]]:
        """Return method, path and status of all requests that it has answered."""
        found = _REQUEST.findall(self.log.read_bytes())
        return [(method.decode(), path.decode(), int(status)) for method, path, status in found]

    def find_blob(self, digest: str) -> Path:
        """Return the file of a blob or manifest."""
        value = digest.removeprefix("sha256:")
        return self.folder / "docker/registry/v2/blobs/sha256" / value[:2] / value / "data"


def require_registry() -> str:
    """Return the registry's program; skip where there is none, and fail in CI."""
    found = shutil.which("docker-registry")
    if found:
        return found
    if os.environ.get("CI"):
        pytest.fail("docker-registry is not installed; CI must not skip these tests")
    pytest.skip("docker-registry is not installed")


@contextmanager
def running_registry(
    folder: Path,
    *,
    auth: Mapping[str, Any] | None = None,
    http: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Registry]:
    """Start a registry that keeps its blobs in an empty folder.

    Args:
        folder: An empty folder.
        auth: The configuration's ``auth``; default: everybody may do everything.
        http: More of the configuration's ``http``, as ``tls``.
        environment: Parts of the configuration as variables, ``REGISTRY_...``.
    """
    program = require_registry()
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "version": "0.1",
        "log": {"level": "info", "accesslog": {"disabled": False}},
        "storage": {
            "filesystem": {"rootdirectory": str(folder / "blobs")},
            "delete": {"enabled": True},
        },
        "http": {"addr": "127.0.0.1:0", **(http or {})},
        **({"auth": dict(auth)} if auth else {}),
    }
    (folder / "config.yml").write_text(json.dumps(config))  # JSON is YAML
    log = folder / "log"
    argv = [program, "serve", str(folder / "config.yml")]
    # It takes REGISTRY_AUTH_FILE, which is the clients', for a part of its configuration.
    rest = {name: value for name, value in os.environ.items() if not name.startswith("REGISTRY_")}
    with log.open("wb") as output:
        server = subprocess.Popen(
            argv, stdout=output, stderr=subprocess.STDOUT, env={**rest, **(environment or {})}
        )
    try:
        yield Registry(_wait_for_host(server, log), folder / "blobs", log, server.pid)
    finally:
        server.terminate()
        server.wait(START_S)


def make_htpasswd(folder: Path) -> dict[str, Any]:
    """Return the configuration that lets :data:`USER` in with :data:`PASSWORD`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "htpasswd").write_text(_HTPASSWD)
    return {"htpasswd": {"realm": "tests", "path": str(folder / "htpasswd")}}


def _wait_for_host(server: subprocess.Popen[bytes], log: Path) -> str:
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        assert server.poll() is None, log.read_text()
        if found := re.search(r"listening on ([0-9.]+:[0-9]+)", log.read_text()):
            return found[1]
        time.sleep(0.02)
    raise AssertionError(log.read_text())


def require_skopeo() -> str:
    """Return an independent client; skip where there is none, and fail in CI."""
    found = shutil.which("skopeo")
    if found:
        return found
    if os.environ.get("CI"):
        pytest.fail("skopeo is not installed; CI must not skip these tests")
    pytest.skip("skopeo is not installed")

"""A real OCI registry on 127.0.0.1: Debian's docker-registry, with its folder."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

START_S = 30.0


def find_registry() -> str | None:
    """Return the registry's program, if it is installed."""
    return shutil.which("docker-registry")


def require_registry() -> str:
    """Return the registry's program; skip where there is none, and fail in CI."""
    found = find_registry()
    if found is None:
        if os.environ.get("CI"):
            pytest.fail("docker-registry is not installed; CI must not skip these tests")
        pytest.skip("docker-registry is not installed")
    return found


class RegistryServer:
    """A registry that runs."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self.process = process
        self.host = f"127.0.0.1:{port}"

    def read_cpu_s(self) -> float:
        """Return the processor time that it has used, in seconds."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def registry_server(folder: Path, **settings: Any) -> Iterator[RegistryServer]:
    """Start a registry whose blobs lie in a folder; ``settings`` are more of its configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = {
        "version": 0.1,
        "log": {"level": "error", "accesslog": {"disabled": True}},
        "storage": {
            "filesystem": {"rootdirectory": str(folder / "data")},
            "delete": {"enabled": True},
        },
        "http": {"addr": f"127.0.0.1:{port}"},
        **settings,
    }
    (folder / "config.yml").write_text(json.dumps(config))  # YAML has all of JSON
    argv = [require_registry(), "serve", str(folder / "config.yml")]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log)
    try:
        _wait(process, port, folder)
        yield RegistryServer(process, port)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(5.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(process: subprocess.Popen[bytes], port: int, folder: Path) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        assert process.poll() is None, (folder / "log").read_text()
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=1.0).close()
        except OSError:
            time.sleep(0.02)
        else:
            return
    raise AssertionError((folder / "log").read_text())

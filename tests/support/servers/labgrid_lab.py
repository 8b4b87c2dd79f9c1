"""labgrid's own coordinator and exporter on 127.0.0.1, with a place for one board."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from edgepack.demo.server import LoopbackServer
from edgepack.devices.inventory import Device, LabgridEntry

from tests.support.servers.loopback import ssh_entry

START_S = 120.0
PLACE = "kiosk"


@dataclass(frozen=True)
class Lab:
    """A labgrid with one place, and how its client is asked."""

    coordinator: str
    client: str

    def ask(self, *words: str, user: str = "") -> subprocess.CompletedProcess[str]:
        argv = [self.client, "-x", self.coordinator, "-p", PLACE, *words]
        own = {"LG_USERNAME": user} if user else {}
        return subprocess.run(
            argv, capture_output=True, text=True, check=False, env=os.environ | own
        )

    def find_holder(self) -> str:
        """Return who has the place, as ``HOST/USER``; empty if nobody has."""
        lines = self.ask("show").stdout.splitlines()
        found = [line.split()[-1] for line in lines if line.strip().startswith("acquired: ")]
        return "" if found == ["None"] else found[0]


def labgrid_device(server: LoopbackServer, client: str, **changes: object) -> Device:
    """Return a device that is the board of the place, its key pinned."""
    keys = ("key", "host_key", "ssh_config", "target")
    values = {key: value for key, value in ssh_entry(server).items() if key in keys}
    own = {"transport": "labgrid", "place": PLACE, "client": client, "python": sys.executable}
    return Device("board", LabgridEntry.model_validate({**values, **own, **changes}))


def write_client(folder: Path, server: LoopbackServer) -> str:
    """Write a client that knows one place, as labgrid's shows it, and return its path."""
    params = {"address": server.host, "port": server.port, "username": server.user}
    shown = f"Matching resource 'x' (here/board/NetworkService/x):\n  {{'params': {params}}}"
    client = folder / "labgrid-client"
    client.write_text(f'#!/bin/sh\n[ "$3" != show ] || cat <<"END"\n{shown}\nEND\n')
    client.chmod(0o755)
    return str(client)


def require_labgrid() -> Path:
    """Return the folder of labgrid's programs; skip where there is none, and fail in CI."""
    beside = Path(sys.executable).parent
    found = shutil.which("labgrid-coordinator", path=f"{beside}:{os.environ.get('PATH', '')}")
    if found:
        return Path(found).parent
    if os.environ.get("CI"):
        pytest.fail("labgrid is not installed; CI must not skip these tests")
    pytest.skip("labgrid is not installed")


@contextmanager
def labgrid_lab(folder: Path, host: str, port: int, user: str, pdu: str = "") -> Iterator[Lab]:
    """Start a labgrid whose place has a NetworkService at an address, and the tag ``board=pi5``.

    ``pdu`` is the URL of a power switch of the model ``rest``; see :mod:`.power_switch`.
    """
    programs = require_labgrid()
    folder.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as free:
        coordinator = f"127.0.0.1:{free.getsockname()[1]}"
    resources = folder / "exporter.yaml"
    shown = (
        f"board:\n  NetworkService:\n    address: {host}\n    username: {user}\n    port: {port}\n"
    )
    if pdu:
        shown += f"  NetworkPowerPort:\n    model: rest\n    host: '{pdu}'\n    index: 3\n"
    resources.write_text(shown)
    lab = Lab(coordinator, str(programs / "labgrid-client"))
    export = ["labgrid-exporter", "-c", coordinator, "-n", "here", "--hostname", "127.0.0.1"]
    servers = []
    try:
        # The coordinator keeps its places in files of the folder where it is started.
        for argv in (["labgrid-coordinator", "-l", coordinator], [*export, str(resources)]):
            with (folder / f"{argv[0]}.log").open("wb") as log:
                started = [str(programs / argv[0]), *argv[1:]]
                servers.append(subprocess.Popen(started, cwd=folder, stdout=log, stderr=log))
            _wait_for(lab, "create" if len(servers) == 1 else "resources")
        assert lab.ask("add-match", "here/board/*").returncode == 0
        assert lab.ask("set-tags", "board=pi5").returncode == 0
        yield lab
    finally:
        for server in servers:
            server.kill()
            server.wait()


def _wait_for(lab: Lab, word: str) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        said = lab.ask(word)
        known = word == "create" or "NetworkService" in said.stdout
        if said.returncode == 0 and known:
            return
        time.sleep(0.1)
    pytest.fail(f"labgrid does not answer: {said.stderr}")

"""Devices for fault runs: real OpenSSH servers on this machine, one for each kind of agent."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from edgepack.bundle.reading import load_bundle
from edgepack.devices.inventory import Device

from tests.support.reports.tiny_bundle import write_tiny_bundle
from tests.support.servers.bare_programs import link_busybox, link_programs
from tests.support.servers.fault_proxy import Direction, FaultProxy, Wire
from tests.support.servers.loopback import ssh_device
from tests.support.servers.openssh_server import OpenSshServer
from tests.support.servers.pusher import Pushed, Pusher

Agent = Literal["python", "shell", "busybox"]
"""What a device has: Python; or the few programs that a shell needs; or busybox's alone."""
AGENTS: tuple[Agent, ...] = ("python", "shell", "busybox")
MARK = "EDGEPACK_CHAOS"
"""A variable of every process that runs on the device."""
LINK = Wire(bytes_per_s=4e6)
"""Slow enough that faults fall into every phase of a push."""
LIMIT_S = 120.0
"""A push, disturbed or not, that takes longer hangs."""


@dataclass(frozen=True)
class Bundles:
    """Three versions of one project."""

    old: Path
    new: Path
    other: Path

    @classmethod
    def write(cls, folder: Path) -> Self:
        """Make them."""
        return cls(
            old=write_tiny_bundle(folder / "old", size=8),
            new=write_tiny_bundle(folder / "new", size=56),
            other=write_tiny_bundle(folder / "other", size=48),
        )


def release_of(bundle: Path) -> str:
    """Return the name that a device gives a bundle."""
    return load_bundle(bundle).digest[:16]


@dataclass(frozen=True)
class Board:
    """A kind of device: what it has, and how an undisturbed push to it goes."""

    agent: Agent
    environment: Mapping[str, str]
    """Of its commands."""
    server: OpenSshServer
    base: Path
    """A root with the old release, to be copied."""
    push_s: float
    """How long a push of the new release takes over the slow link."""
    passed: Mapping[Direction, int]
    """How many bytes it is."""

    def device(self, root: Path, port: int | None = None) -> Device:
        """Return the device with that root, reached directly or through a proxy's port."""
        return on_server(self.server, self.agent, root, port)

    def copy_base(self, root: Path) -> None:
        """Make ``root`` a device with the old release."""
        shutil.rmtree(root, ignore_errors=True)
        subprocess.run(["cp", "-a", str(self.base), str(root)], check=True)


def on_server(server: OpenSshServer, agent: Agent, root: Path, port: int | None = None) -> Device:
    """Return the device whose root is here; with this interpreter, for ``python3`` may be a script.

    A device that names no Python, and has none, is pushed to without.
    """
    place = {"root": str(root), "port": port or server.port}
    return ssh_device(server, **place, **({"python": sys.executable} if agent == "python" else {}))


class Lab:
    """Boards with an old release, and two clients; a context manager. One run at a time.

    Args:
        folder: A folder of its own.
        bundles: Shared by all labs.
        name: Tells this lab's processes from others'.
    """

    def __init__(self, folder: Path, bundles: Bundles, name: str) -> None:
        self.folder = folder
        self.bundles = bundles
        self._mark = {MARK: name}
        self._boards: dict[Agent, Board] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self.folder.mkdir()
        with ExitStack() as stack:
            self.clients = [stack.enter_context(Pusher()) for _ in range(2)]
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def board(self, agent: Agent) -> Board:
        """Return the board with that agent; the first time the old release is pushed to it."""
        if agent not in self._boards:
            self._boards[agent] = self._prepare(agent)
        return self._boards[agent]

    def _prepare(self, agent: Agent) -> Board:
        """Push the old release, and learn how long a push takes and how many bytes pass."""
        folder = self.folder / agent
        folder.mkdir()
        environment = self._mark | self._path(agent)
        server = self._stack.enter_context(OpenSshServer(folder / "sshd", environment))
        first = self.push(self.bundles.old, on_server(server, agent, folder / "base"))
        board = Board(agent, environment, server, folder / "base", 0.0, {})
        board.copy_base(folder / "root")
        with FaultProxy(server.port, to_server=LINK, to_client=LINK) as proxy:
            second = self.push(self.bundles.new, board.device(folder / "root", proxy.port))
        if not (first.ok and second.ok):
            raise RuntimeError(f"an undisturbed push failed: {first} {second}")
        passed = proxy.forwarded
        return Board(agent, environment, server, folder / "base", second.seconds, passed)

    def _path(self, agent: Agent) -> dict[str, str]:
        if agent == "python":
            return {}
        fill = link_busybox if agent == "busybox" else link_programs
        return {"PATH": str(fill(self.folder / f"{agent}-programs"))}

    def push(self, bundle: Path, device: Device) -> Pushed:
        """Push and return how it went."""
        self.clients[0].start(bundle, device)
        return self.clients[0].result(LIMIT_S)

    def programs(self) -> list[int]:
        """Return the processes that run on the boards."""
        wanted = f"{MARK}={self._mark[MARK]}".encode()
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
        return found

    def end_programs(self) -> None:
        """Kill what runs on the boards."""
        for pid in self.programs():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def can_have(agent: Agent) -> bool:
    """Say whether this machine can be a board with that agent."""
    return agent != "busybox" or shutil.which("busybox") is not None


def command_lines(pids: Sequence[int]) -> list[str]:
    """Return the first 200 characters of each process's command line."""
    found = []
    for pid in pids:
        with suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
            found.append(words.decode("utf-8", "replace")[:200])
    return found

"""Boards behind a jump host: two real OpenSSH servers, and the configuration that leads there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from edgepack.devices.inventory import Device, SshEntry

from tests.support.servers.openssh_server import OpenSshServer, put_python_first


class Site:
    """A server that is any number of boards, by their roots, and the jump host before it."""

    def __init__(self, folder: Path, gate: OpenSshServer, board: OpenSshServer) -> None:
        self.folder = folder
        self.gate = gate
        self.board = board
        self.write_config()

    def write_config(self, gate_port: int | None = None, *, way: str = "ProxyJump gate") -> None:
        """Write ``folder/config``.

        Args:
            gate_port: Where the jump host is reached, if not at its own port.
            way: The line that leads to the board.
        """
        ports = {"gate": gate_port or self.gate.port, "board": self.board.port}
        known, lines = [], []
        for name, server in (("gate", self.gate), ("board", self.board)):
            key = (self.folder / name / "known_hosts").read_text()
            known.append(key.replace(f":{server.port} ", f":{ports[name]} "))
            lines += [f"Host {name}", f" HostName {server.host}", f" Port {ports[name]}"]
            lines += [f" User {server.user}", f" IdentityFile {server.client_key_path}"]
        lines += ["Host board", f" {way}", "Host *"]
        lines += [f" UserKnownHostsFile {self.folder}/known", " IdentitiesOnly yes"]
        (self.folder / "known").write_text("".join(known))
        (self.folder / "config").write_text("\n".join(lines) + "\n")

    def entry(self, number: int, **changes: Any) -> dict[str, Any]:
        """Return what an inventory says of a board."""
        return {
            "transport": "ssh",
            "host": "board",
            "ssh_config": str(self.folder / "config"),
            "target": "linux-x86-64",
            "root": f"{self.folder}/roots/{number}",
            **changes,
        }

    def device(self, number: int, **changes: Any) -> Device:
        """Return a board."""
        return Device(f"board-{number}", SshEntry.model_validate(self.entry(number, **changes)))


@contextmanager
def site_in(folder: Path, **gate: Any) -> Iterator[Site]:
    """Run both servers; ``gate`` has options of the jump host's."""
    path = {"PATH": put_python_first()}
    with (
        OpenSshServer(folder / "board") as board,
        OpenSshServer(folder / "gate", **{"environment": path} | gate) as jump,
    ):
        yield Site(folder, jump, board)

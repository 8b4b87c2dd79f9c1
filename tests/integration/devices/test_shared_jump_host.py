"""Many boards behind one jump host share a connection to it, and none ends another's."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from edgepack.devices.inventory import Device, SshEntry
from edgepack.devices.transports import connect
from edgepack.errors import EdgepackError

from tests.support.servers.openssh_server import OpenSshServer, find_sshd

BOARDS = 12
VISITS = 25
"""Of each board: with a client that sent after it had closed, 3 of 10 such runs lost the way."""


@pytest.fixture
def behind(tmp_path: Path) -> Iterator[SshEntry]:
    """A board behind a jump host; both are a real OpenSSH."""
    with OpenSshServer(tmp_path / "board") as board, OpenSshServer(tmp_path / "gate") as gate:
        known = [(tmp_path / name / "known_hosts").read_text() for name in ("board", "gate")]
        (tmp_path / "known").write_text("".join(known))
        lines = []
        for name, server in (("board", board), ("gate", gate)):
            lines += [f"Host {name}", f" HostName {server.host}", f" Port {server.port}"]
            lines += [f" User {server.user}", f" IdentityFile {server.client_key_path}"]
        lines += ["Host board", " ProxyJump gate", "Host *"]
        lines += [f" UserKnownHostsFile {tmp_path}/known", " IdentitiesOnly yes"]
        (tmp_path / "config").write_text("\n".join(lines) + "\n")
        yield SshEntry(
            transport="ssh", host="board", ssh_config=str(tmp_path / "config"), target="any"
        )


@pytest.mark.slow(reason="makes hundreds of connections")
@pytest.mark.skipif(find_sshd() is None, reason="there is no sshd")
def test_boards_that_stop_reading_and_hang_up_end_no_connection_of_others(behind: SshEntry) -> None:
    lost: list[EdgepackError] = []

    def visit(number: int) -> None:
        for _ in range(VISITS):
            try:
                with connect(Device(f"board-{number}", behind)) as transport:
                    # It reads a part of what is sent: the rest is on its way when it hangs up.
                    transport.send(["head", "-c", "100000"], [bytes(1 << 17)] * 8, timeout_s=30)
                    transport.send(["head", "-c", "300000", "/dev/zero"], [], timeout_s=30)
            except EdgepackError as error:
                lost.append(error)

    threads = [threading.Thread(target=visit, args=(number,)) for number in range(BOARDS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lost == []

"""Many logins at a time, and what is told apart when one of them fails."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import asyncssh
import pytest
from edgepack.demo.server import LoopbackServer, make_key
from edgepack.devices.inventory import Device
from edgepack.devices.ssh import logins
from edgepack.devices.transports import connect
from edgepack.errors import DeviceError, UnreachableError

from tests.support.servers.loopback import ssh_device


@pytest.fixture
def server_class() -> type[LoopbackServer]:
    return LoopbackServer


@pytest.fixture
def server(tmp_path: Path, server_class: type[LoopbackServer]) -> Iterator[LoopbackServer]:
    with server_class(tmp_path / "server") as running:
        yield running


def test_logins_when_many_begin_at_once_are_few_at_a_time_per_server(
    server: LoopbackServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logins, "LOGINS", 3)
    monkeypatch.setattr(logins, "_gates", {})
    inside, most, real = 0, 0, asyncssh.connect

    async def counted(*arguments: object, **options: object) -> object:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        try:
            return await real(*arguments, **options)  # type: ignore[arg-type]
        finally:
            inside -= 1

    monkeypatch.setattr(asyncssh, "connect", counted)
    device = ssh_device(server)

    def visit(_: int) -> int:
        with connect(device) as transport:
            return transport.send(["true"], [], timeout_s=20).exit_code

    with ThreadPoolExecutor(12) as pool:
        assert list(pool.map(visit, range(12))) == [0] * 12
    assert 1 < most <= 3


def test_place_of_a_login_when_it_fails_is_free_again(
    server: LoopbackServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logins, "LOGINS", 1)
    monkeypatch.setattr(logins, "_gates", {})
    make_key(tmp_path / "stranger")
    wrong = ssh_device(server, key=str(tmp_path / "stranger"))
    with pytest.raises(DeviceError) as caught, connect(wrong):
        pass
    assert not isinstance(caught.value, UnreachableError)
    with connect(ssh_device(server)):
        pass


class HangingUp(LoopbackServer):
    """Hangs up when it is offered a key."""

    def is_accepted(self, key: asyncssh.SSHKey | None = None, password: str | None = None) -> bool:
        del key, password
        for connection in self.connections:
            connection.abort()
        return False


def test_connection_when_lost_during_the_login_is_not_called_refused(tmp_path: Path) -> None:
    with HangingUp(tmp_path / "server") as server:
        with pytest.raises(UnreachableError) as caught, connect(ssh_device(server)):
            pass
        assert "was lost" in str(caught.value)


class Counting(LoopbackServer):
    """Counts the logins."""

    logins = 0

    def is_accepted(self, key: asyncssh.SSHKey | None = None, password: str | None = None) -> bool:
        self.logins += 1
        return super().is_accepted(key, password)


@pytest.fixture
def jump(tmp_path: Path) -> Iterator[Counting]:
    with Counting(tmp_path / "jump") as running:
        yield running


@pytest.fixture
def behind(server: LoopbackServer, jump: Counting, tmp_path: Path) -> Device:
    """The server, reached through the jump host."""
    known = tmp_path / "known"
    known.write_text(server.known_hosts_line + "\n" + jump.known_hosts_line + "\n")
    config = tmp_path / "config"
    config.write_text(
        f"Host board\n HostName 127.0.0.1\n Port {server.port}\n User {server.user}\n"
        f" IdentityFile {server.client_key_path}\n ProxyJump gate\n"
        f"Host gate\n HostName 127.0.0.1\n Port {jump.port}\n User {jump.user}\n"
        f" IdentityFile {jump.client_key_path}\n"
        f"Host *\n UserKnownHostsFile {known}\n IdentitiesOnly yes\n"
    )
    return ssh_device(
        server, host="board", port=None, user=None, key=None, host_key=None, ssh_config=str(config)
    )


def echo(device: Device) -> bytes:
    with connect(device) as transport:
        return transport.send(["echo", "hi"], [], timeout_s=20).stdout


def test_jump_host_when_many_devices_lie_behind_it_is_logged_in_to_once(
    behind: Device, jump: Counting
) -> None:
    with connect(behind), ThreadPoolExecutor(6) as pool:
        assert list(pool.map(lambda _: echo(behind), range(6))) == [b"hi\n"] * 6
    assert jump.logins == 1
    assert echo(behind) == b"hi\n"  # the last user closed it: a new one
    assert jump.logins == 2


def test_jump_host_when_its_connection_was_lost_is_logged_in_to_again(
    behind: Device, jump: Counting
) -> None:
    with connect(behind):
        jump.drop_connections()
        assert echo(behind) == b"hi\n"
    assert jump.logins == 2


class Cutting(LoopbackServer):
    """Cuts the connections of the jump host when it is logged in to for the second time."""

    jump: LoopbackServer
    logins = 0

    def is_accepted(self, key: asyncssh.SSHKey | None = None, password: str | None = None) -> bool:
        self.logins += 1
        if self.logins == 2:
            self.jump.drop_connections()
        return super().is_accepted(key, password)


@pytest.mark.parametrize("server_class", [Cutting])
def test_jump_host_when_its_connection_is_lost_during_a_login_is_logged_in_to_again(
    server: Cutting, behind: Device, jump: Counting
) -> None:
    server.jump = jump
    with connect(behind):
        assert echo(behind) == b"hi\n"
    assert (jump.logins, server.logins) == (2, 3)


def test_jump_host_when_it_is_gone_is_told_to_each_device_that_waits(
    behind: Device, jump: Counting
) -> None:
    jump.stop()

    def visit(name: str) -> str:
        with (
            pytest.raises(UnreachableError) as caught,
            connect(Device(name, behind.entry)),
        ):
            pass
        assert f":{jump.port} refuses connections" in caught.value.problem
        return caught.value.where

    names = [f"board-{number}" for number in range(4)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(visit, names)) == names

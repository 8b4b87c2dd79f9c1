"""Host keys over real SSH: nothing is trusted silently, and trusting takes one command."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
from collections.abc import Iterator
from pathlib import Path

import asyncssh
import pytest
from edgepack.demo.server import LoopbackServer, format_public_key, make_key
from edgepack.devices.inventory import Device
from edgepack.devices.ssh.host_keys import find_own_known_hosts
from edgepack.devices.ssh.trust import trust
from edgepack.devices.transports import connect
from edgepack.errors import DeviceError, UsageError

from tests.support.servers.loopback import ssh_device


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LoopbackServer]:
    with LoopbackServer(tmp_path / "server") as running:
        yield running


def write_config(tmp_path: Path, known_hosts: str) -> str:
    """Write an SSH configuration whose only known_hosts file has this content."""
    (tmp_path / "known_hosts").write_text(known_hosts)
    config = tmp_path / "config"
    config.write_text(
        f"UserKnownHostsFile {tmp_path}/known_hosts\nGlobalKnownHostsFile {os.devnull}\n"
    )
    return str(config)


def device_knowing(server: LoopbackServer, tmp_path: Path, known_hosts: str) -> Device:
    config = write_config(tmp_path, known_hosts)
    return ssh_device(server, host_key=None, ssh_config=config)


def answers(device: Device) -> bool:
    with connect(device) as transport:
        return transport.send(["true"], [], timeout_s=20).exit_code == 0


def refusal(device: Device) -> str:
    with pytest.raises(DeviceError) as caught, connect(device):
        pass
    return str(caught.value)


def test_unknown_key_is_refused_with_its_fingerprint_and_the_command(
    server: LoopbackServer,
) -> None:
    message = refusal(ssh_device(server, host_key=None))
    assert f"[127.0.0.1]:{server.port} is not known" in message
    assert f"ssh-ed25519 {server.host_key_fingerprint}" in message
    assert "edgepack device trust board" in message


def test_key_in_known_hosts_is_accepted(server: LoopbackServer, tmp_path: Path) -> None:
    assert answers(device_knowing(server, tmp_path, server.known_hosts_line + "\n"))


def test_hashed_name_in_known_hosts_is_accepted(server: LoopbackServer, tmp_path: Path) -> None:
    salt = os.urandom(20)
    name, key = server.known_hosts_line.split(" ", 1)
    digest = hmac.new(salt, name.encode(), hashlib.sha1).digest()
    hashed = f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"
    assert answers(device_knowing(server, tmp_path, f"# mine\n\n{hashed} {key}\n"))


def test_changed_key_is_refused_with_both_fingerprints(
    server: LoopbackServer, tmp_path: Path
) -> None:
    other = make_key(tmp_path / "other")
    line = f"[127.0.0.1]:{server.port} {format_public_key(other)}"
    message = refusal(device_knowing(server, tmp_path, line))
    fingerprint = base64.b64encode(hashlib.sha256(other.public_data).digest()).decode().rstrip("=")
    assert "someone may be in the middle" in message
    assert f"known:    SHA256:{fingerprint}" in message
    assert f"received: {server.host_key_fingerprint}" in message
    assert "edgepack device trust board" in message


def test_revoked_key_is_refused_and_cannot_be_trusted(
    server: LoopbackServer, tmp_path: Path
) -> None:
    lines = f"{server.known_hosts_line}\n@revoked * {server.known_hosts_line.split(' ', 1)[1]}\n"
    device = device_knowing(server, tmp_path, lines)
    assert f"is revoked ({tmp_path}/known_hosts:2)" in refusal(device)
    with pytest.raises(DeviceError, match="is revoked"):
        trust(device, server.host_key_fingerprint, lambda _: True)


def test_host_without_a_certificate_is_told_when_an_authority_is_known_for_it(
    server: LoopbackServer, tmp_path: Path
) -> None:
    line = f"@cert-authority * {server.known_hosts_line.split(' ', 1)[1]}"
    assert "it has shown no certificate" in refusal(device_knowing(server, tmp_path, line))


def test_wrong_pin_is_refused_even_if_known_hosts_has_the_key(
    server: LoopbackServer, tmp_path: Path
) -> None:
    config = write_config(tmp_path, server.known_hosts_line)
    pin = "SHA256:" + "A" * 43
    message = refusal(ssh_device(server, host_key=pin, ssh_config=config))
    assert f"known:    {pin}" in message
    assert "correct host_key in devices.yaml" in message


def test_trust_by_fingerprint_then_connects(server: LoopbackServer) -> None:
    device = ssh_device(server, host_key=None)
    said = trust(device, server.host_key_fingerprint, lambda _: False)
    assert f"[127.0.0.1]:{server.port} is trusted" in said
    assert find_own_known_hosts().read_text() == server.known_hosts_line + "\n"
    assert answers(device)
    assert "trusted already" in trust(device, None, lambda _: False)


def test_trust_asks_with_the_fingerprint_when_none_is_given(server: LoopbackServer) -> None:
    device = ssh_device(server, host_key=None)
    asked: list[str] = []

    def confirm(text: str) -> bool:
        asked.append(text)
        return True

    trust(device, None, confirm)
    assert server.host_key_fingerprint in asked[0]
    assert answers(device)


@pytest.mark.parametrize("fingerprint", [None, "SHA256:" + "A" * 43])
def test_nothing_is_trusted_when_the_key_is_not_accepted(
    server: LoopbackServer, fingerprint: str | None
) -> None:
    with pytest.raises(DeviceError, match="nothing was trusted"):
        trust(ssh_device(server, host_key=None), fingerprint, lambda _: False)
    assert not find_own_known_hosts().exists()


def test_trust_replaces_the_old_key_of_that_host_only(
    server: LoopbackServer, tmp_path: Path
) -> None:
    other = make_key(tmp_path / "other")
    key = format_public_key(other)
    find_own_known_hosts().parent.mkdir(parents=True)
    find_own_known_hosts().write_text(f"# boards\nnas {key}\n[127.0.0.1]:{server.port} {key}\n")
    device = ssh_device(server, host_key=None)
    assert "has changed" in refusal(device)
    trust(device, server.host_key_fingerprint, lambda _: False)
    assert find_own_known_hosts().read_text() == f"# boards\nnas {key}\n{server.known_hosts_line}\n"
    assert answers(device)


def test_trust_does_not_log_in(server: LoopbackServer, tmp_path: Path) -> None:
    make_key(tmp_path / "stranger")
    device = ssh_device(server, host_key=None, key=str(tmp_path / "stranger"))
    assert "is trusted" in trust(device, server.host_key_fingerprint, lambda _: False)


def test_trust_is_refused_for_a_device_without_ssh() -> None:
    from edgepack.devices.inventory import load_device

    with pytest.raises(UsageError, match="not reached over SSH"):
        trust(load_device("local"), None, lambda _: True)


@pytest.fixture
def server_with_two_keys(tmp_path: Path) -> Iterator[LoopbackServer]:
    keys: list[asyncssh.SSHKey] = [
        make_key(tmp_path / "first"),
        asyncssh.generate_private_key("ecdsa-sha2-nistp256"),
    ]
    with LoopbackServer(tmp_path / "two", host_keys=keys) as running:
        yield running


def test_known_kind_of_key_is_asked_for_first(
    server_with_two_keys: LoopbackServer, tmp_path: Path
) -> None:
    second = server_with_two_keys.host_keys[1]
    name = f"[127.0.0.1]:{server_with_two_keys.port}"
    line = f"{name} {format_public_key(second)}"
    assert answers(device_knowing(server_with_two_keys, tmp_path, line))


def test_pin_of_a_hosts_second_key_is_found(server_with_two_keys: LoopbackServer) -> None:
    blob = server_with_two_keys.host_keys[1].public_data
    pin = "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")
    assert answers(ssh_device(server_with_two_keys, host_key=pin))

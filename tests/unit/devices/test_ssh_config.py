"""How ``~/.ssh/config`` is read; ``ssh -G`` itself runs where OpenSSH is installed."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
from edgepack.devices.inventory import SshEntry
from edgepack.devices.ssh.config import SshSettings, find_settings, resolve
from edgepack.devices.ssh.keywords import KEYWORDS
from edgepack.devices.ssh.route import find_route
from edgepack.errors import DeviceError


@pytest.fixture
def openssh() -> None:
    if not shutil.which("ssh"):
        pytest.skip("the OpenSSH client is not installed")


def read(tmp_path: Path, text: str, host: str = "board", **arguments: object) -> SshSettings:
    config = tmp_path / "config"
    config.write_text(text)
    return resolve(host, ssh_config=str(config), where="device", **arguments)  # type: ignore[arg-type]


def test_user_and_port_of_the_inventory_go_into_a_proxy_command(
    openssh: None, tmp_path: Path
) -> None:
    text = "ProxyCommand reach %h %p %r\nHost board\n  User nobody\n  Port 2222\n"
    settings = read(tmp_path, text, user="bench", port=2200)
    assert settings.proxy_command == ("reach", "board", "2200", "bench")


def test_keys_are_those_of_the_home_when_none_is_named(
    openssh: None, tmp_path: Path, own_home: Path
) -> None:
    found = read(tmp_path, "Host other\n  IdentityFile elsewhere\n").identity_files
    assert {own_home / ".ssh" / name for name in ("id_rsa", "id_ecdsa", "id_ed25519")} <= {*found}
    assert resolve("board", where="device").identity_files == found


TYPICAL = """\
Host board
  HostName 192.0.2.17
  User bench
  Port 2222
  IdentityFile ~/.ssh/boards
  IdentityFile %d/.ssh/%h-%r
  IdentitiesOnly yes
  HostKeyAlias pi5
  ConnectTimeout 3
  UserKnownHostsFile /a/known /b/known
Host *
  User nobody
"""


def test_typical_settings_are_read(openssh: None, tmp_path: Path, own_home: Path) -> None:
    settings = read(tmp_path, TYPICAL)
    assert settings.address == "bench@192.0.2.17:2222"
    assert settings.identity_files == (
        own_home / ".ssh" / "boards",
        own_home / ".ssh" / "192.0.2.17-bench",
    )
    assert settings.identities_only
    assert settings.known_as == "pi5"
    assert settings.connect_timeout_s == 3
    assert settings.known_hosts[:2] == (Path("/a/known"), Path("/b/known"))


def test_what_the_caller_says_comes_first(openssh: None, tmp_path: Path) -> None:
    assert read(tmp_path, TYPICAL, user="me", port=22).address == "me@192.0.2.17:22"


def test_host_without_settings_is_taken_as_it_is(
    openssh: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", "/run/agent")
    settings = read(tmp_path, "", host="192.0.2.1")
    assert (settings.hostname, settings.port) == ("192.0.2.1", 22)
    assert settings.known_as == "192.0.2.1"
    assert not settings.proxy_jump
    assert settings.agent == "/run/agent"


def test_include_and_match_are_followed_with_openssh(openssh: None, tmp_path: Path) -> None:
    (tmp_path / "more").write_text("Host board\n  Port 2022\n")
    text = f"Include {tmp_path}/more\nMatch originalhost board exec true\n  User matched\n"
    settings = read(tmp_path, text)
    assert (settings.user, settings.port) == ("matched", 2022)


def test_configuration_without_openssh_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_home: Path
) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(DeviceError, match="needs OpenSSH to be read"):
        read(tmp_path, "# mine\nHost board\n  User x\n")
    settings = read(tmp_path, "# nothing\n\n", user="me", port=2200)
    assert settings.address == "me@board:2200"
    assert own_home / ".ssh" / "id_ed25519" in settings.identity_files


@pytest.mark.parametrize(
    ("line", "field", "expected"),
    [
        ("BindAddress 192.0.2.2", "bind_address", "192.0.2.2"),
        ("BindInterface eth1", "bind_interface", "eth1"),
        ("AddressFamily inet6", "address_family", socket.AF_INET6),
        ("PKCS11Provider /lib/token.so", "pkcs11_provider", "/lib/token.so"),
        ("IdentityAgent /run/agent", "agent", "/run/agent"),
        ("IdentityAgent $OTHER_AGENT", "agent", "/run/other"),
        ("RemoteCommand none", "known_hosts_command", ()),
        ("KnownHostsCommand /bin/keys %H", "known_hosts_command", ("/bin/keys", "%H")),
        ('SetEnv A=1 B="two words"', "environment", (("A", "1"), ("B", "two words"))),
        ("CertificateFile /elsewhere/%h.pub", "certificate_files", (Path("/elsewhere/board.pub"),)),
        ("UserKnownHostsFile ${HERE}/%h", "known_hosts", (Path("/here/board"),)),
        ("HostName 192.0.2.9\nMatch final host 192.0.2.9\n  User final", "user", "final"),
        ("HostName 192.0.2.9\nMatch final host 192.0.2.8\n  Port 9", "port", 22),
    ],
)
def test_what_stock_ssh_follows_is_followed(
    openssh: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    line: str,
    field: str,
    expected: object,
) -> None:
    monkeypatch.setenv("OTHER_AGENT", "/run/other")
    monkeypatch.setenv("HERE", "/here")
    found = getattr(read(tmp_path, f"Host board\n  {line}\n"), field)
    assert (
        found[: len(expected)] if isinstance(expected, tuple) and expected else found
    ) == expected


@pytest.mark.parametrize("line", ["RemoteCommand top", "ProxyUseFdpass yes"])
def test_setting_that_cannot_be_followed_is_an_error(
    openssh: None, tmp_path: Path, line: str
) -> None:
    with pytest.raises(DeviceError, match=f"(?i)cannot follow: {line.split(maxsplit=1)[0]}"):
        read(tmp_path, f"Host board\n  {line}\n")


def test_every_keyword_of_the_installed_openssh_is_in_the_table(openssh: None) -> None:
    printed = subprocess.run(
        ["ssh", "-G", "-F", os.devnull, "board"], check=True, capture_output=True, text=True
    ).stdout
    known = {keyword.lower() for keyword in KEYWORDS}
    assert {line.split()[0].lower() for line in printed.splitlines()} <= known


def test_wrong_configuration_is_named_with_openssh_words(openssh: None, tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=r"(?i)ssh -G board(.|\n)*nosuchoption"):
        read(tmp_path, "NoSuchOption yes\n")


def test_proxy_command_becomes_an_argv(openssh: None, tmp_path: Path) -> None:
    settings = read(tmp_path, "ProxyCommand exec nc -X 5 '%h' %p --as %r\nUser me\n")
    assert settings.proxy_command == ("nc", "-X", "5", "board", "22", "--as", "me")


@pytest.mark.parametrize("command", ["nc %h %p | tee log", "nc $GATE %p", "nc %h %p; true"])
def test_proxy_command_that_needs_a_shell_is_refused(
    openssh: None, tmp_path: Path, command: str
) -> None:
    with pytest.raises(DeviceError, match="needs a shell"):
        read(tmp_path, f"ProxyCommand {command}\n")


@pytest.mark.parametrize("none", ["ProxyJump none", "ProxyCommand none", "IdentityAgent none"])
def test_none_switches_a_setting_off(
    openssh: None, tmp_path: Path, none: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", "/run/agent")
    settings = read(tmp_path, f"{none}\n")
    assert (settings.proxy_jump, settings.proxy_command) == ("", ())
    assert settings.agent == (None if none == "IdentityAgent none" else "/run/agent")


def test_route_goes_through_all_hosts_in_order(openssh: None, tmp_path: Path) -> None:
    text = "Host board\n  ProxyJump me@a:2200,b\nHost b\n  HostName 192.0.2.3\n"
    route = find_route(read(tmp_path, text + "Host a\n  User other\n"), "device")
    assert [hop.hostname for hop in route] == ["a", "192.0.2.3", "board"]
    assert (route[0].user, route[0].port) == ("me", 2200)


def test_route_in_a_circle_is_refused(openssh: None, tmp_path: Path) -> None:
    settings = read(tmp_path, "Host a board\n  ProxyJump b\nHost b\n  ProxyJump a\n")
    with pytest.raises(DeviceError, match="more than 8 hosts"):
        find_route(settings, "device")


def test_key_of_the_inventory_is_the_only_one(openssh: None, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("")
    (tmp_path / "config").write_text(TYPICAL)
    entry = SshEntry(
        transport="ssh",
        host="board",
        key=str(tmp_path / "key"),
        ssh_config=str(tmp_path / "config"),
        target="linux-aarch64",
    )
    settings = find_settings(entry, "device")
    assert settings.identity_files == (tmp_path / "key",)
    assert settings.identities_only

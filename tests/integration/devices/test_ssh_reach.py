"""What stock ssh reaches with a configuration, edgepack reaches with the same one."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from edgepack.devices.inventory import Device, SshEntry
from edgepack.devices.transports import connect
from edgepack.errors import DeviceError

from tests.support.servers.openssh_server import OpenSshServer, find_sshd
from tests.support.servers.ssh_agents import running_agent

pytestmark = pytest.mark.skipif(
    find_sshd() is None or shutil.which("ssh") is None, reason="there is no OpenSSH"
)

SOFT_HSM = Path("/usr/lib/softhsm/libsofthsm2.so")
PIN = "1234"


def call(*argv: object, **environment: str) -> bytes:
    return subprocess.run(
        list(map(str, argv)),
        check=True,
        timeout=60,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **environment},
    ).stdout


@dataclass
class Site:
    """An sshd that also lets in whoever a certificate authority vouches for, and its keys."""

    server: OpenSshServer
    folder: Path
    stack: ExitStack
    config: list[str] = field(default_factory=list)

    def say(self, command: str) -> str:
        """Return what a command prints over edgepack's transport, after stock ssh printed that."""
        path = self.write_config()
        reached = ["ssh", "-F", str(path), "-o", "BatchMode=yes", "board", command]
        stock = subprocess.run(reached, capture_output=True, check=False, timeout=60)
        assert stock.returncode == 0, stock.stderr
        said = self.say_by_edgepack(command)
        assert said == stock.stdout.decode()
        return said

    def say_by_edgepack(self, command: str) -> str:
        entry = SshEntry(
            transport="ssh", host="board", ssh_config=str(self.write_config()), target="any"
        )
        with connect(Device("board", entry)) as transport:
            return transport.send(["sh", "-c", command], [], timeout_s=20).text

    def write_config(self) -> Path:
        path = self.folder / "config"
        usual = {
            "HostName": self.server.host,
            "Port": self.server.port,
            "User": self.server.user,
            "HostKeyAlias": f"[{self.server.host}]:{self.server.port}",
            "UserKnownHostsFile": self.folder / "sshd" / "known_hosts",
            "GlobalKnownHostsFile": os.devnull,
            "IdentityFile": self.server.client_key_path,
            "IdentityAgent": "none",
            "IdentitiesOnly": "yes",
        }
        path.write_text(write_lines({}, self.config) + write_lines(usual, []))
        return path

    def start_agent(self, *keys: Path) -> str:
        socket = self.stack.enter_context(running_agent())
        for key in keys:
            call("ssh-add", "-q", key, SSH_AUTH_SOCK=socket)
        return socket

    def certify(self) -> tuple[Path, Path]:
        """Return a new key that only its certificate lets in, and the certificate."""
        key = self.folder / "certified"
        call("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key)
        signing = ["-s", self.folder / "ca", "-I", "me", "-n", self.server.user]
        call("ssh-keygen", "-q", *signing, f"{key}.pub")
        made = self.folder / "elsewhere.pub"
        shutil.move(f"{key}-cert.pub", made)
        return key, made


def write_lines(usual: Mapping[str, object], more: list[str]) -> str:
    lines = [*more, *(f"{keyword} {value}" for keyword, value in usual.items())]
    return "\n".join(lines) + "\n"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    call("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "ca")
    options = ["AcceptEnv EDGE_*", f"TrustedUserCAKeys {tmp_path}/ca.pub"]
    with OpenSshServer(tmp_path / "sshd", options=options) as server, ExitStack() as stack:
        yield Site(server, tmp_path, stack)


def test_set_env_arrives(site: Site) -> None:
    site.config = ['SetEnv EDGE_A="two words" EDGE_B=1 OTHER=not-accepted']
    assert site.say('echo "$EDGE_A,$EDGE_B,$OTHER"') == "two words,1,\n"


def test_identity_agent_is_asked_wherever_it_listens(site: Site) -> None:
    socket = site.start_agent(site.server.client_key_path)
    site.config = [f"IdentityAgent {socket}", "IdentityFile none", "IdentitiesOnly no"]
    assert site.say("echo in") == "in\n"


def test_identity_agent_signs_for_a_key_of_which_only_the_public_part_is_here(site: Site) -> None:
    socket = site.start_agent(site.server.client_key_path)
    public = site.folder / "only.pub"
    public.write_bytes(call("ssh-keygen", "-y", "-f", site.server.client_key_path))
    site.server.client_key_path.unlink()
    site.config = [f"IdentityAgent {socket}", f"IdentityFile {public}"]
    assert site.say("echo in") == "in\n"


def test_certificate_lets_in_whatever_its_file_is_called(site: Site) -> None:
    key, certificate = site.certify()
    site.server.client_key_path.unlink()
    site.config = [f"IdentityFile {key}", f"CertificateFile {certificate}"]
    assert site.say("echo in") == "in\n"
    site.config = [f"IdentityFile {key}"]
    with pytest.raises(DeviceError, match=f"refused: {key}"):
        site.say_by_edgepack("echo in")


def test_certificate_of_an_agents_key_lets_in(site: Site) -> None:
    key, certificate = site.certify()
    socket = site.start_agent(key)
    key.unlink()
    site.server.client_key_path.unlink()
    site.config = [
        f"IdentityAgent {socket}",
        f"IdentityFile {key}",
        f"CertificateFile {certificate}",
    ]
    assert site.say("echo in") == "in\n"


def test_address_family_chooses_among_the_addresses_of_a_name(site: Site) -> None:
    site.config = ["HostName localhost", "AddressFamily inet"]
    assert site.say("echo $SSH_CONNECTION | cut -d' ' -f3") == "127.0.0.1\n"
    site.config = ["HostName ::1", "AddressFamily inet"]
    with pytest.raises(DeviceError, match="cannot be resolved"):
        site.say_by_edgepack("true")


def test_bind_address_is_where_the_connection_comes_from(site: Site) -> None:
    site.config = ["BindAddress 127.0.0.7"]
    assert site.say("echo $SSH_CONNECTION | cut -d' ' -f1") == "127.0.0.7\n"


@pytest.mark.skipif(not Path("/sys/class/net/lo").exists(), reason="there is no interface lo")
def test_bind_interface_is_where_the_connection_goes_through(site: Site) -> None:
    site.config = ["BindInterface lo"]
    assert site.say("echo in") == "in\n"
    site.config = ["BindInterface none-such"]
    with pytest.raises(DeviceError, match="No such device"):
        site.say_by_edgepack("true")


@pytest.mark.parametrize("tokens", ["%H", "%H %t %K"])
def test_known_hosts_command_says_whom_to_trust(site: Site, tokens: str) -> None:
    known = site.folder / "sshd" / "known_hosts"
    name, kind, blob = known.read_text().split()
    expected = " ".join([name, kind, blob][: len(tokens.split())])
    script = site.folder / "hosts"
    script.write_text(f'#!/bin/sh\n[ "$*" = "{expected}" ] && cat {site.folder}/kept\nexit 0\n')
    script.chmod(0o755)
    known.rename(site.folder / "kept")
    site.config = [f"KnownHostsCommand {script} {tokens}"]
    assert site.say("echo in") == "in\n"
    (site.folder / "kept").write_text(f"{name} ssh-ed25519 {'A' * 68}\n")
    with pytest.raises(DeviceError, match="has changed"):
        site.say_by_edgepack("true")
    script.write_text("#!/bin/sh\nexit 3\n")
    with pytest.raises(DeviceError, match="failed with exit code 3"):
        site.say_by_edgepack("true")


def test_match_final_and_remote_command_none_are_followed(site: Site) -> None:
    site.config = [
        "RemoteCommand none",
        "Match final host 127.0.0.1",
        "  SetEnv EDGE_FINAL=yes",
        "Match all",
    ]
    assert site.say("echo $EDGE_FINAL") == "yes\n"


@pytest.fixture
def token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PKCS #11 token in software with a key, and its public part in a file."""
    if not SOFT_HSM.exists() or not all(map(shutil.which, ("softhsm2-util", "pkcs11-tool"))):
        pytest.skip("needs SoftHSM and OpenSC: apt-get install softhsm2 opensc")
    (tmp_path / "tokens").mkdir()
    settings = tmp_path / "softhsm.conf"
    settings.write_text(f"directories.tokendir = {tmp_path}/tokens\n")
    monkeypatch.setenv("SOFTHSM2_CONF", str(settings))
    call("softhsm2-util", "--init-token", "--free", "--label", "t", "--pin", PIN, "--so-pin", PIN)
    made = ["--login", "--pin", PIN, "--keypairgen", "--key-type", "EC:prime256v1", "--id", "01"]
    call("pkcs11-tool", "--module", SOFT_HSM, *made)
    return SOFT_HSM


def test_keys_of_a_token_let_in_through_the_agent(site: Site, token: Path) -> None:
    with (site.folder / "sshd" / "authorized_keys").open("ab") as file:
        file.write(call("ssh-keygen", "-D", token))
    socket = site.start_agent()
    site.server.client_key_path.unlink()
    site.config = [f"PKCS11Provider {token}", f"IdentityAgent {socket}"]
    with pytest.raises(DeviceError, match=f"ssh-add -s {token}"):
        site.say_by_edgepack("echo in")
    ask = site.folder / "ask"
    ask.write_text(f"#!/bin/sh\necho {PIN}\n")
    ask.chmod(0o755)
    asking = {"SSH_ASKPASS": str(ask), "SSH_ASKPASS_REQUIRE": "force", "SSH_AUTH_SOCK": socket}
    call("ssh-add", "-s", token, **asking)
    assert site.say_by_edgepack("echo in") == "in\n"


def test_server_with_none_but_unsafe_host_keys_is_named(site: Site) -> None:
    key = site.folder / "rsa"
    call("ssh-keygen", "-q", "-t", "rsa", "-b", "2048", "-N", "", "-f", key)
    with (site.folder / "sshd" / "sshd_config").open("a") as config:
        config.write(f"HostKey {key}\nHostKeyAlgorithms ssh-rsa\n")
    with pytest.raises(DeviceError, match="no host key but ssh-rsa") as caught:
        site.say_by_edgepack("true")
    assert "ssh-keygen -A" in caught.value.hint
    assert not caught.value.transient

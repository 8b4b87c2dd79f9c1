"""Certificates and revocation of host keys, made by ssh-keygen, shown by sshd, judged as ssh does.

Stock ``ssh`` with the same configuration says in each case whether the host is to be trusted.
"""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from edgepack.devices.ssh.certificates import find_flaw, parse_certificate
from edgepack.devices.ssh.host_keys import HostKey, find_own_known_hosts, write_trusted
from edgepack.devices.ssh.trust import trust
from edgepack.errors import DeviceError

from tests.support.servers.loopback import ssh_device
from tests.support.servers.openssh_server import OpenSshServer, find_sshd

pytestmark = pytest.mark.skipif(find_sshd() is None, reason="there is no sshd")


@dataclass(frozen=True)
class Host:
    """An sshd, the keys around it, and the configuration of who connects to it."""

    folder: Path
    server: OpenSshServer

    @property
    def name(self) -> str:
        return f"[{self.server.host}]:{self.server.port}"

    def public(self, name: str) -> str:
        return " ".join((self.folder / f"{name}.pub").read_text().split()[:2])

    def certify(self, *options: str, authority: str = "ca") -> Path:
        """Let an authority sign the host's key, and the server show that."""
        made = self.folder / "sshd" / "host_key-cert.pub"
        key = str(self.folder / "host_key.pub")
        signing = ["-s", str(self.folder / authority), "-I", "board", "-z", "7"]
        keygen(*signing, *options, key)
        shutil.move(self.folder / "host_key-cert.pub", made)
        return made

    def configure(self, known_hosts: str, *lines: str) -> Path:
        (self.folder / "known_hosts").write_text(known_hosts)
        config = self.folder / "config"
        config.write_text(
            "\n".join(
                [
                    f"UserKnownHostsFile {self.folder}/known_hosts",
                    f"GlobalKnownHostsFile {os.devnull}",
                    *lines,
                    "",
                ]
            )
        )
        return config

    def stock_ssh_trusts(self, config: Path) -> bool:
        argv = ["ssh", "-F", str(config), "-i", str(self.server.client_key_path)]
        for option in (
            "BatchMode=yes",
            "StrictHostKeyChecking=yes",
            "PreferredAuthentications=none",
        ):
            argv += ["-o", option]
        argv += ["-p", str(self.server.port), "-l", self.server.user, self.server.host, "true"]
        done = subprocess.run(argv, capture_output=True, check=False, timeout=60)
        refused = b"Host key verification failed" in done.stderr
        assert refused != (b"Permission denied" in done.stderr), done.stderr
        return not refused

    def refusal(self, config: Path, **changes: object) -> str:
        """Return why edgepack does not trust the host; empty if it does."""
        device = ssh_device(self.server, **{"host_key": None, "ssh_config": str(config), **changes})
        asked: list[str] = []

        def confirm(problem: str) -> bool:
            asked.append(problem)
            return False

        try:  # this logs in nowhere, and so is quick
            said = trust(device, None, confirm)
        except DeviceError as error:
            return asked[0] if asked else error.problem
        assert "is trusted already" in said
        return ""


def keygen(*arguments: str) -> None:
    subprocess.run(["ssh-keygen", "-q", *arguments], check=True, timeout=60)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    folder = tmp_path_factory.mktemp("certificates")
    for name, kind in (("ca", "ed25519"), ("other", "ed25519"), ("p256", "ecdsa"), ("rsa", "rsa")):
        keygen(
            "-t",
            kind,
            *(["-b", "2048"] if kind == "rsa" else []),
            "-N",
            "",
            "-C",
            name,
            "-f",
            str(folder / name),
        )
    with OpenSshServer(folder / "sshd") as server:
        private = folder / "sshd" / "host_key"
        public = subprocess.run(
            ["ssh-keygen", "-y", "-f", private], capture_output=True, check=True
        )
        (folder / "host_key.pub").write_bytes(public.stdout)
        with (folder / "sshd" / "sshd_config").open("a") as config:
            config.write(f"HostCertificate {folder}/sshd/host_key-cert.pub\n")
        yield Host(folder, server)


GOOD = ["-h", "-n", "127.0.0.1"]


@pytest.mark.parametrize(
    ("options", "authority", "expected"),
    [
        (GOOD, "ca", ""),
        (["-h"], "ca", ""),
        (["-h", "-n", "other,127.0.0.1"], "ca", ""),
        ([*GOOD, "-V", "-1m:+5m"], "ca", ""),
        (GOOD, "p256", ""),
        (GOOD, "rsa", ""),
        ([*GOOD, "-t", "ssh-rsa"], "rsa", "ssh-rsa signature is wrong, or of an unsafe kind"),
        ([*GOOD, "-V", "20200101:20210101"], "ca", "it has expired"),
        ([*GOOD, "-V", "+1d:+2d"], "ca", "it is not valid yet"),
        (["-h", "-n", "127.0.0.2"], "ca", "it is for 127.0.0.2 and not for 127.0.0.1"),
        (["-h", "-n", "127.*"], "ca", "it is for 127.* and not for 127.0.0.1"),
        ([*GOOD, "-O", "critical:only@example.com=yes"], "ca", "it has critical options"),
        (GOOD, "other", "which no @cert-authority line names"),
    ],
    ids=str,
)
def test_host_when_it_shows_a_certificate_is_trusted_as_stock_ssh_does(
    host, options, authority, expected
):
    host.certify(*options, authority=authority)
    signers = ("ca",) if authority == "other" else (authority,)
    lines = [f"@cert-authority {host.name} {host.public(name)}\n" for name in signers]
    config = host.configure("".join(lines))
    said = host.refusal(config)
    assert (said == "") == (expected == "") == host.stock_ssh_trusts(config)
    assert expected in said
    assert ("its certificate 'board' cannot be used" in said) == bool(expected)


def test_authority_when_its_line_leaves_the_port_out_counts_as_for_stock_ssh(host):
    host.certify(*GOOD)
    config = host.configure(f"@cert-authority 127.0.0.? {host.public('ca')}\n")
    assert host.stock_ssh_trusts(config)
    assert host.refusal(config) == ""
    config = host.configure(f"@cert-authority 127.0.0.2 {host.public('ca')}\n")
    assert not host.stock_ssh_trusts(config)
    assert "is not known" in host.refusal(config)


def test_key_when_it_is_known_is_trusted_though_its_certificate_is_no_good(host):
    host.certify(*GOOD, "-V", "20200101:20210101")
    authority = f"@cert-authority * {host.public('ca')}\n"
    config = host.configure(f"{authority}{host.name} {host.public('host_key')}\n")
    assert host.stock_ssh_trusts(config)
    assert host.refusal(config) == ""


def test_authority_when_it_is_revoked_certifies_nothing(host):
    host.certify(*GOOD)
    key = host.public("ca")
    config = host.configure(f"@cert-authority * {key}\n@revoked * {key}\n")
    assert not host.stock_ssh_trusts(config)
    assert "or who certified it, is revoked" in host.refusal(config)


def test_certificate_when_it_is_a_users_proves_no_host(host, tmp_path):
    made = host.certify("-n", "127.0.0.1")
    certificate = parse_certificate(blob_of(made))
    assert "user's" in find_flaw(certificate, "127.0.0.1", time.time())
    config = host.configure(f"@cert-authority * {host.public('ca')}\n")
    assert not host.stock_ssh_trusts(config)
    assert "is not known" in host.refusal(config)


@pytest.mark.parametrize("authority", ["ca", "p256", "rsa"])
def test_certificate_when_any_byte_of_it_is_altered_proves_nothing(host, authority):
    blob = blob_of(host.certify(*GOOD, authority=authority))
    assert find_flaw(parse_certificate(blob), "127.0.0.1", time.time()) == ""
    for position in range(len(blob)):
        altered = bytearray(blob)
        altered[position] ^= 1
        try:
            flaw = find_flaw(parse_certificate(bytes(altered)), "127.0.0.1", time.time())
        except ValueError:
            continue
        assert flaw, position
    for wrong in [*(blob[:length] for length in range(len(blob))), blob + b"\0"]:
        with pytest.raises(ValueError):
            parse_certificate(wrong)


def blob_of(path: Path) -> bytes:
    return base64.b64decode(path.read_text().split()[1])


REVOKED = {
    "host key, listed": ("list", "host_key", True),
    "authority, listed": ("list", "ca", True),
    "another key, listed": ("list", "other", False),
    "host key, in a KRL": ("krl", "host_key.pub", True),
    "another key, in a KRL": ("krl", "other.pub", False),
    "serial number, in a KRL": ("krl", "serial: 7", True),
    "another serial number, in a KRL": ("krl", "serial: 8", False),
    "key id, in a KRL": ("krl", "id: board", True),
}


@pytest.mark.parametrize("what", REVOKED)
def test_revoked_host_keys_when_configured_are_refused_as_by_stock_ssh(host, what):
    kind, key, expected = REVOKED[what]
    host.certify(*GOOD)
    revoked = host.folder / "revoked"
    revoked.unlink(missing_ok=True)
    if kind == "list":
        revoked.write_text(f"# gone\n\n{host.public(key)} a comment\n")
    elif key.endswith(".pub"):
        keygen("-k", "-f", str(revoked), str(host.folder / key))
    else:
        specification = host.folder / "specification"
        specification.write_text(f"{key}\n")
        keygen("-k", "-s", str(host.folder / "ca.pub"), "-f", str(revoked), str(specification))
    authority = f"@cert-authority * {host.public('ca')}\n"
    config = host.configure(authority, f"RevokedHostKeys {revoked}")
    assert host.stock_ssh_trusts(config) is not expected
    said = host.refusal(config)
    assert (f"is revoked ({revoked})" in said) is expected
    assert bool(said) is expected


def test_pinned_key_when_it_is_revoked_is_refused_all_the_same(host):
    revoked = host.folder / "revoked"
    revoked.write_text(f"{host.public('host_key')}\n")
    config = host.configure("", f"RevokedHostKeys {revoked}")
    pin = host.server.host_key_fingerprint
    assert "is revoked" in host.refusal(config, host_key=pin)
    revoked.write_text("")
    assert host.refusal(config, host_key=pin) == ""


@pytest.mark.parametrize("content", [None, "no key\n", "SSHKRL\n\0 and nothing of one"])
def test_revoked_host_keys_when_they_cannot_be_read_let_no_host_be_trusted(host, content):
    revoked = host.folder / "revoked"
    revoked.unlink(missing_ok=True)
    if content is not None:
        revoked.write_text(content)
    config = host.configure(
        f"{host.name} {host.public('host_key')}\n", f"RevokedHostKeys {revoked}"
    )
    assert not host.stock_ssh_trusts(config)
    assert f"cannot tell whether the host key is revoked by {revoked}" in host.refusal(config)


def test_trusting_a_host_when_the_own_file_names_authorities_and_revoked_keys_keeps_these():
    lines = "@cert-authority * ssh-ed25519 YQ==\n@revoked board ssh-ed25519 Yg==\n"
    find_own_known_hosts().parent.mkdir(parents=True)
    find_own_known_hosts().write_text(f"{lines}board ssh-ed25519 Yw==\n")
    write_trusted("board", HostKey("ssh-ed25519", b"d"))
    assert find_own_known_hosts().read_text() == f"{lines}board ssh-ed25519 ZA==\n"

"""``edgepack device add``, over real SSH: from an address to an entry of the inventory."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from edgepack.base.machine import find_architecture
from edgepack.cli.main import run
from edgepack.demo.server import LoopbackServer
from edgepack.deploy.adding import add_device
from edgepack.devices.checking import check
from edgepack.devices.inventory import load_device
from edgepack.errors import DeviceError, UsageError
from edgepack.project.profile import find_host_target, find_target_files

from tests.chaos.disks import can_mount
from tests.support.servers.openssh_server import OpenSshServer, find_sshd


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LoopbackServer]:
    with LoopbackServer(tmp_path / "server") as running:
        yield running


@pytest.fixture
def inventory(tmp_path: Path) -> Path:
    return tmp_path / "devices.yaml"


def add(server: LoopbackServer, inventory: Path, **changes: object) -> object:
    values: dict[str, object] = {
        "name": "board",
        "address": f"{server.user}@{server.host}",
        "port": server.port,
        "key": str(server.client_key_path),
        "fingerprint": server.host_key_fingerprint,
        "confirm": lambda _: False,
        "ssh_config": "/dev/null",
        "inventory": inventory,
    }
    return add_device(**(values | changes))  # type: ignore[arg-type]


def test_added_device_can_be_used_by_its_name(server: LoopbackServer, inventory: Path) -> None:
    add(server, inventory)
    device = load_device("board", inventory)
    assert device.target == find_host_target()
    assert check(device).facts.os == "linux"


def test_target_can_be_said(
    server: LoopbackServer, inventory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = find_target_files()[find_host_target()].read_text(encoding="utf-8")
    (tmp_path / "targets").mkdir()
    mine = profile.replace(f"id: {find_host_target()}", "id: my-board")
    (tmp_path / "targets" / "my-board.yaml").write_text(mine, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    add(server, inventory, target="my-board")
    assert load_device("board", inventory).target == "my-board"


def test_target_of_another_kind_of_machine_is_refused(
    server: LoopbackServer, inventory: Path
) -> None:
    other = "linux-x86-64" if find_architecture() == "aarch64" else "raspberry-pi"
    with pytest.raises(DeviceError, match=f"target '{other}' is linux on") as caught:
        add(server, inventory, target=other)
    assert f"it seems to be a {find_host_target()}" in caught.value.hint
    assert not inventory.exists()


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"name": "my board"}, "cannot be called"),
        ({"target": "rasberry-pi"}, "no target"),
        ({"address": "-oProxyCommand=x"}, "host cannot be"),
        ({"port": 0}, "port cannot be 0"),
    ],
)
def test_wrong_argument_is_named_before_connecting(
    server: LoopbackServer, inventory: Path, changes: dict[str, object], problem: str
) -> None:
    with pytest.raises(UsageError, match=problem):
        add(server, inventory, **changes)
    assert not inventory.exists()


def test_nothing_is_written_when_the_key_is_not_accepted(
    server: LoopbackServer, inventory: Path
) -> None:
    with pytest.raises(DeviceError, match="nothing was trusted"):
        add(server, inventory, fingerprint=None)
    assert not inventory.exists()


def test_name_that_is_taken_is_refused(server: LoopbackServer, inventory: Path) -> None:
    add(server, inventory)
    with pytest.raises(UsageError, match="already has"):
        add(server, inventory)


PASSWORD = "canary-6yT-Wq2"
VARIABLE = "BENCH_PASSWORD"

# Arguments: another /etc/shadow, and sshd's own. Each connection has a mount namespace of its own.
_WITH_SHADOW = """
set -e
mount --bind "$1" /etc/shadow
shift
exec "$@" -o PasswordAuthentication=yes -o PermitRootLogin=yes
"""


@pytest.fixture
def by_password(tmp_path: Path) -> Iterator[OpenSshServer | LoopbackServer]:
    """OpenSSH's server, which lets in with a password; without root, our own."""
    if find_sshd() is None or os.geteuid() != 0 or not can_mount() or not shutil.which("openssl"):
        with LoopbackServer(tmp_path / "server", password=PASSWORD) as ours:
            yield ours
        return
    hashed = subprocess.run(
        ["openssl", "passwd", "-6", PASSWORD], capture_output=True, check=True, text=True
    ).stdout.strip()
    shadow = tmp_path / "shadow"
    shadow.write_text(f"root:{hashed}:19000:0:99999:7:::\n")
    under = ["unshare", "--mount", "sh", "-c", _WITH_SHADOW, "sh", str(shadow)]
    with OpenSshServer(tmp_path / "server", under=under) as running:
        yield running


def run_add(server: OpenSshServer | LoopbackServer, *options: str) -> int:
    argv = ["device", "add", "board", f"{server.user}@{server.host}", "--port", str(server.port)]
    return run([*argv, "--fingerprint", server.host_key_fingerprint, *options])


def test_board_with_a_password_is_added_and_the_password_is_nowhere(
    by_password: OpenSshServer | LoopbackServer,
    tmp_path: Path,
    own_home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "devices.yaml").touch()
    monkeypatch.setenv(VARIABLE, PASSWORD)
    assert run_add(by_password) == 8
    assert "edgepack device add --password-env NAME" in capfd.readouterr().err
    assert run_add(by_password, "--password-env", VARIABLE) == 0
    assert run(["device", "check", "board", "--json"]) in (0, 8)
    assert '"facts": {' in capfd.readouterr().out
    assert run(["device", "list", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["board"]["password_env"] == VARIABLE
    monkeypatch.setenv(VARIABLE, "not-" + PASSWORD)
    assert run(["device", "check", "board"]) == 8
    said = capfd.readouterr()
    assert f"hint: correct the password in {VARIABLE}" in said.err
    assert run(["audit", "export", "--json"]) == 0
    said = capfd.readouterr()
    kept = [said.out, said.err]
    for folder in (tmp_path, own_home):
        kept += [p.read_text(errors="replace") for p in folder.rglob("*") if p.is_file()]
    assert any(VARIABLE in text for text in kept)
    assert not any(PASSWORD in text for text in kept)


def test_variable_that_is_not_set_is_named_before_anything_is_trusted_or_recorded(
    server: LoopbackServer, inventory: Path, own_home: Path
) -> None:
    with pytest.raises(DeviceError, match=f"variable '{VARIABLE}' .password_env. is not set"):
        add(server, inventory, password_env=VARIABLE)
    assert not inventory.exists()
    assert not [path for path in own_home.rglob("*") if path.is_file()]

"""``edgepack device add``, over real SSH: from an address to an entry of the inventory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from edgepack.base.machine import find_architecture
from edgepack.demo.server import LoopbackServer
from edgepack.deploy.adding import add_device
from edgepack.devices.checking import check
from edgepack.devices.inventory import load_device
from edgepack.errors import DeviceError, UsageError
from edgepack.project.profile import find_host_target, find_target_files


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

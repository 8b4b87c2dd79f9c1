"""Boards' own histories, fetched over real SSH and merged with the log: what others did."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from edgepack.base.machine import find_own_name
from edgepack.cli.main import run
from edgepack.demo.server import LoopbackServer
from edgepack.deploy.histories import read_device_history
from edgepack.deploy.push import push, rollback
from edgepack.devices.inventory import Device, load_devices

from tests.support.reports.tiny_bundle import write_tiny_bundle
from tests.support.servers.bare_programs import link_programs
from tests.support.servers.dropbear_server import DropbearServer, require_dropbear
from tests.support.servers.loopback import ssh_device, ssh_entry
from tests.support.slow_cases import slow_after

EVE = "eve@lab"


@contextmanager
def as_eve(tmp_path: Path) -> Iterator[None]:
    """Work as somebody else, who has another log."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(tmp_path / "eve"))
        for module in ("client", "shell_agent"):
            patch.setattr(f"edgepack.deploy.transfer.{module}.find_own_name", lambda: EVE)
        yield


@pytest.fixture
def bundles(tmp_path: Path) -> list[Path]:
    return [write_tiny_bundle(tmp_path / f"b{number}", size=10 + number) for number in range(2)]


@pytest.fixture(params=slow_after(2, ["python", "shell", "busybox"], reason="on a bare board too"))
def board(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Device]:
    """A device with Python, one that finds a few programs only, and one with busybox alone."""
    if request.param == "busybox":
        require_dropbear()
        with DropbearServer(tmp_path / "server", bare=True) as bare:
            yield ssh_device(bare, root="/data")
        return
    with LoopbackServer(tmp_path / "server") as server:
        if request.param == "shell":
            folder, start = link_programs(tmp_path / "bin"), server.start
            monkeypatch.setattr(server, "start", lambda line: start(f"PATH={folder}; {line}"))
        yield ssh_device(server, root=str(tmp_path / "root"))


def test_history_of_a_board_says_who_switched_it(
    board: Device, bundles: list[Path], tmp_path: Path
) -> None:
    assert read_device_history(board).entries == ()
    first, second = (push(each, board, self_test=False).release for each in bundles)
    with as_eve(tmp_path):
        rollback("tiny", board)
    found = read_device_history(board)
    assert [(one.action, one.release, one.switched_from, one.by) for one in found.entries] == [
        ("switch", first, None, find_own_name()), ("switch", second, first, find_own_name()),
        ("rollback", first, second, EVE),
    ]  # fmt: skip
    assert {one.project for one in found.entries} == {"tiny"}
    assert (found.current, set(found.digests)) == ({"tiny": first}, {first, second})
    assert {len(digest) for digest in found.digests.values()} == {64}
    assert abs(found.clock_s) <= 2


@pytest.fixture
def farm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Device]]:
    """Two boards of devices.yaml, and one that is off."""
    with ExitStack() as stack, socket.socket() as unused:
        servers = {name: stack.enter_context(LoopbackServer(tmp_path / name)) for name in "ab"}
        entries: dict[str, dict[str, Any]] = {
            name: ssh_entry(server) | {"python": sys.executable, "root": str(tmp_path / f"r{name}")}
            for name, server in servers.items()
        }
        unused.bind(("127.0.0.1", 0))
        entries["off"] = entries["a"] | {"port": unused.getsockname()[1]}
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("COLUMNS", "300")
        document = {"schema_version": 1, "devices": entries}
        (tmp_path / "devices.yaml").write_text(json.dumps(document))
        yield load_devices()


def test_export_when_somebody_else_replaced_a_digest_says_who_and_of_boards_that_are_off_so(
    farm: dict[str, Device], bundles: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in "ab":
        push(bundles[0], farm[name], self_test=False)
    with as_eve(tmp_path):
        pushed = push(bundles[1], farm["a"], self_test=False)
    capsys.readouterr()
    assert run(["audit", "export"]) == 0
    alone = capsys.readouterr().out
    assert alone.count("as far as this machine knows") == 2
    assert EVE not in alone
    words = ["--from-devices", "a", "--from-devices", "b"]
    assert run(["audit", "export", *words]) == 0
    said = capsys.readouterr().out
    assert f"(switch by {EVE})" in said
    assert "as far as this machine knows" not in said
    assert f"{EVE} switch a tiny {pushed.release} done (only the device has it)" in said
    assert f"{find_own_name()} switch b tiny" in said
    assert run(["audit", "export", "--from-devices", "all", "--json"]) == 8
    streams = capsys.readouterr()
    document = json.loads(streams.out)
    assert {name: one["state"] for name, one in document["devices"].items()} == {
        "a": "done", "b": "done", "off": "failed",
    }  # fmt: skip
    assert "of off only what the log has is known" in streams.err
    assert [(one["device"], one["source"]) for one in document["records"]] == [
        ("a", "both"), ("a", "log"), ("b", "both"), ("b", "log"), ("a", "device"),
    ]  # fmt: skip
    last = {one["device"]: one for one in document["intervals"] if one["end"] is None}
    assert {name: one["seen_by"] for name, one in last.items()} == {"a": "device", "b": "device"}
    assert last["a"]["release"] == pushed.release
    assert len(last["a"]["digest"]) == 64

"""Power of SSH devices: by command lines of the user's own, with the device leased."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from edgepack import api
from edgepack.cli.main import run
from edgepack.demo.server import LoopbackServer
from edgepack.deploy import power
from edgepack.devices.inventory import Device, LabgridEntry
from edgepack.devices.transport import Transport
from edgepack.devices.transports import connect
from edgepack.errors import (
    BusyError,
    DeviceError,
    ProfileError,
    ToolError,
    UnreachableError,
    UsageError,
)
from pydantic import ValidationError

from tests.support.servers.loopback import ssh_device, ssh_entry
from tests.support.servers.power_switch import make_boot_id


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(power, "OFF_S", 0.01)
    monkeypatch.setattr(power, "_LOOK_S", 0.05)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LoopbackServer]:
    with LoopbackServer(tmp_path / "server") as started:
        yield started


class Plug:
    """A program that switches a plug: it notes its words, and on starts the board anew."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.boot_id = make_boot_id(folder, monkeypatch)
        self.log, self.program, self.go = folder / "log", folder / "plug", folder / "go"
        self.go.touch()
        self.starts_anew = True
        self.write("")

    def write(self, more: str) -> None:
        start = f"echo $$ > {self.boot_id}"
        self.program.write_text(
            f'#!/bin/sh\necho "$*" >> {self.log}\n'
            f"while ! [ -e {self.go} ]; do sleep 0.05; done\n{more}\n[ $1 = off ] || {start}\n"
        )
        self.program.chmod(0o755)

    @property
    def seen(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []

    def make_lines(self, *actions: str) -> dict[str, list[str]]:
        return {action: [str(self.program), action, "secret; $(no shell)"] for action in actions}


@pytest.fixture
def plug(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plug:
    return Plug(tmp_path, monkeypatch)


@pytest.fixture
def board(server: LoopbackServer, plug: Plug) -> Device:
    return ssh_device(server, power=plug.make_lines("on", "off"))


def switch(board: Device, action: power.PowerAction, **options: Any) -> power.PowerSwitched:
    return power.switch_power(board, action, options=power.PowerOptions(**options))


def test_cycle_when_there_are_on_and_off_is_both_and_the_board_has_restarted(
    board: Device, plug: Plug
):
    switched = switch(board, "cycle")
    assert plug.seen == ["off secret; $(no shell)", "on secret; $(no shell)"]
    assert switched.has_restarted
    assert switched.answers_after_s is not None
    assert api.list_leases(board) == ()
    [record] = [one for one in api.read_audit_log().records if one.action == "power"]
    assert (record.device, record.detail, record.result) == ("board", "cycle", "done")


def test_cycle_when_it_has_a_command_line_is_that_alone(server: LoopbackServer, plug: Plug):
    board = ssh_device(server, power=plug.make_lines("on", "off", "cycle"))
    assert switch(board, "cycle").has_restarted
    assert [line.split()[0] for line in plug.seen] == ["cycle"]


def test_off_and_on_when_they_are_asked_for_are_one_line_each(board: Device, plug: Plug):
    assert switch(board, "off") == power.PowerSwitched("off", None, None)
    switched = switch(board, "on")
    assert [line.split()[0] for line in plug.seen] == ["off", "on"]
    assert switched.has_restarted is None
    assert switched.answers_after_s is not None


def test_power_when_others_use_the_board_is_not_switched_unless_by_force(board: Device, plug: Plug):
    with connect(board) as there, api.leased(there, board, "a benchmark"):
        for action in ("off", "cycle"):
            with pytest.raises(BusyError, match="a benchmark"):
                switch(board, action)
        assert plug.seen == []
        failed = [one for one in api.read_audit_log().records if one.action == "power"]
        assert [one.result for one in failed] == ["failed", "failed"]
        assert switch(board, "off", force=True).answers_after_s is None
    assert len(plug.seen) == 1


def test_power_when_it_is_switched_holds_the_lease(board: Device, plug: Plug):
    plug.go.unlink()
    thread = threading.Thread(target=switch, args=(board, "off"))
    thread.start()
    try:
        while not plug.seen:
            thread.join(0.05)
        [lease] = api.list_leases(board)
        with connect(board) as there, pytest.raises(BusyError), api.leased(there, board, "bench"):
            pass
    finally:
        plug.go.touch()
        thread.join()
    assert (lease.purpose, lease.exclusive) == ("power off", True)
    assert api.list_leases(board) == ()


def test_power_when_the_connection_is_lost_with_it_is_as_without(
    board: Device, plug: Plug, server: LoopbackServer
):
    plug.go.unlink()
    found: list[power.PowerSwitched] = []
    thread = threading.Thread(target=lambda: found.append(switch(board, "cycle")))
    thread.start()
    while not plug.seen:
        thread.join(0.05)
    server.drop_connections()
    plug.go.touch()
    thread.join()
    assert found[0].has_restarted


def test_cycle_when_the_board_does_not_answer_is_done_and_waits_until_it_does(
    board: Device, plug: Plug, monkeypatch: pytest.MonkeyPatch
):
    looks: list[str] = []

    @contextmanager
    def connect_when_on(device: Device) -> Iterator[Transport]:
        looks.append(" ".join(line.split()[0] for line in plug.seen))
        if len(looks) < 4:
            raise UnreachableError("it does not answer", hint="wait", where="board")
        with connect(device) as there:
            yield there

    monkeypatch.setattr(power, "connect", connect_when_on)
    switched = switch(board, "cycle")
    assert looks == ["", "off on", "off on", "off on"]
    assert switched.has_restarted is None


def test_cycle_when_the_board_never_answers_again_ends(
    board: Device, plug: Plug, server: LoopbackServer
):
    server.stop()
    with pytest.raises(UnreachableError):
        switch(board, "cycle", for_s=0.2)
    assert len(plug.seen) == 2


def test_cycle_when_the_board_did_not_restart_says_so(board: Device, plug: Plug):
    plug.write("exit 0")
    with pytest.raises(DeviceError, match="has not restarted") as raised:
        switch(board, "cycle", for_s=0.2)
    assert "outlet" in raised.value.hint


@pytest.mark.parametrize(
    ("more", "said"), [("echo no such outlet >&2; exit 3", "ended with 3"), ("sleep 30", "longer")]
)
def test_power_when_its_program_fails_says_what_it_said_and_no_words(
    more: str, said: str, server: LoopbackServer, plug: Plug
):
    board = ssh_device(server, power={**plug.make_lines("on", "off"), "timeout_s": 1.0})
    plug.write(more)
    with pytest.raises(ToolError, match=said) as raised:
        switch(board, "cycle")
    assert "secret" not in str(raised.value)
    assert len(plug.seen) == 1
    assert api.list_leases(board) == ()


def test_power_when_its_program_is_missing_says_so(server: LoopbackServer):
    board = ssh_device(server, power={"on": ["no-such-plug"], "off": ["no-such-plug"]})
    with pytest.raises(ToolError, match="no-such-plug"):
        switch(board, "on")


def test_power_when_nothing_switches_it_says_what_to_write(server: LoopbackServer):
    for device in (ssh_device(server), api.load_device("local")):
        with pytest.raises(UsageError, match="is not known") as raised:
            switch(device, "off")
        assert "power: {on:" in raised.value.hint


@pytest.mark.parametrize(
    "words", [["off"], ["board", "up"], ["board", "on", "off"], ["board", "off", "--for", "soon"]]
)
def test_command_when_its_words_make_no_sense_is_refused(
    words: list[str], board: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    write_inventory(board, tmp_path, monkeypatch)
    assert run(["device", "power", *words]) == UsageError.exit_code


def write_inventory(board: Device, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    entry = {"transport": "ssh", **board.entry.model_dump(mode="json", exclude_defaults=True)}
    document = {"schema_version": 1, "devices": {"board": entry}}
    (folder / "devices.yaml").write_text(yaml.safe_dump(document))


def test_command_when_it_is_typed_switches_and_tells(
    board: Device,
    plug: Plug,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    write_inventory(board, tmp_path, monkeypatch)
    assert run(["device", "power", "board", "cycle", "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["has_restarted"] is True
    assert "waiting up to 300 s until it answers" in printed.err
    assert run(["device", "power", "board", "off"]) == 0
    assert capsys.readouterr().out == "board is off\n"
    assert run(["device", "power", "board", "local", "off"]) == UsageError.exit_code
    assert len(plug.seen) == 4
    assert "is off" in capsys.readouterr().out


def test_inventory_when_power_is_half_known_is_refused(server: LoopbackServer, tmp_path: Path):
    entry = {**ssh_entry(server), "power": {"on": ["plug"]}}
    path = tmp_path / "devices.yaml"
    path.write_text(yaml.safe_dump({"schema_version": 1, "devices": {"board": entry}}))
    with pytest.raises(ProfileError, match="off"):
        api.load_device("board", path)


@pytest.mark.parametrize(
    "which",
    [
        {},
        {"place": "kiosk", "filters": {"board": "pi5"}},
        {"filters": {}},
        {"filters": {"Board": "pi5"}},
        {"filters": {"board": "pi5=x"}},
        {"filters": {"board": "a b"}},
        {"filters": {"board": "pi5"}, "waiting_s": 0},
    ],
)
def test_inventory_when_a_place_is_not_clear_is_refused(which: dict[str, Any]):
    with pytest.raises(ValidationError):
        LabgridEntry.model_validate({"transport": "labgrid", "target": "linux-x86-64", **which})

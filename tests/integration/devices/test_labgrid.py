"""Boards of a labgrid: its own coordinator and exporter, and a board over SSH."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from edgepack.demo.server import LoopbackServer
from edgepack.deploy.power import PowerOptions, switch_power
from edgepack.devices import places, reservations
from edgepack.devices.inventory import Device
from edgepack.devices.transports import connect
from edgepack.errors import BusyError, DeviceError, ToolError, UnreachableError, UsageError

from tests.support.servers.labgrid_lab import Lab, labgrid_device, labgrid_lab
from tests.support.servers.loopback import wait_until
from tests.support.servers.power_switch import PowerSwitch, make_boot_id, power_switch

pytestmark = pytest.mark.slow(reason="starts labgrid's coordinator and exporter")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopbackServer]:
    with LoopbackServer(tmp_path_factory.mktemp("labgrid") / "server") as started:
        yield started


@pytest.fixture(scope="module")
def switch() -> Iterator[PowerSwitch]:
    with power_switch() as started:
        yield started


@pytest.fixture(scope="module")
def lab(
    server: LoopbackServer, switch: PowerSwitch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("labgrid") / "lab"
    with labgrid_lab(folder, server.host, server.port, server.user, switch.url) as started:
        yield started


def make_device(server: LoopbackServer, lab: Lab, **changes: object) -> Device:
    own = {"coordinator": lab.coordinator, "client": lab.client}
    return labgrid_device(server, **{**own, **changes})


def test_place_when_connected_is_acquired_until_the_last_connection_ends(
    server: LoopbackServer, lab: Lab
) -> None:
    device = make_device(server, lab)
    with connect(device) as one:
        assert one.run(["echo", "here"], timeout_s=20).stdout == b"here\n"
        assert lab.find_holder()
        with connect(device) as two:
            assert two.run(["echo", "too"], timeout_s=20).stdout == b"too\n"
        assert lab.find_holder()
    assert lab.find_holder() == ""


def test_place_when_somebody_else_has_it_is_busy_and_names_them(
    server: LoopbackServer, lab: Lab
) -> None:
    assert lab.ask("acquire", user="bob").returncode == 0
    with pytest.raises(BusyError, match=r"already acquired by [^ ]+/bob"):
        connect(make_device(server, lab)).__enter__()
    assert lab.find_holder().endswith("/bob")
    assert lab.ask("release", user="bob").returncode == 0


def test_place_when_its_user_acquired_it_by_hand_stays_acquired(
    server: LoopbackServer, lab: Lab
) -> None:
    assert lab.ask("acquire").returncode == 0
    with connect(make_device(server, lab)):
        pass
    assert lab.find_holder()
    assert lab.ask("release").returncode == 0


def test_place_when_its_user_has_it_on_another_host_is_busy(
    server: LoopbackServer, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("LG_HOSTNAME", "far")
        assert lab.ask("acquire").returncode == 0
    try:
        with pytest.raises(BusyError, match="already acquired place kiosk on far"):
            connect(make_device(server, lab)).__enter__()
        assert lab.find_holder().startswith("far/")
    finally:
        assert lab.ask("release").returncode == 0


def test_place_when_it_cannot_be_released_is_warned_of_and_the_work_counts(
    server: LoopbackServer, lab: Lab, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    client = tmp_path / "client"
    client.write_text(
        f'#!/bin/sh\nfor word; do [ "$word" != release ] || exit 3; done\nexec {lab.client} "$@"\n'
    )
    client.chmod(0o755)
    with connect(make_device(server, lab, client=str(client))) as board:
        assert board.run(["echo", "here"], timeout_s=20).stdout == b"here\n"
    assert "board stays acquired: " in caplog.text
    assert lab.find_holder()
    with connect(make_device(server, lab)):
        pass
    assert lab.find_holder() == ""


def test_place_when_the_board_cannot_be_trusted_is_released(
    server: LoopbackServer, lab: Lab
) -> None:
    device = make_device(server, lab, host_key=f"SHA256:{'A' * 43}")
    with pytest.raises(DeviceError):
        connect(device).__enter__()
    assert lab.find_holder() == ""


def test_place_when_a_process_was_killed_with_it_is_released_by_the_next(
    server: LoopbackServer, lab: Lab
) -> None:
    device = make_device(server, lab)
    places.acquire_place(device).close()  # as the system closes it
    assert lab.find_holder()
    with connect(device):
        pass
    assert lab.find_holder() == ""


def test_labgrid_when_it_lacks_what_is_asked_says_what(server: LoopbackServer, lab: Lab) -> None:
    for changes, error, said in (
        ({"place": "nowhere"}, UsageError, "nowhere matches nothing"),
        ({"coordinator": "127.0.0.1:1"}, UnreachableError, "127.0.0.1:1 does not answer"),
        ({"client": "no-such-client"}, ToolError, "cannot run 'no-such-client'"),
    ):
        with pytest.raises(error, match=said):
            connect(make_device(server, lab, **changes))


@pytest.mark.parametrize(
    "shown",
    [
        "{'params': {'address': '-oProxyCommand=x'}}",
        "{'params': {}}",
        "{'a': __import__('os')}",
        "[",
    ],
)
def test_service_when_it_is_no_address_is_refused(
    server: LoopbackServer, lab: Lab, tmp_path: Path, shown: str
) -> None:
    client = tmp_path / "client"
    head = "Matching resource 'x' (here/board/NetworkService/x):"
    client.write_text(f'#!/bin/sh\ncat <<"END"\n{head}\n  {shown}\nEND\n')
    client.chmod(0o755)
    with pytest.raises(DeviceError, match="cannot be read"):
        places.find_board(make_device(server, lab, client=str(client)))


def test_power_when_it_is_cycled_goes_off_and_on_while_the_place_is_held(
    server: LoopbackServer,
    lab: Lab,
    switch: PowerSwitch,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    boot_id = make_boot_id(tmp_path, monkeypatch)
    holders: list[str] = []

    def start_anew(value: str) -> None:
        holders.append(lab.find_holder())
        boot_id.write_text(f"after {value}\n")

    switch.seen.clear()
    monkeypatch.setattr(switch, "on_put", start_anew)
    switched = switch_power(make_device(server, lab), "cycle")
    assert switch.seen == ["/relay/3/value 0", "/relay/3/value 1"]
    assert all(holders)
    assert switched.has_restarted
    assert lab.find_holder() == ""


def test_power_when_somebody_else_has_the_place_is_not_switched(
    server: LoopbackServer, lab: Lab, switch: PowerSwitch
) -> None:
    switch.seen.clear()
    assert lab.ask("acquire", user="bob").returncode == 0
    try:
        for options in (PowerOptions(), PowerOptions(force=True)):
            with pytest.raises(BusyError, match="/bob"):
                switch_power(make_device(server, lab), "off", options=options)
    finally:
        assert lab.ask("release", user="bob").returncode == 0
    assert switch.seen == []


def test_power_when_labgrid_cannot_switch_it_says_so(
    server: LoopbackServer, lab: Lab, switch: PowerSwitch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: str) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(switch, "on_put", refuse)
    with pytest.raises(ToolError, match="labgrid cannot switch the power"):
        switch_power(make_device(server, lab), "on")
    assert lab.find_holder() == ""


def start_there(
    server: LoopbackServer, lab: Lab, folder: Path, *words: str, **changes: object
) -> subprocess.Popen[str]:
    """Start Python in a folder whose inventory has a device of any place with the lab's tag."""
    device = make_device(server, lab, place=None, filters={"board": "pi5"}, **changes)
    entry = device.entry.model_dump(exclude_none=True, exclude_defaults=True)
    document = {"schema_version": 1, "devices": {"pool": {"transport": "labgrid", **entry}}}
    folder.mkdir(exist_ok=True)
    (folder / "devices.yaml").write_text(json.dumps(document))
    return subprocess.Popen(
        [sys.executable, *words],
        cwd=folder,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


WHO = ("-m", "edgepack", "device", "who", "pool")


def run_there(server: LoopbackServer, lab: Lab, folder: Path) -> tuple[str, str]:
    return start_there(server, lab, folder, *WHO).communicate(timeout=120)


def list_reservations(lab: Lab) -> list[str]:
    lines = lab.ask("reservations").stdout.splitlines()
    return [line.split()[1] for line in lines if line.strip().startswith("state:")]


def test_place_when_none_is_free_is_waited_for_and_then_busy(
    server: LoopbackServer, lab: Lab, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert lab.ask("acquire", user="bob").returncode == 0
    try:
        short = make_device(server, lab, place=None, filters={"board": "pi5"}, waiting_s=3.0)
        with pytest.raises(BusyError, match="no place with board=pi5 became free in 3 s"):
            connect(short)
        assert "waiting up to 3 s for a place with board=pi5" in caplog.text
        assert list_reservations(lab) == []
        patient = start_there(server, lab, tmp_path / "a", *WHO)
        assert wait_until(lambda: list_reservations(lab) == ["waiting"], 60)
    finally:
        assert lab.ask("release", user="bob").returncode == 0
    out, err = patient.communicate(timeout=120)
    assert (patient.returncode, out) == (0, "pool is free\n"), err
    assert list_reservations(lab) == []


HOLD = """
import sys
from edgepack import api
from edgepack.devices.reservations import find_place
print(find_place(api.load_device("pool")).entry.place, flush=True)
sys.stdin.read()
"""


def test_place_when_it_is_reserved_is_shared_here_and_goes_on_after_a_kill(
    server: LoopbackServer, lab: Lab, tmp_path: Path
) -> None:
    first = start_there(server, lab, tmp_path / "a", "-c", HOLD)
    assert first.stdout is not None
    assert first.stdout.readline() == "kiosk\n"
    assert list_reservations(lab) == ["acquired"]
    out, err = run_there(server, lab, tmp_path / "b")
    assert out == "pool is free\n", err
    assert "waiting" not in err
    assert lab.find_holder()
    assert list_reservations(lab) == ["acquired"]
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    assert lab.find_holder()
    out, err = run_there(server, lab, tmp_path / "b")
    assert out == "pool is free\n", err
    assert lab.find_holder() == ""
    assert list_reservations(lab) == []


def test_reservation_when_it_lacks_what_is_asked_says_what(
    server: LoopbackServer, lab: Lab
) -> None:
    for changes, error, said in (
        ({"coordinator": "127.0.0.1:1"}, UnreachableError, "127.0.0.1:1 does not answer"),
        ({"client": "no-such-client"}, ToolError, "cannot run 'no-such-client'"),
    ):
        device = make_device(server, lab, place=None, filters={"board": "pi5"}, **changes)
        with pytest.raises(error, match=said):
            reservations.find_place(device)

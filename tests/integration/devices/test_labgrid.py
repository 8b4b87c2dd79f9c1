"""Boards of a labgrid: its own coordinator and exporter, and a board over SSH."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from edgepack.demo.server import LoopbackServer
from edgepack.devices import places
from edgepack.devices.inventory import Device
from edgepack.devices.transports import connect
from edgepack.errors import BusyError, DeviceError, ToolError, UnreachableError, UsageError

from tests.support.servers.labgrid_lab import Lab, labgrid_device, labgrid_lab

pytestmark = pytest.mark.slow(reason="starts labgrid's coordinator and exporter")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopbackServer]:
    with LoopbackServer(tmp_path_factory.mktemp("labgrid") / "server") as started:
        yield started


@pytest.fixture(scope="module")
def lab(server: LoopbackServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("labgrid") / "lab"
    with labgrid_lab(folder, server.host, server.port, server.user) as started:
        yield started


def make_device(server: LoopbackServer, lab: Lab, **changes: str) -> Device:
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

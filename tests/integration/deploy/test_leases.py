"""Leases of devices, over every transport, with clients that crash, hang and race."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from edgepack.base.machine import find_own_name
from edgepack.base.progress import Silent
from edgepack.demo.server import LoopbackServer
from edgepack.deploy import leases as leases_module
from edgepack.deploy.leases import (
    lease_device,
    leased,
    list_leases,
    release_device,
)
from edgepack.devices.inventory import NO_PYTHON, Device, LocalEntry
from edgepack.devices.programs import read_shell_program
from edgepack.devices.transport import Transport
from edgepack.devices.transports import connect
from edgepack.errors import DeviceError, RemoteCommandError
from edgepack.measure.bench.run import bench

from tests.support.doubles.watched_progress import Watched
from tests.support.reports.tiny_bundle import write_tiny_bundle
from tests.support.servers.loopback import lives, ssh_device, wait_until
from tests.support.slow_cases import slow_after


@pytest.fixture(params=slow_after(2, ["local", "shell", "ssh"], reason="over SSH too"))
def device(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Device]:
    changes = {"root": str(tmp_path / "root"), "python": sys.executable}
    if request.param == "shell":
        changes["python"] = NO_PYTHON
    if request.param != "ssh":
        yield Device("here", LocalEntry(transport="local", target="linux-x86-64", **changes))
        return
    with LoopbackServer(tmp_path / "server") as server:
        yield ssh_device(server, **changes)


@pytest.fixture(params=[None, NO_PYTHON])
def here(request: pytest.FixtureRequest, tmp_path: Path) -> Device:
    known = {"root": str(tmp_path / "root"), "python": request.param}
    return Device("here", LocalEntry(transport="local", target="linux-x86-64", **known))


@pytest.fixture
def transport(here: Device) -> Iterator[Transport]:
    with connect(here) as connected:
        yield connected


class Notes(Silent):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, text: str) -> None:
        self.lines.append(text)


def take(transport: Transport, device: Device, purpose: str, **how: Any) -> None:
    with leased(transport, device, purpose, **how):
        pass


def as_somebody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases_module, "find_own_name", lambda: "bob@elsewhere")


def test_exclusive_lease_when_held_refuses_others_and_says_who_holds_it(device: Device) -> None:
    with connect(device) as transport:
        with leased(transport, device, "bench digits") as lease:
            assert list_leases(device)[0].id == lease.id
            for exclusive in (True, False):
                with pytest.raises(DeviceError) as caught:
                    take(transport, device, "again", exclusive=exclusive)
            said = str(caught.value)
        assert f"leased by {find_own_name()} for 'bench digits' (exclusive)" in said
        assert f"since {lease.taken_at}" in said
        assert f"edgepack device release {device.name} --force" in said
        assert "--wait" in said
        assert list_leases(device) == ()


def test_shared_leases_when_held_share_and_refuse_an_exclusive_one(device: Device) -> None:
    with connect(device) as transport:
        with (
            leased(transport, device, "push a", exclusive=False),
            leased(transport, device, "push b", exclusive=False),
        ):
            assert [lease.purpose for lease in list_leases(device)] == [
                "push a",
                "push b",
            ]
            with pytest.raises(DeviceError, match=r"push a.*\n.*push b"):
                take(transport, device, "bench")
        take(transport, device, "bench")


def test_lease_when_its_holder_ends_within_the_wait_is_taken(device: Device) -> None:
    notes = Notes()
    with connect(device) as transport, contextlib.ExitStack() as stack:
        stack.enter_context(leased(transport, device, "first"))
        timer = threading.Timer(0.5, stack.close)
        timer.start()
        with leased(transport, device, "second", wait_s=20, progress=notes) as lease:
            assert [found.id for found in list_leases(device)] == [lease.id]
        timer.join()
    assert "for 'first'" in notes.lines[0]


def test_lease_when_the_connection_is_cut_is_released(tmp_path: Path) -> None:
    with LoopbackServer(tmp_path / "server") as server:
        device = ssh_device(server, python=sys.executable)
        with (
            connect(device) as transport,
            pytest.raises(DeviceError, match="lost"),
            leased(transport, device, "bench"),
        ):
            server.drop_connections()
        with connect(device) as transport:
            assert wait_until(lambda: list_leases(device) == ())


HOLD = """
import sys, time
from edgepack.devices.inventory import Device, LocalEntry
from edgepack.devices.transports import connect
from edgepack.deploy.leases import leased
python = sys.argv[2] or None
entry = LocalEntry(transport="local", target="linux-x86-64", root=sys.argv[1], python=python)
device = Device("here", entry)
with connect(device) as transport, leased(transport, device, "bench"):
    print("held", flush=True)
    time.sleep(600)
"""


def test_lease_when_its_client_is_killed_is_released(here: Device, transport: Transport) -> None:
    argv = [sys.executable, "-c", HOLD, here.entry.root, here.entry.python or ""]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as client:
        assert client.stdout
        assert client.stdout.readline() == b"held\n"
        assert len(list_leases(here)) == 1
        client.kill()
    assert wait_until(lambda: list_leases(here) == ())


def test_lease_when_nobody_renews_it_expires_and_its_holder_is_told(
    here: Device, transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases_module, "LEASE_S", 0.3)
    monkeypatch.setattr(leases_module, "_RENEWALS", 0.001)
    with (
        pytest.raises(DeviceError, match=r"was lost during 'bench'"),
        leased(transport, here, "bench"),
    ):
        take(transport, here, "other", wait_s=20)


@pytest.mark.slow(reason="takes seconds")
def test_lease_when_renewed_outlasts_its_time(
    here: Device, transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases_module, "LEASE_S", 0.8)
    with leased(transport, here, "bench"), pytest.raises(DeviceError, match="leased by"):
        take(transport, here, "other", wait_s=2)


def test_lease_when_released_by_force_is_reported_lost(here: Device, transport: Transport) -> None:
    with (  # noqa: PT012
        pytest.raises(DeviceError, match="it was released"),
        leased(transport, here, "bench"),
    ):
        with pytest.raises(DeviceError, match="you have no reservation there"):
            release_device(here)
        assert len(release_device(here, force=True)) == 1
    assert list_leases(here) == ()


def test_shared_lease_when_lost_leaves_what_was_done_as_it_is(
    here: Device, transport: Transport
) -> None:
    with leased(transport, here, "push", exclusive=False):
        release_device(here, force=True)


def test_lease_when_the_work_fails_raises_the_works_own_error(
    here: Device, transport: Transport
) -> None:
    def work() -> None:
        with leased(transport, here, "bench"):
            release_device(here, force=True)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert list_leases(here) == ()


def test_reservation_when_made_excludes_others_but_not_its_owner(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connect(device) as transport:
        first = lease_device(device, for_s=600, purpose="by hand")
        second = lease_device(device, for_s=60, purpose="by hand")
        assert (first.reserved, round(first.left_s), round(second.left_s)) == (True, 600, 60)
        assert [lease.id for lease in list_leases(device)] == [second.id]
        take(transport, device, "bench")
        as_somebody_else(monkeypatch)
        with pytest.raises(DeviceError, match=r"'by hand' \(reserved\)"):
            take(transport, device, "push", exclusive=False)
        with pytest.raises(DeviceError, match=r"'by hand' \(reserved\)"):
            lease_device(device, for_s=60, purpose="mine")
        with pytest.raises(DeviceError, match="you have no reservation there"):
            release_device(device)
        monkeypatch.undo()
        assert [lease.id for lease in release_device(device)] == [second.id]
        assert release_device(device) == ()


def test_lease_when_left_leaves_no_process(here: Device, transport: Transport) -> None:
    with leased(transport, here, "bench"):
        running = lease_programs(here)
        assert running
    assert wait_until(lambda: not any(lives(pid) for pid in running))


@pytest.mark.slow(reason="takes seconds")
def test_lease_when_its_program_is_killed_lasts_until_it_expires_and_is_reported_lost(
    here: Device, transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases_module, "LEASE_S", 1.5)
    with (  # noqa: PT012
        pytest.raises(DeviceError, match="exit code 137"),
        leased(transport, here, "bench"),
    ):
        # The oldest: in a shell, what watches for the lease's end is left, as at an out-of-memory.
        os.kill(min(lease_programs(here)), signal.SIGKILL)
        with pytest.raises(DeviceError, match="for 'bench'"):
            take(transport, here, "soon")
        take(transport, here, "later", wait_s=20)
    for left in lease_programs(here):
        for sleeper in Path(f"/proc/{left}/task/{left}/children").read_text().split():
            os.kill(int(sleeper), signal.SIGKILL)
    assert wait_until(lambda: not lease_programs(here))


def test_release_when_nothing_is_leased_releases_nothing(here: Device) -> None:
    assert release_device(here, force=True) == ()
    assert release_device(here) == ()


def write_tool(folder: Path, name: str, before: str) -> Path:
    """Write a program that does something before it is what it is called, and return the folder."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f'#!/bin/sh\n{before}\nexec {shutil.which(name)} "$@"\n')
    path.chmod(0o755)
    return folder


def start_in_a_shell(root: Path, tools: Path) -> subprocess.Popen[bytes]:
    """Start the program of devices without Python, with tools that come before the system's own."""
    argv = ["sh", "-c", read_shell_program("edgepack_lease"), "sh", "hold", str(root)]
    wish = ['"me"', '"race"', "true", "false", "18000", "0"]
    path = f"{tools}:{os.environ['PATH']}"
    return subprocess.Popen(
        [*argv, *wish], env={**os.environ, "PATH": path}, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


@pytest.mark.slow(reason="takes seconds")
@pytest.mark.parametrize("stale", ["999999.1", "999999", None])
def test_lock_in_a_shell_when_its_program_was_killed_goes_to_one_of_two(
    tmp_path: Path, stale: str | None
) -> None:
    (tmp_path / "lease").mkdir()
    if stale:
        (tmp_path / "lease/.held").symlink_to(stale)
    # Both find the lock of a program that is gone; then one removes it while the other has it.
    tools = write_tool(tmp_path / "tools", "rm", "sleep 0.4")
    write_tool(tools, "mv", "sleep 1")
    first = start_in_a_shell(tmp_path, tools)
    time.sleep(0.2)
    second = start_in_a_shell(tmp_path, tools)
    time.sleep(4)
    said = [program.communicate(timeout=60)[0] for program in (first, second)]
    assert sorted(b'"taken"' in each for each in said) == [False, True]
    assert sorted(b'"refused"' in each for each in said) == [False, True]


@pytest.mark.slow(reason="takes seconds")
def test_lock_in_a_shell_when_no_link_can_be_made_says_so(tmp_path: Path) -> None:
    tools = write_tool(tmp_path / "tools", "ln", "exit 1")
    program = start_in_a_shell(tmp_path / "root", tools)
    _, said = program.communicate(timeout=60)
    assert program.returncode == 1
    assert f"cannot make the link {tmp_path}/root/lease/.held" in said.decode()


def lease_programs(device: Device) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if device.entry.root.encode() in (folder / "cmdline").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


def test_lease_when_the_root_cannot_be_written_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    root = str(tmp_path / "file/root")
    device = Device("here", LocalEntry(transport="local", target="linux-x86-64", root=root))
    with (
        connect(device) as transport,
        pytest.raises(RemoteCommandError, match="Not a directory") as caught,
    ):
        take(transport, device, "bench")
    assert f"{root}/lease" in caught.value.hint


@pytest.mark.parametrize(
    ("printed", "said"),
    [
        ("echo Welcome to this board", "not an answer about leases"),
        (r"printf '\0\0\0\2[]'", "answer about leases is wrong"),
        (r"printf '\0\0\0\2[['", "is not JSON"),
        (r"printf '\0\0\0\1\377'", "is not UTF-8"),
        ("exit 0", "has ended"),
        ("echo broken >&2; exit 3", "broken"),
    ],
)
def test_lease_when_something_else_is_answered_is_an_error(
    tmp_path: Path, printed: str, said: str
) -> None:
    # The supervisor runs in the real Python, and the program that it starts is the device's.
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\n[ "$4" = --stream ] && exec {sys.executable} "$@"\n{printed}\n')
    python.chmod(0o755)
    entry = LocalEntry(transport="local", target="linux-x86-64", python=str(python))
    device = Device("odd", entry)
    with (
        connect(device) as transport,
        pytest.raises((DeviceError, RemoteCommandError), match=said) as caught,
    ):
        take(transport, device, "bench")
    assert caught.value.where == "odd"


@pytest.mark.slow(reason="measures a whole bundle")
def test_bench_when_others_hold_the_device_is_refused_and_holds_it_itself(
    here: Device, transport: Transport, tmp_path: Path
) -> None:
    bundle = write_tiny_bundle(tmp_path / "bundle")
    with (
        leased(transport, here, "push", exclusive=False),
        pytest.raises(DeviceError, match="for 'push'"),
    ):
        bench(bundle, here, preset="smoke")
    seen = []

    class Watch(Watched):
        def ended(self, part: str) -> None:
            seen.append((part, list_leases(here)))

    bench(bundle, here, preset="smoke", progress=Watch())
    purposes = {tuple((one.purpose, one.exclusive) for one in found) for _, found in seen}
    assert purposes == {(("bench tiny-1.0.0-linux-x86-64", True),)}
    assert list_leases(here) == ()

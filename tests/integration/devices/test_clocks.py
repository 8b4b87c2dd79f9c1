"""Clocks that are held for a measurement are given back, however that ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from edgepack.base.resources import find_ondevice_dir
from edgepack.demo.server import LoopbackServer
from edgepack.devices.clocks import give_back_clocks, held_clocks
from edgepack.devices.inventory import Device, LocalEntry
from edgepack.devices.transports import connect
from edgepack.errors import DeviceError
from edgepack.ondevice.agent import edgepack_clocks as clocks

from tests.support.servers.loopback import CuttingProxy, ssh_device, wait_until
from tests.support.servers.sysfs import CPUFREQ, JETSON, write_tree

SCRIPT = find_ondevice_dir() / "agent/edgepack_clocks.py"
HELD = {"policy0": "performance", "policy4": "performance"}
BEFORE = {"policy0": "schedutil", "policy4": "ondemand"}


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    """Return the root of a board with two clusters of cores."""
    governor = {f"{CPUFREQ}/policy4/scaling_governor": "ondemand\n"}
    return write_tree(tmp_path / "sysfs", JETSON, governor)


@pytest.fixture
def device(tmp_path: Path) -> Device:
    entry = LocalEntry(transport="local", target="linux-x86-64", root=str(tmp_path / "root"))
    return Device("board", entry)


def governors(sysfs: Path) -> dict[str, str]:
    paths = (sysfs / CPUFREQ).glob("policy*/scaling_governor")
    return {path.parent.name: path.read_text().strip() for path in paths}


def hold(sysfs: Path, folder: Path, silence_s: float = 60.0) -> subprocess.Popen[bytes]:
    """Start the program on the device as itself, and wait until it holds."""
    argv = [sys.executable, "-IS", str(SCRIPT), "hold", str(folder), str(sysfs), str(silence_s)]
    guard = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert guard.stdout is not None
    settings = json.loads(guard.stdout.readline())["settings"]
    assert [each["during"] for each in settings] == ["performance", "performance"]
    return guard


def end(guard: subprocess.Popen[bytes]) -> None:
    guard.communicate(timeout=20)


def test_clocks_are_held_in_the_context_and_given_back_after_it(
    sysfs: Path, device: Device
) -> None:
    with connect(device) as transport:
        with held_clocks(transport, device, sysfs=str(sysfs)) as settings:
            assert governors(sysfs) == HELD
            assert [(s.name, s.before, s.during, s.given_back) for s in settings] == [
                ("governor of policy0", "schedutil", "performance", False),
                ("governor of policy4", "ondemand", "performance", False),
            ]
        assert governors(sysfs) == BEFORE
        assert all(setting.given_back for setting in settings)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_clocks_are_given_back_when_the_measurement_fails(
    sysfs: Path, device: Device, error: type[BaseException]
) -> None:
    with (
        connect(device) as transport,
        pytest.raises(error),
        held_clocks(transport, device, sysfs=str(sysfs)),
    ):
        raise error
    assert governors(sysfs) == BEFORE


def test_clocks_are_given_back_when_the_connection_breaks(sysfs: Path, tmp_path: Path) -> None:
    with (
        LoopbackServer(tmp_path / "server") as server,
        CuttingProxy(server.port, cut_after_bytes=1 << 30) as proxy,
    ):
        device = ssh_device(
            server, port=proxy.port, root=str(tmp_path / "root"), python=sys.executable
        )
        with (
            pytest.raises(DeviceError),
            connect(device) as transport,
            held_clocks(transport, device, sysfs=str(sysfs)),
        ):
            proxy.__exit__()
        assert wait_until(lambda: governors(sysfs) == BEFORE)


def test_clocks_are_given_back_when_the_host_is_killed(
    sysfs: Path, device: Device, tmp_path: Path
) -> None:
    source = (
        "import sys, time\n"
        "from edgepack.devices.inventory import Device, LocalEntry\n"
        "from edgepack.devices.transports import connect\n"
        "from edgepack.devices.clocks import held_clocks\n"
        "entry = LocalEntry(transport='local', target='linux-x86-64', root=sys.argv[1])\n"
        "device = Device('board', entry)\n"
        "with connect(device) as transport, held_clocks(transport, device, sysfs=sys.argv[2]):\n"
        "    print('held', flush=True)\n"
        "    time.sleep(60)\n"
    )
    argv = [sys.executable, "-c", source, device.entry.root, str(sysfs)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as host:
        assert host.stdout is not None
        assert host.stdout.readline() == b"held\n"
        assert governors(sysfs) == HELD
        host.kill()
    assert wait_until(lambda: governors(sysfs) == BEFORE)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_clocks_are_given_back_when_the_guard_is_told_to_stop(
    sysfs: Path, tmp_path: Path, number: signal.Signals
) -> None:
    guard = hold(sysfs, tmp_path / "root")
    guard.send_signal(number)
    assert wait_until(lambda: governors(sysfs) == BEFORE)
    end(guard)


def test_clocks_are_given_back_when_nobody_says_anything_any_more(
    sysfs: Path, tmp_path: Path
) -> None:
    guard = hold(sysfs, tmp_path / "root", silence_s=0.5)
    assert wait_until(lambda: governors(sysfs) == BEFORE)
    end(guard)


@pytest.mark.parametrize(
    ("ready", "read"),
    [
        ([[0], [0], []], [b"\n", b"\n"]),  # silence
        ([[0], [0]], [b"\n", b""]),  # the end of stdin
        ([[0], [7]], [b"\n"]),  # a signal
    ],
)
def test_clocks_are_held_as_long_as_somebody_speaks(
    monkeypatch: pytest.MonkeyPatch, ready: list[list[int]], read: list[bytes]
) -> None:
    def select(files: list[int], *_: list[int | float]) -> tuple[list[int], ...]:
        assert files == [0, 7]
        return ready.pop(0), [], []

    monkeypatch.setattr(clocks, "select", SimpleNamespace(select=select))
    monkeypatch.setattr(clocks, "os", SimpleNamespace(read=lambda *_: read.pop(0)))
    clocks.wait_for_end(7, 1.0)
    assert (ready, read) == ([], [])


def test_program_that_fails_for_root_is_not_blamed_on_sudo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(clocks.Problem, match="false failed") as caught:
        clocks.run_as_root(["false"])
    assert caught.value.hint == "measure without --tune"


def test_clocks_are_given_back_later_when_the_guard_itself_is_killed(
    sysfs: Path, device: Device
) -> None:
    guard = hold(sysfs, Path(device.entry.root))
    guard.kill()
    end(guard)
    assert governors(sysfs) == HELD
    with connect(device) as transport:
        given = give_back_clocks(transport, device)
        assert governors(sysfs) == BEFORE
        assert given == ["governor of policy0", "governor of policy4"]
        assert give_back_clocks(transport, device) == []


def test_clocks_are_what_they_were_first_when_the_next_measurement_follows_a_killed_guard(
    sysfs: Path, device: Device
) -> None:
    guard = hold(sysfs, Path(device.entry.root))
    guard.kill()
    end(guard)
    with connect(device) as transport:
        with held_clocks(transport, device, sysfs=str(sysfs)) as settings:
            assert [setting.before for setting in settings] == ["schedutil", "ondemand"]
        assert governors(sysfs) == BEFORE


def test_clocks_stay_when_they_were_left_before_a_reboot(sysfs: Path, device: Device) -> None:
    guard = hold(sysfs, Path(device.entry.root))
    guard.kill()
    end(guard)
    kept = Path(device.entry.root) / "clocks" / "clocks.json"
    kept.write_text(json.dumps({**json.loads(kept.read_text()), "boot_id": "another"}))
    with connect(device) as transport:
        assert give_back_clocks(transport, device) == []
    assert governors(sysfs) == HELD


def test_clocks_are_left_alone_when_another_measurement_holds_them(
    sysfs: Path, device: Device
) -> None:
    guard = hold(sysfs, Path(device.entry.root))
    with connect(device) as transport:
        assert give_back_clocks(transport, device) == []
        assert governors(sysfs) == HELD
        with (
            pytest.raises(DeviceError, match="another measurement"),
            held_clocks(transport, device, sysfs=str(sysfs)),
        ):
            pytest.fail("it is not held")
    end(guard)
    assert governors(sysfs) == BEFORE


def test_clocks_that_are_at_their_highest_are_not_touched(sysfs: Path, device: Device) -> None:
    files = {f"{CPUFREQ}/{name}/scaling_governor": "performance\n" for name in HELD}
    write_tree(sysfs, files)
    with (
        connect(device) as transport,
        held_clocks(transport, device, sysfs=str(sysfs)) as settings,
    ):
        assert settings == []


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        (None, "no cpufreq governor and no jetson_clocks"),
        (
            {f"{CPUFREQ}/policy4/scaling_available_governors": "ondemand powersave\n"},
            "governor of policy4 cannot be 'performance', only ondemand, powersave",
        ),
    ],
)
def test_clocks_that_cannot_be_held_are_an_error_and_nothing_stays_changed(
    sysfs: Path, device: Device, tmp_path: Path, files: dict[str, str] | None, problem: str
) -> None:
    root = tmp_path / "empty" if files is None else write_tree(sysfs, files)
    with (
        connect(device) as transport,
        pytest.raises(DeviceError) as caught,
        held_clocks(transport, device, sysfs=str(root)),
    ):
        pytest.fail("it is not held")
    assert problem in caught.value.problem
    assert "without --tune" in caught.value.hint
    assert governors(sysfs) == BEFORE


@pytest.mark.parametrize(
    ("sudo_does", "allowed"),
    [
        ('shift; exec "$@"', True),
        ("echo 'sudo: a password is required' >&2; exit 1", False),
    ],
)
def test_clocks_are_set_through_sudo_when_the_user_may_not(
    sysfs: Path, tmp_path: Path, sudo_does: str, *, allowed: bool
) -> None:
    """The program is run with an ``open`` and a user id as an ordinary user has them."""
    programs = tmp_path / "bin"
    programs.mkdir()
    sudo = programs / "sudo"
    sudo.write_text(f"#!/bin/sh\n{sudo_does}\n")
    sudo.chmod(0o755)
    ordinary = (
        "import builtins, os, sys; real = builtins.open; os.geteuid = lambda: 1000\n"
        "def careful(path, mode='r', *rest):\n"
        "    if 'w' in mode and str(path).endswith('scaling_governor'):\n"
        "        raise PermissionError(13, 'Permission denied', path)\n"
        "    return real(path, mode, *rest)\n"
        "builtins.open = careful\n"
        f"sys.argv = [{str(SCRIPT)!r}, *sys.argv[1:]]\n"
        f"exec(compile(real({str(SCRIPT)!r}).read(), 'clocks', 'exec'))\n"
    )
    argv = [sys.executable, "-IS", "-c", ordinary]
    argv += ["hold", str(tmp_path / "root"), str(sysfs), "60"]
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as guard:
        assert guard.stdout is not None
        found = json.loads(guard.stdout.readline())
        if allowed:
            assert governors(sysfs) == HELD
        else:
            assert "a password is required" in found["problem"]
            assert "NOPASSWD" in found["hint"]
        end(guard)
    assert governors(sysfs) == BEFORE


def test_clocks_of_a_jetson_are_held_by_its_own_program(sysfs: Path, tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    calls = tmp_path / "calls"
    program = programs / "jetson_clocks"
    program.write_text(
        f'#!/bin/sh\necho "$1" >> {calls}\n[ "$1" = --store ] && touch "$2"\nexit 0\n'
    )
    program.chmod(0o755)
    sudo = programs / "sudo"  # asked unless root runs this
    sudo.write_text('#!/bin/sh\nshift\nexec "$@"\n')
    sudo.chmod(0o755)
    argv = [sys.executable, "-IS", str(SCRIPT), "hold", str(tmp_path / "root"), str(sysfs), "60"]
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    done = subprocess.run(argv, input=b"", capture_output=True, env=environment, check=True)
    first, last = map(json.loads, done.stdout.splitlines())
    assert first == {
        "settings": [{"name": "clocks", "before": "dynamic", "during": "jetson_clocks"}]
    }
    assert last == {"given_back": ["clocks"]}
    assert calls.read_text().split("\n") == ["--store", "", "--restore", ""]
    assert governors(sysfs) == BEFORE

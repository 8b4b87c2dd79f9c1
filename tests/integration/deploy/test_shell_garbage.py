"""What a device without Python removes, what it keeps, and who may do so at a time."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from edgepack.demo.server import LoopbackServer
from edgepack.deploy.transfer.client import PushAgent, send_release, switch_back
from edgepack.deploy.verify import verify_device
from edgepack.devices.inventory import Device, LocalEntry
from edgepack.devices.transports import connect

from tests.support.reports.tiny_bundle import change_manifest, write_tiny_bundle
from tests.support.servers.bare_programs import link_programs
from tests.support.servers.loopback import ssh_device, wait_until

YEARS_S = 3 * 365 * 86400.0


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    """A device whose commands find a few programs, and no Python."""
    folder = link_programs(tmp_path / "bin")
    with LoopbackServer(tmp_path / "server") as running:
        start = running.start
        monkeypatch.setattr(running, "start", lambda line: start(f"PATH={folder}; {line}"))
        yield ssh_device(running, root=str(tmp_path / "root"))


@pytest.fixture
def bundles(tmp_path: Path) -> list[Path]:
    """Three bundles of one project that differ in their manifests only."""
    found = []
    for number in range(3):
        found.append(write_tiny_bundle(tmp_path / f"bundle-{number}"))
        change_manifest(found[-1], lambda manifest, n=number: manifest.update(version=f"1.0.{n}"))  # type: ignore[misc]
    return found


def push_to(device: Device, bundle: Path) -> str:
    with connect(device) as transport:
        return send_release(PushAgent(bundle, device, transport)).release


def number_of_the_dead() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


@contextmanager
def agent_that_lives() -> Iterator[int]:
    """Run what looks like another push: its command line has the agent's source."""
    process = subprocess.Popen(["sh", "-c", "sleep 100; : edgepack-lock"])
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


def test_push_when_others_left_files_removes_those_of_the_dead_only(
    device: Device, bundles: list[Path], tmp_path: Path
) -> None:
    push_to(device, bundles[0])
    base = tmp_path / "root" / "tiny"
    dead = number_of_the_dead()
    left = [base / f".{name}-{dead}" for name in ("have", "asked", "current")]
    left.append(base / "releases" / f".partial-0123456789abcdef-{dead}")
    with agent_that_lives() as pid:
        running = base / "releases" / f".partial-0123456789abcdef-{pid}"
        for path in (*left, running):
            path.mkdir()
            os.utime(path, (time.time() - YEARS_S,) * 2)
        push_to(device, bundles[0])
        assert not [path for path in left if path.exists()]
        assert running.exists()
    push_to(device, bundles[0])
    assert not running.exists()


@pytest.mark.slow(reason="pushes many times")
@pytest.mark.parametrize("step_s", [-YEARS_S, YEARS_S])
def test_push_when_the_clock_stepped_keeps_the_release_before(
    device: Device, bundles: list[Path], tmp_path: Path, step_s: float
) -> None:
    first = push_to(device, bundles[0])
    second = push_to(device, bundles[1])
    releases = tmp_path / "root" / "tiny" / "releases"
    os.utime(releases / first, (time.time() + step_s,) * 2)
    third = push_to(device, bundles[2])
    assert sorted(path.name for path in releases.iterdir()) == sorted([second, third])
    with connect(device) as transport:
        assert switch_back("tiny", device, transport).release == second


@pytest.mark.slow(reason="takes seconds")
def test_push_when_another_names_its_release_waits_and_one_that_died_is_no_obstacle(
    device: Device, bundles: list[Path], tmp_path: Path
) -> None:
    push_to(device, bundles[0])
    base = tmp_path / "root" / "tiny"
    held, current = base / ".held", base / "current"
    with ThreadPoolExecutor() as pool:
        with agent_that_lives() as pid:
            held.symlink_to(str(pid))
            second = pool.submit(push_to, device, bundles[1])
            assert wait_until(lambda: any(base.glob("releases/.partial-*")))
            assert not second.done()
        assert second.result(60) == current.readlink().name
    held.symlink_to(str(number_of_the_dead()))
    assert push_to(device, bundles[2]) == current.readlink().name
    assert not held.is_symlink()


@pytest.mark.slow(reason="pushes many times")
def test_pushes_when_at_once_leave_an_unbroken_history(
    device: Device, bundles: list[Path], tmp_path: Path
) -> None:
    root = tmp_path / "root"
    with ThreadPoolExecutor() as pool:
        pushed = list(pool.map(lambda bundle: push_to(device, bundle), bundles * 2))
    assert (root / "tiny" / "current").readlink().name in pushed
    seen_from_here = LocalEntry(transport="local", target="linux-x86-64", root=str(root))
    verify_device(Device("board", seen_from_here)).require_whole()

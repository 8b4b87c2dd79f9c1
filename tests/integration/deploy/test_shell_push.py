"""Pushing to a device that has a shell, tar and sha256sum, and no Python."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from edgepack.base.resources import find_ondevice_dir
from edgepack.bundle.manifest import MANIFEST, MANIFEST_SIGNATURE
from edgepack.demo.server import LoopbackServer
from edgepack.deploy.push import push
from edgepack.deploy.transfer.client import switch_back
from edgepack.deploy.verify import verify_device
from edgepack.devices.checking import check
from edgepack.devices.commands import format_command
from edgepack.devices.programs import read_shell_program
from edgepack.devices.transports import connect
from edgepack.errors import DeviceError, RemoteCommandError

from tests.support.reports.tiny_bundle import write_tiny_bundle
from tests.support.servers.bare_programs import link_programs
from tests.support.servers.boards import Board, tree, with_file
from tests.support.servers.dropbear_server import DropbearServer, require_dropbear
from tests.support.servers.loopback import CuttingProxy, ssh_device
from tests.support.slow_cases import slow_after


@pytest.fixture
def dash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Board]:
    """A device whose commands find a few programs of this machine, and no Python."""
    folder = link_programs(tmp_path / "bin")
    with LoopbackServer(tmp_path / "server") as server:
        start = server.start
        monkeypatch.setattr(server, "start", lambda line: start(f"PATH={folder}; {line}"))
        yield Board(ssh_device(server, root=str(tmp_path / "root")), Path("/"))


@pytest.fixture
def busybox(tmp_path: Path) -> Iterator[Board]:
    """A device with dropbear and busybox, and nothing else."""
    require_dropbear()
    with DropbearServer(tmp_path / "server", bare=True) as server:
        yield Board(ssh_device(server, root="/data"), server.board)


@pytest.fixture(params=slow_after(1, ["dash", "busybox"], reason="on a bare board too"))
def board(request: pytest.FixtureRequest) -> Board:
    found: Board = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_tiny_bundle(tmp_path / "bundle")


def test_agent_fits_a_command_line_of_dropbear() -> None:
    # MAX_CMD_LEN of dropbear's sysoptions.h is 9000.
    argv = ["env", "sh", "-c", read_shell_program("edgepack_agent"), "sh"]
    assert len(format_command(argv)) < 8500


def test_bundle_without_python_is_pushed_linked_and_kept(board: Board, bundle: Path) -> None:
    first = board.push(with_file(bundle, b"1", "755"))
    assert tree(board.at(first.path)) == tree(bundle)
    assert (board.project / "current").readlink() == Path("releases") / first.release
    again = board.push(bundle)
    assert (again.already_there, again.bytes_sent, again.switched_from) == (True, 0, first.release)
    before = tree(board.at(first.path))
    other_mode = board.push(with_file(bundle, b"1", "644"))
    assert tree(board.at(other_mode.path)) == tree(bundle)
    assert tree(board.at(first.path)) == before
    second = board.push(with_file(bundle, b"2"))
    assert tree(board.at(second.path)) == tree(bundle)
    assert second.bytes_sent < first.bytes_sent // 2
    name = "models/cpu-fp32.onnx"
    assert board.at(other_mode.path / name).samefile(board.at(second.path / name))
    staged = board.push(with_file(bundle, b"3"), switch=False)
    assert board.current() == second.release
    assert board.releases() == sorted([second.release, staged.release])
    lines = (board.project / "history.jsonl").read_bytes().splitlines(keepends=True)
    before = ["", *(hashlib.sha256(line).hexdigest() for line in lines[:-1])]
    assert [json.loads(line)["previous"] for line in lines] == before


@pytest.mark.slow(reason="on a bare board")
def test_bundle_is_pushed_where_find_runs_no_programs(busybox: Board, bundle: Path) -> None:
    """As OpenWrt's busybox is configured: neither -links nor -exec with +."""
    find = busybox.slash / "bin/find"
    find.unlink()
    refuses = (
        'case " $* " in *" -exec "*|*" -links "*) echo "find: unrecognized" >&2; exit 1 ;; esac'
    )
    find.write_text(f'#!/bin/sh\n{refuses}\nexec busybox find "$@"\n')
    find.chmod(0o755)
    first = busybox.push(with_file(bundle, b"1", "755"))
    assert tree(busybox.at(first.path)) == tree(bundle)
    second = busybox.push(with_file(bundle, b"2", "644"))
    assert tree(busybox.at(second.path)) == tree(bundle)
    assert second.bytes_sent < first.bytes_sent // 2


@pytest.mark.slow(reason="pushes many times")
def test_signature_that_comes_later_is_sent_without_python(board: Board, bundle: Path) -> None:
    first = board.push(bundle)
    for text in (b"one signature", b"another signature"):
        (bundle / MANIFEST_SIGNATURE).write_bytes(text)
        signed = board.push(bundle)
        assert signed.bytes_sent < first.bytes_sent // 2
        assert tree(board.at(first.path)) == tree(bundle)
    assert board.push(bundle).already_there
    assert board.releases() == [first.release]


def test_rollback_without_python(board: Board, bundle: Path) -> None:
    first, second = (board.push(with_file(bundle, bytes([n]))).release for n in range(2))
    with connect(board.device) as transport:
        done = switch_back("tiny", board.device, transport)
        assert (done.release, done.switched_from) == (first, second)
        none = f"no release was current before {first}, which stays current"
        with pytest.raises(RemoteCommandError, match=none) as caught:
            switch_back("tiny", board.device, transport)
        assert caught.value.problem.startswith("going back was refused\n")
        assert "try again" not in caught.value.hint
        assert f"edgepack push BUNDLE --device {board.device.name}" in caught.value.hint
        assert switch_back("tiny", board.device, transport, release=second).release == second
        with pytest.raises(RemoteCommandError, match="is not here any more"):
            switch_back("tiny", board.device, transport, release="0" * 16)
        with pytest.raises(RemoteCommandError, match="no release of other is current"):
            switch_back("other", board.device, transport)


def test_going_back_without_python_has_a_release_where_one_alone_is_kept(
    board: Board, bundle: Path
) -> None:
    alone = board.changed(keep_releases=1)
    first = push(bundle, alone.device, self_test=False).release
    failing = alone.changed(health=["sh", "-c", "exit 7"])
    with pytest.raises(RemoteCommandError, match=f"{first} is current again"):
        push(with_file(bundle, b"2"), failing.device, self_test=False)
    assert board.current() == first
    third = push(with_file(bundle, b"3"), alone.device, self_test=False).release
    assert board.releases() == [third]


@pytest.mark.slow(reason="takes seconds")
@pytest.mark.parametrize("cut", [1, 30, 200])
@pytest.mark.parametrize("zeros", [0, 170])
def test_history_when_power_was_lost_goes_on_unbroken(
    board: Board, bundle: Path, cut: int, zeros: int
) -> None:
    first, second = (board.push(with_file(bundle, bytes([n]))).release for n in range(2))
    history = board.project / "history.jsonl"
    history.write_bytes(history.read_bytes()[:-cut] + bytes(zeros))
    drift = [sys.executable, "-IS", str(find_ondevice_dir() / "agent/edgepack_drift.py")]
    for release in (first, second):
        with connect(board.device) as transport:
            assert switch_back("tiny", board.device, transport, release=release).release == release
        argv = [*drift, str(board.project.parent)]
        answer = subprocess.run(argv, capture_output=True, check=True)
        (state,) = json.loads(answer.stdout)["projects"]
        assert (state["history"]["broken_at"], state["history"]["current"]) == (None, release)
    assert board.releases() == sorted([first, second])


def test_history_when_it_cannot_be_written_nothing_is_switched(board: Board, bundle: Path) -> None:
    first = board.push(with_file(bundle, b"1"))
    history = board.project / "history.jsonl"
    history.unlink()
    history.mkdir()
    with pytest.raises(RemoteCommandError, match=r"cannot (read|write) .*/tiny/history"):
        board.push(with_file(bundle, b"2"))
    assert board.current() == first.release
    history.rmdir()
    assert board.push(with_file(bundle, b"2")).release == board.current()
    assert board.left_over() == []


@pytest.mark.slow(reason="takes seconds")
@pytest.mark.parametrize("name", ["cut", "readlink", "sha256sum", "tail", "wc"])
def test_program_that_is_killed_on_the_device_is_not_taken_for_one_that_found_nothing(
    dash: Board, bundle: Path, tmp_path: Path, name: str
) -> None:
    first = dash.push(with_file(bundle, b"1")).release
    lines = (dash.project / "history.jsonl").read_bytes()
    program = tmp_path / "bin" / name
    real = program.readlink()
    program.unlink()
    # Where memory is short, any process may be killed: here each that runs while the lock is held.
    program.write_text(f'#!/bin/sh\n[ -L {dash.project}/.held ] && kill -9 $$\nexec {real} "$@"\n')
    program.chmod(0o755)
    with pytest.raises(RemoteCommandError):
        dash.push(with_file(bundle, b"2"))
    program.unlink()
    program.symlink_to(real)
    assert dash.current() == first
    text = (dash.project / "history.jsonl").read_bytes()
    assert text.startswith(lines)
    second = dash.push(with_file(bundle, b"2")).release
    assert dash.current() == second
    assert verify_device(dash.changed(python=sys.executable).device).list_problems() == []


@pytest.mark.slow(reason="takes seconds")
def test_switch_that_was_told_and_not_done_is_done_by_the_next_push(
    board: Board, bundle: Path
) -> None:
    first, second = (board.push(with_file(bundle, bytes([n]))).release for n in range(2))
    current = board.project / "current"
    current.unlink()
    current.symlink_to(f"releases/{first}")
    assert board.push(with_file(bundle, bytes([1]))).switched_from == first
    assert board.current() == second
    with connect(board.device) as transport:
        assert switch_back("tiny", board.device, transport).release == first


def test_rollback_finds_the_release_before_in_a_history_with_zeros(
    board: Board, bundle: Path
) -> None:
    first, second = (board.push(with_file(bundle, bytes([n]))).release for n in range(2))
    history = board.project / "history.jsonl"
    history.write_bytes(history.read_bytes() + bytes(170))
    with connect(board.device) as transport:
        done = switch_back("tiny", board.device, transport)
    assert (done.release, done.switched_from) == (first, second)


def test_release_damaged_on_the_device_is_sent_again(board: Board, bundle: Path) -> None:
    first = board.push(bundle)
    board.at(first.path / "models" / "cpu-fp32.onnx").write_bytes(b"damaged")
    again = board.push(bundle)
    assert not again.already_there
    assert tree(board.at(again.path)) == tree(bundle)
    assert board.releases() == [again.release]


@pytest.mark.slow(reason="pushes many times")
@pytest.mark.parametrize("cut_after_bytes", [20_000, 2_000_000])
def test_connection_lost_without_python_leaves_everything_as_it_was(
    board: Board, bundle: Path, tmp_path: Path, cut_after_bytes: int
) -> None:
    first = board.push(bundle)
    large = write_tiny_bundle(tmp_path / "large", size=500)
    with CuttingProxy(board.port, cut_after_bytes) as proxy, pytest.raises(DeviceError):
        board.changed(port=proxy.port).push(large)
    assert board.current() == first.release
    assert tree(board.at(first.path)) == tree(bundle)
    second = board.push(large)
    assert tree(board.at(second.path)) == tree(large)


def test_bundle_that_was_altered_on_the_way_is_refused(
    board: Board, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = with_file(bundle, b"weights") / "files" / "a file.bin"
    from edgepack.deploy.transfer import shell_agent

    chunks = shell_agent.read_chunks
    altered = lambda path: iter([b"Weights"]) if path == weights else chunks(path)  # noqa: E731
    monkeypatch.setattr(shell_agent, "read_chunks", altered)
    with pytest.raises(RemoteCommandError, match="hash of a file is wrong"):
        board.push(bundle)
    assert board.releases() == []
    assert not (board.project / "current").exists()
    assert MANIFEST in tree(bundle)


def test_program_that_the_device_lacks_is_named(dash: Board, bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "bin" / "tar").unlink()
    with pytest.raises(RemoteCommandError, match="there is neither tar nor Python"):
        dash.push(bundle)
    assert not dash.project.exists()
    (tmp_path / "bin" / "uname").symlink_to(str(shutil.which("uname")))
    programs = check(dash.device).problems[0]
    assert programs == "no setsid, tar for what needs no Python: install busybox"


def test_disk_that_cannot_be_measured_is_tried(dash: Board, bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "bin" / "df").unlink()
    assert dash.push(bundle).release == dash.current()


def test_device_that_gets_python_later_goes_on_with_what_it_has(dash: Board, bundle: Path) -> None:
    first = dash.push(with_file(bundle, b"1"))
    python = dash.changed(python=sys.executable)
    second = python.push(with_file(bundle, b"2"))
    assert second.switched_from == first.release
    assert tree(dash.at(first.path)) == tree(with_file(bundle, b"1"))
    with connect(python.device) as transport:
        done = switch_back("tiny", python.device, transport)
    assert (done.release, done.switched_from) == (first.release, second.release)
    assert verify_device(python.device).list_problems() == []

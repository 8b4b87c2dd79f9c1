"""Pushing a bundle: all of it or none, whatever breaks on the way."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from edgepack.base.progress import Lines
from edgepack.base.resources import find_ondevice_dir
from edgepack.bundle import reading
from edgepack.bundle.manifest import MANIFEST, MANIFEST_SIGNATURE
from edgepack.bundle.reading import load_bundle
from edgepack.demo.server import LoopbackServer
from edgepack.deploy.transfer import client
from edgepack.deploy.transfer.client import (
    PushAgent,
    PushedRelease,
    send_release,
    switch_back,
    switch_release,
)
from edgepack.devices.inventory import Device, LocalEntry
from edgepack.devices.pipes import CommandStream
from edgepack.devices.transports import connect
from edgepack.errors import BundleError, BusyError, DeviceError, RemoteCommandError, UsageError

from tests.chaos.disks import can_mount
from tests.support.reports.tiny_bundle import change_manifest, write_tiny_bundle
from tests.support.servers.boards import with_file
from tests.support.servers.loopback import CuttingProxy, ssh_device, wait_until
from tests.support.slow_cases import slow_after


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_tiny_bundle(tmp_path / "bundle")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LoopbackServer]:
    with LoopbackServer(tmp_path / "server") as running:
        yield running


@pytest.fixture(params=slow_after(1, ["local", "ssh"], reason="over SSH too"))
def device(request: pytest.FixtureRequest, tmp_path: Path) -> Device:
    root = str(tmp_path / "root")
    if request.param == "local":
        return Device("here", LocalEntry(transport="local", target="linux-x86-64", root=root))
    return ssh_device(request.getfixturevalue("server"), root=root)


def push_to(device: Device, bundle: Path, *, switch: bool = True) -> PushedRelease:
    with connect(device) as transport:
        return send_release(PushAgent(bundle, device, transport, switch=switch))


def tree(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def current_of(device: Device) -> str:
    return str((project(device) / "current").readlink())


def project(device: Device) -> Path:
    return Path(device.entry.root) / "tiny"


def test_pushed_release_is_the_bundle_and_is_current(device: Device, bundle: Path) -> None:
    pushed = push_to(device, bundle)
    digest = hashlib.sha256((bundle / MANIFEST).read_bytes()).hexdigest()
    assert pushed.release == digest[:16]
    assert tree(Path(pushed.path)) == tree(bundle)
    assert current_of(device) == f"releases/{pushed.release}"
    assert pushed.bytes_sent > sum(map(len, tree(bundle).values()))


def test_second_push_sends_nothing(device: Device, bundle: Path) -> None:
    first = push_to(device, bundle)
    second = push_to(device, bundle)
    assert (second.already_there, second.bytes_sent) == (True, 0)
    assert (second.path, second.release) == (first.path, first.release)
    assert (first.switched_from, second.switched_from) == (None, first.release)


def test_signature_that_comes_later_is_sent_alone(device: Device, bundle: Path) -> None:
    first = push_to(device, bundle)
    for text in (b"one signature", b"another signature"):
        (bundle / MANIFEST_SIGNATURE).write_bytes(text)
        signed = push_to(device, bundle)
        assert (signed.already_there, signed.bytes_sent) == (True, len(text))
        assert tree(Path(first.path)) == tree(bundle)
    again = push_to(device, bundle)
    assert (again.already_there, again.bytes_sent) == (True, 0)
    assert names(project(device) / "releases") == [first.release]


def test_push_without_switch_leaves_current(device: Device, bundle: Path, tmp_path: Path) -> None:
    first = push_to(device, bundle)
    other = push_to(device, write_tiny_bundle(tmp_path / "other", size=10), switch=False)
    assert Path(other.path).is_dir()
    assert current_of(device) == f"releases/{first.release}"


def test_release_damaged_on_the_device_is_sent_again(device: Device, bundle: Path) -> None:
    path = Path(push_to(device, bundle).path)
    (path / "models" / "cpu-fp32.onnx").write_bytes(b"damaged")
    again = push_to(device, bundle)
    assert not again.already_there
    assert tree(path) == tree(bundle)
    assert names(path.parent) == [path.name]


def test_tampered_bundle_is_not_sent(device: Device, bundle: Path) -> None:
    with (bundle / "models" / "cpu-fp32.onnx").open("ab") as file:
        file.write(b"x")
    with pytest.raises(BundleError, match=r"models/cpu-fp32\.onnx"):
        push_to(device, bundle)
    assert not project(device).exists()


def test_bundle_for_another_target_is_not_sent(device: Device, bundle: Path) -> None:
    change_manifest(bundle, lambda manifest: manifest.update(target="raspberry-pi"))
    with pytest.raises(DeviceError, match=r"is for raspberry-pi, the device \w+ for") as caught:
        push_to(device, bundle)
    assert f"edgepack build --target {device.target}" in caught.value.hint
    assert not project(device).exists()


def test_push_says_in_one_line_what_was_sent(
    device: Device, bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for expected in (1, 0):
        with connect(device) as transport:
            pushed = send_release(PushAgent(bundle, device, transport), progress=Lines())
        said = capsys.readouterr().err.splitlines()
        assert len(said) == expected
        assert pushed.already_there == (not expected)
        files = len(load_bundle(bundle).manifest.files)
        for line in said:
            found = re.fullmatch(
                rf"{device.name}: sent (\d+ bytes|[\d.]+ MB) of (\d+) files in .* s", line
            )
            assert found
            assert int(found[2]) <= files


def test_archive_is_not_taken_for_a_bundle(device: Device, tmp_path: Path) -> None:
    (tmp_path / "bundle.tar.gz").write_bytes(b"packed")
    with pytest.raises(BundleError, match="is a file") as caught:
        push_to(device, tmp_path / "bundle.tar.gz")
    assert "not its archive" in caught.value.hint


def test_home_is_expanded_on_the_device(server: LoopbackServer, bundle: Path) -> None:
    pushed = push_to(ssh_device(server), bundle)
    assert Path(pushed.path).is_relative_to(server.home / ".local/share/edgepack/tiny/releases")


@pytest.mark.parametrize("cut_after_bytes", slow_after(1, [60_000, 6_000, 2_000_000]))
def test_connection_lost_in_mid_push_leaves_everything_as_it_was(
    server: LoopbackServer, bundle: Path, tmp_path: Path, cut_after_bytes: int
) -> None:
    device = ssh_device(server, root=str(tmp_path / "root"))
    first = push_to(device, bundle)
    large = write_tiny_bundle(tmp_path / "large", size=500)
    with (
        CuttingProxy(server.port, cut_after_bytes) as proxy,
        pytest.raises(DeviceError, match="lost"),
    ):
        push_to(ssh_device(server, root=device.entry.root, port=proxy.port), large)
    assert visible(device) == [first.release]
    assert current_of(device) == f"releases/{first.release}"
    assert tree(Path(first.path)) == tree(bundle)
    second = push_to(device, large)
    assert tree(Path(second.path)) == tree(large)
    assert wait_until(lambda: names(project(device) / "releases") == visible(device))


def test_push_after_a_broken_one_sends_the_rest(server: LoopbackServer, tmp_path: Path) -> None:
    device = ssh_device(server, root=str(tmp_path / "root"))
    large = write_tiny_bundle(tmp_path / "large", size=500)
    whole = sum(map(len, tree(large).values()))
    with (
        CuttingProxy(server.port, whole * 3 // 4) as proxy,
        pytest.raises(DeviceError, match="lost"),
    ):
        push_to(ssh_device(server, root=device.entry.root, port=proxy.port), large)
    assert wait_until(lambda: not is_locked(project(device) / "releases"))
    # How much arrived before the connection broke depends on how busy the server was.
    kept = bytes_written(project(device) / "releases")
    assert kept
    again = push_to(device, large)
    assert again.bytes_sent < whole - kept + 200_000
    assert tree(Path(again.path)) == tree(large)
    assert names(project(device) / "releases") == [again.release]


def is_locked(releases: Path) -> bool:
    for partial in releases.glob(".partial-*"):
        handle = os.open(partial, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(handle)
    return False


def bytes_written(folder: Path) -> int:
    """What files take on the disk: a file that is made in its whole size has holes until then."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


def visible(device: Device) -> list[str]:
    return [name for name in names(project(device) / "releases") if not name.startswith(".")]


NOISE = np.random.default_rng(0).bytes(3_000_000)


@pytest.mark.parametrize(
    ("changed", "most"),
    [
        (NOISE[:1_500_000] + b"another" + NOISE[1_500_007:], 300_000),
        (b"14 more bytes." + NOISE, 300_000),
        (NOISE[1_000_000:], 300_000),
        (NOISE[::-1], 3_100_000),
    ],
    ids=["a part changed", "shifted", "cut off", "all changed"],
)
def test_push_of_a_changed_file_sends_its_changed_chunks(
    device: Device, bundle: Path, changed: bytes, most: int
) -> None:
    first = push_to(device, with_file(bundle, NOISE))
    assert first.bytes_sent > len(NOISE)
    second = push_to(device, with_file(bundle, changed))
    assert second.bytes_sent < most
    assert tree(Path(second.path)) == tree(bundle)
    assert (Path(first.path) / "files" / "a file.bin").read_bytes() == NOISE


def test_file_that_another_release_has_is_linked(device: Device, bundle: Path) -> None:
    first = push_to(device, with_file(bundle, NOISE))
    second = push_to(device, with_file(bundle, b"other"))
    name = "models/cpu-fp32.onnx"
    assert (Path(first.path) / name).samefile(Path(second.path) / name)
    assert second.bytes_sent < sum(map(len, tree(bundle).values())) // 4


def test_altered_file_of_another_release_is_neither_linked_nor_copied(
    device: Device, bundle: Path
) -> None:
    first = push_to(device, with_file(bundle, NOISE))
    (Path(first.path) / "files" / "a file.bin").write_bytes(NOISE[:100] + b"x" + NOISE[101:])
    change_manifest(bundle, lambda manifest: manifest.update(version="2.0.0"))
    second = push_to(device, bundle)
    assert tree(Path(second.path)) == tree(bundle)
    assert second.bytes_sent < 400_000


def test_link_that_a_broken_push_left_is_not_written_through(device: Device, bundle: Path) -> None:
    first = push_to(device, with_file(bundle, NOISE))
    other = project(device) / "elsewhere"
    other.write_bytes(b"of another release")
    digest = hashlib.sha256((with_file(bundle, NOISE[::-1]) / MANIFEST).read_bytes()).hexdigest()
    partial = project(device) / "releases" / f".partial-{digest[:16]}-broken" / "files"
    partial.mkdir(parents=True)
    os.link(other, partial / "a file.bin")
    second = push_to(device, bundle)
    assert other.read_bytes() == b"of another release"
    assert tree(Path(second.path)) == tree(bundle)
    assert visible(device) == sorted([first.release, second.release])


def test_releases_beyond_those_to_keep_are_removed(device: Device, bundle: Path) -> None:
    pushed = [push_to(device, with_file(bundle, bytes([n]))).release for n in range(4)]
    assert visible(device) == sorted(pushed[-2:])
    assert names(project(device) / "chunks") == sorted(f"{name}.json" for name in pushed[-2:])
    tried = push_to(device, with_file(bundle, b"tried"), switch=False)
    assert visible(device) == sorted([pushed[-1], tried.release])


def test_release_that_others_remove_before_it_is_switched_to_is_no_current_one(
    device: Device, bundle: Path
) -> None:
    current = push_to(device, with_file(bundle, b"1"))
    tried = push_to(device, with_file(bundle, b"2"), switch=False)
    push_to(device, with_file(bundle, b"3"), switch=False)
    assert not Path(tried.path).exists()
    with connect(device) as transport, pytest.raises(BusyError, match="not here any more") as error:
        switch_release(tried, "tiny", device, transport)
    assert error.value.transient
    assert current_of(device) == f"releases/{current.release}"


def test_release_that_others_remove_after_it_was_found_is_no_current_one(
    device: Device, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = push_to(device, with_file(bundle, b"1"))
    second = push_to(device, with_file(bundle, b"2"))
    write = CommandStream.write

    def remove_first(stream: CommandStream, data: bytes) -> None:
        if data == b"0\n":  # the answer to "have"
            shutil.rmtree(first.path)
        write(stream, data)

    monkeypatch.setattr(CommandStream, "write", remove_first)
    with pytest.raises(BusyError, match="not here any more"):
        push_to(device, with_file(bundle, b"1"))
    assert current_of(device) == f"releases/{second.release}"


def test_rollback_goes_to_the_release_before_and_no_further(device: Device, bundle: Path) -> None:
    first, second = (push_to(device, with_file(bundle, bytes([n]))).release for n in range(2))
    with connect(device) as transport:
        done = switch_back("tiny", device, transport)
        assert (done.release, done.switched_from) == (first, second)
        assert current_of(device) == f"releases/{first}"
        with pytest.raises(RemoteCommandError, match=f"no release was current before {first}"):
            switch_back("tiny", device, transport)
        again = switch_back("tiny", device, transport, release=second)
        assert (again.release, again.switched_from) == (second, first)
        with pytest.raises(RemoteCommandError, match="is not here any more"):
            switch_back("tiny", device, transport, release="0" * 16)
        with pytest.raises(RemoteCommandError, match="no release of absent is current"):
            switch_back("absent", device, transport)
        with pytest.raises(UsageError, match="no project's name"):
            switch_back("../tiny", device, transport)
    assert current_of(device) == f"releases/{second}"


def test_rollback_to_a_damaged_release_is_refused(device: Device, bundle: Path) -> None:
    first = push_to(device, with_file(bundle, b"1"))
    second = push_to(device, with_file(bundle, b"2"))
    (Path(first.path) / "files" / "a file.bin").write_bytes(b"?")
    with (
        connect(device) as transport,
        pytest.raises(RemoteCommandError, match="not whole"),
    ):
        switch_back("tiny", device, transport)
    assert current_of(device) == f"releases/{second.release}"


def test_rollback_to_a_release_whose_manifest_was_altered_is_refused(
    device: Device, bundle: Path
) -> None:
    first = push_to(device, with_file(bundle, b"1"))
    push_to(device, with_file(bundle, b"2"))
    manifest = Path(first.path) / MANIFEST
    manifest.write_bytes(manifest.read_bytes() + b" ")
    with connect(device) as transport, pytest.raises(RemoteCommandError, match="not whole"):
        switch_back("tiny", device, transport)


def test_switch_makes_a_staged_release_current_and_keeps_what_is_to_be_kept(
    device: Device, bundle: Path
) -> None:
    first = push_to(device, with_file(bundle, b"1"))
    entry = device.entry.model_copy(update={"keep_releases": 1})
    single = Device(device.name, entry)
    staged = push_to(single, with_file(bundle, b"2"), switch=False)
    assert visible(device) == sorted([first.release, staged.release])
    with connect(single) as transport:
        done = switch_release(staged, "tiny", single, transport)
    assert (done.release, done.switched_from) == (staged.release, first.release)
    assert current_of(device) == f"releases/{staged.release}"
    assert visible(device) == [staged.release]


def test_history_is_a_chain(device: Device, bundle: Path) -> None:
    first, second = (push_to(device, with_file(bundle, bytes([n]))).release for n in range(2))
    with connect(device) as transport:
        switch_back("tiny", device, transport)
    lines = (project(device) / "history.jsonl").read_bytes().splitlines(keepends=True)
    records = [json.loads(line) for line in lines]
    assert [(one["action"], one["release"], one["from"]) for one in records] == [
        ("push", first, None),
        ("switch", first, None),
        ("push", second, None),
        ("switch", second, first),
        ("rollback", first, second),
    ]
    before = ["", *(hashlib.sha256(line).hexdigest() for line in lines[:-1])]
    assert [one["previous"] for one in records] == before


def test_history_when_it_cannot_be_written_nothing_is_switched(
    device: Device, bundle: Path
) -> None:
    first = push_to(device, with_file(bundle, b"1")).release
    history = project(device) / "history.jsonl"
    history.unlink()
    history.mkdir()
    with pytest.raises(RemoteCommandError, match=r"Is a directory: .*/tiny/history\.jsonl"):
        push_to(device, with_file(bundle, b"2"))
    assert current_of(device) == f"releases/{first}"
    history.rmdir()
    second = push_to(device, with_file(bundle, b"2")).release
    assert current_of(device) == f"releases/{second}"
    assert sorted(path.name for path in project(device).iterdir()) == [
        *(".lock", "chunks", "current", "history.jsonl", "releases")
    ]


def test_what_broken_pushes_left_is_removed(device: Device, bundle: Path) -> None:
    releases = project(device) / "releases"
    (releases / ".partial-old" / "models").mkdir(parents=True)
    release = push_to(device, bundle).release
    assert names(releases) == [release]


def test_partial_of_a_push_that_still_runs_is_kept(bundle: Path, tmp_path: Path) -> None:
    root = str(tmp_path / "root")
    device = Device("here", LocalEntry(transport="local", target="linux-x86-64", root=root))
    partial = project(device) / "releases" / ".partial-slow"
    partial.mkdir(parents=True)
    os.utime(partial, (0, 0))
    handle = os.open(partial, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    push_to(device, bundle)
    os.close(handle)
    assert partial.is_dir()


@pytest.mark.skipif(not can_mount(), reason="needs to make a file system")
def test_what_a_dead_push_left_on_a_full_disk_makes_room_for_the_next(
    bundle: Path, tmp_path: Path
) -> None:
    """The folder of a push that lives stays, however full the disk is."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", disk], check=True)
    try:
        root = str(disk / "root")
        device = Device("here", LocalEntry(transport="local", target="linux-x86-64", root=root))
        first = push_to(device, bundle).release
        releases = project(device) / "releases"
        left = releases / ".partial-0123456789abcdef-dead"
        left.mkdir()
        (left / "model").write_bytes(bytes(3 << 20))
        large = with_file(bundle, random.Random(1).randbytes(2 << 20))
        handle = os.open(left, os.O_RDONLY)
        fcntl.flock(handle, fcntl.LOCK_EX)
        with pytest.raises(DeviceError, match="no space left on the device"):
            push_to(device, large)
        os.close(handle)
        assert left.exists()
        second = push_to(device, large).release
        assert names(releases) == sorted([first, second])
    finally:
        subprocess.run(["umount", disk], check=True)


def test_login_that_prints_is_named(
    server: LoopbackServer, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = server.start
    monkeypatch.setattr(server, "start", lambda command: start(f"echo Welcome; {command}"))
    with pytest.raises(DeviceError, match="Welcome") as caught:
        push_to(ssh_device(server, root=str(tmp_path / "root")), bundle)
    assert "bashrc" in caught.value.hint


def test_root_that_cannot_be_written_is_explained(
    server: LoopbackServer, bundle: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    device = ssh_device(server, root=str(tmp_path / "file"))
    with pytest.raises(RemoteCommandError, match=r"Not a directory|File exists"):
        push_to(device, bundle)


AGENT_FOLDER = find_ondevice_dir() / "agent"
AGENT = (AGENT_FOLDER / "edgepack_agent.py").read_text(encoding="utf-8")
# The same program on a disk without space: too little at the start, or none while files are made.
FULL_DISKS = {
    "at the start": ("space.f_bavail * space.f_frsize", "1000"),
    "in between": (
        "done += os.pwrite(handle, data[done:], place.offset + done)",
        'raise OSError(errno.ENOSPC, "No space left on device")',
    ),
    "of inodes": (
        "if space.f_files and new > space.f_favail",
        "if new > os.O_RDONLY",
    ),
}


@pytest.mark.parametrize("case", slow_after(2, FULL_DISKS))
def test_full_disk_is_named_and_leaves_no_release(
    device: Device, bundle: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, case: str
) -> None:
    full = AGENT.replace(*FULL_DISKS[case])
    assert full != AGENT
    shutil.copytree(AGENT_FOLDER, tmp_path / "agent")
    (tmp_path / "agent/edgepack_agent.py").write_text(full)
    monkeypatch.setattr("edgepack.devices.programs.find_ondevice_dir", lambda: tmp_path)
    with pytest.raises(DeviceError, match="no space left on the device") as caught:
        push_to(device, bundle)
    assert "'root' in" in caught.value.hint
    assert visible(device) == []
    monkeypatch.undo()
    assert tree(Path(push_to(device, bundle).path)) == tree(bundle)


def agent(root: Path, digest: str, stream: bytes) -> subprocess.CompletedProcess[bytes]:
    argv = [
        sys.executable,
        "-BEsS",
        str(AGENT_FOLDER / "edgepack_agent.py"),
        "push",
        str(root),
        "tiny",
        digest,
        "-",
        "switch",
        "2",
        "stdin",
        "me@host",
    ]
    return subprocess.run(argv, input=stream, capture_output=True, timeout=60, check=False)


def announced(path: str = "a", **changes: object) -> tuple[str, bytes]:
    """Return the digest and the header of a bundle of one file, whose content is ``xy``."""
    content = {"sha256": hashlib.sha256(b"xy").hexdigest(), "size_bytes": 2, "mode": "644"}
    manifest = json.dumps({"files": [{"path": path, **content}]})
    header = {
        "manifest": manifest,
        "signature": None,
        "chunks": [[hashlib.sha256(b"xy").hexdigest(), 2]],
        "files": {path: [0]},
        **changes,
    }
    document = json.dumps(header).encode()
    return hashlib.sha256(manifest.encode()).hexdigest(), b"%d\n" % len(document) + document


@pytest.mark.parametrize(
    ("header", "content", "problem"),
    [
        (announced("../out"), b"xy", "leaves the bundle"),
        (announced("/out"), b"xy", "leaves the bundle"),
        (announced("b//c"), b"xy", "leaves the bundle"),
        (announced(), b"xz", "hash of a chunk is wrong"),
        (announced(), b"x", "in the middle of a chunk"),
        (announced(files={"a": [0], "b": [0]}), b"xy", "other files than the manifest"),
        (announced(files={}), b"xy", "the header cannot be read"),
        (announced(files={"a": [1]}), b"xy", "the header cannot be read"),
        (announced(files={"a": [0, 0]}), b"xy", "not as long as the file"),
        (announced(chunks=[["00", 2]]), b"xy", "hash of a chunk is wrong"),
        (announced(chunks=[["00", 3], ["01", -1]], files={"a": [0, 1]}), b"", "has no bytes"),
        (
            announced(chunks=[[hashlib.sha256(b"xz").hexdigest(), 2]]),
            b"xz",
            "hash of 'a' is wrong",
        ),
        (announced(manifest='{"files": []}'), b"xy", "not the one that was announced"),
        ((announced()[0], b"9999999999\n"), b"", "does not begin with a header"),
        ((announced()[0], b"tar"), b"", "does not begin with a header"),
        ((announced()[0], b"20\n{}"), b"", "in the middle of the header"),
        ((announced()[0], b"2\n[]"), b"", "the header cannot be read"),
    ],
)
def test_agent_refuses_what_was_not_announced(
    tmp_path: Path, header: tuple[str, bytes], content: bytes, problem: str
) -> None:
    digest, document = header
    result = agent(tmp_path / "root", digest, document + content)
    assert (result.returncode, problem in result.stderr.decode()) == (2, True), result.stderr
    releases = tmp_path / "root" / "tiny" / "releases"
    assert [name for name in names(releases) if not name.startswith(".partial-")] == []
    assert names(tmp_path) in ([], ["root"])


def test_agent_takes_what_was_announced(tmp_path: Path) -> None:
    digest, document = announced()
    result = agent(tmp_path / "root", digest, document + b"xy")
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "root" / "tiny" / "current" / "a").read_bytes() == b"xy"


def test_bundle_when_several_devices_get_it_is_hashed_and_cut_once(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[str] = []
    cut: list[str] = []
    check_file, cut_file = reading._check_file, client.cut_file
    monkeypatch.setattr(
        reading, "_check_file", lambda *a: (hashed.append(a[0].name), check_file(*a))
    )
    monkeypatch.setattr(client, "cut_file", lambda path: (cut.append(path.name), cut_file(path))[1])
    for name in ("a", "b", "c"):
        entry = LocalEntry(transport="local", target="linux-x86-64", root=str(tmp_path / name))
        push_to(Device(name, entry), bundle)
    files = sorted(path.name for path in bundle.rglob("*") if path.is_file())
    assert sorted(hashed) == sorted(cut) == [name for name in files if MANIFEST not in name]


def test_bundle_when_it_changes_between_two_devices_is_refused_for_the_second(
    bundle: Path, tmp_path: Path
) -> None:
    first, second = (
        Device(
            name, LocalEntry(transport="local", target="linux-x86-64", root=str(tmp_path / name))
        )
        for name in ("a", "b")
    )
    push_to(first, bundle)
    model = bundle / "models" / "cpu-fp32.onnx"
    times, content = model.stat(), bytearray(model.read_bytes())
    content[-1] ^= 1
    model.write_bytes(content)
    os.utime(model, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(BundleError, match=r"cpu-fp32\.onnx"):
        push_to(second, bundle)
    assert not (project(second) / "current").exists()

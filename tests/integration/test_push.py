"""Pushing a bundle: all of it or none, whatever breaks on the way."""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from edgepack.bundle import MANIFEST
from edgepack.demo_server import LoopbackServer
from edgepack.devices import Device, LocalEntry, PushedRelease, connect, push
from edgepack.errors import BundleError, DeviceError, RemoteCommandError
from edgepack.resources import harness_dir
from loopback import CuttingProxy, ssh_device, wait_until
from tiny_bundle import change_manifest, write_tiny_bundle


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_tiny_bundle(tmp_path / "bundle")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LoopbackServer]:
    with LoopbackServer(tmp_path / "server") as running:
        yield running


@pytest.fixture(params=["local", "ssh"])
def device(request: pytest.FixtureRequest, tmp_path: Path) -> Device:
    root = str(tmp_path / "root")
    if request.param == "local":
        return Device("here", LocalEntry(transport="local", target="linux-x86-64", root=root))
    return ssh_device(request.getfixturevalue("server"), root=root)


def push_to(device: Device, bundle: Path, *, switch: bool = True) -> PushedRelease:
    with connect(device) as transport:
        return push(bundle, device, transport, switch=switch)


def tree(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


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
    with pytest.raises(DeviceError, match=r"is for raspberry-pi, the device \w+ is a") as caught:
        push_to(device, bundle)
    assert f"edgepack build --target {device.target}" in caught.value.hint
    assert not project(device).exists()


def test_archive_is_not_taken_for_a_bundle(device: Device, tmp_path: Path) -> None:
    (tmp_path / "bundle.tar.gz").write_bytes(b"packed")
    with pytest.raises(BundleError, match="is a file") as caught:
        push_to(device, tmp_path / "bundle.tar.gz")
    assert "not its archive" in caught.value.hint


def test_home_is_expanded_on_the_device(server: LoopbackServer, bundle: Path) -> None:
    pushed = push_to(ssh_device(server), bundle)
    assert Path(pushed.path).is_relative_to(server.home / ".local/share/edgepack/tiny/releases")


@pytest.mark.parametrize("cut_after_bytes", [6_000, 60_000, 2_000_000])
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
    releases = project(device) / "releases"
    assert wait_until(lambda: names(releases) == [first.release])
    assert current_of(device) == f"releases/{first.release}"
    assert tree(Path(first.path)) == tree(bundle)
    assert Path(push_to(device, large).path).is_dir()


def test_partials_of_old_crashes_are_removed_and_young_ones_kept(
    device: Device, bundle: Path
) -> None:
    releases = project(device) / "releases"
    for name in (".partial-old", ".partial-young"):
        (releases / name).mkdir(parents=True)
    long_ago = time.time() - 7200
    os.utime(releases / ".partial-old", (long_ago, long_ago))
    release = push_to(device, bundle).release
    assert names(releases) == [".partial-young", release]


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


RECEIVER = (harness_dir() / "edgepack_receiver.py").read_text(encoding="utf-8")
# The same program on a disk without space: every write of a file's content fails.
FULL_DISK = RECEIVER.replace(
    "file.write(chunk)", 'raise OSError(errno.ENOSPC, "No space left on device")'
)


def test_full_disk_is_named_and_leaves_nothing(
    device: Device, bundle: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert FULL_DISK != RECEIVER
    (tmp_path / "harness").mkdir()
    for path in harness_dir().glob("*.py"):
        (tmp_path / "harness" / path.name).write_bytes(path.read_bytes())
    (tmp_path / "harness" / "edgepack_receiver.py").write_text(FULL_DISK)
    monkeypatch.setattr("edgepack.devices.pushing.harness_dir", lambda: tmp_path / "harness")
    with pytest.raises(DeviceError, match="no space left on the device") as caught:
        push_to(device, bundle)
    assert "'root' in" in caught.value.hint
    assert names(project(device) / "releases") == []


def receive(root: Path, digest: str, stream: bytes) -> subprocess.CompletedProcess[bytes]:
    argv = [sys.executable, "-IS", "-c", RECEIVER, str(root), "tiny", digest, "switch"]
    return subprocess.run(argv, input=stream, capture_output=True, timeout=60, check=False)


def archive(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as file:
        for info, content in members:
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def link(name: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
    return info


MANIFEST_TEXT = (
    b'{"files": [{"path": "../out", "sha256": "", "size_bytes": 1, "mode": "644"},'
    b' {"path": "a", "sha256": "00", "size_bytes": 1, "mode": "644"}]}'
)
DIGEST = hashlib.sha256(MANIFEST_TEXT).hexdigest()
HEAD = (tarfile.TarInfo(MANIFEST), MANIFEST_TEXT)


@pytest.mark.parametrize(
    ("members", "problem"),
    [
        ([HEAD, (tarfile.TarInfo("../out"), b"x")], "leaves the bundle"),
        ([HEAD, (tarfile.TarInfo("/out"), b"x")], "not in the manifest"),
        ([HEAD, (link("a"), b"")], "not a plain file"),
        ([HEAD, (tarfile.TarInfo("b"), b"x")], "not in the manifest"),
        ([HEAD, HEAD], "came twice"),
        ([HEAD, (tarfile.TarInfo("a"), b"x")], "hash of 'a' is wrong"),
        ([HEAD], "ends before"),
        ([(tarfile.TarInfo(MANIFEST), b"{}")], "not the one that was announced"),
        ([(tarfile.TarInfo("a"), b"x")], "not in the manifest"),
    ],
)
def test_receiver_refuses_what_was_not_announced(
    tmp_path: Path, members: list[tuple[tarfile.TarInfo, bytes]], problem: str
) -> None:
    result = receive(tmp_path / "root", DIGEST, archive(*members))
    assert (result.returncode, problem in result.stderr.decode()) == (2, True), result.stderr
    assert names(tmp_path / "root" / "tiny" / "releases") == []
    assert names(tmp_path) == ["root"]


@pytest.mark.parametrize("length", [0, 1, 511, 700, 1500])
def test_receiver_refuses_a_truncated_stream(tmp_path: Path, length: int) -> None:
    stream = archive(HEAD, (tarfile.TarInfo("a"), b"x"))[:length]
    result = receive(tmp_path / "root", DIGEST, stream)
    assert result.returncode == 2, result.stderr
    assert names(tmp_path / "root" / "tiny" / "releases") == []

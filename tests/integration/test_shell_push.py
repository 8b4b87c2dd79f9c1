"""Pushing to a device that has a shell, tar and sha256sum, and no Python."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from edgepack.bundle import MANIFEST
from edgepack.bundle.manifest import MANIFEST_SIGNATURE
from edgepack.demo_server import LoopbackServer
from edgepack.devices import Device, PushedRelease, connect, push, rollback
from edgepack.devices.commands import command_line
from edgepack.errors import DeviceError, RemoteCommandError
from edgepack.resources import harness_dir
from loopback import CuttingProxy, ssh_device
from tiny_bundle import change_manifest, write_tiny_bundle

PROGRAMS = (
    *("awk", "cat", "chmod", "cp", "cut", "date", "df", "env", "find", "grep", "head", "ln", "ls"),
    *("mkdir", "mv", "printf", "readlink", "rm", "rmdir", "sed", "sh", "sha256sum", "sort"),
    *("sync", "tail", "tar"),
)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackServer]:
    """A server whose commands find a few programs, and no Python."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in PROGRAMS:
        if (found := shutil.which(name)) is not None:
            (folder / name).symlink_to(os.path.realpath(found))
    with LoopbackServer(tmp_path / "server") as running:
        start = running.start
        monkeypatch.setattr(running, "start", lambda line: start(f"PATH={folder}; {line}"))
        yield running


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_tiny_bundle(tmp_path / "bundle")


def with_file(bundle: Path, content: bytes, mode: str = "644") -> Path:
    (bundle / "files").mkdir(exist_ok=True)
    path = bundle / "files" / "a file.bin"
    path.write_bytes(content)
    path.chmod(int(mode, 8))
    entry = {
        "path": "files/a file.bin",
        "sha256": hashlib.sha256(content).hexdigest(),
        "size_bytes": len(content),
        "mode": mode,
        "role": "file",
    }

    def replace(manifest: dict[str, Any]) -> None:
        others = [one for one in manifest["files"] if one["path"] != entry["path"]]
        manifest["files"] = [*others, entry]

    change_manifest(bundle, replace)
    return bundle


def push_to(device: Device, bundle: Path, *, switch: bool = True) -> PushedRelease:
    with connect(device) as transport:
        return push(bundle, device, transport, switch=switch)


def tree(folder: Path) -> dict[str, tuple[bytes, bool]]:
    return {
        str(path.relative_to(folder)): (path.read_bytes(), os.access(path, os.X_OK))
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def releases(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "tiny" / "releases").iterdir())


def test_agent_fits_a_command_line_of_dropbear() -> None:
    # MAX_CMD_LEN of dropbear's sysoptions.h is 9000.
    source = (harness_dir() / "edgepack_agent.sh").read_text(encoding="utf-8")
    assert len(command_line(["env", "sh", "-c", source, "sh"])) < 8500


def test_bundle_without_python_is_pushed_linked_and_kept(
    server: LoopbackServer, bundle: Path, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    device = ssh_device(server, root=str(root))
    first = push_to(device, with_file(bundle, b"1", "755"))
    assert tree(Path(first.path)) == tree(bundle)
    assert (root / "tiny" / "current").readlink() == Path("releases") / first.release
    again = push_to(device, bundle)
    assert (again.already_there, again.bytes_sent, again.switched_from) == (True, 0, first.release)
    before = tree(Path(first.path))
    other_mode = push_to(device, with_file(bundle, b"1", "644"))
    assert tree(Path(other_mode.path)) == tree(bundle)
    assert tree(Path(first.path)) == before
    second = push_to(device, with_file(bundle, b"2"))
    assert tree(Path(second.path)) == tree(bundle)
    assert second.bytes_sent < first.bytes_sent // 2
    name = "models/cpu-fp32.onnx"
    assert (Path(other_mode.path) / name).samefile(Path(second.path) / name)
    staged = push_to(device, with_file(bundle, b"3"), switch=False)
    assert (root / "tiny" / "current").readlink().name == second.release
    assert releases(root) == sorted([second.release, staged.release])
    lines = (root / "tiny" / "history.jsonl").read_bytes().splitlines(keepends=True)
    before = ["", *(hashlib.sha256(line).hexdigest() for line in lines[:-1])]
    assert [json.loads(line)["previous"] for line in lines] == before


def test_signature_that_comes_later_is_sent_without_python(
    server: LoopbackServer, bundle: Path, tmp_path: Path
) -> None:
    device = ssh_device(server, root=str(tmp_path / "root"))
    first = push_to(device, bundle)
    for text in (b"one signature", b"another signature"):
        (bundle / MANIFEST_SIGNATURE).write_bytes(text)
        signed = push_to(device, bundle)
        assert signed.bytes_sent < first.bytes_sent // 2
        assert tree(Path(first.path)) == tree(bundle)
    assert push_to(device, bundle).already_there
    assert releases(tmp_path / "root") == [first.release]


def test_rollback_without_python(server: LoopbackServer, bundle: Path, tmp_path: Path) -> None:
    device = ssh_device(server, root=str(tmp_path / "root"))
    first, second = (push_to(device, with_file(bundle, bytes([n]))).release for n in range(2))
    with connect(device) as transport:
        done = rollback("tiny", device, transport)
        assert (done.release, done.switched_from) == (first, second)
        with pytest.raises(RemoteCommandError, match=f"no release was current before {first}"):
            rollback("tiny", device, transport)
        assert rollback("tiny", device, transport, release=second).release == second
        with pytest.raises(RemoteCommandError, match="is not here any more"):
            rollback("tiny", device, transport, release="0" * 16)
        with pytest.raises(RemoteCommandError, match="no release of other is current"):
            rollback("other", device, transport)


def test_release_damaged_on_the_device_is_sent_again(
    server: LoopbackServer, bundle: Path, tmp_path: Path
) -> None:
    device = ssh_device(server, root=str(tmp_path / "root"))
    first = push_to(device, bundle)
    (Path(first.path) / "models" / "cpu-fp32.onnx").write_bytes(b"damaged")
    again = push_to(device, bundle)
    assert not again.already_there
    assert tree(Path(again.path)) == tree(bundle)
    assert releases(tmp_path / "root") == [again.release]


@pytest.mark.parametrize("cut_after_bytes", [20_000, 2_000_000])
def test_connection_lost_without_python_leaves_everything_as_it_was(
    server: LoopbackServer, bundle: Path, tmp_path: Path, cut_after_bytes: int
) -> None:
    root = tmp_path / "root"
    device = ssh_device(server, root=str(root))
    first = push_to(device, bundle)
    large = write_tiny_bundle(tmp_path / "large", size=500)
    with CuttingProxy(server.port, cut_after_bytes) as proxy, pytest.raises(DeviceError):
        push_to(ssh_device(server, root=str(root), port=proxy.port), large)
    assert (root / "tiny" / "current").readlink().name == first.release
    assert tree(Path(first.path)) == tree(bundle)
    second = push_to(device, large)
    assert tree(Path(second.path)) == tree(large)


def test_bundle_that_was_altered_on_the_way_is_refused(
    server: LoopbackServer, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "root"
    device = ssh_device(server, root=str(root))
    weights = with_file(bundle, b"weights") / "files" / "a file.bin"
    from edgepack.devices import shell_pushing

    chunks = shell_pushing.file_chunks
    altered = lambda path: iter([b"Weights"]) if path == weights else chunks(path)  # noqa: E731
    monkeypatch.setattr(shell_pushing, "file_chunks", altered)
    with pytest.raises(RemoteCommandError, match="hash of a file is wrong"):
        push_to(device, bundle)
    assert releases(root) == []
    assert not (root / "tiny" / "current").exists()
    assert MANIFEST in tree(bundle)

"""An archive unpacks to the bundle that it was made from, and to nothing anywhere else."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from edgepack.bundle.archive import unpack_archive, write_archive
from edgepack.errors import BundleError


def write_entries(path: Path, entries: Sequence[tuple[str, bytes, bytes]]) -> Path:
    """Write an archive of entries: name, type, content or the target of a link."""
    with tarfile.open(path, "w:gz") as tar:
        for name, kind, content in entries:
            entry = tarfile.TarInfo(name)
            entry.type = kind
            if kind == tarfile.REGTYPE:
                entry.size = len(content)
            else:
                entry.linkname = content.decode()
            tar.addfile(entry, io.BytesIO(content))
    return path


def test_unpack_gives_back_what_was_written(tmp_path: Path) -> None:
    bundle = tmp_path / "digits-1.0.0-host"
    (bundle / "models").mkdir(parents=True)
    (bundle / "models" / "a.onnx").write_bytes(bytes(range(256)) * 1000)
    (bundle / "run.sh").write_text("#!/bin/sh\n")
    (bundle / "run.sh").chmod(0o755)
    write_archive(bundle, tmp_path / "bundle.tar.gz", root=bundle.name)
    (tmp_path / "out").mkdir()
    found = unpack_archive(tmp_path / "bundle.tar.gz", tmp_path / "out")
    assert found.name == bundle.name
    assert (found / "models" / "a.onnx").read_bytes() == bytes(range(256)) * 1000
    assert [(found / name).stat().st_mode & 0o777 for name in ("run.sh", "models/a.onnx")] == [
        0o755,
        0o644,
    ]


def test_unpack_takes_what_tar_writes_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "bundle" / "empty").mkdir(parents=True)
    (tmp_path / "bundle" / "file").write_text("x")
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "bundle", "bundle")
    (tmp_path / "out").mkdir()
    found = unpack_archive(tmp_path / "a.tar.gz", tmp_path / "out")
    assert sorted(path.name for path in found.iterdir()) == ["empty", "file"]


@pytest.mark.parametrize(
    ("name", "kind", "content"),
    [
        ("../escaped", tarfile.REGTYPE, b"x"),
        ("bundle/../../escaped", tarfile.REGTYPE, b"x"),
        ("/tmp/edgepack-escaped", tarfile.REGTYPE, b"x"),
        ("bundle/link", tarfile.SYMTYPE, b"/etc/passwd"),
        ("bundle/link", tarfile.LNKTYPE, b"/etc/passwd"),
        ("bundle/pipe", tarfile.FIFOTYPE, b""),
        ("bundle/device", tarfile.CHRTYPE, b""),
    ],
)
def test_unpack_refuses_what_is_no_file_in_the_folder(
    tmp_path: Path, name: str, kind: bytes, content: bytes
) -> None:
    archive = write_entries(tmp_path / "a.tar.gz", [(name, kind, content)])
    (tmp_path / "out").mkdir()
    with pytest.raises(BundleError, match="no file in a bundle's folder") as caught:
        unpack_archive(archive, tmp_path / "out")
    assert repr(name) in caught.value.problem
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a.tar.gz", "out"]


@pytest.mark.parametrize("names", [[], ["one/a", "two/b"], ["loose"], ["one/a", "one/a"]])
def test_unpack_refuses_what_is_not_one_bundle(tmp_path: Path, names: list[str]) -> None:
    entries = [(name, tarfile.REGTYPE, b"x") for name in names]
    archive = write_entries(tmp_path / "a.tar.gz", entries)
    (tmp_path / "out").mkdir()
    with pytest.raises(BundleError, match=r"does not hold one bundle|cannot unpack"):
        unpack_archive(archive, tmp_path / "out")


def test_unpack_refuses_a_file_that_is_cut_off(tmp_path: Path) -> None:
    whole = write_entries(tmp_path / "a.tar.gz", [("b/c", tarfile.REGTYPE, bytes(50_000))])
    whole.write_bytes(whole.read_bytes()[:-20])
    (tmp_path / "out").mkdir()
    with pytest.raises(BundleError, match="cannot unpack"):
        unpack_archive(whole, tmp_path / "out")

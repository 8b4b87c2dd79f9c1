"""What decides on a device whether a release is there."""

import json
import shutil
from pathlib import Path

import pytest
from edgepack.ondevice.agent import edgepack_releases as releases


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """Return a release of two files and its manifest."""
    entries = []
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(name.encode())
        digest = releases.hash_file(str(tmp_path / name))
        entries.append({"path": name, "sha256": digest, "size_bytes": 1, "mode": "644"})
    (tmp_path / releases.MANIFEST).write_text(json.dumps({"files": entries}))
    return tmp_path


def hash_manifest(release: Path) -> str:
    return releases.hash_file(str(release / releases.MANIFEST))


def test_release_when_every_byte_is_there_is_whole(release):
    assert releases.is_whole(str(release), hash_manifest(release))


@pytest.mark.parametrize("damage", ["a", releases.MANIFEST])
def test_release_when_a_file_is_another_or_missing_is_not_whole(release, damage):
    digest = hash_manifest(release)
    (release / damage).write_bytes(b"other")
    assert not releases.is_whole(str(release), digest)
    (release / damage).unlink()
    assert not releases.is_whole(str(release), digest)


@pytest.mark.parametrize("at", ["a", "b", releases.MANIFEST])
def test_release_when_somebody_removes_it_meanwhile_is_not_whole(release, at, monkeypatch):
    digest, hash_file = hash_manifest(release), releases.hash_file

    def remove_and_hash(path: str) -> str:
        if Path(path).name == at:
            shutil.rmtree(release)
        return hash_file(path)

    monkeypatch.setattr(releases, "hash_file", remove_and_hash)
    assert not releases.is_whole(str(release), digest)

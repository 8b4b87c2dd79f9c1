"""Where a team's cache is."""

from __future__ import annotations

import errno
import sys

import pytest
from edgepack.base.progress import Silent
from edgepack.builder import cache
from edgepack.builder.cache import StepCache
from edgepack.builder.shared import SharedCache, open_shared_cache, using
from edgepack.errors import ToolError, UsageError


@pytest.mark.parametrize(
    "url", ["team/builds", "https://team", "s3://", "s3://key:secret@team/x", "s3://team?x=1"]
)
def test_cache_when_the_place_is_none_says_how_to_write_it(url, monkeypatch):
    monkeypatch.setenv("EDGEPACK_CACHE_STORE", url)
    with pytest.raises(UsageError) as raised:
        open_shared_cache()
    assert "s3://bucket/prefix" in raised.value.hint
    assert "secret" not in str(raised.value)


def test_cache_when_its_library_is_missing_says_what_to_install(monkeypatch):
    monkeypatch.setenv("EDGEPACK_CACHE_STORE", "s3://team")
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(ToolError) as raised:
        open_shared_cache()
    assert "edgepack[s3]" in raised.value.hint


@pytest.fixture
def shared():
    """A store that gives any entry."""
    found = SharedCache("s3://team")
    found.find = lambda key: [b"bytes"]
    return found


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_entry_when_the_disk_is_full_is_passed_over(code, shared, tmp_path, monkeypatch):
    def write(key, chunks, folder, secret):
        (folder / "half").write_bytes(b"half")
        raise OSError(code, "no place")

    monkeypatch.setattr(cache, "write_entry", write)
    lines = []
    shared.tell = lines.append
    ours = StepCache(tmp_path / "cache", shared)
    assert ours.fetch("1" * 64) is None
    assert ours.fetch("2" * 64) is None
    assert list(ours.folder.iterdir()) == []
    assert len(lines) == 1
    assert "no place" in lines[0]
    assert "made here" in lines[0]


def test_store_when_several_builds_use_it_is_waited_for_once(shared):
    told, waited = [], []
    progress = Silent()
    progress.note = told.append
    shared.finish = lambda: waited.append(shared.fetched)
    with using(shared, progress):
        for _ in range(3):
            with using(shared, Silent()):
                shared.fetched += 2
        assert waited == []
    assert waited == [6]
    assert told == ["6 steps from s3://team"]
    with using(shared, progress):
        pass
    assert waited == [6, 6]

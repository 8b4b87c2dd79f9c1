"""Entries of the team's cache: whatever bytes a store gives, only true ones are taken."""

from __future__ import annotations

import json
import sys

import pytest
from edgepack.builder.shared import DamagedError, SharedCache, open_shared_cache
from edgepack.errors import ToolError, UsageError

KEY = "1" * 64


@pytest.fixture
def entry(tmp_path):
    paths = tmp_path / "a.txt", tmp_path / "b.bin"
    for path, data in zip(paths, (b"alpha", b""), strict=True):
        path.write_bytes(data)
    return paths


def read(data, tmp_path, secret=b"", pieces=7):
    chunks = [data[at : at + pieces] for at in range(0, len(data), pieces)]
    out = tmp_path / "out"
    out.mkdir()
    SharedCache("s3://team", secret).write_entry(KEY, chunks, out)
    return {path.name: path.read_bytes() for path in out.iterdir()}


@pytest.mark.parametrize("pieces", [1, 7, 10_000])
def test_entry_when_it_arrives_in_pieces_is_as_it_was_sent(pieces, entry, tmp_path):
    data = SharedCache("s3://team", b"s").pack(KEY, entry)
    assert read(data, tmp_path, b"s", pieces) == {"a.txt": b"alpha", "b.bin": b""}


def test_entry_when_any_byte_is_another_is_refused(entry, tmp_path):
    data = SharedCache("s3://team", b"s").pack(KEY, entry)
    for at in range(len(data)):
        changed = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        (tmp_path / str(at)).mkdir()
        with pytest.raises(DamagedError):
            read(changed, tmp_path / str(at), b"s")


def test_entry_when_it_ends_anywhere_is_refused(entry, tmp_path):
    data = SharedCache("s3://team").pack(KEY, entry)
    for end in range(len(data)):
        (tmp_path / str(end)).mkdir()
        with pytest.raises(DamagedError):
            read(data[:end], tmp_path / str(end))


def change(entry, **changed):
    line, rest = SharedCache("s3://team").pack(KEY, entry).split(b"\n", 1)
    return json.dumps({**json.loads(line), **changed}).encode() + b"\n" + rest


HOSTILE = {
    "another step's": {"key": "2" * 64},
    "a path": {"files": {"../a": "0"}, "sizes": {"../a": 5}},
    "a hidden name": {"files": {".hidden": "0"}, "sizes": {".hidden": 5}},
    "the index": {"files": {"artifact.json": "0"}, "sizes": {"artifact.json": 5}},
    "no size": {"sizes": {}},
    "a size below zero": {"sizes": {"a.txt": -1, "b.bin": 6}},
    "a size that is none": {"sizes": {"a.txt": "5", "b.bin": 0}},
    "files that are none": {"files": 7},
}


@pytest.mark.parametrize("what", HOSTILE)
def test_entry_when_its_first_line_is_hostile_is_refused(what, entry, tmp_path):
    with pytest.raises(DamagedError):
        read(change(entry, **HOSTILE[what]), tmp_path)
    assert not (tmp_path / "a").exists()
    assert not list((tmp_path / "out").iterdir()) or "size" in what


@pytest.mark.parametrize("data", [b"", b"\n\n", b"[]\n\n", b"x" * 3_000_000, b"{}\n\n"])
def test_entry_when_it_is_something_else_is_refused(data, tmp_path):
    with pytest.raises(DamagedError):
        read(data, tmp_path, pieces=100_000)


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

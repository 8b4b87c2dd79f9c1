"""Entries as bytes: whatever arrives, only true ones are taken."""

from __future__ import annotations

import json

import pytest
from edgepack.builder.entries import DamagedError, pack_entry, write_entry

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
    write_entry(KEY, chunks, out, secret)
    return {path.name: path.read_bytes() for path in out.iterdir()}


@pytest.mark.parametrize("pieces", [1, 7, 10_000])
def test_entry_when_it_arrives_in_pieces_is_as_it_was_sent(pieces, entry, tmp_path):
    data = pack_entry(KEY, entry, b"s")
    assert read(data, tmp_path, b"s", pieces) == {"a.txt": b"alpha", "b.bin": b""}


def test_entry_when_any_byte_is_another_is_refused(entry, tmp_path):
    data = pack_entry(KEY, entry, b"s")
    for at in range(len(data)):
        changed = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        (tmp_path / str(at)).mkdir()
        with pytest.raises(DamagedError):
            read(changed, tmp_path / str(at), b"s")


def test_entry_when_it_ends_anywhere_is_refused(entry, tmp_path):
    data = pack_entry(KEY, entry)
    for end in range(len(data)):
        (tmp_path / str(end)).mkdir()
        with pytest.raises(DamagedError):
            read(data[:end], tmp_path / str(end))


def test_entry_when_more_follows_is_refused(entry, tmp_path):
    with pytest.raises(DamagedError):
        read(pack_entry(KEY, entry) + b"x", tmp_path)


def change(entry, **changed):
    line, rest = pack_entry(KEY, entry).split(b"\n", 1)
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
    "names that are numbers": {"files": [[1, "h"]], "sizes": [[1, 2]]},
}


@pytest.mark.parametrize("what", HOSTILE)
def test_entry_when_its_first_line_is_hostile_is_refused(what, entry, tmp_path):
    with pytest.raises(DamagedError):
        read(change(entry, **HOSTILE[what]), tmp_path)
    assert not (tmp_path / "a").exists()
    assert not list((tmp_path / "out").iterdir()) or "size" in what


DEEP = b"[" * 200_000 + b"\n\n"


@pytest.mark.parametrize("data", [b"", b"\n\n", b"[]\n\n", b"x" * 3_000_000, b"{}\n\n", DEEP])
def test_entry_when_it_is_something_else_is_refused(data, tmp_path):
    with pytest.raises(DamagedError):
        read(data, tmp_path, pieces=100_000)

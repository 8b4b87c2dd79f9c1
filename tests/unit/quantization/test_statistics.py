"""The file of the statistics: what goes in comes out, and the same goes in as the same bytes."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from edgepack.errors import StepError
from edgepack.quantization.ranges.histogram import Histogram
from edgepack.quantization.ranges.statistics import (
    TensorStatistics,
    read_statistics,
    write_statistics,
)


def of(*values):
    histogram = Histogram()
    histogram.add(np.array(values))
    return histogram.make_statistics()


def some():
    rng = np.random.default_rng(0)
    channels = {
        "channel_low": rng.standard_normal(7).astype(np.float32),
        "channel_high": rng.standard_normal(7).astype(np.float32) + 9,
        "channel_axis": 1,
    }
    return {
        "conv/out:0": dataclasses.replace(of(*rng.standard_normal(1000)), **channels),
        "file": of(*np.maximum(rng.standard_normal(1000), 0)),
        "Größe ∑": of(-3e38, 2.0),
        "zero": of(0.0, 0.0),
        "constant": of(-1.5),
        "tiny": of(1e-45, -1e-40),
        "huge counts": TensorStatistics(0.0, 2.5, np.array([2**60, 0, 3]), 0, 1.0),
    }


def assert_equal(one, other):
    assert one.keys() == other.keys()
    for name in one:
        for field in dataclasses.fields(TensorStatistics):
            a, b = (getattr(tensors[name], field.name) for tensors in (one, other))
            assert np.array_equal(a, b), (name, field.name)
            if isinstance(a, np.ndarray):
                assert a.dtype == b.dtype


def test_statistics_when_written_and_read_are_the_same(tmp_path):
    write_statistics(some(), tmp_path / "s.npz")
    found = read_statistics(tmp_path / "s.npz")
    assert_equal(found, some())
    assert list(found) == sorted(some())


def test_statistics_when_there_are_none_are_written_and_read(tmp_path):
    write_statistics({}, tmp_path / "s.npz")
    assert read_statistics(tmp_path / "s.npz") == {}


def test_statistics_when_tensors_come_in_another_order_are_the_same_bytes(tmp_path):
    write_statistics(some(), tmp_path / "one.npz")
    write_statistics(dict(reversed(some().items())), tmp_path / "other.npz")
    assert (tmp_path / "one.npz").read_bytes() == (tmp_path / "other.npz").read_bytes()


def test_statistics_when_written_at_another_time_are_the_same_bytes(tmp_path, monkeypatch):
    write_statistics(some(), tmp_path / "one.npz")
    monkeypatch.setattr("time.time", lambda: 2e9)
    monkeypatch.setattr("time.localtime", lambda *_: (2033, 5, 18, 3, 33, 20, 2, 138, 0))
    write_statistics(some(), tmp_path / "other.npz")
    assert (tmp_path / "one.npz").read_bytes() == (tmp_path / "other.npz").read_bytes()


def test_statistics_when_read_by_numpy_hold_no_objects(tmp_path):
    write_statistics(some(), tmp_path / "s.npz")
    with np.load(tmp_path / "s.npz", allow_pickle=False) as file:
        assert all(file[name].dtype.kind in "iuf" for name in file.files)


def test_statistics_when_few_bins_are_filled_take_little_room(tmp_path):
    tensors = {f"t{k}": of(-1000.0, 0.0, float(k), 1000.0) for k in range(100)}
    write_statistics(tensors, tmp_path / "s.npz")
    assert sum(len(tensor.counts) for tensor in tensors.values()) > 200_000
    assert (tmp_path / "s.npz").stat().st_size < 5_000


def test_statistics_when_the_file_is_missing_say_so(tmp_path):
    with pytest.raises(StepError, match="cannot read"):
        read_statistics(tmp_path / "none.npz")


def test_statistics_when_the_file_is_damaged_say_so(tmp_path):
    path = tmp_path / "s.npz"
    write_statistics(some(), path)
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 3] ^= 0xFF
    for content in (b"", b"no zip", whole[: len(whole) // 2], bytes(flipped)):
        path.write_bytes(content)
        with pytest.raises(StepError, match="cannot read"):
            read_statistics(path)


def test_statistics_when_an_array_is_missing_say_so(tmp_path):
    np.savez(tmp_path / "s.npz", names=np.frombuffer(b'["x"]', dtype=np.uint8))
    with pytest.raises(StepError, match="cannot read"):
        read_statistics(tmp_path / "s.npz")

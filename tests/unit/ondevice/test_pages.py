"""Files dropped from memory, as mincore tells."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from edgepack.ondevice.harness import edgepack_pages

pytestmark = pytest.mark.skipif(sys.platform == "darwin", reason="macOS cannot drop a file")


def share(path: Path) -> float:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return float(edgepack_pages.measure_resident_share(descriptor))
    finally:
        os.close(descriptor)


def test_drop_when_files_are_in_memory_takes_them_out_and_leaves_them_whole(
    tmp_path: Path,
) -> None:
    path, empty = tmp_path / "model.onnx", tmp_path / "empty"
    content = os.urandom(300_001)
    path.write_bytes(content)
    empty.touch()
    assert share(path) == 1.0
    problem = edgepack_pages.drop([path, empty])
    if problem:  # a file system in memory
        assert share(path) > 0
        pytest.skip(problem)
    assert share(path) == 0.0
    assert path.read_bytes() == content
    assert share(path) == 1.0


def test_drop_when_pages_stay_says_which_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"x" * 10_000)
    monkeypatch.setattr(os, "posix_fadvise", lambda *_: None)
    assert "100% of model.onnx stayed in memory" in edgepack_pages.drop([path])
    assert edgepack_pages.drop([tmp_path / "gone.onnx"]) == (
        "gone.onnx cannot be dropped from memory: No such file or directory"
    )
    monkeypatch.delattr(os, "posix_fadvise")
    assert "no posix_fadvise" in edgepack_pages.drop([path])

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from edgepack.bundle.kept import MOST, Kept, read_stamps


def reader() -> tuple[Kept[Path, str], list[Path]]:
    """Return what reads the files below a folder, and the list of when it did."""
    read: list[Path] = []

    def make(folder: Path) -> str:
        read.append(folder)
        return "".join(path.read_text() for path in sorted(folder.rglob("*")) if path.is_file())

    return Kept(make, read_stamps), read


def test_value_when_nothing_changed_is_not_made_again(tmp_path):
    (tmp_path / "a").write_text("1")
    kept, read = reader()
    assert [kept(tmp_path), kept(tmp_path)] == ["1", "1"]
    assert read == [tmp_path]


def test_value_when_a_file_has_another_content_and_the_same_size_and_time_is_made_again(tmp_path):
    file = tmp_path / "folder" / "a"
    file.parent.mkdir()
    file.write_text("1")
    kept, _ = reader()
    assert kept(tmp_path) == "1"
    before = file.stat()
    file.write_text("2")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert kept(tmp_path) == "2"


@pytest.mark.parametrize("change", ["added", "removed", "mode"])
def test_stamps_when_a_file_comes_goes_or_has_another_mode_differ(tmp_path, change):
    (tmp_path / "a").write_text("1")
    before = read_stamps(tmp_path)
    if change == "added":
        (tmp_path / "b").mkdir()
    elif change == "removed":
        (tmp_path / "a").unlink()
    else:
        (tmp_path / "a").chmod(0o755)
    assert read_stamps(tmp_path) != before


def test_value_when_threads_ask_at_the_same_time_is_made_once(tmp_path):
    going_on, made = threading.Event(), []

    def make(folder: Path) -> int:
        made.append(folder)
        assert going_on.wait(30)
        return len(made)

    kept = Kept(make, read_stamps)
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(kept(tmp_path))) for _ in range(4)]
    for thread in threads:
        thread.start()
    going_on.set()
    for thread in threads:
        thread.join()
    assert found == [1, 1, 1, 1]


def test_error_when_one_is_raised_is_not_kept(tmp_path):
    kept = Kept(lambda path: path.read_text(), read_stamps)
    with pytest.raises(FileNotFoundError):
        kept(tmp_path / "a")
    (tmp_path / "a").write_text("1")
    assert kept(tmp_path / "a") == "1"


def test_values_when_there_are_too_many_are_given_up_from_the_oldest(tmp_path):
    kept, read = reader()
    folders = [tmp_path / str(number) for number in range(MOST + 1)]
    for folder in folders:
        kept(folder)
    kept(folders[-1])
    assert len(read) == MOST + 1
    kept(folders[0])
    assert len(read) == MOST + 2

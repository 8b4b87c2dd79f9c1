"""The file of counters: whole records after crashes, few writes, a bounded size."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from edgepack.base.resources import find_ondevice_dir
from edgepack.ondevice.runtime import edgepack_ring as ring

PROGRAM = find_ondevice_dir() / "runtime/edgepack_ring.py"


@pytest.fixture
def file(tmp_path: Path) -> str:
    return str(tmp_path / "tiny-0123456789abcdef.ring")


class Clock:
    """A clock that the test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, now_s: float) -> None:
        self.now_s = now_s
        monkeypatch.setattr(time, "monotonic", lambda: self.now_s)


def count_up(path: str) -> dict[str, Any]:
    return ring.update(path, lambda before: {"count": before.get("count", 0) + 1})


def read_count(path: str) -> int | None:
    found = ring.read(path)
    return None if found is None else found["count"]


def test_record_when_it_is_changed_often_is_the_newest_and_the_file_stays_small(
    file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch, 1000.0)
    for number in range(1, 4 * ring.SLOTS):
        count_up(file)
        clock.now_s += ring.REFILL_S
        assert read_count(file) == number
        assert Path(file).stat().st_size == ring.SIZE


@pytest.mark.parametrize("seed", range(2))
def test_writes_when_very_many_are_wanted_are_64_in_any_hour(
    file: str, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    clock, draw = Clock(monkeypatch, 5.0), random.Random(seed)
    made: list[float] = []
    while clock.now_s < 3 * 3600:
        try:
            count_up(file)
            made.append(clock.now_s)
        except ring.Later:
            pass
        clock.now_s += draw.choice([0.1, 5, 20])
    in_an_hour = [sum(start <= at < start + 3600 for at in made) for start in made]
    assert 55 < max(in_an_hour) <= 64
    assert read_count(file) == len(made)


def test_writes_when_the_machine_restarts_are_earned_by_its_uptime(
    file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch, 1e6)
    for _ in range(ring.BURST):
        count_up(file)
    with pytest.raises(ring.Later):
        count_up(file)
    clock.now_s = 10.0  # of the next start; a restart earns nothing by itself
    with pytest.raises(ring.Later):
        count_up(file)
    clock.now_s = ring.REFILL_S + 1
    count_up(file)
    assert read_count(file) == ring.BURST + 1


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:100],
        lambda data: bytes(len(data)),
        lambda data: b"\xff" * len(data),
        lambda data: data * 3,
        lambda data: random.Random(1).randbytes(len(data)),
        lambda data: data[: ring.SLOT_BYTES + 30] + b"x" + data[ring.SLOT_BYTES + 31 :],
    ],
    ids=["empty", "short", "zeros", "ones", "long", "random", "one byte"],
)
def test_file_when_it_was_damaged_is_taken_up_again_with_its_size(file: str, damage: Any) -> None:
    count_up(file)
    path = Path(file)
    before = path.read_bytes()
    path.write_bytes(damage(before))
    left = read_count(file)
    assert left == (1 if path.read_bytes()[: len(before)] == before else None)
    count_up(file)
    assert read_count(file) == (left or 0) + 1
    assert path.stat().st_size == ring.SIZE


def test_newest_record_when_its_slot_is_torn_is_the_one_before(file: str) -> None:
    for _ in range(3):
        count_up(file)
    data = Path(file).read_bytes()
    for torn in (data.replace(b'"count":3', b'"count":8'), data.replace(b'"count":3', b"\0" * 9)):
        assert torn != data
        Path(file).write_bytes(torn)
        assert read_count(file) == 2


KILLED = """
import os, signal, sys
sys.path.insert(0, {folder!r})
import edgepack_ring as ring
write = os.pwrite
def write_half(handle, data, place):
    write(handle, data[: len(data) // 2], place)
    os.kill(os.getpid(), signal.SIGKILL)
ring.update({path!r}, lambda before: {{"count": 1, "long": "x" * 5000}})
os.pwrite = write_half
ring.update({path!r}, lambda before: {{"count": 2, "long": "y" * 5000}})
"""


def test_writer_when_it_is_killed_in_mid_write_leaves_the_record_before(file: str) -> None:
    program = KILLED.format(folder=str(PROGRAM.parent), path=file)
    done = subprocess.run([sys.executable, "-c", program], check=False)
    assert done.returncode == -signal.SIGKILL
    assert b"yyyy" in Path(file).read_bytes()
    assert read_count(file) == 1
    count_up(file)
    assert read_count(file) == 2


WRITING = """
import sys, time
sys.path.insert(0, {folder!r})
import edgepack_ring as ring
ring._take_write = lambda budget, now_s: {{"left": 1.0, "at_s": now_s}}
while True:
    record = ring.update({path!r}, lambda before: {{"count": before.get("count", 0) + 1}})
    print(record["count"], flush=True)
"""


@pytest.mark.slow(reason="starts a process for each of many kills")
def test_writers_when_they_are_killed_at_any_moment_lose_nothing_that_was_written(
    file: str,
) -> None:
    draw, said = random.Random(3), 0
    for _ in range(25):
        program = WRITING.format(folder=str(PROGRAM.parent), path=file)
        with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            time.sleep(draw.uniform(0, 0.02))
            writer.kill()
            lines = writer.stdout.read().split(b"\n")
        said = max([said, *(int(line) for line in lines[:-1] if line)])
        found = read_count(file)
        assert found is not None
        assert said <= found
        said = found


def test_disk_when_it_is_full_keeps_the_record_and_says_so(
    file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    count_up(file)

    def refuse(handle: int, data: bytes, place: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", refuse)
    with pytest.raises(OSError, match="No space"):
        count_up(file)
    monkeypatch.undo()
    assert read_count(file) == 1


def test_disk_when_it_takes_half_a_record_keeps_the_one_before(
    file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    count_up(file)
    write, calls = os.pwrite, []

    def write_half(handle: int, data: bytes, place: int) -> int:
        calls.append(place)
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(handle, data[:20], place)

    monkeypatch.setattr(os, "pwrite", write_half)
    with pytest.raises(OSError, match="No space"):
        count_up(file)
    monkeypatch.undo()
    assert read_count(file) == 1


def test_write_when_the_disk_does_not_confirm_it_is_not_made_again(
    file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(handle: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    count_up(file)
    monkeypatch.setattr(os, "fdatasync", fail)
    assert count_up(file)["count"] == 2
    assert read_count(file) == 2


def test_path_when_it_is_no_plain_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "link").symlink_to("file")
    for name in ("pipe", "folder", "link"):
        with pytest.raises(OSError, match=r"plain file|directory|symbolic"):
            count_up(str(tmp_path / name))
    assert (tmp_path / "file").read_bytes() == b""


def test_lock_when_another_holds_it_is_waited_for_shortly(
    file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    count_up(file)
    monkeypatch.setattr(ring, "_LOCK_S", 0.05)
    with Path(file).open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(ring.Later):
            count_up(file)
    assert count_up(file)["count"] == 2


@pytest.mark.parametrize("budget", [None, [], {}, {"left": "x", "at_s": 0}, {"left": 1e9}])
def test_budget_when_it_is_nonsense_allows_no_more_than_others(
    file: str, monkeypatch: pytest.MonkeyPatch, budget: object
) -> None:
    Clock(monkeypatch, 1000.0)
    with monkeypatch.context() as patch:
        patch.setattr(ring, "_take_write", lambda *_: budget)
        count_up(file)
    for _ in range(ring.BURST):
        count_up(file)
    with pytest.raises(ring.Later):
        count_up(file)


def test_program_when_files_are_of_all_kinds_prints_each(tmp_path: Path) -> None:
    ring.update(str(tmp_path / "a-0.ring"), lambda _: {"model": "a"})
    ring.update(str(tmp_path / "b-0.ring"), lambda _: {"model": "b"})
    (tmp_path / "broken.ring").write_bytes(b"x")
    (tmp_path / "link.ring").symlink_to("a-0.ring")
    (tmp_path / "a.prom").write_text("")
    argv = [sys.executable, "-IS", str(PROGRAM), str(tmp_path)]
    found = json.loads(subprocess.run(argv, capture_output=True, check=True).stdout)
    names = {each["name"]: (each["record"] or {}).get("model") for each in found["files"]}
    assert names == {"a-0.ring": "a", "b-0.ring": "b", "broken.ring": None, "link.ring": None}
    found = json.loads(subprocess.run([*argv, "b"], capture_output=True, check=True).stdout)
    assert [each["record"]["model"] for each in found["files"]] == ["b"]
    argv[-1] = str(tmp_path / "nowhere")
    found = json.loads(subprocess.run(argv, capture_output=True, check=True).stdout)
    assert found == {"is_there": False, "files": []}

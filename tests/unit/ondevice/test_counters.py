"""What counters add up, keep apart, leave out, and write for node_exporter."""

from __future__ import annotations

import gc
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from edgepack.ondevice.runtime import edgepack_counters as counters
from edgepack.ondevice.runtime import edgepack_ring as ring
from prometheus_client.parser import text_string_to_metric_families

ABOUT = counters.About("tiny", "1.0.0", "0123456789abcdef", "cpu-fp32", [], has_ranges=True)


class Owner:
    """Stands for a model."""


OWNER = Owner()


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[list[counters.Counters]]:
    made: list[counters.Counters] = []
    yield made
    for one in made:
        one.close()


def open_counters(
    opened: list[counters.Counters],
    folder: Path,
    about: counters.About = ABOUT,
    textfiles: str = "",
) -> counters.Counters:
    opened.append(counters.Counters(str(folder), about, OWNER, (ValueError,), textfiles))
    return opened[-1]


def read(one: counters.Counters) -> dict[str, Any]:
    found = ring.read(one.path)
    assert found is not None
    return found


def take(monkeypatch: pytest.MonkeyPatch, times_ns: list[int]) -> None:
    """Let each of the next calls take such a time."""
    ticks = [tick for took in times_ns for tick in (1000, 1000 + took)]
    monkeypatch.setattr(time, "perf_counter_ns", lambda: ticks.pop(0))


def test_times_when_they_are_at_the_ends_of_buckets_are_counted_inclusively(
    opened: list[counters.Counters], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = open_counters(opened, tmp_path)
    times_ns = [99_999, 100_000, 100_001, 10**10, 10**10 + 1]
    take(monkeypatch, times_ns)
    assert [one.watch(lambda x: x, number) for number in range(5)] == [0, 1, 2, 3, 4]
    one.flush()
    found = read(one)["variants"]["cpu-fp32"]
    assert found == {
        "inferences": 5,
        "took_ns": sum(times_ns),
        "buckets": {"0": 2, "1": 1, "15": 1, "16": 1},
    }


def test_error_when_an_inference_fails_is_counted_by_its_kind_and_raised(
    opened: list[counters.Counters], tmp_path: Path
) -> None:
    one = open_counters(opened, tmp_path)

    def infer() -> None:
        raise UnicodeError("secret")

    for _ in range(3):
        with pytest.raises(UnicodeError):
            one.watch(infer)
    with pytest.raises(KeyboardInterrupt):
        one.watch(exit_by_hand)
    one.flush()
    assert read(one)["variants"]["cpu-fp32"] == {"errors": {"UnicodeError": 3}}
    assert b"secret" not in Path(one.path).read_bytes()


def exit_by_hand() -> None:
    raise KeyboardInterrupt


def test_counts_when_two_models_share_the_file_are_added_up(
    opened: list[counters.Counters], tmp_path: Path
) -> None:
    first = open_counters(opened, tmp_path)
    second = open_counters(opened, tmp_path, ABOUT._replace(variant="cpu-int8"))
    third = open_counters(opened, tmp_path)
    for one, calls in ((first, 2), (second, 3), (third, 4)):
        for _ in range(calls):
            one.watch(int)
        one.flush()
    found = read(first)
    assert {n: v["inferences"] for n, v in found["variants"].items()} == {
        "cpu-fp32": 6, "cpu-int8": 3,
    }  # fmt: skip
    assert found["loads"] == 3


def test_checks_when_calls_are_many_are_every_17th_from_the_first(
    opened: list[counters.Counters], tmp_path: Path
) -> None:
    one = open_counters(opened, tmp_path)
    due = [one.is_check_due() for _ in range(100)]
    assert [number for number, is_due in enumerate(due) if is_due] == [0, 17, 34, 51, 68, 85]
    one.count_checked(["x"])
    one.count_checked([])
    one.flush()
    assert read(one)["variants"]["cpu-fp32"] == {"checked": 2, "outside": {"x": 1}}
    without = open_counters(opened, tmp_path, ABOUT._replace(has_ranges=False))
    assert not any(without.is_check_due() for _ in range(20))


def test_clock_when_it_is_set_changes_no_count(
    opened: list[counters.Counters], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = open_counters(opened, tmp_path)
    for now_s in (0.0, 4e9, 1e9, 5.0):
        monkeypatch.setattr(time, "time", lambda now_s=now_s: now_s)
        one.watch(int)
        one.flush()
    found = read(one)
    assert found["variants"]["cpu-fp32"]["inferences"] == 4
    assert (found["since_s"], found["written_s"]) == (0, 5)


def test_counts_when_no_write_is_left_are_written_later(
    opened: list[counters.Counters], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    one = open_counters(opened, tmp_path)
    for _ in range(10):
        one.watch(int)
        one.flush()
    assert read(one)["variants"]["cpu-fp32"]["inferences"] == ring.BURST
    now_s[0] += ring.REFILL_S
    one.flush()
    assert read(one)["variants"]["cpu-fp32"]["inferences"] == 10


def test_folder_when_it_cannot_be_written_is_told_once_and_made_up_for(
    opened: list[counters.Counters], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "stats").write_text("a file")
    one = open_counters(opened, tmp_path / "stats")
    for _ in range(3):
        assert one.watch(int) == 0
        one.flush()
    assert len(caplog.records) == 1
    assert "not counted on disk" in caplog.text
    (tmp_path / "stats").unlink()
    one.flush()
    found = read(one)
    assert found["variants"]["cpu-fp32"]["inferences"] == 3
    assert (found["loads"], found["failed_writes"]) == (1, 3)


@pytest.mark.parametrize(
    "before",
    [{"variants": 1}, {"variants": {"cpu-fp32": []}}, {"variants": {"cpu-fp32": {"errors": 3}}},
     {"variants": {"cpu-fp32": {"inferences": "x"}}}, {"loads": None}, {"since_s": "x"}],
    ids=str,
)  # fmt: skip
def test_record_when_it_is_somebody_elses_is_begun_anew(
    opened: list[counters.Counters], tmp_path: Path, before: dict[str, Any]
) -> None:
    one = open_counters(opened, tmp_path)
    ring.update(one.path, lambda _: {"bounds_ms": list(counters.BOUNDS_MS), **before})
    one.watch(int)
    fail(one, ValueError)
    one.flush()
    found = read(one)["variants"]["cpu-fp32"]
    assert (found["inferences"], found["errors"]) == (1, {"ValueError": 1})


def fail(one: counters.Counters, kind: type[Exception]) -> None:
    def infer() -> None:
        raise kind

    with pytest.raises(kind):
        one.watch(infer)


def test_record_when_everything_is_long_and_manifold_fits_its_slot(
    opened: list[counters.Counters], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    odd = '\u20ac"\\\n\x01' * 100
    reasons = [(f"{number}{odd}", odd) for number in range(50)]
    for variant in range(10):
        about = counters.About(odd, odd, "0" * 16, f"{variant}{odd}", reasons, has_ranges=True)
        one = open_counters(opened, tmp_path, about)
        for number in range(30):
            kind = type(f"{number}{odd}", (ValueError,), {})
            fail(one, kind)
            one.count_checked([f"{number}{odd}", f"x{number}"])
        with monkeypatch.context() as patch:
            for bucket in range(17):
                took_ns = 10**9 * 3600 * 24 * 365 if bucket == 16 else counters._BOUNDS_NS[bucket]
                take(patch, [took_ns])
                one.watch(int)
        one.flush()
        now_s[0] += ring.REFILL_S
    found = read(one)
    assert found["loads"] == 10
    assert len(found["variants"]) == 5
    assert sum(each["inferences"] for each in found["variants"].values()) == 170
    for each in found["variants"].values():
        assert sum(each["errors"].values()) == 30 * each["inferences"] // 17
        assert "other" in each["errors"]


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("inference failed: /home/ann/app/model.onnx: no", "inference failed: PATH: no"),
        ("'~/x/y' is missing", "'PATH' is missing"),
        ("/home/ann maria lee/app/m.onnx failed", "PATH failed"),
        ("no '/home/ann lee/m.onnx', or /srv/a b/c", "no 'PATH', or PATH"),
        ("/a/b is neither /c/d nor /e", "PATH is neither PATH nor PATH"),
        (r"C:\Users\ann\x.onnx gone", "PATH gone"),
        ("at 1/2 of a/b", "at 1/2 of a/b"),
        ("CPUExecutionProvider runs 3% of the nodes", "CPUExecutionProvider runs 3% of the nodes"),
        ('a "b"\nc\u20ac', "a ?b??c?"),
    ],
)
def test_reason_when_it_has_a_path_is_told_without(text: str, plain: str) -> None:
    assert counters.make_plain(text, 96) == plain
    assert counters.make_plain(text, 5) == plain[:5]


def test_files_when_releases_are_many_are_the_newest(
    opened: list[counters.Counters], tmp_path: Path
) -> None:
    (tmp_path / "other-0123456789abcdef.ring").write_bytes(b"")
    for number in range(2 * counters.KEPT):
        one = open_counters(opened, tmp_path, ABOUT._replace(release=f"{number:016x}"))
        one.flush()
        os.utime(one.path, (number, number))
    names = sorted(path.name for path in tmp_path.iterdir())
    kept = range(counters.KEPT, 2 * counters.KEPT)
    assert names == ["other-0123456789abcdef.ring", *(f"tiny-{n:016x}.ring" for n in kept)]


def test_name_when_it_is_a_path_stays_in_the_folder(
    opened: list[counters.Counters], tmp_path: Path
) -> None:
    one = open_counters(opened, tmp_path / "stats", ABOUT._replace(model="../../etc/x\0"))
    one.flush()
    assert [path.name for path in tmp_path.iterdir()] == ["stats"]
    assert read(one)["loads"] == 1


def test_process_when_it_is_forked_counts_its_own(
    opened: list[counters.Counters], tmp_path: Path
) -> None:
    one = open_counters(opened, tmp_path)
    one.watch(int)
    if not (child := os.fork()):
        code = 1
        try:
            for _ in range(4):
                one.watch(int)
            one.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    one.flush()
    found = read(one)
    assert found["variants"]["cpu-fp32"]["inferences"] == 5
    assert found["loads"] == 1


def test_thread_when_its_model_is_gone_writes_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counters, "FIRST_S", 0.01)
    monkeypatch.setattr(counters, "EVERY_S", 0.01)
    owner = Owner()
    one = counters.Counters(str(tmp_path), ABOUT, owner, (ValueError,))
    one.watch(int)
    del owner
    gc.collect()
    assert one._thread is not None
    one._thread.join(10)
    assert not one._thread.is_alive()
    assert read(one)["variants"]["cpu-fp32"]["inferences"] == 1


def test_textfile_when_it_is_wanted_is_what_prometheus_reads(
    opened: list[counters.Counters], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    about = ABOUT._replace(passed_over=[("npu-int8", 'no "NPU"')])
    one = open_counters(opened, tmp_path, about, str(tmp_path))
    take(monkeypatch, [150_000, 30_000_000, 10**11])
    for _ in range(3):
        one.watch(int)
    monkeypatch.undo()
    fail(one, ValueError)
    one.count_checked(["x"])
    one.flush()
    text = (tmp_path / "edgepack-tiny-0123456789abcdef.prom").read_text()
    assert not re.search(r"\} \S+ \S", text), "node_exporter refuses times of samples"
    families = {each.name: each for each in text_string_to_metric_families(text)}
    labels = {"model": "tiny", "version": "1.0.0", "release": "0123456789abcdef"}
    values = {
        (sample.name, *(v for k, v in sample.labels.items() if k not in labels)): sample.value
        for family in families.values()
        for sample in family.samples
    }
    name = "edgepack_inference_seconds"
    assert values[f"{name}_count", "cpu-fp32"] == 3
    assert values[f"{name}_sum", "cpu-fp32"] == pytest.approx(100.03015)
    buckets = {key[2]: n for key, n in values.items() if key[0] == f"{name}_bucket"}
    assert (buckets["0.0001"], buckets["0.0002"], buckets["0.05"]) == (0, 1, 2)
    assert (buckets["10.0"], buckets["+Inf"]) == (2, 3)
    assert values["edgepack_inference_errors_total", "cpu-fp32", "ValueError"] == 1
    assert values["edgepack_outside_total", "cpu-fp32", "x"] == 1
    assert values["edgepack_checked_total", "cpu-fp32"] == 1
    assert values["edgepack_passed_over", "npu-int8", "no ?NPU?"] == 1
    assert families["edgepack_loads"].samples[0].labels == labels
    assert [path.suffix for path in tmp_path.iterdir() if ".prom" in path.name] == [".prom"]


def test_textfile_when_its_folder_is_missing_counts_once_all_the_same(
    opened: list[counters.Counters], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = open_counters(opened, tmp_path, textfiles=str(tmp_path / "nowhere"))
    for _ in range(3):
        one.watch(int)
        one.flush()
    assert read(one)["variants"]["cpu-fp32"]["inferences"] == 3
    assert len(caplog.records) == 1


def test_textfile_when_a_release_is_new_is_the_only_one(
    opened: list[counters.Counters], tmp_path: Path
) -> None:
    for release in ("0" * 16, "1" * 16, "0" * 16):
        one = open_counters(opened, tmp_path, ABOUT._replace(release=release), str(tmp_path))
        one.flush()
        assert [path.name for path in tmp_path.glob("*.prom*")] == [f"edgepack-tiny-{release}.prom"]

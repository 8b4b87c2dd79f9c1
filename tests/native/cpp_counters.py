"""What C++ counts in the field: the same file, counts and words as the Python loader's."""

from __future__ import annotations

import fcntl
import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from edgepack.base.processes import run_program
from edgepack.deploy.stats import Counts
from edgepack.ondevice.runtime import edgepack_counters as counters
from edgepack.ondevice.runtime import edgepack_loader as loader
from edgepack.ondevice.runtime import edgepack_ring as ring

from tests.mobile.proofs import NotHeldError, Proof, require
from tests.mobile.signatures import BUCKETS, DYNAMIC_BATCH
from tests.native.programs import (
    build_bundle,
    compile_program,
    find_library,
    run_described,
    write_tensors,
)
from tests.support.reports.tiny_bundle import change_manifest

OTHERS = ("took_ns", "buckets")
"""What differs from run to run."""


def make_feeds(count: int) -> list[dict[str, np.ndarray]]:
    """Return inputs; every 17th from the first, which are checked, lies outside the ranges."""
    rng = np.random.default_rng(5)
    feeds = [rng.uniform(-0.5, 0.5, (1, 3, 8, 8)).astype(np.float32) for _ in range(count)]
    for number in range(0, count, 2 * counters.CHECK_EVERY):
        feeds[number][0, 0, 0, 0] = np.nan if number else 1e6
    return [{"image": each} for each in feeds]


def write_feeds(work: Path, feeds: list[dict[str, np.ndarray]]) -> list[Path]:
    """Write inputs, make folders for outputs, and return the words that name them."""
    words = []
    for number, feed in enumerate(feeds):
        words += [write_tensors(work / f"in-{number}", ["image"], feed), work / f"out-{number}"]
        words[-1].mkdir()
    return words


def read_only(folder: Path) -> dict[str, Any]:
    """Return the newest record of the one file in a folder; ``device stats`` takes it."""
    [path] = folder.glob("*.ring")
    require(path.stat().st_size == ring.SIZE, f"{path.stat().st_size} bytes")
    record = ring.read(str(path))
    if record is None:
        raise NotHeldError("the file has no record")
    Counts.model_validate(record)
    return record


def require_consistent(record: dict[str, Any], inferences: int) -> None:
    """Raise NotHeldError unless a record has so many inferences, each in a bucket and timed."""
    found = list(record["variants"].values())
    count = sum(each.get("inferences", 0) for each in found)
    bucketed = sum(sum(each.get("buckets", {}).values()) for each in found)
    require(count == bucketed == inferences, f"{count} inferences, {bucketed} in buckets")
    require(sum(each.get("took_ns", 0) for each in found) > 0, "they took no time")


def strip_times(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record without what two runs cannot have in common."""
    variants = {
        name: {key: value for key, value in counts.items() if key not in OTHERS}
        for name, counts in record["variants"].items()
    }
    others = ("since_s", "written_s", "budget")
    return {**{k: v for k, v in record.items() if k not in others}, "variants": variants}


def compare_counts(work: Path) -> str:
    """Both loaders count the same of the same inputs, and add to each other's file."""
    bundle = build_bundle(DYNAMIC_BATCH)
    feeds = make_feeds(40)
    words = write_feeds(work, feeds)
    textfiles = work / "textfiles"
    textfiles.mkdir()
    stale = textfiles / f"edgepack-dynamic-batch-{'0' * 16}.prom"
    stale.write_text("")
    environment = {
        "EDGEPACK_STATS": str(work / "cpp"), "EDGEPACK_STATS_TEXTFILES": str(textfiles),
    }  # fmt: skip
    done = run_described(bundle, *words, **environment)
    require(done.exit_code == 0 and not done.stderr, f"{done.text}{done.last_lines}")
    found = read_only(work / "cpp")
    run_python(bundle, work / "python", feeds)
    expected = read_only(work / "python")
    require_consistent(found, len(feeds))
    require(strip_times(found) == strip_times(expected), f"{found}\nnot\n{expected}")
    [counts] = found["variants"].values()
    require(counts["checked"] == 3 and counts["outside"] == {"image": 2}, f"{counts}")
    [textfile] = textfiles.iterdir()
    require(textfile.read_text() == counters.format_textfile(found), textfile.read_text())
    run_python(bundle, work / "cpp", feeds[:7])
    run_described(bundle, *words[:10], EDGEPACK_STATS=str(work / "cpp"))
    found = read_only(work / "cpp")
    require_consistent(found, 40 + 7 + 5)
    require(found["loads"] == 3, f"{found['loads']} loads")
    return "40 inferences, 3 checked, 2 outside; three programs on one file"


def run_python(bundle: Path, folder: Path, feeds: list[dict[str, np.ndarray]]) -> None:
    """Run inputs by the Python loader, counted into a folder."""
    model = loader.load(bundle, stats=folder)
    for feed in feeds:
        model(feed)
    model.counters.close()


def compare_errors(work: Path) -> str:
    """An inference that fails is counted by the name of Python's error, and reasons are kept."""
    bundle = work / "bundle"
    shutil.copytree(build_bundle(DYNAMIC_BATCH), bundle)

    def change(manifest: dict[str, Any]) -> None:
        manifest["inputs"][0]["shape"][1] = "channels"
        manifest["variants"][0]["min_sqnr_db"] = 300.0

    change_manifest(bundle, change)
    wrong = {"image": np.zeros((1, 5, 8, 8), np.float32)}
    words = write_feeds(work, [wrong])
    done = run_described(bundle, *words, EDGEPACK_STATS=str(work / "cpp"))
    require(done.exit_code == 3, f"{done.exit_code}: {done.text}")
    model = loader.load(bundle, stats=work / "python")
    try:
        model(wrong)
    except loader.ORT_ERRORS:
        model.counters.close()
    found, expected = read_only(work / "cpp"), read_only(work / "python")
    require(strip_times(found) == strip_times(expected), f"{found}\nnot\n{expected}")
    require(len(found["passed_over"]) == 1, f"{found}")
    [counts] = found["variants"].values()
    require(sum(counts["errors"].values()) == 1, f"{counts}")
    return f"{counts['errors']}, {found['passed_over']}"


def compare_ranges(work: Path) -> str:
    """Inputs of integers are held against their ranges, too."""
    bundle = work / "bundle"
    shutil.copytree(build_bundle(BUCKETS), bundle)
    names = [spec.name for spec in loader.load(bundle).inputs]
    feed = {"input_ids": np.full((1, 4), 3, np.int64)}
    for number, ends in enumerate(([0, 3], [0, 2])):

        def change(manifest: dict[str, Any], ends: list[int] = ends) -> None:
            for variant in manifest["variants"]:
                variant["input_ranges"] = {"input_ids": ends}

        change_manifest(bundle, change)
        (work / f"out-{number}").mkdir()
        words = [write_tensors(work / f"in-{number}", names, feed), work / f"out-{number}"]
        folder = work / f"stats-{number}"
        done = run_described(bundle, *words, EDGEPACK_STATS=str(folder))
        require(done.exit_code == 0, f"{done.text}{done.last_lines}")
        [counts] = read_only(folder)["variants"].values()
        outside = {"input_ids": 1} if number else {}
        require(counts["checked"] == 1 and counts.get("outside", {}) == outside, f"{counts}")
    return "within and outside"


def count_together(work: Path) -> str:
    """Processes at once, with threads each, lose no count; what exit() leaves open is written."""
    bundle = build_bundle(DYNAMIC_BATCH)
    words = [str(word) for word in write_feeds(work, make_feeds(3))]
    program = compile_program("describe.cc")
    library = str(find_library())
    running = []
    for way in ([], ["--exit"], ["--exit"]):
        argv = [str(program), library, str(bundle), "--threads", "4", *way, *words]
        environment = {**os.environ, "EDGEPACK_STATS": str(work / "stats")}
        running.append(subprocess.Popen(argv, env=environment, stdout=subprocess.DEVNULL))
    require([each.wait(120) for each in running] == [0, 0, 0], "a process failed")
    found = read_only(work / "stats")
    require_consistent(found, 3 * 4 * 5 * 3)
    require(found["loads"] == 3, f"{found['loads']} loads")
    wait_for_lock(work / "locked")
    return "3 processes of 4 threads, 180 inferences; a file that is held is waited for"


def wait_for_lock(folder: Path) -> None:
    """Raise NotHeldError unless C++ writes only when nobody else holds the file."""
    argv = [str(compile_program("counting.cc")), "write", str(folder), "1"]
    run_program(argv, timeout_s=60)
    [path] = folder.iterdir()
    before = path.read_bytes()
    with path.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with subprocess.Popen(argv) as other:
            time.sleep(0.5)
            require(path.read_bytes() == before, "it wrote while the file was held")
            fcntl.flock(held, fcntl.LOCK_UN)
            require(other.wait(60) == 0, "it failed")
    require(read_only(folder)["loads"] == 2, "it did not write afterwards")


def count_at_ends(work: Path) -> str:
    """A program's models write together at its end; what is written is not counted again."""
    program = str(compile_program("counting.cc"))
    done = run_program([program, "end", str(work / "end")], timeout_s=60)
    require(done.exit_code == 0, f"one model waits for the end of another: {done.last_lines}")
    for name in ("a", "b"):
        require(read_only(work / "end" / name)["loads"] == 1, f"{name} is not written")
    done = run_program([program, "full", str(work / "full")], timeout_s=60)
    require(done.exit_code == 0, done.last_lines)
    found = read_only(work / "full")
    [counts] = found["variants"].values()
    require(found["loads"] == counts["checked"] == 1, f"counted again: {found}")
    return "2 models; no memory for node_exporter's file"


def break_files(work: Path) -> str:
    """A record that was cut off costs itself alone; foreign files and old releases go."""
    program = str(compile_program("counting.cc"))
    folder = work / "stats"
    path = folder / f"tiny-0123456789abcdef{ring.SUFFIX}"

    def count(times: int) -> int:
        done = run_program([program, "write", str(folder), str(times)], timeout_s=60)
        require(done.exit_code == 0 and not done.stderr, done.last_lines)
        return int(read_only(folder)["variants"]["cpu-fp32"].get("checked", 0))

    require(count(1) == 1 and count(1) == 2, f"{read_only(folder)}")
    newest = read_only(folder)
    data = bytearray(path.read_bytes())
    data[2 * ring.SLOT_BYTES + 100] ^= 1  # the second record lies in slot 2
    path.write_bytes(data)
    require(ring.read(str(path)) != newest, "the newest record is still there")
    require(count(1) == 2, "the record before it is not used")
    for foreign in (b"", b"x" * 100, b"EPS1" * 100_000):
        path.write_bytes(foreign)
        require(count(1) == 1, f"{foreign[:4]!r}: {read_only(folder)}")
    big = {**read_only(folder), "budget": {}}
    big["variants"]["cpu-fp32"]["took_ns"] = 2**60
    path.write_bytes(b"")
    ring.update(str(path), lambda _before: big)
    require(count(1) == 2, "numbers above 2^53 are not read")
    require(read_only(folder)["variants"]["cpu-fp32"]["took_ns"] == 2**60, "2^60 changed")
    path.unlink()
    for number in range(10):
        old = folder / f"tiny-{number:016d}{ring.SUFFIX}"
        old.write_bytes(b"")
        os.utime(old, (1000 + number, 1000 + number))
    run_program([program, "write", str(folder), "1"], timeout_s=60)
    kept = sorted(each.name for each in folder.iterdir())
    wanted = sorted([path.name, *(f"tiny-{n:016d}{ring.SUFFIX}" for n in range(3, 10))])
    require(kept == wanted, f"kept: {kept}")
    return "cut, foreign, larger, 2^60, 8 of 11 files"


def bound_writes(work: Path) -> str:
    """A file takes few writes, whoever asks; a child that is forked counts nothing."""
    program = str(compile_program("counting.cc"))
    began_s = time.monotonic()
    done = run_program([program, "write", str(work / "stats"), "12"], timeout_s=60)
    require(done.exit_code == 0, done.last_lines)
    most = ring.BURST + int((time.monotonic() - began_s) / ring.REFILL_S) + 1
    loads = read_only(work / "stats")["loads"]
    require(ring.BURST <= loads <= most, f"{loads} of 12 writes were made")
    began_s = time.monotonic()
    done = run_program([program, "fork", str(work / "fork")], timeout_s=60)
    require(done.exit_code == 0, done.last_lines)
    require(time.monotonic() - began_s < 4, "the child waits for a thread that it has not")
    found = read_only(work / "fork")
    require(found["variants"]["cpu-fp32"] == {"checked": 1, "outside": {"x": 1}}, f"{found}")
    require(found["loads"] == 1, f"{found}")
    return f"{loads} writes of 12"


_PYTHON = """
import sys
from edgepack.ondevice.runtime import edgepack_loader as loader
model = loader.load(sys.argv[1], stats=sys.argv[2])
model.counters.close()
"""


def survive_disks(work: Path) -> str:
    """No folder, a full disk and one that is read-only: the run goes on, and Python's words."""
    bundle = build_bundle(DYNAMIC_BATCH)
    words = write_feeds(work, make_feeds(2))
    (work / "file").write_text("")
    cases: dict[str, tuple[Path, str]] = {"no folder": (work / "file" / "stats", "")}
    if os.geteuid() == 0:
        for name, options in (("full", "size=16k"), ("read-only", "ro")):
            (work / name).mkdir()
            cases[name] = (work / name, f"mount -t tmpfs -o {options} none {work / name} && ")
    program = compile_program("describe.cc")
    said = []
    for name, (folder, mount) in cases.items():
        shell = ["unshare", "-m", "sh", "-c", mount + 'exec "$@"', "sh"]
        own = [str(program), str(find_library()), str(bundle), *map(str, words)]
        environment = {**os.environ, "EDGEPACK_STATS": str(folder)}
        prefix = shell if mount else []
        done = run_program([*prefix, *own], timeout_s=120, environment=environment)
        require(done.exit_code == 0, f"{name}: {done.exit_code} {done.last_lines}")
        python = [sys.executable, "-c", _PYTHON, str(bundle), str(folder)]
        expected = run_program([*prefix, *python], timeout_s=120).stderr.decode()
        found = done.stderr.decode()
        require(found.count("\n") == 1 and found == expected, f"{name}: {found!r}, {expected!r}")
        said.append(found.strip().split(": ", 1)[1])
    return "; ".join(said)


def compare_texts(_work: Path) -> str:
    """Texts are cut and cleaned as Python does it: paths are left out."""
    rng = random.Random(1)
    pieces = ["/home/me", "C:\\x y\\z", "~/a b/c", "a/b", ".", " ", "'", '"', ":", ";", "\\", "/",
              "é", "€", "x", "\t", "1", "_", "~", "D:", ")", "(", "word", ",", "//"]  # fmt: skip
    texts = ["".join(rng.choices(pieces, k=rng.randrange(12))) for _ in range(20_000)]
    program = str(compile_program("counting.cc"))
    given = "".join(f"{text}\n" for text in texts).encode()
    done = run_program([program, "plain", "40"], timeout_s=60, input_bytes=given)
    found = done.text.split("\n")[:-1]
    require(len(found) == len(texts), f"{len(found)} lines")
    paths = 0
    for text, plain in zip(texts, found, strict=True):
        expected = counters.make_plain(text, 40)
        paths += "PATH" in expected
        # Whether an é before a slash is part of a word is asked of Unicode by Python alone.
        lenient = "é/" in text or "é\\" in text or "é~" in text or "éD:" in text or "éC:" in text
        require(plain == expected or lenient, json.dumps([text, plain, expected]))
    return f"{len(texts)} texts, {paths} with paths"


PROOFS = (
    Proof("the same counts, in the same file", compare_counts),
    Proof("errors and reasons", compare_errors),
    Proof("ranges of integers", compare_ranges),
    Proof("several processes", count_together),
    Proof("ends", count_at_ends),
    Proof("damaged and old files", break_files),
    Proof("few writes", bound_writes),
    Proof("disks", survive_disks),
    Proof("texts", compare_texts),
)

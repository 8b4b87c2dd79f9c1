"""``edgepack device stats``: what programs counted on a device, against a plain count."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from edgepack.base.resources import find_ondevice_dir
from edgepack.builder.pipelines import build_pipeline
from edgepack.cli.main import run
from edgepack.demo.server import LoopbackServer
from edgepack.deploy.stats import Counts, read_stats
from edgepack.devices.inventory import Device, LocalEntry, add_device
from edgepack.errors import DeviceError, PythonMissingError
from edgepack.ondevice.runtime import edgepack_ring as ring
from edgepack.ondevice.service import edgepack_hosting as hosting

from tests.chaos.disks import can_mount
from tests.support.nets.pipeline_nets import write_find_project
from tests.support.reports.tiny_bundle import change_manifest, write_tiny_bundle
from tests.support.servers.dropbear_server import DropbearServer, require_dropbear
from tests.support.servers.loopback import ssh_device

PROGRAM = """
import signal, sys, os, time
import numpy as np
from edgepack_loader import load
model = load()
feed = model.bundle.read_golden_inputs(0)
calls, outside, how = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
print("ready", flush=True)
if how == "together":
    sys.stdin.readline()
for number in range(calls):
    model({"x": feed["x"] * (100 if number < outside else 1)})
if how == "joined":
    model.predict([feed] * 4)
for _ in range(3):
    try:
        model.run({"x": np.zeros((1, 2, 8, 8), np.float32)})
    except Exception as error:
        assert "Got: 2 Expected: 3" in str(error), error
if how == "kill":
    model.counters.flush()
    model({"x": feed["x"]})
    os.kill(os.getpid(), signal.SIGKILL)
print(model.outside)
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def device(root: Path) -> Device:
    entry = LocalEntry(transport="local", target="linux-x86-64", root=str(root))
    return Device("board", entry)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    folder = write_tiny_bundle(tmp_path / "bundle")

    def change(manifest: dict[str, Any]) -> None:
        first, second = manifest["variants"]
        first["requires"]["cpu"] = ["no_such_flag"]
        second["input_ranges"] = {"x": [-6.0, 6.0]}

    change_manifest(folder, change)
    (folder / "program.py").write_text(PROGRAM)
    return folder


def start(
    bundle: Path, stats: Path | None, calls: int, outside: int = 0, how: str = "alone"
) -> subprocess.Popen[bytes]:
    argv = [sys.executable, str(bundle / "program.py"), str(calls), str(outside), how]
    environment = {name: text for name, text in os.environ.items() if "EDGEPACK_STATS" not in name}
    if stats is not None:
        environment["EDGEPACK_STATS"] = str(stats)
    return subprocess.Popen(
        argv, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def finish(program: subprocess.Popen[bytes], code: int = 0) -> str:
    out, err = program.communicate(b"\n", timeout=60)
    assert program.returncode == code, err.decode()
    return out.decode() + err.decode()


def read_one(device: Device) -> Counts:
    (found,) = read_stats(device).counts
    return found


def test_counts_when_two_processes_run_at_once_are_those_of_both(
    bundle: Path, root: Path, device: Device
) -> None:
    programs = [start(bundle, root / "stats", 30 + n, 18, "together") for n in range(2)]
    for program in programs:
        assert program.stdout is not None
        program.stdout.readline()
    for program in programs:
        finish(program)
    counts = read_one(device)
    found = counts.variants["cpu-fp32"]
    assert (found.inferences, sum(found.buckets.values())) == (61, 61)
    assert found.errors == {"InvalidArgument": 6}
    # Of each process's 33 and 34 runs numbers 0 and 17 are checked; those 18 are outside.
    assert (found.checked, found.outside) == (4, {"x": 4})
    assert counts.loads == 2
    assert counts.passed_over == {"cpu-int8-static": "this CPU lacks no_such_flag"}
    assert found.took_ns > 0
    assert counts.find_bound_ms("cpu-fp32", 1.0) is not None


def test_counts_when_a_batch_is_joined_are_one_inference_and_no_proof(
    bundle: Path, root: Path, device: Device
) -> None:
    finish(start(bundle, root / "stats", 2, 0, "joined"))
    found = read_one(device).variants["cpu-fp32"]
    assert found.inferences == 3


def test_counts_when_a_process_is_killed_are_those_that_were_written(
    bundle: Path, root: Path, device: Device
) -> None:
    finish(start(bundle, root / "stats", 5, 0, "kill"), -9)
    assert read_one(device).variants["cpu-fp32"].inferences == 5
    finish(start(bundle, root / "stats", 7))
    assert read_one(device).variants["cpu-fp32"].inferences == 12


def test_counts_when_the_file_was_damaged_begin_anew(
    bundle: Path, root: Path, device: Device
) -> None:
    finish(start(bundle, root / "stats", 5))
    (file,) = (root / "stats").iterdir()
    file.write_bytes(os.urandom(1000))
    state = read_stats(device)
    assert state.counts == ()
    with pytest.raises(DeviceError, match="no whole record"):
        state.require_readable()
    finish(start(bundle, root / "stats", 7))
    assert read_one(device).variants["cpu-fp32"].inferences == 7


@pytest.mark.skipif(not can_mount(), reason="needs to make a file system")
def test_program_when_the_disk_is_full_answers_and_says_so_once(
    bundle: Path, tmp_path: Path, device: Device, root: Path
) -> None:
    root.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", root], check=True)
    try:
        finish(start(bundle, root / "stats", 5))
        (root / "rest").write_bytes(bytes(48 << 10))
        with pytest.raises(OSError, match="No space"):
            (root / "more").write_bytes(bytes(48 << 10))
        finish(start(bundle, root / "stats", 3))
        assert read_one(device).variants["cpu-fp32"].inferences == 8
        said = finish(start(bundle, root / "others", 3))
        assert said.count("not counted on disk") == 1
        assert "No space left" in said
    finally:
        subprocess.run(["umount", root], check=True)


def test_program_when_it_is_not_asked_counts_nothing(bundle: Path, tmp_path: Path) -> None:
    before = sorted(path for path in tmp_path.rglob("*") if "__pycache__" not in path.parts)
    assert "{'x': 0}" in finish(start(bundle, None, 20, 20))
    after = sorted(path for path in tmp_path.rglob("*") if "__pycache__" not in path.parts)
    assert before == after


def test_file_when_a_program_counted_has_no_inputs_and_no_names(
    bundle: Path, root: Path, tmp_path: Path
) -> None:
    def change(manifest: dict[str, Any]) -> None:
        manifest["variants"][0]["requires"]["cpu"] = []
        manifest["variants"][0]["model"] = "models/no-such-model.onnx"

    change_manifest(bundle, change)
    finish(start(bundle, root / "stats", 3))
    (file,) = (root / "stats").iterdir()
    text = file.read_bytes()
    assert b"no-such-model" not in text
    for name in (str(tmp_path), os.uname().nodename, "pytest"):
        assert name.encode() not in text


def test_stats_when_a_device_is_asked_over_ssh_are_printed(
    bundle: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    finish(start(bundle, tmp_path / "root/stats", 30, 30))
    with LoopbackServer(tmp_path / "server") as server:
        board = ssh_device(server, root=str(tmp_path / "root"))
        add_device(tmp_path / "devices.yaml", board.name, board.entry)
        assert run(["device", "stats", board.name]) == 0
        shown = capsys.readouterr().out
        assert run(["device", "stats", board.name, "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert run(["device", "stats", "all", "--project", "tiny"]) == 0
        table = capsys.readouterr().out
        assert run(["device", "stats", board.name, "--folder", str(tmp_path / "none")]) == 0
        nothing = capsys.readouterr().out
    for word in (
        "cpu-fp32",
        "30",
        "3 InvalidArgument",
        "x 100.00%",
        "1 loads",
        "lacks no_such_flag",
    ):
        assert word in shown
    (counts,) = document["counts"]
    assert counts["variants"]["cpu-fp32"]["inferences"] == 30
    assert "budget" not in counts
    assert "tiny 1.0.0: 30 inferences, 3 errors" in table
    assert f"EDGEPACK_STATS={tmp_path / 'none'}" in nothing


def test_counters_of_a_board_without_python_are_read_from_its_files(tmp_path: Path) -> None:
    require_dropbear()
    with DropbearServer(tmp_path / "server", bare=True) as server:
        board = ssh_device(server, root="/data")
        assert not read_stats(board).is_there
        folder = server.board / "data/stats"
        folder.mkdir(parents=True)
        empty = read_stats(board)
        assert (empty.is_there, empty.counts) == (True, ())
        for name in ("x", "y"):
            ring.update(
                str(folder / f"{name}-0.ring"), lambda _, name=name: {**HUGE, "model": name}
            )
        (folder / "notes.txt").write_text("no counters")
        found = read_stats(board)
        assert [counts.model for counts in found.counts] == ["x", "y"]
        assert [counts.model for counts in read_stats(board, "y").counts] == ["y"]
        (folder / "z z.ring").write_bytes(b"\0" * 100)
        (folder / "link.ring").symlink_to("/etc/passwd")
        unreadable = read_stats(board).unreadable
        assert unreadable == (
            "link.ring: it has no whole record", "z z.ring: it has no whole record",
        )  # fmt: skip
        other = Device(board.name, board.entry.model_copy(update={"python": "/opt/python3"}))
        with pytest.raises(PythonMissingError):
            read_stats(other)


PROGRAM_THERE = find_ondevice_dir() / "runtime/edgepack_ring.py"
HUGE = {
    "model": "x", "version": "1", "release": "0" * 16, "bounds_ms": [1.0], "since_s": 0,
    "written_s": 0, "loads": 1, "failed_writes": 0, "passed_over": {}, "variants": {},
    "budget": {},
}  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"written_s": 10**20}, {"since_s": -1}, {"release": "../../x"}, {"bounds_ms": [-1.0]},
        {"variants": {"v": {"inferences": -1}}}, {"variants": {"v": {"buckets": {"0": 1 << 70}}}},
        {"more": 1}, {"model": "m" * 5000}, {"passed_over": {"a": 1}},
    ],
    ids=str,
)  # fmt: skip
def test_record_when_it_is_nonsense_is_told(
    device: Device, root: Path, change: dict[str, Any]
) -> None:
    (root / "stats").mkdir(parents=True)
    ring.update(str(root / "stats/x-0.ring"), lambda _: {**HUGE, **change})
    with pytest.raises(DeviceError, match="another form"):
        read_stats(device).require_readable()


@pytest.mark.parametrize(
    ("answer", "problem"),
    [("[" * 100_000, "nested deeper"), ('{"is_there": true, "files": [1]}', r"wrong at files\.0"),
     ("", "is not JSON")],
    ids=["deep", "of another kind", "empty"],
)  # fmt: skip
def test_answer_when_it_is_none_is_refused(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, problem: str
) -> None:
    (tmp_path / "answer").write_text(answer)
    (tmp_path / "agent").mkdir()
    lying = f"print(open({str(tmp_path / 'answer')!r}).read())"
    (tmp_path / "agent/edgepack_ring.py").write_text(lying)
    monkeypatch.setattr("edgepack.devices.programs.find_ondevice_dir", lambda: tmp_path)
    with pytest.raises(DeviceError, match=problem):
        read_stats(device)


def test_odd_record_when_it_is_shown_breaks_nothing(
    device: Device, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from edgepack.cli.stats import _print_stats

    odd = {"v": {"outside": {"x": 3}, "buckets": {"7": 1}}, "w\x1b[2J": {"checked": 1}}
    (root / "stats").mkdir(parents=True)
    ring.update(str(root / "stats/x-0.ring"), lambda _: {**HUGE, "variants": odd})
    _print_stats(read_stats(device))
    assert "\x1b[2J" not in capsys.readouterr().out


def test_service_when_counting_is_on_counts_what_it_answers_and_no_proof(
    bundle: Path, root: Path, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGEPACK_STATS", str(root / "stats"))
    release = hosting.Release(bundle)
    assert release.warm_up(2) == 2
    feed = release.model.bundle.read_golden_inputs(0)
    release.run([feed])
    release.run([{"x": feed["x"] * 100}])
    release.run([feed, feed])
    release.model.counters.close()
    found = read_one(device).variants["cpu-fp32"]
    assert (found.inferences, found.checked, found.outside) == (3, 4, {"x": 1})


@pytest.mark.parametrize("mode", ["select", "measure"])
def test_bench_when_counting_is_on_is_not_counted(bundle: Path, root: Path, mode: str) -> None:
    done = run_harness(bundle, "edgepack_harness.py", root, mode)
    assert b"cpu-fp32" in done.stdout
    assert not root.exists()


def test_bench_when_it_is_of_several_models_is_not_counted(tmp_path: Path, root: Path) -> None:
    built = build_pipeline(write_find_project(tmp_path), out=tmp_path / "dist").bundles[0]
    for mode in ("select", "measure"):
        done = run_harness(built.bundle.path, "edgepack_stages.py", root, mode)
        assert b"cpu-fp32" in done.stdout
        assert not root.exists()


def run_harness(
    bundle: Path, name: str, stats: Path, mode: str
) -> subprocess.CompletedProcess[bytes]:
    argv = [sys.executable, bundle / "harness" / name, mode, "--bundle", bundle]
    if mode == "measure":
        argv += ["--duration-s=0.01", "--iterations=2", "--warm-up-s=0.01", "--warm-up-cap-s=0.1"]
    if name == "edgepack_harness.py" and mode == "measure":
        argv += ["--variant=cpu-fp32"]
    environment = {**os.environ, "EDGEPACK_STATS": str(stats)}
    return subprocess.run(argv, env=environment, capture_output=True, check=True)

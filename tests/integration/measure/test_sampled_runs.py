"""The sensors of a machine are read while it is measured, and its clocks held for that."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import threading
import time
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any

import pytest
from edgepack.base.resources import find_ondevice_dir
from edgepack.base.schema import NotMeasured
from edgepack.bundle.reading import load_bundle
from edgepack.deploy import audit
from edgepack.devices.clocks import held_clocks
from edgepack.devices.harness import Harness, Quiet
from edgepack.devices.inventory import Device, LocalEntry
from edgepack.devices.transports import connect
from edgepack.errors import DeviceError, RemoteCommandError
from edgepack.measure.bench import conditions
from edgepack.measure.bench.assemble import Measurements, Question, make_report
from edgepack.measure.bench.conditions import tuned
from edgepack.measure.bench.run import bench
from edgepack.measure.check import check_device
from edgepack.measure.compare import comparing
from edgepack.measure.compare.comparing import compare
from edgepack.ondevice.harness import edgepack_conditions, edgepack_quiet
from edgepack.project.profile import find_host_target
from edgepack.records.other_work import compute_taken_share
from edgepack.records.presets import Preset, find_preset
from edgepack.records.run import OtherWork, Sampling, Selection, TunedSetting

from tests.support.reports.example_report import COOL, example_facts, example_run
from tests.support.reports.tiny_bundle import change_manifest, write_tiny_bundle
from tests.support.servers.sysfs import CPUFREQ, JETSON, RASPBERRY_PI, THERMAL, write_tree

BRIEF = Preset(
    "brief", runs=1, duration_s=0.1, iterations=25, warm_up_s=0.01, window_s=0.01, warm_up_cap_s=1
)
UNKNOWN = NotMeasured(reason="nobody knows")
HERE = Device("here", LocalEntry(transport="local", target="linux-x86-64", python=sys.executable))


def test_measure_reads_the_sensors_until_the_last_query_has_ended(tmp_path: Path) -> None:
    bundle = write_tiny_bundle(tmp_path / "bundle")
    with connect(HERE) as transport:
        harness = Harness(transport, PurePosixPath(bundle), sys.executable, load_timeout_s=60)
        run = harness.measure("cpu-fp32", BRIEF)
    assert isinstance(run.sampling, Sampling)
    assert isinstance(run.timed_from_ns, int)
    assert isinstance(run.timed_to_ns, int)
    moments = [sample.at_ns for sample in run.sampling.samples]
    assert moments[0] <= run.timed_from_ns < run.timed_to_ns <= moments[-1]
    assert run.sampling.interval_s == 0.5
    read = {"temperature", "clocks", "power", "throttling", "load"} - run.sampling.unknown.keys()
    assert "load" in read
    if "power" in run.sampling.unknown:
        assert run.energy == NotMeasured(reason=run.sampling.unknown["power"])
    assert not list(bundle.rglob("__pycache__"))


def test_cool_down_waits_until_the_device_is_cool(tmp_path: Path) -> None:
    root = write_tree(tmp_path, RASPBERRY_PI)
    write_tree(root, {f"{THERMAL}/thermal_zone0/temp": "71000\n"})
    cooled = threading.Timer(
        0.3, write_tree, args=[root, {f"{THERMAL}/thermal_zone0/temp": "50000\n"}]
    )
    cooled.start()
    found = edgepack_conditions.cool_down(52.0, 0.0, root)
    cooled.join()
    assert found["temperature_c"] == 50.0


def test_cool_down_only_pauses_when_the_device_is_cool_already(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write_tree(tmp_path, RASPBERRY_PI)
    assert edgepack_conditions.cool_down(52.0, 0.3, root)["waited_s"] >= 0.3
    monkeypatch.setattr(time, "sleep", pytest.fail)
    assert edgepack_conditions.cool_down(52.0, 0.0, root)["temperature_c"] == 47.712


def test_cool_down_gives_up_when_the_device_stays_hot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slept_s: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: sum(slept_s), sleep=slept_s.append)
    monkeypatch.setattr(edgepack_conditions, "time", clock)
    found = edgepack_conditions.cool_down(20.0, 10.0, write_tree(tmp_path, RASPBERRY_PI))
    assert found == {"temperature_c": 47.712, "waited_s": edgepack_conditions.COOL_DOWN_S}
    said = capsys.readouterr().err.splitlines()
    assert len(said) == edgepack_conditions.COOL_DOWN_S / edgepack_conditions.SAY_S - 1
    assert set(said) == {"edgepack-cooling 47.7"}


class Work:
    """Others' work as they say, a second after the other, of two cores; 0.1 is stolen."""

    def __init__(self, *cores: float) -> None:
        self.taken = list(cores)

    def __call__(self, root: Path) -> Any:
        del root
        return self

    def measure(self) -> dict[str, Any]:
        taken = self.taken.pop(0) if len(self.taken) > 1 else self.taken[0]
        return {"cores": 2, "other_cores": taken, "stolen_cores": 0.1}


@pytest.fixture
def slept_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    slept: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: sum(slept), sleep=slept.append)
    monkeypatch.setattr(edgepack_quiet, "time", clock)
    return slept


def test_quiet_is_waited_for_until_others_take_little(
    monkeypatch: pytest.MonkeyPatch, slept_s: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(edgepack_quiet.other_work, "OtherWork", Work(1.5, 0.8, 0.1))
    found = edgepack_quiet.wait_for_quiet(2, 0.11, 60.0)
    assert found == {"waited_s": 2.0, "quiet": True, "taken": 0.1}
    assert sum(slept_s) == 3.0
    assert capsys.readouterr().err.split() == ["edgepack-busy", "0.80"]


def test_quiet_is_there_where_others_keep_to_cores_that_the_threads_leave_free(
    monkeypatch: pytest.MonkeyPatch, slept_s: list[float]
) -> None:
    monkeypatch.setattr(edgepack_quiet.other_work, "OtherWork", Work(0.9))
    assert edgepack_quiet.wait_for_quiet(1, 0.11, 60.0)["quiet"] is True
    assert edgepack_quiet.wait_for_quiet(2, 0.11, 5.0)["quiet"] is False
    # More threads than this process may use cores: its cores count, not the device's.
    assert edgepack_quiet.wait_for_quiet(8, 0.51, 60.0)["taken"] == 0.5


def test_quiet_is_waited_for_no_longer_than_asked(
    monkeypatch: pytest.MonkeyPatch, slept_s: list[float]
) -> None:
    monkeypatch.setattr(edgepack_quiet.other_work, "OtherWork", Work(1.5))
    found = edgepack_quiet.wait_for_quiet(2, 0.1, 10.0)
    assert found == {"waited_s": 9.0, "quiet": False, "taken": 0.8}
    assert sum(slept_s) == 10.0


def test_quiet_is_not_waited_for_where_others_work_cannot_be_read(tmp_path: Path) -> None:
    found = edgepack_quiet.wait_for_quiet(2, 0.1, 10.0, tmp_path)
    assert found["waited_s"] == 0.0
    assert found["quiet"]["kind"] == found["taken"]["kind"] == "not-measured"


def test_quiet_and_the_verdict_count_what_others_take_in_one_way() -> None:
    for threads, cores, other, stolen in ((1, 4, 2.9, 0.0), (4, 2, 0.3, 0.1), (3, 4, 2.0, 0.5)):
        work = OtherWork(
            cores=cores,
            own_cores=1.0,
            other_cores=other,
            stolen_cores=stolen,
            waiting=NotMeasured(reason="unknown"),
        )
        found = edgepack_quiet.compute_taken_share(work.model_dump(), threads)
        assert found == pytest.approx(compute_taken_share(work, threads))


@pytest.mark.slow(reason="makes four process runs")
def test_bench_on_a_busy_device_waits_within_its_limit_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, float, float]] = []
    answers = [
        Quiet(waited_s=20.0, quiet=True, taken=0.0),
        Quiet(waited_s=39.0, quiet=False, taken=0.5),
    ]

    def wait(self: Harness, threads: int, share: float, most_s: float, note: Any) -> Quiet:
        asked.append((threads, share, most_s))
        return answers[len(asked) - 1]

    monkeypatch.setattr(Harness, "wait_for_quiet", wait)
    bundle = write_tiny_bundle(tmp_path / "bundle")
    change_manifest(bundle, lambda manifest: manifest.update(target=find_host_target()))
    entry = LocalEntry(
        transport="local",
        target=find_host_target(),
        root=str(tmp_path / "root"),
        python=sys.executable,
    )
    report = bench(bundle, Device("here", entry), preset="smoke", runs=4, quiet_s=60.0)
    assert len(report.runs) == 4
    assert asked == [(1, 0.05, 60.0), (1, 0.05, 40.0)]
    assert (
        "it waited 59 s for other work to end, which still took 50% of the model's cores:"
        " --quiet-wait waits longer"
    ) in report.notes


def test_cool_down_does_not_wait_when_no_temperature_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", pytest.fail)
    assert (
        edgepack_conditions.cool_down(20.0, 60.0, tmp_path)["temperature_c"]["kind"]
        == "not-measured"
    )


def test_cool_down_on_a_device_goes_on_when_its_program_fails(
    tmp_path: Path,
) -> None:
    bundle = write_tiny_bundle(tmp_path / "bundle")
    (bundle / "harness" / "edgepack_conditions.py").unlink()
    with connect(HERE) as transport:
        harness = Harness(transport, PurePosixPath(bundle), sys.executable)
        harness.cool_down(COOL, 0.0, pytest.fail)


def test_cool_down_of_a_bundle_runs_and_writes_nothing_beside_itself(tmp_path: Path) -> None:
    bundle = write_tiny_bundle(tmp_path / "bundle")
    before = sorted(bundle.rglob("*"))
    printed: list[bytes] = []

    def run(argv: list[str], **_: object) -> None:
        printed.append(subprocess.run(argv, capture_output=True, check=True).stdout)

    device: Any = SimpleNamespace(run=run)
    Harness(device, PurePosixPath(bundle), sys.executable).cool_down(COOL, 0.0, print)
    assert json.loads(printed[0])["waited_s"] >= 0
    assert sorted(bundle.rglob("*")) == before


def test_cool_down_on_a_device_says_how_hot_it_is(tmp_path: Path) -> None:
    bundle = write_tiny_bundle(tmp_path / "bundle")
    program = bundle / "harness" / "edgepack_conditions.py"
    program.write_text(
        "import sys\nprint('edgepack-cooling 61.5', file=sys.stderr)\nprint(sys.argv[1:])\n"
    )
    said: list[str] = []
    with connect(HERE) as transport:
        harness = Harness(transport, PurePosixPath(bundle), sys.executable)
        harness.cool_down(COOL, 10.0, said.append)
        harness.cool_down(COOL.model_copy(update={"temperature_c": UNKNOWN}), 10.0, said.append)
    assert said == ["cooling down: 61.5 °C, to 46.5 °C"]


@pytest.fixture
def board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Device, Path]:
    """Return this machine as a device, and the root of the sysfs that it has for ``--tune``."""
    sysfs = write_tree(tmp_path / "sysfs", JETSON)
    monkeypatch.setattr(conditions, "held_clocks", functools.partial(held_clocks, sysfs=str(sysfs)))
    entry = LocalEntry(
        transport="local",
        target="linux-x86-64",
        python=sys.executable,
        root=str(tmp_path / "root"),
    )
    return Device("board", entry), sysfs


def tune_events() -> list[str | None]:
    return [event.detail for event in audit.read_audit_log().records if event.action == "tune"]


def governor(sysfs: Path) -> str:
    return (sysfs / CPUFREQ / "policy0" / "scaling_governor").read_text().strip()


def test_tuned_clocks_are_recorded_and_come_into_the_report(
    tmp_path: Path, board: tuple[Device, Path]
) -> None:
    device, sysfs = board
    with connect(device) as transport, tuned(transport, device, tune=True) as held:
        assert governor(sysfs) == "performance"
    assert governor(sysfs) == "schedutil"
    bundle = load_bundle(write_tiny_bundle(tmp_path / "bundle"))
    question = Question("board", bundle.manifest, bundle.digest, None, find_preset("smoke"))
    selection = Selection(variant="cpu-fp32", unused=[], device=example_facts())
    measured = Measurements(selection, runs=[example_run(variant="cpu-fp32")], held=held)
    assert make_report(question, measured).tuned == [
        TunedSetting(
            name=f"governor of policy{number}",
            before="schedutil",
            during="performance",
            restored=True,
        )
        for number in (0, 4)
    ]
    changes = [f"governor of policy{number}: schedutil to performance" for number in (0, 4)]
    assert tune_events() == [", ".join(changes)]


def test_bench_with_tune_gives_the_clocks_back_when_the_harness_fails(
    tmp_path: Path, board: tuple[Device, Path]
) -> None:
    device, sysfs = board
    bundle = write_tiny_bundle(tmp_path / "bundle")

    def change(manifest: dict[str, Any]) -> None:
        manifest["variants"][1]["requires"]["cpu"] = ["no_such_flag"]

    change_manifest(bundle, change)
    with pytest.raises(RemoteCommandError, match="no_such_flag"):
        bench(bundle, device, preset="smoke", variant="cpu-fp32", tune=True)
    assert governor(sysfs) == "schedutil"


def test_bench_with_tune_says_what_to_do_when_there_are_no_clocks(
    tmp_path: Path, board: tuple[Device, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = functools.partial(held_clocks, sysfs=str(tmp_path / "nothing"))
    monkeypatch.setattr(conditions, "held_clocks", nothing)
    with pytest.raises(DeviceError) as caught:
        bench(write_tiny_bundle(tmp_path / "bundle"), board[0], preset="smoke", tune=True)
    assert "no cpufreq governor" in caught.value.problem
    assert "measure without --tune" in caught.value.hint


def test_device_check_gives_back_what_a_killed_measurement_left(
    board: tuple[Device, Path],
) -> None:
    device, sysfs = board
    script = find_ondevice_dir() / "agent/edgepack_clocks.py"
    argv = [sys.executable, "-IS", script, "hold", device.entry.root, sysfs, "60"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as guard:
        assert guard.stdout is not None
        guard.stdout.readline()
        assert check_device(device).given_back == ()  # it is held
        guard.kill()
    assert governor(sysfs) == "performance"
    assert check_device(device).given_back == ("governor of policy0", "governor of policy4")
    assert governor(sysfs) == "schedutil"
    assert tune_events() == ["restored: governor of policy0, governor of policy4"]


def test_compare_with_tune_says_what_to_do_when_there_are_no_clocks(
    tmp_path: Path, board: tuple[Device, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = functools.partial(held_clocks, sysfs=str(tmp_path / "nothing"))
    monkeypatch.setattr(conditions, "held_clocks", nothing)
    bundle = write_tiny_bundle(tmp_path / "bundle")
    with pytest.raises(DeviceError, match="no cpufreq governor"):
        compare(comparing.CompareQuestion(bundle, bundle, tune=True), [board[0]])

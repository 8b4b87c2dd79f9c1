"""What the sensors of a machine say, read from files as its kernel has them."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from edgepack.base.resources import find_ondevice_dir
from edgepack.base.schema import NotMeasured
from edgepack.ondevice.harness import (
    edgepack_conditions,
    edgepack_other_work,
    edgepack_sampler,
    edgepack_sensors,
    edgepack_sysfs,
)
from edgepack.records.run import Conditions, Energy, OtherWork, Sampling

from tests.support.servers.sysfs import (
    COMMON,
    CPUFREQ,
    JETSON,
    PI_BITS,
    RAPL,
    RASPBERRY_PI,
    THERMAL,
    X86,
    write_tree,
)

SECOND = 1_000_000_000


@pytest.fixture(autouse=True)
def no_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Hide this machine's own programs; return where a test may put others."""
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    return programs


def add_program(folder: Path, name: str, printed: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\nprintf '%s\\n' '{printed}'\n")
    path.chmod(0o755)


def read_conditions(root: Path) -> Conditions:
    return Conditions.model_validate(edgepack_conditions.read_conditions(root))


def test_conditions_of_a_raspberry_pi_when_vcgencmd_is_there(
    tmp_path: Path, no_programs: Path
) -> None:
    root = write_tree(tmp_path / "root", RASPBERRY_PI)
    add_program(no_programs, "vcgencmd", "throttled=0x50004")
    found = read_conditions(root)
    assert (found.governor, found.temperature_c, found.load) == ("ondemand", 47.712, 0.42)
    assert found.throttled_now == ["throttled"]
    assert found.throttled_since_boot == ["under-voltage", "throttled"]
    assert isinstance(found.throttle_events, NotMeasured)
    assert isinstance(found.power_mode, NotMeasured)


def test_conditions_of_a_raspberry_pi_when_only_the_driver_tells_leave_out_what_it_forgets(
    tmp_path: Path,
) -> None:
    root = write_tree(tmp_path, RASPBERRY_PI, {PI_BITS: "50001\n"})
    found = read_conditions(root)
    assert found.throttled_now == ["under-voltage"]
    assert isinstance(found.throttled_since_boot, NotMeasured)


def test_conditions_of_a_jetson_have_its_power_mode_and_over_current_events(
    tmp_path: Path, no_programs: Path
) -> None:
    add_program(no_programs, "nvpmodel", "NV Power Mode: MAXN_SUPER\n2")
    found = read_conditions(write_tree(tmp_path / "root", JETSON))
    assert (found.power_mode, found.throttle_events) == ("MAXN_SUPER", 15)
    assert (found.governor, found.temperature_c) == ("schedutil", 50.031)


def test_conditions_of_an_x86_machine_have_its_profile_and_throttle_count(tmp_path: Path) -> None:
    found = read_conditions(write_tree(tmp_path, X86))
    assert (found.power_mode, found.throttle_events, found.temperature_c) == ("balanced", 8, 62.0)


def test_conditions_are_all_unknown_when_there_are_no_sensors(tmp_path: Path) -> None:
    found = read_conditions(tmp_path)
    for name in Conditions.model_fields:
        value = getattr(found, name)
        assert isinstance(value, NotMeasured), name
        assert value.reason


def test_sample_of_a_jetson_has_zones_clocks_rails_and_use(tmp_path: Path) -> None:
    reader = edgepack_sensors.Sensors(write_tree(tmp_path, JETSON))
    found = reader.sample()
    assert reader.unknown == {}
    assert found["temperatures_c"] == {"cpu-thermal": 49.218, "gpu-thermal": 50.031}
    hz = {"policy0": 1_510_400_000, "policy4": 729_600_000, "gpu": 624_750_000}
    assert found["clocks_hz"] == hz
    assert found["power_w"] == {"VDD_IN": 6.0, "VDD_CPU_GPU_CV": 2.0}
    assert (found["busy"], found["throttled"], found["load"]) == ({"gpu": 0.87}, [], 0.42)


def test_sample_of_a_jetson_names_the_cause_when_a_counter_has_risen(tmp_path: Path) -> None:
    root = write_tree(tmp_path, JETSON)
    reader = edgepack_sensors.Sensors(root)
    assert reader.sample()["throttled"] == []
    write_tree(root, {"sys/class/hwmon/hwmon3/oc3_event_cnt": "16\n"})
    assert reader.sample()["throttled"] == ["instantaneous over-current"]
    assert reader.sample()["throttled"] == []


def test_sample_of_an_x86_machine_names_throttling_once_when_several_cores_count_it(
    tmp_path: Path,
) -> None:
    root = write_tree(tmp_path, X86)
    reader = edgepack_sensors.Sensors(root)
    folder = "sys/devices/system/cpu/cpu{}/thermal_throttle/core_throttle_count"
    write_tree(root, {folder.format(0): "9\n", folder.format(1): "2\n"})
    assert reader.sample()["throttled"] == ["thermal throttling"]


def test_sample_of_a_raspberry_pi_has_what_slowed_it_down_in_the_last_seconds(
    tmp_path: Path,
) -> None:
    root = write_tree(tmp_path, RASPBERRY_PI)
    reader = edgepack_sensors.Sensors(root)
    assert reader.sample()["throttled"] == []
    write_tree(root, {PI_BITS: "80004\n"})
    assert reader.sample()["throttled"] == ["throttled", "soft temperature limit"]


def test_sample_asks_vcgencmd_when_no_file_tells(tmp_path: Path, no_programs: Path) -> None:
    root = write_tree(tmp_path / "root", RASPBERRY_PI)
    (root / PI_BITS).unlink()
    add_program(no_programs, "vcgencmd", "throttled=0x2")
    assert edgepack_sensors.Sensors(root).sample()["throttled"] == ["frequency capped"]


def test_sample_numbers_zones_when_several_have_one_name(tmp_path: Path) -> None:
    found = edgepack_sensors.Sensors(write_tree(tmp_path, X86)).sample()
    celsius = {"acpitz 1": 41.0, "acpitz 2": 27.8, "x86_pkg_temp": 62.0}
    assert found["temperatures_c"] == celsius


def test_sample_counts_the_cores_of_a_cluster_that_worked(tmp_path: Path) -> None:
    cores = [f"cpu{core} 100 0 0 100 0 0 0 0 0 0\n" for core in range(6)]
    root = write_tree(tmp_path, JETSON, {"proc/stat": "".join(cores)})
    reader = edgepack_sensors.Sensors(root)
    reader.sample()
    cores[0] = "cpu0 140 0 10 100 0 0 0 0 40 0\n"  # 50 ticks of work, the guest's are among them
    cores[1] = "cpu1 125 0 0 125 0 0 0 0 0 0\n"
    cores[4] = "cpu4 100 0 0 140 10 0 0 0 0 0\n"
    write_tree(root, {"proc/stat": "".join(cores)})
    assert reader.sample()["busy"] == {"policy0": 1.5, "policy4": 0.0, "gpu": 0.87}


def test_trip_points_are_those_that_slow_the_device_down(tmp_path: Path) -> None:
    jetson = edgepack_sensors.read_trip_points(write_tree(tmp_path / "jetson", JETSON))
    assert jetson == {"cpu-thermal": 99.0, "gpu-thermal": 99.5, "cv0-thermal": 99.0}
    assert edgepack_sensors.read_trip_points(write_tree(tmp_path / "pi", RASPBERRY_PI)) == {}
    x86 = {**X86, f"{THERMAL}/thermal_zone2/trip_point_0_temp": "60000\n"}
    assert edgepack_sensors.read_trip_points(write_tree(tmp_path / "x86", x86)) == {
        "acpitz 1": 95.0
    }


def test_every_kind_of_sensor_is_unknown_with_a_reason_when_there_is_none(tmp_path: Path) -> None:
    reader = edgepack_sensors.Sensors(tmp_path)
    assert set(reader.unknown) == {"temperature", "clocks", "power", "throttling", "load"}
    assert all(reader.unknown.values())
    assert reader.sample().keys() == {"at_ns"}


def test_a_sensor_is_absent_for_a_sample_when_it_does_not_answer(tmp_path: Path) -> None:
    root = write_tree(tmp_path, JETSON)
    reader = edgepack_sensors.Sensors(root)
    write_tree(
        root, {f"{THERMAL}/thermal_zone0/temp": "", f"{CPUFREQ}/policy4/scaling_cur_freq": ""}
    )
    found = reader.sample()
    assert found["temperatures_c"] == {"gpu-thermal": 50.031}
    assert found["clocks_hz"].keys() == {"policy0", "gpu"}


def test_power_is_unknown_with_the_reason_when_only_root_may_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write_tree(tmp_path, X86)
    really_open = os.open

    def refuse(path: str, *rest: Any) -> int:
        if path.endswith("energy_uj"):
            raise PermissionError(13, "Permission denied", path)
        return really_open(path, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        reader = edgepack_sensors.Sensors(root)
    assert reader.unknown["power"] == f"{root / RAPL}/energy_uj: Permission denied"


def test_energy_by_rapl_is_right_when_the_counter_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write_tree(tmp_path, X86)
    seconds = itertools.count()
    clock = SimpleNamespace(monotonic_ns=lambda: next(seconds) * SECOND)
    monkeypatch.setattr(edgepack_sensors, "time", clock)
    reader = edgepack_sensors.Sensors(root)
    samples = [reader.sample()]
    for energy_uj in (950_000, 50_000):  # the second is 100 000 on, past 1 000 000
        write_tree(root, {f"{RAPL}/energy_uj": f"{energy_uj}\n"})
        samples.append(reader.sample())
    sampling = {"samples": samples, "unknown": reader.unknown}
    found = edgepack_sampler.compute_energy(sampling, samples[0]["at_ns"], samples[-1]["at_ns"])
    energy = Energy.model_validate(found)
    assert energy.joules == pytest.approx(0.15)
    assert energy.source == "RAPL package-0"


def test_energy_is_that_of_the_timed_part_only() -> None:
    watts = [{}, {"VDD_IN": 4.0}, {"VDD_IN": 6.0}, {"VDD_IN": 10.0}]
    samples = [{"at_ns": i * SECOND, "power_w": power} for i, power in enumerate(watts)]
    found = edgepack_sampler.compute_energy(
        {"samples": samples, "unknown": {}}, SECOND // 2, SECOND * 5 // 2
    )
    assert found == {"joules": 0.5 * 4 + 6 + 0.5 * 10, "source": "INA3221 VDD_IN"}


@pytest.mark.parametrize(
    ("sampling", "reason"),
    [
        ({"kind": "not-measured", "reason": "the sampler died"}, "the sampler died"),
        ({"samples": [], "unknown": {"power": "nothing there"}}, "nothing there"),
        ({"samples": [{"at_ns": 0, "power_w": {"CPU": 1.0}}], "unknown": {}}, "none of the rails"),
        ({"samples": [{"at_ns": 9, "power_w": {"VDD_IN": 1.0}}], "unknown": {}}, "all the time"),
    ],
)
def test_energy_is_unknown_with_a_reason_when_it_cannot_be_computed(
    sampling: dict[str, Any], reason: str
) -> None:
    found = edgepack_sampler.compute_energy(sampling, 5, 15)
    assert found["kind"] == "not-measured"
    assert reason in found["reason"]


def test_sampler_reads_until_it_is_stopped_at_the_lowest_priority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edgepack_sampler, "START_S", 60.0)
    monkeypatch.setattr(edgepack_sampler, "STOP_S", 60.0)
    root = write_tree(tmp_path, X86)
    began_ns = time.monotonic_ns()
    sampler = edgepack_sampler.Sampler(0.05, root)
    ready_ns = time.monotonic_ns()
    assert os.getpriority(os.PRIO_PROCESS, sampler._child.pid) == 19
    write_tree(root, {f"{THERMAL}/thermal_zone2/temp": "70000\n"})
    told_ns = time.monotonic_ns()
    found = Sampling.model_validate(sampler.stop())
    moments = [sample.at_ns for sample in found.samples]
    assert moments == sorted(moments)
    assert began_ns < moments[0] < ready_ns
    assert told_ns < moments[-1] < time.monotonic_ns()
    hottest = [sample.temperatures_c["x86_pkg_temp"] for sample in found.samples]
    assert (hottest[0], hottest[-1]) == (62.0, 70.0)
    assert found.trip_points_c == {"acpitz 1": 95.0}
    assert 0 < found.cpu_ns < found.elapsed_ns


def test_sampler_reads_at_once_after_each_interval_and_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits_s: list[float] = []

    def select(_read: Any, _write: Any, _error: Any, wait_s: float) -> tuple[list[int], ...]:
        waits_s.append(wait_s)
        return ([0] if len(waits_s) == 4 else [], [], [])

    monkeypatch.setattr(edgepack_sampler, "select", SimpleNamespace(select=select))
    found = Sampling.model_validate(
        edgepack_sampler.sample_until_end(0.5, write_tree(tmp_path, X86))
    )
    assert len(found.samples) == 5  # at once, after three intervals, at the end
    assert all(0 < wait_s <= 0.5 for wait_s in waits_s)


@pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2,
    reason="needs two cores and a system with affinity",
)
def test_sampler_takes_cores_that_the_harness_leaves(tmp_path: Path) -> None:
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        sampler = edgepack_sampler.Sampler(0.05, tmp_path)
        assert min(cores) not in os.sched_getaffinity(sampler._child.pid)
        sampler.stop()
    finally:
        os.sched_setaffinity(0, cores)


def test_sampler_says_why_when_it_was_killed(tmp_path: Path) -> None:
    sampler = edgepack_sampler.Sampler(0.05, tmp_path)
    sampler._child.kill()
    assert sampler.stop() == {
        "kind": "not-measured",
        "reason": "the sampler ended with exit code -9",
    }


def test_sampler_ends_when_the_harness_is_killed(tmp_path: Path) -> None:
    source = (
        "import sys, time; sys.path.insert(0, sys.argv[1]); import edgepack_sampler as c;"
        "s = c.Sampler(0.05); print(s._child.pid, flush=True); time.sleep(60)"
    )
    argv = [
        sys.executable,
        "-B",
        "-c",
        source,
        str((find_ondevice_dir() / "harness/edgepack_sampler.py").parent),
    ]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as harness:
        assert harness.stdout is not None
        pid = int(harness.stdout.readline())
        harness.send_signal(signal.SIGKILL)
    # At the lowest priority, its end takes long where all cores are busy with others.
    deadline = time.monotonic() + 120
    while _runs(pid):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _runs(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_sampler_document_is_a_sampling_of_the_report(tmp_path: Path) -> None:
    argv = [
        sys.executable,
        "-IS",
        str(find_ondevice_dir() / "harness/edgepack_sampler.py"),
        "0.5",
    ]
    root = write_tree(tmp_path, JETSON, COMMON)
    done = subprocess.run([*argv, root], stdin=subprocess.DEVNULL, capture_output=True, check=True)
    found = Sampling.model_validate(json.loads(done.stdout))
    assert len(found.samples) == 2
    assert found.interval_s == 0.5


def stat(*ticks: str) -> dict[str, str]:
    """Return a /proc/stat of cores, each with user, nice, system, idle, iowait, ... ticks."""
    lines = [f"cpu{core} {text} 0 0" for core, text in enumerate(ticks)]
    return {"proc/stat": "cpu  1 2 3 4 5 6 7 8 9 9\n" + "\n".join(lines) + "\nintr 1 2 3\n"}


def process_stat(user: int, system: int) -> str:
    return f"77 (a ) b) S {'0 ' * 10}{user} {system} 3 4 20 0 1\n"


def taken_between(
    monkeypatch: pytest.MonkeyPatch,
    root: Path,
    *states: dict[str, str],
    sampler_on: int = 1,
) -> Any:
    """Have ten seconds pass between two states of a machine, of which this process used six."""
    clocks = {"monotonic_ns": iter([0, 10 * SECOND]), "process_time_ns": iter([0, 6 * SECOND])}
    for name, values in clocks.items():
        monkeypatch.setattr(edgepack_other_work.time, name, lambda values=values: next(values))
    affinity = {0: {0, 1}, 77: {sampler_on}}
    monkeypatch.setattr(edgepack_other_work.os, "sysconf", lambda _: 100, raising=False)
    monkeypatch.setattr(edgepack_other_work.os, "sched_getaffinity", affinity.get, raising=False)
    work = edgepack_other_work.OtherWork(77, write_tree(root, states[0]))
    write_tree(root, states[1])
    return work.measure()


PRESSURE = "some avg10=5.00 avg60=4.00 avg300=3.00 total={}\nfull avg10=0.00 total=0\n"
BEFORE = {
    **stat("100 0 0 900 50 0 0 7", "0 0 0 0 0 0 0 0", "0 0 0 0 0 0 0 0"),
    "proc/pressure/cpu": PRESSURE.format(1_000_000),
    "proc/77/stat": process_stat(10, 5),
}
AFTER = {
    # Of ten seconds: 8 + 1 busy on the two cores that this process may use, 0.5 stolen.
    **stat("600 200 100 1000 90 0 0 57", "50 0 30 890 10 10 10 0", "1000 0 0 0 0 0 0 0"),
    "proc/pressure/cpu": PRESSURE.format(5_000_000),
    "proc/77/stat": process_stat(20, 15),
}


@pytest.mark.parametrize(("sampler_on", "others"), [(1, 0.28), (2, 0.3)])
def test_other_work_is_what_neither_this_process_nor_its_sampler_used_of_its_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sampler_on: int, others: float
) -> None:
    found = taken_between(monkeypatch, tmp_path, BEFORE, AFTER, sampler_on=sampler_on)
    assert OtherWork.model_validate(found) == OtherWork(
        cores=2, own_cores=0.6, other_cores=others, stolen_cores=0.05, waiting=0.4
    )


@pytest.mark.parametrize(
    ("lacking", "field", "reason"),
    [
        ("proc/stat", None, "there is no /proc/stat that counts this process's cores"),
        ("proc/pressure/cpu", "waiting", "there is no /proc/pressure/cpu"),
    ],
)
def test_other_work_when_the_system_does_not_tell_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacking: str, field: str | None, reason: str
) -> None:
    told = [{k: v for k, v in state.items() if k != lacking} for state in (BEFORE, AFTER)]
    found = taken_between(monkeypatch, tmp_path, *told)
    assert (found[field] if field else found) == edgepack_sysfs.make_not_measured(reason)
    assert field is None or found["other_cores"] == 0.28


def test_other_work_when_a_system_has_no_affinity_is_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(edgepack_other_work.os, "sched_getaffinity", raising=False)
    found = edgepack_other_work.OtherWork(77, write_tree(tmp_path, BEFORE)).measure()
    assert found["kind"] == "not-measured"


@pytest.mark.skipif(not Path("/proc/stat").is_file(), reason="needs Linux's /proc/stat")
def test_other_work_of_this_machine_tells_its_own_from_that_of_others() -> None:
    work = edgepack_other_work.OtherWork()
    until = time.process_time() + 0.3
    while time.process_time() < until:
        pass
    found = OtherWork.model_validate(work.measure())
    assert found.own_cores > 0
    assert found.own_cores + found.other_cores <= found.cores + 0.2

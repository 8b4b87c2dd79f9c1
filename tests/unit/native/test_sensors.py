"""What the measuring program copies of a board's sensors says what Python reads there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from edgepack.native.board_files import BoardFiles
from edgepack.native.sensors import FACTS, MOST_BYTES, OTHERS, READ, BoardSensors, Sampled
from edgepack.ondevice.harness import edgepack_sensors
from edgepack.records.run import NotMeasured, Sampling

from tests.support.servers.sysfs import JETSON, PI_BITS, RAPL, RASPBERRY_PI, X86, write_tree

COUNT = "sys/devices/system/cpu/cpu{}/thermal_throttle/core_throttle_count"
STAT = "proc/stat"
BUSY = "".join(f"cpu{core} 100 0 0 100 0 0 0 0 0 0\n" for core in range(6))
BUSIER = BUSY.replace("cpu1 100 0 0 100", "cpu1 150 0 0 150")
CHANGES = {
    "jetson": (
        {**JETSON, STAT: BUSY},
        {"sys/class/hwmon/hwmon3/oc3_event_cnt": "16\n", STAT: BUSIER},
    ),
    "raspberry-pi": (RASPBERRY_PI, {PI_BITS: "80004\n"}),
    "x86": (X86, {COUNT.format(0): "9\n", f"{RAPL}/energy_uj": "50000\n"}),
}
SECOND_NS = 1_000_000_000


@pytest.mark.parametrize("name", CHANGES)
def test_sampled_when_read_on_the_host_is_what_python_reads_there(name, tmp_path):
    tree, change = CHANGES[name]
    root = write_tree(tmp_path, tree)
    sensors = BoardSensors(BoardFiles(read(root, (*READ, *FACTS))))
    at_ns = SECOND_NS
    reader = edgepack_sensors.Sensors(root, clock=lambda: at_ns, ask=lambda *_: "")
    samples, readings = [], []
    for changed in ({}, change):
        write_tree(root, changed)
        samples.append(reader.sample())
        texts = read(root, READ)
        readings.append({"at_ns": at_ns, "texts": [texts[path] for path in sensors.paths]})
        at_ns += SECOND_NS
    sampled = Sampled.model_validate(
        {"readings": readings, "interval_s": 1.0, "cpu_ns": 1, "elapsed_ns": at_ns}
    )
    found = sensors.read(sampled)
    assert isinstance(found, Sampling)
    expected = {**found.model_dump(), "samples": samples}
    assert found.model_dump() == Sampling.model_validate(expected).model_dump()
    assert found.trip_points_c == edgepack_sensors.read_trip_points(root)
    assert found.unknown.keys() == reader.unknown.keys()


def test_stat_of_many_cores_is_asked_for_as_far_as_the_program_reads_a_file():
    cores = "".join(f"cpu{core} 1 2 3 4 5 6 7 8 9 0\n" for core in range(1024))
    sensors = BoardSensors(BoardFiles({"/proc/stat": f"{cores}intr 1\n"}))
    assert sensors.format_lines() == f"sensor /proc/stat {MOST_BYTES}\n"


def test_sampled_when_it_is_not_what_was_asked_for_is_not_read():
    sensors = BoardSensors(BoardFiles({"/proc/loadavg": "0.5 0 0 1/2 3\n"}))
    readings = [{"at_ns": 1, "texts": ["1\n", "2\n"]}]
    sampled = {"readings": readings, "interval_s": 1.0, "cpu_ns": 1, "elapsed_ns": 2}
    assert sensors.read(Sampled.model_validate(sampled)) == OTHERS


@pytest.mark.parametrize("listed", ["0-", "1-2-3", "\u00b2", ",1", ""])
def test_processors_when_a_board_lists_none_are_not_known(listed):
    files = BoardFiles({"/proc/self/status": f"Cpus_allowed_list:\t{listed}\n"})
    assert isinstance(files.read_topology(), NotMeasured)


def read(root: Path, patterns: tuple[str, ...]) -> Mapping[str, str]:
    """Return what a board's shell finds by patterns, in their order."""
    found = [path for each in patterns for path in sorted(root.glob(each.lstrip("/")))]
    return {f"/{path.relative_to(root)}": path.read_text() for path in found}

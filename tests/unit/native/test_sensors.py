"""What the measuring program copies of a board's sensors says what Python reads there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from edgepack.native.board_files import BoardFiles
from edgepack.native.sensors import FACTS, READ, BoardSensors, Sampled
from edgepack.ondevice.harness import edgepack_sensors
from edgepack.records.run import Sampling

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


def read(root: Path, patterns: tuple[str, ...]) -> Mapping[str, str]:
    """Return what a board's shell finds by patterns, in their order."""
    found = [path for each in patterns for path in sorted(root.glob(each.lstrip("/")))]
    return {f"/{path.relative_to(root)}": path.read_text() for path in found}

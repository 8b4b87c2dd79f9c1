"""The sensors of a board without Python while something is measured there.

The measuring program copies what the system's files say at each moment. What that means is read
here, by the module that does it on devices with Python.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path
from urllib.parse import quote

from edgepack.base.schema import NotMeasured, StrictModel
from edgepack.devices.transport import Transport
from edgepack.native.board_files import BoardFiles, read_board_files
from edgepack.ondevice.harness import edgepack_sensors as sensors
from edgepack.records.run import Count, Ns, Sampling

STAT = "/proc/stat"
READ = (
    "/proc/loadavg",
    STAT,
    "/sys/class/devfreq/*/cur_freq",
    "/sys/class/devfreq/*/device/load",
    "/sys/class/hwmon/hwmon*/curr[123]_input",
    "/sys/class/hwmon/hwmon*/in[123]_input",
    "/sys/class/hwmon/hwmon*/oc*_event_cnt",
    "/sys/class/powercap/intel-rapl:*/energy_uj",
    "/sys/class/thermal/thermal_zone*/temp",
    "/sys/devices/platform/soc/soc:firmware/get_throttled",
    "/sys/devices/system/cpu/cpu[0-9]*/thermal_throttle/core_throttle_count",
    "/sys/devices/system/cpu/cpufreq/policy*/scaling_cur_freq",
)
"""What is read again and again."""
FACTS = (
    "/sys/class/hwmon/hwmon*/in[123]_label",
    "/sys/class/hwmon/hwmon*/name",
    "/sys/class/powercap/intel-rapl:*/max_energy_range_uj",
    "/sys/class/powercap/intel-rapl:*/name",
    "/sys/class/thermal/thermal_zone*/trip_point_*_temp",
    "/sys/class/thermal/thermal_zone*/trip_point_*_type",
    "/sys/class/thermal/thermal_zone*/type",
    "/sys/devices/system/cpu/cpufreq/policy*/related_cpus",
)
"""What stays as it is."""
NUMBER_BYTES, MOST_BYTES = 64, 65536
"""What a number may take, and the most that the program reads of a file."""
ENDED_EARLY = NotMeasured(reason="the process that reads the sensors ended early")
OTHERS = NotMeasured(reason="what was read of the sensors is not what was asked for")


class _Reading(StrictModel):
    at_ns: Ns
    texts: list[str | None]


class Sampled(StrictModel):
    """What the measuring program copied of sensors: their texts in the order of the plan."""

    readings: list[_Reading]
    interval_s: float
    cpu_ns: Count
    elapsed_ns: Ns


@dataclass(frozen=True)
class BoardSensors:
    """The sensors that a board has."""

    files: BoardFiles

    @cached_property
    def paths(self) -> list[str]:
        """The files that are read again and again."""
        known = [path for path in self.files.texts if ".." not in path]
        return [path for path in known if any(fnmatch(path, each) for each in READ)]

    def format_lines(self) -> str:
        """Return the lines with which a plan asks for them."""
        sizes = dict.fromkeys(self.paths, NUMBER_BYTES)
        if STAT in sizes:  # the lines of the cores, which come first, and what they may grow
            cores = self.files.texts[STAT].partition("intr")[0]
            grown = len(cores) + NUMBER_BYTES * (cores.count("\n") + 1)
            sizes[STAT] = min(grown, MOST_BYTES)
        return "".join(f"sensor {quote(path, safe='/:')} {n}\n" for path, n in sizes.items())

    def read(self, sampled: Sampled | None) -> Sampling | NotMeasured:
        """Return the samples, as the sampler of the Python harness has them."""
        if sampled is None or not sampled.readings:
            return ENDED_EARLY
        if {len(each.texts) for each in sampled.readings} != {len(self.paths)}:
            return OTHERS
        at_ns = 0

        def read_clock() -> int:
            return at_ns

        with tempfile.TemporaryDirectory(prefix="edgepack-") as folder:
            root = Path(folder)
            self.files.write(root)
            self._write(root, sampled.readings[0])
            reader, samples = sensors.Sensors(root, clock=read_clock, ask=lambda *_: ""), []
            for reading in sampled.readings:
                at_ns = reading.at_ns
                self._write(root, reading)
                samples.append(reader.sample())
            trip_points_c = sensors.read_trip_points(root)
        return Sampling.model_validate(
            {
                **sampled.model_dump(exclude={"readings"}),
                "samples": samples,
                "unknown": reader.unknown,
                "trip_points_c": trip_points_c,
            }
        )

    def _write(self, root: Path, reading: _Reading) -> None:
        """Write into the files that are open already."""
        for path, text in zip(self.paths, reading.texts, strict=True):
            (root / path.lstrip("/")).write_text(text or "", encoding="utf-8")


def find_sensors(transport: Transport, run_prefix: Sequence[str]) -> BoardSensors:
    """Return the sensors that a board has.

    Raises:
        DeviceError: The connection broke, or it answers something else.
        RemoteCommandError: Its shell failed.
    """
    return BoardSensors(read_board_files(transport, run_prefix, (*READ, *FACTS)))

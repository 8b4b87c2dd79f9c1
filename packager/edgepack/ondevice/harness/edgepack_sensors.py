"""The sensors of this machine, opened once and read again and again: a few ``pread`` each time.

They are temperatures, clocks and how busy what they drive is, power, throttling and load. Why a
kind of sensor is not read is in :attr:`Sensors.unknown`. NVIDIA's driver has no files: of GPUs that
compute, its library is asked, see edgepack_nvml.py.

Sources: Linux's Documentation/driver-api/thermal/sysfs-api.rst,
Documentation/admin-guide/pm/cpufreq.rst, Documentation/ABI/testing/sysfs-class-devfreq,
Documentation/power/powercap/powercap.rst and Documentation/hwmon/ina3221.rst.

Needs Python 3.8 or newer, and nothing else.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Callable, Dict, Iterator, List, Optional, Sequence, Tuple

if __package__:
    from . import edgepack_nvml as nvml
    from . import edgepack_sysfs as sysfs
else:
    import edgepack_nvml as nvml  # type: ignore[import-not-found,no-redef]
    import edgepack_sysfs as sysfs  # type: ignore[import-not-found,no-redef]

READ_BYTES = 1 << 16
SLOW_S = 2.0
"""Between two starts of a program that tells what no file does."""
GPUS = ("gpu", "ga10b", "gv11b", "gp10b", "gm20b")
"""Last parts of the names of devfreq devices that are a GPU; all but the first a Jetson's."""


def read_clock_ns() -> int:
    """Return the monotonic time in nanoseconds."""
    return time.monotonic_ns()


class Sensors:
    """All sensors of this machine, opened once.

    Args:
        root: Of the file system.
        gpus: Those of the driver that compute.
        clock: The monotonic time in nanoseconds.
        ask: Returns what a program prints; by default :func:`edgepack_sysfs.read_output`.
    """

    def __init__(
        self,
        root: Path = sysfs.ROOT,
        gpus: Sequence[nvml.Gpu] = (),
        clock: Callable[[], int] = read_clock_ns,
        ask: Optional[Callable[..., str]] = None,
    ) -> None:
        self._clock = clock
        self._groups = [
            _Temperatures(root),
            _Clocks(root),
            _Power(root, clock),
            _Throttling(root, clock, ask or sysfs.read_output),
            _Load(root),
        ]
        self.unknown: Dict[str, str] = {}
        """Why a kind of sensor was not read."""
        for group in self._groups:
            if group.problem:
                self.unknown[group.kind] = group.problem
        self._gpus = _name_gpus(gpus)
        self._energy_before: Dict[str, Tuple[int, float]] = {}

    def sample(self) -> sysfs.Json:
        """Return what they say now; of power and use, what it was since the time before."""
        found: sysfs.Json = {"at_ns": self._clock()}
        for group in self._groups:
            if not group.problem:
                found.update(group.read())
        for name, gpu in self._gpus.items():
            values = {
                "temperatures_c": gpu.read_temperature_c(),
                "clocks_hz": gpu.read_clock_hz(),
                "busy": gpu.read_busy(),
                "power_w": self._measure_power_w(name, gpu),
                "used_bytes": gpu.read_used_bytes(),
            }
            for key, value in values.items():
                if value is not None:  # a Jetson's own files come first
                    found.setdefault(key, {}).setdefault(name, value)
            found["throttled"] = found.get("throttled", []) + gpu.list_causes()
        return found

    def _measure_power_w(self, name: str, gpu: nvml.Gpu) -> Optional[float]:
        """Return what a GPU took since the time before, or where it does not tell, takes."""
        joules, at_ns = gpu.read_energy_j(), self._clock()
        if joules is None:
            return gpu.read_power_w()
        before = self._energy_before.get(name)
        self._energy_before[name] = (at_ns, joules)
        return before and round((joules - before[1]) * 1e9 / max(1, at_ns - before[0]), 4)


def _name_gpus(gpus: Sequence[nvml.Gpu]) -> Dict[str, nvml.Gpu]:
    return sysfs.number_names(("gpu", gpu) for gpu in gpus)


class _Group:
    kind = ""
    problem = ""

    def read(self) -> sysfs.Json:
        raise NotImplementedError


class _Temperatures(_Group):
    kind = "temperature"

    def __init__(self, root: Path) -> None:
        files, why = _open_files(
            {name: zone / "temp" for name, zone in sysfs.find_zones(root).items()}
        )
        self._files = files
        self.problem = "" if files else why or "no thermal zone can be read"

    def read(self) -> sysfs.Json:
        now = ((name, file.read_number()) for name, file in self._files.items())
        known = {name: v / 1000 for name, v in now if v is not None and v > sysfs.COLDEST}
        return {"temperatures_c": known}


class _Clocks(_Group):
    """Clocks, and how busy what they drive is."""

    kind = "clocks"

    def __init__(self, root: Path) -> None:
        found = find_clocks(root)
        self._files, why = _open_files({name: path for name, (path, _) in found.items()})
        self._hz = {name: unit for name, (_, unit) in found.items()}
        self._cores = {
            path.parent.name: _parse_core_numbers(sysfs.read(path))
            for path in (root / "sys/devices/system/cpu/cpufreq").glob("policy*/related_cpus")
        }
        loads = {
            _name_unit(path): path / "device/load"
            for path in (root / "sys/class/devfreq").glob("*")
        }
        self._loads, _ = _open_files(loads)
        self._stat = _open_files({"stat": root / "proc/stat"})[0].get("stat")
        self._before: Dict[int, Tuple[int, int]] = {}
        self.problem = "" if self._files else why or "no cpufreq or devfreq clock can be read"

    def read(self) -> sysfs.Json:
        now = ((name, file.read_number()) for name, file in self._files.items())
        hz = {name: int(v) * self._hz[name] for name, v in now if v is not None}
        busy = {name: v / 1000 for name, v in self._read_unit_loads()}
        busy.update(self._measure_busy_cores())
        return {"clocks_hz": hz, "busy": busy}

    def _read_unit_loads(self) -> Iterator[Tuple[str, float]]:
        for name, file in self._loads.items():
            value = file.read_number()
            if value is not None:
                yield name, value

    def _measure_busy_cores(self) -> Dict[str, float]:
        before, self._before = (
            self._before,
            _parse_core_times(self._stat.read_text() if self._stat else ""),
        )
        used = {}
        for core, (busy, total) in self._before.items():
            if core in before and total > before[core][1]:
                used[core] = (busy - before[core][0]) / (total - before[core][1])
        return {
            policy: round(sum(used[core] for core in cores if core in used), 3)
            for policy, cores in self._cores.items()
            if any(core in used for core in cores)
        }


class _Power(_Group):
    """Intel's RAPL counters of energy, and rails behind a Jetson's INA3221."""

    kind = "power"

    def __init__(self, root: Path, clock: Callable[[], int]) -> None:
        self._clock = clock
        rails = _find_rails(root)
        self._volts, _ = _open_files({name: volts for name, (volts, _) in rails.items()})
        self._amperes, why = _open_files({name: amperes for name, (_, amperes) in rails.items()})
        packages = _find_packages(root)
        self._energy, denied = _open_files(
            {name: zone / "energy_uj" for name, zone in packages.items()}
        )
        self._range_uj = {
            name: sysfs.parse_number(sysfs.read(zone / "max_energy_range_uj")) or 0.0
            for name, zone in packages.items()
        }
        self._before: Dict[str, Tuple[int, float]] = {}
        known = self._energy or (self._volts and self._amperes)
        self.problem = "" if known else why or denied or "no RAPL counter or INA3221 can be read"

    def read(self) -> sysfs.Json:
        watts = {}
        for name in self._volts.keys() & self._amperes.keys():
            millivolts = self._volts[name].read_number()
            milliamperes = self._amperes[name].read_number()
            if millivolts is not None and milliamperes is not None:
                watts[name] = round(millivolts * milliamperes / 1e6, 4)
        for name, file in self._energy.items():
            energy_uj, at_ns = file.read_number(), self._clock()
            if energy_uj is None:
                continue
            if name in self._before:
                from_ns, from_uj = self._before[name]
                used_uj = energy_uj - from_uj
                if used_uj < 0:  # the counter began again at 0
                    used_uj += self._range_uj[name]
                watts[name] = round(used_uj * 1e3 / max(1, at_ns - from_ns), 4)
            self._before[name] = (at_ns, energy_uj)
        return {"power_w": watts}


class _Throttling(_Group):
    kind = "throttling"

    def __init__(self, root: Path, clock: Callable[[], int], ask: Callable[..., str]) -> None:
        self._clock, self._ask = clock, ask
        counters = {str(path): (cause, path) for cause, path in sysfs.list_throttle_counters(root)}
        self._counters, why = _open_files({key: path for key, (_, path) in counters.items()})
        self._causes = {key: cause for key, (cause, _) in counters.items()}
        self._counted = {key: file.read_number() for key, file in self._counters.items()}
        self._pi = _open_files({"bits": root / sysfs.PI_FILE})[0].get("bits")
        self._asks = self._pi is None and bool(ask("vcgencmd", "get_throttled"))
        self._asked_ns = 0
        self._answer: List[str] = []
        known = self._counters or self._pi or self._asks
        self.problem = "" if known else why or "no counter or throttle bits can be read"

    def read(self) -> sysfs.Json:
        found = {}
        for key, file in self._counters.items():
            before, now = self._counted[key], file.read_number()
            if before is not None and now is not None and now > before:
                found[self._causes[key]] = True
            self._counted[key] = now
        return {"throttled": list(found) + self._read_pi_causes()}

    def _read_pi_causes(self) -> List[str]:
        if self._pi is not None:
            text = self._pi.read_text().strip()
            bits = int(text, 16) if text else 0
            return sysfs.list_bit_names(bits | bits >> 16)
        at_ns = self._clock()
        if self._asks and at_ns - self._asked_ns >= SLOW_S * 1e9:
            _, _, text = self._ask("vcgencmd", "get_throttled").partition("=")
            self._asked_ns, self._answer = (
                at_ns,
                sysfs.list_bit_names(int(text, 16)) if text else [],
            )
        return self._answer


class _Load(_Group):
    kind = "load"

    def __init__(self, root: Path) -> None:
        files, why = _open_files({"load": root / "proc/loadavg"})
        self._file = files.get("load")
        self.problem = "" if self._file else why or "there is no /proc/loadavg"

    def read(self) -> sysfs.Json:
        text = self._file.read_text() if self._file else ""
        return {"load": float(text.split()[0])} if text else {}


class OpenFile:
    """A file of the kernel's that is opened once and read again and again."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(str(path), os.O_RDONLY | os.O_CLOEXEC)

    def read_text(self) -> str:
        """Return what it says now; nothing where it cannot be read at the moment."""
        try:
            return os.pread(self._descriptor, READ_BYTES, 0).decode("ascii", "replace")
        except OSError:
            return ""

    def read_number(self) -> Optional[float]:
        """Return the number that it holds now."""
        return sysfs.parse_number(self.read_text())


def _open_files(paths: Dict[str, Path]) -> Tuple[Dict[str, OpenFile], str]:
    """Open files; also return why the last of those that cannot be opened is not there."""
    files, why = {}, ""
    for name, path in paths.items():
        try:
            files[name] = OpenFile(path)
        except OSError as error:
            why = f"{path}: {error.strerror}"
    return files, why


def read_trip_points(root: Path = sysfs.ROOT, gpus: Sequence[nvml.Gpu] = ()) -> Dict[str, float]:
    """Return from which temperature on the system slows the device down, by zone or GPU.

    ``passive`` is where that begins, ``hot`` where firmware is told. The trip points of
    ``x86_pkg_temp`` only notify whoever set them. Source: Linux's
    Documentation/driver-api/thermal/x86_pkg_temperature_thermal.rst.
    """
    found = {}
    for name, zone in sysfs.find_zones(root).items():
        kinds: Dict[str, List[float]] = {"passive": [], "hot": []}
        for path in zone.glob("trip_point_*_type"):
            celsius = sysfs.parse_number(
                sysfs.read(path.with_name(path.name.replace("_type", "_temp")))
            )
            if celsius is not None and celsius > 0:
                kinds.setdefault(sysfs.read(path).strip(), []).append(celsius / 1000)
        points = kinds["passive"] or kinds["hot"]
        if points and not name.startswith("x86_pkg_temp"):
            found[name] = min(points)
    for name, gpu in _name_gpus(gpus).items():
        slowdown_c = gpu.read_slowdown_c()
        if slowdown_c:
            found[name] = slowdown_c
    return found


def find_clocks(root: Path = sysfs.ROOT) -> Dict[str, Tuple[Path, int]]:
    """Return the file with each clock, and how many Hz its unit is."""
    policies = (root / "sys/devices/system/cpu/cpufreq").glob("policy*/scaling_cur_freq")
    found: List[Tuple[str, Tuple[Path, int]]] = []
    found += ((path.parent.name, (path, 1000)) for path in sysfs.sort_paths(policies))
    for path in sysfs.sort_paths((root / "sys/class/devfreq").glob("*/cur_freq")):
        found.append((_name_unit(path.parent), (path, 1)))
    return sysfs.number_names(found)


def _name_unit(folder: Path) -> str:
    """Return what a devfreq device is: ``17000000.gpu`` is ``gpu``."""
    name = folder.name.rpartition(".")[2]
    return "gpu" if name in GPUS else name


def _parse_core_times(stat: str) -> Dict[int, Tuple[int, int]]:
    """Return the busy and all ticks of each core so far, from the text of /proc/stat."""
    found = sysfs.parse_core_ticks(stat)
    return {core: (sum(t) - sum(t[3:5]), sum(t)) for core, t in found.items()}


def _parse_core_numbers(text: str) -> List[int]:
    return [int(each) for each in text.split() if each.isdigit()]


def _find_rails(root: Path) -> Dict[str, Tuple[Path, Path]]:
    """Return the files with the millivolts and milliamperes of each rail behind an INA3221."""
    found = []
    for label in sysfs.sort_paths((root / "sys/class/hwmon").glob("hwmon*/in[123]_label")):
        channel = label.name[2]
        amperes = label.with_name(f"curr{channel}_input")
        name = sysfs.read(label).strip()
        if sysfs.read(label.with_name("name")).strip() == "ina3221" and name != "NC":
            found.append((name, (label.with_name(f"in{channel}_input"), amperes)))
    return sysfs.number_names(found)


def _find_packages(root: Path) -> Dict[str, Path]:
    """Return RAPL's zones of whole packages; ``intel-rapl:0:0`` would be a part of one."""
    folders = sysfs.sort_paths((root / "sys/class/powercap").glob("intel-rapl:*"))
    named = (
        (sysfs.read(zone / "name").strip(), zone) for zone in folders if zone.name.count(":") == 1
    )
    return {name: zone for name, zone in named if name.startswith("package-")}

"""What decides the speed of this machine: temperatures, clocks, power, throttling, load.

::

    python3 -IS edgepack_conditions.py sample INTERVAL_S

reads every sensor at once and then after each interval until stdin ends, once more then, and
prints one JSON document: a ``Sampling`` of edgepack's reports. Files are opened once; one reading
is a few ``pread``. :class:`Sampler` starts it.

::

    python3 -IS edgepack_conditions.py cool-down LIMIT_C PAUSE_S

waits so long, and until the hottest thermal zone is no hotter than the limit, but no longer than
:data:`COOL_DOWN_S`. Then it prints ``{"temperature_c": ..., "waited_s": ...}``. Meanwhile it says
on stderr how hot it is. Where no temperature can be read it does not wait at all.

What the machine does not tell is ``{"kind": "not-measured", "reason": ...}`` or a reason under
``unknown``, never null or zero. Every reader takes the root of the file system, so that it can
read another machine's files.

Sources: Linux's Documentation/driver-api/thermal/sysfs-api.rst,
Documentation/admin-guide/pm/cpufreq.rst, Documentation/ABI/testing/sysfs-class-devfreq,
Documentation/power/powercap/powercap.rst, Documentation/hwmon/ina3221.rst and
Documentation/filesystems/proc.rst (1.7: /proc/stat) and Documentation/accounting/psi.rst;
proc_pid_stat(5) of the Linux man-pages (/proc/PID/stat); NVIDIA Jetson Linux Developer Guide,
"Platform Power and Performance" (nvpmodel, over-current counters).

Needs Python 3.8 or newer, and nothing else.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Tuple

Json = Dict[str, Any]

ROOT = Path("/")
INTERVAL_S = 0.5
READ_BYTES = 1 << 16
COLDEST = -40_000
"""Millidegrees. Below is no temperature: zones of units that are off say -256 or -274 degrees."""
START_S = 10.0
STOP_S = 10.0
"""How long the sampler may take to end; it may wait for a sensor, or for a core to be free."""
COOL_DOWN_S = 300.0
SAY_S = 5.0
COOLING = "edgepack-cooling "
SLOW_S = 2.0
"""Between two starts of a program that tells what no file does."""
PI_CAUSES = ("under-voltage", "frequency capped", "throttled", "soft temperature limit")
"""Bits 0 to 3, and since boot 16 to 19, of ``vcgencmd get_throttled``. Source: Raspberry Pi
documentation, "vcgencmd"."""
PI_FILE = "sys/devices/platform/soc/soc:firmware/get_throttled"
"""The same bits, as the kernel's driver last had them. It asks every two seconds and has bits 16 to
19 cleared then, so that they tell of two seconds, not of the time since boot. Source:
drivers/firmware/raspberrypi.c of raspberrypi/linux, drivers/hwmon/raspberrypi-hwmon.c of Linux."""
OVER_CURRENT = {
    "oc1": "under-voltage",
    "oc2": "average over-current",
    "oc3": "instantaneous over-current",
}
"""Of a Jetson Orin, by the counter ``ocN_event_cnt``."""
GPUS = ("gpu", "ga10b", "gv11b", "gp10b", "gm20b")
"""Last parts of the names of devfreq devices that are a GPU; all but the first a Jetson's."""
WHOLE_INPUT = ("VDD_IN", "POM_5V_IN")
"""Rails of Jetson modules through which all of their power comes."""


def conditions(root: Path = ROOT) -> Json:
    """Return what decides the speed of this moment, as ``Conditions`` of edgepack's reports."""
    bits, of_boot = throttled_bits(root)
    return {
        "governor": governor(root),
        "temperature_c": temperature_c(root),
        "throttle_events": throttle_events(root),
        "throttled_now": _causes(bits, 0),
        "throttled_since_boot": _causes(bits if of_boot else None, 16),
        "power_mode": power_mode(root),
        "load": load(root),
    }


def boot_id(root: Path = ROOT) -> Any:
    """Return what changes with every boot."""
    text = read(root / "proc/sys/kernel/random/boot_id").strip() or output(
        "sysctl", "-n", "kern.bootsessionuuid"
    )
    return text or not_measured("this system has no boot id")


def governor(root: Path = ROOT) -> Any:
    """Return the frequency governors of all cores, joined where they differ."""
    paths = (root / "sys/devices/system/cpu/cpufreq").glob("policy*/scaling_governor")
    found = sorted({read(path).strip() for path in paths} - {""})
    return "+".join(found) or not_measured("no cpufreq governor can be read")


def temperature_c(root: Path = ROOT) -> Any:
    """Return the hottest thermal zone in degrees Celsius."""
    found = list(read_zones(root).values())
    return max(found) if found else not_measured("no thermal zone can be read")


def read_zones(root: Path = ROOT) -> Dict[str, float]:
    """Return the temperature of each thermal zone that tells one, in degrees Celsius."""
    read_now = ((name, _number(read(zone / "temp"))) for name, zone in zones(root).items())
    return {name: value / 1000 for name, value in read_now if value is not None and value > COLDEST}


def throttle_events(root: Path = ROOT) -> Any:
    """Return how often this machine was slowed down since boot, as far as it counts that."""
    found = [_number(read(path)) for _, path in throttle_counters(root)]
    known = [int(value) for value in found if value is not None]
    return sum(known) if known else not_measured("no throttle counter can be read")


def throttled_bits(root: Path = ROOT) -> Tuple[Optional[int], bool]:
    """Return a Raspberry Pi's throttle bits, and whether those from 16 on are since boot."""
    _, _, text = output("vcgencmd", "get_throttled").partition("=")
    if text:
        return int(text, 16), True
    text = read(root / PI_FILE).strip()
    return (int(text, 16), False) if text else (None, False)


def power_mode(root: Path = ROOT) -> Any:
    """Return the power mode by its name: a Jetson's, or an ACPI platform profile."""
    found = re.search(r"NV Power Mode: *(\S+)", output("nvpmodel", "-q"))
    text = found[1] if found else read(root / "sys/firmware/acpi/platform_profile").strip()
    return text or not_measured("this device has none")


def load(root: Path = ROOT) -> Any:
    """Return how many processes ran or waited to, on average over the last minute."""
    text = read(root / "proc/loadavg")
    return float(text.split()[0]) if text else not_measured("there is no /proc/loadavg")


def zones(root: Path = ROOT) -> Dict[str, Path]:
    """Return the folder of each thermal zone by its type."""
    folders = _in_order((root / "sys/class/thermal").glob("thermal_zone*"))
    return _numbered((read(folder / "type").strip() or folder.name, folder) for folder in folders)


def trip_points_c(root: Path = ROOT) -> Dict[str, float]:
    """Return from which temperature on the system slows the device down, by thermal zone.

    ``passive`` is where that begins, ``hot`` where firmware is told. The trip points of
    ``x86_pkg_temp`` only notify whoever set them. Source: Linux's
    Documentation/driver-api/thermal/x86_pkg_temperature_thermal.rst.
    """
    found = {}
    for name, zone in zones(root).items():
        kinds: Dict[str, List[float]] = {"passive": [], "hot": []}
        for path in zone.glob("trip_point_*_type"):
            celsius = _number(read(path.with_name(path.name.replace("_type", "_temp"))))
            if celsius is not None and celsius > 0:
                kinds.setdefault(read(path).strip(), []).append(celsius / 1000)
        points = kinds["passive"] or kinds["hot"]
        if points and not name.startswith("x86_pkg_temp"):
            found[name] = min(points)
    return found


def throttle_counters(root: Path = ROOT) -> List[Tuple[str, Path]]:
    """Return the files that count how often this machine was slowed down, each with its cause."""
    cores = (root / "sys/devices/system/cpu").glob("cpu*/thermal_throttle/core_throttle_count")
    found = [("thermal throttling", path) for path in _in_order(cores)]
    for path in _in_order((root / "sys/class/hwmon").glob("hwmon*/oc*_event_cnt")):
        name = path.name.partition("_")[0]
        found.append((OVER_CURRENT.get(name, name), path))
    return found


def clocks(root: Path = ROOT) -> Dict[str, Tuple[Path, int]]:
    """Return the file with each clock, and how many Hz its unit is."""
    policies = (root / "sys/devices/system/cpu/cpufreq").glob("policy*/scaling_cur_freq")
    found: List[Tuple[str, Tuple[Path, int]]] = []
    found += ((path.parent.name, (path, 1000)) for path in _in_order(policies))
    for path in _in_order((root / "sys/class/devfreq").glob("*/cur_freq")):
        found.append((_unit(path.parent), (path, 1)))
    return _numbered(found)


def not_measured(reason: str) -> Json:
    """Return what stands for a value that is not known."""
    return {"kind": "not-measured", "reason": reason}


def read(path: Path) -> str:
    """Return the text of a file, which is empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def output(*argv: str) -> str:
    """Return what a program prints, which is nothing if there is no such program."""
    if shutil.which(argv[0]) is None:
        return ""
    done = subprocess.run(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False, timeout=10
    )
    return done.stdout.decode("utf-8", "replace").strip()


class OpenFile:
    """A file of the kernel's that is opened once and read again and again."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(str(path), os.O_RDONLY | os.O_CLOEXEC)

    def text(self) -> str:
        """Return what it says now; nothing where it cannot be read at the moment."""
        try:
            return os.pread(self._descriptor, READ_BYTES, 0).decode("ascii", "replace")
        except OSError:
            return ""

    def number(self) -> Optional[float]:
        """Return the number that it holds now."""
        return _number(self.text())


class Sensors:
    """All sensors of this machine, opened once."""

    def __init__(self, root: Path = ROOT) -> None:
        self._groups = [
            _Temperatures(root),
            _Clocks(root),
            _Power(root),
            _Throttling(root),
            _Load(root),
        ]
        self.unknown: Dict[str, str] = {}
        """Why a kind of sensor was not read."""
        for group in self._groups:
            if group.problem:
                self.unknown[group.kind] = group.problem

    def sample(self) -> Json:
        """Return what they say now; of power and use, what it was since the time before."""
        found: Json = {"at_ns": time.monotonic_ns()}
        for group in self._groups:
            if not group.problem:
                found.update(group.read())
        return found


class _Group:
    kind = ""
    problem = ""

    def read(self) -> Json:
        raise NotImplementedError


class _Temperatures(_Group):
    kind = "temperature"

    def __init__(self, root: Path) -> None:
        files, why = _opened({name: zone / "temp" for name, zone in zones(root).items()})
        self._files = files
        self.problem = "" if files else why or "no thermal zone can be read"

    def read(self) -> Json:
        now = ((name, file.number()) for name, file in self._files.items())
        known = {name: v / 1000 for name, v in now if v is not None and v > COLDEST}
        return {"temperatures_c": known}


class _Clocks(_Group):
    """Clocks, and how busy what they drive is."""

    kind = "clocks"

    def __init__(self, root: Path) -> None:
        found = clocks(root)
        self._files, why = _opened({name: path for name, (path, _) in found.items()})
        self._hz = {name: unit for name, (_, unit) in found.items()}
        self._cores = {
            path.parent.name: _core_numbers(read(path))
            for path in (root / "sys/devices/system/cpu/cpufreq").glob("policy*/related_cpus")
        }
        loads = {
            _unit(path): path / "device/load" for path in (root / "sys/class/devfreq").glob("*")
        }
        self._loads, _ = _opened(loads)
        self._stat = _opened({"stat": root / "proc/stat"})[0].get("stat")
        self._before: Dict[int, Tuple[int, int]] = {}
        self.problem = "" if self._files else why or "no cpufreq or devfreq clock can be read"

    def read(self) -> Json:
        now = ((name, file.number()) for name, file in self._files.items())
        hz = {name: int(v) * self._hz[name] for name, v in now if v is not None}
        busy = {name: v / 1000 for name, v in self._unit_loads()}
        busy.update(self._busy_cores())
        return {"clocks_hz": hz, "busy": busy}

    def _unit_loads(self) -> Iterator[Tuple[str, float]]:
        for name, file in self._loads.items():
            value = file.number()
            if value is not None:
                yield name, value

    def _busy_cores(self) -> Dict[str, float]:
        before, self._before = self._before, _core_times(self._stat.text() if self._stat else "")
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

    def __init__(self, root: Path) -> None:
        rails = _rails(root)
        self._volts, _ = _opened({name: volts for name, (volts, _) in rails.items()})
        self._amperes, why = _opened({name: amperes for name, (_, amperes) in rails.items()})
        packages = _packages(root)
        self._energy, denied = _opened(
            {name: zone / "energy_uj" for name, zone in packages.items()}
        )
        self._range_uj = {
            name: _number(read(zone / "max_energy_range_uj")) or 0.0
            for name, zone in packages.items()
        }
        self._before: Dict[str, Tuple[int, float]] = {}
        known = self._energy or (self._volts and self._amperes)
        self.problem = "" if known else why or denied or "no RAPL counter or INA3221 can be read"

    def read(self) -> Json:
        watts = {}
        for name in self._volts.keys() & self._amperes.keys():
            millivolts, milliamperes = self._volts[name].number(), self._amperes[name].number()
            if millivolts is not None and milliamperes is not None:
                watts[name] = round(millivolts * milliamperes / 1e6, 4)
        for name, file in self._energy.items():
            energy_uj, at_ns = file.number(), time.monotonic_ns()
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

    def __init__(self, root: Path) -> None:
        counters = {str(path): (cause, path) for cause, path in throttle_counters(root)}
        self._counters, why = _opened({key: path for key, (_, path) in counters.items()})
        self._causes = {key: cause for key, (cause, _) in counters.items()}
        self._counted = {key: file.number() for key, file in self._counters.items()}
        self._pi = _opened({"bits": root / PI_FILE})[0].get("bits")
        self._asks = self._pi is None and bool(output("vcgencmd", "get_throttled"))
        self._asked_ns = 0
        self._answer: List[str] = []
        known = self._counters or self._pi or self._asks
        self.problem = "" if known else why or "no counter or throttle bits can be read"

    def read(self) -> Json:
        found = {}
        for key, file in self._counters.items():
            before, now = self._counted[key], file.number()
            if before is not None and now is not None and now > before:
                found[self._causes[key]] = True
            self._counted[key] = now
        return {"throttled": list(found) + self._pi_causes()}

    def _pi_causes(self) -> List[str]:
        if self._pi is not None:
            text = self._pi.text().strip()
            bits = int(text, 16) if text else 0
            return _bit_names(bits | bits >> 16)
        at_ns = time.monotonic_ns()
        if self._asks and at_ns - self._asked_ns >= SLOW_S * 1e9:
            _, _, text = output("vcgencmd", "get_throttled").partition("=")
            self._asked_ns, self._answer = at_ns, _bit_names(int(text, 16)) if text else []
        return self._answer


class _Load(_Group):
    kind = "load"

    def __init__(self, root: Path) -> None:
        files, why = _opened({"load": root / "proc/loadavg"})
        self._file = files.get("load")
        self.problem = "" if self._file else why or "there is no /proc/loadavg"

    def read(self) -> Json:
        text = self._file.text() if self._file else ""
        return {"load": float(text.split()[0])} if text else {}


class Sampler:
    """Has another process read the sensors until it is stopped, or this process ends.

    It has taken its first reading when this returns, so that its start disturbs nobody. Only then
    it stands back: at the lowest priority a busy machine would take seconds to start it.
    """

    def __init__(self, interval_s: float = INTERVAL_S, root: Path = ROOT) -> None:
        # A file, for nobody reads meanwhile, and what is written to a full pipe waits.
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115
        argv = [sys.executable, "-IS", __file__, "sample", str(interval_s), str(root)]
        self._child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=self._printed)
        deadline = time.monotonic() + START_S
        while self._child.poll() is None and time.monotonic() < deadline:
            if os.fstat(self._printed.fileno()).st_size:
                break
            time.sleep(0.005)
        stand_back(self._child.pid)

    @property
    def pid(self) -> int:
        """Of the process that reads."""
        return self._child.pid

    def stop(self) -> Json:
        """Return the ``Sampling`` of edgepack's reports, or why there is none."""
        try:
            self._child.communicate(timeout=STOP_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        with self._printed as file:
            file.seek(0)
            text = file.read()
        if self._child.returncode != 0:
            return not_measured(f"the sampler ended with exit code {self._child.returncode}")
        found: Json = json.loads(text)
        return found


def sample_until_end(interval_s: float, root: Path = ROOT) -> Json:
    """Read the sensors at once, every interval, and when stdin ends; return the ``Sampling``."""
    sensors = Sensors(root)
    started_ns, started_cpu_ns = time.monotonic_ns(), cpu_ns()
    samples = [sensors.sample()]
    print(flush=True)  # says that it has begun; JSON may follow on white space
    interval_ns = int(interval_s * 1e9)
    ended = False
    while not ended:
        wait_ns = interval_ns - (time.monotonic_ns() - started_ns) % interval_ns
        ended = bool(select.select([0], [], [], wait_ns / 1e9)[0])
        samples.append(sensors.sample())
    return {
        "interval_s": interval_s,
        "samples": samples,
        "unknown": sensors.unknown,
        "trip_points_c": trip_points_c(root),
        "cpu_ns": cpu_ns() - started_cpu_ns,
        "elapsed_ns": time.monotonic_ns() - started_ns,
    }


def cpu_ns() -> int:
    """Return the processor time that this process and those it waited for have taken so far."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time_ns() + int((children.ru_utime + children.ru_stime) * 1e9)


class Used(NamedTuple):
    """What was used of some cores until a moment, in nanoseconds."""

    at_ns: int
    worked: int
    """By all processes and the kernel."""
    stolen: int
    """By the host of this virtual machine, while this one had work for the core."""
    own: int
    """By this process."""
    helper: int
    """By the sampler, as far as it may run on these cores."""
    waited: Optional[int]
    """For how long some process, on whatever core, had work and waited for one."""


class OtherWork:
    """What others take of the cores that this process may use, from here on.

    Args:
        helper: A process of ours, the sampler, which is not counted among the others.
        root: Of the file system.
    """

    def __init__(self, helper: Optional[int] = None, root: Path = ROOT) -> None:
        self._helper = helper
        self._root = root
        self._cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
        self._before = self._used()

    def taken(self) -> Json:
        """Return the ``OtherWork`` of edgepack's reports until now, or why it is not known."""
        after = self._used()
        if self._before is None or after is None:
            return not_measured("there is no /proc/stat that counts this process's cores")
        return other_work(self._before, after, len(self._cores))

    def _used(self) -> Optional[Used]:
        ticks = _core_ticks(read(self._root / "proc/stat"))
        if not self._cores or not self._cores <= ticks.keys():
            return None
        pressure = re.search(r"^some .* total=(\d+)", read(self._root / "proc/pressure/cpu"))
        return Used(
            at_ns=time.monotonic_ns(),
            worked=_tick_ns(sum(sum(ticks[core][:3] + ticks[core][5:7]) for core in self._cores)),
            stolen=_tick_ns(sum(sum(ticks[core][7:8]) for core in self._cores)),
            own=time.process_time_ns(),
            helper=self._helper_ns(),
            waited=int(pressure[1]) * 1000 if pressure else None,
        )

    def _helper_ns(self) -> int:
        """Return what the helper used; nothing if it keeps to other cores or has ended."""
        _, _, text = read(self._root / f"proc/{self._helper}/stat").rpartition(")")
        with contextlib.suppress(ProcessLookupError):
            if self._helper and text and os.sched_getaffinity(self._helper) & self._cores:
                # Columns 14 to 17: its own user and system time, and that of children it waited for
                return _tick_ns(sum(map(int, text.split()[11:15])))
        return 0


def other_work(before: Used, after: Used, cores: int) -> Json:
    """Return the ``OtherWork`` of edgepack's reports between two moments.

    Ticks are of 10 ms, so that over less than a second it is rough.
    """
    elapsed = max(1, after.at_ns - before.at_ns)
    own = after.own - before.own
    others = after.worked - before.worked - own - (after.helper - before.helper)
    waiting: Any = not_measured("there is no /proc/pressure/cpu")
    if before.waited is not None and after.waited is not None:
        waiting = round(min(1.0, (after.waited - before.waited) / elapsed), 4)
    return {
        "cores": cores,
        "own_cores": round(own / elapsed, 4),
        "other_cores": round(max(0, others) / elapsed, 4),
        "stolen_cores": round((after.stolen - before.stolen) / elapsed, 4),
        "waiting": waiting,
    }


def cool_down(limit_c: float, pause_s: float, root: Path = ROOT) -> Json:
    """Wait for a while and until it is cool; return how hot it is then, and how long it took."""
    began_s = said_s = time.monotonic()
    hottest = temperature_c(root)
    while isinstance(hottest, float):
        now_s = time.monotonic()
        rested = now_s - began_s >= pause_s and hottest <= limit_c
        if rested or now_s - began_s >= COOL_DOWN_S:
            break
        if now_s - said_s >= SAY_S:
            said_s = now_s
            print(f"{COOLING}{hottest:.1f}", file=sys.stderr, flush=True)
        time.sleep(min(0.5, max(0.05, pause_s)))
        hottest = temperature_c(root)
    return {"temperature_c": hottest, "waited_s": round(time.monotonic() - began_s, 3)}


def stand_back(pid: int) -> None:
    """Give a process the lowest priority, and cores that this one does not have, if there are any.

    Not Linux's idle policy, which is lower: with every core busy, as a model keeps them, a reading
    waited for up to 2.8 s then (Linux 6.18, 2 cores, 4 endless loops; tried 2026-11-22).
    """
    with contextlib.suppress(OSError):  # it may have ended
        os.setpriority(os.PRIO_PROCESS, pid, 19)
        if hasattr(os, "sched_setaffinity"):
            os.sched_setscheduler(pid, os.SCHED_OTHER, os.sched_param(0))  # not a real-time one
            others = set(range(os.cpu_count() or 1)) - os.sched_getaffinity(0)
            if others:
                os.sched_setaffinity(pid, others)


def energy(sampling: Json, from_ns: int, to_ns: int) -> Json:
    """Return the ``Energy`` between two moments, or why it is not known.

    Power is what it was since the sample before. The sources are the one rail of a Jetson through
    which everything comes, or all packages by RAPL.
    """
    if "samples" not in sampling:
        return not_measured(sampling["reason"])
    if "power" in sampling["unknown"]:
        return not_measured(sampling["unknown"]["power"])
    samples = sampling["samples"]
    names = {name for sample in samples for name in sample.get("power_w", {})}
    whole = [name for name in WHOLE_INPUT if name in names][:1]
    used = whole or sorted(name for name in names if name.startswith("package-"))
    if not used:
        return not_measured(f"none of the rails is the whole input: {', '.join(sorted(names))}")
    if not samples[0]["at_ns"] <= from_ns < to_ns <= samples[-1]["at_ns"]:
        return not_measured("the sampler did not run all the time")
    joules = 0.0
    for before, after in zip(samples, samples[1:]):  # noqa: B905, RUF007  (Python 3.8)
        begin, end = max(before["at_ns"], from_ns), min(after["at_ns"], to_ns)
        watts = after.get("power_w", {})
        if begin < end and any(name not in watts for name in used):
            return not_measured("the sensor did not answer all the time")
        joules += sum(watts.get(name, 0.0) for name in used) * max(0, end - begin) / 1e9
    kind = "INA3221" if whole else "RAPL"
    return {"joules": round(joules, 6), "source": " ".join([kind, *used])}


def _causes(bits: Optional[int], first_bit: int) -> Any:
    if bits is None:
        return not_measured("no vcgencmd or driver of a Raspberry Pi tells it")
    return _bit_names(bits >> first_bit)


def _bit_names(bits: int) -> List[str]:
    return [cause for number, cause in enumerate(PI_CAUSES) if bits >> number & 1]


def _rails(root: Path) -> Dict[str, Tuple[Path, Path]]:
    """Return the files with the millivolts and milliamperes of each rail behind an INA3221."""
    found = []
    for label in _in_order((root / "sys/class/hwmon").glob("hwmon*/in[123]_label")):
        channel = label.name[2]
        amperes = label.with_name(f"curr{channel}_input")
        name = read(label).strip()
        if read(label.with_name("name")).strip() == "ina3221" and name != "NC":
            found.append((name, (label.with_name(f"in{channel}_input"), amperes)))
    return _numbered(found)


def _packages(root: Path) -> Dict[str, Path]:
    """Return RAPL's zones of whole packages; ``intel-rapl:0:0`` would be a part of one."""
    folders = _in_order((root / "sys/class/powercap").glob("intel-rapl:*"))
    named = ((read(zone / "name").strip(), zone) for zone in folders if zone.name.count(":") == 1)
    return {name: zone for name, zone in named if name.startswith("package-")}


def _opened(paths: Dict[str, Path]) -> Tuple[Dict[str, OpenFile], str]:
    """Open files; also return why the last of those that cannot be opened is not there."""
    files, why = {}, ""
    for name, path in paths.items():
        try:
            files[name] = OpenFile(path)
        except OSError as error:
            why = f"{path}: {error.strerror}"
    return files, why


def _core_times(stat: str) -> Dict[int, Tuple[int, int]]:
    """Return the busy and all ticks of each core so far, from the text of /proc/stat."""
    found = _core_ticks(stat)
    return {core: (sum(t) - sum(t[3:5]), sum(t)) for core, t in found.items()}


def _core_ticks(stat: str) -> Dict[int, List[int]]:
    """Return the ticks of each core so far, from the text of /proc/stat.

    They are user, nice, system, idle, iowait, irq, softirq and steal.
    """
    return {  # those after the eighth are in user and nice
        int(core): [int(each) for each in text.split()[:8]]
        for core, text in re.findall(r"^cpu(\d+) (.*)$", stat, re.MULTILINE)
    }


def _tick_ns(ticks: int) -> int:
    return ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def _core_numbers(text: str) -> List[int]:
    return [int(each) for each in text.split() if each.isdigit()]


def _unit(folder: Path) -> str:
    """Return what a devfreq device is: ``17000000.gpu`` is ``gpu``."""
    name = folder.name.rpartition(".")[2]
    return "gpu" if name in GPUS else name


def _number(text: str) -> Optional[float]:
    try:
        return float(text)
    except ValueError:
        return None


def _in_order(paths: Iterable[Path]) -> List[Path]:
    """Return paths in the order of the numbers in them: zone2 before zone10."""
    return sorted(
        paths, key=lambda path: [int(each) for each in re.findall(r"\d+", str(path))] or [0]
    )


def _numbered(pairs: Iterable[Tuple[str, Any]]) -> Dict[str, Any]:
    """Return a dictionary in which names that come several times are numbered."""
    found = list(pairs)
    names = [name for name, _ in found]
    seen: Dict[str, int] = {}
    numbered = {}
    for name, value in found:
        seen[name] = seen.get(name, 0) + 1
        several = names.count(name) > 1
        numbered[f"{name} {seen[name]}" if several else name] = value
    return numbered


if __name__ == "__main__":
    if sys.argv[1] == "cool-down":
        document = cool_down(float(sys.argv[2]), float(sys.argv[3]))
    else:
        document = sample_until_end(float(sys.argv[2]), Path(*sys.argv[3:4] or "/"))
    # Not json.dump, which takes ten times as long: half an hour is 3,600 samples.
    sys.stdout.write(json.dumps(document))

"""Reads the sensors in a process of its own while something is measured.

::

    python3 -BIS edgepack_sampler.py INTERVAL_S [ROOT [gpus]]

reads every sensor at once and then after each interval until stdin ends, once more then, and
prints one JSON document: a ``Sampling`` of edgepack's reports. :class:`Sampler` starts it. With
``gpus`` it asks NVIDIA's driver, too: an idle GPU is no part of what computes on the processor.

Needs Python 3.8 or newer, and nothing else.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Sequence

if __package__:
    from . import edgepack_nvml as nvml
    from . import edgepack_sensors as sensors
    from . import edgepack_sysfs as sysfs
else:  # a bundle's, whose folder is not on the path with -I
    sys.path.append(str(Path(__file__).resolve().parent))
    import edgepack_nvml as nvml  # type: ignore[import-not-found,no-redef]
    import edgepack_sensors as sensors  # type: ignore[import-not-found,no-redef]
    import edgepack_sysfs as sysfs  # type: ignore[import-not-found,no-redef]

INTERVAL_S = 0.5
START_S = 10.0
STOP_S = 10.0
"""How long the sampler may take to end; it may wait for a sensor, or for a core to be free."""
WHOLE_INPUT = ("VDD_IN", "POM_5V_IN")
"""Rails of Jetson modules through which all of their power comes."""


class Sampler:
    """Has another process read the sensors until it is stopped, or this process ends.

    It has taken its first reading when this returns, so that its start disturbs nobody. Only then
    it stands back: at the lowest priority a busy machine would take seconds to start it.
    """

    def __init__(
        self, interval_s: float = INTERVAL_S, root: Path = sysfs.ROOT, *, with_gpus: bool = False
    ) -> None:
        # A file, for nobody reads meanwhile, and what is written to a full pipe waits.
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115
        argv = [sys.executable, "-BIS", __file__, str(interval_s), str(root)]
        argv += ["gpus"] if with_gpus else []
        self._child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=self._printed)
        deadline = time.monotonic() + START_S
        while self._child.poll() is None and time.monotonic() < deadline:
            if os.fstat(self._printed.fileno()).st_size:
                break
            time.sleep(0.005)
        lower_priority(self._child.pid)

    @property
    def pid(self) -> int:
        """Of the process that reads."""
        return self._child.pid

    def stop(self) -> sysfs.Json:
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
            return sysfs.make_not_measured(
                f"the sampler ended with exit code {self._child.returncode}"
            )
        found: sysfs.Json = json.loads(text)
        return found


def sample_until_end(
    interval_s: float, root: Path = sysfs.ROOT, gpus: Sequence[nvml.Gpu] = ()
) -> sysfs.Json:
    """Read the sensors at once, every interval, and when stdin ends; return the ``Sampling``."""
    reader = sensors.Sensors(root, gpus)
    started_ns, started_cpu_ns = time.monotonic_ns(), read_cpu_ns()
    samples = [reader.sample()]
    print(flush=True)  # says that it has begun; JSON may follow on white space
    interval_ns = int(interval_s * 1e9)
    ended = False
    while not ended:
        wait_ns = interval_ns - (time.monotonic_ns() - started_ns) % interval_ns
        ended = bool(select.select([0], [], [], wait_ns / 1e9)[0])
        samples.append(reader.sample())
    return {
        "interval_s": interval_s,
        "samples": samples,
        "unknown": reader.unknown,
        "trip_points_c": sensors.read_trip_points(root, gpus),
        "cpu_ns": read_cpu_ns() - started_cpu_ns,
        "elapsed_ns": time.monotonic_ns() - started_ns,
    }


def read_cpu_ns() -> int:
    """Return the processor time that this process and those it waited for have taken so far."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time_ns() + int((children.ru_utime + children.ru_stime) * 1e9)


def lower_priority(pid: int) -> None:
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


def compute_energy(sampling: sysfs.Json, from_ns: int, to_ns: int) -> sysfs.Json:
    """Return the ``Energy`` between two moments, or why it is not known.

    Power is what it was since the sample before. The sources are the one rail of a Jetson through
    which everything comes, or all packages by RAPL and the GPUs that compute by NVML, as far as
    they are known.
    """
    if "samples" not in sampling:
        return sysfs.make_not_measured(sampling["reason"])
    samples = sampling["samples"]
    names = {name for sample in samples for name in sample.get("power_w", {})}
    whole = [name for name in WHOLE_INPUT if name in names][:1]
    packages = sorted(name for name in names if name.startswith("package-"))
    gpus = sorted(name for name in names if name.partition(" ")[0] == "gpu")
    others = names - {*packages, *gpus}
    used = whole or (packages if others else packages + gpus)
    if not used and "power" in sampling["unknown"]:
        return sysfs.make_not_measured(sampling["unknown"]["power"])
    if not used:
        return sysfs.make_not_measured(
            f"none of the rails is the whole input: {', '.join(sorted(names))}"
        )
    if not samples[0]["at_ns"] <= from_ns < to_ns <= samples[-1]["at_ns"]:
        return sysfs.make_not_measured("the sampler did not run all the time")
    joules = 0.0
    for before, after in zip(samples, samples[1:]):  # noqa: B905, RUF007  (Python 3.8)
        begin, end = max(before["at_ns"], from_ns), min(after["at_ns"], to_ns)
        watts = after.get("power_w", {})
        if begin < end and any(name not in watts for name in used):
            return sysfs.make_not_measured("the sensor did not answer all the time")
        joules += sum(watts.get(name, 0.0) for name in used) * max(0, end - begin) / 1e9
    kinds = {"INA3221": whole, "RAPL": packages, "NVML": gpus}
    listed = {kind: [name for name in parts if name in used] for kind, parts in kinds.items()}
    sources = [" ".join([kind, *parts]) for kind, parts in listed.items() if parts]
    alone = " alone" if used == gpus else ""
    return {"joules": round(joules, 6), "source": ", ".join(sources) + alone}


if __name__ == "__main__":
    found_gpus = nvml.find_gpus() if "gpus" in sys.argv[3:] else []
    document = sample_until_end(float(sys.argv[1]), Path(*sys.argv[2:3] or "/"), found_gpus)
    # Not json.dump, which takes ten times as long: half an hour is 3,600 samples.
    sys.stdout.write(json.dumps(document))

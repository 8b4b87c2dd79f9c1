"""Asks a device which processors it lets a measured process use."""

from __future__ import annotations

from edgepack.devices.answers import read_answer
from edgepack.devices.transport import Transport
from edgepack.records.topology import Topology

ASK_S = 60.0
# Sources: Documentation/admin-guide/cputopology.rst and cpufreq.rst of Linux; cpu_capacity of
# Documentation/ABI/testing/sysfs-devices-system-cpu.
_SCRIPT = """
import json, os
def text(cpu, name):
    try:
        with open("/sys/devices/system/cpu/cpu%d/%s" % (cpu, name)) as file:
            return file.read().strip()
    except OSError:
        return ""
def number(text):
    return int(text) if text.isdigit() else 0
found = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
print(json.dumps({
    "count": len(found) or os.cpu_count() or 1,
    "processors": [{
        "number": cpu,
        "core": text(cpu, "topology/thread_siblings_list") or str(cpu),
        "max_khz": number(text(cpu, "cpufreq/cpuinfo_max_freq")),
        "capacity": number(text(cpu, "cpu_capacity")),
    } for cpu in found],
}))
"""


def ask_topology(transport: Transport, python: str, run_prefix: tuple[str, ...]) -> Topology:
    """Ask a device on which processors a process started with its prefix may run.

    Raises:
        DeviceError: It does not answer that.
        RemoteCommandError: Its Python failed.
    """
    result = transport.run([*run_prefix, python, "-c", _SCRIPT], timeout_s=ASK_S)
    result.check(
        "asking for the processors",
        device=transport.name,
        hint="see 'run_prefix' of the device in devices.yaml",
    )
    return read_answer(
        Topology, result.stdout, device=transport.name, what="the list of processors"
    )

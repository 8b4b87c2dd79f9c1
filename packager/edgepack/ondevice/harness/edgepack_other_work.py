"""What others take of the cores that a process may use, while it measures.

Sources: Linux's Documentation/filesystems/proc.rst (1.7: /proc/stat) and
Documentation/accounting/psi.rst; proc_pid_stat(5) of the Linux man-pages (/proc/PID/stat).

Needs Python 3.8 or newer, and nothing else.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path
from typing import Any, NamedTuple, Optional

if __package__:
    from . import edgepack_sysfs as sysfs
else:
    import edgepack_sysfs as sysfs  # type: ignore[import-not-found,no-redef]


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

    def __init__(self, helper: Optional[int] = None, root: Path = sysfs.ROOT) -> None:
        self._helper = helper
        self._root = root
        self._cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
        self._before = self._read_used()

    def measure(self) -> sysfs.Json:
        """Return the ``OtherWork`` of edgepack's reports until now, or why it is not known."""
        after = self._read_used()
        if self._before is None or after is None:
            return sysfs.make_not_measured(
                "there is no /proc/stat that counts this process's cores"
            )
        return compute_other_work(self._before, after, len(self._cores))

    def _read_used(self) -> Optional[Used]:
        ticks = sysfs.parse_core_ticks(sysfs.read(self._root / "proc/stat"))
        if not self._cores or not self._cores <= ticks.keys():
            return None
        pressure = re.search(r"^some .* total=(\d+)", sysfs.read(self._root / "proc/pressure/cpu"))
        worked = sum(sum(ticks[core][:3] + ticks[core][5:7]) for core in self._cores)
        return Used(
            at_ns=time.monotonic_ns(),
            worked=_convert_ticks(worked),
            stolen=_convert_ticks(sum(sum(ticks[core][7:8]) for core in self._cores)),
            own=time.process_time_ns(),
            helper=self._read_helper_ns(),
            waited=int(pressure[1]) * 1000 if pressure else None,
        )

    def _read_helper_ns(self) -> int:
        """Return what the helper used; nothing if it keeps to other cores or has ended."""
        _, _, text = sysfs.read(self._root / f"proc/{self._helper}/stat").rpartition(")")
        with contextlib.suppress(ProcessLookupError):
            if self._helper and text and os.sched_getaffinity(self._helper) & self._cores:
                # Columns 14 to 17: its own user and system time, and that of children it waited for
                return _convert_ticks(sum(map(int, text.split()[11:15])))
        return 0


def compute_other_work(before: Used, after: Used, cores: int) -> sysfs.Json:
    """Return the ``OtherWork`` of edgepack's reports between two moments.

    Ticks are of 10 ms, so that over less than a second it is rough.
    """
    elapsed = max(1, after.at_ns - before.at_ns)
    own = after.own - before.own
    others = after.worked - before.worked - own - (after.helper - before.helper)
    waiting: Any = sysfs.make_not_measured("there is no /proc/pressure/cpu")
    if before.waited is not None and after.waited is not None:
        waiting = round(min(1.0, (after.waited - before.waited) / elapsed), 4)
    return {
        "cores": cores,
        "own_cores": round(own / elapsed, 4),
        "other_cores": round(max(0, others) / elapsed, 4),
        "stolen_cores": round((after.stolen - before.stolen) / elapsed, 4),
        "waiting": waiting,
    }


def _convert_ticks(ticks: int) -> int:
    return ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")

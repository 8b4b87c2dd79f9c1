"""What a system tells of its machine: its files under /sys and /proc, and programs.

What it does not tell is ``{"kind": "not-measured", "reason": ...}``, never null or zero. Every
reader takes the root of the file system, so that it can read another machine's files.

Sources: Linux's Documentation/driver-api/thermal/sysfs-api.rst and
Documentation/filesystems/proc.rst (1.7: /proc/stat); NVIDIA Jetson Linux Developer Guide,
"Platform Power and Performance" (over-current counters).

Needs Python 3.8 or newer, and nothing else.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Dict, Iterable, List, Optional, Tuple

Json = Dict[str, Any]

ROOT = Path("/")
COLDEST = -40_000
"""Millidegrees. Below is no temperature: zones of units that are off say -256 or -274 degrees."""
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


def make_not_measured(reason: str) -> Json:
    """Return what stands for a value that is not known."""
    return {"kind": "not-measured", "reason": reason}


def read(path: Path) -> str:
    """Return the text of a file, which is empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def read_output(*argv: str) -> str:
    """Return what a program prints, which is nothing if there is no such program."""
    if shutil.which(argv[0]) is None:
        return ""
    done = subprocess.run(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False, timeout=10
    )
    return done.stdout.decode("utf-8", "replace").strip()


def parse_number(text: str) -> Optional[float]:
    """Return the number that a file holds, if it is one."""
    try:
        return float(text)
    except ValueError:
        return None


def find_zones(root: Path = ROOT) -> Dict[str, Path]:
    """Return the folder of each thermal zone by its type."""
    folders = sort_paths((root / "sys/class/thermal").glob("thermal_zone*"))
    return number_names(
        (read(folder / "type").strip() or folder.name, folder) for folder in folders
    )


def list_throttle_counters(root: Path = ROOT) -> List[Tuple[str, Path]]:
    """Return the files that count how often this machine was slowed down, each with its cause."""
    cores = (root / "sys/devices/system/cpu").glob("cpu*/thermal_throttle/core_throttle_count")
    found = [("thermal throttling", path) for path in sort_paths(cores)]
    for path in sort_paths((root / "sys/class/hwmon").glob("hwmon*/oc*_event_cnt")):
        name = path.name.partition("_")[0]
        found.append((OVER_CURRENT.get(name, name), path))
    return found


def list_bit_names(bits: int) -> List[str]:
    """Return the causes that the lowest bits of a Raspberry Pi stand for."""
    return [cause for bit, cause in enumerate(PI_CAUSES) if bits >> bit & 1]


def parse_core_ticks(stat: str) -> Dict[int, List[int]]:
    """Return the ticks of each core so far, from the text of /proc/stat.

    They are user, nice, system, idle, iowait, irq, softirq and steal.
    """
    return {  # those after the eighth are in user and nice
        int(core): [int(each) for each in text.split()[:8]]
        for core, text in re.findall(r"^cpu(\d+) (.*)$", stat, re.MULTILINE)
    }


def sort_paths(paths: Iterable[Path]) -> List[Path]:
    """Return paths in the order of the numbers in them: zone2 before zone10."""
    return sorted(
        paths, key=lambda path: [int(each) for each in re.findall(r"\d+", str(path))] or [0]
    )


def number_names(pairs: Iterable[Tuple[str, Any]]) -> Dict[str, Any]:
    """Return a dictionary in which names that come several times are numbered."""
    found = list(pairs)
    names = [name for name, _ in found]
    seen: Dict[str, int] = {}
    result = {}
    for name, value in found:
        seen[name] = seen.get(name, 0) + 1
        several = names.count(name) > 1
        result[f"{name} {seen[name]}" if several else name] = value
    return result

"""What decides the speed of this machine now: temperature, clocks, throttling, power mode, load.

::

    python3 -BIS edgepack_conditions.py cool-down LIMIT_C PAUSE_S

waits so long, and until the hottest thermal zone is no hotter than the limit, but no longer than
:data:`COOL_DOWN_S`. Then it prints ``{"temperature_c": ..., "waited_s": ...}``. Meanwhile it says
on stderr how hot it is. Where no temperature can be read it does not wait at all.

Sources: Linux's Documentation/admin-guide/pm/cpufreq.rst; NVIDIA Jetson Linux Developer Guide,
"Platform Power and Performance" (nvpmodel).

Needs Python 3.8 or newer, and nothing else.
"""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path
from typing import Any, Callable, Optional, Tuple

if __package__:
    from . import edgepack_sysfs as sysfs
else:  # a bundle's, whose folder is not on the path with -I
    sys.path.append(str(Path(__file__).resolve().parent))
    import edgepack_sysfs as sysfs  # type: ignore[import-not-found,no-redef]

Ask = Callable[..., str]

COOL_DOWN_S = 300.0
SAY_S = 5.0
COOLING = "edgepack-cooling "


def read_conditions(root: Path = sysfs.ROOT, ask: Ask = sysfs.read_output) -> sysfs.Json:
    """Return what decides the speed of this moment, as ``Conditions`` of edgepack's reports.

    ``ask`` returns what a program prints, given its argv; nothing if there is no such program.
    """
    bits, of_boot = read_throttled_bits(root, ask)
    return {
        "governor": read_governor(root),
        "temperature_c": read_temperature(root),
        "throttle_events": count_throttle_events(root),
        "throttled_now": _list_causes(bits, 0),
        "throttled_since_boot": _list_causes(bits if of_boot else None, 16),
        "power_mode": read_power_mode(root, ask),
        "load": read_load(root),
    }


def read_boot_id(root: Path = sysfs.ROOT) -> Any:
    """Return what changes with every boot."""
    text = sysfs.read(root / "proc/sys/kernel/random/boot_id").strip() or sysfs.read_output(
        "sysctl", "-n", "kern.bootsessionuuid"
    )
    return text or sysfs.make_not_measured("this system has no boot id")


def read_governor(root: Path = sysfs.ROOT) -> Any:
    """Return the frequency governors of all cores, joined where they differ."""
    paths = (root / "sys/devices/system/cpu/cpufreq").glob("policy*/scaling_governor")
    found = sorted({sysfs.read(path).strip() for path in paths} - {""})
    return "+".join(found) or sysfs.make_not_measured("no cpufreq governor can be read")


def read_temperature(root: Path = sysfs.ROOT) -> Any:
    """Return the hottest thermal zone in degrees Celsius."""
    read = [
        sysfs.parse_number(sysfs.read(zone / "temp")) for zone in sysfs.find_zones(root).values()
    ]
    known = [value for value in read if value is not None and value > sysfs.COLDEST]
    return max(known) / 1000 if known else sysfs.make_not_measured("no thermal zone can be read")


def count_throttle_events(root: Path = sysfs.ROOT) -> Any:
    """Return how often this machine was slowed down since boot, as far as it counts that."""
    found = [sysfs.parse_number(sysfs.read(path)) for _, path in sysfs.list_throttle_counters(root)]
    known = [int(value) for value in found if value is not None]
    return sum(known) if known else sysfs.make_not_measured("no throttle counter can be read")


def read_throttled_bits(
    root: Path = sysfs.ROOT, ask: Ask = sysfs.read_output
) -> Tuple[Optional[int], bool]:
    """Return a Raspberry Pi's throttle bits, and whether those from 16 on are since boot."""
    _, _, text = ask("vcgencmd", "get_throttled").partition("=")
    if text:
        return int(text, 16), True
    text = sysfs.read(root / sysfs.PI_FILE).strip()
    return (int(text, 16), False) if text else (None, False)


def read_power_mode(root: Path = sysfs.ROOT, ask: Ask = sysfs.read_output) -> Any:
    """Return the power mode by its name: a Jetson's, or an ACPI platform profile."""
    found = re.search(r"NV Power Mode: *(\S+)", ask("nvpmodel", "-q"))
    text = found[1] if found else sysfs.read(root / "sys/firmware/acpi/platform_profile").strip()
    return text or sysfs.make_not_measured("this device has none")


def read_load(root: Path = sysfs.ROOT) -> Any:
    """Return how many processes ran or waited to, on average over the last minute."""
    text = sysfs.read(root / "proc/loadavg")
    return float(text.split()[0]) if text else sysfs.make_not_measured("there is no /proc/loadavg")


def cool_down(limit_c: float, pause_s: float, root: Path = sysfs.ROOT) -> sysfs.Json:
    """Wait for a while and until it is cool; return how hot it is then, and how long it took."""
    began_s = said_s = time.monotonic()
    hottest = read_temperature(root)
    while isinstance(hottest, float):
        now_s = time.monotonic()
        rested = now_s - began_s >= pause_s and hottest <= limit_c
        if rested or now_s - began_s >= COOL_DOWN_S:
            break
        if now_s - said_s >= SAY_S:
            said_s = now_s
            print(f"{COOLING}{hottest:.1f}", file=sys.stderr, flush=True)
        time.sleep(min(0.5, max(0.05, pause_s)))
        hottest = read_temperature(root)
    return {"temperature_c": hottest, "waited_s": round(time.monotonic() - began_s, 3)}


def _list_causes(bits: Optional[int], first_bit: int) -> Any:
    if bits is None:
        return sysfs.make_not_measured("no vcgencmd or driver of a Raspberry Pi reports it")
    return sysfs.list_bit_names(bits >> first_bit)


if __name__ == "__main__":
    print(json.dumps(cool_down(float(sys.argv[2]), float(sys.argv[3]))))

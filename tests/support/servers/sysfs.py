"""Folders laid out as the kernel's sysfs and procfs are on some machines, for tests of readers.

Layouts are from Linux's documentation: driver-api/thermal/sysfs-api.rst, admin-guide/pm/cpufreq,
ABI/testing/sysfs-class-devfreq, power/powercap/powercap.rst and hwmon/ina3221.rst; of a Raspberry
Pi also from drivers/firmware/raspberrypi.c of raspberrypi/linux; of a Jetson from the Jetson Linux
Developer Guide ("Platform Power and Performance").
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

CPUFREQ = "sys/devices/system/cpu/cpufreq"
THERMAL = "sys/class/thermal"
PI_BITS = "sys/devices/platform/soc/soc:firmware/get_throttled"
RAPL = "sys/class/powercap/intel-rapl:0"
COMMON = {
    "proc/loadavg": "0.42 0.30 0.20 1/200 4711\n",
    "proc/sys/kernel/random/boot_id": "11111111-2222-3333-4444-555555555555\n",
    "proc/stat": "cpu  10 0 10 80 0 0 0 0 0 0\ncpu0 10 0 10 80 0 0 0 0 0 0\nintr 1 2 3\n",
}


def write_tree(root: Path, *trees: Mapping[str, str]) -> Path:
    """Write files and return their root.

    One that is there is written over, and never empty in between: readers hold files of the
    kernel's open, and find a value in them whenever they look.
    """
    for tree in trees:
        for name, text in tree.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("r+b" if path.exists() else "xb", buffering=0) as file:
                file.write(text.encode())
                file.truncate()
    return root


def zone(number: int, kind: str, millidegrees: int, **trips: int) -> dict[str, str]:
    """Return the files of a thermal zone; trips are by their type."""
    folder = f"{THERMAL}/thermal_zone{number}"
    files = {f"{folder}/type": f"{kind}\n", f"{folder}/temp": f"{millidegrees}\n"}
    for index, (trip, at) in enumerate(trips.items()):
        files[f"{folder}/trip_point_{index}_type"] = f"{trip}\n"
        files[f"{folder}/trip_point_{index}_temp"] = f"{at}\n"
    return files


def policy(number: int, khz: int, *, cores: str, governor: str = "ondemand") -> dict[str, str]:
    """Return the files of a cpufreq policy."""
    folder = f"{CPUFREQ}/policy{number}"
    return {
        f"{folder}/scaling_governor": f"{governor}\n",
        f"{folder}/scaling_available_governors": "ondemand schedutil performance powersave\n",
        f"{folder}/scaling_cur_freq": f"{khz}\n",
        f"{folder}/related_cpus": f"{cores}\n",
    }


RASPBERRY_PI = {
    **COMMON,
    **zone(0, "cpu-thermal", 47_712, critical=110_000),
    **policy(0, 2_400_000, cores="0 1 2 3"),
    PI_BITS: "0\n",
}

JETSON = {
    **COMMON,
    **zone(0, "cpu-thermal", 49_218, passive=99_000, critical=104_500),
    **zone(1, "gpu-thermal", 50_031, active=46_000, passive=99_500),
    **zone(2, "cv0-thermal", -256_000, passive=99_000),
    **policy(0, 1_510_400, cores="0 1 2 3", governor="schedutil"),
    **policy(4, 729_600, cores="4 5", governor="schedutil"),
    "sys/class/devfreq/17000000.gpu/cur_freq": "624750000\n",
    "sys/class/devfreq/17000000.gpu/device/load": "870\n",
    "sys/class/hwmon/hwmon1/name": "ina3221\n",
    "sys/class/hwmon/hwmon1/in1_label": "VDD_IN\n",
    "sys/class/hwmon/hwmon1/in1_input": "5000\n",
    "sys/class/hwmon/hwmon1/curr1_input": "1200\n",
    "sys/class/hwmon/hwmon1/in2_label": "VDD_CPU_GPU_CV\n",
    "sys/class/hwmon/hwmon1/in2_input": "5000\n",
    "sys/class/hwmon/hwmon1/curr2_input": "400\n",
    "sys/class/hwmon/hwmon1/in3_label": "NC\n",
    "sys/class/hwmon/hwmon3/name": "soctherm_oc\n",
    "sys/class/hwmon/hwmon3/oc1_event_cnt": "0\n",
    "sys/class/hwmon/hwmon3/oc3_event_cnt": "15\n",
}

X86 = {
    **COMMON,
    **zone(0, "acpitz", 41_000, passive=95_000, critical=105_000),
    **zone(1, "acpitz", 27_800),
    **zone(2, "x86_pkg_temp", 62_000, passive=0),
    **policy(0, 4_200_000, cores="0", governor="powersave"),
    **policy(1, 4_100_000, cores="1", governor="powersave"),
    "sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count": "7\n",
    "sys/devices/system/cpu/cpu1/thermal_throttle/core_throttle_count": "1\n",
    f"{RAPL}/name": "package-0\n",
    f"{RAPL}/energy_uj": "900000\n",
    f"{RAPL}/max_energy_range_uj": "1000000\n",
    "sys/class/powercap/intel-rapl:0:0/name": "core\n",
    "sys/class/powercap/intel-rapl:0:0/energy_uj": "500000\n",
    "sys/firmware/acpi/platform_profile": "balanced\n",
}

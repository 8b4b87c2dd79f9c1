"""Reads what a board without Python tells under /proc and /sys: one call copies its files here.

What they mean is read by the modules that do it on devices with Python, which take the root of any
file system.
"""

from __future__ import annotations

import re
import shlex
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from edgepack.base.schema import NotMeasured
from edgepack.devices.answers import make_answer_error
from edgepack.devices.transport import Transport
from edgepack.ondevice.harness import edgepack_conditions as conditions
from edgepack.records.run import Conditions
from edgepack.records.topology import Processor, Topology

READ_S = 60.0
_CPU = "/sys/devices/system/cpu"
FILES = (
    "/etc/nv_tegra_release",
    "/proc/cpuinfo",
    "/proc/driver/nvidia/version",
    "/proc/loadavg",
    "/proc/self/status",
    "/proc/sys/kernel/random/boot_id",
    f"{_CPU}/cpu[0-9]*/cpu_capacity",
    f"{_CPU}/cpu[0-9]*/cpufreq/cpuinfo_max_freq",
    f"{_CPU}/cpu[0-9]*/thermal_throttle/core_throttle_count",
    f"{_CPU}/cpu[0-9]*/topology/thread_siblings_list",
    f"{_CPU}/cpufreq/policy*/scaling_governor",
    "/sys/class/hwmon/hwmon*/oc*_event_cnt",
    "/sys/class/thermal/thermal_zone*/temp",
    "/sys/class/thermal/thermal_zone*/type",
    "/sys/devices/platform/soc/soc:firmware/get_throttled",
    "/sys/firmware/acpi/platform_profile",
)
PROGRAMS = (("vcgencmd", "get_throttled"), ("nvpmodel", "-q"))
_MARK = "edgepack-file "
_LIST = "[0-9]+(?:-[0-9]+)?(?:,[0-9]+(?:-[0-9]+)?)*"

# Arguments: patterns of files, without quotes: the shell replaces them.
_SCRIPT = f"""
echo "{_MARK}uname"
uname -s -r -m
for path in $*; do
  [ -f "$path" ] && [ -r "$path" ] || continue
  echo "{_MARK}$path"
  cat "$path"
  echo
done
""" + "".join(
    f"if command -v {argv[0]} >/dev/null; then\n"
    f'echo "{_MARK}{argv[0]}"\n{shlex.join(argv)} </dev/null || true\nfi\n'
    for argv in PROGRAMS
)

_Value = TypeVar("_Value")


@dataclass(frozen=True)
class BoardFiles:
    """What a board told at one moment."""

    texts: Mapping[str, str]
    """By the path of a file, or the name of a program."""

    @property
    def system(self) -> str:
        """The kernel's name and release."""
        return " ".join(self.texts["uname"].split()[:2])

    @property
    def machine(self) -> str:
        """The processor's architecture in Linux's words."""
        return self.texts["uname"].split()[2]

    def read_processor(self) -> str | NotMeasured:
        """Return the processor's name."""
        named = re.search(r"^(?:model name|Model)\s*:\s*(.+)$", self._cpuinfo, re.MULTILINE)
        return named[1] if named else NotMeasured(reason="this system does not name its processor")

    def is_emulated(self) -> bool:
        """Return whether an ARM system runs on an x86 kernel: see ``edgepack_providers.py``."""
        is_arm = self.machine in ("aarch64", "armv7l")
        return is_arm and re.search("^vendor_id", self._cpuinfo, re.MULTILINE) is not None

    def read_driver(self) -> str | NotMeasured:
        """Return the version of NVIDIA's driver, as the loader does."""
        from edgepack.ondevice.runtime import edgepack_providers as providers  # loads onnxruntime

        found = self._read(providers.read_driver_version)
        return found or NotMeasured(reason="no GPU driver reports its version")

    def read_boot_id(self) -> str | NotMeasured:
        """Return what changes with every boot."""
        text = self.texts.get("/proc/sys/kernel/random/boot_id", "").strip()
        return text or NotMeasured(reason="this system has no boot id")

    def read_conditions(self) -> Conditions:
        """Return what decides the board's speed, as the harness does."""

        def ask(program: str, *_: str) -> str:
            return self.texts.get(program, "").strip()

        read = self._read(lambda root: conditions.read_conditions(root, ask))
        return Conditions.model_validate(read)

    def read_topology(self) -> Topology | NotMeasured:
        """Return the processors that a process started with the device's prefix may use."""
        status = self.texts.get("/proc/self/status", "")
        listed = re.search(rf"^Cpus_allowed_list:\s*({_LIST})$", status, re.MULTILINE)
        if listed is None:
            return NotMeasured(reason="/proc/self/status does not list the processors")
        numbers = _parse_list(listed[1])
        return Topology(count=len(numbers), processors=[self._describe(n) for n in numbers])

    def _describe(self, number: int) -> Processor:
        def read(name: str) -> str:
            return self.texts.get(f"{_CPU}/cpu{number}/{name}", "").strip()

        frequency, capacity = read("cpufreq/cpuinfo_max_freq"), read("cpu_capacity")
        return Processor(
            number=number,
            core=read("topology/thread_siblings_list") or str(number),
            max_khz=int(frequency) if frequency.isdecimal() else 0,
            capacity=int(capacity) if capacity.isdecimal() else 0,
        )

    @property
    def _cpuinfo(self) -> str:
        return self.texts.get("/proc/cpuinfo", "")

    def _read(self, reader: Callable[[Path], _Value]) -> _Value:
        """Return what a reader of a device finds in a folder with the board's files."""
        with tempfile.TemporaryDirectory(prefix="edgepack-") as folder:
            root = Path(folder)
            self.write(root)
            return reader(root)

    def write(self, root: Path) -> None:
        """Write the files into a folder that stands for the root of the board's file system."""
        for name, text in self.texts.items():
            path = PurePosixPath(name)
            if path.is_absolute() and ".." not in path.parts:
                there = root / path.relative_to("/")
                there.parent.mkdir(parents=True, exist_ok=True)
                there.write_text(text, encoding="utf-8")


def read_board_files(
    transport: Transport, run_prefix: Sequence[str], files: Sequence[str] = FILES
) -> BoardFiles:
    """Return what a board tells now, in files that the shell finds by patterns.

    Raises:
        DeviceError: The connection broke, or it answers something else.
        RemoteCommandError: Its shell failed.
    """
    argv: list[Any] = [*run_prefix, "sh", "-c", _SCRIPT, "sh", *files]
    result = transport.send(argv, [], timeout_s=READ_S)
    hint = "its last lines are above; see 'run_prefix' of the device in devices.yaml"
    result.check("reading /proc and /sys", device=transport.name, hint=hint)
    parts = (part.partition("\n") for part in result.text.split(_MARK)[1:])
    texts = {name.strip(): text for name, _, text in parts}
    if len(texts.get("uname", "").split()) != 3:
        problem = "it is not what a system tells of itself"
        raise make_answer_error(problem, result.stdout, device=transport.name)
    return BoardFiles(texts)


def _parse_list(text: str) -> list[int]:
    """Return the numbers of a list such as ``0-2,5``, as Linux writes processors."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found

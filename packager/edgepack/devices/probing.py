"""Finds out what a device is with a short POSIX shell script: it may lack even Python."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Annotated

from packaging.utils import canonicalize_name
from pydantic import Field

from edgepack.base.schema import StrictModel
from edgepack.devices.answers import make_answer_error, read_answer
from edgepack.devices.inventory import Device
from edgepack.devices.transport import Transport
from edgepack.errors import DeviceError, RemoteCommandError
from edgepack.project.profile import find_target_files, read_profile

PROBE_S = 60.0
"""How long Python may take: a busy board loads onnxruntime from a slow card."""
_SHELL_S = 15.0
"""How long the shell may take; it loads nothing."""

# Arguments: the root; the Python that was asked for, or nothing; the one to use if there is no
# provisioned one.
_SCRIPT = r"""
root=$1; python=$2
case $root in "~/"*) root=$HOME/${root#"~/"};; esac
say() { printf '%s\t%s\n' "$1" "$2"; }
say root "$root"
say os "$(uname -s)"
say arch "$(uname -m)"
if [ -r /proc/device-tree/model ]; then
  say model "$(tr -d '\000' < /proc/device-tree/model)"
elif [ -r /sys/class/dmi/id/product_name ]; then
  say model "$(cat /sys/class/dmi/id/product_name)"
elif [ "$(uname -s)" = Darwin ]; then
  say model "$(sysctl -n hw.model)"
fi
if [ -r /proc/device-tree/serial-number ]; then
  say serial "$(tr -d '\000' < /proc/device-tree/serial-number)"
fi
if [ -r /proc/driver/nvidia/version ]; then
  say nvidia "$(head -n 1 /proc/driver/nvidia/version)"
fi
if [ -r /proc/cpuinfo ]; then
  say flags "$(sed -n -e 's/^\(flags\|Features\)[[:space:]]*: //p' /proc/cpuinfo | head -n 1)"
fi
if [ "$(uname -s)" = Darwin ]; then
  say libc "macOS $(sw_vers -productVersion)"
else
  libc=$(getconf GNU_LIBC_VERSION 2>/dev/null)
  # Boards without getconf: the loader of glibc runs glibc, which then says its version.
  for loader in /lib64/ld-linux-x86-64.so.2 /lib/ld-linux-aarch64.so.1; do
    [ -x "$loader" ] || continue
    found="$("$loader" --list libstdc++.so.6 2>/dev/null)"
    for place in libc.so.6 /lib/libc.so.6 /lib64/libc.so.6 /lib/*-linux-gnu/libc.so.6; do
      [ -n "$libc" ] || libc=$("$loader" "$place" 2>/dev/null |
        sed -n 's/^GNU C Library .*version \([0-9.]*[0-9]\).*/glibc \1/p')
      for part in "${place%libc.so.6}" "/usr${place%libc.so.6}"; do
        [ ! -e "${part}libstdc++.so.6" ] || found=$part
      done
    done
    [ -n "$found" ] || say lacks_library libstdc++.so.6
  done
  for loader in /lib/ld-musl-*.so.1; do
    [ -n "$libc" ] || [ ! -e "$loader" ] || libc=musl
  done
  say libc "$libc"
fi
folder=$root
while [ ! -d "$folder/" ]; do folder=${folder%/*}; done
say free_kib "$(df -Pk -- "$folder/" | awk 'NR == 2 {print $4}')"
if [ -z "$python" ]; then
  python=$3
  [ -x "$root/venv/bin/python" ] && python=$root/venv/bin/python
fi
if found=$(command -v -- "$python"); then
  say python "$found"
else
  for name in awk find grep sed setsid sha256sum sort tar; do
    command -v "$name" >/dev/null || say lacks "$name"
  done
fi
"""

# Arguments: the Python, and its program. A Python that prints without end is ended by head.
_ASK_PYTHON = '"$1" -c "$2" 2>/dev/null | head -c 1000000 | tail -n 1'

# Runs in the device's Python; versions come without importing what may be slow or broken.
_PACKAGES = """
import importlib.metadata, importlib.util, json, os, sys
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
facts = {"python": "%d.%d.%d" % sys.version_info[:3]}
try:
    import numpy
    facts["numpy"] = numpy.__version__
except ImportError as error:
    facts["numpy_problem"] = str(error)
try:
    import onnxruntime
    facts["onnxruntime"] = onnxruntime.__version__
    facts["providers"] = onnxruntime.get_available_providers()
except ImportError as error:
    facts["onnxruntime_problem"] = str(error)
facts["distributions"] = {
    found.metadata["Name"]: found.version
    for found in importlib.metadata.distributions()
    if found.metadata["Name"] and found.version
}
print(json.dumps(facts))
"""


@dataclass(frozen=True)
class Missing:
    """Something that a device does not have, and the evidence."""

    reason: str


@dataclass(frozen=True)
class PythonFacts:
    """What one interpreter is and has."""

    version: str
    packages: dict[str, str | Missing]
    """Version of ``numpy`` and ``onnxruntime``."""
    providers: tuple[str, ...]
    """Execution providers of that onnxruntime; none if it is missing."""
    distributions: dict[str, str]
    """Installed packages of onnxruntime and of NVIDIA, with their versions: several of them bring
    the same module, and plugins bring providers."""


@dataclass(frozen=True)
class ProbedFacts:
    """What a probe found. The host's name is not in it; ``root`` may hold a user's name."""

    os: str
    """``linux``, ``macos``, or the system's own word."""
    arch: str
    """``x86-64``, ``aarch64``, or the system's own word."""
    model: str
    """The maker's name for it; empty if unknown."""
    libc: str
    """What wheels are built against: ``glibc 2.36``, ``macOS 15.1``; ``musl``; else empty."""
    cpu_flags: tuple[str, ...]
    """As ``/proc/cpuinfo`` spells them, in order of the alphabet."""
    free_bytes: int
    """On the disk where the root lies or will lie."""
    root: PurePosixPath
    """The device's root with ``~`` replaced."""
    python_path: str
    """The interpreter that runs bundles: the inventory's, the provisioned one, or ``python3``."""
    python: PythonFacts | Missing
    """What that interpreter is and has."""
    serial: str = ""
    """The board's, from its device tree; empty where there is none (Devicetree Specification 0.4,
    section 3.2, ``serial-number``)."""
    nvidia_driver: str = ""
    """The version of NVIDIA's driver; empty where there is none."""
    lacks: tuple[str, ...] = ()
    """Further programs that it would need, because it has no Python."""
    lacks_library: str = ""
    """A library that onnxruntime loads and that its loader does not find."""

    @property
    def lacks_python(self) -> bool:
        """Whether there is no interpreter at all, not even one that does not run."""
        return not self.python_path

    def format_lines(self) -> list[str]:
        """Return the facts as lines for people."""
        found = [f"{self.os} on {self.arch}" + (f": {self.model}" if self.model else "")]
        found += [f"{self.libc or 'not glibc'}, {self.free_bytes >> 20} MiB free at {self.root}"]
        if isinstance(self.python, Missing):
            found += [f"no Python: {self.python.reason}"]
            return [*found, f"no {', '.join(self.lacks)} either"] if self.lacks else found
        found += [f"Python {self.python.version} ({self.python_path})"]
        for name, version in self.python.packages.items():
            known = f"{name} {version}"
            found += [f"no {name}: {version.reason}" if isinstance(version, Missing) else known]
        found += [f"{name} {version}" for name, version in self.python.distributions.items()]
        return [
            *dict.fromkeys(found),
            f"providers: {', '.join(self.python.providers) or 'none'}",
        ]


def probe(device: Device, transport: Transport) -> ProbedFacts:
    """Return what a device is and has.

    Raises:
        DeviceError: The connection broke, or the device has no POSIX shell; it may also print
            without end.
        TooSlowError: Python did not answer in time.
    """
    argv = ["sh", "-c", _SCRIPT, "sh", device.entry.root]
    argv += [device.entry.python or "", device.plain_python]
    hint = (
        "the device needs a POSIX shell, and a login that prints nothing: try 'ssh HOST uname -m'"
    )
    try:
        result = transport.send(argv, [], timeout_s=_SHELL_S)
    except RemoteCommandError as error:
        raise DeviceError(
            f"the probe got no answer: {error.problem}", hint=hint, where=device.name
        ) from error
    lines = [line.split("\t", 1) for line in result.text.splitlines() if "\t" in line]
    said = dict(lines)
    if not {"os", "arch", "root"} <= said.keys():
        raise DeviceError(
            f"the probe ended with exit code {result.exit_code} and said {result.text[:200]!r}",
            hint=hint,
            where=device.name,
        )
    lacks = tuple(value for name, value in lines if name == "lacks")
    if "python" in said:
        ask = ["sh", "-c", _ASK_PYTHON, "sh", said["python"], _PACKAGES]
        said["packages"] = transport.send(ask, [], timeout_s=PROBE_S).text.strip()
    return _make_facts(said, lacks, device)


def probe_python(
    python: str,
    device: Device,
    transport: Transport,
    hint: str = "install Python there: sudo apt install python3",
) -> PythonFacts:
    """Return what one interpreter on the device is and has.

    Raises:
        DeviceError: The connection broke.
        RemoteCommandError: The interpreter is missing or does not run.
    """
    result = transport.run([python, "-c", _PACKAGES], timeout_s=PROBE_S)
    result.check(
        f"asking {python} for its version",
        device=device.name,
        hint=hint,
    )
    return _read_python_facts(result.stdout.strip().rpartition(b"\n")[2], device)


_Word = Annotated[str, Field(max_length=200)]


class _PythonAnswer(StrictModel):
    """What :data:`_PACKAGES` prints."""

    python: Annotated[str, Field(pattern=r"^[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}$")]
    numpy: _Word = ""
    numpy_problem: Annotated[str, Field(max_length=10_000)] = ""
    onnxruntime: _Word = ""
    onnxruntime_problem: Annotated[str, Field(max_length=10_000)] = ""
    providers: Annotated[list[_Word], Field(max_length=200)] = []
    distributions: Annotated[dict[_Word, _Word], Field(max_length=5000)] = {}


_SHOWN = ("onnxruntime", "nvidia", "tensorrt")
"""What the names of distributions begin with that decide what a session does; beside these, those
that the device's target pins."""


def _read_python_facts(data: bytes, device: Device) -> PythonFacts:
    what = "what Python says about itself"
    said = read_answer(_PythonAnswer, data, device=device.name, what=what, max_bytes=1 << 20)
    own = find_target_files().get(device.target)
    pinned = set(map(canonicalize_name, read_profile(own).runtime.packages)) if own else set()
    pinned -= {"numpy"}  # one of the packages already
    return PythonFacts(
        version=said.python,
        packages={
            "numpy": said.numpy or Missing(said.numpy_problem),
            "onnxruntime": said.onnxruntime or Missing(said.onnxruntime_problem),
        },
        providers=tuple(said.providers),
        distributions={
            name: version
            for name, version in said.distributions.items()
            if name.startswith(_SHOWN) or canonicalize_name(name) in pinned
        },
    )


def _read_free_bytes(said: dict[str, str], device: Device) -> int:
    free_kib = said.get("free_kib") or "0"
    if not re.fullmatch("[0-9]{1,15}", free_kib):
        problem = f"its free space, in KiB, is {free_kib[:60]!r}"
        raise make_answer_error(problem, free_kib.encode(), device=device.name)
    return int(free_kib) * 1024


def _make_facts(said: dict[str, str], lacks: tuple[str, ...], device: Device) -> ProbedFacts:
    python: PythonFacts | Missing = Missing("there is no Python")
    if "python" in said:
        python = Missing(f"{said['python']} does not run")
    if said.get("packages"):
        python = _read_python_facts(said["packages"].encode(), device)
    return ProbedFacts(
        os={"Linux": "linux", "Darwin": "macos"}.get(said["os"], said["os"]),
        arch=_ARCHITECTURES.get(said["arch"], said["arch"]),
        model=said.get("model", "").strip(),
        libc=said.get("libc", ""),
        cpu_flags=tuple(sorted(said.get("flags", "").split())),
        free_bytes=_read_free_bytes(said, device),
        root=PurePosixPath(said["root"]),
        python_path=said.get("python", ""),
        python=python,
        serial=said.get("serial", "").strip(),
        nvidia_driver=_read_driver(said.get("nvidia", "")),
        lacks=lacks,
        lacks_library=said.get("lacks_library", ""),
    )


def _read_driver(line: str) -> str:
    """Source: ``NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  ...``."""
    found = re.search(r"\s(\d+(?:\.\d+)+)\s", f"{line} ")
    return found[1] if found else ""


_ARCHITECTURES = {"x86_64": "x86-64", "amd64": "x86-64", "arm64": "aarch64"}


def propose_target(facts: ProbedFacts) -> str:
    """Return the id of the target that a device seems to be.

    Raises:
        DeviceError: edgepack has no target for such a device.
    """
    kind = (facts.os, facts.arch)
    if kind == ("linux", "aarch64") and "Raspberry Pi" in facts.model:
        return "raspberry-pi"
    if kind == ("linux", "aarch64") and facts.model.startswith("NVIDIA"):
        # JetPack 6 is Ubuntu 22.04 with glibc 2.35, JetPack 7 is Ubuntu 24.04 with 2.39.
        return "jetson" if facts.libc in ("glibc 2.31", "glibc 2.35") else "jetson-jp7"
    targets = {
        ("linux", "aarch64"): "linux-aarch64",
        ("linux", "x86-64"): "linux-x86-64",
        ("macos", "aarch64"): "macos-arm64",
    }
    if kind not in targets:
        raise DeviceError(
            f"there is no target for {facts.os} on {facts.arch}",
            hint="a 64-bit system is needed: on a Raspberry Pi, install the 64-bit Raspberry Pi OS",
        )
    return targets[kind]

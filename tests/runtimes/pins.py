"""The runtimes that profiles pin, each once, with the targets that pin it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from edgepack.base.processes import run_program
from edgepack.errors import ToolError
from edgepack.project.profile import Profile
from packaging.requirements import Requirement

STAND_INS = {
    "onnxruntime-web": "onnxruntime",
    "com.microsoft.onnxruntime:onnxruntime-android": "onnxruntime",
    "onnxruntime-c": "onnxruntime",
}
"""What phones pin has no Python; the wheel of the same version is built from the same source."""
STAND_IN_PYTHON = ">=3.11"
"""Wheels of onnxruntime 1.30.0 and 1.31.1 are for CPython 3.11 and newer.
Source: https://pypi.org/project/onnxruntime/1.30.0/#files (checked 2026-11-21)."""
STAND_IN_NUMPY = "numpy>=1.26"


@dataclass(frozen=True)
class Pin:
    """What is installed into one virtual environment, and for whom."""

    package: str
    version: str
    requirements: tuple[str, ...]
    """As they stand in a bundle's ``requirements.txt``."""
    python: str
    """The Python versions allowed, as a PEP 440 specifier."""
    profiles: tuple[Profile, ...] = ()
    """Their ``max_ir`` and ``max_opset`` are compared with what is measured."""
    about: str = ""
    """Why it is tried, where no profile pins it."""

    @property
    def title(self) -> str:
        """``onnxruntime 1.31.1``, and the plugins beside it."""
        return " with ".join([f"{self.package} {self.version}", *self.plugins])

    @property
    def plugins(self) -> list[str]:
        """The names of providers that are libraries beside onnxruntime."""
        names = [Requirement(each).name for each in self.requirements]
        return [name for name in names if "onnxruntime" in name and name != self.package]

    @property
    def targets(self) -> list[str]:
        """The ids of the profiles."""
        return [profile.id for profile in self.profiles]


OLDEST = Pin(
    "onnxruntime",
    "1.19.2",
    ("onnxruntime==1.19.2", "numpy"),
    ">=3.8,<3.10",
    about="the oldest Python of loader and harness",
)
"""What loader and harness call "Python 3.8 and newer". No profile pins it: it is the last
onnxruntime with wheels for CPython 3.8, as https://pypi.org/project/onnxruntime/1.19.2/#files has
it (checked 2026-11-21)."""


def pins(profiles: Sequence[Profile]) -> list[Pin]:
    """Return what the profiles pin; profiles with equal requirements and Pythons share a pin."""
    shared: dict[tuple[tuple[str, ...], str], list[Profile]] = {}
    for profile in profiles:
        python = profile.device.python or STAND_IN_PYTHON
        shared.setdefault((tuple(_requirements(profile)), python), []).append(profile)
    found = []
    for (requirements, python), sharing in shared.items():
        package, version = _runtime(requirements)
        found.append(Pin(package, version, requirements, python, tuple(sharing)))
    return sorted(found, key=lambda pin: (pin.version, pin.package))


def list_releases() -> list[str]:
    """Return the releases that the package index has for this Python, the newest first.

    Raises:
        ToolError: It does not answer.
    """
    argv = [sys.executable, "-m", "pip", "index", "versions", "--disable-pip-version-check"]
    done = run_program([*argv, "onnxruntime"], timeout_s=120)
    found = re.search(r"Available versions: (.+)", done.text)
    if not found:
        raise ToolError(
            f"the package index names no onnxruntime{done.last_lines}", hint="check the network"
        )
    return found[1].split(", ")


def newest_pins(releases: Sequence[str], pinned: Sequence[Pin]) -> list[Pin]:
    """Return the newest release and the two before, as far as no profile pins them.

    Args:
        releases: Those of the package index, the newest first.
        pinned: What profiles pin.
    """
    known = {(pin.package, pin.version) for pin in pinned}
    return [
        Pin(
            "onnxruntime",
            release,
            (f"onnxruntime=={release}", STAND_IN_NUMPY),
            STAND_IN_PYTHON,
            about="one of the three newest releases",
        )
        for release in releases[:3]
        if ("onnxruntime", release) not in known
    ]


def stands_in(profile: Profile) -> str:
    """Say what the x86-64 wheel stands in for; nothing where it is what runs on the device."""
    if profile.device.python is None:
        return f"{profile.device.os}'s library of the same version"
    return "" if profile.device.arch == "x86-64" else f"the {profile.device.arch} wheel"


def _requirements(profile: Profile) -> Iterator[str]:
    packages = sorted(profile.runtime.packages.items())
    if profile.device.python is not None:
        # NVIDIA's libraries, two gigabytes, do nothing without its driver.
        yield from (f"{name}{pin}" for name, pin in packages if not name.startswith("nvidia-"))
        return
    for name, version in packages:
        if name in STAND_INS:
            yield STAND_IN_NUMPY
            yield f"{STAND_INS[name]}=={version}"


def _runtime(requirements: Sequence[str]) -> tuple[str, str]:
    """Return the name and version of the one requirement that is onnxruntime.

    Raises:
        ValueError: There is not exactly one, or it does not pin one version.
    """
    found = [r for r in map(Requirement, requirements) if r.name.startswith("onnxruntime")]
    # A plugin beside it has a longer name.
    runtime = min(found, key=lambda each: len(each.name), default=None)
    versions = [s.version for s in runtime.specifier if s.operator == "=="] if runtime else []
    if runtime is None or len(versions) != 1:
        raise ValueError(f"no single pinned onnxruntime in {list(requirements)}")
    return runtime.name, versions[0]

"""Finds out which wheels a device needs."""

from __future__ import annotations

from dataclasses import replace

from packaging.specifiers import SpecifierSet

from edgepack.devices.checking import find_driver_problem
from edgepack.devices.inventory import Device
from edgepack.devices.probing import Missing, ProbedFacts, probe_python
from edgepack.devices.provisioning.debian import ask_debian
from edgepack.devices.provisioning.native import RUNTIME, require_native
from edgepack.devices.provisioning.store import RuntimeStore
from edgepack.devices.provisioning.wheels import WheelNeeds, WheelSource, list_platform_tags
from edgepack.devices.transport import Transport
from edgepack.errors import DeviceError, UsageError
from edgepack.project.profile import IndexWheels, Profile, load_profile


def load_provisioned_profile(device: Device) -> Profile:
    """Return the profile of a device's target.

    Raises:
        UsageError: The inventory names an interpreter for the device, so a provisioned environment
            would not be used; or no Python runs on such devices.
    """
    if not device.may_lack_python:
        raise UsageError(
            f"device {device.name!r} has 'python: {device.entry.python}' in devices.yaml, which"
            " would be used instead of a provisioned environment",
            hint="remove that line, or install the packages there yourself",
        )
    profile = load_profile(device.target)
    if profile.device.python is None:
        raise UsageError(
            f"target {profile.id!r} is for apps on {profile.device.os}, where no Python runs",
            hint="provision devices that run Linux or macOS; the bundle's packages.txt names what"
            " an app needs",
        )
    return profile


def find_needs(
    device: Device,
    profile: Profile,
    facts: ProbedFacts,
    transport: Transport,
    *,
    source: WheelSource,
) -> WheelNeeds:
    """Ask a device which Python it has, and return what decides which wheels it takes.

    One without Python takes onnxruntime's alone, for the oldest Python that the target names.

    Where ``source`` has no onnxruntime, the runtime store is looked into, and then, unless it is
    offline, the target's origins are asked for one.

    Raises:
        DeviceError: It lacks what it needs without Python, or has not one that the runtime has
            wheels for; or too old a driver; or an origin's answer cannot be read.
    """
    if problem := find_driver_problem(facts, profile):
        raise DeviceError(problem[0], hint=problem[1], where=device.name)
    if device.may_lack_python and facts.lacks_python:
        require_native(device, facts, profile)
        python = next(f"3.{n}.0" for n in range(8, 99) if f"3.{n}.0" in _find_pythons(profile))
        pin = f"{RUNTIME}{profile.runtime.packages[RUNTIME]}"
        return WheelNeeds(python, facts.arch, facts.libc, (pin,), is_native=True)
    base = probe_python(device.plain_python, device, transport)
    _require_python(base.version, device, profile)
    pins = tuple(f"{name}{pin}" for name, pin in profile.runtime.packages.items())
    indexed = tuple(each for each in profile.runtime.origins if isinstance(each, IndexWheels))
    needs = WheelNeeds(base.version, facts.arch, facts.libc, pins, indexed=indexed)
    if source.has_onnxruntime:
        return needs
    platforms = list_platform_tags(facts.arch, facts.libc)
    kept = RuntimeStore().choose(profile.id, base.version, platforms, source.wheelhouse)
    if kept is not None or source.is_offline:
        return replace(needs, runtime=kept)
    passed_over = []
    for origin in profile.runtime.origins:
        if isinstance(origin, IndexWheels):
            continue
        found = ask_debian(origin, base.version, device.name, transport)
        if not isinstance(found, Missing):
            return replace(needs, runtime=found)
        passed_over.append(f"{origin}: {found.reason}")
    return replace(needs, passed_over=tuple(passed_over))


def _find_pythons(profile: Profile) -> SpecifierSet:
    return SpecifierSet(profile.device.python or "")


def _require_python(version: str, device: Device, profile: Profile) -> None:
    if version not in _find_pythons(profile):
        raise DeviceError(
            f"{device.plain_python} on the device is Python {version}; the runtime that target"
            f" {profile.id!r} pins has wheels for {profile.device.python}",
            hint="install a newer system there (Raspberry Pi OS 12 has Python 3.11), or make an"
            " environment yourself and name it with 'python' in devices.yaml",
            where=device.name,
        )

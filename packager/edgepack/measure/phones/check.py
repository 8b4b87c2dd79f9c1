"""Checks whether a phone can be measured: the phone, its machine, and the tools on this one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from edgepack.devices.checking import Checked, PhoneFacts
from edgepack.devices.inventory import AdbEntry, Device
from edgepack.devices.phones.adb import Adb
from edgepack.devices.phones.xcode import Xcode
from edgepack.devices.transport import Transport
from edgepack.devices.transports import connect
from edgepack.errors import EdgepackError, ProfileError
from edgepack.measure.phones.android import (
    ABI,
    RUNTIME,
    read_chip,
    read_model,
    read_system,
    require_version,
)
from edgepack.measure.phones.app_build import find_jdk_program, find_sdk
from edgepack.measure.phones.native_build import find_compiler, find_package, require_abi
from edgepack.project.profile import load_profile


def check_phone(device: Device) -> Checked:
    """Reach a phone, and return what it is and what prevents its measurement.

    Nothing is put on it.

    Raises:
        ProfileError: Its target is for another system.
        DeviceError: The phone, or the machine that has it, cannot be reached or used.
        ToolError: That machine has no adb, or no Xcode.
        UsageError: There is no such target.
    """
    require_system(device)
    with connect(device.host) as host:
        if isinstance(device.entry, AdbEntry):
            return _check_android(device, host)
        xcode = Xcode(device, host)
        told = xcode.require_ready()
        xcode.unlock_keychain()
        names = ("osVersionNumber", "marketingName", "productType")
        version, model, hardware = (told.get(name, "unknown") for name in names)
        facts = PhoneFacts(f"iOS {version}", model, hardware)
        return Checked(device.name, device.target, facts, (), ())


def require_system(device: Device) -> None:
    """Check that a phone's target has the system that its transport reaches.

    Raises:
        ProfileError: It is not.
    """
    system = "android" if isinstance(device.entry, AdbEntry) else "ios"
    found = load_profile(device.target).device.os
    if found != system:
        raise ProfileError(
            f"'transport: {device.entry.transport}' reaches {system}, and target"
            f" {device.target!r} is for {found}",
            hint=f"set 'target' of {device.name!r} in devices.yaml to one for {system}: edgepack"
            " targets list",
            where=device.name,
        )


def _check_android(device: Device, host: Transport) -> Checked:
    with Adb(device, host) as adb:
        properties = adb.read_properties()
        entry = adb.entry
    abi = properties.get(ABI, "")
    pins = load_profile(device.target).runtime.packages
    problems = _list_problems(
        partial(require_version, device, properties),
        partial(find_package, entry.package, RUNTIME, pins),
        partial(_require_tools, abi, in_app=entry.inside == "app"),
    )
    facts = PhoneFacts(
        read_system(properties), read_model(properties), f"{read_chip(properties)}, {abi}"
    )
    return Checked(device.name, device.target, facts, tuple(problems), ())


def _list_problems(*checks: Callable[[], object]) -> Iterator[str]:
    for check in checks:
        try:
            check()
        except EdgepackError as error:
            yield f"{error.problem}: {error.hint}"


def _require_tools(abi: str, *, in_app: bool) -> None:
    require_abi(abi)
    find_compiler(abi)
    if in_app:
        find_sdk()
        find_jdk_program("javac")

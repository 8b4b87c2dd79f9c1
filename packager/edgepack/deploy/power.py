"""Switches a device's power: by its labgrid, or by command lines of the user's own."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Literal

from edgepack.base.processes import run_program
from edgepack.base.progress import Progress, Silent
from edgepack.deploy.leases import leased
from edgepack.deploy.operations import audited
from edgepack.devices.inventory import Device, LabgridEntry, Power, SshEntry
from edgepack.devices.transport import Transport
from edgepack.devices.transports import connect
from edgepack.errors import (
    BusyError,
    DeviceError,
    EdgepackError,
    ToolError,
    UnreachableError,
    UsageError,
)

PowerAction = Literal["on", "off", "cycle"]
OFF_S = 2.0
"""Between off and on of a cycle, as long as labgrid waits (``NetworkPowerDriver.delay``)."""
_LOOK_S = 2.0
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
"""Another one after each start of Linux (``proc_sys_kernel(5)``)."""


@dataclass(frozen=True)
class PowerSwitched:
    """What came of switching a device's power."""

    action: PowerAction
    answers_after_s: float | None
    """How long it was waited until the device answered, in seconds; None after ``off``."""
    has_restarted: Literal[True] | None
    """That its system is known to have started anew; None where that is not known."""

    def __str__(self) -> str:
        if self.answers_after_s is None:
            return "is off"
        after = f"answers after {self.answers_after_s:.0f} s"
        return f"has restarted and {after}" if self.has_restarted else after


@dataclass(frozen=True)
class PowerOptions:
    """How power is switched."""

    for_s: float = 300.0
    """How long to wait, in seconds, until the device answers after ``on`` and ``cycle``."""
    wait_s: float = 0.0
    """How long to wait for others who use the device, in seconds."""
    force: bool = False
    """Whether it is switched whoever uses the device."""


_OPTIONS = PowerOptions()


def switch_power(
    device: Device,
    action: PowerAction,
    *,
    options: PowerOptions = _OPTIONS,
    progress: Progress | None = None,
) -> PowerSwitched:
    """Switch a device's power, and wait until the device answers unless it is off.

    The device is leased before ``off`` and ``cycle``; one that does not answer cannot be asked who
    uses it, and is switched. The place of a labgrid is held all the time.

    Args:
        device: Which; of a labgrid, or an SSH device with ``power`` in the inventory.
        action: What to do.
        options: How.
        progress: Where to report; default: nowhere.

    Raises:
        UsageError: How its power is switched is not known.
        BusyError: Others use it.
        ToolError: A command line failed; or the audit log cannot be written.
        UnreachableError: It did not answer in time.
        DeviceError: It answers, and has not restarted.
    """
    progress = progress or Silent()
    switch = _find_switch(device)
    with audited("power", device) as operation, ExitStack() as stack:
        operation.describe(detail=action)
        if isinstance(device.entry, LabgridEntry):
            from edgepack.devices.places import held_place
            from edgepack.devices.reservations import find_place

            stack.enter_context(held_place(find_place(device)))
        before = ""
        if action == "on" or options.force:
            switch(action)
        else:
            before = _switch_leased(device, action, switch, options, progress)
        if action == "off":
            return PowerSwitched(action, None, None)
        return _wait_for_start(device, action, before, options.for_s, progress)


def _find_switch(device: Device) -> Callable[[PowerAction], None]:
    """Return what switches a device's power.

    Raises:
        UsageError: Nothing is known that does.
    """
    entry = device.entry
    if isinstance(entry, LabgridEntry):
        from edgepack.devices.places import switch_place
        from edgepack.devices.reservations import find_place

        return lambda action: switch_place(find_place(device), action)
    if isinstance(entry, SshEntry) and entry.power is not None:
        power = entry.power
        return lambda action: _run_lines(device, power, action)
    raise UsageError(
        f"how the power of {device.name} is switched is not known",
        hint="name command lines of yours in devices.yaml, for an SSH device: power: {on: [plug,"
        ' "on"], off: [plug, "off"]}; boards of a labgrid need none',
        where=device.name,
    )


def _run_lines(device: Device, power: Power, action: PowerAction) -> None:
    lines = [power.cycle] if action == "cycle" and power.cycle else []
    if not lines:
        lines = [power.off, power.on] if action == "cycle" else [getattr(power, action)]
    for number, line in enumerate(lines):
        if number:
            time.sleep(OFF_S)
        # The words may have a password: an error says the program's name, and what it printed.
        end = time.monotonic() + power.timeout_s
        try:
            said = run_program(line, timeout_s=power.timeout_s)
        except ToolError:
            if time.monotonic() < end:
                raise
            raise ToolError(
                f"{line[0]!r} took longer than {power.timeout_s:g} s to switch the power",
                hint="'timeout_s' of 'power' in devices.yaml is the time",
                where=device.name,
            ) from None
        if said.exit_code:
            raise ToolError(
                f"{line[0]!r} ended with {said.exit_code} when it was to switch the power"
                f"{said.last_lines}",
                hint="run the command line of 'power' in devices.yaml by hand",
                where=device.name,
            )


def _switch_leased(
    device: Device,
    action: PowerAction,
    switch: Callable[[PowerAction], None],
    options: PowerOptions,
    progress: Progress,
) -> str:
    """Switch a leased device, and return its boot ID before; empty where it was not known."""
    before = ""
    stack = ExitStack()
    try:
        try:
            transport = stack.enter_context(connect(device))
            stack.enter_context(
                leased(
                    transport, device, f"power {action}", wait_s=options.wait_s, progress=progress
                )
            )
            before = _read_boot_id(transport)
        except UnreachableError as error:
            progress.note(f"{error.first_line}; so nobody can be asked who uses it")
        switch(action)
    finally:
        # Without power the connection is lost, and the lease with it.
        with suppress(EdgepackError):
            stack.close()
    return before


def _read_boot_id(transport: Transport) -> str:
    said = transport.run(["cat", _BOOT_ID], timeout_s=30)
    return said.stdout.decode("ascii", "replace").strip() if said.exit_code == 0 else ""


def _wait_for_start(
    device: Device, action: PowerAction, before: str, for_s: float, progress: Progress
) -> PowerSwitched:
    """Wait until a device answers, with another boot ID than before if that is known."""
    progress.note(f"{device.name}: power {action}; waiting up to {for_s:g} s until it answers")
    began = time.monotonic()
    while True:
        try:
            with connect(device) as transport:
                found = _read_boot_id(transport)
            if not before or found not in ("", before):
                return PowerSwitched(action, time.monotonic() - began, True if before else None)
            problem: EdgepackError = DeviceError(
                f"it answers, and has not restarted in {for_s:g} s",
                hint="is it on the outlet that is switched? does something else give it power?",
                where=device.name,
            )
        except BusyError:
            raise
        except EdgepackError as error:  # while a system starts it refuses logins, too
            problem = error
        if time.monotonic() - began + _LOOK_S > for_s:
            raise problem
        time.sleep(_LOOK_S)

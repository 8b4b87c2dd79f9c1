"""What is done to a device's conditions for a benchmark: it cools down, its clocks are held."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from edgepack.bench.harness import Harness
from edgepack.bench.report import Conditions, TunedSetting
from edgepack.devices import Device, Transport
from edgepack.devices.clocks import HeldSetting, held_clocks
from edgepack.operations import audited

COOLER_C = 5.0
"""A run begins when the device is at most so much warmer than it was at first."""
_CONDITIONS = "harness/edgepack_conditions.py"
_COOLING = "edgepack-cooling "
_TIMEOUT_S = 360.0
"""The device itself waits for 300 s at most."""


def cool_down(
    harness: Harness, first: Conditions, pause_s: float, note: Callable[[str], None]
) -> None:
    """Wait until the device is nearly as cool as it was at first, for five minutes at most.

    Where no temperature can be read, and with a bundle of an older edgepack, nothing is waited for.

    Args:
        harness: Of the bundle, on the device.
        first: The device's conditions before anything was timed.
        pause_s: Wait at least so long.
        note: Told every few seconds how hot it is.

    Raises:
        DeviceError: The connection broke.
    """
    if not isinstance(first.temperature_c, float):
        return
    limit_c = first.temperature_c + COOLER_C

    def on_stderr(line: str) -> None:
        if line.startswith(_COOLING):
            celsius = line[len(_COOLING) :].strip()
            note(f"cooling down: {celsius} °C, to {limit_c:.1f} °C")

    program = str(harness.release / _CONDITIONS)
    argv = [harness.python, "-IS", program, "cool-down", f"{limit_c:.1f}", f"{pause_s:g}"]
    harness.transport.run(argv, timeout_s=_TIMEOUT_S, on_stderr=on_stderr)


@contextmanager
def tuned(transport: Transport, device: Device, *, tune: bool) -> Iterator[list[HeldSetting]]:
    """Hold the device's clocks while the context lasts, if that is wanted, and record it.

    Raises:
        DeviceError: They cannot be held, or could not be given back.
    """
    if not tune:
        yield []
        return
    with ExitStack() as stack:
        with audited("tune", device) as operation:
            held = stack.enter_context(held_clocks(transport, device))
            changes = [f"{each.name}: {each.before} to {each.during}" for each in held]
            operation.describe(detail=", ".join(changes) or "nothing to change")
        yield held


def tuned_settings(held: list[HeldSetting]) -> list[TunedSetting]:
    """Return held settings as a report has them."""
    return [
        TunedSetting(
            name=each.name, before=each.before, during=each.during, restored=each.given_back
        )
        for each in held
    ]

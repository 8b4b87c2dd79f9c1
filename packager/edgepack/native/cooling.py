"""Waits until a device is cool, where this machine reads its temperature."""

from __future__ import annotations

import time
from collections.abc import Callable

from edgepack.records.run import Conditions

COOLER_C = 5.0
"""A run begins when the device is at most this much warmer, in °C, than it was at first."""
COOL_DOWN_S = 300.0
LOOK_S = 5.0


def wait_until_cool(
    read: Callable[[], Conditions],
    first: Conditions,
    pause_s: float,
    note: Callable[[str], None],
) -> None:
    """Wait until a device is nearly as cool as it was at first, for five minutes at most.

    If no temperature can be read, it does not wait.

    Args:
        read: Reads its conditions.
        first: Those before anything was timed.
        pause_s: Wait at least so long.
        note: Called every few seconds with the temperature.
    """
    if not isinstance(first.temperature_c, float):
        return
    limit_c = first.temperature_c + COOLER_C
    began = time.monotonic()
    time.sleep(pause_s)
    while time.monotonic() - began < COOL_DOWN_S:
        celsius = read().temperature_c
        if not isinstance(celsius, float) or celsius <= limit_c:
            return
        note(f"cooling down: {celsius:.1f} °C, to {limit_c:.1f} °C")
        time.sleep(LOOK_S)

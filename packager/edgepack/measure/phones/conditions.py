"""Reads a phone's conditions, on the host, from its own commands: phones have no Python.

Of Android it is the text that :data:`ANDROID_COMMANDS` print in a shell of the phone; of iOS the
line that a test bundle prints: ``edgepack-conditions`` and a JSON object with ``thermal_state``
(``ProcessInfo.thermalState.rawValue``), ``low_power_mode`` (``isLowPowerModeEnabled``) and
``battery_percent`` (of ``UIDevice.batteryLevel``).

Sources: Android's ThermalManagerService.java and BatteryService.java (``dump``), Temperature.java
and PowerManager.java (``THERMAL_STATUS_*``) in frameworks/base; Linux's
Documentation/admin-guide/pm/cpufreq.rst; Apple's documentation of ``ProcessInfo.ThermalState``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from edgepack.base.schema import NotMeasured
from edgepack.records.run import LOW_POWER, Conditions

CPUFREQ = "/sys/devices/system/cpu/cpufreq/policy"
ANDROID_COMMANDS = {
    "thermal": ["dumpsys", "thermalservice"],
    "battery": ["dumpsys", "battery"],
    "low power": ["settings", "get", "global", "low_power"],
    "governors": ["sh", "-c", f"grep -H . {CPUFREQ}*/scaling_governor"],
    "load": ["cat", "/proc/loadavg"],
}
"""By the name under which the readers take their output."""
THERMAL_STATUS = ("none", "light", "moderate", "severe", "critical", "emergency", "shutdown")
THERMAL_STATE = ("nominal", "fair", "serious", "critical")
IOS_MARK = "edgepack-conditions "
NO_TOPOLOGY = NotMeasured(reason="a phone is not asked for its cores")
NO_COUNTER = NotMeasured(reason="phones do not count it")

Outputs = Mapping[str, str]
"""What commands printed, by their names; what a phone refused is absent or empty."""

PLAUSIBLE_C = (-40.0, 150.0)
"""Phones print other numbers for sensors that they do not have: -99.9, -3.4028235E38."""
# Types 6 to 8 (BCL) are the battery's voltage, current and per cent.
_TEMPERATURE = re.compile(
    r"Temperature\{mValue=([^,]+), mType=(?![678],)-?\d+, mName=([^,]+), mStatus=\d+\}"
)


def parse_android_conditions(outputs: Outputs) -> Conditions:
    """Return the conditions of an Android phone."""
    temperatures = parse_android_temperatures(outputs)
    governors = dict.fromkeys(_group_by_policy(outputs.get("governors", "")).values())
    load = outputs.get("load", "").split()
    return Conditions(
        governor="+".join(sorted(governors)) or NotMeasured(reason="no governor can be read"),
        temperature_c=max(temperatures.values(), default=None)
        or NotMeasured(reason="neither the thermal service nor the battery reports one"),
        throttle_events=NO_COUNTER,
        throttled_now=_parse_throttled(outputs),
        throttled_since_boot=NO_COUNTER,
        power_mode=_parse_power_mode(outputs),
        load=float(load[0]) if load else NotMeasured(reason="/proc/loadavg cannot be read"),
        battery_percent=_parse_battery(outputs),
    )


def parse_android_temperatures(outputs: Outputs) -> dict[str, float]:
    """Return each temperature by its name, of the thermal service and the battery.

    An older value of the service is used only where there is no present one. 0.0 stands for a
    sensor that the phone does not have.
    """
    cached, _, current = outputs.get("thermal", "").partition("Current temperatures from HAL:")
    found = _TEMPERATURE.findall(current) or _TEMPERATURE.findall(cached)
    celsius = {name: float(value) for value, name in found if _is_plausible(value)}
    if tenths := re.search(r"^ *temperature: (\d+)", outputs.get("battery", ""), re.MULTILINE):
        celsius["battery"] = int(tenths[1]) / 10
    return {name: value for name, value in celsius.items() if value}


def parse_ios_conditions(printed: str) -> Conditions:
    """Return the conditions of an iPhone or iPad, by the last line of its test bundle.

    iOS reports no temperature, no clock and no load.
    """
    said: dict[str, Any] = {}
    for line in printed.splitlines():
        _, mark, text = line.partition(IOS_MARK)
        if mark:
            said = json.loads(text)
    state, low = said.get("thermal_state"), said.get("low_power_mode")
    unknown = NotMeasured(reason="the test bundle did not print it")
    hidden = NotMeasured(reason="iOS does not report it")
    throttled: list[str] | NotMeasured = unknown
    if isinstance(state, int) and 0 <= state < len(THERMAL_STATE):
        throttled = [f"thermal state {THERMAL_STATE[state]}"] if state else []
    return Conditions(
        governor=hidden,
        temperature_c=hidden,
        throttle_events=NO_COUNTER,
        throttled_now=throttled,
        throttled_since_boot=NO_COUNTER,
        power_mode=unknown if low is None else LOW_POWER if low else "normal",
        load=hidden,
        battery_percent=said.get("battery_percent", unknown),
    )


def _parse_throttled(outputs: Outputs) -> list[str] | NotMeasured:
    text = outputs.get("thermal", "")
    status = re.search(r"^Thermal Status: (\d)", text, re.MULTILINE)
    if not status or int(status[1]) >= len(THERMAL_STATUS):
        return NotMeasured(reason="the thermal service reports no status: Android 10 or newer does")
    if "HAL Ready: true" not in text:
        return NotMeasured(
            reason="the phone's thermal HAL is not ready, so the status means nothing"
        )
    number = int(status[1])
    return [f"thermal status {THERMAL_STATUS[number]}"] if number else []


def _parse_power_mode(outputs: Outputs) -> str | NotMeasured:
    match outputs.get("low power", "").strip():
        case "1":
            return LOW_POWER
        case "0" | "null":  # null: it was never switched on
            return "normal"
        case _:
            return NotMeasured(reason="the setting 'low_power' cannot be read")


def _parse_battery(outputs: Outputs) -> float | NotMeasured:
    level = re.search(r"^ *level: (\d+)", outputs.get("battery", ""), re.MULTILINE)
    if level is None:
        return NotMeasured(reason="the battery service reports no level")
    return min(100.0, float(level[1]))


def _group_by_policy(text: str) -> dict[str, str]:
    """Return the values of files that ``grep -H`` printed, by cpufreq policy."""
    return dict(re.findall(r"/(policy\d+)/\w+:(\S+)", text))


def _is_plausible(text: str) -> bool:
    try:
        return PLAUSIBLE_C[0] < float(text) < PLAUSIBLE_C[1]
    except ValueError:
        return False

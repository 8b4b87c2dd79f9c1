"""What phones say of their conditions.

``SAMSUNG`` is what a Galaxy A52 5G with Android 12 printed, from
https://android.stackexchange.com/questions/246774; ``PIXEL`` has the form that Android's own
ThermalManagerServiceTest.java expects; the battery's text is from https://gh0st.tistory.com/6.
"""

from __future__ import annotations

import pytest
from edgepack.base.schema import NotMeasured
from edgepack.measure.phones.conditions import (
    ANDROID_COMMANDS,
    parse_android_conditions,
    parse_android_temperatures,
    parse_ios_conditions,
)
from edgepack.records.run import Conditions

SAMSUNG = """\
IsStatusOverride: false
ThermalEventListeners:
        callbacks: 1
        killed: false
        broadcasts count: -1
Thermal Status: 0
Cached temperatures:
        Temperature{mValue=0.0, mType=2, mName=SUBBAT, mStatus=0}
        Temperature{mValue=35.6, mType=0, mName=AP, mStatus=0}
        Temperature{mValue=23.8, mType=2, mName=BAT, mStatus=0}
HAL Ready: true
HAL connection:
        ThermalHAL 2.0 connected: yes
Current temperatures from HAL:
        Temperature{mValue=25.6, mType=0, mName=AP, mStatus=0}
        Temperature{mValue=23.8, mType=2, mName=BAT, mStatus=0}
        Temperature{mValue=25.7, mType=5, mName=PA, mStatus=0}
        Temperature{mValue=0.0, mType=2, mName=SUBBAT, mStatus=0}
Current cooling devices from HAL:
Temperature static thresholds from HAL:
"""
PIXEL = """\
Thermal Status: 2
Cached temperatures:
HAL Ready: true
Current temperatures from HAL:
\tTemperature{mValue=NaN, mType=0, mName=cpu, mStatus=0}
\tTemperature{mValue=41.25, mType=3, mName=skin1, mStatus=2}
Current cooling devices from HAL:
\tCoolingDevice{mValue=0, mType=1, mName=cpu}
Temperature static thresholds from HAL:
\tTemperatureThreshold{mType=3, mName=skin1, mHotThrottlingThresholds=[NaN, 39.0, 41.0, 43.0, \
45.0, 50.0, 55.0], mColdThrottlingThresholds=[NaN, NaN, NaN, NaN, NaN, NaN, NaN]}
\tTemperatureThreshold{mType=0, mName=cpu, mHotThrottlingThresholds=[NaN, NaN, NaN, 95.0, NaN, \
NaN, NaN], mColdThrottlingThresholds=[0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]}
"""
BATTERY = """\
Current Battery Service state:
  AC powered: false
  USB powered: true
  status: 2
  level: 84
  voltage: 4063
  temperature: 326
  technology: Li-ion
"""
GOVERNORS = """\
/sys/devices/system/cpu/cpufreq/policy0/scaling_governor:sched_pixel
/sys/devices/system/cpu/cpufreq/policy4/scaling_governor:sched_pixel
/sys/devices/system/cpu/cpufreq/policy7/scaling_governor:performance
"""
OUTPUTS = {
    "thermal": SAMSUNG,
    "battery": BATTERY,
    "low power": "0\n",
    "governors": GOVERNORS,
    "load": "3.10 2.20 1.05 4/3217 18230\n",
}


def test_android_conditions_are_those_of_its_services() -> None:
    assert OUTPUTS.keys() == ANDROID_COMMANDS.keys()
    found = parse_android_conditions(OUTPUTS)
    assert found.governor == "performance+sched_pixel"
    assert found.temperature_c == 32.6
    assert found.throttled_now == []
    assert (found.power_mode, found.load) == ("normal", 3.1)
    assert found.battery_percent == 84
    assert isinstance(found.throttle_events, NotMeasured)


def test_android_conditions_are_all_unknown_when_nothing_answers() -> None:
    found = parse_android_conditions({})
    for name in Conditions.model_fields:
        assert isinstance(getattr(found, name), NotMeasured), name


def test_android_status_means_nothing_when_its_hal_is_not_ready() -> None:
    """As an emulator or a tablet without sensors prints it."""
    text = "Thermal Status: 0\nCached temperatures:\nHAL Ready: false\n"
    found = parse_android_conditions({"thermal": text})
    assert isinstance(found.throttled_now, NotMeasured)
    assert "HAL is not ready" in found.throttled_now.reason


def test_android_names_the_status_and_the_saver_when_it_slows_down() -> None:
    found = parse_android_conditions({"thermal": PIXEL, "low power": "1"})
    assert found.throttled_now == ["thermal status moderate"]
    assert found.power_mode == "low power"


def test_android_temperatures_are_those_of_now_and_only_of_sensors_that_are_there() -> None:
    temperatures = {"AP": 25.6, "BAT": 23.8, "PA": 25.7}
    assert parse_android_temperatures({"thermal": SAMSUNG}) == temperatures
    assert parse_android_temperatures({"thermal": PIXEL}) == {"skin1": 41.25}
    cached = SAMSUNG.partition("Current temperatures")[0]
    assert parse_android_temperatures({"thermal": cached}) == {"AP": 35.6, "BAT": 23.8}


def test_android_temperatures_are_not_what_a_phone_says_of_volts_and_amperes() -> None:
    """As a Pixel 6 prints it: google/skia-buildbot, machine/go/test_machine_monitor/adb."""
    lines = """\
Current temperatures from HAL:
\tTemperature{mValue=1300.0, mType=6, mName=smpl_gm, mStatus=0}
\tTemperature{mValue=11900.0, mType=7, mName=ocp_gpu, mStatus=0}
\tTemperature{mValue=19.0, mType=8, mName=soc, mStatus=0}
\tTemperature{mValue=61.000004, mType=0, mName=BIG, mStatus=0}
\tTemperature{mValue=22.771002, mType=-1, mName=VIRTUAL-SKIN-CHARGE, mStatus=0}
\tTemperature{mValue=-99.9, mType=5, mName=PA, mStatus=0}
\tTemperature{mValue=-3.4028235E38, mType=1, mName=GPU, mStatus=0}
"""
    found = parse_android_temperatures({"thermal": lines})
    assert found == {"BIG": 61.000004, "VIRTUAL-SKIN-CHARGE": 22.771002}


@pytest.mark.parametrize(
    ("said", "throttled", "mode"),
    [
        ('{"thermal_state": 0, "low_power_mode": false}', [], "normal"),
        ('{"thermal_state": 1, "low_power_mode": true}', ["thermal state fair"], "low power"),
        ('{"thermal_state": 3, "low_power_mode": false}', ["thermal state critical"], "normal"),
    ],
)
def test_ios_conditions_are_those_of_its_process_info(
    said: str, throttled: list[str], mode: str
) -> None:
    printed = f"Test Case started.\n2026-11-22 app[1:2] edgepack-conditions {said}\npassed\n"
    found = parse_ios_conditions(printed)
    assert (found.throttled_now, found.power_mode) == (throttled, mode)
    assert isinstance(found.temperature_c, NotMeasured)


@pytest.mark.parametrize(
    "printed", ["", "edgepack-conditions {}", 'edgepack-conditions {"thermal_state": 9}']
)
def test_ios_conditions_are_unknown_when_the_test_bundle_does_not_say_them(printed: str) -> None:
    found = parse_ios_conditions(printed)
    assert isinstance(found.throttled_now, NotMeasured)
    assert isinstance(found.power_mode, NotMeasured)

"""What NVIDIA's driver tells of its GPUs, by its library NVML: clock, heat, power, memory.

The library comes with the driver, so nothing has to be installed. Where there is none, there are no
GPUs here. What a GPU does not tell, such as a Jetson's, is left out.

Source: NVML API Reference Guide R550 (docs.nvidia.com/deploy/nvml-api), "Device Queries", "Device
Structs", "Device Enums", "Clocks Event Reasons". No GPU has been read by this yet.

Needs Python 3.8 or newer, and nothing else.
"""

from __future__ import annotations

import ctypes
from typing import Any, List, Optional

LIBRARY = "libnvidia-ml.so.1"
SUCCESS = 0
_GPU_SENSOR = 0
_SLOWDOWN = 1
"""``NVML_TEMPERATURE_THRESHOLD_SLOWDOWN``: from which temperature on the hardware slows itself."""
_SM = 1
"""``NVML_CLOCK_SM``, of what computes."""
# Not its own power limit (0x4): many GPUs always run at that under load. Their clock tells.
_CAUSES = {
    0x08: "GPU hardware slowdown",
    0x20: "GPU thermal slowdown",
    0x40: "GPU hardware thermal slowdown",
    0x80: "GPU power brake",
}


# As nvmlUtilization_t is laid out (the GPU, its memory), and nvmlMemory_t (total, free, used).
_Utilization = ctypes.c_uint * 2
_Memory = ctypes.c_ulonglong * 3


class Gpu:
    """One GPU; each reading is None where it does not tell."""

    def __init__(self, library: Any, handle: ctypes.c_void_p) -> None:
        self._library = library
        self._handle = handle

    def read_temperature_c(self) -> Optional[float]:
        """Return how hot it is, in degrees Celsius."""
        return self._read_number("nvmlDeviceGetTemperature", _GPU_SENSOR)

    def read_slowdown_c(self) -> Optional[float]:
        """Return from which temperature on its hardware slows it down, in degrees Celsius."""
        return self._read_number("nvmlDeviceGetTemperatureThreshold", _SLOWDOWN)

    def read_clock_hz(self) -> Optional[int]:
        """Return the clock of what computes."""
        mhz = self._read_number("nvmlDeviceGetClockInfo", _SM)
        return None if mhz is None else int(mhz * 1e6)

    def read_busy(self) -> Optional[float]:
        """Return for what part of the last time it worked."""
        use = _Utilization()
        return use[0] / 100 if self._ask("nvmlDeviceGetUtilizationRates", use) else None

    def read_energy_j(self) -> Optional[float]:
        """Return what it took since the driver was loaded, in joules; from Volta on."""
        millijoules = ctypes.c_ulonglong()
        asked = self._ask("nvmlDeviceGetTotalEnergyConsumption", millijoules)
        return millijoules.value / 1000 if asked else None

    def read_power_w(self) -> Optional[float]:
        """Return what it takes, in watts: now, or from Ampere on over the last second."""
        milliwatts = self._read_number("nvmlDeviceGetPowerUsage")
        return None if milliwatts is None else milliwatts / 1000

    def read_used_bytes(self) -> Optional[int]:
        """Return how much of its memory all programs use."""
        memory = _Memory()
        return memory[2] if self._ask("nvmlDeviceGetMemoryInfo", memory) else None

    def list_causes(self) -> List[str]:
        """Return why it is slowed down now; nothing where it is not, or does not tell."""
        bits = ctypes.c_ulonglong()
        # The second is what drivers before R530 call it.
        asked = [f"nvmlDeviceGetCurrentClocks{what}Reasons" for what in ("Event", "Throttle")]
        if not any(self._ask(name, bits) for name in asked):
            return []
        return [cause for bit, cause in _CAUSES.items() if bits.value & bit]

    def _read_number(self, name: str, *which: int) -> Optional[float]:
        value = ctypes.c_uint()
        return float(value.value) if self._ask(name, value, *which) else None

    def _ask(self, name: str, answer: Any, *which: int) -> bool:
        """Return whether the driver filled an answer in."""
        function = getattr(self._library, name, None)
        if function is None:
            return False
        return bool(function(self._handle, *which, ctypes.byref(answer)) == SUCCESS)


def find_gpus(name: str = LIBRARY) -> List[Gpu]:
    """Return the GPUs of this machine that the driver tells of, in its order."""
    try:
        library = ctypes.CDLL(name)
        if library.nvmlInit_v2() != SUCCESS:
            return []
    except (OSError, AttributeError):
        return []
    count = ctypes.c_uint()
    if library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != SUCCESS:
        return []
    found = []
    for index in range(count.value):
        handle = ctypes.c_void_p()
        if library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) == SUCCESS:
            found.append(Gpu(library, handle))
    return found


def sum_used_bytes(gpus: List[Gpu]) -> Optional[int]:
    """Return how much memory of GPUs all programs use; None where one does not tell, or none is."""
    found = [gpu.read_used_bytes() for gpu in gpus]
    return sum(used for used in found if used is not None) if found and None not in found else None

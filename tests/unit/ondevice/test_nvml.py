"""What NVIDIA's driver tells of its GPUs, from a library that answers as its reference says."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from edgepack.base.resources import find_ondevice_dir
from edgepack.ondevice.harness import edgepack_nvml as nvml
from edgepack.ondevice.harness import edgepack_sampler, edgepack_sensors
from edgepack.records.run import Sampling

from tests.support.servers.sysfs import JETSON, write_tree
from tests.unit.ondevice.test_nvidia import compile_library

HARNESS = find_ondevice_dir() / "harness"
# Two GPUs: the first tells all, the second nothing but its clock, as a Jetson's. The units and
# numbers are those of NVML's reference: MHz, mW, percent, bytes, 3 for NVML_ERROR_NOT_SUPPORTED.
DRIVER = """
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { unsigned long long total, free, used; } Memory;
static int gpus[2];
static int is_first(void *gpu) { return gpu == &gpus[0]; }
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **gpu) { *gpu = &gpus[index]; return 0; }
int nvmlDeviceGetTemperature(void *gpu, int sensor, unsigned *found)
{ *found = 71; return is_first(gpu) && sensor == 0 ? 0 : 3; }
int nvmlDeviceGetTemperatureThreshold(void *gpu, int kind, unsigned *found)
{ *found = kind == 1 ? 92 : 97; return is_first(gpu) ? 0 : 3; }
int nvmlDeviceGetClockInfo(void *gpu, int kind, unsigned *found)
{ *found = kind == 1 ? 1755 : kind == 2 ? 10501 : 1; return is_first(gpu) || kind == 1 ? 0 : 3; }
int nvmlDeviceGetUtilizationRates(void *gpu, Utilization *found)
{ found->gpu = 87; found->memory = 12; return is_first(gpu) ? 0 : 3; }
int nvmlDeviceGetPowerUsage(void *gpu, unsigned *found)
{ *found = 183250; return is_first(gpu) ? 0 : 3; }
int nvmlDeviceGetMemoryInfo(void *gpu, Memory *found)
{ found->total = 100; found->free = 60; found->used = 6000000000ull; return is_first(gpu) ? 0 : 3; }
int nvmlDeviceGetCurrentClocksThrottleReasons(void *gpu, unsigned long long *found)
{ *found = 0x1 | 0x4 | 0x40; return is_first(gpu) ? 0 : 3; }
"""

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no gcc here")


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("driver")
    return compile_library(folder / nvml.LIBRARY, nvml.LIBRARY, DRIVER)


@pytest.fixture
def gpus(driver: Path) -> list[nvml.Gpu]:
    return nvml.find_gpus(str(driver))


def test_sampler_reads_the_gpus_of_the_driver_beside_the_kernels_files(driver: Path) -> None:
    argv = [sys.executable, "-BIS", str(HARNESS / "edgepack_sampler.py"), "0.05"]
    environment = {**os.environ, "LD_LIBRARY_PATH": str(driver.parent)}
    done = subprocess.run(
        argv, input=b"", env=environment, capture_output=True, check=True, timeout=60
    )
    found = Sampling.model_validate(json.loads(done.stdout))
    sample = found.samples[-1]
    assert sample.clocks_hz["gpu 1"] == 1_755_000_000
    assert sample.clocks_hz["gpu 1 memory"] == 10_501_000_000
    assert sample.clocks_hz["gpu 2"] == 1_755_000_000
    assert "gpu 2 memory" not in sample.clocks_hz
    assert (sample.temperatures_c["gpu 1"], found.trip_points_c["gpu 1"]) == (71.0, 92.0)
    assert (sample.busy["gpu 1"], sample.power_w["gpu 1"]) == (0.87, 183.25)
    assert "GPU hardware thermal slowdown" in sample.throttled
    assert not {"temperature", "clocks", "power", "throttling"} & set(found.unknown)
    energy = edgepack_sampler.compute_energy(
        json.loads(done.stdout), found.samples[0].at_ns, sample.at_ns
    )
    assert energy["source"].endswith("NVML gpu 1")


def test_a_jetsons_own_files_come_before_what_the_driver_tells(
    tmp_path: Path, gpus: list[nvml.Gpu]
) -> None:
    alone = edgepack_sensors.Sensors(write_tree(tmp_path, JETSON), []).sample()
    found = edgepack_sensors.Sensors(tmp_path, gpus[1:]).sample()
    assert found["clocks_hz"] == alone["clocks_hz"]
    assert found["power_w"] == alone["power_w"]


def test_a_gpu_has_only_what_it_tells(gpus: list[nvml.Gpu]) -> None:
    first, second = gpus
    assert first.read_used_bytes() == 6_000_000_000
    assert second.read_used_bytes() is None
    assert second.list_causes() is None
    assert nvml.sum_used_bytes([first]) == 6_000_000_000
    assert nvml.sum_used_bytes(gpus) is None
    assert nvml.sum_used_bytes([]) is None


def test_there_are_no_gpus_without_the_drivers_library(tmp_path: Path) -> None:
    assert nvml.find_gpus(str(tmp_path / nvml.LIBRARY)) == []
    assert edgepack_sensors.find_gpus(tmp_path) == []
    reader = edgepack_sensors.Sensors(tmp_path, [])
    assert set(reader.unknown) == {"temperature", "clocks", "power", "throttling", "load"}


def test_a_driver_that_does_not_start_has_no_gpus(tmp_path: Path) -> None:
    code = "int nvmlInit_v2(void) { return 9; }"  # NVML_ERROR_DRIVER_NOT_LOADED
    assert nvml.find_gpus(str(compile_library(tmp_path / "lib.so", "lib.so", code))) == []
    code = "int nvmlInit(void) { return 0; }"  # older than 2013
    assert nvml.find_gpus(str(compile_library(tmp_path / "old.so", "old.so", code))) == []


def test_energy_of_the_gpus_is_added_to_that_of_the_packages() -> None:
    second = 1_000_000_000
    samples = [
        {"at_ns": 0},
        {"at_ns": second, "power_w": {"package-0": 20.0, "gpu": 100.0}},
    ]
    found = edgepack_sampler.compute_energy({"samples": samples, "unknown": {}}, 0, second)
    assert found == {"joules": 120.0, "source": "RAPL package-0, NVML gpu"}

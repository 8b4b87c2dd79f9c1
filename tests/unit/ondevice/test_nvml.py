"""What NVIDIA's driver tells of its GPUs, from a library that answers as its reference says."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from edgepack.base.resources import find_ondevice_dir
from edgepack.ondevice.harness import edgepack_nvml as nvml
from edgepack.ondevice.harness import edgepack_sampler, edgepack_sensors
from edgepack.records.run import Sampling

from tests.support.servers.sysfs import JETSON, write_tree
from tests.unit.ondevice.test_nvidia import compile_library

HARNESS = find_ondevice_dir() / "harness"
# Two GPUs: the first tells all; the second its clock, and its power now, as an old one. The units
# are those of NVML's reference, MHz, mW, mJ, percent and bytes, and 3 is NVML_ERROR_NOT_SUPPORTED.
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
{ (void)gpu; *found = kind == 1 ? 1755 : 1; return 0; }
int nvmlDeviceGetTotalEnergyConsumption(void *gpu, unsigned long long *found)
{ static unsigned long long taken = 5000; *found = taken += 1000; return is_first(gpu) ? 0 : 3; }
int nvmlDeviceGetUtilizationRates(void *gpu, Utilization *found)
{ found->gpu = 87; found->memory = 12; return is_first(gpu) ? 0 : 3; }
int nvmlDeviceGetPowerUsage(void *gpu, unsigned *found)
{ (void)gpu; *found = 183250; return 0; }
int nvmlDeviceGetMemoryInfo(void *gpu, Memory *found)
{ found->total = 100; found->free = 60; found->used = 6000000000ull; return is_first(gpu) ? 0 : 3; }
int nvmlDeviceGetCurrentClocks@Reasons(void *gpu, unsigned long long *found)
{ *found = 0x1 | 0x4 | 0x40; return is_first(gpu) ? 0 : 3; }
"""

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no gcc here")


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("driver")
    return compile_library(folder / nvml.LIBRARY, nvml.LIBRARY, DRIVER.replace("@", "Event"))


@pytest.fixture
def gpus(driver: Path) -> list[nvml.Gpu]:
    return nvml.find_gpus(str(driver))


def test_sampler_reads_the_gpus_of_the_driver_beside_the_kernels_files(driver: Path) -> None:
    argv = [sys.executable, "-BIS", str(HARNESS / "edgepack_sampler.py"), "0.05", "/"]
    environment = {**os.environ, "LD_LIBRARY_PATH": str(driver.parent)}

    def run(*more: str) -> Sampling:
        done = subprocess.run(
            [*argv, *more], input=b"", env=environment, capture_output=True, check=True, timeout=60
        )
        return Sampling.model_validate(json.loads(done.stdout))

    found = run("gpus")
    first, sample = found.samples[0], found.samples[-1]
    assert sample.clocks_hz["gpu 1"] == sample.clocks_hz["gpu 2"] == 1_755_000_000
    assert (sample.temperatures_c["gpu 1"], found.trip_points_c["gpu 1"]) == (71.0, 92.0)
    assert (sample.busy["gpu 1"], sample.power_w["gpu 2"]) == (0.87, 183.25)
    assert "gpu 1" not in first.power_w
    assert sample.power_w["gpu 1"] > 0
    assert sample.throttled.count("GPU hardware thermal slowdown") == 1
    energy = edgepack_sampler.compute_energy(found.model_dump(), first.at_ns, sample.at_ns)
    assert "NVML gpu 1 gpu 2" in energy["source"]
    idle = run()
    assert not [name for name in idle.samples[-1].clocks_hz if name.startswith("gpu")]
    assert not [name for name in idle.samples[-1].power_w if name.startswith("gpu")]


def test_a_jetsons_own_files_come_before_what_the_driver_tells(
    tmp_path: Path, gpus: list[nvml.Gpu]
) -> None:
    alone = edgepack_sensors.Sensors(write_tree(tmp_path, JETSON), []).sample()
    found = edgepack_sensors.Sensors(tmp_path, gpus[1:]).sample()
    assert found["clocks_hz"] == alone["clocks_hz"]
    assert found["power_w"] == {**alone["power_w"], "gpu": 183.25}
    sampling = {"samples": [{**found, "at_ns": 0}, {**found, "at_ns": 1}], "unknown": {}}
    assert edgepack_sampler.compute_energy(sampling, 0, 1)["source"] == "INA3221 VDD_IN"


def test_power_is_what_was_taken_since_the_time_before_where_a_gpu_counts_that(
    tmp_path: Path, gpus: list[nvml.Gpu], monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = itertools.count()
    clock = SimpleNamespace(monotonic_ns=lambda: next(seconds) * 1_000_000_000)
    monkeypatch.setattr(edgepack_sensors, "time", clock)
    reader = edgepack_sensors.Sensors(tmp_path, gpus[:1])
    assert "power_w" not in reader.sample()
    # A joule, in the two seconds that have passed for the clock of this test.
    assert reader.sample()["power_w"] == {"gpu": 0.5}


def test_a_gpu_has_only_what_it_tells(gpus: list[nvml.Gpu]) -> None:
    first, second = gpus
    assert first.read_used_bytes() == 6_000_000_000
    assert second.read_used_bytes() is None
    assert second.list_causes() == []
    assert second.read_energy_j() is None
    assert nvml.sum_used_bytes([first]) == 6_000_000_000
    assert nvml.sum_used_bytes(gpus) is None
    assert nvml.sum_used_bytes([]) is None


def test_there_are_no_gpus_without_the_drivers_library(tmp_path: Path) -> None:
    assert nvml.find_gpus(str(tmp_path / nvml.LIBRARY)) == []


def test_a_driver_that_does_not_start_has_no_gpus(tmp_path: Path) -> None:
    code = "int nvmlInit_v2(void) { return 9; }"  # NVML_ERROR_DRIVER_NOT_LOADED
    assert nvml.find_gpus(str(compile_library(tmp_path / "lib.so", "lib.so", code))) == []
    code = "int nvmlInit(void) { return 0; }"  # older than 2013
    assert nvml.find_gpus(str(compile_library(tmp_path / "old.so", "old.so", code))) == []


def test_drivers_before_r530_call_the_causes_by_another_name(tmp_path: Path) -> None:
    library = compile_library(tmp_path / "old.so", "old.so", DRIVER.replace("@", "Throttle"))
    first, _ = nvml.find_gpus(str(library))
    assert first.list_causes() == ["GPU hardware thermal slowdown"]


@pytest.mark.parametrize(
    ("watts", "joules", "source"),
    [
        ({"package-0": 20.0, "gpu": 100.0}, 120.0, "RAPL package-0, NVML gpu"),
        ({"package-0": 20.0}, 20.0, "RAPL package-0"),
        ({"gpu": 100.0}, 100.0, "NVML gpu alone"),
        ({"VDD_IN": 30.0, "gpu": 100.0}, 30.0, "INA3221 VDD_IN"),
    ],
)
def test_energy_is_of_all_that_computes_as_far_as_it_is_told(
    watts: dict[str, float], joules: float, source: str
) -> None:
    second = 1_000_000_000
    samples = [{"at_ns": 0}, {"at_ns": second, "power_w": watts}]
    sampling = {"samples": samples, "unknown": {} if "package-0" in watts else {"power": "denied"}}
    found = edgepack_sampler.compute_energy(sampling, 0, second)
    assert found == {"joules": joules, "source": source}


def test_energy_of_a_gpu_beside_other_rails_is_not_the_whole() -> None:
    samples = [{"at_ns": 0}, {"at_ns": 9, "power_w": {"": 1.0, "VDD_CPU_CV": 4.0, "gpu": 9.0}}]
    found = edgepack_sampler.compute_energy({"samples": samples, "unknown": {}}, 0, 9)
    assert "none of the rails is the whole input" in found["reason"]

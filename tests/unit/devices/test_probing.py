from __future__ import annotations

import platform
import sys
from dataclasses import replace
from pathlib import Path, PurePosixPath

import onnxruntime
import pytest
from edgepack.base.machine import find_architecture, read_cpu_flags
from edgepack.devices.checking import (
    Checked,
    check,
    find_absent_providers,
    find_driver_problem,
    find_problems,
    find_runtime_python,
)
from edgepack.devices.inventory import Device, LocalEntry, load_device
from edgepack.devices.probing import (
    Missing,
    ProbedFacts,
    PythonFacts,
    _make_facts,
    probe,
    propose_target,
)
from edgepack.devices.transports import connect
from edgepack.errors import DeviceError
from edgepack.project.profile import find_host_target, load_profile

PYTHON = PythonFacts(
    "3.11.2",
    {"numpy": "2.4.6", "onnxruntime": "1.31.1"},
    ("CPUExecutionProvider",),
    {"onnxruntime": "1.31.1"},
)
PI = ProbedFacts(
    os="linux",
    arch="aarch64",
    model="Raspberry Pi 5 Model B Rev 1.0",
    libc="glibc 2.36",
    cpu_flags=("asimd",),
    free_bytes=1 << 30,
    root=PurePosixPath("/home/pi/.local/share/edgepack"),
    python_path="/usr/bin/python3",
    python=PYTHON,
)
DEVICE = Device("pi5", LocalEntry(transport="local", target="raspberry-pi"))
WITH_PYTHON = Device("pi5", LocalEntry(transport="local", target="raspberry-pi", python="/opt/py"))


def test_this_machine_is_probed_as_python_sees_it(own_home: Path) -> None:
    device = load_device("local")
    with connect(device) as transport:
        facts = probe(device, transport)
    assert (facts.arch, set(facts.cpu_flags)) == (find_architecture(), read_cpu_flags())
    assert facts.python_path == sys.executable
    assert isinstance(facts.python, PythonFacts)
    assert facts.python.version == platform.python_version()
    assert facts.python.packages["onnxruntime"] == onnxruntime.__version__
    assert list(facts.python.providers) == onnxruntime.get_available_providers()
    assert facts.root == PurePosixPath(own_home / ".local/share/edgepack")
    assert propose_target(facts) == find_host_target()
    assert facts.free_bytes > 0


def test_check_finds_this_machine_ready() -> None:
    checked = check(load_device("local"))
    assert checked.problems == ()
    checked.require_ready()


def test_device_without_python_is_told_what_to_install(own_home: Path) -> None:
    device = Device(
        "here", LocalEntry(transport="local", target=find_host_target(), python="/no/py")
    )
    with connect(device) as transport:
        facts = probe(device, transport)
    assert facts.python == Missing("there is no Python")
    assert "no Python: there is no Python" in facts.format_lines()[2]


def test_python_that_does_not_run_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    entry = LocalEntry(transport="local", target=find_host_target(), python=str(broken))
    device = Device("here", entry)
    with connect(device) as transport:
        assert probe(device, transport).python == Missing(f"{broken} does not run")


@pytest.mark.parametrize(
    ("changes", "target"),
    [
        ({}, "raspberry-pi"),
        ({"model": "NVIDIA Jetson Orin Nano", "libc": "glibc 2.35"}, "jetson"),
        ({"model": "NVIDIA Jetson AGX Orin", "libc": "glibc 2.39"}, "jetson-jp7"),
        ({"model": "Radxa ROCK 5B"}, "linux-aarch64"),
        ({"arch": "x86-64", "model": ""}, "linux-x86-64"),
        ({"os": "macos", "model": "Mac14,2"}, "macos-arm64"),
    ],
)
def test_target_is_proposed_from_the_facts(changes: dict[str, str], target: str) -> None:
    assert propose_target(replace(PI, **changes)) == target  # type: ignore[arg-type]


def test_32_bit_system_has_no_target() -> None:
    with pytest.raises(DeviceError, match="no target for linux on armv7l") as caught:
        propose_target(replace(PI, arch="armv7l"))
    assert "64-bit" in caught.value.hint


def with_packages(**packages: str | Missing) -> ProbedFacts:
    return replace(PI, python=replace(PYTHON, packages=PYTHON.packages | packages))


@pytest.mark.parametrize(
    ("facts", "problem"),
    [
        (replace(PI, arch="x86-64"), "linux on x86-64, target 'raspberry-pi' is linux on aarch64"),
        (replace(PI, python=Missing("there is no Python")), "install python3 on the device"),
        (replace(PI, python=replace(PYTHON, version="3.9.2")), "is 3.9.2, target 'raspberry-pi'"),
        (with_packages(numpy=Missing("No module")), "no usable numpy: No module: edgepack device"),
        (with_packages(onnxruntime="1.20.0"), "onnxruntime is 1.20.0, not ==1.31.1"),
    ],
)
def test_problem_is_named_with_what_to_do(facts: ProbedFacts, problem: str) -> None:
    problems = find_problems(DEVICE, facts, load_profile("raspberry-pi"))
    assert [problem in found for found in problems] == [True]


def test_ready_device_has_no_problems() -> None:
    assert find_problems(DEVICE, PI, load_profile("raspberry-pi")) == []
    assert find_runtime_python(DEVICE, PI) == "/usr/bin/python3"


@pytest.mark.parametrize(
    ("device", "hint"),
    [(DEVICE, "edgepack device provision pi5"), (WITH_PYTHON, "install it into /opt/py")],
)
def test_missing_runtime_says_how_to_get_it(device: Device, hint: str) -> None:
    with pytest.raises(DeviceError, match="no usable onnxruntime: why") as caught:
        find_runtime_python(device, with_packages(onnxruntime=Missing("why")))
    assert hint in caught.value.hint


def test_provider_that_is_absent_is_named_with_where_it_comes_from() -> None:
    ready = replace(PYTHON, packages=PYTHON.packages | {"onnxruntime": "1.23.2"})
    profile = load_profile("jetson")
    assert find_problems(DEVICE, replace(PI, python=ready), profile) == []
    tensorrt, cuda = find_absent_providers(ready, profile)
    assert tensorrt.provider == "TensorrtExecutionProvider"
    assert tensorrt.variants == ("tensorrt-fp16", "tensorrt-int8-static")
    assert "No wheel on PyPI has it for Jetson" in tensorrt.format_lines()[1]
    assert any("edgepack runtime build jetson" in line for line in tensorrt.format_lines())
    assert cuda.variants == ("cuda-fp16",)
    checked = Checked("orin", "jetson", replace(PI, python=ready), (), (tensorrt, cuda))
    lines = checked.format_absent()
    assert lines[: len(tensorrt.format_lines())] == tensorrt.format_lines()
    assert lines[-1] == "  the commands for TensorrtExecutionProvider"
    assert sum("edgepack runtime build" in line for line in lines) == 1


@pytest.mark.parametrize(
    ("driver", "problem"),
    [
        ("580.65.06", ""),
        ("595.45", ""),
        ("575.57.08", "NVIDIA's driver is 575.57.08, and target 'nvidia' needs >=580.65.06"),
        ("", "no NVIDIA driver, and target 'nvidia' needs >=580.65.06"),
    ],
)
def test_nvidia_driver_that_is_missing_or_too_old_is_named_with_the_remedy(
    driver: str, problem: str
) -> None:
    found = find_driver_problem(replace(PI, nvidia_driver=driver), load_profile("nvidia"))
    assert (found[0] if found else "") == problem
    assert find_driver_problem(replace(PI, nvidia_driver=driver), load_profile("intel")) is None
    if found:
        assert ": ".join(found) in find_problems(
            DEVICE, replace(PI, nvidia_driver=driver), load_profile("nvidia")
        )


@pytest.mark.parametrize(
    "line",
    [
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 07:17:15 UTC 2025",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build",
    ],
)
def test_nvidia_driver_is_read_from_the_kernels_own_line(line: str) -> None:
    said = {"os": "Linux", "arch": "x86_64", "root": "/r", "nvidia": line}
    assert _make_facts(said, (), DEVICE).nvidia_driver == "580.65.06"


def test_provider_of_a_plugin_package_is_not_absent() -> None:
    intel = load_profile("intel")
    without = replace(PI, python=PYTHON)
    [absent] = find_absent_providers(without.python, intel)
    assert absent.provider == "OpenVINOExecutionProvider"
    plugin = replace(PYTHON, distributions={"onnxruntime-ep-openvino": "1.8.1"})
    assert find_absent_providers(plugin, intel) == []


def test_package_of_another_name_is_looked_for_by_that_name() -> None:
    found = replace(PI, arch="x86-64", python=replace(PYTHON, distributions={}))
    [problem] = find_problems(DEVICE, found, load_profile("intel"))
    assert "no usable onnxruntime-openvino" in problem
    plugin = replace(PYTHON, distributions={"onnxruntime-ep-openvino": "1.8.1"})
    assert find_problems(DEVICE, replace(found, python=plugin), load_profile("intel")) == []
    alone = replace(plugin, packages=PYTHON.packages | {"onnxruntime": Missing("gone")})
    assert find_problems(DEVICE, replace(found, python=alone), load_profile("intel"))
    has = replace(PYTHON, distributions={"onnxruntime-openvino": "1.24.1"})
    assert find_problems(DEVICE, replace(found, python=has), load_profile("intel")) == []

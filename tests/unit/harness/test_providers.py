"""The facts that a cache folder is named by, and OpenVINO's options in its plugin's words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from edgepack.harness import edgepack_providers as providers


@pytest.mark.parametrize(
    ("path", "text", "version"),
    [
        (
            "etc/nv_tegra_release",
            "# R36 (release), REVISION: 4.7, GCID: 42132812, BOARD: generic, EABI: aarch64\n",
            "L4T-36.4.7",
        ),
        (
            "proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5\nGCC 12.3.0",
            "NVIDIA-550.54.15",
        ),
        (
            "proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.10  Release Build\n",
            "NVIDIA-570.86.10",
        ),
        ("etc/hostname", "board\n", ""),
    ],
)
def test_driver_version_when_the_system_says_it_is_read(
    tmp_path: Path, path: str, text: str, version: str
):
    write(tmp_path / path, text)
    assert providers.driver_version(tmp_path) == version


def test_device_model_when_there_is_a_board_is_the_boards(tmp_path: Path):
    write(tmp_path / "proc/device-tree/model", "Raspberry Pi 5 Model B Rev 1.0\0")
    write(tmp_path / "proc/cpuinfo", "model name\t: Some CPU\n")
    assert providers.device_model(tmp_path) == "Raspberry Pi 5 Model B Rev 1.0"


def test_device_model_when_there_is_no_board_is_gpu_and_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(providers.platform, "system", lambda: "Linux")
    write(tmp_path / "proc/cpuinfo", "processor\t: 0\nmodel name\t: Some CPU\n" * 2)
    assert providers.device_model(tmp_path) == "Some CPU"
    gpu = "Model: \t\t NVIDIA L4\nIRQ:   \t\t 33\n"
    write(tmp_path / "proc/driver/nvidia/gpus/0000:01:00.0/information", gpu)
    assert providers.device_model(tmp_path) == "NVIDIA L4 Some CPU"
    assert providers.device_model(tmp_path / "absent") == ""


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("settings", "config"),
    [
        ({}, {}),
        ({"device_type": "GPU"}, {}),
        (
            {"device_type": "GPU.1", "precision": "FP16"},
            {"GPU": {"INFERENCE_PRECISION_HINT": "f16"}},
        ),
        (
            {"cache_dir": "/c", "num_of_threads": "2", "precision": "ACCURACY"},
            {
                "CPU": {
                    "CACHE_DIR": "/c",
                    "INFERENCE_NUM_THREADS": "2",
                    "EXECUTION_MODE_HINT": "ACCURACY",
                }
            },
        ),
        (
            {"load_config": '{"CPU": {"NUM_STREAMS": "2"}}', "num_streams": "1", "cache_dir": "/c"},
            {"CPU": {"NUM_STREAMS": "2", "CACHE_DIR": "/c"}},
        ),
    ],
)
def test_openvino_options_when_for_the_plugin_are_properties(
    settings: dict[str, str], config: dict[str, dict[str, str]]
):
    passed = providers.openvino_plugin_options(settings)
    assert json.loads(passed.get("load_config", "{}")) == config
    assert set(passed) <= {"load_config"}


def test_openvino_options_when_the_plugin_has_them_not_are_refused():
    assert providers.openvino_plugin_options({"reshape_input": "x[1]"}) == {"reshape_input": "x[1]"}
    with pytest.raises(providers.Refused, match="no option 'enable_causallm'"):
        providers.openvino_plugin_options({"enable_causallm": "True"})

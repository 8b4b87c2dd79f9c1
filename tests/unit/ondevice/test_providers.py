"""The facts that a cache folder is named by, and OpenVINO's options in its plugin's words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from edgepack.ondevice.runtime import edgepack_providers as providers


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
    assert providers.read_driver_version(tmp_path) == version


def test_device_model_when_there_is_a_board_is_the_boards(tmp_path: Path):
    write(tmp_path / "proc/device-tree/model", "Raspberry Pi 5 Model B Rev 1.0\0")
    write(tmp_path / "proc/cpuinfo", "model name\t: Some CPU\n")
    assert providers.read_device_model(tmp_path) == "Raspberry Pi 5 Model B Rev 1.0"


def test_device_model_when_there_is_no_board_is_gpu_and_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(providers.platform, "system", lambda: "Linux")
    write(tmp_path / "proc/cpuinfo", "processor\t: 0\nmodel name\t: Some CPU\n" * 2)
    assert providers.read_device_model(tmp_path) == "Some CPU"
    gpu = "Model: \t\t NVIDIA L4\nIRQ:   \t\t 33\n"
    write(tmp_path / "proc/driver/nvidia/gpus/0000:01:00.0/information", gpu)
    assert providers.read_device_model(tmp_path) == "NVIDIA L4 Some CPU"
    assert providers.read_device_model(tmp_path / "absent") == ""


def variant(**options: str) -> dict[str, object]:
    return {
        "model_sha256": "0" * 64,
        "providers": [{"name": "CPUExecutionProvider", "options": options}],
        "placement": "all",
        "session": {"intra_op_num_threads": 1, "config": {"session.name": "{cache}"}},
    }


def test_cache_folder_when_settings_differ_is_another(tmp_path: Path):
    plain = providers.find_cache_folder(variant(), tmp_path)
    assert plain == providers.find_cache_folder(variant(), tmp_path)
    assert plain.parent == tmp_path / ("0" * 64)
    others = {providers.find_cache_folder(variant(level=level), tmp_path) for level in "345"}
    assert len(others | {plain}) == 4


def test_cache_folder_when_macos_is_updated_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    names = []
    for version in ("15.1", "15.2"):
        monkeypatch.setattr(providers.platform, "mac_ver", lambda version=version: (version,))
        names.append(providers.find_cache_folder(variant(), tmp_path).name)
    assert ["_macOS-15.1_" in names[0], "_macOS-15.2_" in names[1]] == [True, True]


def test_session_when_the_cache_holds_what_is_refused_is_created_with_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = refused_cache(tmp_path, monkeypatch, also_empty=False)
    providers.open_session(tmp_path / "m.onnx", cached_variant(), tmp_path)
    assert [path.name for path in folder.iterdir()] == ["engine"]
    assert (folder / "engine").read_text() == "whole"
    assert list(folder.parent.iterdir()) == [folder]


def test_cache_when_it_was_not_what_is_refused_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = refused_cache(tmp_path, monkeypatch, also_empty=True)
    with pytest.raises(providers.Refused, match="cannot be created: torn engine"):
        providers.open_session(tmp_path / "m.onnx", cached_variant(), tmp_path)
    assert (folder / "engine").read_text() == "torn"
    assert list(folder.parent.iterdir()) == [folder]


def cached_variant() -> dict[str, object]:
    entry = variant()
    entry["session"]["config"] = {"session.collect_node_memory_stats_to_file": "{cache}/engine"}
    return entry


def refused_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, also_empty: bool) -> Path:
    """Make a cache with a torn engine, which the provider refuses as TensorRT's does."""
    folder = providers.find_cache_folder(cached_variant(), tmp_path)
    write(folder / "engine", "torn")

    class Session:
        def get_providers(self) -> list[str]:
            return ["CPUExecutionProvider"]

    def create(*_: object, **__: object) -> Session:
        engine = folder / "engine"
        if engine.exists():
            raise RuntimeError("torn engine")
        if also_empty:
            raise RuntimeError("no memory")
        engine.write_text("whole")
        return Session()

    monkeypatch.setattr(providers.ort, "InferenceSession", create)
    return folder


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
    passed = providers.make_plugin_options(settings)
    assert json.loads(passed.get("load_config", "{}")) == config
    assert set(passed) <= {"load_config"}


def test_openvino_options_when_the_plugin_has_them_not_are_refused():
    assert providers.make_plugin_options({"reshape_input": "x[1]"}) == {"reshape_input": "x[1]"}
    with pytest.raises(providers.Refused, match="no option 'enable_causallm'"):
        providers.make_plugin_options({"enable_causallm": "True"})


@pytest.mark.parametrize(
    ("allowed", "threads"),
    [({0, 1, 2, 3, 4, 5, 6, 7}, 0), ({2}, 1), ({0, 1}, 1), ({0, 1, 6}, 2), ({1, 3, 5, 7}, 4)],
)
def test_threads_when_a_process_may_use_some_cores_are_one_for_each_physical_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allowed: set[int], threads: int
):
    for number in range(8):
        pair = f"{number // 2 * 2}-{number // 2 * 2 + 1}\n"
        write(tmp_path / f"cpu{number}/topology/thread_siblings_list", pair)
    monkeypatch.setattr(providers, "_PROCESSORS", tmp_path)
    monkeypatch.setattr(providers.os, "cpu_count", lambda: 8)
    monkeypatch.setattr(providers.os, "sched_getaffinity", lambda _: allowed, raising=False)
    assert providers.choose_threads(session_with()) == threads
    assert providers.choose_threads(session_with(intra_op_num_threads=3)) == 3
    bound = {"session.intra_op_thread_affinities": "1;2"}
    assert providers.choose_threads(session_with(config=bound)) == 0


def test_threads_when_nothing_tells_of_cores_are_one_for_each_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(providers, "_PROCESSORS", tmp_path / "absent")
    monkeypatch.setattr(providers.os, "cpu_count", lambda: 8)
    monkeypatch.setattr(providers.os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    assert providers.choose_threads(session_with()) == 2
    monkeypatch.delattr(providers.os, "sched_getaffinity")
    assert providers.choose_threads(session_with()) == 0


def session_with(**settings: object) -> dict[str, object]:
    return {"intra_op_num_threads": 0, "config": {}, **settings}

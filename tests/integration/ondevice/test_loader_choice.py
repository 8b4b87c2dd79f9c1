"""The loader of a bundle chooses the first variant that works, and says why it passed others."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from tests.mobile.sealing import PALETTES, pack_input
from tests.support.reports.tiny_bundle import change_manifest, import_loader, write_tiny_bundle

Change = Callable[[dict[str, Any]], None]
CPU = "CPUExecutionProvider"
AZURE = "AzureExecutionProvider"
OPENVINO = "OpenVINOExecutionProvider"


@pytest.fixture(scope="module")
def loader() -> ModuleType:
    return import_loader()


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_tiny_bundle(tmp_path / "bundle")


def first_provider(name: str, placement: str | float = "all") -> Change:
    def change(manifest: dict[str, Any]) -> None:
        manifest["variants"][0]["providers"] = [{"name": name, "options": {}}]
        manifest["variants"][0]["placement"] = placement

    return change


def unknown_cpu_flag(manifest: dict[str, Any]) -> None:
    manifest["variants"][0]["requires"]["cpu"] = ["asimddp", "no_such_flag"]


def other_golden(manifest: dict[str, Any]) -> None:
    manifest["goldens"][0]["outputs"]["cpu-int8-static"][0]["path"] = "golden/1-y.bin"


def model_file(path: str) -> Change:
    def change(manifest: dict[str, Any]) -> None:
        manifest["variants"][0]["model"] = path

    return change


def session_key(key: str, value: str) -> Change:
    def change(manifest: dict[str, Any]) -> None:
        manifest["variants"][0]["session"]["config"] = {key: value}

    return change


def provider_option(name: str, key: str, value: str) -> Change:
    def change(manifest: dict[str, Any]) -> None:
        manifest["variants"][0]["providers"] = [{"name": name, "options": {key: value}}]

    return change


def test_load_picks_first_variant_when_all_work(bundle: Path, loader: ModuleType) -> None:
    model = loader.load(bundle)
    assert model.variant == "cpu-int8-static"
    assert model.passed_over == []
    assert model.golden_sqnr_db == 200.0
    assert [spec.name for spec in model.inputs + model.outputs] == ["x", "y"]
    assert model.session_create_ns > 0
    assert model.first_inference_ns > 0


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (first_provider("TensorrtExecutionProvider"), "TensorrtExecutionProvider is not in this"),
        (unknown_cpu_flag, "no_such_flag"),
        (other_golden, "dB near the golden one, 40.0 dB are needed"),
        (model_file("models/absent.onnx"), "the session cannot be created"),
        (model_file("golden/0-x.bin"), "the session cannot be created"),
        (
            session_key("session.intra_op.allow_spining", "0"),
            "'session.intra_op.allow_spining': is it 'session.intra_op.allow_spinning'?",
        ),
        (session_key("session.intra_op.allow_spinning", "no"), "is 'no': it takes 0 or 1"),
        (session_key("session.enable_profiling", "1"), "it has no effect"),
        (session_key("session.load_model_format", "ORT"), "the session cannot be created"),
        (provider_option(CPU, "threads", "4"), "CPUExecutionProvider has no options"),
        (provider_option(AZURE, "threads", "4"), "knows no execution provider 'Azure"),
        (first_provider(AZURE), "AzureExecutionProvider does not take every node"),
        (first_provider(AZURE, 0.5), "runs 0% of the nodes, at least 50%"),
    ],
)
def test_load_passes_over_first_variant_when_it_cannot_work(
    bundle: Path, loader: ModuleType, change: Change, reason: str
) -> None:
    change_manifest(bundle, change)
    model = loader.load(bundle)
    assert model.variant == "cpu-fp32"
    [(passed, why)] = model.passed_over
    assert passed == "cpu-int8-static"
    assert reason in why


def test_sessions_last_where_the_end_of_one_breaks_others(
    bundle: Path, loader: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader.providers, "NEVER_ENDED", ("CPUExecutionProvider",))
    monkeypatch.setattr(loader.providers, "_KEPT", [])
    model = loader.load(bundle, "cpu-fp32")
    loader.profile_nodes(model.bundle, model.entry, runs=1)
    kept = loader.providers._KEPT
    assert len(kept) == 2
    assert kept[0] is model.session


def test_load_measures_share_by_profile_when_onnxruntime_does_not_tell(
    bundle: Path, loader: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_manifest(bundle, first_provider(AZURE, 0.5))
    monkeypatch.delattr(ort.InferenceSession.__base__, "get_provider_graph_assignment_info")
    assert "runs 0% of the nodes" in loader.load(bundle).passed_over[0][1]


def test_load_raises_with_every_reason_when_no_variant_works(
    bundle: Path, loader: ModuleType
) -> None:
    def change(manifest: dict[str, Any]) -> None:
        unknown_cpu_flag(manifest)
        manifest["variants"][1]["providers"][0]["name"] = "CUDAExecutionProvider"

    change_manifest(bundle, change)
    with pytest.raises(loader.LoadError) as caught:
        loader.load(bundle)
    assert "cpu-int8-static: this CPU lacks" in str(caught.value)
    assert "cpu-fp32: CUDAExecutionProvider is not in this onnxruntime" in str(caught.value)


def test_load_uses_only_the_named_variant_when_one_is_named(
    bundle: Path, loader: ModuleType
) -> None:
    assert loader.load(bundle, "cpu-fp32").variant == "cpu-fp32"
    change_manifest(bundle, unknown_cpu_flag)
    with pytest.raises(loader.LoadError, match="no_such_flag"):
        loader.load(bundle, "cpu-int8-static")
    with pytest.raises(loader.LoadError, match="it has: cpu-int8-static, cpu-fp32"):
        loader.load(bundle, "cpu-int4")


def test_load_takes_its_own_folder_when_none_is_named(bundle: Path) -> None:
    import runpy

    names = runpy.run_path(str(bundle / "edgepack_loader.py"))
    assert names["load"]().variant == "cpu-int8-static"


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda folder: (folder / "manifest.json").unlink(), "no complete bundle"),
        (lambda folder: (folder / "manifest.json").write_text("{"), "no complete bundle"),
        (lambda folder: (folder / "golden/0-x.bin").write_bytes(b"abc"), "damaged: .*0-x.bin"),
        (lambda folder: (folder / "golden/0-y.bin").unlink(), "damaged: .*0-y.bin"),
        *(
            (partial(pack_input, change=change), re.escape(said))
            for change, said in PALETTES.values()
        ),
        (
            lambda folder: (folder / "manifest.json").write_text(json.dumps({"schema_version": 2})),
            "schema version 2",
        ),
    ],
)
def test_load_raises_when_the_bundle_is_damaged(
    bundle: Path, loader: ModuleType, damage: Callable[[Path], object], said: str
) -> None:
    damage(bundle)
    with pytest.raises(loader.LoadError, match=said):
        loader.load(bundle)


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({"y": np.zeros((1, 3, 8, 8), np.float32)}, r"\['y'\], expected \['x'\]"),
        ({}, r"\[\], expected \['x'\]"),
        (np.zeros((1, 3, 8, 8)), "'x' is float64, expected float32"),
        (np.zeros((3, 8, 8), np.float32), r"shape \[3, 8, 8\], expected \['n', 3, 8, 8\]"),
        (np.zeros((1, 3, 8, 9), np.float32), r"shape \[1, 3, 8, 9\]"),
    ],
)
def test_model_raises_value_error_when_an_input_does_not_fit(
    bundle: Path, loader: ModuleType, inputs: object, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        loader.load(bundle)(inputs)


def test_model_gives_the_golden_outputs_when_run_in_a_batch(
    bundle: Path, loader: ModuleType
) -> None:
    model = loader.load(bundle)
    one = model.bundle.read_golden_inputs(0)["x"]
    two = model.bundle.read_golden_inputs(1)["x"]
    batch = model(np.concatenate([one, two]))["y"]
    expected = [model.bundle.read_golden_outputs(index, model.variant)["y"] for index in range(2)]
    np.testing.assert_allclose(batch, np.concatenate(expected), rtol=1e-4, atol=1e-5)


def test_load_says_where_a_missing_provider_comes_from_when_the_manifest_does(
    bundle: Path, loader: ModuleType
) -> None:
    def change(manifest: dict[str, Any]) -> None:
        first_provider("TensorrtExecutionProvider")(manifest)
        manifest["provider_sources"] = {
            "TensorrtExecutionProvider": {"about": "It takes a build of one's own.", "commands": []}
        }

    change_manifest(bundle, change)
    [(_, why)] = loader.load(bundle).passed_over
    assert why.endswith("CPUExecutionProvider). It takes a build of one's own.")


def test_load_reads_bundles_of_older_versions_when_they_lack_provider_sources(
    bundle: Path, loader: ModuleType
) -> None:
    def change(manifest: dict[str, Any]) -> None:
        manifest.pop("provider_sources", None)
        first_provider("CUDAExecutionProvider")(manifest)

    change_manifest(bundle, change)
    assert loader.load(bundle).variant == "cpu-fp32"


def test_load_runs_a_model_in_onnxruntime_format_when_the_variant_has_one(
    bundle: Path, loader: ModuleType
) -> None:
    save_as_ort(bundle / "models" / "cpu-fp32.onnx", bundle / "models" / "cpu.ort")
    change_manifest(bundle, model_file("models/cpu.ort"))
    model = loader.load(bundle)
    assert (model.variant, model.golden_sqnr_db) == ("cpu-int8-static", 200.0)


def save_as_ort(source: Path, path: Path) -> None:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.optimized_model_filepath = str(path)
    options.add_session_config_entry("session.save_model_format", "ORT")
    ort.InferenceSession(str(source), options, providers=[CPU])


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("", "does not load: module 'onnxruntime_ep_openvino' has no attribute"),
        ("def get_library_path(): raise FileNotFoundError('gone')", "does not load: gone"),
        ("def get_library_path(): return '/absent.so'", "the plugin onnxruntime_ep_openvino does"),
    ],
)
def test_load_passes_over_a_plugin_when_it_does_not_load(
    bundle: Path, tmp_path: Path, source: str, reason: str
) -> None:
    (tmp_path / "onnxruntime_ep_openvino.py").write_text(source)
    change_manifest(bundle, first_provider(OPENVINO))
    assert reason in passed_over_elsewhere(bundle, tmp_path)


def test_load_passes_over_a_plugin_when_it_lists_no_device(bundle: Path, tmp_path: Path) -> None:
    # onnxruntime refuses a library twice: that one is known, then, and lists nothing.
    (tmp_path / "onnxruntime_ep_openvino.py").write_text(
        "def get_library_path(): raise RuntimeError('the library is already registered')"
    )
    change_manifest(bundle, first_provider(OPENVINO))
    why = passed_over_elsewhere(bundle, tmp_path)
    assert why == (
        "OpenVINOExecutionProvider is in the plugin onnxruntime_ep_openvino, which lists no device"
        " on this machine"
    )


def passed_over_elsewhere(bundle: Path, folder: Path) -> str:
    """Load in a process of its own, with a folder on the path; return the first reason."""
    code = "import edgepack_loader as e; print(e.load().passed_over[0][1])"
    done = subprocess.run(
        [sys.executable, "-B", "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(bundle), str(folder)])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


STATISTICS = session_key("session.collect_node_memory_stats_to_file", "{cache}/nodes.csv")
"""onnxruntime writes this file wherever it is told to, so it shows where the cache is."""


def cached(root: Path) -> Path:
    """Return the one file in a cache, after checking that it is where its model and runtime say."""
    [found] = [path for path in root.rglob("*") if path.is_file()]
    digest, runtime, name = found.relative_to(root).parts
    assert (len(digest), name) == (64, "nodes.csv")
    assert runtime.startswith(f"onnxruntime-{onnxruntime_version()}_CPUExecutionProvider")
    return found


def onnxruntime_version() -> str:
    import onnxruntime as ort

    return ort.__version__


def test_cache_lies_beside_the_releases_when_the_bundle_was_pushed(
    tmp_path: Path, loader: ModuleType
) -> None:
    release = write_tiny_bundle(tmp_path / "root" / "tiny" / "releases" / "0123456789abcdef")
    change_manifest(release, STATISTICS)
    current = tmp_path / "root" / "tiny" / "current"
    current.symlink_to(Path("releases", release.name))
    before = sorted(release.rglob("*"))
    assert loader.load(current).variant == "cpu-int8-static"
    assert cached(tmp_path / "root" / "tiny" / "cache")
    assert sorted(release.rglob("*")) == before


def test_cache_is_where_the_environment_says_when_the_bundle_was_not_pushed(
    bundle: Path, tmp_path: Path, loader: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_manifest(bundle, STATISTICS)
    monkeypatch.setenv("EDGEPACK_CACHE", str(tmp_path / "caches"))
    assert loader.load(bundle).variant == "cpu-int8-static"
    assert cached(tmp_path / "caches" / "tiny")


def test_cache_is_the_users_when_nothing_else_says(
    bundle: Path, tmp_path: Path, loader: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EDGEPACK_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    monkeypatch.setattr(loader.providers.platform, "system", lambda: "Linux")
    change_manifest(bundle, STATISTICS)
    assert loader.load(bundle).variant == "cpu-int8-static"
    assert cached(tmp_path / "user" / "edgepack" / "models" / "tiny")
    monkeypatch.setattr(loader.providers.platform, "system", lambda: "Darwin")
    library = loader.providers.find_cache_root(bundle, "tiny")
    assert library == Path.home() / "Library" / "Caches" / "edgepack" / "models" / "tiny"


def test_cache_is_the_callers_when_one_is_given(
    bundle: Path, tmp_path: Path, loader: ModuleType
) -> None:
    change_manifest(bundle, STATISTICS)
    assert loader.load(bundle, cache=tmp_path / "mine").variant == "cpu-int8-static"
    assert cached(tmp_path / "mine")


@pytest.mark.parametrize("inside", [".", "cache", "models/../cache"])
def test_load_raises_when_the_cache_is_inside_the_bundle(
    bundle: Path, loader: ModuleType, inside: str
) -> None:
    with pytest.raises(loader.LoadError, match="inside the bundle"):
        loader.load(bundle, cache=bundle / inside)


def test_load_passes_over_first_variant_when_its_cache_cannot_be_made(
    bundle: Path, tmp_path: Path, loader: ModuleType
) -> None:
    (tmp_path / "file").write_text("")
    change_manifest(bundle, STATISTICS)
    model = loader.load(bundle, cache=tmp_path / "file")
    assert "its cache folder cannot be made" in model.passed_over[0][1]


def test_load_makes_no_cache_when_no_setting_asks_for_one(
    bundle: Path, tmp_path: Path, loader: ModuleType
) -> None:
    loader.load(bundle, cache=tmp_path / "mine")
    assert not (tmp_path / "mine").exists()


@pytest.mark.parametrize(
    ("machine", "line", "emulated"),
    [
        ("aarch64", "vendor_id\t: AuthenticAMD", True),
        ("aarch64", "CPU implementer\t: 0x41", False),
        ("x86_64", "vendor_id\t: AuthenticAMD", False),
    ],
)
def test_emulated_is_an_arm_system_on_an_x86_kernel(
    loader: ModuleType, monkeypatch: pytest.MonkeyPatch, machine: str, line: str, *, emulated: bool
) -> None:
    monkeypatch.setattr(loader.providers.platform, "machine", lambda: machine)
    monkeypatch.setattr(loader.providers, "read_cpuinfo", lambda: [line])
    assert loader.providers.is_emulated() is emulated


def test_session_config_asks_for_exact_kernels_when_x86_has_no_vnni(
    bundle: Path, loader: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = loader.Bundle(bundle).list_variants(None)[0]
    monkeypatch.setattr(loader.providers.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(loader.providers, "read_cpu_flags", lambda: {"avx2"})
    assert loader.make_session_config(entry) == {"session.x64quantprecision": "1"}
    monkeypatch.setattr(loader.providers, "read_cpu_flags", lambda: {"avx2", "avx_vnni"})
    assert loader.make_session_config(entry) == {}
    monkeypatch.setattr(loader.providers.platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(loader.providers, "read_cpu_flags", lambda: {"asimd"})
    assert loader.make_session_config(entry) == {}

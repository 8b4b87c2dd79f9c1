"""The loader of a bundle chooses the first variant that works, and says why it passed others."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from tiny_bundle import change_manifest, import_loader, write_tiny_bundle

Change = Callable[[dict[str, Any]], None]


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


def missing_model(manifest: dict[str, Any]) -> None:
    manifest["variants"][0]["model"] = "models/absent.onnx"


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
        (missing_model, "the session cannot be created"),
        (first_provider("AzureExecutionProvider"), "the session cannot be created"),
        (first_provider("AzureExecutionProvider", 0.5), "runs 0% of the nodes, at least 50%"),
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


def test_load_measures_share_by_profile_when_onnxruntime_does_not_tell(
    bundle: Path, loader: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_manifest(bundle, first_provider("AzureExecutionProvider", 0.5))
    monkeypatch.setattr(loader, "_assigned_providers", lambda session: [])
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
    one = model.bundle.golden_inputs(0)["x"]
    two = model.bundle.golden_inputs(1)["x"]
    batch = model(np.concatenate([one, two]))["y"]
    expected = [model.bundle.golden_outputs(index, model.variant)["y"] for index in range(2)]
    np.testing.assert_allclose(batch, np.concatenate(expected), rtol=1e-4, atol=1e-5)


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
    monkeypatch.setattr(loader.platform, "machine", lambda: machine)
    monkeypatch.setattr(loader, "cpuinfo_lines", lambda: [line])
    assert loader.is_emulated() is emulated


def test_session_config_asks_for_exact_kernels_when_x86_has_no_vnni(
    bundle: Path, loader: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = loader.Bundle(bundle).variants(None)[0]
    monkeypatch.setattr(loader.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(loader, "cpu_flags", lambda: {"avx2"})
    assert loader.session_config(entry) == {"session.x64quantprecision": "1"}
    monkeypatch.setattr(loader, "cpu_flags", lambda: {"avx2", "avx_vnni"})
    assert loader.session_config(entry) == {}
    monkeypatch.setattr(loader.platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(loader, "cpu_flags", lambda: {"asimd"})
    assert loader.session_config(entry) == {}

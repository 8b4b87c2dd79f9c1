"""Inputs and outputs in the memory of the device that computes; here that of the processor."""

from __future__ import annotations

import sys
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from edgepack.base.schema import NotMeasured
from edgepack.devices.harness import Harness
from edgepack.devices.inventory import Device, LocalEntry
from edgepack.devices.transports import connect
from edgepack.errors import RemoteCommandError
from edgepack.measure.bench.measuring import measure_bound
from edgepack.records.run import IN_HOST_MEMORY, BoundRuns

from tests.support.reports.tiny_bundle import change_manifest, import_loader, write_tiny_bundle

HERE = Device("here", LocalEntry(transport="local", target="linux-x86-64", python=sys.executable))


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_tiny_bundle(tmp_path / "bundle")


@pytest.fixture(scope="module")
def loader() -> ModuleType:
    return import_loader()


def test_a_bound_model_gives_what_a_call_gives(bundle: Path, loader: ModuleType) -> None:
    model = loader.load(bundle, "cpu-fp32")
    first, second = (model.bundle.read_golden_inputs(index) for index in (0, 1))
    bound = model.bind(first)
    assert bound.memory == "cpu"
    bound.run()
    kept = bound.read()
    bound.write(second)
    bound.run()
    for feed, outputs in ((first, kept), (second, bound.read())):
        expected = model.run(feed)
        assert outputs.keys() == expected.keys()
        for name, array in outputs.items():
            assert np.array_equal(array, expected[name])
    assert not np.array_equal(kept["y"], bound.read()["y"])


def test_a_callers_array_is_neither_kept_nor_changed(bundle: Path, loader: ModuleType) -> None:
    model = loader.load(bundle, "cpu-fp32")
    own = np.array(model.bundle.read_golden_inputs(0)["x"])
    before = own.copy()
    bound = model.bind(own)
    bound.write({"x": np.zeros_like(own)})
    assert np.array_equal(own, before)
    bound.write({"x": own})
    own[:] = 0
    bound.run()
    assert np.array_equal(bound.read()["y"], model({"x": before})["y"])
    assert all(bound.addresses[name] for name in ("x", "y"))


def test_inputs_of_another_shape_or_name_are_refused(bundle: Path, loader: ModuleType) -> None:
    model = loader.load(bundle, "cpu-fp32")
    x = model.bundle.read_golden_inputs(0)["x"]
    bound = model.bind(x)
    with pytest.raises(ValueError, match=r"'x' is float32 \[2, 3, 8, 8\]; float32 \[1, 3, 8, 8\]"):
        bound.write({"x": np.concatenate([x, x])})
    with pytest.raises(ValueError, match="'x' is float64"):
        bound.write({"x": x.astype(np.float64)})
    before = bound.addresses
    bound.write({"x": list(x)})
    assert bound.addresses == before
    with pytest.raises(ValueError, match="there is no input 'z'; there are x"):
        bound.write({"z": x})
    with pytest.raises(ValueError, match="CPUExecutionProvider records no runs"):
        model.bind(x, graph=True)


def test_a_recorded_run_is_an_option_of_the_first_provider(loader: ModuleType) -> None:
    binding = loader.binding
    cuda = {"name": "CUDAExecutionProvider", "options": {"gpu_mem_limit": "1"}}
    entry = {"providers": [cuda, {"name": "CPUExecutionProvider", "options": {}}]}
    first, second = binding.add_graph(entry)["providers"]
    assert first["options"] == {"gpu_mem_limit": "1", "enable_cuda_graph": "1"}
    assert second["options"] == {}
    assert entry["providers"][0] is cuda
    assert cuda["options"] == {"gpu_mem_limit": "1"}
    assert binding.find_memory(entry) == "cuda"
    assert binding.find_device_id(entry) == 0
    cuda["options"]["device_id"] = "1"
    assert binding.find_device_id(entry) == 1


def test_a_recorded_run_is_held_to_the_golden_sample(
    bundle: Path, loader: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the processor, which records nothing: the option is left out."""
    model = loader.load(bundle, "cpu-fp32")
    other = model.bundle.read_golden_inputs(1)
    monkeypatch.setattr(loader.binding, "add_graph", dict)
    bound = model.bind(other, graph=True)
    bound.run()
    assert np.array_equal(bound.read()["y"], model.run(other)["y"])
    wrong = loader.Bundle(bundle).read_golden_inputs(1)
    monkeypatch.setattr(model.bundle, "read_golden_inputs", lambda _: wrong)
    with pytest.raises(loader.Refused, match="its output when recorded is"):
        model.bind(other, graph=True)


def test_a_recorded_run_has_the_engines_of_the_others(
    bundle: Path, loader: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = loader.load(bundle, "cpu-fp32", cache=bundle.parent / "cache")
    kept = {"name": "TensorrtExecutionProvider", "options": {"trt_engine_cache_path": "{cache}"}}
    model.entry = {**model.entry, "providers": [kept]}
    opened: list[Any] = []

    def note(_: Any, entry: Any) -> Any:
        opened.append(entry)
        raise loader.Refused("noted")

    monkeypatch.setattr(loader, "open_session", note)
    with pytest.raises(loader.Refused, match="noted"):
        model.bind(model.bundle.read_golden_inputs(0), graph=True)
    options = opened[0]["providers"][0]["options"]
    folder = loader.providers.find_cache_folder(model.entry, model.bundle.cache)
    assert options == {"trt_engine_cache_path": str(folder), "trt_cuda_graph_enable": "True"}


def test_harness_times_copies_and_computing_apart(bundle: Path) -> None:
    with connect(HERE) as transport:
        harness = Harness(transport, PurePosixPath(bundle), sys.executable)
        found = harness.bound("cpu-fp32")
    assert isinstance(found, BoundRuns)
    assert found.memory == "cpu"
    assert len(found.write_ns) == len(found.run_ns) == len(found.read_ns) == 100
    assert min(found.run_ns) > 0
    assert isinstance(found.graph_run_ns, NotMeasured)
    assert "records no runs" in found.graph_run_ns.reason


def test_harness_refuses_bound_outputs_that_are_not_the_golden_ones(bundle: Path) -> None:
    path = bundle / "edgepack_binding.py"
    source = path.read_text(encoding="utf-8")
    assert "update_inplace(" in source
    path.write_text(source.replace('np.require(array, requirements="C")', "np.zeros_like(array)"))
    with connect(HERE) as transport:
        harness = Harness(transport, PurePosixPath(bundle), sys.executable)
        with pytest.raises(RemoteCommandError, match="its output when bound is"):
            harness.bound("cpu-fp32")


class FakeHarness(Harness):
    """Says whether it was asked."""

    def bound(self, variant: str) -> BoundRuns | NotMeasured:
        raise RemoteCommandError(f"asked for {variant}", hint="")


def test_bench_asks_for_copies_where_the_provider_has_a_memory_of_its_own(bundle: Path) -> None:
    from edgepack.bundle.reading import load_bundle

    def change(manifest: dict[str, Any]) -> None:
        manifest["variants"][0]["providers"][0]["name"] = "CUDAExecutionProvider"

    change_manifest(bundle, change)
    manifest = load_bundle(bundle).manifest
    first, second = manifest.variants
    with connect(HERE) as transport:
        harness = FakeHarness(transport, PurePosixPath(bundle), sys.executable)
        asked = NotMeasured(reason=f"asked for {first.id}")
        assert measure_bound(harness, first, manifest) == asked
        assert measure_bound(harness, second, manifest) is IN_HOST_MEMORY
        older = [file for file in manifest.files if file.path != "edgepack_binding.py"]
        manifest = manifest.model_copy(update={"files": older})
        found = measure_bound(harness, first, manifest)
    assert found == NotMeasured(reason="the bundle is of an edgepack that did not time it")

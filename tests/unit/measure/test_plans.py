"""What the measuring program of phones is told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
from edgepack.bundle.reading import Bundle, load_bundle
from edgepack.errors import BundleError
from edgepack.native.plans import Planner, list_files

from tests.mobile.sealing import PALETTES, pack_input
from tests.support.reports.tiny_bundle import change_manifest, write_tiny_bundle


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_tiny_bundle(tmp_path / "bundle")


def planner(bundle: Bundle, *, flags: frozenset[str] = frozenset()) -> Planner:
    entry = bundle.manifest.variants[0]
    return Planner(bundle, entry, cpu_flags=flags, cache="/cache", work="work")


def words(text: str) -> list[list[str]]:
    return [[unquote(word) for word in line.split(" ")] for line in text.splitlines()]


def test_plan_has_a_session_and_every_golden_when_one_model_takes_all_sizes(folder: Path) -> None:
    plan = planner(load_bundle(folder)).plan_goldens()
    assert words(plan.text) == [
        ["fetch", "y"],
        ["session", "models/cpu-fp32.onnx"],
        ["threads", "1"],
        ["level", "all"],
        ["golden", "0"],
        ["input", "x", "float32", "golden/0-x.bin", "1", "3", "8", "8"],
        ["output", "y", "float32", "golden/0-y.bin", "1", "4", "8", "8"],
        ["golden", "0"],
        ["input", "x", "float32", "golden/1-x.bin", "1", "3", "8", "8"],
        ["output", "y", "float32", "golden/1-y.bin", "1", "4", "8", "8"],
    ]
    assert not plan.files


def test_plan_has_an_inputs_values_as_a_file_when_a_palette_holds_them(folder: Path) -> None:
    values = (folder / "golden/0-x.bin").read_bytes()
    pack_input(folder)
    change_manifest(folder, lambda _: None)
    plan = planner(load_bundle(folder)).plan_goldens()
    file = "work/golden-0-0-0.bin"
    assert words(plan.text)[5] == ["input", "x", "float32", file, "1", "3", "8", "8"]
    assert plan.files == {file: values}


def test_plan_when_a_palette_is_damaged_says_in_which_file(folder: Path) -> None:
    pack_input(folder, PALETTES["a byte beyond its palette"][0])
    change_manifest(folder, lambda _: None)
    with pytest.raises(BundleError, match=r"'golden/0-x\.bin' is damaged: a byte is beyond"):
        planner(load_bundle(folder)).plan_goldens()


def test_plan_says_how_near_an_output_has_to_be_and_which_values_are_kept(folder: Path) -> None:
    def change(manifest: dict) -> None:  # type: ignore[type-arg]
        for tensors in manifest["goldens"][1]["outputs"].values():
            tensors[0].update(extra_db=7.5, stride=3)

    change_manifest(folder, change)
    lines = planner(load_bundle(folder)).plan_goldens().text.splitlines()
    assert [line for line in lines if line.startswith("near")] == ["near 7.5 3"]
    assert lines[-2].startswith("output y")


def test_plan_says_which_channels_are_of_which_quantity(folder: Path) -> None:
    several = {"size": 64, "runs": [[3, 0], [1, 1]], "extra_db": [0.0, -2.5]}

    def change(manifest: dict) -> None:  # type: ignore[type-arg]
        for tensors in manifest["goldens"][1]["outputs"].values():
            tensors[0].update(quantities=several)

    change_manifest(folder, change)
    lines = planner(load_bundle(folder)).plan_goldens().text.splitlines()
    assert lines[-3:] == ["quantities 64 0 -2.5", "channels 3 0", "channels 1 1"]


def test_plan_names_providers_and_settings_when_the_variant_has_them(folder: Path) -> None:
    def change(manifest: dict) -> None:  # type: ignore[type-arg]
        options = {"ModelCacheDirectory": "{cache}", "odd key": "a b%"}
        coreml = {"name": "CoreMLExecutionProvider", "options": options}
        manifest["variants"][0]["providers"].insert(0, coreml)
        manifest["variants"][0]["session"]["config"] = {"session.empty": ""}

    change_manifest(folder, change)
    made = planner(load_bundle(folder))
    lines = made.plan_profile().text.splitlines()
    assert "provider CoreMLExecutionProvider" in lines
    assert "option ModelCacheDirectory /cache" in lines
    assert "option odd%20key a%20b%25" in lines
    assert "config session.empty %" in lines
    assert "config session.disable_cpu_ep_fallback 1" in lines
    assert made.keeps_cache


def test_plan_has_the_settings_of_a_session_that_are_not_the_defaults(folder: Path) -> None:
    def change(manifest: dict) -> None:  # type: ignore[type-arg]
        manifest["variants"][0]["session"].update(
            execution_mode="parallel",
            inter_op_num_threads=2,
            enable_cpu_mem_arena=False,
            enable_mem_pattern=False,
            log_severity_level=0,
        )

    change_manifest(folder, change)
    lines = planner(load_bundle(folder)).plan_profile().text.splitlines()
    assert lines[2:8] == ["threads 1", "level all", "parallel 2", "no-arena", "no-pattern", "log 0"]


def test_plan_says_which_output_feeds_which_input_when_the_model_has_a_state(folder: Path) -> None:
    def change(manifest: dict) -> None:  # type: ignore[type-arg]
        manifest["outputs"].append({"name": "h out", "dtype": "float32", "shape": [1]})
        manifest["state"] = {"h out": "x"}

    change_manifest(folder, change)
    lines = words(planner(load_bundle(folder)).plan_goldens().text)
    assert lines[:3] == [["fetch", "y"], ["fetch", "h out"], ["state", "1", "x"]]


@pytest.mark.parametrize(
    ("flags", "precise"),
    [({"sse2"}, True), ({"sse2", "avx512_vnni"}, False), ({"asimddp"}, False)],
)
def test_kernels_are_exact_when_the_processor_would_saturate(
    folder: Path,
    flags: set[str],
    precise: bool,  # noqa: FBT001
) -> None:
    config = planner(load_bundle(folder), flags=frozenset(flags)).list_config()
    assert ("session.x64quantprecision" in config) == precise


def test_inputs_are_padded_and_outputs_cut_when_there_are_buckets(folder: Path) -> None:
    def change(manifest: dict) -> None:  # type: ignore[type-arg]
        for variant in manifest["variants"]:
            model = {"model": variant["model"], "model_sha256": variant["model_sha256"]}
            variant["buckets"] = [{"dims": {"n": size}, **model} for size in (1, 3)]
            variant["slices"] = [{"output": "y", "axis": 0, "dim": "n"}]

    change_manifest(folder, change)
    made = planner(load_bundle(folder))
    plan = made.plan_check()
    goldens = [line for line in words(plan.text) if line[0] in ("golden", "input", "cut")]
    assert goldens == [
        ["golden", "0"],
        ["input", "x", "float32", "work/golden-0-0-0.bin", "1", "3", "8", "8"],
        ["cut", "y", "0", "1"],
        ["golden", "0"],
        ["input", "x", "float32", "work/golden-1-0-0.bin", "1", "3", "8", "8"],
        ["cut", "y", "0", "1"],
        ["golden", "1"],
        ["input", "x", "float32", "work/golden-0-1-0.bin", "3", "3", "8", "8"],
        ["cut", "y", "0", "1"],
    ]
    padded = np.frombuffer(plan.files["work/golden-0-1-0.bin"], "<f4").reshape(3, 3, 8, 8)
    own = np.fromfile(folder / "golden/0-x.bin", "<f4").reshape(1, 3, 8, 8)
    assert np.array_equal(padded[:1], own)
    assert not padded[1:].any()
    assert made.plan_profile().text.count("session ") == 1


def test_reshaped_inputs_have_no_outputs_to_be_near(folder: Path) -> None:
    plan = planner(load_bundle(folder)).plan_reshaped({"x": [2, 3, 8, 8]})
    assert ["input", "x", "float32", "work/sweep-0-0.bin", "2", "3", "8", "8"] in words(plan.text)
    assert "output" not in plan.text
    with pytest.raises(ValueError, match="no input 'z'"):
        planner(load_bundle(folder)).plan_reshaped({"z": [1]})


def test_batch_of_golden_samples_has_their_outputs_joined(folder: Path) -> None:
    plan = planner(load_bundle(folder)).plan_batch(3)
    assert plan is not None
    assert plan.how == "golden outputs, over the whole batch"
    told = [line for line in words(plan.text) if line[0] in ("golden", "input", "output")]
    assert told == [
        ["golden", "0"],
        ["input", "x", "float32", "work/batch-0-0.bin", "3", "3", "8", "8"],
        ["output", "y", "float32", "work/batch-0-output-0.bin", "3", "4", "8", "8"],
        ["golden", "0"],
        ["input", "x", "float32", "work/batch-1-0.bin", "3", "3", "8", "8"],
        ["output", "y", "float32", "work/batch-1-output-0.bin", "3", "4", "8", "8"],
    ]
    golden = {
        (n, name): (folder / f"golden/{n}-{name}.bin").read_bytes() for n in (0, 1) for name in "xy"
    }
    for name, path in (("x", "work/batch-1-0.bin"), ("y", "work/batch-1-output-0.bin")):
        assert plan.files[path] == golden[1, name] + golden[0, name] + golden[1, name]


def test_batch_of_the_only_golden_sample_repeats_it_and_says_so(folder: Path) -> None:
    def keep_one(manifest: dict) -> None:  # type: ignore[type-arg]
        del manifest["goldens"][1:]

    change_manifest(folder, keep_one)
    plan = planner(load_bundle(folder)).plan_batch(3)
    assert plan is not None
    for name, path in (("x", "work/batch-0-0.bin"), ("y", "work/batch-0-output-0.bin")):
        assert plan.files[path] == 3 * (folder / f"golden/0-{name}.bin").read_bytes()
    assert plan.how.startswith("golden outputs of one sample, repeated")


def test_batch_whose_outputs_cannot_be_told_has_no_plan(folder: Path) -> None:
    bundle = load_bundle(folder)
    manifest = bundle.manifest
    [golden, _] = manifest.goldens
    odd = golden.model_copy(
        update={
            "outputs": {
                name: [each.model_copy(update={"stride": 7}) for each in tensors]
                for name, tensors in golden.outputs.items()
            }
        }
    )
    mean, found = (
        [manifest.outputs[0].model_copy(update={"shape": shape})]
        for shape in ([1, 4, 8, 8], ["n", "k", 8, 8])
    )
    unnamed = {
        name: [tensors[0].model_copy(update={"shape": ["?", *tensors[0].shape[1:]]})]
        for name, tensors in (("inputs", manifest.inputs), ("outputs", manifest.outputs))
    }
    twice = [manifest.inputs[0].model_copy(update={"shape": ["n", "n", 8, 8]})]
    for changes in (
        {"goldens": [odd, odd]},
        {"outputs": mean},
        {"outputs": found},
        unnamed,
        {"inputs": twice},
    ):
        changed = replace(bundle, manifest=manifest.model_copy(update=changes))
        assert planner(changed).plan_batch(3) is None


def test_files_of_a_phone_are_models_and_goldens(folder: Path) -> None:
    assert set(list_files(load_bundle(folder))) == {
        "models/cpu-fp32.onnx",
        *(f"golden/{index}-{name}.bin" for index in range(2) for name in "xy"),
    }

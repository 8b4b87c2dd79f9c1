"""The harness of a real bundle, as its own process on this machine."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import onnx
import pytest
from edgepack.base.schema import NotMeasured
from edgepack.devices.harness import HARNESS, Harness, Swept
from edgepack.devices.inventory import Device, LocalEntry
from edgepack.devices.local import LocalTransport
from edgepack.devices.transport import CommandResult
from edgepack.devices.transports import connect
from edgepack.errors import RemoteCommandError, SamplesError
from edgepack.measure.evaluate.stream import stream_answers
from edgepack.records.presets import Preset, find_preset
from edgepack.records.run import Joined, OutputCheck, Scenario
from edgepack.records.scenarios import make_scenario
from onnx import TensorProto, helper, numpy_helper

from tests.support.nets import tiny_models
from tests.support.reports.tiny_bundle import change_manifest, import_loader, write_tiny_bundle

BRIEF = Preset(
    "brief", runs=1, duration_s=0.02, iterations=25, warm_up_s=0.01, window_s=0.01, warm_up_cap_s=1
)
HERE = Device("here", LocalEntry(transport="local", target="linux-x86-64", python=sys.executable))


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_tiny_bundle(tmp_path / "bundle")


@pytest.fixture
def harness(bundle: Path) -> Iterator[Harness]:
    with connect(HERE) as transport:
        yield Harness(transport, PurePosixPath(bundle), sys.executable, load_timeout_s=60)


def replace_harness(bundle: Path, source: str) -> None:
    (bundle / HARNESS).write_text(source)


def snapshot(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_select_names_the_variant_and_the_device(harness: Harness, bundle: Path) -> None:
    def change(manifest: dict[str, Any]) -> None:
        manifest["variants"][0]["requires"]["cpu"] = ["no_such_flag"]

    change_manifest(bundle, change)
    selection = harness.select(None)
    assert selection.variant == "cpu-fp32"
    assert [item.variant for item in selection.unused] == ["cpu-int8-static"]
    assert selection.device.cpu_count == os.cpu_count()
    assert selection.device.python == ".".join(map(str, sys.version_info[:3]))
    assert "CPUExecutionProvider" in selection.device.providers


def test_harness_when_python_does_not_look_beside_programs_finds_its_modules(
    harness: Harness,
) -> None:
    python, *rest = harness.make_argv("memory", "cpu-fp32")
    assert harness.transport.run([python, "-I", *rest], timeout_s=60).exit_code == 0


def test_select_reads_why_a_raspberry_pi_is_slowed_down(harness: Harness, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "vcgencmd"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho throttled=0x80005\n")
    program.chmod(0o755)
    path = f"PATH={program.parent}:{os.environ['PATH']}"
    argv = ["env", path, *harness.make_argv("select", None)]
    device = json.loads(harness.transport.run(argv, timeout_s=60).stdout)["device"]
    assert device["conditions"]["throttled_now"] == ["under-voltage", "throttled"]
    assert device["conditions"]["throttled_since_boot"] == ["soft temperature limit"]


def test_measure_gives_raw_latencies_and_checks_goldens(harness: Harness) -> None:
    run = harness.measure("cpu-fp32", BRIEF)
    assert run.variant == "cpu-fp32"
    assert len(run.latencies_ns) >= BRIEF.iterations
    assert min(run.latencies_ns) > 0
    assert run.golden_min_sqnr_db == 200.0
    assert run.warm_up_iterations >= 10
    assert run.session_create_ns > 0
    assert isinstance(run.timed_from_ns, int)
    assert isinstance(run.timed_to_ns, int)
    assert run.inferences == len(run.latencies_ns)
    assert run.timed_to_ns - run.timed_from_ns >= max(20_000_000, sum(run.latencies_ns))


def test_variant_is_refused_when_a_later_golden_differs(harness: Harness, bundle: Path) -> None:
    def change(manifest: dict[str, Any]) -> None:
        manifest["goldens"][1]["outputs"]["cpu-int8-static"][0]["path"] = "golden/0-y.bin"

    change_manifest(bundle, change)
    selection = harness.select(None)
    assert selection.variant == "cpu-fp32"
    [passed_over] = selection.unused
    assert re.match(
        r"its output for golden sample 2 is .* dB near the golden one", passed_over.reason
    )
    with pytest.raises(RemoteCommandError, match="for golden sample 2"):
        harness.measure("cpu-int8-static", BRIEF)


def test_measure_says_so_when_warm_up_ends_unsteady(harness: Harness) -> None:
    no_window = replace(BRIEF, warm_up_cap_s=0.0)
    assert harness.measure("cpu-fp32", no_window).steady is False


@pytest.mark.parametrize(
    "scenario",
    [
        make_scenario("multi-stream", samples_per_query=3),
        make_scenario("offline").model_copy(update={"threads": 2}),
        make_scenario("server", queries_per_s=400, latency_bound_ms=50).model_copy(
            update={"threads": 2}
        ),
    ],
    ids=lambda scenario: scenario.name,
)
def test_measure_when_queries_arrive_otherwise_times_queries(
    harness: Harness, scenario: Scenario
) -> None:
    run = harness.measure("cpu-fp32", replace(BRIEF, scenario=scenario), seed=3)
    queries = len(run.latencies_ns)
    assert isinstance(run.inferences, int)
    assert isinstance(run.throughput, float)
    match scenario.name:
        case "multi-stream":
            assert run.inferences == 3 * queries
            assert queries >= BRIEF.iterations
        case "offline":
            assert queries == 1
            assert run.inferences >= BRIEF.iterations
            assert run.throughput == pytest.approx(run.inferences * 1e9 / run.latencies_ns[0])
        case _:
            assert run.inferences == queries >= BRIEF.iterations
            # 25 arrivals at 400 a second take 62 ms on average, however fast the model is.
            assert run.throughput < 2 * 400


@pytest.mark.slow(reason="measures")
@pytest.mark.parametrize("scenario", ["single-stream", "offline"])
def test_measure_when_there_would_be_too_many_queries_says_what_to_do(
    harness: Harness, scenario: str
) -> None:
    longest = replace(BRIEF, duration_s=1e6, scenario=make_scenario(scenario))
    with pytest.raises(RemoteCommandError, match="can be kept") as caught:
        harness.measure("cpu-fp32", longest)
    assert "--samples-per-query" in caught.value.hint


class Asked(LocalTransport):
    """Notes how long commands may take, and runs none."""

    timeouts_s: list[float]

    def run(self, _argv: Sequence[str], *, timeout_s: float, **_: object) -> CommandResult:
        self.timeouts_s.append(timeout_s)
        return CommandResult((), 1, b"", b"")


@pytest.mark.parametrize("name", ["single-stream", "multi-stream", "offline"])
@pytest.mark.parametrize("preset", ["quick", "standard", "sustained"])
def test_measure_of_a_model_that_takes_seconds_is_not_taken_for_one_that_hangs(
    preset: str, name: str
) -> None:
    each_s = 3.0
    chosen = find_preset(preset).with_scenario(make_scenario(name))
    transport = Asked(HERE)
    transport.timeouts_s = []
    with pytest.raises(RemoteCommandError):
        Harness(transport, PurePosixPath("/"), sys.executable).measure("cpu-fp32", chosen)
    warm_up_s = 10 * each_s + chosen.warm_up_cap_s + 30 * each_s
    timed_s = max(chosen.duration_s, chosen.iterations * chosen.scenario.samples_per_query * each_s)
    assert transport.timeouts_s[0] > warm_up_s + timed_s


def test_create_times_a_session_cold_and_warm(harness: Harness, bundle: Path) -> None:
    before = snapshot(bundle)
    cold = harness.create("cpu-fp32", cold=True)
    assert isinstance(cold, NotMeasured) or cold > 0
    warm = harness.create("cpu-fp32", cold=False)
    assert isinstance(warm, int)
    assert warm > 0
    assert snapshot(bundle) == before


def test_start_times_a_process_up_to_its_first_answer(harness: Harness, bundle: Path) -> None:
    before = snapshot(bundle)
    began_ns = time.monotonic_ns()
    warm = harness.start("cpu-fp32", cold=False)
    took_ns = time.monotonic_ns() - began_ns
    # It has Python and onnxruntime to load, which no session has, and ends within the command;
    # the system's clock of processes ticks every 10 ms.
    created = harness.create("cpu-fp32", cold=False)
    assert isinstance(warm, int)
    assert isinstance(created, int)
    assert created + 50_000_000 < warm < took_ns + 10_000_000
    cold = harness.start("cpu-fp32", cold=True)
    assert isinstance(cold, NotMeasured) or cold > 50_000_000
    assert snapshot(bundle) == before


def test_start_when_the_system_does_not_tell_its_age_says_so(
    harness: Harness, bundle: Path
) -> None:
    program = bundle / "harness/edgepack_harness.py"
    program.write_text(program.read_text().replace('"/proc/self/stat"', '"/proc/none"'))
    found = harness.start("cpu-fp32", cold=False)
    assert found == NotMeasured(reason="the system does not tell when a process began")


def test_quiet_is_looked_for_on_the_device_itself(harness: Harness, bundle: Path) -> None:
    before = snapshot(bundle)
    found = harness.wait_for_quiet(1, 2.0, 5.0, pytest.fail)
    assert (found.waited_s, found.quiet) == (0.0, True)
    assert isinstance(found.taken, float)
    said: list[str] = []
    busy = harness.wait_for_quiet(1, -1.0, 2.5, said.append)
    assert busy.quiet is False
    assert 0.9 < busy.waited_s < 10
    assert "waiting until it is below" in said[0]
    assert snapshot(bundle) == before


def test_create_when_the_device_cannot_drop_files_says_why(harness: Harness, bundle: Path) -> None:
    pages = bundle / "harness/edgepack_pages.py"
    pages.write_text(pages.read_text() + "\n\ndef drop(paths):\n    return f'kept {len(paths)}'\n")
    assert harness.create("cpu-fp32", cold=True) == NotMeasured(reason="kept 1")


def test_sweep_when_the_model_takes_the_batch_times_it(harness: Harness) -> None:
    swept = harness.sweep("cpu-fp32", BRIEF, {"x": [4, 3, 8, 8]})
    assert swept.problem == ""
    assert len(swept.latencies_ns) >= BRIEF.iterations


def test_sweep_when_a_dimension_is_fixed_says_which(harness: Harness) -> None:
    swept = harness.sweep("cpu-fp32", BRIEF, {"x": [1, 3, 16, 8]})
    assert swept.latencies_ns == []
    assert swept.problem == "input 'x' has shape [1, 3, 16, 8], expected ['n', 3, 8, 8]"


def checked(swept: Swept) -> OutputCheck:
    assert isinstance(swept.checked, OutputCheck)
    return swept.checked


def test_sweep_of_a_batch_compares_each_sample_with_its_golden_outputs(harness: Harness) -> None:
    for batch in (4, 1):
        swept = harness.sweep("cpu-fp32", BRIEF, {"x": [batch, 3, 8, 8]}, batch)
        check = checked(swept)
        assert check.how.startswith("golden outputs")
        assert check.nearness_db > 100
        assert (check.needed_db, check.problem, swept.problem) == (40.0, "", "")
        assert len(swept.latencies_ns) >= BRIEF.iterations


def save_mixing(path: Path, size: int, *, mix: str = "mean") -> object:
    """Save a model that is right for each sample alone, and mixes those of a batch."""
    node = helper.make_node
    weights = np.random.default_rng(7).standard_normal((4, 3, 3, 3)).astype(np.float32)
    nodes = [
        node("Conv", ["x", "w"], ["c"], "conv", pads=[1, 1, 1, 1]),
        {
            "mean": node("ReduceMean", ["c"], ["m"], "mean", axes=[0], keepdims=1),
            "reverse": node("Slice", ["c", "last", "before", "axis", "back"], ["m"], "reverse"),
            "one": node("ReduceMean", ["c"], ["y"], "one", axes=[0], keepdims=1),
        }[mix],
    ]
    if mix != "one":
        nodes.append(node("Identity" if mix == "reverse" else "Add", ["m"], ["y"], "mix"))
        nodes[-1].input.extend(["c"] if mix == "mean" else [])
    back = [("last", [-1]), ("before", [-(1 << 30)]), ("axis", [0]), ("back", [-1])]
    kept = [("w", weights), *((name, np.array(value, np.int64)) for name, value in back)]
    kept = kept if mix == "reverse" else kept[:1]
    value = ("x", TensorProto.FLOAT, ["n", 3, size, size])
    return tiny_models.save(
        path, nodes, [value], [("y", TensorProto.FLOAT, ["n", 4, size, size])], kept
    )


@pytest.mark.parametrize(
    ("mix", "goldens", "said"),
    [
        ("mean", 2, r"for sample 1 of 4 in the batch are -?\d+\.\d dB near"),
        ("mean", 1, r"for sample 1 of 4 in the batch are -?\d+\.\d dB near"),
        ("reverse", 2, r"for sample 2 of 4 in the batch are -?\d+\.\d dB near"),
        ("one", 2, r"'y' is \[1, 4, 8, 8\] for a batch of 4 samples, and \[1, 4, 8, 8\] for one"),
    ],
)
def test_sweep_of_a_model_that_mixes_samples_finds_wrong_outputs_and_times_none(
    tmp_path: Path, mix: str, goldens: int, said: str
) -> None:
    bundle = write_tiny_bundle(tmp_path / "mixing", save=partial(save_mixing, mix=mix))
    change_manifest(bundle, lambda manifest: manifest.update(goldens=manifest["goldens"][:goldens]))
    with connect(HERE) as transport:
        harness = Harness(transport, PurePosixPath(bundle), sys.executable, load_timeout_s=60)
        swept = harness.sweep("cpu-fp32", BRIEF, {"x": [4, 3, 8, 8]}, 4)
        alone = harness.sweep("cpu-fp32", BRIEF, {"x": [1, 3, 8, 8]}, 1)
    assert swept.latencies_ns == []
    assert re.search(said, checked(swept).problem)
    assert checked(alone).problem == ""
    assert alone.latencies_ns


def rename_batch(manifest: dict[str, Any]) -> None:
    manifest["outputs"][0]["shape"][0] = "k"


def test_sweep_of_a_batch_that_no_output_tells_apart_checks_it_without_golden_outputs(
    harness: Harness, bundle: Path
) -> None:
    change_manifest(bundle, rename_batch)
    swept = harness.sweep("cpu-fp32", BRIEF, {"x": [4, 3, 8, 8]}, 4)
    check = checked(swept)
    assert check.problem == ""
    assert check.how.startswith("finite, of the declared shapes, the same in two runs")
    assert check.how.endswith("; samples of a batch cannot be told apart in y")
    assert len(swept.latencies_ns) >= BRIEF.iterations


def test_sweep_of_a_batch_that_some_outputs_tell_apart_compares_those(
    harness: Harness, bundle: Path
) -> None:
    """The other one has the values above 0, of which each sample has as many as it has."""
    path = bundle / "models/cpu-fp32.onnx"
    model = onnx.load(path)
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(1, "f4"), "zero"))
    model.graph.node.append(helper.make_node("Greater", ["y", "zero"], ["above"], "above"))
    model.graph.node.append(helper.make_node("Reshape", ["above", "flat"], ["kept"], "kept"))
    model.graph.initializer.append(numpy_helper.from_array(np.array([-1]), "flat"))
    model.graph.node.append(helper.make_node("Compress", ["y", "kept"], ["z"], "choose"))
    model.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, ["k"]))
    onnx.save(model, path)

    def add(manifest: dict[str, Any]) -> None:
        manifest["outputs"].append({"name": "z", "dtype": "float32", "shape": ["k"]})
        for entry in manifest["variants"]:
            entry["model_sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
        for number, golden in enumerate(manifest["goldens"]):
            y = np.fromfile(bundle / f"golden/{number}-y.bin", "<f4")
            y[y > 0].tofile(bundle / f"golden/{number}-z.bin")
            z = {"name": "z", "path": f"golden/{number}-z.bin", "shape": [int((y > 0).sum())]}
            for tensors in golden["outputs"].values():
                tensors.append({**tensors[0], **z})
        assert len({str(golden["outputs"]["cpu-fp32"][1]) for golden in manifest["goldens"]}) == 2

    change_manifest(bundle, add)
    swept = harness.sweep("cpu-fp32", BRIEF, {"x": [4, 3, 8, 8]}, 4)
    check = checked(swept)
    assert check.problem == ""
    assert check.how == (
        "golden outputs, for each sample of the batch; not of z, where samples cannot be told apart"
    )


def save_resizable(path: Path, size: int, *, fault: str = "") -> object:
    """Save a model of any size, which may be wrong for others than 8 by 8."""
    del size
    node = helper.make_node
    weights = np.random.default_rng(7).standard_normal((4, 3, 3, 3)).astype(np.float32)
    nodes = [
        node("Conv", ["x", "w"], ["c"], "conv", pads=[1, 1, 1, 1]),
        node("Shape", ["c"], ["s"], "shape", start=2, end=3),
        node("Cast", ["s"], ["side"], "cast", to=TensorProto.FLOAT),
        node("Sub", ["eight", "side"], ["less"], "less"),
        # At 8 the square root is 0, beyond it is NaN.
        node("Sqrt", ["less"], ["root"], "root"),
        node("Add", ["c", "root" if fault == "nan" else "zero"], ["y"], "add"),
    ]
    if fault == "random":
        nodes[-1] = node("Mul", ["less", "less"], ["far"], "far")
        nodes += [
            node("RandomNormalLike", ["c"], ["noise"], "noise"),
            node("Mul", ["noise", "far"], ["loud"], "loud"),
            node("Add", ["c", "loud"], ["y"], "add"),
        ]
    kept = [("w", weights), ("eight", np.array([8], "f4")), ("zero", np.zeros(1, "f4"))]
    dims = ["h", "w"]
    told = [8, 8] if fault == "shape" else dims
    return tiny_models.save(
        path,
        nodes,
        [("x", TensorProto.FLOAT, ["n", 3, *dims])],
        [("y", TensorProto.FLOAT, ["n", 4, *told])],
        kept,
    )


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("", ""),
        ("nan", "y is NaN or infinite"),
        ("random", "outputs in a second run are"),
        ("shape", "the output 'y' is [1, 4, 16, 8], not [1, 4, 8, 8]"),
    ],
)
def test_sweep_of_another_shape_checks_what_can_be_told_without_golden_outputs(
    tmp_path: Path, fault: str, said: str
) -> None:
    bundle = write_tiny_bundle(tmp_path / "other", save=partial(save_resizable, fault=fault))

    def free(manifest: dict[str, Any]) -> None:
        manifest["inputs"][0]["shape"] = ["n", 3, "h", "w"]
        manifest["outputs"][0]["shape"] = ["n", 4, *([8, 8] if fault == "shape" else ["h", "w"])]

    change_manifest(bundle, free)
    with connect(HERE) as transport:
        harness = Harness(transport, PurePosixPath(bundle), sys.executable, load_timeout_s=60)
        swept = harness.sweep("cpu-fp32", BRIEF, {"x": [1, 3, 16, 8]})
    check = checked(swept)
    assert check.problem.startswith(said)
    assert bool(swept.latencies_ns) == (not said)
    if not said:
        assert check.problem == ""
        assert check.how.endswith("near its file on the CPU without optimizations")
        assert check.nearness_db > 100


def test_sweep_of_another_shape_when_the_providers_outputs_are_not_its_files_finds_it(
    harness: Harness, bundle: Path
) -> None:
    """The provider is the CPU here: its file's outputs are made 20 % larger instead."""
    program = bundle / "harness/edgepack_checks.py"
    source = program.read_text()
    broken = source.replace(
        "expected = plain.run(feeds[0])",
        "expected = {n: 1.2 * array for n, array in plain.run(feeds[0]).items()}",
    )
    assert broken != source
    program.write_text(broken)
    check = checked(harness.sweep("cpu-fp32", BRIEF, {"x": [3, 3, 8, 8]}))
    assert check.problem.startswith("outputs beside its file on the CPU without optimizations are")
    assert check.nearness_db == pytest.approx(20 * np.log10(1.2 / 0.2), abs=0.1)


JOINED = [
    make_scenario("offline", max_batch=4).model_copy(update={"threads": 2}),
    make_scenario("server", queries_per_s=3000, latency_bound_ms=50, max_batch=4, queue_delay_ms=2),
]


@pytest.mark.parametrize("scenario", JOINED, ids=lambda scenario: scenario.name)
def test_measure_when_samples_are_joined_times_and_checks_batches(
    harness: Harness, scenario: Scenario
) -> None:
    run = harness.measure("cpu-fp32", replace(BRIEF, scenario=scenario), seed=3)
    assert isinstance(run.inferences, int)
    assert isinstance(run.joined, Joined)
    assert run.joined.min_sqnr_db > 100
    assert run.inferences / 4 <= run.joined.batches < run.inferences
    if scenario.name == "offline":
        assert run.joined.batches <= run.inferences / 4 + 2
    else:
        assert len(run.latencies_ns) == run.inferences


@pytest.mark.parametrize("scenario", JOINED, ids=lambda scenario: scenario.name)
@pytest.mark.parametrize("mix", ["mean", "reverse"])
def test_measure_of_joined_samples_that_the_model_mixes_is_not_near_the_golden_outputs(
    tmp_path: Path, scenario: Scenario, mix: str
) -> None:
    bundle = write_tiny_bundle(tmp_path / "mixing", save=partial(save_mixing, mix=mix))
    with connect(HERE) as transport:
        harness = Harness(transport, PurePosixPath(bundle), sys.executable, load_timeout_s=60)
        run = harness.measure("cpu-fp32", replace(BRIEF, scenario=scenario))
    assert run.golden_min_sqnr_db == 200.0
    assert isinstance(run.joined, Joined)
    assert run.joined.min_sqnr_db < 40


def test_measure_when_the_pool_gives_a_query_anothers_output_is_not_near(
    harness: Harness, bundle: Path
) -> None:
    """Break only what is timed: the proof before it stays as it is."""
    program = bundle / "harness/edgepack_load.py"
    source = program.read_text()
    broken = source.replace("zip(numbers, places, parts)", "zip(numbers, places, parts[::-1])")
    assert broken != source
    program.write_text(broken)
    run = harness.measure("cpu-fp32", replace(BRIEF, scenario=JOINED[0]))
    assert isinstance(run.joined, Joined)
    assert run.joined.min_sqnr_db < 40


def test_measure_when_samples_cannot_be_joined_says_why(harness: Harness, bundle: Path) -> None:
    def fix(manifest: dict[str, Any]) -> None:
        manifest["inputs"][0]["shape"][0] = 1

    change_manifest(bundle, fix)
    with pytest.raises(RemoteCommandError, match=r"cannot be joined: the input 'x' has the fixed"):
        harness.measure("cpu-fp32", replace(BRIEF, scenario=JOINED[0]))


def test_measure_when_the_model_runs_no_batch_says_why(tmp_path: Path) -> None:
    """Its batch is declared as free, and a Reshape in it is of one sample."""

    def save(path: Path, size: int) -> object:
        nodes = [
            helper.make_node("Conv", ["x", "w"], ["c"], "conv", pads=[1, 1, 1, 1]),
            helper.make_node("Reshape", ["c", "one"], ["y"], "reshape"),
        ]
        weights = np.random.default_rng(7).standard_normal((4, 3, 3, 3)).astype(np.float32)
        kept = [("w", weights), ("one", np.array([1, 4, size, size], np.int64))]
        value = ("x", TensorProto.FLOAT, ["n", 3, size, size])
        output = ("y", TensorProto.FLOAT, ["n", 4, size, size])
        return tiny_models.save(path, nodes, [value], [output], kept)

    bundle = write_tiny_bundle(tmp_path / "bundle", save=save)
    with connect(HERE) as transport:
        harness = Harness(transport, PurePosixPath(bundle), sys.executable, load_timeout_s=60)
        with pytest.raises(RemoteCommandError, match=r"samples cannot be joined: .*reshape") as why:
            harness.measure("cpu-fp32", replace(BRIEF, scenario=JOINED[0]))
    assert "Traceback" not in str(why.value)


def test_measure_of_joined_samples_proves_the_model_of_each_size(
    harness: Harness, bundle: Path
) -> None:
    """Only the model for batches of 3 is wrong, and only at the end batches are so small."""
    mixing = bundle / "models/mixing.onnx"
    save_mixing(mixing, 8)

    def change(manifest: dict[str, Any]) -> None:
        for entry in manifest["variants"]:
            file = {"model": entry["model"], "model_sha256": entry["model_sha256"]}
            entry["buckets"] = [{"dims": {"n": size}, **file} for size in (1, 2, 3, 4)]
            digest = hashlib.sha256(mixing.read_bytes()).hexdigest()
            entry["buckets"][2].update(model="models/mixing.onnx", model_sha256=digest)
            entry["slices"] = [{"output": "y", "axis": 0, "dim": "n"}]
            entry["exact"] = True

    change_manifest(bundle, change)
    run = harness.measure("cpu-fp32", replace(BRIEF, scenario=JOINED[0]))
    assert isinstance(run.joined, Joined)
    assert run.joined.min_sqnr_db < 40


def test_trace_gives_the_nodes_and_the_events_they_come_from(harness: Harness) -> None:
    placement, events = harness.trace("cpu-fp32")
    names = {event["name"] for event in events if event.get("cat") == "Node"}
    assert {f"{node.name}_kernel_time" for node in placement.nodes} <= names


def test_measure_runs_behind_the_devices_prefix(bundle: Path) -> None:
    with connect(HERE) as transport:
        prefixed = Harness(transport, PurePosixPath(bundle), sys.executable, ("nice", "-n", "1"))
        assert prefixed.measure("cpu-fp32", BRIEF).variant == "cpu-fp32"
        missing = Harness(transport, PurePosixPath(bundle), sys.executable, ("no-such-program",))
        with pytest.raises(RemoteCommandError, match="no-such-program"):
            missing.measure("cpu-fp32", BRIEF)


def test_memory_grows_from_baseline_to_peak(harness: Harness) -> None:
    memory = harness.memory("cpu-fp32")
    assert 0 < memory.baseline_bytes < memory.loaded_bytes <= memory.peak_bytes


def test_profile_says_where_every_node_ran(harness: Harness) -> None:
    placement = harness.profile("cpu-fp32")
    assert placement.nodes
    assert placement.compute_share("CPUExecutionProvider") == 1.0
    assert "Conv" in {node.op for node in placement.nodes}


def test_modes_write_nothing_into_the_bundle(harness: Harness, bundle: Path) -> None:
    before = snapshot(bundle)
    harness.select(None)
    harness.measure("cpu-fp32", BRIEF)
    harness.profile("cpu-fp32")
    assert snapshot(bundle) == before


def test_select_fails_with_the_reasons_when_no_variant_works(
    harness: Harness, bundle: Path
) -> None:
    def change(manifest: dict[str, Any]) -> None:
        for variant in manifest["variants"]:
            variant["requires"]["cpu"] = ["no_such_flag"]

    change_manifest(bundle, change)
    with pytest.raises(RemoteCommandError) as caught:
        harness.select(None)
    assert "cpu-fp32: this CPU lacks no_such_flag" in str(caught.value)
    assert "--variant" in caught.value.hint


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "exit code 137"),
        ("raise OSError('the model went missing')", "the model went missing"),
        ("print('hello')", "'hello"),
        ("print('{}')", "is wrong at variant: Field required"),
        ("", "printed no Selection"),
    ],
)
def test_harness_failure_is_an_error_with_its_last_words(
    harness: Harness, bundle: Path, source: str, said: str
) -> None:
    replace_harness(bundle, source)
    with pytest.raises(RemoteCommandError) as caught:
        harness.select(None)
    assert said in str(caught.value)
    assert caught.value.where == "here"


@pytest.mark.slow(reason="takes seconds")
def test_hanging_harness_is_stopped(bundle: Path, tmp_path: Path) -> None:
    alive = tmp_path / "pid"
    replace_harness(
        bundle,
        f"import os, time; open({str(alive)!r}, 'w').write(str(os.getpid())); time.sleep(60)",
    )
    with connect(HERE) as transport:
        hasty = Harness(transport, PurePosixPath(bundle), sys.executable, load_timeout_s=1.5)
        with pytest.raises(RemoteCommandError, match="took longer than"):
            hasty.select(None)
    with pytest.raises(ProcessLookupError):
        os.kill(int(alive.read_text()), 0)


def test_serve_answers_every_sample_with_the_models_outputs(harness: Harness, bundle: Path) -> None:
    generator = np.random.default_rng(3)
    samples = [{"x": generator.standard_normal((1, 3, 8, 8)).astype("f4")} for _ in range(5)]
    model = import_loader().load(bundle, "cpu-fp32")
    numbers = [3, 0, 4]
    answers = stream_answers(harness, samples.__getitem__, numbers, "cpu-fp32")
    for number, answer in zip(numbers, answers, strict=True):
        np.testing.assert_array_equal(answer.outputs["y"], model(samples[number])["y"])
        assert answer.ns > 0


def test_serve_refuses_a_sample_that_does_not_fit(harness: Harness) -> None:
    with pytest.raises(SamplesError, match="sample 0: input 'x' is float64"):
        list(stream_answers(harness, lambda _: {"x": np.zeros((1, 3, 8, 8))}, [0], None))


def test_serve_crash_is_an_error_with_its_last_words(harness: Harness, bundle: Path) -> None:
    replace_harness(bundle, "import sys; sys.stdin.buffer.read(1); raise OSError('out of luck')")
    with pytest.raises(RemoteCommandError, match="out of luck"):
        list(stream_answers(harness, lambda _: {"x": np.zeros((1, 3, 8, 8), "f4")}, [0], None))


def test_serve_garbage_is_an_error(harness: Harness, bundle: Path) -> None:
    replace_harness(
        bundle, "import sys; print('welcome to this board', flush=True); sys.stdin.read()"
    )
    with pytest.raises(RemoteCommandError, match="something else"):
        list(stream_answers(harness, lambda _: {"x": np.zeros((1, 3, 8, 8), "f4")}, [0], None))


def test_serve_garbage_is_an_error_when_a_sample_is_still_being_made(
    harness: Harness, bundle: Path
) -> None:
    replace_harness(bundle, "import sys; print('welcome', flush=True); sys.stdin.read()")

    def made_slowly(_: int) -> dict[str, np.ndarray]:
        time.sleep(0.7)
        return {"x": np.zeros((1, 3, 8, 8), "f4")}

    with pytest.raises(RemoteCommandError, match="something else"):
        list(stream_answers(harness, made_slowly, [0], None))


def test_document_goes_to_stdout_alone_when_libraries_print(harness: Harness, bundle: Path) -> None:
    loader = bundle / "edgepack_loader.py"
    loader.write_text(
        loader.read_text() + "\n_load = load\ndef load(*a, **k):\n    print('noise')\n"
    )
    loader.write_text(
        loader.read_text() + "    os.system('echo more noise')\n    return _load(*a, **k)\n"
    )
    result = harness.transport.run(harness.make_argv("select", None), timeout_s=60)
    assert json.loads(result.stdout)["variant"] == "cpu-int8-static"
    assert b"noise" in result.stderr


def test_presets_are_taken_by_the_harness(harness: Harness) -> None:
    for name in ("smoke", "sustained"):
        argv = [*harness.make_argv("measure", "absent"), *find_preset(name).arguments]
        assert harness.transport.run(argv, timeout_s=60).exit_code == 3


def test_load_sends_and_stores_no_telemetry(bundle: Path, own_home: Path) -> None:
    ci = ("TF_BUILD", "GITHUB_ACTIONS", "GITLAB_CI", "JENKINS_URL", "ORT_DISABLE_TELEMETRY")
    unset = [word for name in ci for word in ("-u", name)]
    code = "import edgepack_loader as e; m = e.load(); m(m.bundle.read_golden_inputs(0))"
    with connect(HERE) as transport:
        argv = ["env", *unset, f"PYTHONPATH={bundle}", sys.executable, "-c", code]
        transport.run(argv, timeout_s=60).check("loading", device="here", hint="")
    assert [path for path in own_home.rglob("*") if path.is_file()] == []

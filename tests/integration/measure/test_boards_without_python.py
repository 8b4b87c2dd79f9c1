"""A board with dropbear, busybox and glibc, and no Python: provisioned, measured and shared."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import shutil
import subprocess
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from statistics import median
from typing import Any

import numpy as np
import pytest
from edgepack.base.progress import Silent
from edgepack.builder.build import build
from edgepack.bundle.reading import Bundle
from edgepack.deploy.fleet.store import ProvisionOptions
from edgepack.deploy.leases import leased
from edgepack.deploy.operations import provision_device
from edgepack.deploy.push import push
from edgepack.devices.checking import check
from edgepack.devices.probing import probe
from edgepack.devices.provisioning.native import ask_runtime
from edgepack.devices.provisioning.native_program import build_program
from edgepack.devices.transports import connect
from edgepack.errors import (
    BusyError,
    DeviceError,
    PythonMissingError,
    RemoteCommandError,
    UsageError,
)
from edgepack.measure.bench.run import bench
from edgepack.measure.bench.session import open_harness, prepared, read_bundle
from edgepack.measure.compare.comparing import CompareQuestion, compare
from edgepack.measure.evaluate.evaluate import evaluate
from edgepack.measure.evaluate.stream import stream_answers
from edgepack.measure.tune.searching import TuneQuestion
from edgepack.measure.tune.tuning import plan_tuning
from edgepack.native.board_files import read_board_files
from edgepack.ondevice.harness.edgepack_load import make_poisson_schedule
from edgepack.ondevice.runtime import edgepack_loader as loader
from edgepack.records.deciding import Rule
from edgepack.records.presets import find_preset
from edgepack.records.run import NotMeasured, Sampling
from edgepack.records.scenarios import make_scenario

from tests.integration.measure.test_compare import SHORT, save_slow_model
from tests.mobile.signatures import BUCKETS
from tests.support.nets import tiny_models
from tests.support.nets.stream_nets import HIDDEN, WIDTH, frames, gru
from tests.support.reports.tiny_bundle import change_manifest, write_tiny_bundle
from tests.support.servers.boards import Board
from tests.support.servers.dropbear_server import DropbearServer, add_libraries, require_dropbear
from tests.support.servers.loopback import ssh_device

TARGET = "linux-x86-64"
SAMPLES = 40
AARCH64 = "aarch64-linux-gnu-gcc"
_FOUND = importlib.util.find_spec("onnxruntime")
LIBRARY = next(
    Path(str(_FOUND and _FOUND.origin)).parent.glob("capi/libonnxruntime.so.1.*"), Path("none")
)

if platform.machine() != "x86_64" or not LIBRARY.is_file():
    pytest.skip("needs Linux on x86-64, for which the bundles are", allow_module_level=True)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel that has nothing but the library of this machine's onnxruntime."""
    version = LIBRARY.name.removeprefix("libonnxruntime.so.")
    name = f"onnxruntime-{version}-cp311-cp311-manylinux_2_28_x86_64.whl"
    path = tmp_path_factory.mktemp("wheel") / name
    with zipfile.ZipFile(path, "w") as archive:
        about = f"Metadata-Version: 2.1\nName: onnxruntime\nVersion: {version}\n"
        archive.writestr(f"onnxruntime-{version}.dist-info/METADATA", about)
        archive.writestr(f"onnxruntime-{version}.dist-info/WHEEL", "Wheel-Version: 1.0\n")
        archive.writestr("onnxruntime/__init__.py", "")
        archive.write(LIBRARY, f"onnxruntime/capi/{LIBRARY.name}")
    return path


@pytest.fixture(scope="module")
def provisioned(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Iterator[Board]:
    """One board for all tests that measure."""
    require_dropbear()
    with DropbearServer(tmp_path_factory.mktemp("server") / "s", bare=True) as server:
        add_libraries(server.board, LIBRARY)
        board = Board(ssh_device(server, root="/data"), server.board)
        assert check(board.device).problems == ()
        made = provision_device(board.device, ProvisionOptions(wheels=[wheel]))
        assert made.packages == {"onnxruntime": LIBRARY.name.removeprefix("libonnxruntime.so.")}
        assert "CPUExecutionProvider" in made.providers
        yield board


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[Board]:
    """A board without any libraries but dropbear's."""
    require_dropbear()
    with DropbearServer(tmp_path / "server", bare=True) as server:
        yield Board(ssh_device(server, root="/data"), server.board)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_tiny_bundle(tmp_path / "bundle")


@pytest.mark.slow(reason="a whole measurement on a board")
def test_bench_on_a_board_without_python_reports_as_from_one_with_it(
    provisioned: Board, bundle: Path
) -> None:
    zone = provisioned.slash / "sys/class/thermal/thermal_zone0"
    zone.mkdir(parents=True)
    (zone / "type").write_text("cpu\n")
    (zone / "temp").write_text("41500\n")
    (zone / "trip_point_0_type").write_text("passive\n")
    (zone / "trip_point_0_temp").write_text("80000\n")
    policy = provisioned.slash / "sys/devices/system/cpu/cpufreq/policy0"
    policy.mkdir(parents=True)
    (policy / "scaling_governor").write_text("performance\n")
    (policy / "scaling_cur_freq").write_text("1500000\n")
    (policy / "related_cpus").write_text("0 1 2 3\n")
    report = bench(bundle, provisioned.device, preset="smoke")
    shutil.rmtree(provisioned.slash / "sys")
    assert report.variant_used == "cpu-int8-static"
    assert len(report.runs) == find_preset("smoke").runs
    assert {each.golden_min_sqnr_db for each in report.runs} == {200.0}
    assert report.latencies_ns == [ns for each in report.runs for ns in each.latencies_ns]
    assert not isinstance(report.placement, NotMeasured)
    assert report.placement.counts == {"CPUExecutionProvider": len(report.placement.nodes)}
    assert not isinstance(report.memory, NotMeasured)
    assert 0 < report.memory.baseline_bytes < report.memory.loaded_bytes <= report.memory.peak_bytes
    assert report.facts.python.startswith("none")
    for conditions in (report.facts.conditions, report.runs[0].before, report.runs[0].after):
        assert (conditions.temperature_c, conditions.governor) == (41.5, "performance")
    for run in report.runs:
        assert isinstance(run.sampling, Sampling)
        moments = [sample.at_ns for sample in run.sampling.samples]
        assert moments == sorted(moments)
        assert not isinstance(run.timed_from_ns, NotMeasured)
        assert moments[0] < run.timed_from_ns < run.timed_from_ns + run.timed_ns <= moments[-1]
        assert {s.temperatures_c["cpu"] for s in run.sampling.samples} == {41.5}
        assert {s.clocks_hz["policy0"] for s in run.sampling.samples} == {1_500_000_000}
        assert run.sampling.samples[-1].busy["policy0"] > 0
        assert run.sampling.trip_points_c == {"cpu": 80.0}
        assert all(sample.load is not None for sample in run.sampling.samples)
        assert sorted(run.sampling.unknown) == ["power", "throttling"]
        assert isinstance(run.energy, NotMeasured)
        assert run.sampling.cpu_ns < run.sampling.elapsed_ns / 20
    assert not (provisioned.slash / "data/native/work").exists()


@pytest.mark.slow(reason="three measurements on a board")
def test_scenarios_on_a_board_without_python_are_those_of_the_python_harness(
    provisioned: Board, bundle: Path
) -> None:
    streams = make_scenario("multi-stream", samples_per_query=3)
    report = bench(bundle, provisioned.device, preset="smoke", scenario=streams)
    for run in report.runs:
        assert run.inferences == 3 * len(run.latencies_ns)
    server = make_scenario("server", queries_per_s=200.0, latency_bound_ms=50.0)
    report = bench(bundle, provisioned.device, preset="smoke", scenario=server)
    preset = find_preset("smoke").with_scenario(server)
    for number, run in enumerate(report.runs):
        schedule_ns = make_poisson_schedule(200.0, preset.duration_s, preset.iterations, number)
        assert run.inferences == len(run.latencies_ns) == len(schedule_ns)
        assert isinstance(run.timed_ns, int)
        assert run.timed_ns >= schedule_ns[-1]
        assert 0 < median(run.latencies_ns) < run.timed_ns / 10
    offline = make_scenario("offline")
    report = bench(bundle, provisioned.device, preset="smoke", scenario=offline)
    for run in report.runs:
        assert run.latencies_ns == [run.timed_ns]
        assert isinstance(run.inferences, int)
        assert run.inferences >= find_preset("smoke").with_scenario(offline).iterations
    assert report.scenario.name == "offline"


@pytest.mark.slow(reason="evaluates on a board")
def test_evaluate_on_a_board_without_python_agrees_with_the_build(
    provisioned: Board, tmp_path: Path
) -> None:
    project = tiny_models.write_project(tmp_path)
    images, labels = tiny_models.images(SAMPLES, seed=2), np.arange(SAMPLES) % 4
    np.savez(tmp_path / "eval.npz", image=images, labels=labels)
    [made] = build(project=project, targets=[TARGET], out=tmp_path / "dist").bundles
    found = evaluate(made.bundle.path, provisioned.device, project=project)
    assert found.measured == made.bundle.manifest.variants[0].accuracy


@pytest.mark.slow(reason="streams samples to a board")
def test_samples_are_padded_and_cut_as_the_loader_does(provisioned: Board, tmp_path: Path) -> None:
    [made] = build(project=BUCKETS.write(tmp_path / "p", TARGET), out=tmp_path / "d").bundles
    model = loader.load(made.bundle.path, "cpu-fp32")
    random = np.random.default_rng(3)
    samples = [{"input_ids": random.integers(1, 16, (1, size))} for size in (5, 3, 8, 4)]
    answers = stream_all(made.bundle, provisioned, samples)
    for sample, answer in zip(samples, answers, strict=True):
        wanted = model.run(model.check_inputs(sample))
        assert {name: value.tolist() for name, value in answer.items()} == {
            name: value.tolist() for name, value in wanted.items()
        }


@pytest.mark.slow(reason="streams samples to a board")
def test_state_that_a_sample_leaves_out_is_that_of_the_one_before(
    provisioned: Board, tmp_path: Path
) -> None:
    gru(tmp_path / "model.onnx")
    project = tmp_path / "edgepack.yaml"
    project.write_text(
        "schema_version: 1\nname: cell\nversion: 1.0.0\nmodel: model.onnx\nstate: {h_out: h}\n"
        "samples: {calibration: {path: s.npz}, evaluation: {path: s.npz}}\n"
        f"targets: [{{id: {TARGET}, variants: [{{backend: cpu, recipe: fp32}}]}}]\n"
    )
    xs = frames(12, 1, WIDTH)
    np.savez(tmp_path / "s.npz", x=xs)
    [made] = build(project=project, out=tmp_path / "d").bundles
    model = loader.load(made.bundle.path, "cpu-fp32")
    state = np.zeros((1, HIDDEN), np.float32)
    samples: list[dict[str, np.ndarray]] = [{"x": x} for x in xs]
    samples[0]["h"] = state
    answers = stream_all(made.bundle, provisioned, samples)
    for x, answer in zip(xs, answers, strict=True):
        wanted = model.run({"x": x, "h": state})
        assert answer["y"].tolist() == wanted["y"].tolist()
        state = wanted["h_out"]


@pytest.mark.slow(reason="makes twelve process runs on a board")
def test_compare_on_a_board_without_python_finds_what_is_slower(
    provisioned: Board, tmp_path: Path
) -> None:
    plain = write_tiny_bundle(tmp_path / "base", size=64)
    base = push(plain, provisioned.device, self_test=False)
    slower = write_tiny_bundle(tmp_path / "slower", size=64, save=save_slow_model)
    question = CompareQuestion(slower, preset=SHORT, rule=Rule(max_pairs=6))
    [found] = compare(question, [provisioned.device]).devices
    assert found.base.manifest_sha256[:16] == base.release
    assert (found.base.variant, found.candidate.variant) == ("cpu-int8-static",) * 2
    [p50] = [each for each in found.metrics if each.name == "p50"]
    assert p50.outcome == "FAIL"
    assert p50.ratio > 1.5


@pytest.mark.slow(reason="starts a server of its own")
def test_two_bundles_measured_in_turns_keep_their_own_plans(
    provisioned: Board, bundle: Path
) -> None:
    def give_threads(manifest: dict[str, Any]) -> None:
        manifest["variants"][0]["session"]["intra_op_num_threads"] = 2

    change_manifest(bundle, give_threads)
    path = PurePosixPath("/data/tiny/releases", push(bundle, provisioned.device).release)
    plan, found = provisioned.slash / "data/native/work/plan.txt", []
    with (
        connect(provisioned.device) as transport,
        prepared(provisioned.device, transport, Silent()) as make_harness,
    ):
        whole = read_bundle(bundle, provisioned.device, None)
        one, other = make_harness(whole, path), make_harness(whole, path)
        for harness, variant in ((one, "cpu-fp32"), (other, "cpu-int8-static")) * 2:
            harness.create(variant, cold=False)
            found.append(plan.read_text())
    assert found[:2] == found[2:]
    assert found[0] != found[1]


def test_tuning_is_planned_by_what_a_board_tells_of_its_processors(
    bare: Board, bundle: Path
) -> None:
    plan = plan_tuning(TuneQuestion(bundle), bare.device)
    assert [each.number for each in plan.topology.processors] == sorted(os.sched_getaffinity(0))
    assert plan.topology.count == len(plan.topology.processors)
    assert len({each.session.intra_op_num_threads for each in plan.candidates}) > 1


@pytest.mark.slow(reason="starts a server of its own")
def test_what_is_not_measured_without_python_is_said(provisioned: Board, bundle: Path) -> None:
    offline = make_scenario("offline", max_batch=4)
    with pytest.raises(UsageError):
        bench(bundle, provisioned.device, preset="smoke", scenario=offline)
    with pytest.raises(PythonMissingError):
        bench(bundle, provisioned.device, preset="smoke", tune=True)
    with lease(provisioned), pytest.raises(BusyError, match="'by somebody'"):
        bench(bundle, provisioned.device, preset="smoke")


@pytest.mark.slow(reason="runs a program on a board")
def test_push_tries_a_release_before_the_switch_by_its_golden_outputs(
    provisioned: Board, bundle: Path
) -> None:
    first = push(bundle, provisioned.device)
    assert (first.variant, provisioned.current()) == ("cpu-int8-static", first.release)
    assert not (provisioned.slash / "data/native/work").exists()
    broken = change_version(bundle)

    def demand(manifest: dict[str, Any]) -> None:
        for variant in manifest["variants"]:
            variant["min_sqnr_db"] = 250.0

    change_manifest(broken, demand)
    with pytest.raises(RemoteCommandError, match=r"200\.0 dB near the golden one, 250\.0 dB"):
        push(broken, provisioned.device)
    assert provisioned.current() == first.release


@pytest.mark.slow(reason="starts a server of its own")
def test_check_names_what_a_board_and_this_machine_lack(
    bare: Board, monkeypatch: pytest.MonkeyPatch, bundle: Path
) -> None:
    assert [each.partition(",")[0] for each in check(bare.device).problems] == ["no libstdc++.so.6"]
    add_libraries(bare.slash, LIBRARY)
    assert check(bare.device).problems == ()
    monkeypatch.setattr(shutil, "which", lambda _: None)
    [found] = check(bare.device).problems
    assert "sudo apt install gcc-x86-64-linux-gnu" in found
    with pytest.raises(DeviceError, match=r"(?s)cannot be measured without.*gcc-x86-64"):
        bench(bundle, bare.device, preset="smoke")
    assert not (bare.slash / "data/native").exists()


@pytest.mark.slow(reason="starts a server of its own")
def test_runtime_that_does_not_load_is_named(bare: Board, wheel: Path) -> None:
    add_libraries(bare.slash, LIBRARY)
    for path in bare.slash.rglob("libgcc_s.so.1"):
        path.unlink()
    with pytest.raises(DeviceError, match=r"does not load .*libgcc_s\.so\.1"):
        provision_device(bare.device, ProvisionOptions(wheels=[wheel]))
    [program] = bare.slash.rglob("edgepack_measure")
    program.write_bytes(b"no program")
    with pytest.raises(DeviceError, match="does not load"), connect(bare.device) as transport:
        ask_runtime(bare.device, transport, probe(bare.device, transport))


@pytest.mark.slow(reason="starts a server of its own")
def test_runtime_that_a_power_cut_left_empty_is_replaced(bare: Board, wheel: Path) -> None:
    add_libraries(bare.slash, LIBRARY)
    library = bare.slash / "data/native/libonnxruntime.so"
    library.parent.mkdir(parents=True)
    library.touch()
    made = provision_device(bare.device, ProvisionOptions(wheels=[wheel]))
    assert "CPUExecutionProvider" in made.providers
    library.write_bytes(b"")
    with (
        connect(bare.device) as transport,
        pytest.raises(DeviceError, match="file too short"),
    ):
        ask_runtime(bare.device, transport, probe(bare.device, transport))


@pytest.mark.slow(reason="starts a server of its own")
def test_tool_of_a_board_that_may_not_tell_prevents_nothing(bare: Board) -> None:
    tool = bare.slash / "bin/nvpmodel"
    tool.write_text("#!/bin/sh\necho not allowed >&2\nexit 13\n")
    tool.chmod(0o755)
    with connect(bare.device) as transport:
        assert read_board_files(transport, ()).texts["nvpmodel"].strip() == ""


@pytest.mark.parametrize(("arch", "compiler"), [("x86-64", "cc"), ("aarch64", AARCH64)])
def test_program_asks_for_no_version_of_glibc(tmp_path: Path, arch: str, compiler: str) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"there is no {compiler}")
    program = build_program(arch, tmp_path)
    assert b"GLIBC_" not in program.read_bytes()
    assert build_program(arch, tmp_path) == program
    if arch != "x86-64":
        return
    said = subprocess.run(
        [program, "about", "--runtime", LIBRARY], check=True, capture_output=True
    ).stdout
    assert json.loads(said)["onnxruntime"] == LIBRARY.name.removeprefix("libonnxruntime.so.")


def change_version(bundle: Path) -> Path:
    change_manifest(bundle, lambda manifest: manifest.update(version="2.0.0"))
    return bundle


@contextmanager
def lease(board: Board) -> Iterator[None]:
    with connect(board.device) as transport, leased(transport, board.device, "by somebody"):
        yield


def stream_all(
    bundle: Bundle, board: Board, samples: list[dict[str, np.ndarray]]
) -> list[dict[str, np.ndarray]]:
    from edgepack.base.progress import Silent

    with open_harness(bundle, board.device, "test", wait_s=0, progress=Silent()) as harness:
        numbers = range(len(samples))
        return [
            answer.outputs
            for answer in stream_answers(harness, samples.__getitem__, numbers, "cpu-fp32")
        ]

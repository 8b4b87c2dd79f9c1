"""``bench --variant all``: all variants of a bundle in turn, on this machine."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
from edgepack import api
from edgepack.cli.main import run
from edgepack.devices.harness import Harness
from edgepack.devices.inventory import Device, LocalEntry
from edgepack.errors import LimitError, RemoteCommandError, UnreachableError
from edgepack.measure.bench.variants import bench_variants, pair_reports
from edgepack.project.limits import Limits
from edgepack.project.profile import find_host_target
from edgepack.records.presets import Preset
from edgepack.records.run import ProcessRun, RunReport, Speedup, Valid

from tests.support.reports.example_report import example_report, example_run
from tests.support.reports.tiny_bundle import change_manifest, write_tiny_bundle

INT8, FP32 = "cpu-int8-static", "cpu-fp32"


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    made = write_tiny_bundle(tmp_path / "bundle")
    change_manifest(made, lambda manifest: manifest.update(target=find_host_target()))
    return made


@pytest.fixture
def here(tmp_path: Path) -> Device:
    entry = LocalEntry(
        transport="local",
        target=find_host_target(),
        root=str(tmp_path / "root"),
        python=sys.executable,
    )
    return Device("here", entry)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The variants of the process runs, in the order in which they were made."""
    order: list[str] = []
    measure = Harness.measure

    def measure_noted(self: Harness, variant: str, preset: Preset, seed: int = 0) -> ProcessRun:
        order.append(variant)
        return measure(self, variant, preset, seed)

    monkeypatch.setattr(Harness, "measure", measure_noted)
    return order


@pytest.mark.in_turns
def test_runs_are_made_in_turn_and_compared_in_pairs(
    bundle: Path, here: Device, asked: list[str]
) -> None:
    limits = Limits(p50_ms=60_000)
    found = bench_variants(bundle, here, preset="smoke", limits=limits)
    assert asked == [INT8, FP32, FP32, INT8]
    assert found.out == []
    int8, fp32 = found.reports
    assert [int8.variant_used, fp32.variant_used] == [INT8, FP32]
    assert (int8.beside, fp32.beside) == ([fp32.id], [int8.id])
    assert int8.variant_requested == "all"
    assert int8.limits == limits
    assert len(int8.runs) == len(fp32.runs) == 2
    assert int8.canary == fp32.canary
    ratios = [
        sorted(base.latencies_ns)[len(base.latencies_ns) // 2]
        / sorted(own.latencies_ns)[len(own.latencies_ns) // 2]
        for base, own in zip(fp32.runs, int8.runs, strict=True)
    ]
    assert isinstance(int8.speedup, Speedup)
    assert int8.speedup.ratio == pytest.approx((ratios[0] * ratios[1]) ** 0.5, rel=0.02)
    assert (int8.speedup.over, int8.speedup.report, int8.speedup.pairs) == (FP32, fp32.id, 2)
    assert fp32.speedup == Speedup(over=FP32, report=fp32.id, ratio=1.0, low=1.0, high=1.0, pairs=2)
    assert RunReport.model_validate_json(int8.model_dump_json()) == int8


@pytest.mark.slow(reason="makes a dozen process runs")
def test_variant_that_does_not_work_there_is_passed_over(bundle: Path, here: Device) -> None:
    def ask_for_another_provider(manifest: dict) -> None:
        manifest["variants"][1]["providers"] = [{"name": "XnnpackExecutionProvider"}]

    change_manifest(bundle, ask_for_another_provider)
    found = bench_variants(bundle, here, preset="smoke")
    assert [report.variant_used for report in found.reports] == [INT8]
    (out,) = found.out
    assert (out.variant, out.stage) == (FP32, "passed over")
    assert "XnnpackExecutionProvider" in out.reason
    assert found.failed == []
    assert getattr(found.reports[0].speedup, "reason", "").startswith("no fp32 variant")


@pytest.mark.slow(reason="makes a dozen process runs")
def test_variant_that_fails_later_is_out_and_the_others_are_measured(
    bundle: Path, here: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure, seen = Harness.measure, []

    def crash_the_second_time(
        self: Harness, variant: str, preset: Preset, seed: int = 0
    ) -> ProcessRun:
        seen.append(variant)
        if variant == INT8 and seen.count(INT8) == 2:
            raise RemoteCommandError("the harness crashed", hint="its last lines are above")
        return measure(self, variant, preset, seed)

    monkeypatch.setattr(Harness, "measure", crash_the_second_time)
    kept: list[RunReport] = []
    found = bench_variants(bundle, here, preset="smoke", on_unfinished=kept.append)
    assert [report.variant_used for report in found.reports] == [FP32]
    assert found.reports[0].beside == []
    assert [(each.variant, each.reason) for each in found.failed] == [(INT8, "the harness crashed")]
    assert [(each.variant_used, each.unfinished) for each in kept] == [
        (INT8, "the harness crashed")
    ]


@pytest.mark.slow(reason="makes a dozen process runs")
def test_device_that_is_lost_leaves_what_was_measured_of_each(
    bundle: Path, here: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def be_lost(*_: object) -> None:
        raise UnreachableError("the connection was lost", hint="look", where="here")

    monkeypatch.setattr(Harness, "memory", be_lost)
    kept: list[RunReport] = []
    with pytest.raises(UnreachableError):
        bench_variants(bundle, here, preset="smoke", on_unfinished=kept.append)
    assert [(each.variant_used, len(each.runs)) for each in kept] == [(INT8, 2), (FP32, 2)]
    assert {each.unfinished for each in kept} == {"the connection was lost"}


def test_limits_that_none_can_be_within_are_told_before_the_device_is_touched(
    bundle: Path, here: Device, tmp_path: Path
) -> None:
    with pytest.raises(LimitError, match="the limit is 1e-05 MB"):
        bench_variants(bundle, here, preset="smoke", limits=Limits(size_mb=0.00001))
    assert not (tmp_path / "root").exists()


def test_speedup_of_offline_is_by_inferences_not_by_how_long_each_was_told_to_run() -> None:
    manifest = SimpleNamespace(
        find_variant=lambda name: SimpleNamespace(
            recipe="fp32" if name == FP32 else "int8-static", backend="cpu"
        )
    )

    def offline(name: str, inferences: int) -> RunReport:
        runs = [
            example_run(seed).model_copy(
                update={"latencies_ns": [10_000_000_000], "inferences": inferences}
            )
            for seed in range(3)
        ]
        return example_report(id=name, variant_used=name, runs=runs)

    fast, base = pair_reports([offline(INT8, 2000), offline(FP32, 1000)], manifest)
    assert isinstance(fast.speedup, Speedup)
    assert isinstance(base.speedup, Speedup)
    assert (fast.speedup.ratio, base.speedup.ratio) == (pytest.approx(2.0), pytest.approx(1.0))


@pytest.fixture
def board(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The bundle; the inventory has this machine as ``board``, and ``lost``, which is not there."""
    monkeypatch.chdir(tmp_path)
    for name in ("CONFIG", "DATA"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    (tmp_path / "config/edgepack").mkdir(parents=True)
    entry = {"transport": "local", "target": find_host_target(), "python": sys.executable}
    devices = {
        "board": {**entry, "root": str(tmp_path / "root")},
        "lost": {**entry, "root": str(tmp_path / "root2"), "python": "/nowhere/python3"},
    }
    inventory = {"schema_version": 1, "devices": devices}
    (tmp_path / "config/edgepack/devices.yaml").write_text(json.dumps(inventory))
    return bundle


def bench(bundle: Path, *argv: str) -> int:
    return run(["bench", str(bundle), "--preset", "smoke", "--variant", "all", *argv])


@pytest.mark.in_turns
def test_command_ends_with_one_table_and_files_of_all_devices(
    board: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whether this machine is quiet enough to conclude anything is not what is tested here.
    monkeypatch.setattr(api, "require_valid", lambda *_: None, raising=False)
    files = ["--junit", "r.xml", "--markdown", "r.md", "--html", "r.html"]
    assert bench(board, "--device", "board", "--device", "lost", *files) == 5
    done = capsys.readouterr()
    assert "2 variants; " in done.out
    assert done.out.count(INT8) >= 1
    assert "speedup" in done.out
    suites = {s.attrib["name"]: s for s in ElementTree.parse("r.xml").getroot()}
    assert suites["lost"].attrib["errors"] == "1"
    assert [case.attrib["name"] for case in suites["board"]] == [INT8, FP32]
    assert "lost was not measured" in Path("r.md").read_text()
    assert "cpu-fp32" in Path("r.html").read_text()


@pytest.mark.in_turns
@pytest.mark.slow(reason="makes a dozen process runs")
def test_command_ends_as_one_variant_is_within_the_limits(
    board: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "require_valid", lambda *_: None, raising=False)
    project = Path("edgepack.yaml")
    head = "schema_version: 1\nname: tiny\nmodel: model.onnx\nlimits: "
    project.write_text(head + "{p50_ms: 60000}\n")
    assert bench(board, "--device", "board") == 0
    assert "met" in capsys.readouterr().out
    project.write_text(head + "{p50_ms: 0.000001}\n")
    assert bench(board, "--device", "board") == 10
    done = capsys.readouterr()
    assert "misses p50_ms" in done.out
    assert "of the 2 variants measured there" in done.err.replace("\n", " ")


@pytest.mark.in_turns
@pytest.mark.slow(reason="makes a dozen process runs")
def test_command_that_goes_on_takes_what_was_measured_whole_and_valid(
    board: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "require_valid", lambda *_: None, raising=False)
    monkeypatch.setattr(api, "find_measured", find_any_verdict(api.find_measured), raising=False)
    assert bench(board, "--device", "board") == 0
    assert len(asked) == 4
    assert bench(board, "--device", "board", "--resume", "1h", "--junit", "r.xml") == 0
    assert len(asked) == 4
    # It is judged by the limits of now, and another number of runs is another measurement.
    project = Path("edgepack.yaml")
    project.write_text("schema_version: 1\nname: tiny\nmodel: m.onnx\nlimits: {p50_ms: 1.0e-6}\n")
    assert bench(board, "--device", "board", "--resume", "1h") == 10
    project.unlink()
    assert len(asked) == 4
    assert bench(board, "--device", "board", "--resume", "1h", "--runs", "3") == 0
    assert len(asked) == 10
    (suite,) = ElementTree.parse("r.xml").getroot()
    assert [case.attrib["name"] for case in suite] == [INT8, FP32]
    assert bench(board, "--device", "board") == 0
    assert len(asked) == 14


def find_any_verdict(find: object) -> object:
    """As ``smoke`` is never VALID, take it for that."""

    def find_measured(store: api.ResultsStore, wanted: object) -> object:
        for row in store.rows():
            report = store.load(row.id)
            store.save(report.model_copy(update={"verdict": Valid()}))
        return find(store, wanted)  # type: ignore[operator]

    return find_measured


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["--resume", "soon"], "'soon' is no time"),
        (["--perfetto", "t.json"], "--perfetto is for one variant"),
        (["--self-test"], "--self-test times a single stream of one variant"),
    ],
)
def test_command_refuses_options_that_do_not_fit(
    board: Path, capsys: pytest.CaptureFixture[str], argv: list[str], told: str
) -> None:
    assert bench(board, "--device", "board", *argv) == 2
    assert told in capsys.readouterr().err
    assert not Path("root").exists()


def test_command_refuses_to_go_on_with_one_variant(
    board: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bench", str(board), "--device", "board", "--resume", "1h"]) == 2
    assert "add --variant all" in capsys.readouterr().err

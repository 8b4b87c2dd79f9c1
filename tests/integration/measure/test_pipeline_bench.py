"""A benchmark of several models: each stage and the whole, measured in the same calls."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from edgepack.builder.pipelines import build_pipeline
from edgepack.bundle.reading import load_any
from edgepack.cli.main import run
from edgepack.devices.inventory import Device, LocalEntry
from edgepack.errors import DeviceError, InconclusiveError, UsageError
from edgepack.measure.bench.pipelines import bench_pipeline, require_valid_pipeline
from edgepack.records.pipeline import PipelineReport, summarize_stages
from edgepack.records.run import Inconclusive
from edgepack.results.store.store import ResultsStore

from tests.support.nets.pipeline_nets import (
    decode_by_hand,
    draw_objects,
    make_sources,
    write_find_project,
    write_translation_project,
)

MOST = 6


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("translation")
    project = write_translation_project(folder, most=MOST)
    return build_pipeline(project, out=folder / "dist").bundles[0].bundle.path


def make_device(bundle: Path, root: Path, **changes: str) -> Device:
    entry = {
        "transport": "local",
        "target": load_any(bundle).manifest.target,
        "root": str(root),
        "python": sys.executable,
    }
    return Device("here", LocalEntry.model_validate(entry | changes))


@pytest.fixture(scope="module")
def report(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> PipelineReport:
    root = tmp_path_factory.mktemp("device") / "root"
    return bench_pipeline(bundle, make_device(bundle, root), preset="smoke")


def test_stages_are_timed_within_the_calls(report: PipelineReport) -> None:
    assert [len(run.latencies_ns) >= 20 for run in report.runs] == [True, True]
    for each in report.runs:
        assert [stage.part for stage in each.stages] == ["encoder", "decoder"]
        stages = list(zip(*(stage.latencies_ns for stage in each.stages), strict=True))
        assert len(stages) == len(each.latencies_ns)
        assert all(
            0 < sum(parts) <= whole for parts, whole in zip(stages, each.latencies_ns, strict=True)
        )


def test_tokens_of_each_call_are_counted(report: PipelineReport) -> None:
    encoder, decoder = report.runs[0].stages
    expected = [len(decode_by_hand(source, MOST)) for source in make_sources(4)]
    assert encoder.tokens == []
    assert set(decoder.tokens) == set(expected)
    [_, summary, whole] = summarize_stages(report)
    assert (summary.name, whole.name, whole.share) == ("decoder", "pipeline", 1)
    assert summary.tokens == pytest.approx(sum(expected) / len(expected), abs=0.2)
    assert summary.share < 1


def test_every_part_is_placed_and_the_whole_is_judged(report: PipelineReport) -> None:
    assert list(report.placement) == ["encoder", "decoder"]
    shares = [placed.compute_share("CPUExecutionProvider") for placed in report.placement.values()]
    assert shares == [1.0, 1.0]
    assert report.variants == "encoder=cpu-fp32 decoder=cpu-fp32"
    assert isinstance(report.verdict, Inconclusive)
    with pytest.raises(InconclusiveError, match="'smoke' is too short to conclude anything"):
        require_valid_pipeline(report)


def test_objects_that_are_cut_out_are_counted(tmp_path: Path) -> None:
    project = write_find_project(tmp_path)
    bundle = build_pipeline(project, out=tmp_path / "dist").bundles[0].bundle.path
    device = make_device(bundle, tmp_path / "root")
    report = bench_pipeline(bundle, device, preset="smoke", runs=1)
    finder, stripes = report.runs[0].stages
    # The golden inputs are the first pictures to evaluate with.
    expected = [len(drawn) for drawn in draw_objects(24)[1][16:20]]
    assert finder.crops == []
    assert set(stripes.crops) == set(expected)
    assert summarize_stages(report)[1].crops == pytest.approx(
        sum(expected) / len(expected), abs=0.4
    )


def test_bundle_for_another_target_is_not_sent(bundle: Path, tmp_path: Path) -> None:
    device = make_device(bundle, tmp_path / "root", target="raspberry-pi")
    with pytest.raises(DeviceError, match="the device here for raspberry-pi"):
        bench_pipeline(bundle, device, preset="smoke")
    assert not (tmp_path / "root").exists()


def test_bundle_of_one_model_has_its_own_benchmark(bundle: Path, tmp_path: Path) -> None:
    part = bundle / "parts/encoder"
    with pytest.raises(UsageError, match="has one model"):
        bench_pipeline(part, make_device(bundle, tmp_path / "root"), preset="smoke")


def test_command_prints_each_stage(
    bundle: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    entry = make_device(bundle, tmp_path / "root").entry.model_dump(
        include={"transport", "target", "root", "python"}
    )
    (tmp_path / "devices.yaml").write_text(
        f"schema_version: 1\ndevices: {{here: {json.dumps(entry)}}}\n"
    )
    monkeypatch.chdir(tmp_path)
    results = f"sqlite:///{tmp_path}/results.sqlite"
    monkeypatch.setenv("EDGEPACK_RESULTS", results)
    asked = ["bench", str(bundle), "--device", "here", "--preset", "smoke"]
    assert run(asked) == 11
    out = capsys.readouterr().out
    for stage in ("encoder", "decoder", "pipeline"):
        assert f"│ {stage}" in out
    assert "verdict: INCONCLUSIVE" in out
    [name] = re.findall(r"stored as (\S+)", out)
    assert run(["runs", "list", "--json"]) == 0
    [row] = json.loads(capsys.readouterr().out)
    known = {key: row[key] for key in ("id", "kind", "device", "verdict", "preset", "project")}
    assert known == {
        "id": name,
        "kind": "pipeline",
        "device": "here",
        "verdict": "INCONCLUSIVE",
        "preset": "smoke",
        "project": "translation",
    }
    assert row["variant"] == "encoder=cpu-fp32 decoder=cpu-fp32"
    assert run(["runs", "show", name]) == 0
    shown = capsys.readouterr().out
    assert "stage decoder" in shown
    assert "'smoke' is too short to conclude anything" in shown
    assert run(["runs", "show", name, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [stage["part"] for stage in document["runs"][0]["stages"]] == ["encoder", "decoder"]
    report = ResultsStore(results).load(name)
    assert isinstance(report, PipelineReport)
    assert row["p50_ms"] == pytest.approx(summarize_stages(report)[-1].p50_ms)
    assert run(["report", name, "--html", "page.html"]) != 0
    assert "is of several models" in capsys.readouterr().err
    assert run([*asked, "--batch", "4"]) == 2
    assert "--batch is for one" in capsys.readouterr().err

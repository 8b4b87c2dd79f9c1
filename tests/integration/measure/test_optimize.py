"""``edgepack optimize``: real builds and metrics, with a harness that simulates the runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from edgepack.backends.targets import read_project_targets
from edgepack.base.schema import NotMeasured
from edgepack.builder.build import build
from edgepack.cli.main import run
from edgepack.devices.inventory import Device, LocalEntry
from edgepack.errors import LimitError, UnreachableError
from edgepack.measure.optimize import optimizing
from edgepack.measure.optimize.keeping import find_optimizings_dir
from edgepack.measure.optimize.optimizing import OptimizeQuestion, optimize, require_answer
from edgepack.measure.tune.space import AFFINITIES, BLOCK_BASE, SPINNING
from edgepack.project.loading import read_project
from edgepack.project.profile import find_host_target
from edgepack.records.optimizing import IS_BASE, OptimizeReport
from edgepack.records.presets import Preset
from edgepack.records.run import EvaluationReport, Memory
from edgepack.records.tuning import Confirmation

from tests.support.doubles import simulated_runs
from tests.support.doubles.simulated_runs import Simulated
from tests.support.nets import tiny_models

MS = {"cpu-int8-static": 5.0, "cpu-int8-static-u8s8-tensor": 4.0, "cpu-fp32": 9.0}


def ms_of(session: dict[str, Any], _: Preset) -> float:
    """int8 per tensor is fastest; two bound threads make anything 20 % faster."""
    bound = AFFINITIES in session["config"] and SPINNING not in session["config"]
    level = 1.0 if "graph_optimization_level" not in session else 1.5
    blocks = 1.1 if BLOCK_BASE in session["config"] else 1.0
    return MS.get(session["variant"], 7.0) * level * blocks * (0.8 if bound else 1.0)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("CONFIG", "DATA"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    return tiny_models.write_project(tmp_path, f"targets: [{find_host_target()}]")


@pytest.fixture
def device(tmp_path: Path) -> Device:
    root = str(tmp_path / "root")
    entry = LocalEntry(
        transport="local", target=find_host_target(), root=root, python=sys.executable
    )
    return Device("board", entry)


def ask(project: Path, tmp_path: Path) -> OptimizeQuestion:
    return OptimizeQuestion(read_project(project), budget_s=600, cache=tmp_path / "journals")


def limit(project: Path, text: str) -> None:
    project.write_text(f"{project.read_text()}limits: {text}\n")


def answer_of(report: OptimizeReport) -> str:
    assert report.answer is not None
    return report.candidate(report.answer).settings.variant


def test_answer_is_the_fastest_of_all_that_can_be_built_in_pairs_with_fp32(
    project: Path, device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated = Simulated(monkeypatch, ms_of)
    found = optimize(ask(project, tmp_path), device)
    report = found.report
    assert answer_of(report) == "cpu-int8-static-u8s8-tensor"
    assert report.answer is not None
    assert AFFINITIES in report.candidate(report.answer).settings.session.config
    assert report.runs == simulated.runs
    assert report.confirmed
    over_fp32, over_own = (
        report.find_speedup(report.over_fp32),
        report.find_speedup(report.over_defaults),
    )
    assert isinstance(over_fp32, tuple)
    assert isinstance(over_own, tuple)
    assert over_fp32[0] == pytest.approx(9 / 3.2, rel=0.03)
    assert over_fp32[1] < over_fp32[0] < over_fp32[2]
    assert over_own[0] == pytest.approx(1 / 0.8, rel=0.03)
    # The metric is that of the device, through its own provider.
    assert report.on_device.keys() == {answer_of(report)}
    # fp32 is slower than settings make up for, and is in the table all the same.
    assert "cpu-fp32" in {each.variant for each in report.unused}
    fp32 = next(c for c in report.candidates if c.settings.variant == "cpu-fp32" and c.defaults)
    assert len(fp32.runs) == 1
    # The trade-offs weigh memory, so that of all that are weighed is known.
    assert isinstance(fp32.memory, Memory)
    assert OptimizeReport.model_validate_json(report.model_dump_json()) == report
    assert not any((tmp_path / "journals").iterdir())
    names = {entry.id for entry in found.manifest.variants}
    assert names == {"cpu-int8-static-u8s8-tensor", "cpu-int8-static", "cpu-fp32"}


@pytest.mark.slow(reason="builds all candidates")
def test_search_takes_a_part_of_the_runs_that_trying_everything_takes(
    project: Path, device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Simulated(monkeypatch, ms_of)
    report = optimize(ask(project, tmp_path), device).report
    searched = sum(len(one.runs) for one in report.candidates)
    most = max(len(one.runs) for one in report.candidates)
    assert most >= 3
    assert searched < len(report.candidates) * most / 3


@pytest.mark.slow(reason="builds all candidates")
def test_answer_is_within_the_limits_or_there_is_none(
    project: Path, device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Simulated(monkeypatch, ms_of)
    limit(project, "{p50_ms: 3.5, memory_mb: 70}")
    assert answer_of(optimize(ask(project, tmp_path), device).report) == (
        "cpu-int8-static-u8s8-tensor"
    )
    project.write_text(project.read_text().replace("p50_ms: 3.5", "p50_ms: 3.0"))
    report = optimize(ask(project, tmp_path), device).report
    assert report.answer is None
    assert not report.confirmed
    with pytest.raises(LimitError) as caught:
        require_answer(report)
    assert "(2 threads, bound to 2, no memory pattern): p50_ms is 3." in str(caught.value)
    assert "of at most 3 ms" in caught.value.problem


def test_limit_that_no_variant_is_within_is_told_before_the_device_is_touched(
    project: Path, device: Device, tmp_path: Path
) -> None:
    limit(project, "{size_mb: 0.0001}")
    with pytest.raises(LimitError, match=r"cpu-fp32: its model has 0\.00\d+ MB"):
        optimize(ask(project, tmp_path), device)
    assert not (tmp_path / "root").exists()


@pytest.mark.slow(reason="builds all candidates")
def test_variant_that_loses_too_much_on_the_device_is_not_the_answer(
    project: Path, device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Simulated(monkeypatch, ms_of)
    limit(project, "{min_sqnr_db: 15}")
    evaluate = optimizing.evaluate

    def lose(*args: Any, variant: str, **given: Any) -> EvaluationReport:
        report = evaluate(*args, variant=variant, **given)
        assert report.measured.worst is not None
        if not variant.endswith("tensor"):
            return report
        worst = report.measured.worst.model_copy(update={"sqnr_db": 9.0})
        return report.model_copy(
            update={"measured": report.measured.model_copy(update={"worst": worst})}
        )

    monkeypatch.setattr(optimizing, "evaluate", lose)
    report = optimize(ask(project, tmp_path), device).report
    assert answer_of(report) == "cpu-int8-static"
    assert "cpu-int8-static-u8s8-tensor: output 'scores' is 9.0 dB from fp32" in report.why
    assert report.on_device.keys() == {"cpu-int8-static-u8s8-tensor", "cpu-int8-static"}


@pytest.mark.slow(reason="builds all candidates")
def test_call_after_the_device_was_lost_goes_on_and_comes_to_the_same(
    project: Path, device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Simulated(monkeypatch, ms_of)
    undisturbed = optimize(ask(project, tmp_path), device).report
    most = 40
    assert whole.runs > most

    def lost_later(session: dict[str, Any], preset: Preset) -> float:
        if first.runs > most:
            raise UnreachableError("the connection was lost", hint="look", where="board")
        return ms_of(session, preset)

    first = Simulated(monkeypatch, lost_later)
    kept: list[OptimizeReport] = []
    with pytest.raises(UnreachableError):
        optimize(ask(project, tmp_path), device, on_unfinished=kept.append)
    assert [each.unfinished for each in kept] == ["the connection was lost"]
    assert kept[0].answer is None
    second = Simulated(monkeypatch, ms_of)
    report = optimize(ask(project, tmp_path), device).report
    assert report.resumed == most
    assert answer_of(report) == answer_of(undisturbed)
    assert report.runs == second.runs + most
    again = Simulated(monkeypatch, ms_of)
    assert optimize(ask(project, tmp_path), device).report.resumed == 0
    assert again.runs >= whole.runs * 0.8


@pytest.mark.slow(reason="builds all candidates")
def test_settings_that_are_not_shown_to_gain_are_not_in_the_answer(
    project: Path, device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Simulated(monkeypatch, lambda session, _: MS.get(session["variant"], 7.0))
    report = optimize(ask(project, tmp_path), device).report
    assert report.answer is not None
    answer = report.candidate(report.answer)
    assert answer.settings.variant == "cpu-int8-static-u8s8-tensor"
    if not answer.defaults:  # chance may show that others are as fast
        assert isinstance(report.over_defaults, Confirmation)
        assert report.over_defaults.outcome == "PASS"


@pytest.mark.slow(reason="builds all candidates")
def test_defaults_that_miss_a_limit_do_not_take_the_place_of_settings_that_meet_it(
    project: Path, device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Simulated(monkeypatch, ms_of)
    unclear = NotMeasured(reason="the budget was used up before")
    monkeypatch.setattr(optimizing, "_compare", lambda *_, share=1.0: unclear)
    report = optimize(ask(project, tmp_path), device).report
    assert report.answer is not None
    assert report.candidate(report.answer).defaults
    assert report.over_defaults == IS_BASE
    assert not report.confirmed
    limit(project, "{p50_ms: 3.6}")  # bound threads take 3.2 ms, the defaults 4
    report = optimize(ask(project, tmp_path), device).report
    assert report.answer is not None
    assert not report.candidate(report.answer).defaults
    assert "which miss a limit or fail: they are slower" in report.why


@pytest.mark.slow(reason="builds all candidates")
def test_variant_that_loses_much_only_on_the_device_is_no_answer_without_limits_either(
    project: Path, device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Simulated(monkeypatch, ms_of)
    evaluate = optimizing.evaluate

    def lose(*args: Any, variant: str, **given: Any) -> EvaluationReport:
        report = evaluate(*args, variant=variant, **given)
        if not variant.endswith("tensor"):
            return report
        assert isinstance(report.measured.fp32, float)
        half = {"value": report.measured.fp32 / 2, "drop": report.measured.fp32 / 2}
        return report.model_copy(update={"measured": report.measured.model_copy(update=half)})

    monkeypatch.setattr(optimizing, "evaluate", lose)
    report = optimize(ask(project, tmp_path), device).report
    assert answer_of(report) == "cpu-int8-static"
    assert "cpu-int8-static-u8s8-tensor: it loses 50.0% of fp32's top1" in report.why


@pytest.mark.slow(reason="builds all candidates")
def test_emulated_board_has_an_answer_and_no_speeds(
    project: Path, device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        simulated_runs, "FACTS", simulated_runs.FACTS.model_copy(update={"emulated": True})
    )
    Simulated(monkeypatch, ms_of)
    report = optimize(ask(project, tmp_path), device).report
    assert answer_of(report) == "cpu-int8-static-u8s8-tensor"
    assert not isinstance(report.over_fp32, Confirmation)
    assert not report.confirmed


def test_command_writes_the_answer_and_the_next_build_ships_it_first(
    project: Path,
    device: Device,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    Simulated(monkeypatch, ms_of)
    folder = tmp_path / "config/edgepack"
    folder.mkdir(parents=True)
    entry = device.entry.model_dump(mode="json", exclude_defaults=True) | {"transport": "local"}
    inventory = {"schema_version": 1, "devices": {"board": entry}}
    (folder / "devices.yaml").write_text(json.dumps(inventory))
    argv = ["optimize", "--device", "board", "--project", str(project), "--budget", "10m"]
    assert run(argv) == 0
    told = capsys.readouterr().out
    assert "as fast as fp32 with onnxruntime's defaults" in told
    assert "to ship it first, put this into" in told
    assert len(list(find_optimizings_dir().iterdir())) == 1
    assert run([*argv, "--write"]) == 0
    assert "wrote " in capsys.readouterr().out
    (profile,) = read_project_targets(read_project(project))
    assert [each.id for each in profile.variants] == [
        "cpu-int8-static-u8s8-tensor",
        "cpu-int8-static",
        "cpu-fp32",
    ]
    (built,) = build(project=project, out=tmp_path / "dist").bundles
    first = built.bundle.manifest.variants[0]
    assert first.id == "cpu-int8-static-u8s8-tensor"
    assert AFFINITIES in first.session.config
    # It is found again, and nothing is left to write.
    assert run([*argv, "--write"]) == 0
    assert "has this first already" in capsys.readouterr().out


def test_command_refuses_to_write_for_several_devices(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["optimize", "--device", "all", "--project", str(project), "--write"]
    assert run(argv) == 2
    assert "--write is for one device" in capsys.readouterr().err

"""``edgepack optimize --resolution``: real builds of several sizes, with simulated runs."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from edgepack.cli.main import run
from edgepack.devices.inventory import Device, LocalEntry
from edgepack.errors import BudgetError, LimitError, StepError, UnreachableError, UsageError
from edgepack.measure.optimize import resolutions
from edgepack.measure.optimize.optimizing import Optimized, OptimizeQuestion, optimize
from edgepack.measure.optimize.pruning import explain_lost
from edgepack.measure.optimize.resolutions import (
    ResolutionResult,
    change_resolution,
    choose_resolution,
    optimize_resolutions,
    require_resolution,
)
from edgepack.project.limits import Limits
from edgepack.project.loading import read_project
from edgepack.project.profile import find_host_target
from edgepack.records.optimizing import OptimizeReport

from tests.support.doubles.simulated_runs import Simulated
from tests.support.nets import brightness_nets
from tests.support.reports.example_report import example_accuracy

IMAGE = "{resize: {short_side: 18, crop: 16}, scale: 0.00784314, mean: [1.0, 1.0, 1.0]}"
DIMS = "dims: {height: 16, width: 16}\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("CONFIG", "DATA"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    path = brightness_nets.write_project(tmp_path, IMAGE, sides=("height", "width"))
    path.write_text(f"{path.read_text()}{DIMS}targets: [{find_host_target()}]\n")
    return path


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> Simulated:
    """Runs take as long as a picture has pixels."""

    def ms(session: dict[str, Any], _: object) -> float:
        assert found.harness is not None
        manifest = json.loads(Path(found.harness.release, "manifest.json").read_text())
        _, _, height, width = manifest["inputs"][0]["shape"]
        return height * width / 100 * (1 if "fp32" in session["variant"] else 2)

    found = Simulated(monkeypatch, ms)
    return found


@pytest.fixture
def device(tmp_path: Path) -> Device:
    entry = LocalEntry(
        transport="local",
        target=find_host_target(),
        root=str(tmp_path / "root"),
        python=sys.executable,
    )
    return Device("board", entry)


def ask(project: Path, tmp_path: Path) -> OptimizeQuestion:
    return OptimizeQuestion(read_project(project), budget_s=900, cache=tmp_path / "journals")


def test_the_smallest_size_that_keeps_the_metric_is_the_answer(
    project: Path, device: Device, tmp_path: Path, simulated: Simulated
) -> None:
    results = optimize_resolutions(ask(project, tmp_path), device, [16, 8])
    assert [each.side for each in results] == [16, 8]
    assert [each.value for each in results] == [1.0, 1.0]
    best = choose_resolution(results)
    assert best is results[1]
    assert best.changes["dims"] == {"height": 8, "width": 8}
    assert best.changes["inputs"]["image"]["image"]["resize"] == {"short_side": 9, "crop": 8}
    assert results[0].latency.p50_ns / results[1].latency.p50_ns == pytest.approx(4, rel=0.1)
    assert simulated.runs > 6


def refused(side: int, why: str = "metric_drop is 0.4") -> ResolutionResult:
    return ResolutionResult(side, {}, None, why)


def test_a_size_that_lost_too_much_is_no_answer_and_none_is_an_error(
    project: Path, device: Device, tmp_path: Path, simulated: Simulated
) -> None:
    [whole] = optimize_resolutions(ask(project, tmp_path), device, [16])
    assert choose_resolution([whole, refused(8)]) is whole
    lost = replace(whole, refused="metric_drop is 0.2 against fp32 at the first size")
    assert choose_resolution([lost]) is None
    with pytest.raises(LimitError, match=r"16: metric_drop is 0.2 .*; 8: metric_drop is 0.4"):
        require_resolution([lost, refused(8)])


def test_later_sizes_are_held_against_fp32_at_the_first_and_their_failure_is_a_line(
    project: Path, device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated = Simulated(monkeypatch, lambda session, _: 5.0)
    asked: list[OptimizeQuestion] = []

    def search(question: OptimizeQuestion, *rest: Any, **others: Any) -> Optimized:
        asked.append(question)
        if len(asked) == 2:
            raise StepError("the model does not take 7 pixels", hint="none")
        return optimize(question, *rest, **others)

    monkeypatch.setattr(resolutions, "optimize", search)
    kept: list[OptimizeReport] = []
    sides = [16, 7, 8]
    results = optimize_resolutions(ask(project, tmp_path), device, sides, on_report=kept.append)
    assert [each.reference for each in asked] == [None, 1.0, 1.0]
    assert [each.refused for each in results] == ["", "the model does not take 7 pixels", ""]
    assert len(kept) == 2
    assert not list((tmp_path / "journals").iterdir())
    assert simulated.runs > 0


def test_a_part_of_the_budget_that_is_too_small_ends_the_first_size_and_is_a_line_of_a_later_one(
    project: Path, device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Simulated(monkeypatch, lambda session, _: 5.0)
    question = replace(ask(project, tmp_path), budget_s=0.001)
    with pytest.raises(BudgetError, match="too small") as caught:
        optimize_resolutions(question, device, [16, 8])
    wanted = re.search(r"the 2 sizes has an equal part: give --budget (\d+)s", caught.value.hint)
    assert wanted is not None
    enough = replace(question, budget_s=float(wanted[1]))
    asked: list[float] = []

    def search(part: OptimizeQuestion, *rest: Any, **others: Any) -> Optimized:
        asked.append(part.budget_s)
        if len(asked) == 2:
            part = replace(part, budget_s=0.001)
        return optimize(part, *rest, **others)

    monkeypatch.setattr(resolutions, "optimize", search)
    whole, short = optimize_resolutions(enough, device, [16, 8])
    assert asked == [enough.budget_s / 2] * 2
    assert choose_resolution([whole, short]) is whole
    assert short.refused.startswith("a budget of 0.001 s is too small: one process run takes")
    assert "give --budget" in short.refused
    assert not list((tmp_path / "journals").iterdir())


def test_a_cut_after_the_first_size_keeps_its_runs(
    project: Path, device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated = Simulated(monkeypatch, lambda session, _: 5.0)
    whole, cut = optimize, [True]

    def search(question: OptimizeQuestion, *rest: Any, **others: Any) -> Optimized:
        if question.reference is not None and cut.pop():
            raise UnreachableError("it is gone", hint="look")
        return whole(question, *rest, **others)

    monkeypatch.setattr(resolutions, "optimize", search)
    with pytest.raises(UnreachableError):
        optimize_resolutions(ask(project, tmp_path), device, [16, 8])
    first = simulated.runs
    cut.append(False)
    results = optimize_resolutions(ask(project, tmp_path), device, [16, 8])
    assert results[0].found is not None
    assert results[0].found.report.resumed > 0
    assert simulated.runs < 2 * first + first


def test_loss_counts_from_fp32_at_the_first_size_within_the_limit_or_one_per_cent() -> None:
    found = example_accuracy(0.95, 30.0)
    assert explain_lost(found, Limits(), None) == ""
    assert "drops by 0.0300" in explain_lost(found, Limits(), 0.98)
    assert explain_lost(found, Limits(), 0.955) == ""
    assert explain_lost(found, Limits(metric_drop=0.05), 0.98) == ""
    assert "of at most 0.02" in explain_lost(found, Limits(metric_drop=0.02), 0.98)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("scale: 0.00784314", "scale: 0.00784314, layout: NHWC"), "takes pictures of one size"),
        ((", labels: labels.csv", ""), "a metric of labels"),
        (("images: photos, labels: labels.csv", "path: some.npz"), "tensors of one size"),
        ((f"{{image: {{image: {IMAGE}}}}}", "{image: {pad: 0}}"), "the project has 0"),
        (("inputs: {image:", "inputs: {imgae:"), "the model has no input 'imgae'"),
    ],
)
def test_what_has_one_size_is_refused_before_anything_is_built(
    project: Path, change: tuple[str, str], problem: str
) -> None:
    text = project.read_text()
    assert change[0] in text
    project.write_text(text.replace(*change))
    with pytest.raises(UsageError, match=problem):
        change_resolution(read_project(project), 8)


@pytest.mark.parametrize(
    ("resize", "changed"),
    [
        ("{short_side: 18, crop: 16, filter: cv2-linear}", {"short_side": 9, "crop": 8}),
        ("{width: 16, height: 16, filter: cv2-linear}", {"width": 8, "height": 8}),
        ("{letterbox: 16, filter: cv2-linear}", {"letterbox": 8, "pad": 114}),
    ],
)
def test_another_size_is_resized_by_the_same_filter(
    project: Path, resize: str, changed: dict[str, int]
) -> None:
    text = project.read_text()
    assert "{short_side: 18, crop: 16}" in text
    project.write_text(text.replace("{short_side: 18, crop: 16}", resize))
    image = change_resolution(read_project(project), 8).project.inputs["image"].image
    assert image is not None
    assert image.resize.model_dump() == {"filter": "cv2-linear", **changed}


def test_command_prints_each_size_and_the_lines_for_the_best(
    project: Path, simulated: Simulated, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["optimize", "--device", "local", "--project", str(project), "--budget", "10m"]
    sides = ["--resolution", "16", "--resolution", "8"]
    assert run([*argv, *sides, "--write"]) == 2
    assert "--write takes no sizes" in capsys.readouterr().err
    assert run([*argv, *sides]) == 0
    text = capsys.readouterr().out
    assert 'dims: {"height": 8, "width": 8}' in text
    assert run([*argv, *sides, "--json"]) == 0
    assert [each["side"] for each in json.loads(capsys.readouterr().out)] == [16, 8]

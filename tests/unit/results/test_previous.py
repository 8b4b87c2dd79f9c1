"""What changed since the last run."""

from __future__ import annotations

import math
from statistics import fmean

import pytest
from edgepack.base import statistics
from edgepack.base.schema import NotMeasured
from edgepack.base.statistics import Interval
from edgepack.records.run import RunReport
from edgepack.results.store.previous import (
    FigureChange,
    SincePrevious,
    compare_with_previous,
    compute_ratio_of_medians,
    find_last_before,
)
from edgepack.results.summary import summarize

from tests.support.reports.example_report import example_placement, example_report, example_run


def at(day: int, **changes: object) -> RunReport:
    return example_report(id=f"run-{day}", created=f"2026-11-{day:02}T09:30:12Z", **changes)


def changed(before: RunReport, after: RunReport) -> SincePrevious:
    return compare_with_previous(before, after, (summarize(before), summarize(after)))


def change(found: SincePrevious, what: str) -> FigureChange:
    return next(each for each in found.changes if each.what == what)


def test_last_run_is_the_newest_older_one_of_the_same_subject() -> None:
    others = [
        at(1),
        at(2),
        at(3, device="pi5-b"),
        at(4, variant_used="cpu-fp32"),
        at(5, target="jetson"),
        at(6, project="cats"),
        at(8),
    ]
    found = find_last_before(at(7), others)
    assert found
    assert found.id == "run-2"
    assert find_last_before(at(1), others) is None


def test_last_run_when_reports_name_no_project_is_of_the_same_bundle() -> None:
    old = at(1, project="")
    assert find_last_before(at(2, project="", bundle="other"), [old]) is None
    assert find_last_before(at(2, project=""), [old]) is old


def test_ratio_when_there_are_runs_is_welchs_interval() -> None:
    before, after = [10.0, 10.2, 9.9, 10.1, 10.0], [11.0, 11.3, 10.9]
    found = compute_ratio_of_medians(before, after)
    assert isinstance(found, Interval)
    logs = [[math.log(value) for value in group] for group in (before, after)]
    assert found.estimate == pytest.approx(math.exp(fmean(logs[1]) - fmean(logs[0])))
    errors = [statistics.standard_deviation(each) ** 2 / len(each) for each in logs]
    degrees = sum(errors) ** 2 / (errors[0] ** 2 / 4 + errors[1] ** 2 / 2)
    reach = statistics.t_quantile(0.975, int(degrees)) * math.sqrt(sum(errors))
    assert math.log(found.high / found.estimate) == pytest.approx(reach)
    assert math.log(found.estimate / found.low) == pytest.approx(reach)


@pytest.mark.parametrize(("before", "after"), [([10.0], [11.0, 11.0]), ([10.0] * 3, [11.0] * 3)])
def test_ratio_when_there_is_no_spread_is_a_number(before: list[float], after: list[float]) -> None:
    assert compute_ratio_of_medians(before, after) == pytest.approx(1.1)


@pytest.mark.parametrize(
    ("scale", "word", "direction"),
    [(1.1, "slower", "more"), (0.9, "faster", "less"), (1.0, "no change shown", "")],
)
def test_change_of_latency_says_its_direction_only_if_the_interval_has_one(
    scale: float, word: str, direction: str
) -> None:
    runs = [example_run(seed, scale=scale) for seed in range(10, 15)]
    found = change(changed(at(1), at(2, runs=runs)), "latency p50")
    assert (found.word, found.direction) == (word, direction)
    assert isinstance(found.ratio, Interval)
    assert found.ratio.estimate == pytest.approx(scale, rel=0.01)


def test_change_of_sizes_and_accuracy_is_named() -> None:
    report = at(2, bundle_bytes=3_000_000)
    worse = report.variants[0].accuracy.model_copy(update={"value": 0.9})  # type: ignore[union-attr]
    used = report.variants[0].model_copy(update={"model_bytes": 1000, "accuracy": worse})
    found = changed(at(1), report.model_copy(update={"variants": [used]}))
    assert change(found, "bundle").word == "larger"
    assert change(found, "bundle").ratio_text == "+100.0 %"
    assert change(found, "model file").word == "smaller"
    assert change(found, "peak memory").word == "same"
    assert change(found, "top1 on the build host").word == "differs"


def test_change_when_memory_was_not_measured_is_left_out() -> None:
    nothing = NotMeasured(reason="the device is gone")
    found = changed(at(1), at(2, memory=nothing, placement=nothing))
    assert "peak memory" not in [each.what for each in found.changes]
    assert found.placement == []


def test_placement_when_nodes_moved_names_them() -> None:
    moved = example_placement("XnnpackExecutionProvider").nodes
    placement = example_placement().model_copy(
        update={"nodes": [moved[0], example_placement().nodes[1]]}
    )
    found = changed(at(1), at(2, placement=placement))
    assert found.placement == [
        "nodes by provider: CPU 2, then Xnnpack 1, CPU 1",
        "conv_quant: CPU, then Xnnpack",
    ]


def test_conditions_when_they_differ_are_said() -> None:
    facts = at(1).facts.model_copy(update={"onnxruntime": "1.32.0"})
    assert any("1.32.0" in each for each in changed(at(1), at(2, facts=facts)).differences)
    assert changed(at(1), at(2)).differences == []

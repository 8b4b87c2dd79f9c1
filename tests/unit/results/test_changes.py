"""Changes in histories of runs, by simulation: what is found, and what is not."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from edgepack.records.run import Invalid
from edgepack.results.store.changes import MARGINS, find_all_series, find_series_changes
from edgepack.results.store.fingerprint import list_differences
from edgepack.results.store.points import make_point
from edgepack.results.store.rows import make_row
from edgepack.results.store.splits import find_splits

from tests.support.reports.example_history import SHA, history, noisy
from tests.support.reports.example_report import example_facts, example_report, example_run

LIKE = replace(make_point(make_row(example_report())), canary_sha256=SHA)


def test_histories_without_a_change_seldom_raise_an_alarm():
    # A history is looked at after every run, so this counts all alarms in the life of 40 runs.
    alarms = sum(bool(find_splits(np.log(noisy(seed, 40)), MARGINS["p50"])) for seed in range(500))
    assert alarms <= 0.01 * 500


def test_histories_with_a_run_gone_wrong_now_and_then_seldom_raise_an_alarm():
    alarms = 0
    for seed in range(200):
        random = np.random.default_rng(seed)
        spikes = np.where(random.random(40) < 0.05, random.exponential(0.1, 40), 0)
        alarms += bool(find_splits(np.log(noisy(seed, 40)) + spikes, MARGINS["p50"]))
    assert alarms <= 4


@pytest.mark.parametrize(("before", "after"), [(20, 4), (35, 5), (10, 5)])
def test_step_of_8_percent_when_a_few_runs_are_after_it_is_found_where_it_is(before, after):
    found = 0
    for seed in range(60):
        logs = np.log(noisy(seed, before + after, step=0.08, at=before))
        splits = find_splits(logs, MARGINS["p50"])
        found += len(splits) == 1 and abs(splits[0] - before) <= 1
    assert found >= 0.95 * 60


def test_step_below_the_practical_margin_when_it_is_certain_is_no_change():
    logs = np.log(noisy(1, 60, step=0.02, at=30, deviation=0.001))
    assert find_splits(logs, MARGINS["p50"]) == []
    assert find_splits(logs, 0.01) == [30]


def test_one_slow_run_when_all_others_are_equal_is_no_change():
    medians = np.full(30, 10.0)
    medians[-1] = 15.0
    assert find_splits(np.log(medians), MARGINS["p50"]) == []


def test_history_with_two_changes_shows_both_and_what_they_cost():
    medians = noisy(3, 45)
    medians[15:30] *= 1.2
    changes = [one for one in find_series_changes(points(history(medians))) if one.metric == "p50"]
    assert [(one.since, one.slower) for one in changes] == [("run-015", True), ("run-030", False)]
    assert changes[0].ratio == pytest.approx(np.median(medians[15:30]) / np.median(medians[:15]))
    assert changes[0].before_ms == pytest.approx(np.median(medians[:15]), rel=1e-6)
    assert (changes[0].runs_before, changes[0].runs_after, changes[0].newer_runs) == (15, 15, 30)


def points(reports):
    return [make_point(make_row(report)) for report in reports]


def find_changes(reports):
    by_id = {report.id: report for report in reports}
    return find_all_series(
        points(reports),
        lambda earlier, later: list_differences(by_id[earlier.run], by_id[later.run]),
    )


def test_change_of_p90_alone_when_p50_stays_is_found():
    reports = history(noisy(4, 30))
    for number, report in enumerate(reports[20:], start=20):
        latencies = report.runs[0].latencies_ns
        slow = [latency * 5 // 4 for latency in latencies[8:]]
        runs = [example_run(latencies_ns=latencies[:8] + slow)]
        reports[number] = report.model_copy(update={"runs": runs})
    (change,) = find_series_changes(points(reports))
    assert (change.metric, change.since) == ("p90", "run-020")


def test_p90_of_interrupted_runs_is_in_no_history_and_that_of_others_is():
    reports = history(noisy(4, 30))
    for number, report in enumerate(reports):
        latencies = report.runs[0].latencies_ns
        if number in (3, 7, 24):
            latencies = [*latencies[:8], *[20 * latencies[0]] * 2]
        elif number >= 20:
            latencies = [*latencies[:8], *[latencies[0] * 5 // 4] * 2]
        runs = [example_run(latencies_ns=latencies)]
        reports[number] = report.model_copy(update={"runs": runs})
    told = points(reports)
    assert [n for n, one in enumerate(told) if math.isnan(one.p90_ms)] == [3, 7, 24]
    (change,) = find_series_changes(told)
    assert (change.metric, change.since) == ("p90", "run-020")
    assert (change.runs_before, change.runs_after) == (18, 9)


def test_drift_of_the_device_when_the_canary_drifts_too_is_blamed_on_the_device():
    slower = noisy(5, 30, step=0.08, at=20)
    (series,) = find_changes(history(slower, noisy(6, 30, step=0.08, at=20) / 4))
    assert {change.blame for change in series.changes} == {"device"}
    assert "the device changed: the canary is" in series.changes[0].reason
    assert "slower too" in series.changes[0].reason


def test_change_when_the_canary_stays_is_blamed_on_the_model():
    slower = noisy(5, 30, step=0.08, at=20)
    (series,) = find_changes(history(slower, noisy(6, 30) / 4))
    assert {change.blame for change in series.changes} == {"model"}


def test_change_when_the_canary_moves_by_less_is_blamed_on_both():
    slower = noisy(5, 30, step=0.25, at=20)
    (series,) = find_changes(history(slower, noisy(6, 30, step=0.06, at=20) / 4))
    assert {change.blame for change in series.changes} == {"both"}
    assert "remain" in series.changes[0].reason


def test_change_when_there_is_no_canary_is_blamed_on_nobody():
    (series,) = find_changes(history(noisy(5, 30, step=0.08, at=20)))
    assert {change.blame for change in series.changes} == {"unknown"}
    assert "no canary" in series.changes[0].reason


def test_change_when_the_canary_is_another_before_it_is_blamed_on_nobody():
    medians = noisy(5, 30, step=0.08, at=20)
    old = history(medians, noisy(6, 30), sha="ab" * 32)[:20]
    new = history(medians, noisy(6, 30))[20:]
    (series,) = find_changes([*old, *new])
    assert {change.blame for change in series.changes} == {"unknown"}


def test_change_when_the_bundle_stays_is_blamed_on_the_device():
    reports = history(noisy(5, 30, step=0.08, at=20), manifest_sha256=SHA)
    (series,) = find_changes(reports)
    assert {change.blame for change in series.changes} == {"device"}
    assert "the bundle is the same" in series.changes[0].reason


def test_change_when_it_comes_with_another_unit_says_so():
    medians = noisy(5, 30, step=0.08, at=20)
    old = history(medians, device="pi5-a")[:20]
    new = history(medians, device="pi5-b")[20:]
    (series,) = find_changes([*old, *new])
    assert "those after of pi5-b" in series.changes[0].reason


def test_false_blame_when_only_the_model_changed_is_rare():
    wrong = 0
    for seed in range(60):
        slower, canary = noisy(seed, 30, step=0.08, at=20), noisy(seed + 1000, 30)
        measured = [
            replace(LIKE, manifest_sha256=str(day), p50_ms=p50, p90_ms=20, canary_ns=canary[day])
            for day, p50 in enumerate(slower)
        ]
        wrong += any(change.blame != "model" for change in find_series_changes(measured))
    assert wrong <= 2


def test_invalid_and_unfinished_runs_are_left_out_and_counted():
    reports = history(noisy(7, 20))
    for number in (15, 16, 17):
        reports[number] = history([30.0] * 20)[number].model_copy(
            update={"verdict": Invalid(reasons=["throttled"])}
        )
    reports[18] = reports[18].model_copy(update={"unfinished": "the device vanished"})
    (series,) = find_changes(reports)
    assert (series.runs, series.invalid_runs, series.changes) == (16, 4, ())


def test_series_when_conditions_change_starts_anew_and_says_why():
    medians = noisy(8, 30, step=0.2, at=15)
    facts = example_facts().model_copy(update={"onnxruntime": "1.32.0"})
    newer, older = find_changes(history(medians)[:15] + history(medians, facts=facts)[15:])
    assert (older.onnxruntime, newer.onnxruntime) == ("1.31.1", "1.32.0")
    assert newer.restarted == ("onnxruntime: 1.31.1, then 1.32.0",)
    assert older.changes == newer.changes == older.restarted == ()


def test_series_when_it_is_short_has_no_changes():
    (series,) = find_changes(history([10.0] * 5 + [20.0] * 4))
    assert not series.long_enough
    assert series.changes == ()


def test_series_when_reports_come_in_any_order_are_the_same():
    reports = history(noisy(9, 30, step=0.1, at=20))
    assert find_changes(reports) == find_changes(list(reversed(reports)))


def test_series_of_variants_and_projects_are_never_mixed():
    fast, slow = history([10.0] * 12), history([20.0] * 12, variant_used="cpu-fp32")
    other = history([30.0] * 12, project="other")
    assert [one.runs for one in find_changes([*fast, *slow, *other])] == [12, 12, 12]


def test_project_when_a_report_is_old_is_the_bundle_without_version_and_target():
    assert make_point(make_row(example_report(project=""))).project == "digits"
    assert make_point(make_row(example_report(project="scanner"))).project == "scanner"

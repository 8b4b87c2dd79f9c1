"""Devices among their peers, by simulation: which are slow, since when, and which are not."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest
from edgepack.base.clock import format_time
from edgepack.records.run import Invalid
from edgepack.results.store import units
from edgepack.results.store.changes import find_all_series
from edgepack.results.store.points import make_point
from edgepack.results.store.rows import make_row

from tests.support.reports.example_history import START, farm, farm_logs
from tests.support.reports.example_report import example_report

KINDS = [
    pytest.param({}, id="usual"),
    pytest.param({"between": 0.0}, id="equal devices"),
    pytest.param({"between": 0.05}, id="unlike devices"),
    pytest.param({"within": 0.04}, id="noisy nights"),
    pytest.param({"spikes": 0.05}, id="runs gone wrong"),
    pytest.param({"uneven": 3.0}, id="some devices noisier"),
]


LIKE = make_point(make_row(example_report()))


def find_series(logs, canary=None):
    canary_ns = np.full_like(logs, np.nan) if canary is None else 1e6 * canary
    points = [
        replace(
            LIKE,
            run=f"run-{night:03}-{number:02}",
            created=format_time(START + timedelta(days=night, hours=22, minutes=number)),
            device=f"pi5-{number:02}",
            manifest_sha256=f"{night:064x}",
            p50_ms=math.exp(logs[number, night]),
            p90_ms=math.nan,
            canary_ns=canary_ns[number, night],
        )
        for number, night in np.argwhere(~np.isnan(logs)).tolist()
    ]
    (series,) = find_all_series(points, lambda earlier, later: ())
    return series


def find_slow(logs):
    rows = units._divide_by_peers(logs)
    return units._find_slow([row[~np.isnan(row)] for row in rows])


@pytest.mark.parametrize("kind", KINDS)
def test_farms_without_a_slow_device_seldom_raise_an_alarm(kind):
    # A farm is looked at after every night, so this counts all alarms in its life of 30 nights.
    alarms = 0
    for seed in range(15):
        logs = farm_logs(seed, 30, 30, **kind)
        alarms += any(find_slow(logs[:, :nights]) for nights in range(3, 31))
    assert alarms == 0


@pytest.mark.parametrize(
    ("nights", "slow", "factor"), [(30, 7, 1.5), (7, 7, 1.5), (30, 3, 1.5), (30, 7, 1.1)]
)
def test_slow_device_among_thirty_when_it_is_slow_for_nights_is_found_and_no_other(
    nights, slow, factor
):
    found = wrong = 0
    for seed in range(40):
        logs = farm_logs(seed, 30, nights)
        logs[seed % 30, -slow:] += math.log(factor)
        indexes = find_slow(logs)
        found += seed % 30 in indexes
        wrong += len(indexes.keys() - {seed % 30})
    assert found >= 0.95 * 40
    assert wrong == 0


def test_slow_device_has_its_ratio_since_when_and_what_it_was_before():
    logs = farm_logs(1, 30, 20, between=0.0)
    logs[7, -7:] += math.log(1.5)
    series = find_series(logs)
    worst, *others = series.units
    assert (worst.device, worst.slow, worst.since) == ("pi5-07", True, "run-013-07")
    assert (worst.created, worst.slow_nights, worst.newer_runs) == ("2026-01-14T22:07:00Z", 7, 7)
    assert worst.ratio.low < 1.5 < worst.ratio.high
    assert worst.ratio.high - worst.ratio.low < 0.09
    assert worst.ratio_before == pytest.approx(1, abs=0.02)
    assert (worst.peers, worst.nights) == (29, 20)
    assert not any(one.slow for one in others)
    estimates = [one.ratio.estimate for one in others]
    assert estimates == sorted(estimates, reverse=True)


def test_device_that_is_slow_from_its_first_night_is_found_by_its_peers():
    logs = farm_logs(2, 10, 8)
    logs[3] += math.log(1.5)
    worst = find_series(logs).units[0]
    assert (worst.device, worst.slow, worst.since) == ("pi5-03", True, "run-000-03")
    assert worst.ratio_before is None
    assert worst.slow_nights == 8


def test_slow_devices_when_there_are_several_do_not_hide_each_other():
    logs = farm_logs(3, 30, 20)
    for index, factor in ((4, 2.0), (5, 1.5), (6, 1.15)):
        logs[index, -7:] += math.log(factor)
    assert [one.device for one in find_series(logs).units if one.slow] == [
        "pi5-04",
        "pi5-05",
        "pi5-06",
    ]


def test_device_that_was_slow_and_is_not_any_more_is_not_slow():
    logs = farm_logs(4, 30, 30)
    logs[8, 5:12] += math.log(1.5)
    assert not any(one.slow for one in find_series(logs).units)


def test_device_with_one_slow_night_is_not_slow():
    logs = farm_logs(5, 30, 20)
    logs[8, -1] += math.log(1.5)
    assert find_slow(logs) == {}


def test_model_that_becomes_slower_on_all_devices_is_one_change_and_no_slow_device():
    logs = farm_logs(6, 30, 30, between=0.01)
    logs[:, 20:] += math.log(1.2)
    series = find_series(logs)
    assert not any(one.slow for one in series.units)
    (change,) = [one for one in series.changes if one.metric == "p50"]
    assert change.since.startswith("run-020")
    assert change.ratio == pytest.approx(1.2, rel=0.03)
    assert (change.runs_before, change.runs_after, change.newer_runs) == (20, 10, 10)
    assert (series.runs, series.points) == (900, 30)


def test_nights_that_differ_for_all_devices_are_no_change_of_the_model():
    changed = sum(bool(find_series(farm_logs(seed, 12, 14)).changes) for seed in range(10))
    assert changed == 0


def test_devices_that_stop_being_measured_are_no_change_of_the_model():
    logs = farm_logs(16, 9, 30, within=0.005, between=0.01)
    logs[:5] -= 0.1
    logs[:4, 15:] = np.nan
    assert find_series(logs).changes == ()


def test_slow_device_is_no_change_of_the_model():
    logs = farm_logs(7, 5, 30)
    logs[2, -10:] += math.log(1.5)
    series = find_series(logs)
    assert [one.device for one in series.units if one.slow] == ["pi5-02"]
    assert series.changes == ()


@pytest.mark.parametrize(
    ("devices", "nights", "reason"),
    [(3, 9, "2 peers, 3 are needed"), (30, 2, "2 nights beside its peers, 3 are needed")],
)
def test_devices_with_few_peers_or_nights_are_not_compared_and_say_so(devices, nights, reason):
    logs = farm_logs(8, devices, nights)
    logs[1] += math.log(2)
    series = find_series(logs)
    assert len(series.units) == devices
    assert {(one.ratio, one.slow, one.reason) for one in series.units} == {(None, False, reason)}


def test_device_with_one_night_is_not_compared_and_the_others_are():
    logs = farm_logs(9, 10, 9)
    logs[4, :-1] = np.nan
    *others, last = find_series(logs).units
    assert (last.device, last.nights, last.ratio) == ("pi5-04", 1, None)
    assert last.reason == "1 night beside its peers, 3 are needed"
    assert all(one.ratio for one in others)


def test_devices_that_run_other_bundles_are_not_compared():
    reports = []
    for number in range(5):
        own = farm(farm_logs(10, 5, 8))
        device = f"pi5-{number:02}"
        reports += [
            one.model_copy(update={"manifest_sha256": f"{number:064x}"})
            for one in own
            if one.device == device
        ]
    points = [make_point(make_row(report)) for report in reports]
    found = units.compare_units(points)
    assert {one.reason for one in found} == {"in no night did 3 peers run the same bundle"}


def test_night_that_passes_midnight_is_one_night():
    logs = farm_logs(11, 200, 4)
    (one, *_) = find_series(logs).units
    assert (one.nights, one.peers) == (4, 199)


@pytest.mark.parametrize(
    ("canary", "blame", "words"),
    [
        (1.5, "device", "the device is slow: its canary is"),
        (1.2, "both", "the device is slow, and this model on it even more"),
        (1.0, "model", "only this model is slow on it"),
    ],
)
@pytest.mark.parametrize("slow", [7, 20])
def test_slow_device_is_blamed_where_its_canary_moved_too(canary, blame, words, slow):
    logs, canaries = farm_logs(12, 30, 20), np.exp(farm_logs(13, 30, 20, between=0.01))
    logs[9, -slow:] += math.log(1.5)
    canaries[9, -slow:] *= canary
    worst = find_series(logs, canaries).units[0]
    assert (worst.device, worst.blame) == ("pi5-09", blame)
    assert words in worst.reason
    assert worst.canary.estimate == pytest.approx(canary, rel=0.05)


def test_slow_device_without_a_canary_is_blamed_on_nobody():
    logs = farm_logs(14, 30, 20)
    logs[9, -7:] += math.log(1.5)
    worst = find_series(logs).units[0]
    assert (worst.slow, worst.blame, worst.canary) == (True, "unknown", None)
    assert "too few canaries" in worst.reason


def test_series_of_invalid_runs_alone_has_no_devices_to_compare():
    invalid = {"verdict": Invalid(reasons=["throttled"])}
    reports = [one.model_copy(update=invalid) for one in farm(farm_logs(15, 5, 4))]
    (series,) = find_all_series([make_point(make_row(one)) for one in reports], lambda *_: ())
    assert (series.runs, series.invalid_runs, series.units) == (0, 20, ())


def test_report_whose_time_cannot_be_read_is_in_no_history():
    assert make_point(make_row(example_report(created="yesterday"))) is None


def test_canary_that_did_not_move_seldom_blames_the_device():
    wrong = 0
    for seed in range(30):
        logs, canaries = farm_logs(seed, 20, 14), np.exp(farm_logs(seed + 100, 20, 14))
        logs[5, -5:] += math.log(1.5)
        worst = find_series(logs, canaries).units[0]
        wrong += (worst.device, worst.blame) not in {("pi5-05", "model"), ("pi5-05", "unknown")}
    assert wrong <= 1

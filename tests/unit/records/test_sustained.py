"""A long run, minute by minute."""

from __future__ import annotations

import numpy as np
import pytest
from edgepack.records.run import ProcessRun
from edgepack.records.sustained import compute_query_ends, list_sustained_notes, measure_sustained

from tests.support.reports.example_report import example_run

MS = 1_000_000


def run_of(latencies_ms: list[float], gap_ms: float = 0.0) -> ProcessRun:
    latencies_ns = [int(each * MS) for each in latencies_ms]
    taken_ns = sum(latencies_ns) + int(gap_ms * MS * len(latencies_ns))
    return example_run(
        latencies_ns=latencies_ns,
        timed_from_ns=1_000,
        timed_to_ns=1_000 + taken_ns,
        inferences=len(latencies_ns),
    )


def test_sustained_when_the_device_heats_up_tells_minutes_and_onset() -> None:
    fast, slow = [50.0] * 3400, [60.0] * 3167  # 170 s, then 190 s
    found = measure_sustained(run_of(fast + slow))
    assert found is not None
    assert len(found.minutes) == 6
    assert [minute.from_s for minute in found.minutes] == [0, 60, 120, 180, 240, 300]
    assert found.minutes[0].p50_ns == 50 * MS
    assert found.minutes[-1].p90_ns == 60 * MS
    assert found.slowdown == pytest.approx(0.2)
    assert found.onset_s == 170.0


def test_notes_when_a_run_lasts_say_how_it_went_on() -> None:
    hot = run_of([50.0] * 3400 + [60.0] * 3167)
    steady = run_of([100.0] * 1800)
    assert list_sustained_notes([hot, example_run(), steady]) == [
        (
            "run 1: median 50.00 ms in minute 1, 60.00 ms in minute 6 (+20.0%);"
            " it was 5% slower from 170 s on"
        ),
        (
            "run 3: median 100.0 ms in minute 1, 100.0 ms in minute 3 (+0.0%);"
            " it did not slow down for long"
        ),
    ]


def test_sustained_when_speed_stays_has_no_onset() -> None:
    noise = np.random.default_rng(3).normal(100, 1, 1800)
    found = measure_sustained(run_of(list(noise)))
    assert found is not None
    assert found.onset_s is None
    assert abs(found.slowdown) < 0.01


def test_sustained_when_one_window_is_slow_has_no_onset() -> None:
    found = measure_sustained(run_of([100.0] * 900 + [150.0] * 130 + [100.0] * 900))
    assert found is not None
    assert found.onset_s is None


def test_query_ends_when_time_passes_between_queries_spread_it() -> None:
    assert compute_query_ends(run_of([10.0, 30.0], gap_ms=5.0)) == pytest.approx([0.015, 0.05])


def test_sustained_when_the_run_is_short_is_none() -> None:
    assert measure_sustained(run_of([100.0] * 1150)) is None


def test_sustained_when_queries_overlap_counts_them_evenly() -> None:
    run = run_of([1_000.0] * 600 + [2_000.0] * 1200)
    found = measure_sustained(run.model_copy(update={"timed_to_ns": 1_000 + 180_000 * MS}))
    assert found is not None
    assert [minute.queries for minute in found.minutes] == [600, 600, 600]
    assert [minute.p50_ns for minute in found.minutes] == [1_000 * MS, 2_000 * MS, 2_000 * MS]
    assert found.onset_s == 60.0

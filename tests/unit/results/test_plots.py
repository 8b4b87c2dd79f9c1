"""What the report's figures draw, as data."""

from __future__ import annotations

import json
import math
from itertools import pairwise

import pytest
from edgepack.base.schema import NotMeasured
from edgepack.records.run import RunReport, Scenario
from edgepack.results.page.plots import (
    LONGEST_TEXT,
    Band,
    Panel,
    PlotMark,
    QueryStretch,
    Range,
    draw_distribution,
    draw_overview,
    draw_sustained,
    draw_timeline,
    make_json,
    make_spans,
    place_rails,
    split_minutes,
    split_stretches,
)

from tests.support.reports.example_report import example_report, example_run, example_sampling

UNKNOWN = NotMeasured(reason="no sensor")


def panels(report: RunReport) -> dict[str, Panel]:
    return {panel.title: panel for panel in draw_timeline(report).panels}


def test_stretches_when_there_are_many_queries_keep_the_slowest_and_bound_the_points() -> None:
    latencies_ns = [1_000_000] * 10_000
    latencies_ns[5_003] = 1_000_000_000
    found = split_stretches(latencies_ns, 200)
    assert len(found) <= 200
    assert max(part.slowest for part in found) == 1000.0
    assert {part.median for part in found} == {1.0}


def test_stretches_when_a_short_rest_is_left_add_it_to_the_last_one() -> None:
    latencies_ns = [*[1_000_000] * 1000, 9_000_000]
    found = split_stretches(latencies_ns, 120)
    assert found[-1].median == 1.0
    assert found[-1].slowest == 9.0


def test_stretches_when_queries_are_few_are_the_queries_at_their_time() -> None:
    assert split_stretches([3_000_000, 1_000_000]) == [
        QueryStretch(0.0, 3.0, 3.0),
        QueryStretch(0.75, 1.0, 1.0),
    ]
    evenly = split_stretches([3_000_000, 1_000_000], evenly=True)
    assert [part.position for part in evenly] == [0.0, 0.5]


def test_timeline_when_sensors_have_times_places_them_in_their_run_and_cuts_the_rest() -> None:
    sampling = example_sampling(2.0, from_ns=7_000_000_000)
    early = sampling.samples[0].model_copy(update={"at_ns": 6_000_000_000})
    late = sampling.samples[0].model_copy(update={"at_ns": 9_500_000_000})
    told = sampling.model_copy(update={"samples": [early, *sampling.samples, late]})
    run = example_run(
        timed_from_ns=7_000_000_000, timed_to_ns=9_000_000_000, inferences=200, sampling=told
    )
    found = panels(example_report(runs=[run, run]))
    series = {each.name: each for each in found["temperature (°C)"].series}
    second = 2.0 + 0.03 * 4.0
    assert series["cpu-thermal"].x == pytest.approx(
        [0.0, 0.5, 1.0, 1.5, 2.0, None, *(second + at for at in (0, 0.5, 1, 1.5, 2)), None]
    )
    assert series["cpu-thermal"].y[0] == sampling.samples[0].temperatures_c["cpu-thermal"]
    (clock,) = found["clock (GHz)"].series
    assert set(clock.y) == {2.4, None}
    assert [span.start for span in make_spans(example_report(runs=[run, run]))] == [0.0, second]


def test_timeline_when_latencies_add_up_to_less_than_the_time_fills_the_time() -> None:
    run = example_run(latencies_ns=[1_000_000] * 100, timed_from_ns=0, timed_to_ns=10_000_000_000)
    figure = draw_timeline(example_report(runs=[run]))
    at = [value for value in figure.panels[0].series[1].x if value is not None]
    assert at == pytest.approx([index / 10 for index in range(100)])


def test_timeline_when_no_sensor_said_anything_has_latencies_alone() -> None:
    report = example_report(runs=[example_run(sampling=UNKNOWN, timed_from_ns=UNKNOWN)])
    assert list(panels(report)) == ["latency (ms)", "deviation (%)"]


def test_timeline_when_the_device_is_slowed_down_marks_how_long_and_why() -> None:
    run = example_run(samples=400, drop=0.25)
    figure = draw_timeline(example_report(runs=[run]))
    (band,) = figure.bands
    assert isinstance(band, Band)
    assert band.text == "hot"
    sampling = run.sampling
    assert not isinstance(sampling, NotMeasured)
    first = next(sample for sample in sampling.samples if sample.throttled)
    assert not isinstance(run.timed_from_ns, NotMeasured)
    assert band.start == pytest.approx((first.at_ns - run.timed_from_ns) / 1e9, abs=1e-3)


def test_timeline_when_a_trip_point_is_near_draws_it() -> None:
    far = example_report(runs=[example_run(samples=2000, degrees=2.0)])
    near = example_report(runs=[example_run(samples=2000, degrees=30.0)])
    assert panels(far)["temperature (°C)"].levels == []
    assert [level.at for level in panels(near)["temperature (°C)"].levels] == [85.0]


def test_timeline_when_a_device_has_many_zones_draws_the_hottest() -> None:
    sampling = example_sampling(2.0, from_ns=0)
    samples = [
        sample.model_copy(update={"temperatures_c": {f"zone{n}": 30.0 + n for n in range(20)}})
        for sample in sampling.samples
    ]
    told = sampling.model_copy(update={"samples": samples})
    run = example_run(timed_from_ns=0, timed_to_ns=2_000_000_000, sampling=told)
    series = panels(example_report(runs=[run]))["temperature (°C)"].series
    assert [each.name for each in series] == ["zone19", "zone18", "zone17", "zone16"]


@pytest.mark.parametrize(("slowest_ms", "log"), [(25, False), (35, True)])
def test_timeline_when_one_query_is_far_slower_has_a_logarithmic_axis(
    slowest_ms: int,
    log: bool,  # noqa: FBT001
) -> None:
    run = example_run(latencies_ns=[*[10_000_000] * 50, slowest_ms * 1_000_000])
    assert draw_timeline(example_report(runs=[run])).panels[0].log is log


@pytest.mark.parametrize(("bound_ms", "drawn"), [(20.0, [20.0]), (500.0, [])])
def test_timeline_when_queries_have_a_bound_near_them_draws_it(
    bound_ms: float, drawn: list[float]
) -> None:
    server = Scenario(name="server", queries_per_s=10, latency_bound_ms=bound_ms)
    panel = draw_timeline(example_report(scenario=server)).panels[0]
    assert [level.at for level in panel.levels] == drawn


def test_minutes_when_a_run_is_short_are_none() -> None:
    assert split_minutes(example_report()) == []


def test_minutes_when_a_run_is_long_are_its_medians() -> None:
    latencies = [*[100_000_000] * 600, *[200_000_000] * 600]
    run = example_run(
        latencies_ns=latencies, timed_from_ns=0, timed_to_ns=sum(latencies), sampling=UNKNOWN
    )
    found = split_minutes(example_report(runs=[run]))
    assert [minute.median for minute in found] == [100.0, 200.0, 200.0]
    assert sum(minute.queries for minute in found) == 1200
    assert draw_sustained(found).panels[0].series[1].y == [100.0, 200.0, 200.0]


def test_minutes_when_queries_overlap_are_counted_evenly() -> None:
    run = example_run(
        latencies_ns=[1_000_000_000] * 1800,
        timed_from_ns=0,
        timed_to_ns=180_000_000_000,
        sampling=UNKNOWN,
    )
    report = example_report(runs=[run], scenario=Scenario(name="server", queries_per_s=10))
    assert [minute.queries for minute in split_minutes(report)] == [600, 600, 600]


def test_distribution_when_drawn_counts_every_query() -> None:
    report = example_report()
    (bars,) = draw_distribution(report).panels[0].series
    assert sum(value for value in bars.y if value) == len(report.latencies_ns)


def test_distribution_when_some_queries_take_far_longer_has_a_logarithmic_axis() -> None:
    latencies = [*range(9_000_000, 11_000_000, 10_000)] * 4 + [100_000_000] * 40
    figure = draw_distribution(example_report(runs=[example_run(latencies_ns=latencies)]))
    (bars,) = figure.panels[0].series
    factors = [after / before for before, after in pairwise(bars.x) if before and after]
    assert figure.log
    assert factors == pytest.approx([(100 / 9) ** (1 / len(bars.x))] * len(factors), rel=1e-3)
    counts = [count for count in bars.y if count]
    assert sum(counts) == len(latencies)
    assert len(counts) > 5, "the usual ones are more than one bar"


def test_overview_when_drawn_keeps_verdicts_apart_and_draws_sizes_as_areas() -> None:
    def mark(verdict: str, model_bytes: int) -> PlotMark:
        return PlotMark("text", "run-1", verdict, (1.0, 2.0, 3.0), (0.8, 0.9, 1.0), model_bytes)

    figure = draw_overview([mark("valid", 100), mark("invalid", 25)], "top1")
    valid, invalid = figure.panels[0].series
    assert (valid.colour, invalid.colour) == ("valid", "invalid")
    assert (valid.x_low, valid.x, valid.x_high) == ([1.0], [2.0], [3.0])
    assert (valid.radius[0] - 4) / (invalid.radius[0] - 4) == 2.0


def test_rails_when_values_differ_by_powers_are_placed_by_their_logarithms() -> None:
    found = place_rails([Range(str(ms), "", "", ms, ms, ms) for ms in (1.0, 10.0, 100.0)])
    first, second, third = (rail.dot for rail in found)
    assert second - first == pytest.approx(third - second, abs=0.02)
    assert 0 < first < third < 100


def test_rails_when_all_is_equal_or_zero_lie_within_the_rail() -> None:
    for ms in (0.0, 5.0):
        (rail,) = place_rails([Range("", "", "", ms, ms, ms)])
        assert rail.dot == rail.start == rail.end == 50.0


def test_as_json_when_written_has_zeros_and_nothing_that_is_empty() -> None:
    found = make_json(draw_timeline(example_report()))
    assert isinstance(found, dict)
    assert found["marks"][0] == {"at": 0.0, "text": "run 1"}
    assert "log" not in found
    assert not math.isnan(len(json.dumps(found, allow_nan=False)))


def test_as_json_when_a_text_is_long_or_not_printable_makes_it_fit() -> None:
    assert make_json(["x" * 1000]) == ["x" * (LONGEST_TEXT - 1) + "…"]
    assert make_json("\u202ea") == "\ufffda"

"""What the terminal and the page show of a sweep, of the best batch and of joined samples."""

from __future__ import annotations

import pytest
from edgepack.base.schema import NotMeasured
from edgepack.records.batches import choose_best_batch
from edgepack.records.run import BestBatch, Joined, OutputCheck, RunReport, SweepPoint
from edgepack.results.page.html import render_html
from edgepack.results.page.table import list_report_rows

from tests.support.reports.example_report import example_report, example_run

MS = 1_000_000
RIGHT = OutputCheck(how="golden outputs", nearness_db=88.2, needed_db=40.0)
WRONG = RIGHT.model_copy(update={"nearness_db": 3.0, "problem": "outputs for sample 1 are far"})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {},
            (
                "x=4x3x8x8: p50 6.000 ms, 1.500 ms a sample; outputs not checked (the edgepack of"
                " the bundle, or that measured this, did not check)"
            ),
        ),
        (
            {"checked": RIGHT},
            (
                "x=4x3x8x8: p50 6.000 ms, 1.500 ms a sample; outputs 88.2 dB, 40.0 dB needed:"
                " golden outputs"
            ),
        ),
        (
            {"checked": RIGHT, "steady": False},
            (
                "x=4x3x8x8: p50 6.000 ms, 1.500 ms a sample; its warm-up was not steady; outputs"
                " 88.2 dB, 40.0 dB needed: golden outputs"
            ),
        ),
        (
            {"checked": WRONG, "latencies_ns": [], "problem": WRONG.problem},
            "x=4x3x8x8: WRONG OUTPUTS: outputs for sample 1 are far",
        ),
        ({"latencies_ns": [], "problem": "x is fixed"}, "x=4x3x8x8: x is fixed"),
    ],
)
def test_table_when_a_sweep_was_made_has_a_row_for_each_point(
    changes: dict[str, object], said: str
) -> None:
    point = SweepPoint(shapes={"x": [4, 3, 8, 8]}, batch=4, latencies_ns=[5 * MS, 6 * MS, 9 * MS])
    report = example_report(sweep=[point.model_copy(update=changes)])
    assert [value for what, value in list_report_rows(report) if what == "sweep"] == [said]


def find_rows(report: RunReport, what: str) -> list[str]:
    return [value for name, value in list_report_rows(report) if name == what]


def test_best_batch_is_told_in_table_page_and_json() -> None:
    points = [
        SweepPoint(shapes={"x": [n, 3]}, batch=n, latencies_ns=[ms * MS] * 30, checked=RIGHT)
        for n, ms in ((1, 2), (4, 5), (8, 12))
    ]
    best = choose_best_batch(points, 10)
    report = example_report(sweep=points, best_batch=best)
    said = "4 (800 samples/s, p90 5.000 ms of 10)"
    assert find_rows(report, "best batch") == [said]
    assert f"best batch: {said}" in render_html([report])
    assert RunReport.model_validate_json(report.model_dump_json()).best_batch == best
    none = report.model_copy(update={"best_batch": choose_best_batch(points, 1)})
    assert find_rows(none, "best batch") == [
        "none is within 1 ms; nearest: 1 (500 samples/s, p90 2.000 ms of 1)"
    ]
    failed = report.model_copy(update={"best_batch": NotMeasured(reason="x is fixed")})
    assert find_rows(failed, "best batch") == ["none could be measured: x is fixed"]
    assert find_rows(example_report(), "best batch") == []
    assert "best_batch" not in example_report().model_dump()


def test_page_says_which_sizes_have_wrong_outputs() -> None:
    point = SweepPoint(
        shapes={"x": [4, 3]}, batch=4, latencies_ns=[], checked=WRONG, problem=WRONG.problem
    )
    page = render_html([example_report(sweep=[point])])
    assert '<span class="invalid">WRONG</span>' in page
    assert WRONG.problem in page


def test_joined_samples_are_told_with_the_mean_batch() -> None:
    runs = [
        example_run(seed, inferences=100, joined=Joined(batches=batches, min_sqnr_db=sqnr_db))
        for seed, batches, sqnr_db in ((0, 30, 200.0), (1, 20, 63.5))
    ]
    scenario = {"name": "offline", "max_batch": 8}
    report = example_report(runs=runs)
    changed = report.model_copy(update={"scenario": report.scenario.model_copy(update=scenario)})
    said = "4 samples a batch on average; outputs 63.5 dB near the golden ones of each sample"
    assert find_rows(changed, "joined") == [said]
    assert find_rows(changed, "scenario") == ["offline, joined to batches of up to 8"]
    assert said in render_html([changed])
    assert find_rows(example_report(), "joined") == []


@pytest.mark.parametrize(
    ("latencies", "bound_ms", "expected"),
    [
        # p90, as the second has too few for p99: its median is fast, its tail is not.
        ({1: [2.0] * 700, 4: [4.0] * 80 + [30.0] * 20}, 10, (1, 500, 90, 2.0, True)),
        ({1: [2.0] * 700, 4: [4.0] * 80 + [30.0] * 20}, 30, (4, 1000, 90, 30.0, True)),
        # p99, where each has enough.
        ({1: [2.0] * 700, 4: [4.0] * 670 + [30.0] * 20}, 10, (1, 500, 99, 2.0, True)),
        ({1: [12.0] * 100, 2: [20.0] * 100}, 10, (1, 1000 / 12, 90, 12.0, False)),
        # Equal throughput: the smaller batch, which answers sooner.
        ({4: [8.0] * 100, 2: [4.0] * 100, 8: [16.0] * 100}, 50, (2, 500, 90, 4.0, True)),
    ],
)
def test_best_batch_has_the_most_samples_a_second_within_the_bound(
    latencies: dict[int, list[float]],
    bound_ms: float,
    expected: tuple[int, float, int, float, bool],
) -> None:
    points = [
        SweepPoint(shapes={"x": [n]}, batch=n, latencies_ns=[int(ms * MS) for ms in each])
        for n, each in latencies.items()
    ]
    best = choose_best_batch(points, bound_ms)
    assert isinstance(best, BestBatch)
    assert (
        best.batch,
        pytest.approx(best.samples_per_s),
        best.percentile,
        best.latency_ms,
        best.is_within,
    ) == expected
    assert best.bound_ms == bound_ms


def test_best_batch_is_none_whose_outputs_are_wrong() -> None:
    wrong = SweepPoint(
        shapes={"x": [8]}, batch=8, latencies_ns=[], checked=WRONG, problem=WRONG.problem
    )
    right = SweepPoint(shapes={"x": [1]}, batch=1, latencies_ns=[MS] * 30)
    best = choose_best_batch([wrong, right], 50)
    assert isinstance(best, BestBatch)
    assert best.batch == 1
    assert choose_best_batch([wrong], 50) == NotMeasured(reason=WRONG.problem)

"""What the terminal shows of a sweep."""

from __future__ import annotations

import pytest
from edgepack.records.run import SweepPoint
from edgepack.results.page.table import list_report_rows

from tests.support.reports.example_report import example_report

MS = 1_000_000


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "x=4x3x8x8: p50 6.000 ms, 1.500 ms a sample"),
        (
            {"steady": False},
            "x=4x3x8x8: p50 6.000 ms, 1.500 ms a sample; its warm-up was not steady",
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

"""What an earlier measurement of all variants is taken for a new one."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from edgepack.base.clock import format_time
from edgepack.bundle.unused import Unused
from edgepack.records.run import Inconclusive, RunReport, Scenario, Speedup
from edgepack.results.store.measured import MeasuredBefore, find_measured, list_out
from edgepack.results.store.store import ResultsStore

from tests.support.reports.example_report import example_report

SPEEDUP = Speedup(over="cpu-fp32", report="b", ratio=2, low=1.9, high=2.1, pairs=5)
SWEEP = tuple(point.shapes for point in example_report().sweep)
ASKED = MeasuredBefore("pi5-a", "ab" * 32, "standard", 5, Scenario(), 3600, sweep=SWEEP, tune=True)


def pair(minutes: float = 10, name: str = "", **changes: Any) -> list[RunReport]:
    """Reports of two variants that were measured in turn; changes are the second's."""
    created = format_time(datetime.now(UTC) - timedelta(minutes=minutes))
    ids = [f"{name}a", f"{name}b"]
    first = example_report(
        id=ids[0], created=created, beside=[ids[1]], speedup=SPEEDUP, scenario=Scenario(threads=2)
    )
    second = {"id": ids[1], "beside": [ids[0]], "variant_used": "cpu-fp32", **changes}
    return [first, first.model_copy(update=second)]


@pytest.fixture
def store(tmp_path: Path) -> ResultsStore:
    return ResultsStore(f"sqlite:///{tmp_path}/results.sqlite")


def test_newest_measurement_of_the_same_is_taken_whole(store: ResultsStore) -> None:
    store.save(*pair(50, "old"), *pair(10, "new"))
    assert [each.id for each in find_measured(store, ASKED)] == ["newa", "newb"]


@pytest.mark.parametrize(
    "changes",
    [
        {"verdict": Inconclusive(reason="few")},
        {"unfinished": "it was lost"},
        {"manifest_sha256": "cd" * 32},
        {"preset": "quick"},
        {"device": "pi4"},
        {"unused": [Unused(variant="cpu-fp32", stage="failed", reason="it crashed")]},
        {"tuned": []},
        {"sweep": []},
        {"runs": example_report().runs[:3]},
    ],
)
def test_measurement_of_which_a_variant_is_not_as_asked_is_not_taken(
    store: ResultsStore, changes: dict[str, Any]
) -> None:
    store.save(*pair(10, **changes))
    assert find_measured(store, ASKED) == []


def test_measurement_that_is_older_or_of_another_scenario_is_not_taken(
    store: ResultsStore,
) -> None:
    store.save(*pair(90))
    assert find_measured(store, ASKED) == []
    store.save(*pair(10))
    assert find_measured(store, replace(ASKED, scenario=Scenario(name="offline"))) == []
    assert len(find_measured(store, ASKED)) == 2


def test_variants_without_a_report_are_told_of_again() -> None:
    passed = Unused(variant="cpu-fp32", stage="passed over", reason="it does not fit")
    built = Unused(variant="cpu-int4-weight", stage="failed", reason="nothing to quantize")
    assert list_out(example_report(unused=[built, passed])) == [passed]


def test_report_of_one_variant_alone_is_not_taken(store: ResultsStore) -> None:
    store.save(example_report(created=format_time(datetime.now(UTC))))
    assert find_measured(store, ASKED) == []

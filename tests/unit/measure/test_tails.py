"""What a comparison says where runs were interrupted, and where others took the processor."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from edgepack.devices.inventory import Device, LocalEntry
from edgepack.measure.compare import comparing
from edgepack.measure.compare.comparing import CompareQuestion, compare
from edgepack.records.comparison import Comparison, Side
from edgepack.records.run import ProcessRun, Selection

from tests.support.reports.example_report import (
    example_facts,
    example_placement,
    example_run,
    interrupted_run,
)

DEVICE = Device("here", LocalEntry(transport="local", target="linux-x86-64"))


def side(runs: list[ProcessRun]) -> Side:
    return Side(
        bundle="b",
        manifest_sha256="0" * 64,
        bundle_bytes=1,
        variant="cpu-int8-static",
        unused=[],
        placement=example_placement(),
        runs=runs,
        min_sqnr_db=20.0,
        reasons=[],
    )


def compared(
    monkeypatch: pytest.MonkeyPatch,
    base: list[ProcessRun],
    candidate: list[ProcessRun],
    margins: Mapping[str, float],
) -> Comparison:
    """Compare runs as if they had been measured on one device."""
    selection = Selection(variant="cpu-int8-static", unused=[], device=example_facts())
    found = comparing._Found(DEVICE, selection, side(base), side(candidate), "")
    monkeypatch.setattr(comparing, "_compare_on_all", lambda *_: [found])
    return compare(CompareQuestion(Path("c"), base=Path("b"), margins=margins), [DEVICE])


def runs_of(count: int, scale: float = 1.0, *, times: int = 0) -> list[ProcessRun]:
    """Return runs that differ by a thousandth; with ``times``, so many inferences interrupted."""
    medians = [1_000_000 * scale * (1 + 0.001 * (number % 3)) for number in range(count)]
    return [
        example_run(latencies_ns=[50_000_000] * times + [int(each)] * (200 - times))
        for each in medians
    ]


BOTH = {"p50": 0.03, "p90": 0.05}


def test_comparison_when_runs_are_interrupted_is_not_judged_by_p90(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    quiet = compared(monkeypatch, runs_of(6), runs_of(6), BOTH)
    assert quiet.outcome == "PASS"
    found = compared(monkeypatch, runs_of(6), runs_of(6, times=6), BOTH).devices[0]
    assert {each.name: each.outcome for each in found.metrics} == {
        "p50": "PASS",
        "p90": "INCONCLUSIVE",
    }
    assert found.outcome == "INCONCLUSIVE"
    (reason,) = found.reasons
    assert reason.startswith("candidate: p99 is 50 ms, more than 10 times the p50")


def test_comparison_when_runs_are_interrupted_fails_by_p50_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slower = runs_of(6, 1.2, times=30)  # of which p90 is 50 ms
    found = compared(monkeypatch, runs_of(6), slower, BOTH).devices[0]
    assert [each.outcome for each in found.metrics] == ["FAIL", "INCONCLUSIVE"]
    assert found.outcome == "FAIL"
    slower_tail = runs_of(6, times=30)
    found = compared(monkeypatch, runs_of(6), slower_tail, BOTH).devices[0]
    assert found.outcome == "INCONCLUSIVE"


def test_comparison_of_p50_alone_does_not_mind_interrupted_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = compared(monkeypatch, runs_of(6), [interrupted_run()] * 6, {"p50": 0.03})
    assert (found.outcome, found.devices[0].reasons) == ("PASS", [])

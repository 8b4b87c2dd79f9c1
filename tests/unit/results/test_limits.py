"""Limits against what a device measured: met, missed, not decided, and what else would do."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
from edgepack.base.schema import NotMeasured
from edgepack.errors import InconclusiveError, LimitError
from edgepack.project.limits import Limits
from edgepack.records.run import Creation, RunReport, Scenario, Valid
from edgepack.results.limits import judge_limits, load_others, require_limits, require_measured
from edgepack.results.page.html import write_html
from edgepack.results.page.table import list_report_rows
from edgepack.results.store.store import ResultsStore
from edgepack.results.summary import summarize

from tests.support.reports.example_report import (
    example_accuracy,
    example_phases,
    example_report,
    example_run,
    interrupted_run,
)

START = Creation(cold_ns=[700_000_000, 900_000_000], warm_ns=[300_000_000, 310_000_000])


def limited(limits: Limits, **changes: Any) -> RunReport:
    return example_report(limits=limits, start=START, **changes)


def judge(limits: Limits, **changes: Any) -> bool | None:
    (found,) = judge_limits(limited(limits, **changes))
    return found.is_met


def test_limits_are_judged_by_what_was_measured_in_their_units() -> None:
    report = limited(Limits())
    summary = summarize(report)
    hottest = max(
        value
        for run in report.runs
        for sample in run.sampling.samples
        for value in sample.temperatures_c.values()
    )
    found = {
        "metric_drop": report.variants[0].accuracy.drop,
        "size_mb": 0.31,
        "p50_ms": summary.p50_ms,
        "p99_ms": summary.p99_ms,
        "predict_ms": summary.predict_ms,
        "first_ms": 800.0,
        "load_ms": 210.0,
        "memory_mb": (52 << 20) / 1e6,
        "energy_mj": summary.energy_mj,
        "temperature_c": hottest,
    }
    for name, value in found.items():
        assert judge(Limits(**{name: value * 1.001})) is True, name
        assert judge(Limits(**{name: value * 0.999})) is False, name


def test_limits_that_are_least_values_are_met_by_larger_ones() -> None:
    assert judge(Limits(metric_at_least=0.9833)) is True
    assert judge(Limits(metric_at_least=0.9834)) is False
    assert judge(Limits(min_sqnr_db=24.3)) is True
    assert judge(Limits(min_sqnr_db=24.4)) is False


def test_limit_of_loading_is_about_warm_files_where_the_device_cannot_drop_them() -> None:
    kept = Creation(cold_ns=NotMeasured(reason="it stayed"), warm_ns=[80_000_000])
    warm = summarize(limited(Limits(), creation=kept)).session_create_ms
    assert judge(Limits(load_ms=warm), creation=kept) is True
    assert judge(Limits(load_ms=warm - 1), creation=kept) is False


def test_limit_when_its_value_is_no_number_is_missed() -> None:
    report = limited(Limits(metric_at_least=0.1))
    facts = report.variants[0].model_copy(update={"accuracy": example_accuracy(math.nan, 20.0)})
    assert judge(Limits(metric_at_least=0.1), variants=[facts, report.variants[1]]) is False
    assert judge(Limits(metric_at_most=9.0), variants=[facts, report.variants[1]]) is False


def test_limit_of_the_tail_is_not_decided_where_something_interrupted_the_model() -> None:
    runs = [interrupted_run(seed) for seed in range(5)]
    tail = "something interrupted it"
    report = limited(Limits(p99_ms=1.0, p50_ms=0.1), runs=runs, heavy_tail=tail)
    p99, p50 = sorted(judge_limits(report), key=lambda each: each.name, reverse=True)
    assert (p99.name, p99.is_met, p50.is_met) == ("p99_ms", None, False)
    generous = limited(Limits(p99_ms=1e6), runs=runs, heavy_tail=tail)
    assert judge_limits(generous)[0].is_met is True


def test_limit_of_predict_is_about_the_median_of_whole_calls() -> None:
    phases = example_phases().model_copy(update={"predict_ns": [5_000_000, 9_000_000, 7_000_000]})
    assert judge(Limits(predict_ms=7), phases=phases) is True
    assert judge(Limits(predict_ms=6.99), phases=phases) is False


def test_limit_of_predict_where_no_calls_were_timed_is_inconclusive() -> None:
    why = NotMeasured(reason="there is no app's code")
    assert judge(Limits(predict_ms=1000), phases=why) is None
    with pytest.raises(InconclusiveError, match="predict_ms is at most 1000 ms: unknown") as caught:
        require_limits(limited(Limits(predict_ms=1000), phases=why))
    assert caught.value.hint.endswith("devices: {pi5-a: {limits: {predict_ms: null}}}")


def test_limit_that_is_missed_ends_with_each_and_the_variant_that_meets_all(
    tmp_path: Path,
) -> None:
    store = ResultsStore(f"sqlite:///{tmp_path}/results.sqlite")
    p50_ms = summarize(example_report()).p50_ms
    slow = limited(Limits(p50_ms=p50_ms / 2, size_mb=0.1, memory_mb=900))
    assert load_others(store, slow) == []
    with pytest.raises(LimitError) as caught:
        require_limits(slow)
    assert caught.value.problem == (
        "cpu-int8-static misses limits: size_mb is 0.31 of at most 0.1 MB;"
        f" p50_ms is {p50_ms:.4g} of at most {p50_ms / 2:.4g} ms"
    )
    assert caught.value.hint.startswith("measure the other variants: --variant all")

    fast_runs = [example_run(seed).model_copy(update={"latencies_ns": [900_000] * 200})
                 for seed in range(5)]  # fmt: skip
    small = slow.variants[1].model_copy(update={"model_bytes": 90_000})
    fast = limited(
        Limits(),
        id="fast",
        variant_used="cpu-fp32",
        runs=fast_runs,
        variants=[slow.variants[0], small],
    )
    store.save(fast, limited(Limits(), id="elsewhere", device="pi4", variant_used="cpu-fp32"))
    older = fast.model_copy(update={"id": "older", "manifest_sha256": "cd" * 32})
    offline = fast.model_copy(update={"id": "offline", "scenario": Scenario(name="offline")})
    store.save(
        *(each.model_copy(update={"created": "2027-01-01T00:00:00Z"}) for each in (older, offline))
    )
    store.save(slow)
    others = load_others(store, slow)
    assert [each.id for each in others] == ["fast"]
    with pytest.raises(LimitError) as caught:
        require_limits(slow, others)
    assert caught.value.hint.startswith(
        "cpu-fp32 met all limits there, with a p50 of 0.9 ms (fast)"
    )
    near = [fast.model_copy(update={"variants": slow.variants})]
    with pytest.raises(LimitError) as caught:
        require_limits(slow, near)
    assert caught.value.hint.startswith(
        "of the 2 variants measured there cpu-int8-static is nearest"
    )


def test_limit_that_no_sensor_tells_of_is_inconclusive() -> None:
    runs = [
        run.model_copy(update={"energy": NotMeasured(reason="no counter")})
        for run in example_report().runs
    ]
    report = limited(Limits(energy_mj=5, p50_ms=1e6), runs=runs, verdict=Valid())
    with pytest.raises(InconclusiveError) as caught:
        require_limits(report)
    assert "energy_mj is at most 5 mJ: unknown (no counter)" in caught.value.problem
    assert "devices: {pi5-a: {limits: {energy_mj: null}}}" in caught.value.hint
    few = limited(Limits(p99_ms=1e6), runs=report.runs[:1], verdict=Valid())
    with pytest.raises(InconclusiveError) as caught:
        require_limits(few)
    assert caught.value.hint.startswith("measure longer")
    rows = dict(list_report_rows(report))
    assert rows["limit energy_mj"] == "at most 5 mJ: unknown (no counter)"
    assert rows["limit p50_ms"].endswith("of at most 1e+06 ms: met")


def test_report_without_limits_is_written_as_it_was() -> None:
    assert "limits" not in example_report().model_dump()
    require_limits(example_report())
    again = RunReport.model_validate_json(limited(Limits(p50_ms=3)).model_dump_json())
    assert again.limits == Limits(p50_ms=3)


def test_page_shows_each_limit_as_it_was_judged(tmp_path: Path) -> None:
    unknown = {"energy": NotMeasured(reason="no counter")}
    runs = [run.model_copy(update=unknown) for run in example_report().runs]
    report = limited(Limits(p50_ms=1, size_mb=5, energy_mj=3), runs=runs)
    text = write_html([report], tmp_path / "r.html").read_text()
    told = re.findall(r'<th scope="row">(\w+)</th><td>[^<]*</td><td class="(\w+)">([\w ]+)', text)
    assert told == [
        ("size_mb", "less", "met"),
        ("p50_ms", "more", "missed"),
        ("energy_mj", "soft", "not decided"),
    ]


def test_release_that_was_not_measured_or_misses_limits_on_a_device_is_refused(
    tmp_path: Path,
) -> None:
    store = ResultsStore(f"sqlite:///{tmp_path}/results.sqlite")
    p50_ms = summarize(example_report()).p50_ms
    release = example_report().manifest_sha256
    with pytest.raises(InconclusiveError, match="no VALID benchmark of the release abababababab"):
        require_measured(store, release)
    fast, slow = (limited(Limits(p50_ms=p50_ms * factor)) for factor in (2, 0.5))
    store.save(fast)
    require_measured(store, release)
    with pytest.raises(InconclusiveError, match="no VALID benchmark"):
        require_measured(store, "cd" * 32)
    store.save(slow.model_copy(update={"id": "other", "device": "pi5-b"}))
    with pytest.raises(LimitError, match="misses limits"):
        require_measured(store, release)
    later = {"id": "later", "device": "pi5-b", "created": "2026-11-22T09:30:12Z"}
    store.save(fast.model_copy(update=later))
    require_measured(store, release)

"""The results store, in SQLite and in PostgreSQL alike."""

from __future__ import annotations

import json
import zlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from edgepack.base.schema import NotMeasured
from edgepack.base.statistics import log_t_interval, median, percentile
from edgepack.errors import BundleError, UsageError
from edgepack.records.run import Inconclusive, Invalid, Valid, Verdict
from edgepack.results.store.changes import find_changes
from edgepack.results.store.database import open_database
from edgepack.results.store.documents import Report
from edgepack.results.store.labels import explain_incomparable
from edgepack.results.store.rows import make_row
from edgepack.results.store.schema import documents, runs
from edgepack.results.store.store import ResultsStore, RunFilter

from tests.support.reports.example_report import example_evaluation, example_facts, example_report


def imported_report(**changes: Any) -> Report:
    from edgepack.records.run import ImportedReport

    return ImportedReport(
        schema_version=1,
        id="imported-1",
        created="2026-11-20T10:00:00+01:00",
        tool="trtexec",
        tool_version="10.3",
        device="orin",
        model="digits.onnx",
        log="trtexec.log",
        log_sha256="ef" * 32,
        provider=NotMeasured(reason="the log does not say it"),
        latencies_ns=[1_000_000, 2_000_000],
        statistics_ns={"p50": 1.5e6, "mean": 1.5e6},
        throughput=600.0,
        peak_bytes=NotMeasured(reason="the log does not say it"),
    ).model_copy(update=changes)


@pytest.mark.parametrize(
    "verdict", [Valid(), Invalid(reasons=["too hot"]), Inconclusive(reason="too short")]
)
def test_report_when_saved_is_loaded_as_it_was(store: ResultsStore, verdict: Verdict) -> None:
    report = example_report(verdict=verdict)
    store.save(report)
    assert store.load(report.id) == report
    assert store.rows() == [make_row(report)]


def test_report_when_of_any_kind_is_loaded_as_it_was(store: ResultsStore) -> None:
    reports = [example_report(), example_evaluation(), imported_report()]
    store.save(*reports)
    assert store.load_all([report.id for report in reports]) == reports  # type: ignore[attr-defined]
    assert [row.kind for row in store.rows()] == ["imported", "bench", "evaluation"]


def test_row_when_of_a_benchmark_has_what_its_report_says(store: ResultsStore) -> None:
    report = example_report(project="digits", unfinished="the device went away")
    store.save(report)
    (row,) = store.rows()
    ms = [latency / 1e6 for latency in report.latencies_ns]
    interval = log_t_interval([median(run.latencies_ns) / 1e6 for run in report.runs])
    assert (row.p50_ms, row.p90_ms) == pytest.approx((median(ms), percentile(ms, 90)))
    assert (row.low_ms, row.high_ms) == pytest.approx((interval.low, interval.high))
    assert (row.peak_bytes, row.bundle_bytes, row.canary_ns) == (52 << 20, 1_500_000, 1_010_000)
    assert (row.project, row.device_model) == ("digits", "Raspberry Pi 5 Model B")
    assert (row.runtime, row.verdict, row.unfinished) == ("1.31.1", "VALID", True)


def test_row_when_of_an_evaluation_has_the_metric_and_its_interval(store: ResultsStore) -> None:
    store.save(example_evaluation(interval=(0.96, 0.99), reasons=["nodes ran elsewhere"]))
    (row,) = store.rows(RunFilter(kind="evaluation"))
    assert (row.metric, row.value, row.value_low, row.value_high) == ("top1", 0.9806, 0.96, 0.99)
    assert row.verdict == "INVALID"
    assert row.p50_ms == pytest.approx(10.1795)


def test_row_when_something_was_not_measured_has_none(store: ResultsStore) -> None:
    unknown = NotMeasured(reason="not there")
    facts = example_facts().model_copy(update={"model": unknown})
    store.save(example_report(memory=unknown, canary=unknown, facts=facts))
    (row,) = store.rows()
    assert (row.peak_bytes, row.canary_ns, row.device_model) == (None,) * 3


def test_row_when_the_report_does_not_name_the_project_has_the_bundles(store: ResultsStore) -> None:
    store.save(example_report(id="old", project=""), imported_report())
    assert [row.id for row in store.rows(RunFilter(project="digits"))] == ["old"]
    assert [row.id for row in store.rows(RunFilter(project="digits.onnx"))] == ["imported-1"]
    store.save(imported_report(id="imported-2", model="ssd-mobilenet-v2"))
    assert [row.id for row in store.rows(RunFilter(project="ssd-mobilenet-v2"))] == ["imported-2"]


def test_row_when_a_device_says_what_no_database_holds_is_kept(store: ResultsStore) -> None:
    report = example_report(device="pi\0five", bundle_bytes=10**30)
    store.save(report)
    assert store.load(report.id) == report
    (row,) = store.rows()
    assert (row.device, row.bundle_bytes) == ("pi\ufffdfive", 2**63 - 1)


def test_save_when_the_id_is_there_replaces_the_report(store: ResultsStore) -> None:
    store.save(example_report(), example_report(device="other"))
    store.save(example_report(device="third"))
    assert [row.device for row in store.rows()] == ["third"]
    assert store.load(example_report().id) == example_report(device="third")


DAYS = ("2026-11-20T00:00:00Z", "2026-11-21T00:00:00Z", "2026-11-22T00:00:00Z")


@pytest.fixture
def days(store: ResultsStore) -> ResultsStore:
    """A store with a report of each of three days, on two devices, saved in no order."""
    devices = ("pi5-a", "pi5-b", "pi5-a")
    reports = [
        example_report(id=created[8:10], created=created, device=device)
        for created, device in zip(DAYS, devices, strict=True)
    ]
    store.save(reports[1], reports[2], reports[0])
    return store


ALL = ["20", "21", "22"]
FILTERED = [
    (RunFilter(), ALL),
    (RunFilter(limit=2), ["21", "22"]),
    (RunFilter(device="pi5-a"), ["20", "22"]),
    (RunFilter(device="pi5-a", limit=1), ["22"]),
    (RunFilter(since=datetime(2026, 11, 21, tzinfo=UTC)), ["21", "22"]),
    (RunFilter(since=datetime.fromisoformat("2026-11-21T02:00:00+01:00")), ["22"]),
    (RunFilter(verdict="VALID", target="raspberry-pi", variant="cpu-int8-static"), ALL),
    (RunFilter(device_model="Raspberry Pi 5 Model B", runtime="1.31.1"), ALL),
    (RunFilter(kind="bench", project="digits"), ALL),
    (RunFilter(verdict="INVALID"), []),
    (RunFilter(kind="imported"), []),
    (RunFilter(project="nobody's"), []),
]


def test_rows_when_filtered_are_the_newest_of_those_oldest_first(days: ResultsStore) -> None:
    found = [(wanted, [row.id for row in days.rows(wanted)]) for wanted, _ in FILTERED]
    assert found == FILTERED


def test_prune_when_asked_keeps_the_newest_of_each_place(days: ResultsStore) -> None:
    days.save(
        example_report(id="other-project", project="faces", created=DAYS[0]),
        example_report(id="other-variant", variant_used="cpu-fp32", created=DAYS[0]),
        example_evaluation(id="evaluation", created=DAYS[0]),
    )
    before = days.rows()
    gone = days.prune(1, dry_run=True)
    assert [row.id for row in gone] == ["20"]
    assert days.rows() == before
    assert days.prune(1) == gone
    assert [row for row in before if row not in gone] == days.rows()
    with pytest.raises(UsageError, match="there is no report '20'"):
        days.load("20")
    assert [row.id for row in days.prune(0, "faces")] == ["other-project"]
    assert len(days.prune(0)) == len(before) - 2
    assert days.rows() == []


def test_load_when_there_is_none_says_which_is_near(days: ResultsStore) -> None:
    days.save(example_report(id="20261121T093012Z-a1b2c3"))
    with pytest.raises(UsageError, match="did you mean '20261121T093012Z-a1b2c3'"):
        days.load("20261121T093012Z-a1b2c4")
    with pytest.raises(UsageError, match="edgepack runs list"):
        days.load("nothing like it")


def replace_document(url: str, report: Report, document: bytes) -> None:
    """Put another document where a report's is."""
    with open_database(url).writing() as connection:
        where = documents.c.id == report.id
        connection.execute(documents.update().where(where).values(json=document))


def test_conditions_when_a_report_is_broken_or_nothing_differs_say_why_runs_do_not_compare(
    store: ResultsStore, url: str
) -> None:
    first = example_report(id="first")
    second = example_report(id="second", created="2026-12-01T00:00:00Z")
    store.save(first, second)
    with open_database(url).writing() as connection:  # as if fingerprint() had been another
        connection.execute(runs.update().where(runs.c.id == "first").values(fingerprint="old"))
    (label,) = explain_incomparable(store, store.rows())
    assert label.startswith("first and second do not compare: different versions of edgepack")
    replace_document(url, first, b"broken")
    (label,) = explain_incomparable(store, store.rows())
    assert label.startswith("first and second do not compare: the report cannot be read")
    series, _ = find_changes(store)
    assert "the report cannot be read" in series.restarted[0]


@pytest.mark.parametrize("version", [1, 7, "2", None])
def test_load_when_the_report_is_of_another_schema_version_says_so_and_keeps_it(
    store: ResultsStore, url: str, version: object
) -> None:
    report = example_report()
    store.save(report)
    other = json.dumps({**report.model_dump(mode="json"), "schema_version": version}).encode()
    replace_document(url, report, zlib.compress(other))
    with pytest.raises(BundleError, match=f"schema version {version!r}, this edgepack reads 2"):
        store.load(report.id)
    assert store.documents([report.id]) == {report.id: other}
    assert [row.id for row in store.rows()] == [report.id]


@pytest.mark.parametrize(
    "document", [b"", b"\xff\xfe\x00", zlib.compress(b"[]"), zlib.compress(b"[" * 100_000)]
)
def test_load_when_the_document_is_broken_says_which(
    store: ResultsStore, url: str, document: bytes
) -> None:
    report = example_report()
    store.save(report, example_report(id="whole"))
    replace_document(url, report, document)
    with pytest.raises(BundleError, match=f"{report.id} in .*the report cannot be read"):
        store.load(report.id)
    assert store.load("whole") == example_report(id="whole")


def test_add_when_one_of_the_files_is_broken_keeps_none(
    store: ResultsStore, tmp_path: Path
) -> None:
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(example_report().model_dump_json())
    document = json.loads(good.read_text())
    document["runs"][1]["latencies_ns"][3] = "fast"
    bad.write_text(json.dumps(document))
    with pytest.raises(BundleError, match=r"bad.json: .*runs\.1\.latencies_ns\.3"):
        store.add([good, bad])
    with pytest.raises(BundleError, match="No such file"):
        store.add([good, tmp_path / "absent.json"])
    assert store.rows() == []

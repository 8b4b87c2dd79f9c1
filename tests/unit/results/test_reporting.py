"""``edgepack report``: the page about what the store keeps."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from edgepack.base.schema import NotMeasured
from edgepack.errors import UsageError
from edgepack.records.run import ImportedReport
from edgepack.results.page.reporting import report
from edgepack.results.store.store import ResultsStore, RunFilter

from tests.support.reports.example_history import farm, farm_logs
from tests.support.reports.example_report import example_evaluation, varied_reports


@pytest.fixture
def store(tmp_path: Path) -> ResultsStore:
    """A store of 24 runs: two of each of 12 devices and variants, a day apart."""
    made = ResultsStore(f"sqlite:///{tmp_path / 'results.sqlite'}")
    made.save(*varied_reports(24, samples=60))
    return made


def ids_on(path: Path) -> list[str]:
    return re.findall(r"run (202611\S+Z-\w+)</p>", path.read_text(encoding="utf-8"))


def test_report_when_nothing_is_asked_for_has_the_newest_runs(
    store: ResultsStore, tmp_path: Path
) -> None:
    page = report(tmp_path / "a.html", store, last=5)
    assert (page.shown, page.found) == (5, 24)
    newest = sorted(row.id for row in store.rows())[-5:]
    assert ids_on(page.path) == newest[::-1]


def test_report_when_many_devices_were_measured_has_the_newest_run_of_each(tmp_path: Path) -> None:
    store = ResultsStore(f"sqlite:///{tmp_path / 'results.sqlite'}")
    store.save(*farm(farm_logs(1, 130, 2)))
    page = report(tmp_path / "a.html", store)
    assert (page.shown, page.found) == (130, 260)
    assert "pi5-129" in page.path.read_text(encoding="utf-8")


def test_report_when_a_device_is_asked_for_has_its_runs_alone(
    store: ResultsStore, tmp_path: Path
) -> None:
    page = report(tmp_path / "a.html", store, wanted=RunFilter(device="orin"))
    assert sorted(ids_on(page.path)) == [row.id for row in store.rows(RunFilter(device="orin"))]


def test_report_when_runs_are_named_has_them_compared_with_the_last_before(
    store: ResultsStore, tmp_path: Path
) -> None:
    first, last = store.rows()[0], store.rows()[-1]
    page = report(tmp_path / "a.html", store, runs=[last.id])
    assert ids_on(page.path) == [last.id]
    assert "Since the last run, of 2026-11-01" in page.path.read_text(encoding="utf-8")
    page = report(tmp_path / "a.html", store, runs=[first.id])
    assert "Since the last run, of" not in page.path.read_text(encoding="utf-8")


def test_report_when_a_shown_variant_was_evaluated_shows_the_newest_evaluation(
    store: ResultsStore, tmp_path: Path
) -> None:
    shown = varied_reports(24, samples=60)[-1]
    same = {"device": shown.device, "variant": shown.variant_used}
    evaluation = example_evaluation(**same, manifest_sha256=shown.manifest_sha256)
    older = evaluation.model_copy(update={"id": "older", "created": "2026-11-01T00:00:00Z"})
    other = evaluation.model_copy(update={"id": "other", "device": "elsewhere"})
    store.save(evaluation, older, other)
    text = report(tmp_path / "a.html", store, last=2).path.read_text(encoding="utf-8")
    section = text.partition('id="evaluations"')[2].partition("</section>")[0]
    assert section.count('class="name"') == 1
    assert "2026-11-21" in section


def test_report_when_the_store_is_empty_says_how_to_make_a_run(tmp_path: Path) -> None:
    empty = ResultsStore(f"sqlite:///{tmp_path / 'empty.sqlite'}")
    with pytest.raises(UsageError, match="no such run") as caught:
        report(tmp_path / "a.html", empty)
    assert "edgepack bench" in caught.value.hint
    assert not (tmp_path / "a.html").exists()


def test_report_when_a_run_is_named_that_is_not_there_writes_nothing(
    store: ResultsStore, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="no report 'nothing'"):
        report(tmp_path / "a.html", store, runs=["nothing"])
    assert not (tmp_path / "a.html").exists()


def test_report_when_an_imported_log_is_named_says_where_it_is_shown(
    store: ResultsStore, tmp_path: Path
) -> None:
    unknown = NotMeasured(reason="the log does not say")
    store.save(
        ImportedReport(
            schema_version=1,
            id="log-1",
            created="2026-11-21T09:30:12Z",
            tool="trtexec",
            tool_version=unknown,
            device="orin",
            model="m",
            log="trtexec.log",
            log_sha256="ab" * 32,
            provider=unknown,
            latencies_ns=unknown,
            statistics_ns={"p50": 1.0},
            throughput=unknown,
            peak_bytes=unknown,
        )
    )
    with pytest.raises(UsageError, match="another tool's log") as caught:
        report(tmp_path / "a.html", store, runs=["log-1"])
    assert caught.value.hint == "edgepack runs show log-1"

"""``edgepack report``: one page about stored runs."""

from __future__ import annotations

import pytest
from edgepack.cli.main import run
from edgepack.results.store.store import ResultsStore

from tests.support.reports.example_report import varied_reports


@pytest.fixture
def reports():
    """Twelve runs of four devices in the user's store."""
    made = varied_reports(12, samples=60)
    ResultsStore().save(*made)
    return made


def written(capsys, *arguments: str) -> str:
    assert run(["report", *arguments]) == 0
    return capsys.readouterr().out.strip()


def test_report_when_a_device_is_named_writes_a_page_of_its_runs(reports, tmp_path, capsys):
    path = tmp_path / "new" / "page.html"
    assert written(capsys, "--device", "orin", "--html", str(path)) == str(path)
    page = path.read_text(encoding="utf-8")
    assert all((each.id in page) == (each.device == "orin") for each in reports)


def test_report_when_there_are_more_runs_says_how_to_see_them(reports, tmp_path, capsys):
    path = tmp_path / "page.html"
    said = written(capsys, "--last", "3", "--html", str(path))
    assert said == f"{path}, the newest 3 of 12 runs: --last shows more"


def test_report_when_runs_are_named_writes_these(reports, tmp_path, capsys):
    path = tmp_path / "page.html"
    wanted = [reports[4].id, reports[7].id]
    assert written(capsys, *wanted, "--html", str(path)) == str(path)
    page = path.read_text(encoding="utf-8")
    assert [each.id for each in reports if each.id in page] == wanted


def test_report_when_runs_are_named_and_chosen_is_refused(reports, capsys):
    assert run(["report", reports[0].id, "--device", "orin"]) == 2
    assert "leave one of them out" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["--project", "faces"]])
def test_report_when_nothing_is_stored_says_how_to_make_a_run(tmp_path, capsys, arguments):
    path = tmp_path / "page.html"
    assert run(["report", *arguments, "--html", str(path)]) == 2
    said = capsys.readouterr().err
    assert "no such run" in said
    assert "edgepack bench BUNDLE --device NAME" in said
    assert not path.exists()


def test_report_when_the_file_cannot_be_written_says_so(reports, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert run(["report", "--html", str(tmp_path / "file" / "page.html")]) == 5
    assert "cannot write the page" in capsys.readouterr().err

"""Reports as files."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from edgepack.bench.report import Inconclusive, Invalid, Valid, Verdict
from edgepack.errors import BundleError, ToolError, UsageError
from edgepack.results.store import list_reports, load_report, reports_dir, save_report
from example_report import example_report


@pytest.mark.parametrize(
    "verdict", [Valid(), Invalid(reasons=["too hot"]), Inconclusive(reason="too short")]
)
def test_report_survives_the_file(tmp_path: Path, verdict: Verdict) -> None:
    report = example_report(verdict=verdict)
    path = save_report(report, tmp_path)
    assert load_report(report.id, tmp_path) == report
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_reports_lie_in_the_users_data_folder(own_home: Path) -> None:
    path = save_report(example_report())
    assert path.parent == reports_dir()
    assert own_home in path.parents


def test_list_reports_is_empty_when_there_is_no_folder(tmp_path: Path) -> None:
    assert list_reports(tmp_path / "absent").reports == []


def test_list_reports_shows_the_others_when_files_are_broken(tmp_path: Path) -> None:
    late = example_report(id="late", created="2026-11-22T00:00:00Z")
    early = example_report(id="zz-early", created="2026-11-20T00:00:00Z")
    for report in (late, early):
        save_report(report, tmp_path)
    (tmp_path / "cut.json").write_text(save_report(late, tmp_path).read_text()[:200])
    (tmp_path / "deep.json").write_text("[" * 100_000)
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "list.json").write_text("[]")
    listing = list_reports(tmp_path)
    assert [report.id for report in listing.reports] == ["zz-early", "late"]
    assert len(listing.broken) == 4


def test_load_report_names_the_versions_when_the_schema_is_another(tmp_path: Path) -> None:
    path = save_report(example_report(), tmp_path)
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "schema_version": 7}))
    with pytest.raises(BundleError, match="schema version 7, this edgepack reads 1"):
        load_report(path.stem, tmp_path)


def test_load_report_names_the_key_when_one_is_wrong(tmp_path: Path) -> None:
    path = save_report(example_report(), tmp_path)
    document = json.loads(path.read_text())
    document["runs"][1]["latencies_ns"][3] = "fast"
    path.write_text(json.dumps(document))
    with pytest.raises(BundleError, match=r"runs\.1\.latencies_ns\.3"):
        load_report(path.stem, tmp_path)


def test_load_report_says_which_is_near_when_there_is_none(tmp_path: Path) -> None:
    save_report(example_report(id="20261121T093012Z-a1b2c3"), tmp_path)
    with pytest.raises(UsageError, match="20261121T093012Z-a1b2c3"):
        load_report("20261121T093012Z-a1b2c4", tmp_path)


def test_save_report_leaves_the_old_file_when_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = example_report()
    save_report(report, tmp_path)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ToolError, match="No space left"):
        save_report(example_report(device="other"), tmp_path)
    monkeypatch.undo()
    assert load_report(report.id, tmp_path) == report
    assert len(list(tmp_path.iterdir())) == 1

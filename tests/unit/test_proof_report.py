"""The one report of all proofs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.reports.proof_report import VARIABLE, Check, main, report
from tests.support.slow_cases import slow_after

ONE_TEST = "def test_one(): pass\ndef test_two(): assert {two}\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "reports"))
    return tmp_path / "reports"


def lines_of(folder: Path, capsys: pytest.CaptureFixture[str], code: int) -> list[list[str]]:
    assert main(folder) == code
    return [line.split() for line in capsys.readouterr().out.splitlines()]


def test_report_when_all_holds_has_a_line_for_each_proof(folder, capsys):
    report("lab", [Check("boots"), Check("pushes <&>")], 12.4)
    report("mobile", [], 0.2, not_run="there is no JDK")
    assert lines_of(folder, capsys, 0)[1:] == [
        ["lab", "2", "0", "0", "12", "s"],
        ["mobile", "0", "0", "1", "0", "s"],
    ]


def test_report_when_a_check_failed_names_it_and_what_was_found(folder, capsys):
    report("lab", [Check("boots"), Check("pushes", 'exit code 6, not "0"')], 3)
    table = lines_of(folder, capsys, 1)
    assert table[1] == ["lab", "2", "1", "0", "3", "s"]
    assert " ".join(table[2]) == 'lab: pushes: exit code 6, not "0"'


def test_report_when_nothing_was_written_is_a_failure(tmp_path, capsys):
    assert main(tmp_path) == 1


def test_report_when_no_folder_is_named_is_not_written(tmp_path, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    report("lab", [Check("boots")], 1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("two", "failed"), slow_after(1, [("0", 1), ("1", 0)]))
def test_report_when_pytest_wrote_it_is_read_too(tmp_path, capsys, two, failed):
    (tmp_path / "test_it.py").write_text(ONE_TEST.format(two=two))
    argv = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", "test_it.py"]
    subprocess.run(
        [*argv, "--rootdir=.", f"--junitxml={tmp_path}/tests.xml"],
        cwd=tmp_path,
        env={**os.environ, "PYTEST_ADDOPTS": ""},
        capture_output=True,
        check=False,
        timeout=60,
    )
    table = lines_of(tmp_path, capsys, failed)
    assert table[1][:4] == ["tests", "2", str(failed), "0"]

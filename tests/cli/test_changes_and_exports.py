"""``edgepack runs changes``, ``runs export`` and ``runs import`` of other tools' logs."""

from __future__ import annotations

import csv
import json
import math

import numpy as np
import pytest
from edgepack.cli.main import run
from edgepack.results.store.store import ResultsStore

from tests.support.reports.example_history import farm, farm_logs, history, noisy
from tests.support.reports.example_report import example_report


def stored(medians, canary=None, **changes):
    ResultsStore().save(*history(medians, canary, **changes))


def test_runs_changes_when_a_model_became_slower_says_since_when(capsys):
    stored(noisy(1, 25, step=0.1, at=20), noisy(2, 25))
    assert run(["runs", "changes"]) == 0
    text = capsys.readouterr().out
    assert "slower since run-020" in text
    assert "the canary did not move with it" in text


def test_runs_changes_gate_when_the_model_is_slower_fails_and_says_what_to_do(capsys):
    stored(noisy(1, 25, step=0.1, at=20), noisy(2, 25))
    assert run(["runs", "changes", "--gate"]) == 10
    assert "edgepack compare" in capsys.readouterr().err


def test_runs_changes_gate_when_the_device_is_slower_passes(capsys):
    stored(noisy(1, 25, step=0.1, at=20), noisy(2, 25, step=0.1, at=20))
    assert run(["runs", "changes", "--gate"]) == 0
    assert "the device changed: the canary is" in capsys.readouterr().out


def test_runs_changes_gate_when_the_slowdown_is_old_or_none_passes():
    stored(noisy(1, 40, step=0.1, at=20), noisy(2, 40))
    assert run(["runs", "changes", "--gate", "--last", "30"]) == 10
    assert run(["runs", "changes", "--gate", "--last", "10"]) == 0
    assert run(["runs", "changes", "--gate", "--project", "another"]) == 0


def test_runs_changes_gate_when_the_slowdown_was_before_other_conditions_passes():
    slower = history(noisy(1, 25, step=0.1, at=20), noisy(2, 25))
    facts = example_report().facts.model_copy(update={"onnxruntime": "1.32.0"})
    later = [
        one.model_copy(update={"id": f"b{one.id}", "created": one.created.replace("2026", "2027")})
        for one in history([11.0] * 12, facts=facts)
    ]
    ResultsStore().save(*slower)
    assert run(["runs", "changes", "--gate", "--last", "10"]) == 10
    ResultsStore().save(*later)
    assert run(["runs", "changes", "--gate", "--last", "10"]) == 0


def test_runs_changes_gate_when_the_model_became_faster_passes():
    stored(noisy(1, 25, step=-0.2, at=20), noisy(2, 25))
    assert run(["runs", "changes", "--gate"]) == 0


def stored_farm(canary):
    logs, canaries = farm_logs(1, 12, 15), np.exp(farm_logs(2, 12, 15))
    logs[7, -7:] += math.log(1.5)
    canaries[7, -7:] *= canary
    ResultsStore().save(*farm(logs, canaries))


def test_runs_changes_gate_when_one_device_of_many_is_slow_fails_and_says_which_since_when_and_why(
    capsys,
):
    stored_farm(canary=1.5)
    assert run(["runs", "changes", "--gate"]) == 10
    said = capsys.readouterr()
    for text in (said.out, said.err):
        (line,) = [one for one in text.splitlines() if "pi5-07 is " in one]
        assert "slower than its 11 peers since run-008-07 (2026-01-09), in 7 nights" in line
        assert "the device is slow: its canary is" in line
    assert "11 devices as fast as their peers" in said.out
    assert "edgepack device check" in said.err
    assert run(["runs", "changes", "--gate", "--last", "6"]) == 0
    assert run(["runs", "changes", "--gate", "--last", "7"]) == 10


def test_runs_list_by_device_has_a_line_for_each_the_worst_first(capsys):
    stored_farm(canary=1.0)
    ResultsStore().save(
        example_report(id="evil", device="\x1b[31m", created="2026-01-02T00:00:00Z")
    )
    assert run(["runs", "list", "--by", "device"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 14
    assert lines[0].startswith("pi5-07: 1 run, worst 1")
    assert "ms (raspberry-pi, cpu-int8-static), +4" in lines[0] or ", +5" in lines[0]
    assert "\x1b" not in "".join(lines)
    assert run(["runs", "list", "--by", "variant"]) == 0
    line, _ = capsys.readouterr().out.splitlines()
    assert line.startswith("cpu-int8-static: 13 runs, worst 1")
    assert "(pi5-07, raspberry-pi)" in line


def test_runs_changes_when_json_is_asked_for_has_every_device_the_slow_one_first(capsys):
    stored_farm(canary=1.0)
    assert run(["runs", "changes", "--json"]) == 0
    (series,) = json.loads(capsys.readouterr().out)
    worst, *others = series["units"]
    assert (worst["device"], worst["slow"], worst["blame"]) == ("pi5-07", True, "model")
    assert worst["ratio"]["low"] < worst["ratio"]["estimate"] < worst["ratio"]["high"]
    assert worst["canary"]["estimate"] == pytest.approx(1, abs=0.05)
    assert len(others) == 11


def test_runs_changes_when_json_is_asked_for_has_every_series(capsys):
    stored(noisy(1, 25, step=0.1, at=20))
    assert run(["runs", "changes", "--json"]) == 0
    (series,) = json.loads(capsys.readouterr().out)
    assert series["runs"] == 25
    assert {change["blame"] for change in series["changes"]} == {"unknown"}


def test_runs_changes_when_conditions_changed_says_which(capsys):
    medians = [10.0] * 12
    facts = example_report().facts.model_copy(update={"onnxruntime": "1.32.0"})
    reports = history(medians) + history(medians, facts=facts)
    later = [
        one.model_copy(update={"id": f"b{one.id}", "created": one.created.replace("2026", "2027")})
        for one in reports[12:]
    ]
    ResultsStore().save(*reports[:12], *later)
    assert run(["runs", "changes"]) == 0
    text = capsys.readouterr().out
    assert "not compared with earlier runs; onnxruntime: 1.31.1, then 1.32.0" in text
    assert text.count("no change") == 2


def test_runs_list_when_conditions_differ_says_which_runs_do_not_compare(capsys):
    facts = example_report().facts.model_copy(update={"onnxruntime": "1.32.0"})
    first, second, _ = history([10.0] * 3)
    third = history([10.0] * 3, facts=facts)[2]
    ResultsStore().save(first, second, third)
    assert run(["runs", "list"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "run-001 and run-002 do not compare: onnxruntime: 1.31.1, then 1.32.0" in text
    assert text.count("do not compare") == 1


def test_runs_changes_when_there_is_nothing_says_so(capsys):
    assert run(["runs", "changes", "--gate"]) == 0
    assert "no benchmarks" in capsys.readouterr().out


def test_runs_export_when_asked_writes_the_wanted_runs(tmp_path, capsys):
    stored([10.0] * 3)
    ResultsStore().save(example_report(id="other", device="pi5-b"))
    out = tmp_path / "runs.csv"
    assert run(["runs", "export", "-o", str(out), "--device", "pi5-a"]) == 0
    assert f"3 runs in {out}" in capsys.readouterr().out
    with out.open() as lines:
        assert [line["id"] for line in csv.DictReader(lines)] == ["run-000", "run-001", "run-002"]
    assert run(["runs", "export", "other", "-o", str(out), "--format", "bencher"]) == 0
    assert list(json.loads(out.read_text())) == ["digits/raspberry-pi/cpu-int8-static"]
    assert run(["runs", "export", "absent", "-o", str(out)]) == 2


@pytest.mark.parametrize("tool", [[], ["--tool", "litert_benchmark_model"]])
def test_runs_import_when_given_a_log_keeps_it_beside_reports(tmp_path, capsys, tool):
    log = tmp_path / "net.log"
    log.write_text(
        "Graph: [net.tflite]\nInference timings in us: Init: 5500, First inference: 9000,"
        " Warmup (avg): 4500.5, Inference (avg): 4012.25\n"
    )
    assert run(["runs", "import", str(log)]) == 2
    assert "--device NAME" in capsys.readouterr().err
    assert run(["runs", "import", str(log), "--device", "phone", *tool]) == 0
    (row,) = ResultsStore().rows()
    assert (row.kind, row.device, row.bundle) == ("imported", "phone", "net")
    log.write_text("no log\n")
    assert run(["runs", "import", str(log), "--device", "phone"]) == 7
    assert "--tool" in capsys.readouterr().err


def test_runs_export_when_no_run_fits_leaves_the_file_that_was_there(tmp_path, capsys):
    stored(noisy(1, 2))
    out = tmp_path / "runs.csv"
    out.write_text("before")
    assert run(["runs", "export", "--project", "other", "-o", str(out)]) == 2
    assert "edgepack runs list" in capsys.readouterr().err
    assert out.read_text() == "before"


def test_runs_import_when_the_file_is_no_report_says_so_before_it_asks_for_the_device(
    tmp_path, capsys
):
    path = tmp_path / "notes.txt"
    assert run(["runs", "import", str(path)]) == 2
    assert "there is no such file" in capsys.readouterr().err
    path.write_text("nothing of the kind")
    assert run(["runs", "import", str(path)]) != 0
    assert "--device" not in capsys.readouterr().err

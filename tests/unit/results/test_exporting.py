"""Stored runs in the formats of other tools."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from edgepack.base.statistics import log_t_interval, median
from edgepack.errors import BundleError, ToolError, UsageError
from edgepack.records.run import Invalid, Scenario
from edgepack.results.store.documents import parse_report
from edgepack.results.store.exporting import export_runs, find_format, list_row_columns
from edgepack.results.store.importing import can_be_log
from edgepack.results.store.rows import make_row
from edgepack.results.store.store import ResultsStore

from tests.support.reports.example_history import history, noisy
from tests.support.reports.example_report import (
    example_evaluation,
    example_report,
    example_run,
    interrupted_run,
)

FAST = example_report(id="fast", created="2026-11-21T09:30:12Z")
SLOW = example_report(
    id="slow",
    created="2026-11-22T09:30:12Z",
    runs=[example_run(seed, latencies_ns=[20_000_000 + seed]) for seed in range(3)],
)
BROKEN = example_report(
    id="broken", created="2026-11-23T09:30:12Z", verdict=Invalid(reasons=["throttled"])
)
EVALUATION = example_evaluation(id="evaluation")


@pytest.fixture
def store(tmp_path):
    made = ResultsStore(f"sqlite:///{tmp_path}/results.sqlite")
    made.save(FAST, SLOW, BROKEN, EVALUATION)
    return made


@pytest.fixture
def export(store, tmp_path):
    def exported(*ids, kind, **options):
        path = tmp_path / "out"
        export_runs(store, ids, path, kind, **options)
        return path.read_bytes()

    return exported


def test_json_when_exported_has_the_reports_whole(export):
    documents = json.loads(export("slow", "evaluation", kind="json"))
    again = [parse_report(json.dumps(one).encode(), "here") for one in documents]
    assert again == [SLOW, EVALUATION]


def test_json_when_imported_again_is_the_same_store(export, store, tmp_path):
    export("slow", "evaluation", kind="json")
    other = ResultsStore(f"sqlite:///{tmp_path}/other.sqlite")
    assert not can_be_log(tmp_path / "out")
    assert other.add([tmp_path / "out"]) == [SLOW, EVALUATION]
    assert other.documents(["slow"]).keys() == {"slow"}
    assert other.load("slow") == SLOW


def test_json_when_it_is_cut_off_is_not_imported(export, tmp_path):
    text = export("slow", kind="json")
    (tmp_path / "out").write_bytes(text[: len(text) // 2])
    with pytest.raises(BundleError, match="list of reports cannot be read"):
        ResultsStore(f"sqlite:///{tmp_path}/other.sqlite").add([tmp_path / "out"])


def test_csv_when_exported_has_a_line_for_each_run_with_its_verdict(export):
    lines = list(
        csv.DictReader(io.StringIO(export("fast", "broken", "evaluation", kind="csv").decode()))
    )
    assert [(line["id"], line["verdict"]) for line in lines][:2] == [
        ("fast", "VALID"),
        ("broken", "INVALID"),
    ]
    assert list(lines[0]) == list(list_row_columns())
    assert float(lines[0]["p50_ms"]) == pytest.approx(median(FAST.latencies_ns) / 1e6)
    assert lines[2]["metric"] == EVALUATION.measured.metric
    assert lines[2]["peak_bytes"] == ""


def test_csv_of_samples_when_exported_has_a_line_for_each_query(export):
    lines = list(csv.DictReader(io.StringIO(export("slow", kind="csv", samples=True).decode())))
    assert [(line["process_run"], line["query"], line["latency_ns"]) for line in lines] == [
        ("1", "1", "20000000"),
        ("2", "1", "20000001"),
        ("3", "1", "20000002"),
    ]


def test_parquet_when_exported_has_types_and_nulls(export, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    export("fast", "evaluation", kind="parquet")
    table = parquet.read_table(tmp_path / "out")
    assert table.column_names == list(list_row_columns())
    assert [str(table.schema.field(name).type) for name in ("id", "p50_ms", "peak_bytes")] == [
        "string",
        "double",
        "int64",
    ]
    first, second = table.to_pylist()
    assert first["p50_ms"] == make_row(FAST).p50_ms
    assert first["unfinished"] is False
    assert second["peak_bytes"] is None
    export("fast", kind="parquet", samples=True)
    assert parquet.read_table(tmp_path / "out")["latency_ns"].to_pylist() == FAST.latencies_ns


def test_parquet_when_pyarrow_is_missing_says_what_to_install(export, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ToolError, match="needs pyarrow") as raised:
        export("fast", kind="parquet")
    assert "pip install 'edgepack[parquet]'" in raised.value.hint
    assert not (tmp_path / "out").exists()


def test_bencher_when_exported_has_the_newest_valid_run_with_intervals(export):
    (name, measures), *others = json.loads(
        export("slow", "fast", "broken", "evaluation", kind="bencher")
    ).items()
    assert not others
    assert name == "digits/raspberry-pi/cpu-int8-static"
    expected = log_t_interval([20_000_000, 20_000_001, 20_000_002])
    assert measures["latency"] == pytest.approx(
        {
            "value": expected.estimate,
            "lower_value": expected.low,
            "upper_value": expected.high,
        }
    )
    assert measures["file-size"] == {"value": SLOW.bundle_bytes}
    assert measures["predict"] == {"value": 23_700_000}
    assert measures["peak-memory"] == {"value": SLOW.memory.peak_bytes}


def test_bencher_file_when_read_obeys_its_schema(export):
    # bencher.dev/docs/reference/bencher-metric-format: names of at most 1024 characters, measures
    # of at most 64 as slugs, and numbers.
    document = json.loads(export("fast", kind="bencher"))
    for name, measures in document.items():
        assert 0 < len(name) <= 1024
        for measure, metric in measures.items():
            assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", measure)
            assert len(measure) <= 64
            assert set(metric) <= {"value", "lower_value", "upper_value"}
            assert all(math.isfinite(number) for number in metric.values())
            assert metric.get("lower_value", 0) <= metric["value"]
            assert metric["value"] <= metric.get("upper_value", math.inf)


def test_bencher_throughput_when_the_run_tells_it_is_in_inferences_a_second(store, export):
    runs = [
        example_run(seed, timed_from_ns=10**9, timed_to_ns=3 * 10**9, inferences=500)
        for seed in range(2)
    ]
    store.save(example_report(id="timed", runs=runs, scenario=Scenario(name="offline")))
    ((name, measures),) = json.loads(export("timed", kind="bencher")).items()
    assert name.endswith("/cpu-int8-static/offline")
    assert measures["throughput"]["value"] == pytest.approx(250)


def test_bencher_when_inferences_were_interrupted_has_no_figure_but_p50_of_the_times(store, export):
    runs = [interrupted_run(seed) for seed in range(3)]
    store.save(example_report(id="interrupted", runs=runs))
    (measures,) = json.loads(export("interrupted", kind="bencher")).values()
    assert set(measures) == {"latency", "predict", "peak-memory", "file-size"}
    (row,) = csv.DictReader(io.StringIO(export("interrupted", kind="csv").decode()))
    assert (row["p50_ms"], row["p90_ms"], row["run_p90_ms"]) == ("1.0", "", "")


def test_bencher_when_only_invalid_runs_are_asked_for_says_how_to_have_them(export):
    with pytest.raises(UsageError, match="none of these runs") as raised:
        export("broken", kind="bencher")
    assert "--all" in raised.value.hint
    assert json.loads(export("broken", kind="bencher", invalid=True))


def test_bencher_when_runs_are_of_two_devices_asks_for_one(store, export):
    store.save(example_report(id="other", device="pi5-b"))
    with pytest.raises(UsageError, match="pi5-a, pi5-b"):
        export("fast", "other", kind="bencher")


def test_mlflow_when_exported_holds_what_its_rest_calls_take(export):
    # mlflow.org/docs/latest/rest-api.html: runs/create, runs/log-batch and their limits.
    runs = json.loads(export("fast", "broken", "evaluation", kind="mlflow"))["runs"]
    assert [run["status"] for run in runs] == ["FINISHED", "FAILED", "FINISHED"]
    for run in runs:
        assert isinstance(run["start_time"], int)
        assert len(run["metrics"]) <= 1000
        assert len(run["params"]) <= 100
        for metric in run["metrics"]:
            assert set(metric) == {"key", "value", "timestamp", "step"}
            assert isinstance(metric["timestamp"], int)
            assert math.isfinite(metric["value"])
        for param in run["params"]:
            assert set(param) == {"key", "value"}
            assert len(param["value"]) <= 500
        keys = [one["key"] for one in run["metrics"] + run["params"] + run["tags"]]
        assert all(re.fullmatch(r"[\w. /-]{1,250}", key) for key in keys)
    medians = [m["value"] for m in runs[0]["metrics"] if m["key"] == "process_run_p50_ms"]
    assert medians == [median(run.latencies_ns) / 1e6 for run in FAST.runs]
    assert runs[0]["start_time"] == 1_795_253_412_000


def test_samples_when_the_format_has_no_lines_are_refused(export):
    with pytest.raises(UsageError, match="holds no single queries"):
        export("fast", kind="bencher", samples=True)


def test_export_when_a_run_is_not_there_writes_nothing(export, tmp_path):
    with pytest.raises(UsageError, match="no report 'absent'"):
        export("fast", "absent", kind="csv")
    assert not (tmp_path / "out").exists()


def test_export_when_the_folder_cannot_be_made_is_a_clear_error(store, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ToolError, match="cannot write the export"):
        export_runs(store, ["fast"], tmp_path / "file" / "out.csv", "csv")


def test_export_when_a_run_is_named_twice_has_it_once(store, tmp_path):
    assert export_runs(store, ["fast", "fast", "slow"], tmp_path / "out", "csv") == 2


def test_mlflow_when_a_report_has_no_time_says_which(store, export):
    store.save(example_report(id="someday", created="someday"))
    with pytest.raises(BundleError, match="someday: the report's time cannot be read"):
        export("fast", "someday", kind="mlflow")
    assert b"someday" in export("fast", "someday", kind="csv")


def test_format_when_none_is_given_follows_the_files_ending(tmp_path):
    endings = ("runs.csv", "runs.PARQUET", "runs.json", "runs")
    assert [find_format(tmp_path / name) for name in endings] == ["csv", "parquet", "json", "json"]


def test_export_of_a_history_when_read_with_numpy_has_its_medians(store, export):
    medians = noisy(1, 12)
    reports = history(medians)
    store.save(*reports)
    text = export(*(one.id for one in reports), kind="csv").decode()
    read = [float(line["run_p50_ms"]) for line in csv.DictReader(io.StringIO(text))]
    assert np.allclose(read, medians)


def test_documentation_when_read_names_every_column():
    page = (Path(__file__).parents[3] / "docs" / "history.md").read_text(encoding="utf-8")
    assert [name for name in list_row_columns() if f"`{name}`" not in page] == []

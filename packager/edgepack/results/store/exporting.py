"""Stored runs in the formats of other tools.

``json`` has the reports whole, as they were made. ``csv`` and ``parquet`` have one line a run, with
the fields of :class:`~edgepack.results.store.rows.RunRow` as columns, or one line a query.
``bencher`` is the Bencher Metric Format of bencher.dev
(bencher.dev/docs/reference/bencher-metric-format), whose built-in measures ``latency`` and
``throughput`` are in nanoseconds and in operations a second. ``mlflow`` has what MLflow's REST
calls ``runs/create`` and ``runs/log-batch`` take, under the names that they have there: MLflow 3.13
and newer refuse folders of files (mlflow/mlflow, issue 18534).
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from edgepack.base import statistics
from edgepack.base.files import ELSEWHERE, SHARED, write_atomically, writing
from edgepack.base.schema import NotMeasured
from edgepack.errors import BundleError, ToolError, UsageError
from edgepack.records.run import RunReport
from edgepack.records.verdict import explain_heavy_tail_of
from edgepack.results.store.documents import Report
from edgepack.results.store.rows import RunRow, find_project, make_row
from edgepack.results.store.store import ResultsStore

Format = Literal["json", "csv", "parquet", "bencher", "mlflow"]
AT_ONCE = 50
"""Reports that are in memory."""
SAMPLE_COLUMNS = {"id": str, "process_run": int, "query": int, "latency_ns": int}
"""Both numbers count from 1."""


def find_format(path: Path) -> Format:
    """Return the format that a file's ending asks for."""
    endings: dict[str, Format] = {".csv": "csv", ".parquet": "parquet"}
    return endings.get(path.suffix.lower(), "json")


def export_runs(
    store: ResultsStore,
    run_ids: Sequence[str],
    path: Path,
    file_format: Format | None = None,
    *,
    samples: bool = False,
    invalid: bool = False,
) -> int:
    """Write stored runs to a file, whole or not at all.

    Args:
        store: Where they are.
        run_ids: Which; their order stays.
        path: The file; one that is there is replaced.
        file_format: What it is to hold; default: by the file's ending, else ``json``.
        samples: In ``csv`` and ``parquet``, every query of every process run.
        invalid: In ``bencher``, also runs that are invalid or unfinished; the other formats have
            them in any case, with their verdict.

    Returns:
        How many runs are in the file.

    Raises:
        UsageError: There is no such run, or none at all; or the format cannot hold these.
        BundleError: A report in the store is broken.
        ToolError: The file cannot be written; or ``parquet`` lacks pyarrow.
    """
    file_format = file_format or find_format(path)
    if samples and file_format not in ("csv", "parquet"):
        raise UsageError(
            f"{file_format} holds no single queries",
            hint="use --format csv or parquet with --samples; json has them in any case",
        )
    once = list(dict.fromkeys(run_ids))
    if not once:
        raise UsageError(
            "there is no run to export", hint="see which there are: edgepack runs list"
        )
    data, count = _WRITERS[file_format](_Asked(store, once, samples, invalid))
    with writing("the export", path, ELSEWHERE):
        write_atomically(path, data, mode=SHARED)
    return count


@dataclass(frozen=True)
class _Asked:
    store: ResultsStore
    run_ids: Sequence[str]
    samples: bool
    invalid: bool

    def load_reports(self) -> Iterator[Report]:
        """Load a few at once: all of a large store do not fit into memory."""
        for start in range(0, len(self.run_ids), AT_ONCE):
            yield from self.store.load_all(self.run_ids[start : start + AT_ONCE])


_Written = tuple[str | bytes, int]
"""The file's content, and of how many runs it is."""


def _write_json(asked: _Asked) -> _Written:
    documents = [raw.decode().strip() for raw in asked.store.documents(asked.run_ids).values()]
    return "[\n" + ",\n".join(documents) + "\n]\n", len(documents)


def _write_csv(asked: _Asked) -> _Written:
    columns, lines = _make_table(asked)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(lines)
    return text.getvalue(), len(asked.run_ids)


def _write_parquet(asked: _Asked) -> _Written:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise ToolError(
            "a Parquet file needs pyarrow, which is not installed",
            hint="pip install 'edgepack[parquet]', or use --format csv",
        ) from error
    types = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
    columns, lines = _make_table(asked)
    by_column = list(zip(*lines, strict=True)) or [()] * len(columns)
    arrays = [
        pa.array(values, type=types[kind])
        for values, kind in zip(by_column, columns.values(), strict=True)
    ]
    buffer = io.BytesIO()
    pq.write_table(pa.table(arrays, names=list(columns)), buffer)
    return buffer.getvalue(), len(asked.run_ids)


def _make_table(asked: _Asked) -> tuple[dict[str, type], Iterator[Sequence[object]]]:
    """Return the columns with their types, and the lines."""
    reports = asked.load_reports()
    if asked.samples:
        lines = (
            (report.id, number, query, latency)
            for report in reports
            if isinstance(report, RunReport)
            for number, run in enumerate(report.runs, start=1)
            for query, latency in enumerate(run.latencies_ns, start=1)
        )
        return dict(SAMPLE_COLUMNS), lines
    return list_row_columns(), (list(asdict(make_row(report)).values()) for report in reports)


def list_row_columns() -> dict[str, type]:
    """Return the columns of a table of runs, with their types."""
    kinds = {"float": float, "int": int, "bool": bool}
    return {one.name: kinds.get(str(one.type).partition(" ")[0], str) for one in fields(RunRow)}


def _write_bencher(asked: _Asked) -> _Written:
    benchmarks: dict[str, dict[str, dict[str, float]]] = {}
    devices: set[str] = set()
    newest: dict[str, str] = {}
    for report in asked.load_reports():
        row = make_row(report)
        if not isinstance(report, RunReport) or (_is_invalid(row) and not asked.invalid):
            continue
        devices.add(report.device)
        name = make_benchmark_name(row)
        if row.created >= newest.get(name, ""):
            newest[name], benchmarks[name] = row.created, _make_measures(report)
    if len(devices) > 1:
        raise UsageError(
            f"a file for bencher is of one testbed, these runs are of {', '.join(sorted(devices))}",
            hint="export each device's runs by themselves: --device NAME",
        )
    if not benchmarks:
        raise UsageError(
            "none of these runs is a valid benchmark", hint="--all exports invalid ones too"
        )
    return json.dumps(benchmarks, indent=2, allow_nan=False) + "\n", len(benchmarks)


def make_benchmark_name(row: RunRow) -> str:
    """Return the name under which bencher keeps the history of a variant."""
    words = [find_project(row), row.target, row.variant]
    if row.scenario != "single-stream":
        words.append(row.scenario)
    return "/".join(word for word in words if word)[:1024]


def _is_invalid(row: RunRow) -> bool:
    return row.verdict == "INVALID" or row.unfinished


def _make_measures(report: RunReport) -> dict[str, dict[str, float]]:
    """Return each measure with the 95 % interval over process runs, where there are several."""
    per_run = {
        "latency": [statistics.median(run.latencies_ns) for run in report.runs],
        "latency-p90": [statistics.percentile(run.latencies_ns, 90) for run in report.runs],
        "throughput": [
            rate for run in report.runs if not isinstance(rate := run.throughput, NotMeasured)
        ],
    }
    # Both are inconclusive then, and bencher's format has no word for that.
    if explain_heavy_tail_of(report.scenario, report.latencies_ns):
        del per_run["latency-p90"], per_run["throughput"]
    measures = {name: _make_metric(values) for name, values in per_run.items() if values}
    if not isinstance(report.memory, NotMeasured):
        measures["peak-memory"] = {"value": float(report.memory.peak_bytes)}
    if not isinstance(report.phases, NotMeasured):
        measures["predict"] = {"value": float(statistics.median(report.phases.predict_ns))}
    measures["file-size"] = {"value": float(report.bundle_bytes)}
    return measures


def _make_metric(values: Sequence[float]) -> dict[str, float]:
    if len(values) < 2 or min(values) <= 0:
        return {"value": float(values[0])}
    found = statistics.log_t_interval(values)
    return {"value": found.estimate, "lower_value": found.low, "upper_value": found.high}


def _write_mlflow(asked: _Asked) -> _Written:
    runs = []
    for report in asked.load_reports():
        row = make_row(report)
        timed = report.runs if isinstance(report, RunReport) else []
        medians_ms = [statistics.median(run.latencies_ns) / 1e6 for run in timed]
        runs.append(_make_mlflow_run(row, medians_ms))
    return json.dumps({"runs": runs}, indent=2, allow_nan=False) + "\n", len(runs)


def _make_mlflow_run(row: RunRow, medians_ms: Sequence[float]) -> dict[str, Any]:
    """Return a run as MLflow has it: numbers are metrics, texts are params."""
    at_ms = _find_milliseconds(row)
    told = {name: value for name, value in asdict(row).items() if value is not None}
    metrics = [
        {"key": name, "value": float(value), "timestamp": at_ms, "step": 0}
        for name, value in told.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    ]
    metrics += [
        {"key": "process_run_p50_ms", "value": value, "timestamp": at_ms, "step": step}
        for step, value in enumerate(medians_ms, start=1)
    ]
    params = [{"key": k, "value": v[:500]} for k, v in told.items() if isinstance(v, str)]
    return {
        "experiment_name": find_project(row),
        "run_name": row.id,
        "start_time": at_ms,
        "end_time": at_ms,
        "status": "FAILED" if _is_invalid(row) else "FINISHED",
        "metrics": metrics,
        "params": params,
        "tags": [{"key": "edgepack.run", "value": row.id}],
    }


def _find_milliseconds(row: RunRow) -> int:
    try:
        return int(datetime.fromisoformat(row.created).timestamp() * 1000)
    except ValueError as error:
        raise BundleError(
            f"the report's time cannot be read: {row.created!r}",
            hint="export the others by their ids, or as csv",
            where=row.id,
        ) from error


_WRITERS: dict[str, Callable[[_Asked], _Written]] = {
    "json": _write_json,
    "csv": _write_csv,
    "parquet": _write_parquet,
    "bencher": _write_bencher,
    "mlflow": _write_mlflow,
}

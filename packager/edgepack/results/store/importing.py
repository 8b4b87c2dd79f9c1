r"""Logs of other benchmark tools, read into reports of their own kind.

What the tools print was read in their sources:

- ``onnxruntime_perf_test``: ``PerformanceRunner::Run``, ``PerformanceResult::DumpToFile`` and
  ``RunOneIteration`` in onnxruntime/test/perftest/performance_runner.{cc,h}. Its stdout, which has
  every inference with ``-v``, or its result file, which has them always.
- ``trtexec``: ``printEpilog`` and ``exportJSONTrace`` in TensorRT's
  samples/common/sampleReporting.cpp. Its stdout, or the file of ``--exportTimes``.
- ``benchmark_app``: ``LatencyMetrics::write_to_slog`` in OpenVINO's
  samples/cpp/benchmark_app/statistics_report.cpp, and main.cpp beside it. Its stdout; the Python
  tool of that name prints the same.
- ``benchmark_model`` of LiteRT and TensorFlow Lite: ``BenchmarkLoggingListener::OnBenchmarkEnd`` in
  tensorflow/lite/tools/benchmark/benchmark_model.cc, and ``Stat::OutputToStream``. Its stdout, or
  what logcat has of it.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Literal, TypeGuard, get_args

from edgepack.base import statistics
from edgepack.base.clock import format_time
from edgepack.base.schema import NotMeasured
from edgepack.errors import BundleError, UsageError
from edgepack.records.run import ImportedReport

Tool = Literal["onnxruntime_perf_test", "trtexec", "benchmark_app", "litert_benchmark_model"]
TOOLS: tuple[Tool, ...] = get_args(Tool)
LARGEST_BYTES = 256 << 20
LONGEST_MS = 1e12
NUMBER = r"(\d{1,18}(?:\.\d+)?(?:e[-+]?\d{1,2})?)"
"""A number with so few digits that it is finite in nanoseconds, too."""
NOT_TOLD = NotMeasured(reason="the log does not say")


@dataclass
class _Told:
    """What was read from a log, in nanoseconds."""

    statistics_ns: dict[str, float]
    latencies_ns: list[int] = field(default_factory=list)
    phases_ns: dict[str, float] = field(default_factory=dict)
    throughput: float | None = None
    peak_bytes: int | None = None
    version: str = ""
    provider: str = ""
    model: str = ""


class _CutOffError(ValueError):
    """Something that the tool always prints is not there."""


def import_log(
    path: Path, device: str, model: str | None = None, tool: Tool | None = None
) -> ImportedReport:
    """Read the log of another benchmark tool.

    Args:
        path: The log.
        device: Where it was measured.
        model: The model's name, where the log does not say it, or another is wanted.
        tool: Which tool's it is; default: as the log shows.

    Returns:
        The report, whose id is the same whenever the same file is read.

    Raises:
        BundleError: It is no log of these tools, or is cut off.
        UsageError: The model's name is needed.
    """
    raw = _read_log(path)
    text = _decode_log(raw)
    tool = tool or recognize_tool(text, path)
    try:
        told = _PARSERS[tool](text)
    except _CutOffError as error:
        raise BundleError(
            f"the log of {tool} is cut off, or is of a version that is not known: {error}",
            hint="give the whole log of a run that succeeded, or its tool with --tool:"
            f" {', '.join(TOOLS)}",
            where=str(path),
        ) from error
    name = model or told.model
    if not name:
        raise UsageError(
            "the log does not say which model it is of", hint="add --model NAME", where=str(path)
        )
    digest = hashlib.sha256(raw).hexdigest()
    created = format_time(datetime.fromtimestamp(path.stat().st_mtime, UTC))
    return ImportedReport(
        schema_version=1,
        id=f"{tool.replace('_', '-')}-{digest[:12]}",
        created=created,
        tool=tool,
        tool_version=told.version or NOT_TOLD,
        device=device,
        model=name,
        log=path.name,
        log_sha256=digest,
        provider=told.provider or NOT_TOLD,
        latencies_ns=told.latencies_ns or NOT_TOLD,
        statistics_ns=told.statistics_ns,
        phases_ns=told.phases_ns,
        throughput=NOT_TOLD if told.throughput is None else told.throughput,
        peak_bytes=NOT_TOLD if told.peak_bytes is None else told.peak_bytes,
    )


def can_be_log(path: Path) -> bool:
    """Return whether a file is no report of edgepack's, so that it may be a log.

    Raises:
        BundleError: It cannot be read, or is empty.
    """
    text = _read_log(path).lstrip()
    if not text:
        raise BundleError("the file is empty", hint="give a whole report or log", where=str(path))
    if not text.startswith((b"{", b"[")):
        return True
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return text.startswith(b"[") and b'"schema_version"' not in text[:1000]
    reports = document if isinstance(document, list) else [document]
    return not all(isinstance(one, dict) and "schema_version" in one for one in reports)


def recognize_tool(text: str, path: Path) -> Tool:
    """Return the tool that wrote a log.

    Raises:
        BundleError: None of those that are known, or several.
    """
    found = [tool for tool, sign in _SIGNS.items() if re.search(sign, text, re.MULTILINE)]
    if len(found) == 1:
        return found[0]
    what = "of several tools" if found else "of no tool that is known"
    raise BundleError(
        f"the log is {what}; looked for {', '.join(f'{t}: {w}' for t, w in _LOOKED_FOR.items())}",
        hint=f"give the whole log, or say which tool wrote it: --tool {'|'.join(TOOLS)}",
        where=str(path),
    )


def _read_log(path: Path) -> bytes:
    try:
        size = path.stat().st_size
        if size > LARGEST_BYTES:
            raise BundleError(
                f"a log of {size} bytes is too large: at most {LARGEST_BYTES} are read",
                hint="leave out what the tool prints when verbose",
                where=str(path),
            )
        return path.read_bytes()
    except OSError as error:
        raise BundleError(
            f"the log cannot be read: {error.strerror}",
            hint="give the path of a log",
            where=str(path),
        ) from error


def _decode_log(raw: bytes) -> str:
    """Return a log as text: PowerShell writes UTF-16, and Windows ends lines otherwise."""
    utf_16 = raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return raw.decode("utf-16" if utf_16 else "utf-8-sig", "replace").replace("\r\n", "\n")


def _parse_perf_test(text: str) -> _Told:
    rows = [float(x) for x in re.findall(_PERF_TEST_ROW, text, re.MULTILINE)]
    seconds = rows or [
        float(x) for x in re.findall(rf"^iteration:\d+,\s*time_cost:{NUMBER}", text, re.MULTILINE)
    ]
    stats = {
        _format_perf_test_word(word): float(value) * 1e9
        for word, value in re.findall(
            rf"^(Min|Max|P\d+) Latency(?::| is) {NUMBER} ?s", text, re.MULTILINE
        )
    }
    mean_ms = _find_number(rf"Average (?:inference )?time cost(?: total)?: ?{NUMBER} ms", text)
    if mean_ms is None and not rows:
        raise _CutOffError("there is no line 'Average inference time cost'")
    latencies = [round(second * 1e9) for second in seconds]
    if mean_ms is not None:
        stats["mean"] = mean_ms * 1e6
    peak = _find_number(rf"Peak working set size: ?{NUMBER}", text)
    return _Told(
        statistics_ns=_complete_stats(stats, latencies),
        latencies_ns=latencies,
        phases_ns=_find_phases(
            text,
            {
                "session create": (rf"Session creation time cost: ?{NUMBER} s", 1e9),
                "first inference": (rf"First inference time cost: ?{NUMBER} ms", 1e6),
            },
        ),
        throughput=_find_number(rf"Number of inferences per second: ?{NUMBER}", text),
        peak_bytes=None if peak is None else int(peak),
        provider=_find_word(r"(\w+ExecutionProvider)\b", text),
        model=_find_stem(_find_word(r"(\S+\.(?:onnx|ort))\b", text)) or _find_row_model(text),
    )


def _find_row_model(text: str) -> str:
    row = re.search(_PERF_TEST_ROW, text, re.MULTILINE)
    return row[0].partition(",")[0] if row else ""


def _format_perf_test_word(word: str) -> str:
    """Return a statistic's name: ``P999`` is the 99.9th percentile."""
    return {"Min": "min", "Max": "max", "P999": "p99.9"}.get(word, word.lower())


def _parse_trtexec(text: str) -> _Told:
    if text.lstrip().startswith("["):
        times = _parse_trtexec_times(text)
        if times is not None:
            return times
    if "&&&& FAILED" in text:
        raise _CutOffError("it says that trtexec FAILED")
    line = _find_word(r"\bLatency: (min = .*)$", re.sub(r"(?:Host|H2D|D2H) Latency:", "", text))
    if not line:
        raise _CutOffError("there is no line 'Latency: min = ...' in its performance summary")
    words = {"median": "p50"}
    stats = {
        words.get(word, word): float(value) * 1e6
        for word, value in re.findall(rf"(min|max|mean|median) = {NUMBER} ms", line)
    }
    for percent, value in re.findall(rf"percentile\({NUMBER}%\) = {NUMBER} ms", line):
        stats[f"p{float(percent):g}"] = float(value) * 1e6
    return _Told(
        statistics_ns=stats,
        phases_ns=_find_phases(
            text,
            {
                "compile": (rf"Engine (?:built|generation completed) in {NUMBER} sec", 1e9),
                "load": (rf"Engine deserialized in {NUMBER} sec", 1e9),
            },
        ),
        throughput=_find_number(rf"Throughput: {NUMBER} qps", text),
        version=_format_trt_version(_find_word(r"\[TensorRT v(\d+)\]", text)),
        provider="TensorRT",
        model=_find_stem(_find_word(r"--(?:onnx|loadEngine)=(\S+)", text)),
    )


def _parse_trtexec_times(text: str) -> _Told | None:
    """Read what ``--exportTimes`` writes; None if it is nothing of the kind."""
    try:
        queries = json.loads(text)
    except (ValueError, RecursionError) as error:
        if '"latencyMs"' in text:
            raise _CutOffError(f"it is no whole JSON list: {error}") from error
        return None
    times = [one.get("latencyMs") if isinstance(one, dict) else None for one in queries]
    latencies = [round(ms * 1e6) for ms in times if _is_time(ms)]
    if not times or len(latencies) < len(times):
        raise _CutOffError("not every query of it has 'latencyMs'")
    return _Told(_complete_stats({}, latencies), latencies, provider="TensorRT")


def _is_time(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and 0 <= value < LONGEST_MS


def _format_trt_version(digits: str) -> str:
    """Return 8.6.1 for 8601 and 10.3.0 for 100300, as NvInferVersion.h counts."""
    if not digits:
        return ""
    number = int(digits)
    if number >= 10_000:
        return f"{number // 10_000}.{number // 100 % 100}.{number % 100}"
    return f"{number // 1000}.{number // 100 % 10}.{number % 100}"


def _parse_benchmark_app(text: str) -> _Told:
    words = {"Median": "p50", "Average": "mean", "Min": "min", "Max": "max", "AVG": "mean"}
    stats = {
        words[word]: float(value) * 1e6
        for word, value in re.findall(
            rf"\[ INFO \]\s+(Median|Average|AVG|Min|Max):\s+{NUMBER} ms", text, re.IGNORECASE
        )
    }
    for percent, value in re.findall(rf"\[ INFO \]\s+(\d+) percentile:\s+{NUMBER} ms", text):
        stats[f"p{percent}"] = float(value) * 1e6
    throughput = _find_number(rf"Throughput:\s+{NUMBER} FPS", text)
    if not stats or throughput is None:
        missing = "Latency" if not stats else "Throughput"
        raise _CutOffError(f"there is no line '[ INFO ] {missing}' with numbers after step 11")
    return _Told(
        statistics_ns=stats,
        phases_ns=_find_phases(
            text,
            {
                "read": (rf"Read model took {NUMBER} ms", 1e6),
                "compile": (rf"Compile model took {NUMBER} ms", 1e6),
                "first inference": (rf"First inference took {NUMBER} ms", 1e6),
            },
        ),
        throughput=throughput,
        version=_find_word(r"Build \.+ (\S+)", text),
        provider=_find_word(r"Execution[ _]D(?:evices|EVICES): ?\[?[' ]*([A-Za-z0-9_.:,]+)", text),
        model=_find_stem(_find_word(r"(?:-m|--path_to_model|--model)[ =](\S+\.\w+)", text)),
    )


def _parse_litert(text: str) -> _Told:
    timings = re.search(
        rf"Inference timings in us: Init: {NUMBER}, First inference: {NUMBER},"
        rf" Warmup \(avg\): {NUMBER}, Inference \(avg\): {NUMBER}",
        text,
    )
    if timings is None:
        raise _CutOffError("there is no line 'Inference timings in us: Init: ...'")
    init, first, _, mean = (float(value) * 1e3 for value in timings.groups())
    words = {"min": "min", "max": "max", "std": "std", "median": "p50", "p95": "p95"}
    stats = {"mean": mean}
    line = ["", *re.findall(r"\bcount=\d+ .*", text)][-1]  # those before it are of the warm-up
    stats |= {
        words[word]: float(value) * 1e3
        for word, value in re.findall(rf"\b(min|max|std|median|p95)={NUMBER}", line)
    }
    peak_mb = _find_number(rf"Overall peak memory footprint \(MB\)[^:]*: {NUMBER}", text)
    return _Told(
        statistics_ns=stats,
        phases_ns={"session create": init, "first inference": first},
        peak_bytes=None if peak_mb is None else int(peak_mb * (1 << 20)),
        provider=_find_word(r"(?:Explicitly applied|Created TensorFlow Lite) (.+?) delegate", text),
        model=_find_stem(_find_word(r"(?:Graph: \[|Loaded model )([^\]\s]+)", text)),
    )


def _complete_stats(stats: dict[str, float], latencies_ns: list[int]) -> dict[str, float]:
    """Add what a log with every inference leaves to its reader."""
    if not latencies_ns:
        return stats
    own = {word: statistics.percentile(latencies_ns, percent) for percent, word in _OWN.items()}
    own |= {"mean": fmean(latencies_ns)}
    own |= {"min": float(min(latencies_ns)), "max": float(max(latencies_ns))}
    return {**own, **stats}


_OWN = {50: "p50", 90: "p90", 95: "p95"}


def _find_phases(text: str, patterns: dict[str, tuple[str, float]]) -> dict[str, float]:
    found = {
        name: (_find_number(pattern, text), unit) for name, (pattern, unit) in patterns.items()
    }
    return {name: value * unit for name, (value, unit) in found.items() if value is not None}


def _find_number(pattern: str, text: str) -> float | None:
    """Return the last number that a pattern finds: a tool that runs twice means the second."""
    found = re.findall(pattern, text)
    return float(found[-1]) if found else None


def _find_word(pattern: str, text: str) -> str:
    found = re.search(pattern, text, re.MULTILINE)
    return found[1].strip() if found else ""


def _find_stem(path: str) -> str:
    return re.split(r"[\\/]", path.strip("'\""))[-1].rpartition(".")[0] or path


_PERF_TEST_ROW = rf"^[^,\n]*,{NUMBER},\d+,-?\d+,\d+$"
_SIGNS: dict[Tool, str] = {
    "onnxruntime_perf_test": "^Session creation time cost:|^Number of inferences per second:|"
    + _PERF_TEST_ROW,
    "trtexec": r'=== Performance summary ===|TensorRT\.trtexec|"latencyMs"',
    "benchmark_app": r"^\s*\[Step \d+/\d+\] |\[ INFO \] Throughput:",
    "litert_benchmark_model": r"Inference timings in us:|Running benchmark for at least",
}
_LOOKED_FOR: dict[Tool, str] = {
    "onnxruntime_perf_test": "'Session creation time cost:'",
    "trtexec": "'=== Performance summary ===' or 'latencyMs'",
    "benchmark_app": "'[Step 1/11]'",
    "litert_benchmark_model": "'Inference timings in us:'",
}
_PARSERS: dict[Tool, Callable[[str], _Told]] = {
    "onnxruntime_perf_test": _parse_perf_test,
    "trtexec": _parse_trtexec,
    "benchmark_app": _parse_benchmark_app,
    "litert_benchmark_model": _parse_litert,
}

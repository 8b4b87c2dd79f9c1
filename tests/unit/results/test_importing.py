"""Logs of other tools, in the form that their sources print."""

from __future__ import annotations

import json
import re

import pytest
from edgepack.base.schema import NotMeasured
from edgepack.errors import BundleError, UsageError
from edgepack.records.run import ImportedReport
from edgepack.results.store.importing import TOOLS, can_be_log, import_log
from edgepack.results.store.store import ResultsStore

from tests.support.reports.example_report import example_report

PERF_TEST = """\
Setting intra_op_num_threads to 2
using XnnpackExecutionProvider
Session creation time cost: 0.0125 s
First inference time cost: 9 ms
Total inference time cost: 0.036 s
Total inference requests: 4
Average inference time cost total: 9.000000 ms
Total inference run time: 0.0364 s
Number of inferences per second: 109.89
Avg CPU usage: 96 %
Peak working set size: 52428800 bytes
Avg CPU usage:96
Peak working set size:52428800
Runs:4
Min Latency: 0.008 s
Max Latency: 0.0105 s
P50 Latency: 0.009 s
P90 Latency: 0.0105 s
P95 Latency: 0.0105 s
P99 Latency: 0.0105 s
P999 Latency: 0.0105 s
"""
VERBOSE = "".join(f"iteration:{n},time_cost:{s}\n" for n, s in enumerate((0.008, 0.009, 1e-2), 1))
RESULT_FILE = "".join(f"net,{s},52428800,96,{n}\n" for n, s in enumerate((0.008, 0.009, 0.01)))

TRTEXEC = """\
&&&& RUNNING TensorRT.trtexec [TensorRT v100300] # trtexec --onnx=models/net.onnx --fp16
[11/20/2026-08:00:00] [I] Engine built in 12.5 sec.
[11/20/2026-08:00:00] [I] Engine deserialized in 0.25 sec.
[11/20/2026-08:00:10] [I] === Performance summary ===
[11/20/2026-08:00:10] [I] Throughput: 400.5 qps
[11/20/2026-08:00:10] [I] Latency: min = 2.4 ms, max = 3.5 ms, mean = 2.6 ms, median = 2.5 ms, \
percentile(90%) = 2.75 ms, percentile(99%) = 3.25 ms
[11/20/2026-08:00:10] [I] Enqueue Time: min = 0.1 ms, max = 0.2 ms, mean = 0.15 ms
[11/20/2026-08:00:10] [I] H2D Latency: min = 0.01 ms, max = 0.02 ms, mean = 0.015 ms
[11/20/2026-08:00:10] [I] GPU Compute Time: min = 2.3 ms, max = 3.3 ms, mean = 2.5 ms
[11/20/2026-08:00:10] [I] D2H Latency: min = 0.03 ms, max = 0.04 ms, mean = 0.035 ms
&&&& PASSED TensorRT.trtexec [TensorRT v100300] # trtexec --onnx=models/net.onnx --fp16
"""
BENCHMARK_APP = """\
[Step 1/11] Parsing and validating input arguments
[ INFO ] Parsing input parameters
[Step 2/11] Loading OpenVINO Runtime
[ INFO ] Build ................................. 2026.3.0-20001-abcdef-releases/2026/3
[Step 4/11] Reading model files
[ INFO ] Read model took 8.5 ms
[Step 7/11] Loading the model to the device
[ INFO ] Compile model took 250.75 ms
[Step 10/11] Measuring performance
[ INFO ] First inference took 6.25 ms
[Step 11/11] Dumping statistics report
[ INFO ] Execution Devices:['CPU']
[ INFO ] Count:            20220 iterations
[ INFO ] Duration:         15004.83 ms
[ INFO ] Latency:
[ INFO ]    Median:        4.31 ms
[ INFO ]    Average:       4.35 ms
[ INFO ]    Min:           2.78 ms
[ INFO ]    Max:           13.27 ms
[ INFO ] Throughput:   1347.57 FPS
"""
LITERT = """\
INFO: Graph: [/data/local/tmp/net.tflite]
INFO: Created TensorFlow Lite XNNPACK delegate for CPU.
INFO: Initialized session in 5.5ms.
INFO: Running benchmark for at least 1 iterations and at least 0.5 seconds but terminate if \
exceeding 150 seconds.
INFO: count=12 first=9000 curr=4000 min=3900 max=9000 avg=4500.5 std=1000
INFO: Running benchmark for at least 50 iterations and at least 1 seconds but terminate if \
exceeding 150 seconds.
INFO: count=250 first=4100 curr=4000 min=3950 max=5e+03 avg=4012.25 std=29 p5=3960 median=4005 \
p95=4200
INFO: Inference timings in us: Init: 5500, First inference: 9000, Warmup (avg): 4500.5, \
Inference (avg): 4012.25
INFO: Overall peak memory footprint (MB) via periodic monitoring: 12.5
"""
LOGS = dict(zip(TOOLS, (PERF_TEST, TRTEXEC, BENCHMARK_APP, LITERT), strict=True))


@pytest.fixture
def read(tmp_path):
    def read_log(text, model="net", tool=None):
        path = tmp_path / "bench.log"
        path.write_text(text)
        return import_log(path, "board", model, tool)

    return read_log


@pytest.mark.parametrize("tool", TOOLS)
def test_log_when_it_is_whole_is_recognized_and_kept(read, tmp_path, tool):
    report = read(LOGS[tool])
    assert (report.tool, report.device, report.model) == (tool, "board", "net")
    assert read(LOGS[tool]).id == report.id
    store = ResultsStore(f"sqlite:///{tmp_path}/results.sqlite")
    store.save(report)
    assert store.load(report.id) == report


def test_perf_test_log_when_read_has_its_figures(read):
    report = read(PERF_TEST)
    ms = {"p50": 9, "p90": 10.5, "p95": 10.5, "p99": 10.5, "p99.9": 10.5}
    ms |= {"min": 8, "max": 10.5, "mean": 9}
    assert report.statistics_ns == pytest.approx({k: v * 1e6 for k, v in ms.items()})
    assert report.phases_ns == pytest.approx({"session create": 12.5e6, "first inference": 9e6})
    assert (report.throughput, report.peak_bytes) == (109.89, 50 << 20)
    assert report.provider == "XnnpackExecutionProvider"
    assert isinstance(report.latencies_ns, NotMeasured)


def test_perf_test_log_when_verbose_has_every_inference(read):
    assert read(VERBOSE + PERF_TEST).latencies_ns == [8_000_000, 9_000_000, 10_000_000]


def test_perf_test_result_file_when_read_has_every_inference_and_its_model(read):
    report = read(RESULT_FILE, model=None)
    assert (report.tool, report.model) == ("onnxruntime_perf_test", "net")
    assert report.latencies_ns == [8_000_000, 9_000_000, 10_000_000]
    assert report.statistics_ns["p50"] == 9e6
    assert report.statistics_ns["mean"] == pytest.approx(9e6)


def test_trtexec_log_when_read_has_the_latency_of_whole_queries(read):
    report = read(TRTEXEC, model=None)
    ms = {"min": 2.4, "max": 3.5, "mean": 2.6, "p50": 2.5, "p90": 2.75, "p99": 3.25}
    assert report.statistics_ns == pytest.approx({k: v * 1e6 for k, v in ms.items()})
    assert report.phases_ns == pytest.approx({"compile": 12.5e9, "load": 0.25e9})
    assert (report.throughput, report.tool_version, report.model) == (400.5, "10.3.0", "net")


def test_trtexec_version_when_it_is_before_10_is_read_by_its_other_rule(read):
    assert read(TRTEXEC.replace("v100300", "v8601")).tool_version == "8.6.1"


def test_trtexec_times_when_read_are_every_query(read):
    times = [{"startH2dMs": n, "computeMs": 2.0, "latencyMs": 2.5 + n} for n in range(3)]
    report = read(json.dumps(times))
    assert report.latencies_ns == [2_500_000, 3_500_000, 4_500_000]
    assert report.statistics_ns["p50"] == 3.5e6


def test_benchmark_app_log_when_read_has_its_figures(read):
    report = read(BENCHMARK_APP)
    ms = {"p50": 4.31, "mean": 4.35, "min": 2.78, "max": 13.27}
    assert report.statistics_ns == pytest.approx({k: v * 1e6 for k, v in ms.items()})
    phases = {"read": 8.5e6, "compile": 250.75e6, "first inference": 6.25e6}
    assert report.phases_ns == pytest.approx(phases)
    assert (report.throughput, report.provider) == (1347.57, "CPU")
    assert report.tool_version == "2026.3.0-20001-abcdef-releases/2026/3"


def test_litert_log_when_read_has_the_timed_runs_and_not_the_warm_up(read):
    report = read(LITERT, model=None)
    us = {"min": 3950, "max": 5000, "mean": 4012.25, "std": 29, "p50": 4005, "p95": 4200}
    assert report.statistics_ns == pytest.approx({k: v * 1e3 for k, v in us.items()})
    assert report.phases_ns == pytest.approx({"session create": 5.5e6, "first inference": 9e6})
    assert (report.provider, report.model) == ("XNNPACK", "net")
    assert report.peak_bytes == int(12.5 * (1 << 20))


@pytest.mark.parametrize(
    ("tool", "last", "looked_for"),
    [
        ("onnxruntime_perf_test", "First inference", "Average inference time cost"),
        ("trtexec", "Latency: min", "Latency: min"),
        ("benchmark_app", "[ INFO ] Throughput", "Throughput"),
        ("litert_benchmark_model", "INFO: Inference timings", "Inference timings"),
    ],
)
def test_log_when_it_is_cut_off_says_what_is_missing(read, tool, last, looked_for):
    with pytest.raises(BundleError) as raised:
        read(LOGS[tool][: LOGS[tool].index(last)])
    assert "is cut off" in raised.value.problem
    assert looked_for in raised.value.problem


def test_trtexec_times_when_cut_off_say_so(read):
    with pytest.raises(BundleError, match="no whole JSON list"):
        read('[{"latencyMs": 2.5}, {"latencyMs": 2')


@pytest.mark.parametrize("text", ["", "\0\xff", "hello\n", "[1, 2]"])
def test_log_when_it_is_of_no_tool_says_what_was_looked_for(read, text):
    with pytest.raises(BundleError) as raised:
        read(text)
    assert "'Session creation time cost:'" in raised.value.problem
    assert "--tool" in raised.value.hint


def test_log_when_two_tools_wrote_it_asks_which_and_takes_the_answer(read):
    with pytest.raises(BundleError, match="of several tools"):
        read(PERF_TEST + LITERT)
    assert read(PERF_TEST + LITERT, tool="litert_benchmark_model").tool == "litert_benchmark_model"


def test_log_when_nobody_names_the_model_asks_for_it(read):
    with pytest.raises(UsageError, match="which model"):
        read(PERF_TEST, model=None)


def test_file_when_it_is_a_report_or_a_broken_one_is_no_log(tmp_path):
    path = tmp_path / "file"
    path.write_text(example_report().model_dump_json())
    assert not can_be_log(path)
    for broken in ('{"runs": [', '[\n{"schema_version":2,"id":'):
        path.write_text(broken)
        assert not can_be_log(path)
    path.write_text(PERF_TEST)
    assert can_be_log(path)


@pytest.mark.parametrize(
    "encoded",
    [
        RESULT_FILE.replace("\n", "\r\n").encode(),
        RESULT_FILE.encode("utf-16"),
        RESULT_FILE.encode("utf-8-sig"),
    ],
)
def test_log_when_windows_wrote_it_is_read_as_any_other(tmp_path, encoded):
    path = tmp_path / "bench.log"
    path.write_bytes(encoded)
    assert import_log(path, "pc").latencies_ns == [8_000_000, 9_000_000, 10_000_000]


def test_log_when_it_is_not_there_says_so(tmp_path):
    with pytest.raises(BundleError, match="cannot be read"):
        import_log(tmp_path / "absent.log", "board")


@pytest.mark.parametrize("text", [PERF_TEST + VERBOSE, RESULT_FILE, *LOGS.values()])
@pytest.mark.parametrize("number", ["1.2.3", "9" * 400, "1e999", "-1", "NaN"])
def test_log_when_any_number_is_none_is_refused_or_read_without_it(read, text, number):
    for found in re.finditer(r"\d[\d.]*", text):
        try:
            report = read(f"{text[: found.start()]}{number}{text[found.end() :]}")
        except BundleError:
            continue
        assert ImportedReport.model_validate_json(report.model_dump_json()) == report


@pytest.mark.parametrize("number", ["-1", "NaN", "Infinity", "1e300", "null"])
def test_trtexec_times_when_a_number_is_no_time_are_refused(read, number):
    with pytest.raises(BundleError, match="not every query"):
        read(f'[{{"latencyMs": 2.5}}, {{"latencyMs": {number}}}]')


def test_file_when_it_is_empty_says_so(tmp_path):
    (tmp_path / "report.json").write_text(" \n")
    with pytest.raises(BundleError, match="the file is empty"):
        can_be_log(tmp_path / "report.json")

"""The trace of a benchmark, in the fields of Chrome's trace event format."""

from __future__ import annotations

import json
from typing import Any

import pytest
from edgepack.measure.bench.perfetto import MAX_QUERIES, make_trace
from edgepack.records.run import Sample, Sampling, Scenario

from tests.support.reports.example_report import example_report, example_run

MS = 1_000_000
PHASES = {"X": {"name", "ts", "dur", "pid", "tid"}, "C": {"name", "ts", "pid", "args"}}
SAMPLING = Sampling(
    interval_s=0.5,
    samples=[
        Sample(
            at_ns=7_000 * MS + number * 500 * MS,
            temperatures_c={"cpu-thermal": 50.0 + number},
            clocks_hz={"policy0": 1_500_000_000},
            power_w={"VDD_IN": 4.5},
            throttled=["under-voltage"] if number else [],
        )
        for number in range(2)
    ],
    unknown={"load": "no such file"},
    cpu_ns=0,
    elapsed_ns=10**9,
)
EVENTS = [
    {"cat": "Session", "pid": 9, "tid": 9, "dur": 50, "ts": 5, "ph": "X", "name": "model_run"},
    *(
        {
            "cat": "Node",
            "pid": 9,
            "tid": 9,
            "dur": 7,
            "ts": 10 + number,
            "ph": "X",
            "name": f"conv{number}_kernel_time",
            "args": {"op_name": "Conv", "provider": provider},
        }
        for number, provider in enumerate(("CPUExecutionProvider", "XnnpackExecutionProvider"))
    ),
]


def trace(**changes: Any) -> list[dict[str, Any]]:
    first = example_run(
        latencies_ns=[10 * MS, 20 * MS],
        timed_from_ns=7_000 * MS,
        timed_to_ns=7_034 * MS,
        inferences=2,
        sampling=SAMPLING,
    )
    second = first.model_copy(update={"timed_from_ns": 9_000 * MS, "timed_to_ns": 9_034 * MS})
    report = example_report(**{"runs": [first, second], **changes})
    document = json.loads(json.dumps(make_trace(report, EVENTS), allow_nan=False))
    events: list[dict[str, Any]] = document["traceEvents"]
    return events


def named(events: list[dict[str, Any]], name: str, pid: int) -> list[dict[str, Any]]:
    return [event for event in events if event["name"] == name and event["pid"] == pid]


def test_trace_when_made_has_the_fields_of_each_phase() -> None:
    for event in trace():
        assert event["ph"] in {*PHASES, "M"}
        assert event.keys() >= PHASES.get(event["ph"], {"name", "pid", "args"})
        assert event.get("ts", 0) >= 0


def test_trace_when_runs_are_timed_places_their_queries_in_microseconds() -> None:
    events = trace()
    assert [(q["ts"], q["dur"]) for q in named(events, "query", 1)] == [(0, 10e3), (12e3, 20e3)]
    assert [q["ts"] for q in named(events, "query", 2)] == [2e6, 2.012e6]
    (whole,) = named(events, "single-stream, timed", 2)
    assert (whole["ts"], whole["dur"]) == (2e6, 34e3)


def test_trace_when_sensors_were_read_has_a_counter_for_each() -> None:
    events = trace()
    heat = named(events, "cpu-thermal (°C)", 1)
    assert [(event["ts"], event["args"]["value"]) for event in heat] == [(0, 50.0), (5e5, 51.0)]
    assert named(events, "policy0 (MHz)", 1)[0]["args"] == {"value": 1500.0}
    assert named(events, "VDD_IN (W)", 1)[0]["args"] == {"value": 4.5}
    assert [event["args"]["value"] for event in named(events, "throttled", 1)] == [0, 1]
    assert named(events, "load", 1) == []


def test_trace_when_profiled_puts_nodes_on_a_track_for_each_provider() -> None:
    events = trace()
    (conv0,) = (event for event in events if event["name"] == "conv0")
    (conv1,) = (event for event in events if event["name"] == "conv1")
    assert conv0["tid"] != conv1["tid"]
    tracks = {
        event["tid"]: event["args"]["name"]
        for event in events
        if event["name"] == "thread_name" and event["pid"] == conv0["pid"]
    }
    assert tracks[conv0["tid"]].startswith("CPUExecutionProvider")
    assert tracks[conv1["tid"]].startswith("XnnpackExecutionProvider")
    ends = [
        event["ts"] + event.get("dur", 0)
        for event in events
        if event["pid"] in (1, 2) and "ts" in event
    ]
    assert conv0["ts"] > max(ends)


@pytest.mark.parametrize("scenario", ["single-stream", "server"])
def test_trace_when_queries_are_many_or_overlap_shows_what_can_be_shown(scenario: str) -> None:
    many = example_run(latencies_ns=[MS] * (MAX_QUERIES + 5))
    shown = named(trace(runs=[many], scenario=Scenario(name=scenario)), "query", 1)  # type: ignore[arg-type]
    assert len(shown) == (MAX_QUERIES if scenario == "single-stream" else 0)

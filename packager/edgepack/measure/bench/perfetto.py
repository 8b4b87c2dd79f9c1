"""A benchmark as a trace in Chrome's trace event format, which Perfetto opens. Pure.

Source: "Trace Event Format": complete events (``ph`` X: ``ts``, ``dur``), counters (C: ``args``),
metadata (M: ``process_name``, ``thread_name``, ``process_sort_index``); times in microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from edgepack.records.run import ProcessRun, RunReport, Sampling

MAX_QUERIES = 20_000
"""The most queries per process run; a trace of more is slow to view."""
PROFILE_PID = 1000
_NS_PER_US = 1e3
_GAP_US = 1e6
"""The gap between the last process run and the profile, which has another clock."""
_NODE_SUFFIX = "_kernel_time"

Event = dict[str, Any]


def make_trace(report: RunReport, events: Sequence[Event]) -> dict[str, Any]:
    """Return the trace of a report.

    Each process run is a process of the trace with a track of its timed queries, as many as
    :data:`MAX_QUERIES`, and a counter for each sensor. onnxruntime's profile comes after them as
    one more process, whose nodes are on a track for each provider.

    Args:
        report: Any; runs without recorded times begin at 0.
        events: Of onnxruntime's profile.
    """
    began_ns = [run.timed_from_ns for run in report.runs if isinstance(run.timed_from_ns, int)]
    zero_ns = min(began_ns, default=0)
    traced: list[Event] = []
    for number, run in enumerate(report.runs, 1):
        traced += _make_process_events(number, f"process run {number}: {run.variant}")
        traced += _make_query_events(number, run, zero_ns, report.scenario.name)
        if isinstance(run.sampling, Sampling):
            traced += _make_counter_events(number, run.sampling, zero_ns)
    ends = [event["ts"] + event.get("dur", 0) for event in traced if "ts" in event]
    traced += _make_profile_events(events, max(ends, default=0.0) + _GAP_US)
    return {
        "traceEvents": traced,
        "displayTimeUnit": "ms",
        "otherData": {"report": report.id, "bundle": report.bundle, "device": report.device},
    }


def _make_process_events(pid: int, name: str) -> Iterator[Event]:
    yield {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": name}}
    yield {"ph": "M", "pid": pid, "name": "process_sort_index", "args": {"sort_index": pid}}


def _make_thread_event(pid: int, tid: int, name: str) -> Event:
    return {"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": name}}


def _make_query_events(pid: int, run: ProcessRun, zero_ns: int, scenario: str) -> Iterator[Event]:
    """Yield the timed queries one after the other; those that overlap as one event in all.

    The pause between two queries is not known, so the total is spread evenly over them.
    """
    from_ns = run.timed_from_ns if isinstance(run.timed_from_ns, int) else zero_ns
    taken_ns = sum(run.latencies_ns)
    to_ns = run.timed_to_ns if isinstance(run.timed_to_ns, int) else from_ns + taken_ns
    shown = [] if scenario == "server" else run.latencies_ns[:MAX_QUERIES]
    count = len(run.latencies_ns)
    known = f"{count} queries" if len(shown) < count else f"all {count} queries"
    yield _make_thread_event(pid, 1, f"timed: {known}, the first {len(shown)} shown")
    yield _make_complete_event(pid, 1, f"{scenario}, timed", from_ns - zero_ns, to_ns - from_ns, {})
    yield _make_thread_event(pid, 2, "queries")
    gap_ns = max(0.0, (to_ns - from_ns - taken_ns) / count)
    at_ns = float(from_ns - zero_ns)
    for number, latency_ns in enumerate(shown, 1):
        yield _make_complete_event(pid, 2, "query", at_ns, latency_ns, {"number": number})
        at_ns += latency_ns + gap_ns


def _make_complete_event(
    pid: int, tid: int, name: str, at_ns: float, took_ns: float, args: dict[str, Any]
) -> Event:
    return {
        "ph": "X",
        "pid": pid,
        "tid": tid,
        "cat": "edgepack",
        "name": name,
        "ts": at_ns / _NS_PER_US,
        "dur": took_ns / _NS_PER_US,
        "args": args,
    }


def _make_counter_events(pid: int, sampling: Sampling, zero_ns: int) -> Iterator[Event]:
    for sample in sampling.samples:
        values = {
            **{f"{name} (°C)": value for name, value in sample.temperatures_c.items()},
            **{f"{name} (MHz)": value / 1e6 for name, value in sample.clocks_hz.items()},
            **{f"{name} (W)": value for name, value in sample.power_w.items()},
            **({} if sample.load is None else {"load": sample.load}),
            "throttled": len(sample.throttled),
        }
        at_us = max(0, sample.at_ns - zero_ns) / _NS_PER_US
        for name, value in values.items():
            yield {"ph": "C", "pid": pid, "name": name, "ts": at_us, "args": {"value": value}}


def _make_profile_events(events: Sequence[Event], from_us: float) -> Iterator[Event]:
    """Yield onnxruntime's events, later, with a track for each thread and provider."""
    if not events:
        return
    yield from _make_process_events(PROFILE_PID, "onnxruntime's profile, of a process of its own")
    tracks: dict[tuple[Any, str], int] = {}
    for event in events:
        args = event.get("args")
        provider = str(args.get("provider", "")) if isinstance(args, dict) else ""
        key = (event.get("tid"), provider or str(event.get("cat", "session")))
        if key not in tracks:
            tracks[key] = len(tracks) + 1
            yield _make_thread_event(PROFILE_PID, tracks[key], f"{key[1]}, thread {key[0]}")
        shown = {**event, "pid": PROFILE_PID, "tid": tracks[key]}
        if isinstance(event.get("ts"), int | float):
            shown["ts"] = event["ts"] + from_us
        if event.get("cat") == "Node":
            shown["name"] = str(event.get("name", "")).removesuffix(_NODE_SUFFIX)
        yield shown

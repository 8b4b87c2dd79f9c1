"""What a profile says of nodes."""

from __future__ import annotations

from typing import Any

from edgepack.ondevice.runtime.edgepack_loader import find_profile_nodes


def runs_of(name: str, *durations_us: float) -> list[dict[str, Any]]:
    """Return the events of a node that ran so often, as onnxruntime's profiler writes them."""
    facts = {"node_index": name, "op_name": "Conv", "provider": "CPUExecutionProvider"}
    return [
        {"cat": "Node", "name": f"{name}_kernel_time", "dur": each, "args": facts}
        for each in durations_us
    ]


def test_costliest_node_when_another_was_interrupted_once_stays_the_costliest() -> None:
    events = [*runs_of("costly", *[500] * 10), *runs_of("cheap", *[10] * 5, 40_000, *[10] * 4)]
    costly, cheap = find_profile_nodes(events)
    assert (costly["median_us"], cheap["median_us"]) == (500, 10)
    assert cheap["mean_us"] == (8 * 10 + 40_000) / 9


def test_first_run_of_a_node_counts_only_where_it_is_the_only_one() -> None:
    first, once = find_profile_nodes([*runs_of("first", 900, 10, 30), *runs_of("once", 900)])
    assert (first["median_us"], first["mean_us"], once["median_us"]) == (20, 20, 900)

"""What nodes read and write in a run, from a profile that onnxruntime wrote.

Source: args of node events ``activation_size``, ``parameter_size``, ``output_size`` (bytes as
text), ``input_type_shape`` and ``output_type_shape`` (a list of ``{type: dims}``), as onnxruntime
1.31.1 writes them (observed). A weight that a kernel has packed its own way is in none of them, so
such a profile is made without packing.

Needs Python 3.8 or newer, and nothing else.
"""

from __future__ import annotations

from statistics import median
from typing import Any, Dict, List, Sequence, Tuple

if __package__:
    from . import edgepack_sysfs as sysfs
else:  # a bundle's, whose folder is on the path
    import edgepack_sysfs as sysfs  # type: ignore[import-not-found,no-redef]

UNPACKED = ("session.disable_prepacking", "1")
"""The entry of a session's config with which weights stay as the model has them."""
_SUFFIX = "_kernel_time"

Json = Dict[str, Any]


def read_sizes(events: Sequence[Json]) -> Dict[Tuple[str, str], Json]:
    """Return by name and operator what a node reads and writes; nothing of one that does not tell.

    Of a node that ran several times, the last time counts.
    """
    found: Dict[Tuple[str, str], Json] = {}
    for event in events:
        name, facts = str(event.get("name", "")), event.get("args", {})
        if event.get("cat") != "Node" or not name.endswith(_SUFFIX):
            continue
        if "output_size" in facts and "input_type_shape" in facts:
            found[name[: -len(_SUFFIX)], facts["op_name"]] = {
                "activation_bytes": int(facts["activation_size"]),
                "parameter_bytes": int(facts["parameter_size"]),
                "output_bytes": int(facts["output_size"]),
                "inputs": _list_tensors(facts["input_type_shape"]),
                "outputs": _list_tensors(facts["output_type_shape"]),
            }
    return found


def find_between_us(events: Sequence[Json]) -> Any:
    """Return the microseconds between the nodes of a run, or why they are not known.

    The median over runs but the first, which also allocates. What runs inside a node, as the body
    of If does, is that node's time. Source: an event named ``model_run`` for each, around those of
    its nodes (onnxruntime 1.31.1, observed).
    """
    runs = [event for event in events if event.get("name") == "model_run"]
    if not runs:
        return sysfs.make_not_measured("onnxruntime's profile does not tell of whole runs")
    nodes = sorted(
        (event["ts"], event["ts"] + event["dur"])
        for event in events
        if event.get("cat") == "Node" and str(event["name"]).endswith(_SUFFIX)
    )
    found = [_count_uncovered(run["ts"], run["ts"] + run["dur"], nodes) for run in runs]
    return float(median(found[1:] or found))


def _count_uncovered(begin: int, end: int, spans: Sequence[Tuple[int, int]]) -> int:
    """Return how much of a time no span covers; they are sorted by their beginnings."""
    uncovered, at = 0, begin
    for first, last in spans:
        if begin <= first and last <= end:
            uncovered += max(0, first - at)
            at = max(at, last)
    return uncovered + max(0, end - at)


def _list_tensors(given: Sequence[Dict[str, List[int]]]) -> List[Json]:
    """Return type and dimensions of each tensor."""
    return [{"dtype": dtype, "dims": dims} for each in given for dtype, dims in each.items()]

"""``make bench``: prints speed ratios, each measured in one run on this machine; asserts nothing.

::

    python -m tests.bench.run [NAME ...]

A number is a geometric mean with its 95 % interval (Student's t on the logarithms, one value for
each pair of processes or each run). Rows that need public models are there where
EDGEPACK_TEST_DATA names them. Run it on an idle machine.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence

from tests.bench import (
    all_targets,
    build_memory,
    build_overhead,
    calibration,
    cluster,
    compare_planted,
    compare_real,
    comparisons,
    converting,
    counting,
    detections,
    evaluation,
    farm,
    fleet,
    harness_latency,
    many_devices,
    native_loader,
    npu_dialects,
    preprocessing,
    pushing,
    quantization,
    rebuild,
    relaying,
    report_page,
    results_store,
    sampling,
    serving,
    slow_devices,
    start_up,
    tuning,
    writing,
)
from tests.bench.measuring import Row, Table
from tests.bench.projects import VARIABLE, public_data

MEASUREMENTS: dict[str, Callable[[], Iterator[Row | Table]]] = {
    "help": start_up.measure,
    "rebuild": rebuild.measure,
    "harness": harness_latency.measure,
    "sampler": sampling.measure,
    "converting": converting.measure,
    "overhead": build_overhead.measure,
    "memory": build_memory.measure,
    "push": pushing.measure,
    "fleet": fleet.measure,
    "farm": farm.measure,
    "relay": relaying.measure,
    "devices": many_devices.measure,
    "slow-devices": slow_devices.measure,
    "compare": comparisons.measure,
    "tune": tuning.measure,
    "compare-planted": compare_planted.measure,
    "compare-real": compare_real.measure,
    "evaluate": evaluation.measure,
    "results": results_store.measure,
    "page": report_page.measure,
    "counting": counting.measure,
    "native-loader": native_loader.measure,
    "all": all_targets.measure,
    "writing": writing.measure,
    "serving": serving.measure,
    "calibration": calibration.measure,
    "cluster": cluster.measure,
    "quantization": quantization.measure,
    "detections": detections.measure,
    "npu-dialects": npu_dialects.measure,
    "preprocessing": preprocessing.measure,
}


def main(names: Sequence[str]) -> None:
    """Measure what is named, or everything, and print a row for each number."""
    unknown = sorted(set(names) - set(MEASUREMENTS))
    if unknown:
        sys.exit(f"there is no {', '.join(unknown)}; there are {', '.join(MEASUREMENTS)}")
    if public_data() is None:
        print(f"{VARIABLE} is not set: only what needs no public model", file=sys.stderr)
    for name in names or MEASUREMENTS:
        print(f"measuring {name} ...", file=sys.stderr)
        for found in MEASUREMENTS[name]():
            if isinstance(found, Row):
                print_row(found)
            else:
                print_table(found)


def print_row(row: Row) -> None:
    """Print what was measured, the ratio beside its aim, and what stands behind it."""
    print(row.what)
    print(f"  {row.found:26}  aim: {row.aim}   ({row.count}; {row.beside})", flush=True)


def print_table(table: Table) -> None:
    """Print a table with its columns aligned."""
    print(table.title)
    rows = [table.heads, *table.rows]
    whole = [row for row in rows if len(row) == len(table.heads)]
    widths = [max(len(row[column]) for row in whole) for column in range(len(table.heads))]
    for row in rows:
        first, *others = row
        sizes = widths[1:] if len(row) == len(table.heads) else [0] * len(others)
        cells = (cell.rjust(size) for cell, size in zip(others, sizes, strict=True))
        print("  " + "  ".join([first.ljust(widths[0]), *cells]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])

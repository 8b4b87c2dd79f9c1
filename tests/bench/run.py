"""``make bench``: prints speed ratios, each measured in one run on this machine; asserts nothing.

::

    python tests/bench/run.py [NAME ...]

A number is a geometric mean with its 95 % interval (Student's t on the logarithms, one value for
each pair of processes or each run). Rows that need public models are there where
EDGEPACK_TEST_DATA names them. Run it on an idle machine.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence

import all_targets
import build_overhead
import harness_latency
import rebuild
import start_up
from measuring import Row
from projects import VARIABLE, public_data

MEASUREMENTS: dict[str, Callable[[], Iterator[Row]]] = {
    "help": start_up.measure,
    "rebuild": rebuild.measure,
    "harness": harness_latency.measure,
    "overhead": build_overhead.measure,
    "all": all_targets.measure,
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
        for row in MEASUREMENTS[name]():
            print_row(row)


def print_row(row: Row) -> None:
    """Print what was measured, the ratio beside its aim, and what stands behind it."""
    print(row.what)
    print(f"  {row.found:26}  aim: {row.aim}   ({row.count}; {row.beside})", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])

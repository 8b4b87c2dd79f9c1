"""What the sampler of the conditions costs: its processor time over the time that it runs.

Its own processor time by the kernel's account, from the start of its interpreter to its end, and
without that start, which comes before anything is timed; on this machine's sensors, and on the
files of a Jetson, laid out as in ``sysfs.py``, which has most of them.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from edgepack.ondevice.harness import edgepack_sampler

from tests.bench.measuring import Row
from tests.support.servers.sysfs import JETSON, write_tree

SECONDS = 60.0


def measure() -> Iterator[Row]:
    """Yield one row for each set of sensors."""
    with tempfile.TemporaryDirectory() as folder:
        jetson = write_tree(Path(folder), JETSON)
        for what, root in (("this machine's sensors", Path("/")), ("a Jetson's files", jetson)):
            yield _row(what, root)


def _row(what: str, root: Path) -> Row:
    before = _children_s()
    sampler = edgepack_sampler.Sampler(root=root)
    time.sleep(SECONDS)
    found = sampler.stop()
    whole = (_children_s() - before) / SECONDS
    reading = found["cpu_ns"] / found["elapsed_ns"]
    samples = len(found["samples"])
    each_us = found["cpu_ns"] / samples / 1e3
    return Row(
        f"sampler at {1 / edgepack_sampler.INTERVAL_S:g} Hz, {what}: share of a core",
        f"{samples} samples",
        f"{whole:.3%}",
        "under 1 %",
        f"{reading:.3%} without its start; {each_us:.0f} us a sample",
    )


def _children_s() -> float:
    times = os.times()
    return times.children_user + times.children_system

"""How much of a build is edgepack itself: squeezenet1.1, 100 images to calibrate, 100 to evaluate.

The build runs twice in each pair, with one job and an empty cache: once as it is, which gives its
true time, and once with ``profiling/sitecustomize.py`` in every process, which charges each moment
of each thread to edgepack's own code, to libraries, to imports, or to waiting for another process.

With one job either the main process or the worker computes, so the seconds of libraries and of
imports, summed over both, are parts of the wall time that do not overlap. All the rest counts as
edgepack's: its own code, what it does with Python's own library (reading and writing files, JSON,
starting processes), operators on arrays, starting and ending interpreters, pipes. So the share is
``1 - (libraries + imports) / (wall - profiler)`` of the profiled build: the time that the profiler
itself takes is measured and left out, what it slows down in between is not. That slows libraries
too, so the same rest over the wall time of the plain build stands beside it, as an upper bound.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from tests.bench.measuring import (
    Row,
    build_command,
    interval_text,
    own_folders,
    process_seconds,
    scratch,
)
from tests.bench.projects import SQUEEZENET, public_data, write_project

PAIRS = 3
IMAGES = 100
SAMPLES = (
    f"{{calibration: {{images: images, limit: {IMAGES}}},"
    f" evaluation: {{images: images, labels: labels.csv, limit: {IMAGES}}}}}"
)


@dataclass(frozen=True)
class Seconds:
    """Where the time of a profiled build went, summed over its processes and threads."""

    wall: float
    own: float
    library: float
    imports: float
    profiler: float

    @property
    def net(self) -> float:
        """The wall time without the profiler's own."""
        return self.wall - self.profiler

    @property
    def rest(self) -> float:
        """Everything but library calls and imports."""
        return self.net - self.library - self.imports


def measure() -> Iterator[Row]:
    """Yield one row, where the public models are on this machine."""
    data = public_data()
    if data is None:
        return
    with scratch() as folder:
        (folder / "project").mkdir()
        project = write_project(folder / "project", SQUEEZENET, data, SAMPLES)
        plain_s, profiled = [], []
        for number in range(PAIRS):
            plain_s.append(_build_seconds(project, folder / f"{number}-plain"))
            profiled.append(profiled_build(project, folder / f"{number}-profiled"))
    parts = {
        name: fmean([getattr(seconds, name) for seconds in profiled])
        for name in ("net", "library", "imports", "own")
    }
    yield Row(
        f"build of {SQUEEZENET.name}: all but library calls and imports / wall",
        f"{PAIRS} builds",
        interval_text([seconds.rest / seconds.net for seconds in profiled]),
        "at most 0.20",
        f"of the plain wall {fmean([s.rest for s in profiled]) / fmean(plain_s):.3f};"
        f" wall {fmean(plain_s):.2f} s, profiled {parts['net']:.2f} s: libraries"
        f" {parts['library']:.2f}, imports {parts['imports']:.2f}, own code {parts['own']:.2f}",
    )


def _build_seconds(project: Path, folder: Path, environment: dict[str, str] | None = None) -> float:
    command = build_command(project, folder / "dist", "--jobs", "1")
    return process_seconds(command, {**own_folders(folder), **(environment or {})})


def profiled_build(project: Path, folder: Path) -> Seconds:
    """Build under the profiler and return where the time went."""
    sums = folder / "sums"
    sums.mkdir(parents=True)
    hook = Path(__file__).with_name("profiling")
    wall = _build_seconds(
        project, folder, {"PYTHONPATH": str(hook), "EDGEPACK_BENCH_PROFILE": str(sums)}
    )
    own = library = imports = profiler = 0.0
    for path in sums.glob("*.seconds"):
        for row in struct.iter_unpack("5d", path.read_bytes()):
            own, library, imports = own + row[0], library + row[1], imports + row[2]
            profiler += row[4]
    found = Seconds(wall, own, library, imports, profiler)
    if own + library + imports > found.net * 1.1:
        sys.exit(f"the profile counts some waiting as work: {found}")
    return found

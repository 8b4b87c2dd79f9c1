"""What the measurements share: interleaved pairs, timed processes, and the row each ends in."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from tempfile import TemporaryDirectory

from edgepack.base.statistics import log_t_interval, t_quantile

EDGEPACK = str(Path(sys.executable).with_name("edgepack"))
"""The installed command, of the interpreter that runs this."""


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    what: str
    count: str
    """How many pairs or runs the number rests on."""
    found: str
    aim: str
    beside: str = ""
    """The absolute numbers behind the ratio."""


@dataclass(frozen=True)
class Table:
    """What is compared side by side."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    """Each as long as the heads, or shorter where there is nothing more to say."""


def interleaved(
    first: Callable[[], float], second: Callable[[], float], pairs: int
) -> list[tuple[float, float]]:
    """Measure both in turn, in the order A B B A, so that drift falls on both alike."""
    found = []
    for number in range(pairs):
        if number % 2:
            two = second()
            found.append((first(), two))
        else:
            one = first()
            found.append((one, second()))
    return found


def ratio_text(pairs: Sequence[tuple[float, float]]) -> str:
    """Return the geometric mean of first over second with its 95 % interval."""
    return interval_text([first / second for first, second in pairs])


def interval_text(values: Sequence[float]) -> str:
    """Return the geometric mean with its 95 % interval."""
    found = log_t_interval(values)
    return f"{found.estimate:.3f} ({found.low:.3f} to {found.high:.3f})"


def mean_text(values: Sequence[float]) -> str:
    """Return the mean with its 95 % interval (Student's t)."""
    middle = fmean(values)
    reach = t_quantile(0.975, len(values) - 1) * stdev(values) / sqrt(len(values))
    return f"{middle:.1f} ({middle - reach:.1f} to {middle + reach:.1f})"


def process_seconds(argv: Sequence[str], environment: Mapping[str, str] | None = None) -> float:
    """Return how long a whole process takes, and stop the benchmark if it fails."""
    started = time.perf_counter()
    run(argv, environment)
    return time.perf_counter() - started


def run(
    argv: Sequence[str],
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> bytes:
    """Return what a process prints, and stop the benchmark if it fails."""
    done = subprocess.run(
        list(argv),
        cwd=folder,
        env={**os.environ, "ORT_DISABLE_TELEMETRY": "1", **(environment or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=1800,
    )
    if done.returncode:
        sys.exit(f"{' '.join(argv)} failed:\n{done.stderr.decode('utf-8', 'replace')}")
    return done.stdout


@contextmanager
def one_core() -> Iterator[None]:
    """Keep this process and what it starts on one core, where the system can do that.

    With several, where the threads land decides more than what is compared here.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(allowed)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


@contextmanager
def scratch() -> Iterator[Path]:
    """Give a folder that goes when the block ends."""
    with TemporaryDirectory(prefix="edgepack-bench-") as folder:
        yield Path(folder)


def own_folders(root: Path) -> dict[str, str]:
    """Return an environment in which nothing is read from or written to the user's folders."""
    return {
        "HOME": str(root / "home"),
        "XDG_CACHE_HOME": str(root / "cache"),
        "XDG_CONFIG_HOME": str(root / "config"),
        "XDG_DATA_HOME": str(root / "data"),
    }


def build_command(project: Path, out: Path, *more: str) -> list[str]:
    """Return the command that builds a project for this machine."""
    where = ["--project", str(project), "--target", "host", "--out", str(out)]
    return [EDGEPACK, "build", *where, *more]

"""What a push of nothing new costs the host for 1 to 500 boards, which one process plays.

Each push is ``edgepack push`` as a whole process, with the ``ssh -G`` of each board counted in; its
processor time and memory are the kernel's account, its threads and descriptors are looked at while
it runs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from tests.bench.measuring import EDGEPACK, Row, own_folders, scratch
from tests.support.reports.tiny_bundle import write_tiny_bundle

BOARDS = (1, 10, 50, 200, 500)
PARALLEL = 64
_LOOK_S = 0.02


class Cost(NamedTuple):
    """Of one push to some boards."""

    boards: int
    seconds: float
    cpu_s: float
    peak_mb: float
    threads: int
    descriptors: int


def measure() -> Iterator[Row]:
    """Yield a row for each number of boards, and what one more board costs."""
    with scratch() as folder:
        bundle = write_tiny_bundle(folder / "tiny-1.0.0-linux-x86-64")
        costs = []
        for count in BOARDS:
            place = folder / str(count)
            place.mkdir()
            with playing(count, place):
                costs.append(_push(bundle, place, count))
    for cost in costs:
        yield Row(
            f"push of nothing new to {cost.boards} boards",
            "1 run",
            f"{cost.cpu_s:.2f} s of processor time",
            "",
            f"{cost.seconds:.1f} s, {cost.peak_mb:.0f} MB, {cost.threads} threads,"
            f" {cost.descriptors} descriptors",
        )
    few, many = costs[1], costs[-1]
    more = many.boards - few.boards
    yield Row(
        f"one more board, from {few.boards} to {many.boards}",
        "",
        f"{(many.cpu_s - few.cpu_s) / more * 1e3:.0f} ms of processor time,"
        f" {(many.peak_mb - few.peak_mb) / more:.2f} MB",
        "50 ms, 1 MB, 2 descriptors",
        f"{many.descriptors / many.boards:.1f} descriptors a board, {PARALLEL} boards at a time",
    )


@contextmanager
def playing(count: int, folder: Path) -> Iterator[None]:
    """Play boards in another process; ``folder/devices.yaml`` has them."""
    argv = [sys.executable, "-m", "tests.support.servers.played_boards", str(count), str(folder)]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=None) as player:
        if player.stdout is None or player.stdout.readline() != b"ready\n":
            sys.exit("the boards were not played")
        try:
            yield
        finally:
            if player.stdin is not None:
                player.stdin.close()
            player.wait(30)


def _push(bundle: Path, folder: Path, count: int) -> Cost:
    argv = [EDGEPACK, "push", str(bundle), "--device", "all", "--parallel", str(PARALLEL)]
    began = time.perf_counter()
    child = subprocess.Popen(
        argv,
        cwd=folder,
        env={**os.environ, **own_folders(folder)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    threads = descriptors = 0
    while True:
        pid, status, usage = os.wait4(child.pid, os.WNOHANG)
        if pid:
            break
        with suppress(OSError):
            threads = max(threads, _count(f"/proc/{child.pid}/task"))
            descriptors = max(descriptors, _count(f"/proc/{child.pid}/fd"))
        time.sleep(_LOOK_S)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        sys.exit(f"the push to {count} boards ended with {child.returncode}")
    seconds = time.perf_counter() - began
    cpu_s = usage.ru_utime + usage.ru_stime
    return Cost(count, seconds, cpu_s, usage.ru_maxrss / 1e3, threads, descriptors)


def _count(folder: str) -> int:
    return sum(1 for _ in Path(folder).iterdir())

"""Thousands of devices that follow one channel of one registry, all on this machine.

Each has a root of its own, and runs the agent's own code: asks, proves, downloads, installs,
switches. Only the release's self-test is played. Devices are started at random within a window, as
their timers are; then all of them ask once more and find nothing new.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from edgepack.ondevice.agent import edgepack_pull
from edgepack.ondevice.agent.edgepack_state import Folder

from tests.fleet.faults import OLD, Offers
from tests.support.servers.publisher import format_signer
from tests.support.servers.pulling import PullingDevice
from tests.support.servers.registry import Registry

_THREADS = 100
"""Devices of one process that may be at work at once."""


@dataclass(frozen=True)
class Ran:
    """One device's run."""

    result: str
    seconds: float
    requests: int
    received: int


@dataclass(frozen=True)
class Wave:
    """All devices' runs within a window."""

    runs: tuple[Ran, ...]
    seconds: float
    """From the first device's start to the last one's end."""
    registry_cpu_s: float

    def format(self, what: str) -> str:
        """Return its figures as a line."""
        times = sorted(run.seconds for run in self.runs)
        p99 = times[min(len(times) - 1, int(0.99 * len(times)))]
        requests = sum(run.requests for run in self.runs)
        received = sum(run.received for run in self.runs)
        return (
            f"{what:10} {len(self.runs):6} {self.seconds:8.1f} {requests:9} {received / 1e6:9.1f}"
            f" {requests / self.seconds:9.1f} {statistics.median(times):8.2f} {p99:8.2f}"
            f" {self.registry_cpu_s:8.1f}"
        )


HEADER = (
    f"{'':10} {'agents':>6} {'all, s':>8} {'requests':>9} {'MB':>9} {'per s':>9} {'median':>8}"
    f" {'p99, s':>8} {'cpu, s':>8}"
)


def enroll_all(folder: Path, count: int, registry: Registry, offers: Offers) -> list[Path]:
    """Write the roots of so many devices that have nothing yet."""
    offers.publisher.move(offers.manifests[OLD], "stable", 1, offers.key)
    signer = format_signer(offers.key)
    settings = {"repository": offers.publisher.repository, "patience_s": 300.0}
    roots = [folder / f"board-{number}" for number in range(count)]
    for root in roots:
        PullingDevice(root, registry.host, signer, settings)
    return roots


def run_wave(roots: Sequence[Path], window_s: float, registry: Registry, seed: int) -> Wave:
    """Let each device run once, at a random moment of a window."""
    jobs = os.cpu_count() or 1
    chooser = random.Random(seed)
    delays = [chooser.uniform(0.0, window_s) for _ in roots]
    parts = [
        [(str(root), delay) for root, delay in list(zip(roots, delays, strict=True))[job::jobs]]
        for job in range(jobs)
    ]
    cpu_s, began = _read_cpu_s(registry.pid), time.monotonic()
    with multiprocessing.get_context("forkserver").Pool(jobs) as pool:
        runs = [run for part in pool.map(_run_part, parts) for run in part]
    seconds = time.monotonic() - began
    return Wave(tuple(runs), seconds, _read_cpu_s(registry.pid) - cpu_s)


def find_wrong(roots: Sequence[Path], offers: Offers) -> list[str]:
    """Return the devices that do not have the channel's release."""
    wanted = offers.digests[OLD][:16]
    return [
        root.name
        for root in roots
        if not (root / "tiny/current").is_symlink()
        or (root / "tiny/current").readlink().name != wanted
    ]


def _run_part(devices: list[tuple[str, float]]) -> list[Ran]:
    with ThreadPoolExecutor(_THREADS) as pool:
        began = time.monotonic()

        def one(device: tuple[str, float]) -> Ran:
            root, delay = device
            time.sleep(max(0.0, began + delay - time.monotonic()))
            before = _read_counters(root)
            started = time.monotonic()
            result, _ = edgepack_pull.run_once(root, "tiny")
            seconds = time.monotonic() - started
            after = _read_counters(root)
            return Ran(result, seconds, after[0] - before[0], after[1] - before[1])

        return list(pool.map(one, sorted(devices, key=lambda device: device[1])))


def _read_counters(root: str) -> tuple[int, int]:
    path = Path(Folder(root, "tiny").find("report.json"))
    if not path.exists():
        return 0, 0
    found = json.loads(path.read_text())
    return found["requests_total"], found["received_bytes_total"]


def _read_cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

"""A Dask scheduler and workers on 127.0.0.1, started by their own commands, as users start them."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import edgepack

ROOT = Path(__file__).resolve().parents[3]
START_S = 60


@dataclass
class DaskCluster:
    """Where the scheduler listens, and what runs."""

    address: str
    scheduler: subprocess.Popen[bytes]
    workers: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    """By name: each is a nanny, which starts its worker again when that dies."""


@contextmanager
def dask_cluster(workers: dict[str, Sequence[str]]) -> Iterator[DaskCluster]:
    """Start a scheduler and workers, by name with their options, and end them at the end."""
    with tempfile.TemporaryDirectory(prefix="edgepack-dask-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        file = folder / "scheduler.json"
        words = ["--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", file]
        running = DaskCluster("", _start(folder, "scheduler", *words))
        try:
            _wait_for(lambda: file.is_file() and file.read_text().strip(), folder)
            # The file is written in pieces.
            _wait_for(lambda: '"address"' in file.read_text(), folder)
            running.address = _read_address(file)
            for each, options in workers.items():
                words = [running.address, "--host", "127.0.0.1", "--no-dashboard", "--name", each]
                words += ["--local-directory", folder / each]
                running.workers[each] = _start(folder, "worker", *words, *options)
            _wait_for(lambda: _count_workers(folder) == len(workers), folder)
            yield running
        finally:
            # A worker ends by itself when its nanny is gone.
            for child in (*running.workers.values(), running.scheduler):
                child.kill()
            for child in (*running.workers.values(), running.scheduler):
                child.wait(START_S)


def _read_address(file: Path) -> str:
    import json

    end = time.monotonic() + START_S
    while True:
        try:
            return str(json.loads(file.read_text())["address"])
        except ValueError:
            assert time.monotonic() < end
            time.sleep(0.02)


def _count_workers(folder: Path) -> int:
    return (folder / "scheduler.log").read_text().count("Register worker")


def _start(folder: Path, what: str, *words: object) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(ROOT), str(Path(edgepack.__file__).parents[1]))),
        "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "1",
    }
    name = str(words[-1]).replace("/", "_")[-40:] if what == "worker" else what
    with (folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "dask", what, *map(str, words)],
            stdout=log,
            stderr=log,
            env=environment,
            cwd=folder,
        )


def _wait_for(condition: object, folder: Path) -> None:
    assert callable(condition)
    end = time.monotonic() + START_S
    while not condition():
        if time.monotonic() > end:
            logs = [f"{log.name}: {log.read_text()[-2000:]}" for log in folder.glob("*.log")]
            raise AssertionError("\n".join(logs))
        time.sleep(0.05)

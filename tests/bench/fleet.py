"""What a rollout costs over the pushes themselves: 500 devices whose pushes only wait."""

from __future__ import annotations

import contextlib
import io
import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from edgepack.base.progress import Progress, Work
from edgepack.cli.fleet_view import FleetLines
from edgepack.deploy.fleet.bundles import load_bundles_by_target
from edgepack.deploy.fleet.rollout import Done, run_rollout, start_rollout
from edgepack.deploy.fleet.schedule import RolloutSettings, Schedule
from edgepack.deploy.fleet.store import PushOptions, Rollout, RolloutStore
from edgepack.devices.inventory import Device, LocalEntry

from tests.bench.measuring import Row
from tests.support.doubles.fleet_simulation import simulate
from tests.support.reports.tiny_bundle import write_tiny_bundle

DEVICES = 500
RUNS = 3
SETTINGS = RolloutSettings(canary=5, waves=4)
TARGET = "linux-x86-64"


def measure() -> Iterator[Row]:
    """Yield how much longer a rollout takes than its pushes would in the same order."""
    with TemporaryDirectory() as folder:
        root = Path(folder)
        names = [f"device-{number:03}" for number in range(DEVICES)]
        entries = "".join(f"  {n}: {{transport: local, target: {TARGET}}}\n" for n in names)
        inventory = root / "devices.yaml"
        inventory.write_text(f"schema_version: 1\ndevices:\n{entries}")
        bundle = write_tiny_bundle(root / "bundle")
        generator = random.Random(5)
        takes = {name: generator.uniform(0.01, 0.05) for name in names}
        pushes_s = simulate(
            Schedule(names, SETTINGS, generator.random), lambda start: (takes[start.device], None)
        ).seconds
        found = [_seconds(bundle, inventory, root / str(run), takes) for run in range(RUNS)]
    over = sorted(seconds - pushes_s for seconds in found)
    yield Row(
        f"a rollout over {DEVICES} simulated devices, {SETTINGS.parallel} at a time, beyond its"
        " pushes",
        f"{RUNS} runs",
        f"{over[len(over) // 2]:.2f} s",
        "under 5 s",
        f"{over[0]:.2f} to {over[-1]:.2f} s; the pushes alone {pushes_s:.2f} s",
    )


def _seconds(bundle: Path, inventory: Path, folder: Path, takes: dict[str, float]) -> float:
    store = RolloutStore(folder)
    devices = [Device(n, LocalEntry(transport="local", target=TARGET)) for n in takes]

    def push(rollout: Rollout, device: Device, *, progress: Progress) -> Done:
        del rollout
        with progress.start_task(Work("push", total=1)) as advance:
            time.sleep(takes[device.name])
            advance("model")
        return Done(None, "pushed", release="0" * 16, bytes_sent=1)

    with contextlib.redirect_stderr(io.StringIO()):
        started = time.perf_counter()
        rollout = start_rollout(
            load_bundles_by_target([bundle]),
            devices,
            store,
            settings=SETTINGS,
            options=PushOptions(),
        )
        done = run_rollout(rollout.id, store, push, watcher=FleetLines(takes), inventory=inventory)
        seconds = time.perf_counter() - started
    if done.counts != {"done": DEVICES}:
        sys.exit(f"the rollout ended with {dict(done.counts)}{os.linesep}")
    return seconds

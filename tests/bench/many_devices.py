"""Pushing to 16 devices at once against 16 ``scp -r`` at once, and the pushing process's memory.

Every device is a folder behind one real OpenSSH on this machine. Each connection goes through a
link of its own with 10 ms round trip and 12.5 MB/s, as boards with 100 Mbit/s have. Server, links
and clients share this machine's cores, which bound both sides alike.

Run as a program, with a bundle and an inventory, it is the pushing process.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from edgepack.devices.inventory import load_devices

from tests.bench.measuring import (
    Row,
    interleaved,
    own_folders,
    process_seconds,
    ratio_text,
    run,
    scratch,
)
from tests.support.doubles.peak_memory import peak_bytes
from tests.support.reports.tiny_bundle import change_manifest, write_tiny_bundle
from tests.support.servers.fault_proxy import FaultProxy, Wire
from tests.support.servers.openssh_server import OpenSshServer, find_sshd

DEVICES = 16
PAIRS = 4
LINK = Wire(delay_s=0.005, bytes_per_s=12.5e6)
LARGER = 4
"""How many times as many bytes the bundle has whose memory is compared."""


def measure() -> Iterator[Row]:
    """Yield the time of 16 pushes against 16 copies, and memory for a large bundle."""
    if find_sshd() is None:
        sys.exit("there is no sshd: apt-get install openssh-server")
    with scratch() as folder, OpenSshServer(folder / "sshd") as server:
        small, large = write_bundles(folder)
        places = (folder / str(number) for number in range(1000))
        peaks: dict[Path, list[float]] = {small: [], large: []}

        def edgepack(bundle: Path, ports: list[int]) -> float:
            seconds, peak = push_all(server, bundle, next(places), ports)
            peaks[bundle].append(peak)
            return seconds

        def scp(bundle: Path, ports: list[int]) -> float:
            place = next(places)
            place.mkdir()
            options = ["-q", "-r", "-p", *server.client_options()]
            login = f"{server.user}@{server.host}"
            argvs = [
                ["scp", *options, "-P", str(port), str(bundle), f"{login}:{place}/{number}"]
                for number, port in enumerate(ports)
            ]
            began = time.perf_counter()
            with ThreadPoolExecutor(len(argvs)) as pool:
                list(pool.map(process_seconds, argvs))
            return time.perf_counter() - began

        with ExitStack() as stack:
            ports = [
                stack.enter_context(FaultProxy(server.port, to_server=LINK, to_client=LINK)).port
                for _ in range(DEVICES)
            ]
            pairs = interleaved(lambda: edgepack(small, ports), lambda: scp(small, ports), PAIRS)
        yield _row(f"{DEVICES} devices at once, each behind 12.5 MB/s: scp's / ours", pairs, small)
        direct = [server.port] * DEVICES
        pairs = interleaved(lambda: edgepack(small, direct), lambda: scp(small, direct), PAIRS)
        yield _row(f"{DEVICES} devices at once on loopback: scp's / ours", pairs, small)
        edgepack(large, direct)
    before, after = max(peaks[small]), max(peaks[large])
    yield Row(
        f"memory of the process that pushes to {DEVICES} devices: {LARGER} times the bundle",
        "1 run",
        f"{after / before:.2f}",
        "1",
        f"{before / 1e6:.0f} and {after / 1e6:.0f} MB at its peak",
    )


def _row(what: str, pairs: list[tuple[float, float]], bundle: Path) -> Row:
    size = sum(path.stat().st_size for path in bundle.rglob("*") if path.is_file()) * DEVICES
    ours, theirs = (sorted(side)[len(side) // 2] for side in zip(*pairs, strict=True))
    return Row(
        what,
        f"{len(pairs)} pairs",
        ratio_text([(scp, edgepack) for edgepack, scp in pairs]),
        "at least 0.8",
        f"{size / 1e6 / ours:.0f} and {size / 1e6 / theirs:.0f} MB/s together",
    )


def push_all(
    server: OpenSshServer, bundle: Path, place: Path, ports: list[int]
) -> tuple[float, float]:
    """Push a bundle to one new device for each port, in a process of its own.

    Returns:
        Seconds of the rollout, imports not counted, and the process's peak of memory in bytes.
    """
    entry = {
        "transport": "ssh",
        "host": server.host,
        "user": server.user,
        "key": str(server.client_key_path),
        "host_key": server.host_key_fingerprint,
        "ssh_config": os.devnull,
        "python": sys.executable,
        "target": "linux-x86-64",
    }
    entries = [
        entry | {"port": port, "root": str(place / str(number))}
        for number, port in enumerate(ports)
    ]
    place.mkdir()
    inventory = place / "devices.yaml"
    named = {f"board-{number:02}": each for number, each in enumerate(entries)}
    inventory.write_text(json.dumps({"schema_version": 1, "devices": named}))
    argv = [sys.executable, "-m", "tests.bench.many_devices", str(bundle), str(inventory)]
    seconds, peak = json.loads(run(argv, own_folders(place)))
    shutil.rmtree(place)
    return seconds, peak


def write_bundles(folder: Path) -> tuple[Path, Path]:
    """Write a bundle of 45 MB in 201 files beside the tiny one's, and a larger one."""
    random = np.random.default_rng(7)
    bundles = []
    for name, times in (("small", 1), ("large", LARGER)):
        bundle = write_tiny_bundle(folder / name)
        (bundle / "files").mkdir()
        sizes = [40_000_000 * times, *random.integers(2_000, 48_000, 200)]
        entries = [
            _add(bundle, f"files/{k}.bin", random.bytes(int(n))) for k, n in enumerate(sizes)
        ]
        change_manifest(bundle, functools.partial(_extend, entries))
        bundles.append(bundle)
    return bundles[0], bundles[1]


def _add(bundle: Path, path: str, data: bytes) -> dict[str, object]:
    (bundle / path).write_bytes(data)
    digest = hashlib.sha256(data).hexdigest()
    return {"path": path, "sha256": digest, "size_bytes": len(data), "mode": "644", "role": "file"}


def _extend(entries: list[dict[str, object]], manifest: dict[str, Any]) -> None:
    manifest["files"] += entries


def main(bundle: Path, inventory: Path) -> None:
    """Roll a bundle out to all devices of an inventory, and print seconds and peak memory."""
    from edgepack.deploy.fleet.bundles import load_bundles_by_target
    from edgepack.deploy.fleet.rollout import start_rollout
    from edgepack.deploy.fleet.schedule import RolloutSettings
    from edgepack.deploy.fleet.store import PushOptions, RolloutStore
    from edgepack.deploy.rollouts import resume_rollout

    devices = [one for one in load_devices(inventory).values() if one.name != "local"]
    store = RolloutStore()
    began = time.perf_counter()
    rollout = start_rollout(
        load_bundles_by_target([bundle]),
        devices,
        store,
        settings=RolloutSettings(parallel=DEVICES),
        options=PushOptions(self_test=False),
    )
    done = resume_rollout(rollout.id, store, inventory=inventory)
    seconds = time.perf_counter() - began
    if done.counts != {"done": len(devices)}:
        sys.exit(f"the rollout ended with {dict(done.counts)}: {done.devices}")
    print(json.dumps([seconds, peak_bytes()]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

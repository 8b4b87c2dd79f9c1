"""Pushing and fetching against ``rsync -a`` and ``scp -r``, over a slow link to a real OpenSSH.

The link is a proxy on 127.0.0.1 with 10 ms round trip and 12.5 MB/s; each round, every tool brings
the same five versions of a bundle, one after the other, to a place of its own. The bundle has 45
MB: a model of 40 MB and 200 files of 2 to 60 KB. ``edgepack`` is a process whose imports are done;
``rsync`` and ``scp`` are whole processes. All connect anew each time. Fetching goes to the server
without the proxy, against ``ssh cat``.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from edgepack.base.statistics import median
from edgepack.bundle.manifest import MANIFEST, MANIFEST_DIGEST
from edgepack.devices.transports import connect

from tests.bench.measuring import (
    Row,
    Table,
    interleaved,
    interval_text,
    process_seconds,
    ratio_text,
    scratch,
)
from tests.support.reports.tiny_bundle import change_manifest, save_model, write_tiny_bundle
from tests.support.servers.fault_proxy import FaultProxy, Wire
from tests.support.servers.loopback import ssh_device
from tests.support.servers.openssh_server import OpenSshServer, find_sshd
from tests.support.servers.pusher import Pusher

LINK = Wire(delay_s=0.005, bytes_per_s=12.5e6)
ROUNDS = 5
FILES = 200
MODEL = "models/cpu-fp32.onnx"
WIDTH = 1024
LAYERS = 10
FETCHED_BYTES = 200_000_000
FETCHES = 6
CASES = {
    "fresh": "at most 1.1 of rsync, 1.25 of the wire",
    "nothing changed": "at most 1 of rsync, 0.35 s",
    "one small file changed": "at most 0.45 s",
    "5 % of the model changed": "at most 1.2 of rsync",
    "model exported again, 14 bytes longer": "at most 1.2 of rsync",
}


def measure() -> Iterator[Row | Table]:
    """Yield a table of pushes, and a row for fetching."""
    if find_sshd() is None:
        sys.exit("there is no sshd: apt-get install openssh-server")
    with scratch() as folder:
        yield from _pushes(folder)
        yield _fetch(folder)


@dataclass
class Tool:
    """One way to bring a bundle over, and how long that took in each case, in seconds."""

    name: str
    bring: Callable[[Path, Path], float]
    """Takes the bundle and the tool's folder on the device."""
    cases: tuple[str, ...]
    seconds: dict[str, list[float]] = field(default_factory=dict)


def _pushes(folder: Path) -> Iterator[Table | Row]:
    bundles = write_versions(folder / "bundles")
    floor_s = _bytes(bundles["fresh"]) / LINK.bytes_per_s
    with ExitStack() as stack:
        server = stack.enter_context(OpenSshServer(folder / "sshd"))
        proxy = stack.enter_context(FaultProxy(server.port, to_server=LINK, to_client=LINK))
        pusher = stack.enter_context(Pusher())
        tools = make_tools(server, proxy.port, pusher)
        tools[0].bring(bundles["fresh"], folder / "first")  # what is imported late is there now
        for number in range(ROUNDS):
            for tool in tools if number % 2 else tools[::-1]:
                place = folder / f"{tool.name}-{number}"
                for case in tool.cases:
                    spent = tool.bring(bundles[case], place)
                    tool.seconds.setdefault(case, []).append(spent)
                shutil.rmtree(place)
    ours = tools[0]
    title = f"push, 10 ms and 12.5 MB/s: median seconds of {ROUNDS}, and edgepack over each"
    heads = ("", "edgepack", *(f"/ {tool.name}" for tool in tools[1:]), "/ wire", "aim")
    rows = []
    for case, aim in CASES.items():
        cells = [_against(ours, tool, case) for tool in tools[1:]]
        wire = f"{median(ours.seconds[case]) / floor_s:.2f}" if case == "fresh" else ""
        rows.append((case, f"{median(ours.seconds[case]):.2f} s", *cells, wire, aim))
    if not any(tool.name == "rsync" for tool in tools):
        rows.append(("rsync", "absent: apt-get install rsync"))
    yield Table(title, heads, tuple(rows))


def _against(ours: Tool, other: Tool, case: str) -> str:
    if case not in other.seconds:
        return ""
    pairs = list(zip(ours.seconds[case], other.seconds[case], strict=True))
    return f"{median(other.seconds[case]):.2f} s, {ratio_text(pairs)}"


def make_tools(server: OpenSshServer, port: int, pusher: Pusher) -> list[Tool]:
    """Return edgepack, scp, and rsync if it is here."""
    options, login = server.client_options(), f"{server.user}@{server.host}"

    def edgepack(bundle: Path, place: Path) -> float:
        pusher.start(
            bundle,
            ssh_device(server, root=str(place), port=port, python=sys.executable),
            stall_s=300,
        )
        pushed = pusher.result(600)
        if not pushed.ok:
            sys.exit(f"the push failed: {pushed}")
        return pushed.seconds

    def scp(bundle: Path, place: Path) -> float:
        place.mkdir(exist_ok=True)
        argv = ["scp", "-q", "-r", "-p", "-P", str(port), *options]
        return process_seconds([*argv, str(bundle), f"{login}:{place}/bundle"])

    def rsync(bundle: Path, place: Path) -> float:
        ssh = " ".join(["ssh", "-p", str(port), *options])
        argv = [rsync_path, "-a", "--delete", f"--rsync-path={rsync_path}", "-e", ssh]
        return process_seconds([*argv, f"{bundle}/", f"{login}:{place}"])

    found = [Tool("edgepack", edgepack, tuple(CASES)), Tool("scp", scp, ("fresh",))]
    rsync_path = shutil.which("rsync") or ""
    if rsync_path:
        found.append(Tool("rsync", rsync, tuple(CASES)))
    return found


def _fetch(folder: Path) -> Row:
    """Fetch one file of bytes that do not repeat, from the server itself."""
    (folder / "remote").write_bytes(np.random.default_rng(3).bytes(FETCHED_BYTES))
    with OpenSshServer(folder / "fetch") as server, connect(ssh_device(server)) as transport:
        remote, local = PurePosixPath(folder / "remote"), folder / "local"
        cpus: list[float] = []

        def ours() -> float:
            began, cpu = time.perf_counter(), time.process_time()
            transport.get(remote, local, timeout_s=120)
            cpus.append(time.process_time() - cpu)
            return time.perf_counter() - began

        script = f'ssh "$@" cat {remote} > {local}'
        options = [*server.client_options(), "-p", str(server.port)]
        argv = ["sh", "-c", script, "sh", *options, f"{server.user}@{server.host}"]
        ours()
        pairs = interleaved(ours, lambda: process_seconds(argv), FETCHES)
    speeds = [[FETCHED_BYTES / 1e6 / each for each in side] for side in zip(*pairs, strict=True)]
    return Row(
        "fetching 200 MB on loopback, MB/s",
        f"{FETCHES} pairs",
        interval_text(speeds[0]),
        "at least 200",
        f"ssh cat: {interval_text(speeds[1])}; seconds, edgepack / ssh cat: {ratio_text(pairs)};"
        f" edgepack's own processor time {median(cpus):.2f} s",
    )


def write_versions(folder: Path) -> dict[str, Path]:
    """Write the bundle of each case; what did not change is the same file, with its time."""
    random = np.random.default_rng(11)
    first = folder / "0"
    (first / "files").mkdir(parents=True)
    for number in range(FILES):
        data = random.bytes(int(random.integers(2_000, 60_000)))
        (first / "files" / f"{number:03}.bin").write_bytes(data)
    write_tiny_bundle(first, save=lambda path, size: path.write_bytes(deep_model(size)))
    second = _changed(first, {"files/100.bin": random.bytes(30_000)})
    third = _changed(second, {MODEL: deep_model(tuned=True)})
    fourth = _changed(third, {MODEL: deep_model(tuned=True, producer="exported again")})
    return dict(zip(CASES, (first, first, second, third, fourth), strict=True))


def deep_model(size: int = 8, *, tuned: bool = False, producer: str = "") -> bytes:
    """Return a model of 40 MB that gives what tiny_bundle's gives.

    Args:
        size: As of the tiny model; its input is (n, 3, size, size) float32.
        tuned: Whether 5 % of the weights, in one piece, have other values.
        producer: Stands before the graph, so that its length moves all that follows.
    """
    import onnx
    from onnx import helper, numpy_helper

    with scratch() as folder:
        save_model(folder / "tiny.onnx", size)
        model = onnx.load(folder / "tiny.onnx")
    model.producer_name = producer
    random = np.random.default_rng(13)
    widths = [3 * size * size, *[WIDTH] * LAYERS, 4 * size * size]
    weights = {
        f"w{layer}": random.standard_normal(pair).astype(np.float32) / np.sqrt(pair[0], dtype="f4")
        for layer, pair in enumerate(itertools.pairwise(widths))
    }
    if tuned:
        weights["w5"][: WIDTH // 2] *= np.float32(1.01)
    nodes = [helper.make_node("Flatten", ["x"], ["h0"])]
    nodes += [
        helper.make_node("MatMul", [f"h{k}", name], [f"h{k + 1}"]) for k, name in enumerate(weights)
    ]
    # Multiplied by nothing: the outputs, and so the golden ones, do not depend on the weights.
    nodes += [
        helper.make_node("Mul", [f"h{len(weights)}", "nothing"], ["silent"]),
        helper.make_node("Reshape", ["silent", "shape"], ["added"]),
        helper.make_node("Add", ["tiny", "added"], ["y"]),
    ]
    model.graph.node[-1].output[0] = "tiny"
    model.graph.node.extend(nodes)
    constants = {"nothing": np.zeros(1, np.float32), "shape": np.array([-1, 4, size, size])}
    for name, values in (weights | constants).items():
        model.graph.initializer.append(numpy_helper.from_array(values, name))
    return model.SerializeToString()


def _changed(earlier: Path, files: dict[str, bytes]) -> Path:
    """Write the version after another: files are links to its files but for what changed."""
    folder = earlier.with_name(str(int(earlier.name) + 1))
    shutil.copytree(earlier, folder, copy_function=os.link)
    own = [*files, MANIFEST, MANIFEST_DIGEST]
    for name in own:
        (folder / name).unlink()
        shutil.copy(earlier / name, folder / name)
    for name, data in files.items():
        (folder / name).write_bytes(data)
        change_manifest(folder, functools.partial(_describe, name, data))
    for name in own:  # a later time, whatever the file system's clock ticks in
        at = (earlier / name).stat().st_mtime + 60
        os.utime(folder / name, (at, at))
    return folder


def _describe(name: str, data: bytes, manifest: dict[str, Any]) -> None:
    digest = hashlib.sha256(data).hexdigest()
    for entry in manifest["files"]:
        if entry["path"] == name:
            entry |= {"sha256": digest, "size_bytes": len(data)}
    for variant in manifest["variants"]:
        if variant["model"] == name:
            variant["model_sha256"] = digest


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())

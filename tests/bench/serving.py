"""A model behind ``edgepack serve`` against calling its bundle's loader.

Both hold the same bundle, whose model takes about 20 ms here; the client is wrk, which has no
session whose threads would take the cores. What HTTP costs at one connection is measured in pairs
of processes, a service and a program that calls the loader, in the order A B B A, all on one core,
because a model is some percent slower in one process than in the next. A row compares the program
with itself in the same way: what that is away from 1 is noise. The table is of one process each, on
all cores; while one side works the other sleeps.
"""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime as ort
from edgepack.base.statistics import median
from onnx import TensorProto, helper

from tests.bench.measuring import (
    Row,
    Table,
    build_command,
    interleaved,
    one_core,
    own_folders,
    ratio_text,
    run,
    scratch,
)
from tests.support.nets.tiny_models import save
from tests.support.servers.service import serving

MODEL_MS = 20.0
PAIRS = 10
ROUND_S = 2
TABLE_ROUND_S = 3
CONNECTIONS = (1, 2, 4, 8, 16, 32, 64)
AIM = "at most 1.01"
SIDE, FLOATS = 224, 296
"""Of a picture of bytes, and of one of floats that has 1 MB."""
# wrk hands its script latencies in microseconds.
SCRIPT = """\
wrk.method = "POST"
local file = io.open("{body}", "rb")
wrk.body = file:read("*a")
file:close()
{headers}
function done(summary, latency, requests)
  local errors, total = summary.errors, 0
  for _, count in pairs(errors) do total = total + count end
  local form = '\\nFOUND {{"p50": %f, "p99": %f, "count": %d, "us": %f, "errors": %d}}\\n'
  local p50, p99 = latency:percentile(50), latency:percentile(99)
  io.write(string.format(form, p50, p99, summary.requests, summary.duration, total))
end
"""


class Round(NamedTuple):
    """What one side did in a round."""

    p50_ms: float
    p99_ms: float
    per_s: float


Side = Callable[[int, float], Round]
"""Takes how many connections, or threads, and for how many seconds."""


def measure() -> Iterator[Row | Table]:
    """Yield what HTTP costs at one connection, and throughput and p99 at 1 to 64."""
    if shutil.which("wrk") is None:
        sys.exit("serving needs wrk: apt-get install wrk")
    for dtype, shape in (("uint8", (SIDE, SIDE, 3)), ("float32", (1, 3, FLOATS, FLOATS))):
        with scratch() as folder:
            yield from _measure_model(folder, dtype, shape)


def _measure_model(folder: Path, dtype: str, shape: tuple[int, ...]) -> Iterator[Row | Table]:
    bundle = _build(folder, dtype, shape)
    rng = np.random.default_rng(3)
    given = (
        rng.integers(0, 256, shape, np.uint8)
        if dtype == "uint8"
        else rng.uniform(0, 1, shape).astype(np.float32)
    )
    np.savez(folder / "inputs.npz", x=given)
    size = f"{given.nbytes / 1e6:.2f} MB of {dtype}"
    binary, json_body = (_write_script(folder, given, binary=each) for each in (True, False))

    def call() -> float:
        with _direct(folder, bundle) as direct:
            return _warm(direct)

    def ask(script: Path) -> float:
        with serving(bundle) as service:
            return _warm(_http(script, service.url))

    with one_core():
        for encoding, script in (("binary", binary), ("JSON", json_body)):
            what = f"over HTTP / the loader, {size} as {encoding}"
            yield _row(what, functools.partial(ask, script), call, AIM)
        yield _row("noise: the loader / the loader", call, call, "1")
    with serving(bundle) as service, _direct(folder, bundle) as direct:
        yield _table(size, _http(binary, service.url), direct)


def _warm(side: Side) -> float:
    side(1, 1)
    return side(1, ROUND_S).p50_ms


def _row(what: str, first: Callable[[], float], second: Callable[[], float], aim: str) -> Row:
    pairs = interleaved(first, second, PAIRS)
    ours, theirs = (median(side) for side in zip(*pairs, strict=True))
    beside = f"medians {ours:.2f} ms, {theirs:.2f} ms"
    return Row(what, f"{PAIRS} pairs", ratio_text(pairs), aim, beside)


def _table(size: str, http: Side, direct: Side) -> Table:
    rows = []
    for count in CONNECTIONS:
        ours, theirs = http(count, TABLE_ROUND_S), direct(count, TABLE_ROUND_S)
        rows.append(
            (
                str(count),
                f"{ours.per_s:.1f}",
                f"{theirs.per_s:.1f}",
                f"{ours.per_s / theirs.per_s:.3f}",
                f"{ours.p99_ms:.0f}",
                f"{theirs.p99_ms:.0f}",
            )
        )
    heads = (
        "connections, or threads",
        "HTTP /s",
        "loader /s",
        "ratio",
        "HTTP p99 ms",
        "loader p99",
    )
    return Table(f"throughput of a model with {size}, binary", heads, tuple(rows))


def _build(folder: Path, dtype: str, shape: tuple[int, ...]) -> Path:
    """Build a bundle whose model takes about :data:`MODEL_MS` on this machine."""
    layers = 4
    for _ in range(3):
        _write_model(folder / "net.onnx", dtype, shape, layers)
        layers = max(1, round(layers * MODEL_MS / _time_ms(folder / "net.onnx", dtype, shape)))
    _write_model(folder / "net.onnx", dtype, shape, layers)
    rng = np.random.default_rng(2)
    values = rng.uniform(0, 255, (2, *shape)).astype(dtype)
    samples = values if dtype == "uint8" else values[:, 0]
    np.savez(folder / "samples.npz", x=samples)
    project = folder / "edgepack.yaml"
    project.write_text(
        "schema_version: 1\nname: net\nmodel: net.onnx\n"
        "samples: {calibration: {path: samples.npz}}\n"
        "targets: [{id: host, variants: [{backend: cpu, recipe: fp32}]}]\n"
    )
    run(build_command(project, folder / "dist"), own_folders(folder))
    (bundle,) = (path for path in (folder / "dist").iterdir() if path.is_dir())
    return bundle


def _write_model(path: Path, dtype: str, shape: tuple[int, ...], layers: int) -> None:
    rng = np.random.default_rng(1)
    node = helper.make_node
    first, width = 3, 16
    if dtype == "uint8":
        nodes = [
            node("Cast", ["x"], ["f"], "f", to=TensorProto.FLOAT),
            node("Transpose", ["f"], ["t"], "t", perm=[2, 0, 1]),
            node("Unsqueeze", ["t", "axes"], ["h0"], "h0"),
        ]
        constants = [("axes", np.array([0]))]
        kind = TensorProto.UINT8
    else:
        nodes, constants, kind = [node("Identity", ["x"], ["h0"], "h0")], [], TensorProto.FLOAT
    for number in range(layers):
        weights = rng.standard_normal((width, first, 3, 3)).astype(np.float32) / (3 * first)
        constants.append((f"w{number}", weights))
        nodes.append(
            node("Conv", [f"h{number}", f"w{number}"], [f"c{number}"], pads=[1] * 4, strides=[1, 1])
        )
        nodes.append(node("Relu", [f"c{number}"], [f"h{number + 1}"]))
        first = width
    nodes.append(node("GlobalAveragePool", [f"h{layers}"], ["pooled"]))
    nodes.append(node("Flatten", ["pooled"], ["y"]))
    save(path, nodes, [("x", kind, shape)], [("y", TensorProto.FLOAT, [1, width])], constants)


# The shortest: other work on the machine makes none faster.
def _time_ms(model: Path, dtype: str, shape: tuple[int, ...]) -> float:
    session = ort.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    feed, found = {"x": np.zeros(shape, dtype)}, []
    for _ in range(30):
        began_s = time.perf_counter()
        session.run(None, feed)
        found.append(1000 * (time.perf_counter() - began_s))
    return min(found)


def _write_script(folder: Path, given: np.ndarray[Any, Any], *, binary: bool) -> Path:
    """Write what wrk sends, and return its script."""
    entry: dict[str, Any] = {"name": "x", "shape": given.shape}
    entry["datatype"] = {"uint8": "UINT8", "float32": "FP32"}[given.dtype.name]
    headers = {"Content-Type": "application/json"}
    if binary:
        entry["parameters"] = {"binary_data_size": given.nbytes}
        document = {"inputs": [entry], "parameters": {"binary_data_output": True}}
        body = json.dumps(document).encode()
        headers = {"Inference-Header-Content-Length": str(len(body))}
        body += given.tobytes()
    else:
        entry["data"] = given.reshape(-1).tolist()
        body = json.dumps({"inputs": [entry]}).encode()
    script = folder / f"{'binary' if binary else 'json'}.lua"
    (folder / script.stem).write_bytes(body)
    lines = "\n".join(f'wrk.headers["{name}"] = "{value}"' for name, value in headers.items())
    script.write_text(SCRIPT.format(body=folder / script.stem, headers=lines))
    return script


def _http(script: Path, url: str) -> Side:
    """Return what asks a service for one answer after the other, on each of its connections."""

    def ask(connections: int, seconds: float) -> Round:
        argv = ["wrk", "-t1", f"-c{connections}", f"-d{seconds:g}s", "--timeout=60s"]
        printed = run([*argv, f"-s{script}", f"{url}/v2/models/net/infer"]).decode()
        found = json.loads(printed.split("FOUND")[1])
        if found["errors"]:
            sys.exit(f"wrk saw errors:\n{printed}")
        return Round(found["p50"] / 1000, found["p99"] / 1000, found["count"] / found["us"] * 1e6)

    return ask


@contextmanager
def _direct(folder: Path, bundle: Path) -> Iterator[Side]:
    """Give what calls the loader in a process of its own."""
    script = Path(__file__).with_name("serving_direct.py")
    argv = [sys.executable, "-B", str(script), str(bundle), str(folder / "inputs.npz")]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdout.readline()

    def call(threads: int, seconds: float) -> Round:
        process.stdin.write(f"{threads} {seconds}\n")
        process.stdin.flush()
        found = json.loads(process.stdout.readline())
        ms = np.percentile(found["latencies_ms"], [50, 99])
        return Round(*map(float, ms), len(found["latencies_ms"]) / found["seconds"])

    try:
        yield call
    finally:
        process.stdin.close()
        process.wait()

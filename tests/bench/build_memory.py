"""How much memory a build takes, beside what it says before its first step that it needs.

Nets with large activations or large weights are made here, those of public models stand beside
them where EDGEPACK_TEST_DATA names them. Each is built for this machine, and inspected, from an
empty cache; meanwhile what all processes of the command hold is added up again and again: the
proportional set size, in which a page that several share counts once (proc(5),
``/proc/pid/smaps_rollup``). What is held for less than a tenth of a second is not seen. Linux only.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto

from tests.bench.measuring import EDGEPACK, Table, build_command, own_folders, scratch
from tests.bench.projects import SQUEEZENET, public_data, write_project
from tests.bench.quantization_tasks import tasks
from tests.support.nets import encoder_nets
from tests.support.nets.net_builder import NetBuilder
from tests.support.nets.tiny_models import save

Array = np.ndarray[Any, Any]

SAMPLES = 16
EVERY_S = 0.1
LIMIT_S = 1800
_SAID = re.compile(r"a build needs about ([\d.]+) GB of memory")


def measure() -> Iterator[Table]:
    """Yield a table with a row for each model."""
    if sys.platform != "linux":
        return
    rows = []
    for name, write in _projects().items():
        with scratch() as folder:
            (folder / "project").mkdir()
            rows.append(_row(name, write(folder / "project"), folder))
            print(*rows[-1], file=sys.stderr)
    yield Table(
        "memory of builds, all processes together",
        ("model", "said GB", "taken GB", "said / taken", "inspect GB"),
        tuple(rows),
    )


def _row(name: str, project: Path, folder: Path) -> tuple[str, ...]:
    environment = own_folders(folder)
    said, taken = _run(build_command(project, folder / "dist"), environment)
    inspect = [EDGEPACK, "inspect", "--project", str(project), "--target", "host"]
    _, inspected = _run(inspect, environment)
    needed = _SAID.search(said)
    if needed is None:
        sys.exit(f"the build of {name} does not say what it needs:\n{said}")
    size = float(needed[1])
    ratio = size * 1e9 / taken
    return name, f"{size:.1f}", f"{taken / 1e9:.2f}", f"{ratio:.2f}", f"{inspected / 1e9:.2f}"


def _run(argv: Sequence[str], environment: Mapping[str, str]) -> tuple[str, int]:
    """Return what a command says, and the most bytes that it and its children held together."""
    given = {**os.environ, "ORT_DISABLE_TELEMETRY": "1", **environment}
    with tempfile.TemporaryFile() as said:
        started = time.monotonic()
        process = subprocess.Popen(
            argv, env=given, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT
        )
        most = 0
        while process.poll() is None:
            most = max(most, sum(map(_pss_bytes, _family(process.pid))))
            if time.monotonic() - started > LIMIT_S:
                process.kill()
            time.sleep(EVERY_S)
        said.seek(0)
        text = said.read().decode("utf-8", "replace")
    if process.returncode:
        sys.exit(f"{' '.join(argv)} failed:\n{text}")
    return text, most


def _family(first: int) -> Iterator[int]:
    """Yield a process and all that descend from it."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # Behind the name, which may hold anything: state and parent (proc(5)).
            parent = int(stat.read_text(errors="replace").rpartition(")")[2].split()[1])
            children[parent].append(int(stat.parent.name))
    waiting = [first]
    while waiting:
        yield (process := waiting.pop())
        waiting += children[process]


def _pss_bytes(process: int) -> int:
    """Return what a process holds; 0 of one that has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return 1024 * int(line.split()[1])
    return 0


def _projects() -> dict[str, Callable[[Path], Path]]:
    """Return by name what writes a project into a folder and returns its file."""
    found = {
        "conv net, 448 x 448": _pictures,
        "25 MB of weights": _heavy,
        "transformer": _sentences,
        "conv net over sound": _sound,
    }
    if (data := public_data()) is not None:
        limited = f"limit: {SAMPLES}}}"
        samples = (
            f"{{calibration: {{images: images, {limited},"
            f" evaluation: {{images: images, labels: labels.csv, {limited}}}"
        )
        found[SQUEEZENET.name] = lambda folder: write_project(folder, SQUEEZENET, data, samples)
        found["resnet20"] = lambda folder: _resnet20(folder, data.parent)
    return found


def _pictures(folder: Path) -> Path:
    return _convolutions(folder, [1, 3, 448, 448], kernel=[3, 3], layers=3)


def _sound(folder: Path) -> Path:
    """Write a net for one second at 16 kHz."""
    return _convolutions(folder, [1, 1, 16000], kernel=[9], layers=6)


def _convolutions(folder: Path, shape: list[int], *, kernel: list[int], layers: int) -> Path:
    net = NetBuilder(np.random.default_rng(0))
    last, width, channels = "x", shape[1], 16
    for n in range(layers):
        size = [channels, width, *kernel]
        weights = net.random.standard_normal(size) * np.sqrt(2 / np.prod(size[1:]))
        pads = [k // 2 for k in kernel] * 2
        inputs = [last, net.constant(f"w{n}", weights), net.constant(f"b{n}", np.zeros(channels))]
        last = net.add("Relu", [net.add("Conv", inputs, f"c{n}", pads=pads)], f"r{n}")
        width = channels
    pooled = net.add("Flatten", [net.add("GlobalAveragePool", [last], "pool")], "flat")
    classes = net.constant("classes", net.random.standard_normal((channels, 10)))
    net.add("MatMul", [pooled, classes], "y")
    return _project(folder, net, shape, 10)


def _heavy(folder: Path) -> Path:
    """Write a net of six matrices of 1024 x 1024."""
    net = NetBuilder(np.random.default_rng(0))
    last, width = "x", 1024
    for n in range(6):
        weights = net.random.standard_normal((width, width)) * np.sqrt(2 / width)
        inputs = [last, net.constant(f"w{n}", weights), net.constant(f"b{n}", np.zeros(width))]
        last = net.add("Relu", [net.add("Gemm", inputs, f"g{n}")], f"r{n}")
    net.add("MatMul", [last, net.constant("classes", net.random.standard_normal((width, 10)))], "y")
    return _project(folder, net, [1, width], 10)


def _project(folder: Path, net: NetBuilder, shape: list[int], classes: int) -> Path:
    given, made = ("x", TensorProto.FLOAT, shape), ("y", TensorProto.FLOAT, [1, classes])
    save(folder / "model.onnx", net.nodes, [given], [made], net.constants)
    random = np.random.default_rng(1)
    return _with_arrays(
        folder, [{"x": random.standard_normal((SAMPLES, *shape[1:]), np.float32)} for _ in range(2)]
    )


def _sentences(folder: Path) -> Path:
    encoder_nets.encoder(folder / "model.onnx", layers=3)
    random = np.random.default_rng(1)
    ids = [random.integers(0, encoder_nets.WORDS, (SAMPLES, 24)) for _ in range(2)]
    return _with_arrays(
        folder, [{"input_ids": each, "attention_mask": np.ones_like(each)} for each in ids]
    )


def _resnet20(folder: Path, root: Path) -> Path:
    task = next(task for task in tasks(root) if task.name == "resnet20")
    (folder / "model.onnx").symlink_to(task.model)
    arrays = task.calibration()
    halves = arrays[:SAMPLES], arrays[SAMPLES : 2 * SAMPLES]
    return _with_arrays(folder, [{task.input_name: each} for each in halves])


def _with_arrays(folder: Path, halves: Sequence[Mapping[str, Array]]) -> Path:
    for name, arrays in zip(("calibration", "evaluation"), halves, strict=True):
        np.savez(folder / f"{name}.npz", **arrays)
    project = folder / "edgepack.yaml"
    project.write_text(
        "schema_version: 1\nname: measured\nmodel: model.onnx\nsamples:\n"
        "  calibration: {path: calibration.npz}\n  evaluation: {path: evaluation.npz}\n",
        encoding="utf-8",
    )
    return project

"""Accuracy of int8 models: edgepack's beside onnxruntime's, NNCF's and onnxsim's, in one run.

Every tool gets the same simplified float model and the same calibration samples, and every int8
model is judged by the same other samples, in the same kind of session. The dialect is what the
tool can be told: NNCF and onnxsim choose their own. Times are of one call on this machine: they
include calibration and writing, not imports. In each dialect, edgepack's model and onnxruntime's
run in turns on one core, to compare their latency.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from edgepack.base.statistics import median
from edgepack.metrics.accuracy import compute_paired_drop, sqnr_db
from edgepack.model.running import make_session

from tests.bench.measuring import Row, Table, interleaved, one_core, ratio_text, run, scratch
from tests.bench.peers import peer_python
from tests.bench.projects import VARIABLE
from tests.bench.quantization_tasks import Task, tasks

HERE = Path(__file__).resolve().parent
DIALECTS = {
    "u8/s8 per channel": ("activations=uint8", "weights=int8", "symmetric=no", "per_channel=yes"),
    "s8/s8 symmetric": ("activations=int8", "weights=int8", "symmetric=yes", "per_channel=yes"),
    "u8/u8 per tensor": ("activations=uint8", "weights=uint8", "symmetric=no", "per_channel=no"),
    "u16/s8 per channel": ("activations=uint16", "weights=int8", "symmetric=no", "per_channel=yes"),
}
OTHERS = (
    ("NNCF, default", "nncf", ()),
    ("NNCF, best", "nncf", ("preset=mixed", "fast=no")),
    ("onnxsim, minmax", "onnxsim", ("method=minmax",)),
)
"""What is compared with all dialects: tools that choose their own."""
LATENCY_PAIRS = 20
TURN_SECONDS = 0.2
"""How long one model runs before it is the other's turn."""


@dataclass(frozen=True)
class Scheme:
    """One way to quantize."""

    name: str
    tool: str
    options: tuple[str, ...]


@dataclass
class Quantized:
    """An int8 model, what it took, and what it computes."""

    scheme: Scheme
    took: dict[str, float]
    path: Path
    outputs: list[np.ndarray[Any, Any]] = field(default_factory=list)


def schemes() -> Iterator[Scheme]:
    """Yield what is compared, in the order of the table."""
    for dialect, options in DIALECTS.items():
        for tool in ("edgepack", "onnxruntime"):
            yield Scheme(f"{tool}, {dialect}", tool, options)
    for name, tool, options in OTHERS:
        yield Scheme(name, tool, options)


def measure() -> Iterator[Row | Table]:
    """Yield one table for each model."""
    root = os.environ.get(VARIABLE, "")
    if not root:
        return
    for task in tasks(Path(root).resolve()):
        with scratch() as folder:
            yield from _compared(task, folder)


def _compared(task: Task, folder: Path) -> Iterator[Row | Table]:
    samples = folder / "samples.npy"
    np.save(samples, task.calibration())
    model = folder / "model.onnx"
    run(
        [sys.executable, "-m", "tests.bench.edgepack_tool", "simplify", str(task.model), str(model)]
    )
    tried = [_quantized(scheme, task, model, samples, folder) for scheme in schemes()]
    made = [each for each in tried if isinstance(each, Quantized)]
    reference = _evaluate(task, model, made)
    rows = [_row(each, task, reference) for each in tried]
    heads = ("", "top-1 %", "drop, points (95 %)", "agrees %", "SQNR dB", "s", "peak MB")
    count = len(reference)
    yield Table(f"{task.name}, int8 against fp32 on {count} samples", heads, tuple(rows))
    paths = {each.scheme.name: each.path for each in made}
    for dialect in DIALECTS:
        pair = [paths.get(f"{tool}, {dialect}") for tool in ("edgepack", "onnxruntime")]
        if all(pair):
            yield _latency(f"{task.name}, {dialect}", task, [path for path in pair if path])


def _latency(what: str, task: Task, models: list[Path]) -> Row:
    feed = {task.input_name: next(task.evaluation())}
    with one_core():
        ours, theirs = (_turns(path, feed) for path in models)
        pairs = interleaved(ours, theirs, LATENCY_PAIRS)
    ms = [1000 * median(side) for side in zip(*pairs, strict=True)]
    return Row(
        f"latency / that of onnxruntime's int8 model, {what}",
        f"{LATENCY_PAIRS} pairs",
        ratio_text(pairs),
        "at most 1.02",
        f"medians {ms[0]:.3f} ms, {ms[1]:.3f} ms",
    )


def _turns(model: Path, feed: dict[str, np.ndarray[Any, Any]]) -> Callable[[], float]:
    """Return what runs a model for a while, and returns the median seconds of a run."""
    session = make_session(model)

    def turn() -> float:
        took: list[float] = []
        while sum(took) < TURN_SECONDS:
            started = time.perf_counter()
            session.run(None, feed)
            took.append(time.perf_counter() - started)
        return median(took)

    turn()
    return turn


def _quantized(
    scheme: Scheme, task: Task, model: Path, samples: Path, folder: Path
) -> Quantized | tuple[Scheme, str]:
    """Return the model, or why the tool did not make it."""
    out = folder / f"{scheme.name.replace('/', '-')}.onnx"
    tool = [str(peer_python()), str(HERE / "peer_tool.py"), scheme.tool]
    if scheme.tool == "edgepack":
        tool = [sys.executable, "-m", "tests.bench.edgepack_tool", "quantize"]
    argv = [*tool, str(model), task.input_name, str(samples), str(out)]
    done = subprocess.run(
        [*argv, *scheme.options],
        env={**os.environ, "ORT_DISABLE_TELEMETRY": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=1800,
    )
    if done.returncode:
        last = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        return scheme, " ".join(last)
    return Quantized(scheme, json.loads(done.stdout.splitlines()[-1]), out)


def _evaluate(task: Task, model: Path, made: list[Quantized]) -> list[np.ndarray[Any, Any]]:
    """Run every model on every sample, and return what the float model gives."""
    float_session = make_session(model)
    sessions = [make_session(each.path) for each in made]
    reference = []
    for sample in task.evaluation():
        feed = {task.input_name: sample}
        reference.append(float_session.run(None, feed)[0].ravel().astype(np.float64))
        for each, session in zip(made, sessions, strict=True):
            each.outputs.append(session.run(None, feed)[0].ravel().astype(np.float64))
    return reference


def _row(
    made: Quantized | tuple[Scheme, str], task: Task, reference: list[np.ndarray[Any, Any]]
) -> tuple[str, ...]:
    if isinstance(made, tuple):
        scheme, why = made
        return (scheme.name, f"refused: {why[:300]}")
    ours, theirs = np.stack(reference), np.stack(made.outputs)
    best, other = ours.argmax(axis=1), theirs.argmax(axis=1)
    top1 = drop = "-"
    if task.labels is not None:
        hits = [list((each == task.labels).astype(float)) for each in (best, other)]
        found = compute_paired_drop(*hits)
        top1 = f"{100 * np.mean(hits[1]):.1f}"
        low, high = found.interval or (found.value, found.value)
        drop = f"{100 * found.value:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"
    noise = float(np.sum((ours - theirs) ** 2))
    return (
        made.scheme.name,
        top1,
        drop,
        f"{100 * np.mean(best == other):.1f}",
        f"{sqnr_db(float(np.sum(ours**2)), noise):.1f}",
        f"{made.took['seconds']:.1f}",
        f"{made.took['peak_bytes'] / 1e6:.0f}",
    )

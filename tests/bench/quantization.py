"""Accuracy of int8 models: edgepack's beside onnxruntime's, NNCF's and onnxsim's, in one run.

Every tool gets the same simplified float model and the same calibration samples, and every int8
model is judged by the same other samples, in the same kind of session; five draws of both tell how
much of a difference is the draw. The dialect is what the tool can be told: NNCF and onnxsim choose
their own. Times are of one call on this machine: they include calibration and writing, not imports.
In each dialect, edgepack's model and onnxruntime's run in turns on one core, to compare their
latency.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from edgepack.base.arrays import Array
from edgepack.base.statistics import median
from edgepack.errors import ModelError
from edgepack.metrics.accuracy import sqnr_db
from edgepack.model.running import make_session

from tests.bench.measuring import (
    Row,
    Table,
    interleaved,
    mean_text,
    one_core,
    ratio_text,
    run,
    scratch,
)
from tests.bench.peers import peer_python
from tests.bench.projects import VARIABLE
from tests.bench.quantization_tasks import Task, tasks

if TYPE_CHECKING:
    import onnxruntime

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
"""Tools that choose their own dialect, which is :data:`THEIRS`: their models of ResNet-20 have int8
weights with a scale per channel; activations are uint8, and for NNCF int8 where they are signed."""
THEIRS = "u8/s8 per channel"
LATENCY_PAIRS = 20
DRAWS = 5
"""Each of other samples to calibrate with; agreement differs between them by a point or two."""
MODEL = "model.onnx"
TURN_SECONDS = 0.2
"""How long one model runs before it is the other's turn."""


@dataclass(frozen=True)
class Scheme:
    """One way to quantize."""

    name: str
    tool: str
    options: tuple[str, ...]


@dataclass(frozen=True)
class Quantized:
    """An int8 model, and what it took."""

    scheme: Scheme
    took: dict[str, float]
    path: Path


@dataclass(frozen=True)
class Refused:
    """A model that a tool did not make."""

    scheme: Scheme
    why: str


@dataclass(frozen=True)
class Judged:
    """How near one int8 model of one draw is to the float one."""

    scheme: Scheme
    samples: int
    agrees: float
    """Percent of the samples with the float model's best class."""
    drop: float | None
    """Points of top-1; None without labels."""
    sqnr_db: float
    took: dict[str, float]


def schemes() -> Iterator[Scheme]:
    """Yield what is compared, in the order of the table."""
    for dialect, options in DIALECTS.items():
        for tool in ("edgepack", "onnxruntime"):
            yield Scheme(f"{tool}, {dialect}", tool, options)
    for name, tool, options in OTHERS:
        yield Scheme(name, tool, options)


def measure() -> Iterator[Row | Table]:
    """Yield one table for each model, over all draws, and the latencies of the first draw."""
    root = os.environ.get(VARIABLE, "")
    if not root:
        return
    data = Path(root).resolve()
    draws = [list(tasks(data, seed)) for seed in range(DRAWS)]
    for drawn in zip(*draws, strict=True):
        found: list[list[Judged | Refused]] = []
        for number, task in enumerate(drawn):
            with scratch() as folder:
                made = _make_all(task, folder)
                found.append(_judge(task, folder / MODEL, made))
                if number == 0:
                    yield from _compare_latency(task, made)
        yield _make_table(drawn[0].name, found)


def _make_all(task: Task, folder: Path) -> list[Quantized | Refused]:
    samples = folder / "samples.npy"
    np.save(samples, task.calibration())
    model = folder / MODEL
    run(
        [sys.executable, "-m", "tests.bench.edgepack_tool", "simplify", str(task.model), str(model)]
    )
    return [_quantize(scheme, task, model, samples, folder) for scheme in schemes()]


def _compare_latency(task: Task, made: list[Quantized | Refused]) -> Iterator[Row]:
    paths = {each.scheme.name: each.path for each in made if isinstance(each, Quantized)}
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


def _turns(model: Path, feed: dict[str, Array]) -> Callable[[], float]:
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


def _quantize(
    scheme: Scheme, task: Task, model: Path, samples: Path, folder: Path
) -> Quantized | Refused:
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
        return Refused(scheme, " ".join(last))
    return Quantized(scheme, json.loads(done.stdout.splitlines()[-1]), out)


def _judge(task: Task, model: Path, made: list[Quantized | Refused]) -> list[Judged | Refused]:
    """Run every model on every sample, and compare it with the float model."""
    float_session = make_session(model)
    models: list[Quantized] = []
    sessions: list[onnxruntime.InferenceSession] = []
    refused = [each for each in made if isinstance(each, Refused)]
    for each in made:
        if isinstance(each, Quantized):
            try:
                sessions.append(make_session(each.path))
                models.append(each)
            except ModelError as error:
                refused.append(Refused(each.scheme, error.first_line))
    reference: list[Array] = []
    outputs: list[list[Array]] = [[] for _ in models]
    for sample in task.evaluation():
        feed = {task.input_name: sample}
        reference.append(_run(float_session, feed))
        for session, found in zip(sessions, outputs, strict=True):
            found.append(_run(session, feed))
    ours = np.stack(reference)
    judged = (
        _compare(each, ours, np.stack(found), task)
        for each, found in zip(models, outputs, strict=True)
    )
    return [*judged, *refused]


def _run(session: onnxruntime.InferenceSession, feed: dict[str, Array]) -> Array:
    return np.asarray(session.run(None, feed)[0]).ravel().astype(np.float64)


def _compare(made: Quantized, ours: Array, theirs: Array, task: Task) -> Judged:
    best, other = ours.argmax(axis=1), theirs.argmax(axis=1)
    hits = [] if task.labels is None else [float(np.mean(c == task.labels)) for c in (best, other)]
    return Judged(
        made.scheme,
        len(ours),
        100 * float(np.mean(best == other)),
        100 * (hits[0] - hits[1]) if hits else None,
        sqnr_db(float(np.sum(ours**2)), float(np.sum((ours - theirs) ** 2))),
        made.took,
    )


def _make_table(name: str, draws: list[list[Judged | Refused]]) -> Table:
    """Return the means over the draws, and how much more edgepack agrees than the best peer."""
    by_scheme: dict[Scheme, list[Judged]] = {scheme: [] for scheme in schemes()}
    why: dict[Scheme, str] = {}
    for each in (each for draw in draws for each in draw):
        if isinstance(each, Refused):
            why[each.scheme] = each.why
        else:
            by_scheme[each.scheme].append(each)
    whole = {scheme: found for scheme, found in by_scheme.items() if len(found) == len(draws)}
    rows = [
        _make_row(scheme, found, _find_best_peer(scheme, whole))
        if scheme in whole
        else (scheme.name, f"{len(draws) - len(found)} draws refused: {why.get(scheme, '')[:200]}")
        for scheme, found in by_scheme.items()
    ]
    heads = ("", "agrees %", "- best peer", "drop, points", "SQNR dB", "s", "peak MB")
    count = max(judged.samples for found in whole.values() for judged in found)
    title = f"{name}, int8 against fp32: means of {len(draws)} draws (95 %), {count} samples each"
    return Table(title, heads, tuple(rows))


def _find_best_peer(scheme: Scheme, whole: dict[Scheme, list[Judged]]) -> list[Judged] | None:
    """Return the draws of the tool that agrees most on average; None for a scheme of another's."""
    if scheme.tool != "edgepack":
        return None
    dialect = scheme.name.removeprefix("edgepack, ")
    names = {f"onnxruntime, {dialect}"}
    if dialect == THEIRS:
        names.update(name for name, _, _ in OTHERS)
    peers = [found for other, found in whole.items() if other.name in names]
    return max(peers, key=lambda found: sum(each.agrees for each in found), default=None)


def _make_row(
    scheme: Scheme, found: list[Judged], best_peer: list[Judged] | None
) -> tuple[str, ...]:
    beyond = "-"
    if best_peer is not None:
        pairs = zip(found, best_peer, strict=True)
        more = mean_text([one.agrees - other.agrees for one, other in pairs])
        beyond = f"{more} {best_peer[0].scheme.tool}"
    drops = [each.drop for each in found if each.drop is not None]
    return (
        scheme.name,
        mean_text([each.agrees for each in found]),
        beyond,
        mean_text(drops) if drops else "-",
        f"{np.mean([each.sqnr_db for each in found]):.1f}",
        f"{median([each.took['seconds'] for each in found]):.1f}",
        f"{median([each.took['peak_bytes'] for each in found]) / 1e6:.0f}",
    )

"""What calibration costs: against bare inference, and against other tools' calibration.

Against inference: both in one process, in turns, with onnxruntime's own number of threads; the
calibration makes its session anew each time, the inference does not. Against other tools: each in a
process of its own, 100 images; a call without imports. The statistics hold every method's range, so
there is one time for all methods.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from edgepack.base.statistics import median
from edgepack.model.facts import read_signature
from edgepack.model.reading import read_structure
from edgepack.model.running import make_random_inputs, make_session, run_session
from edgepack.quantization.qdq.writer import find_observed_tensors
from edgepack.quantization.ranges.collecting import collect

from tests.bench.measuring import Row, Table, interleaved, ratio_text, run, scratch
from tests.bench.peers import peer_python
from tests.bench.projects import VARIABLE
from tests.bench.quantization_tasks import Task, tasks

HERE = Path(__file__).resolve().parent
PAIRS = 6
LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
"""Graphs that come with onnx: activations of full size, and weights that are made on the way."""
OTHER_MODELS = (
    ("nanodet_m", "detection/nanodet_m_320.onnx", 50),
    ("inception_v2 without weights", LIGHT / "light_inception_v2.onnx", 30),
    ("resnet50 without weights", LIGHT / "light_resnet50.onnx", 30),
    ("densenet121 without weights", LIGHT / "light_densenet121.onnx", 20),
)
"""Name, file (in the public data where it is not whole) and number of samples: seeded noise."""
FAST_MS = 1.0
TOOLS = (
    ("edgepack, every method", "edgepack", ()),
    ("onnxruntime, MinMax", "onnxruntime", ("method=MinMax",)),
    ("onnxruntime, Percentile", "onnxruntime", ("method=Percentile",)),
    ("onnxruntime, Entropy", "onnxruntime", ("method=Entropy",)),
    ("NNCF, minmax", "nncf", ()),
    ("onnxsim, minmax", "onnxsim", ("method=minmax",)),
    ("onnxsim, percentile", "onnxsim", ("method=percentile",)),
)


def measure() -> Iterator[Row | Table]:
    """Yield a row for each model, one for memory, and a table of all tools."""
    root = os.environ.get(VARIABLE, "")
    if not root:
        return
    data = Path(root).resolve()
    with scratch() as folder:
        for task in tasks(data):
            model = _simplified(task.model, folder / f"{task.name}.onnx")
            array = task.calibration()
            feeds = [{task.input_name: array[k : k + 1]} for k in range(len(array))]
            yield _against_inference(task.name, model, feeds)
        for name, file, count in OTHER_MODELS:
            model = _simplified(data / file, folder / "other.onnx")
            inputs, _ = read_signature(read_structure(model))
            noise = [make_random_inputs(inputs, seed=seed) for seed in range(count)]
            yield _against_inference(name, model, noise)
        task = next(task for task in tasks(data) if task.name == "squeezenet1.1")
        np.save(folder / "samples.npy", task.calibration())
        yield _memory(task, folder)
        yield _tools(task, folder)


def _simplified(model: Path, out: Path) -> Path:
    run([sys.executable, "-m", "tests.bench.edgepack_tool", "simplify", str(model), str(out)])
    return out


def _against_inference(name: str, model: Path, feeds: list[Mapping[str, Any]]) -> Row:
    session = make_session(model)
    names = find_observed_tensors(read_structure(model))

    def infer() -> None:
        for feed in feeds:
            run_session(session, feed)

    infer()
    pairs = interleaved(
        lambda: _seconds(lambda: collect(model, feeds, names)), lambda: _seconds(infer), PAIRS
    )
    ours, bare = (median(side) for side in zip(*pairs, strict=True))
    each_ms = 1000 * bare / len(feeds)
    return Row(
        f"calibration / bare inference, {name}, {len(feeds)} samples",
        f"{PAIRS} pairs",
        ratio_text(pairs),
        "at most 6" if each_ms < FAST_MS else "at most 3",
        f"medians {ours:.2f} s, {bare:.2f} s; {each_ms:.2f} ms an inference, {len(names)} tensors",
    )


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _memory(task: Task, folder: Path) -> Row:
    few, many = (
        median([_run("edgepack", task, folder, f"times={n}")["peak_bytes"] for _ in range(3)])
        for n in (1, 10)
    )
    return Row(
        f"calibration's memory, 1,000 samples / 100 samples, {task.name}",
        "medians of three runs",
        f"{many / few:.3f}",
        "at most 1.05",
        f"{many / 1e6:.0f} MB, {few / 1e6:.0f} MB, two processes",
    )


def _tools(task: Task, folder: Path) -> Table:
    found = [(name, _run(tool, task, folder, *options)) for name, tool, options in TOOLS]
    ours = found[0][1]
    rows = tuple(
        (
            name,
            f"{took['seconds']:.2f}",
            f"{took['seconds'] / ours['seconds']:.1f}",
            f"{took['peak_bytes'] / 1e6:.0f}",
            f"{took['peak_bytes'] / ours['peak_bytes']:.1f}",
        )
        for name, took in found
    )
    heads = ("", "s", "times ours", "peak MB", "times ours")
    return Table(f"calibration alone, {task.name}, 100 images", heads, rows)


def _run(tool: str, task: Task, folder: Path, *options: str) -> dict[str, float]:
    model, samples = folder / f"{task.name}.onnx", folder / "samples.npy"
    ours = tool == "edgepack"
    command = [sys.executable, "-m", "tests.bench.edgepack_tool", "calibrate"]
    if not ours:
        command = [str(peer_python()), str(HERE / "peer_tool.py"), tool]
    files = [str(model), task.input_name, str(samples), str(folder / "out")]
    more = options if ours else ("calibration=yes", *options)
    took: dict[str, float] = json.loads(run([*command, *files, *more]).splitlines()[-1])
    return took

"""How many of its detections nanodet_m keeps in each dialect, beside the smallest error it reaches.

A detection of float32, of a score above 0.4, is kept if int8 finds the same class with an IoU of
0.9 or more and a score above 0.3. Of a seeded permutation of 1,000 photographs, the first 60
calibrate and 300 from the 200th on are judged by.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from edgepack.model.files import MODEL
from edgepack.model.reading import read_model, write_model
from edgepack.model.running import make_session, run_session
from edgepack.steps.base import Inputs, Notes, run_step
from edgepack.steps.graph.opset import AtLeastOpset
from edgepack.steps.recipes.int8_static import Int8Static

from tests.bench.measuring import Row, Table, scratch
from tests.bench.projects import VARIABLE
from tests.support.nets import detection_nets as nets
from tests.support.nets import int8_nets

CALIBRATION, FIRST_JUDGED, JUDGED = 60, 200, 300
LEAST_SCORE, MARGIN, OVERLAP = 0.4, 0.1, 0.6
MAX_IR = 13
WIDE_OPSET = 21
DIALECTS = {
    **int8_nets.DIALECTS,
    "qnn-16": int8_nets.dialect("uint16", "int8"),
    "qnn-8": int8_nets.dialect("uint8", "int8"),
}

Feed = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Detector:
    """The float model with its statistics, and what it is judged by."""

    inputs: Inputs
    judged: list[Feed]

    def kept(self, model: Path) -> tuple[int, int]:
        """Return how many detections a model keeps, and how many there are."""
        sessions = [make_session(path) for path in (self.inputs["model"] / MODEL, model)]
        kept = total = 0
        for feed in self.judged:
            due, found = (nets.decode_nanodet(run_session(one, feed)) for one in sessions)
            expected = nets.detections(*due, LEAST_SCORE, overlap=OVERLAP)
            given = nets.detections(*found, LEAST_SCORE - MARGIN, overlap=OVERLAP)
            kept += nets.kept(expected, given)
            total += len(expected)
        return kept, total


def measure() -> Iterator[Row | Table]:
    """Yield one table."""
    root = os.environ.get(VARIABLE, "")
    if not root:
        return
    with scratch() as folder:
        detector = _detector(Path(root).resolve(), folder)
        rows = [_row(detector, name, folder / name) for name in DIALECTS]
        _, total = detector.kept(detector.inputs["model"] / MODEL)
    heads = ("", "kept %", "held-out dB", "tensors quantized", "s")
    title = f"nanodet_m, int8 against {total} detections of fp32 in {JUDGED} photographs"
    yield Table(title, heads, tuple(rows))


def _detector(data: Path, folder: Path) -> Detector:
    images = sorted((data / "imagenet" / "images").iterdir())
    order = np.random.default_rng(0).permutation(len(images))

    def feeds(numbers: np.ndarray[Any, Any]) -> list[Feed]:
        return [{"input.1": nets.nanodet_image(images[k])} for k in numbers]

    source = read_model(data / "detection" / "nanodet_m_320.onnx")
    write_model(nets.with_constant_weights(source), folder / "net.onnx")
    calibration = feeds(order[:CALIBRATION])
    inputs = int8_nets.calibrated(folder / "steps", folder / "net.onnx", calibration)
    return Detector(inputs, feeds(order[FIRST_JUDGED : FIRST_JUDGED + JUDGED]))


def _row(detector: Detector, name: str, folder: Path) -> tuple[str, ...]:
    dialect, inputs = DIALECTS[name], dict(detector.inputs)
    folder.mkdir()
    if name.startswith("qnn"):
        given = {k: inputs[k] for k in ("model", "samples")}
        inputs["model"], _ = _step(AtLeastOpset(WIDE_OPSET), given, folder / "raised")
    is_cpu = dialect.activations == "uint8" and not name.startswith("qnn")
    step = Int8Static(
        dialect,
        MAX_IR,
        cpu="x86-64" if is_cpu else None,
        mixed=name == "qnn-8",
        **int8_nets.rules_of(name),
    )
    started = time.perf_counter()
    out, notes = _step(step, inputs, folder / "int8")
    seconds = time.perf_counter() - started
    kept, total = detector.kept(out / MODEL)
    best = [entry for entry in notes.facts["tried"] if entry["accepted"]][-1]
    return (
        f"{name}: {dialect.activations}/{dialect.weights}",
        f"{100 * kept / total:.1f}",
        f"{best['sqnr_db']:.1f}",
        str(notes.facts["quantized_tensors"]),
        f"{seconds:.0f}",
    )


def _step(step: Int8Static | AtLeastOpset, inputs: Inputs, out: Path) -> tuple[Path, Notes]:
    out.mkdir()
    return out, run_step(step, inputs, out)

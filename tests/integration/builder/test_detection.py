"""Detectors in int8 find what they find in float32.

A detection of float32 is kept if int8 finds the same class with a box of IoU 0.9 or more. Scores
move a little, so what float32 scores above a limit is looked for among what int8 scores above that
limit less 0.1: a detection at the limit itself is not lost with a change that does not matter. Both
go through the same non-maximum suppression; if that leaves another place's box, the IoU says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from edgepack.metrics.accuracy import OutputCloseness
from edgepack.model.files import MODEL
from edgepack.model.reading import read_model, write_model
from edgepack.model.running import make_session, run_session
from edgepack.quantization.methods.spread import find_spread_tensors
from edgepack.quantization.qdq.preparation import prepare_model
from edgepack.quantization.qdq.writer import QdqWriter
from edgepack.quantization.ranges.statistics import read_statistics
from edgepack.steps.recipes.calibration import STATISTICS
from edgepack.steps.recipes.int8_static import Int8Static

from tests.support.nets import detection_nets as nets
from tests.support.nets import int8_nets

Array = np.ndarray[Any, Any]
Decode = Callable[[Mapping[str, Array]], tuple[Array, Array]]

MAX_IR = 13
LEAST_SCORE = 0.5
MARGIN = 0.1
SCENES = [nets.scene(seed) for seed in range(34)]
CALIBRATION = [{"images": nets.scene(seed)[0]} for seed in range(100, 108)]


@dataclass(frozen=True)
class Detector:
    """A detector, what is known of its tensors, and what it finds in float32."""

    inputs: dict[str, Path]
    decode: Decode
    outputs: list[dict[str, Array]]

    @property
    def model(self) -> Path:
        return self.inputs["model"] / MODEL

    def kept(self, model: Path) -> tuple[int, int]:
        """Return how many detections another model keeps, and how many there are."""
        session = make_session(model)
        kept = total = 0
        for (image, _), expected in zip(SCENES, self.outputs, strict=True):
            outputs = run_session(session, {"images": image})
            due = nets.detections(*self.decode(expected), LEAST_SCORE)
            found = nets.detections(*self.decode(outputs), LEAST_SCORE - MARGIN)
            kept += nets.kept(due, found)
            total += len(due)
        return kept, total


def detector(folder: Path, build: Callable[[Path], Path], decode: Decode) -> Detector:
    inputs = int8_nets.calibrated(folder / "steps", build(folder / "net.onnx"), CALIBRATION)
    session = make_session(inputs["model"] / MODEL)
    outputs = [run_session(session, {"images": image}) for image, _ in SCENES]
    return Detector(inputs, decode, outputs)


@pytest.fixture(scope="module")
def yolo(tmp_path_factory) -> Detector:
    return detector(tmp_path_factory.mktemp("yolo"), nets.yolo, nets.decode_yolo)


@pytest.fixture(scope="module")
def one_conv(tmp_path_factory) -> Detector:
    return detector(tmp_path_factory.mktemp("one"), nets.one_conv, nets.decode_one_conv)


def plainly_written(found: Detector, out: Path, name: str, *, spread: bool) -> Path:
    """Write int8 from lowest and highest values, with or without regard to unequal ranges."""
    dialect, rules = int8_nets.DIALECTS[name], int8_nets.rules_of(name)
    model = prepare_model(read_model(found.model))
    statistics = read_statistics(found.inputs["statistics"] / STATISTICS)
    ranges = {name: (known.low, known.high) for name, known in statistics.items()}
    unpaired = frozenset(find_spread_tensors(model, statistics)) if spread else frozenset()
    writer = QdqWriter(model, ranges, dialect, unpaired=unpaired, **rules)
    write_model(writer.write(writer.explain_unusable()), out / MODEL)
    return out / MODEL


@pytest.mark.parametrize("name", ["yolo", "one_conv"])
def test_detector_when_float32_finds_the_rectangles_that_are_there(request, name):
    found = request.getfixturevalue(name)
    hits = [
        nets.kept(truth, nets.detections(*found.decode(outputs), LEAST_SCORE), overlap=0.7)
        for (_, truth), outputs in zip(SCENES, found.outputs, strict=True)
    ]
    assert sum(hits) >= 0.95 * 3 * len(SCENES)


@pytest.mark.slow(reason="builds a detector")
def test_yolo_when_boxes_and_scores_share_a_pair_finds_nothing_at_a_high_cosine(yolo, tmp_path):
    model = plainly_written(yolo, tmp_path, "tensorrt", spread=False)
    assert yolo.kept(model)[0] == 0
    session, whole = make_session(model), OutputCloseness()
    for (image, _), expected in zip(SCENES, yolo.outputs, strict=True):
        found = run_session(session, {"images": image})
        whole.add(expected["output0"], found["output0"])
    assert whole.cosine > 0.9999
    assert whole.sqnr_db < 3
    model = plainly_written(yolo, tmp_path, "tensorrt", spread=True)
    kept, total = yolo.kept(model)
    assert kept >= 0.99 * total > 99


def test_one_conv_when_distances_and_scores_share_a_pair_rounds_scores_away(one_conv, tmp_path):
    def largest_error(model: Path) -> float:
        session = make_session(model)
        return max(
            float(
                np.abs(run_session(session, {"images": image})["output0"] - due["output0"])[
                    ..., 4:
                ].max()
            )
            for (image, _), due in zip(SCENES[:8], one_conv.outputs[:8], strict=True)
        )

    alike = plainly_written(one_conv, tmp_path, "tensorrt", spread=False)
    # Distances of 90 pixels in 127 steps: scores are rounded by a third of one.
    assert largest_error(alike) > 0.3
    apart = plainly_written(one_conv, tmp_path, "tensorrt", spread=True)
    assert largest_error(apart) < 0.3


@pytest.mark.slow(reason="builds a detector")
@pytest.mark.parametrize("net", ["yolo", "one_conv"])
@pytest.mark.parametrize("name", int8_nets.DIALECTS)
def test_detector_when_unequal_ranges_share_no_pair_keeps_its_detections(
    request, tmp_path, net, name
):
    found = request.getfixturevalue(net)
    kept, total = found.kept(plainly_written(found, tmp_path, name, spread=True))
    assert kept >= 0.99 * total > 99


@pytest.mark.slow(reason="builds a detector")
def test_detector_when_the_step_makes_it_keeps_its_detections(yolo, tmp_path):
    int8_nets.run(Int8Static(int8_nets.CPU, MAX_IR, cpu="x86-64"), yolo.inputs, tmp_path / "out")
    kept, total = yolo.kept(tmp_path / "out" / MODEL)
    assert kept >= 0.99 * total > 99


@pytest.mark.in_turns
@pytest.mark.slow(reason="takes a minute")
def test_nanodet_when_the_step_makes_it_keeps_nearly_all_detections(shared_data, tmp_path):
    images = sorted((shared_data / "imagenet" / "images").iterdir())[::10]
    feeds = [{"input.1": nets.nanodet_image(path)} for path in images]
    source = read_model(shared_data / "detection" / "nanodet_m_320.onnx")
    write_model(nets.with_constant_weights(source), tmp_path / "net.onnx")
    inputs = int8_nets.calibrated(tmp_path / "steps", tmp_path / "net.onnx", feeds[1::2])
    int8_nets.run(Int8Static(int8_nets.CPU, MAX_IR, cpu="x86-64"), inputs, tmp_path / "out")
    kept = total = 0
    sessions = [make_session(folder / MODEL) for folder in (inputs["model"], tmp_path / "out")]
    for feed in feeds[::2]:
        expected, found = (nets.decode_nanodet(run_session(one, feed)) for one in sessions)
        due = nets.detections(*expected, 0.4, overlap=0.6)
        kept += nets.kept(due, nets.detections(*found, 0.3, overlap=0.6))
        total += len(due)
    assert total > 40
    assert kept >= 0.9 * total

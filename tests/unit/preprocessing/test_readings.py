"""Whether outputs can mean what the project says: by what fp32 gives for samples."""

from __future__ import annotations

import numpy as np
import pytest
from edgepack.preprocessing.readings import choose_reading
from edgepack.project.outputs import (
    ClassificationOutput,
    DetectionOutput,
    EmbeddingOutput,
    ProbabilityOutput,
    TextOutput,
)

SIZE = (640, 480)
YOLO = DetectionOutput(kind="detection", layout="yolo")
YOLOV5 = DetectionOutput(kind="detection", layout="yolov5")


@pytest.fixture
def random():
    return np.random.default_rng(20260101)


def objects(random, count=12):
    """Boxes ``(count, 4)`` that lie in the picture, and scores of 3 classes with one high each."""
    sides = random.uniform(20, 150, (count, 2))
    centres = random.uniform(sides / 2, np.array(SIZE) - sides / 2)
    scores = random.uniform(0, 0.1, (count, 3))
    scores[np.arange(count), random.integers(0, 3, count)] = random.uniform(0.5, 1, count)
    return np.hstack([centres, sides]), scores


def yolo(boxes, scores):
    """``(1, 7, 60)``: the objects, and rows without any."""
    rows = np.zeros((1, 60, 7))
    rows[0, : len(boxes)] = np.hstack([boxes, scores])
    return rows.transpose(0, 2, 1)


def read(description, outputs):
    reading = choose_reading(description, SIZE)
    for output in outputs:
        reading.add(np.asarray(output))
    return reading


def test_boxes_as_described_are_counted(random):
    outputs = [yolo(*objects(random, 3)) for _ in range(6)]
    found = read(YOLO, [*outputs, np.zeros((1, 7, 60))])
    assert found.find_misread() is None
    assert found.describe(7).endswith("in 6 of 7 samples")


BROKEN = {
    "corners": (
        lambda b, s: (np.hstack([b[:, :2] - b[:, 2:] / 2, b[:, :2] + b[:, 2:] / 2]), s),
        "fit the picture as corners only",
        "centre, width and height",
    ),
    "unit": (
        lambda b, s: (b / [*SIZE, *SIZE], s),
        "boxes without area",
        "the boxes are from 0 to 1",
    ),
    "logits": (lambda b, s: (b, 20 * s - 5), "scores above 1", "scores from 0 to 1"),
    "no boxes": (lambda b, s: (0 * b, s), "boxes without area", "from 0 to 1"),
}


@pytest.mark.parametrize("how", BROKEN)
def test_boxes_of_another_kind_are_refused_with_what_was_found(random, how):
    breaks, problem, hint = BROKEN[how]
    outputs = [yolo(*breaks(*objects(random))) for _ in range(4)]
    wrong = read(YOLO, outputs).find_misread()
    assert problem in wrong.problem
    assert hint in wrong.hint


def test_boxes_when_another_layout_fits_name_it(random):
    outputs = []
    for _ in range(4):
        boxes, scores = objects(random)
        # Read as yolov5, the first class stands for the object and hides all others.
        outputs.append(yolo(boxes, scores).transpose(0, 2, 1))
    outputs = [np.where(np.arange(7) == 4, 30 * o, o) for o in outputs]
    wrong = read(YOLO, outputs).find_misread()
    assert "scores above 1" in wrong.problem
    assert read(YOLOV5, [yolo(*objects(random)).transpose(0, 2, 1)] * 4).find_misread() is None


def test_boxes_when_few_say_nothing_refuse_nothing(random):
    boxes, scores = objects(random, 3)
    assert read(YOLO, [yolo(0 * boxes, scores)]).find_misread() is None
    assert "no object with a score of 0.25" in read(YOLO, [np.zeros((1, 7, 60))]).describe(1)


def test_probabilities_that_are_logits_are_refused(random):
    logits = random.normal(0, 3, (12, 1, 1))
    plain = ProbabilityOutput(kind="probability")
    assert read(plain, logits).find_misread().hint.startswith("activation: sigmoid")
    sigmoid = ProbabilityOutput(kind="probability", activation="sigmoid")
    found = read(sigmoid, logits)
    assert found.find_misread() is None
    assert found.describe(12) == f"{int((logits >= 0).sum())} of 12 decisions are yes in 12 samples"
    assert read(plain, random.uniform(0, 1, (12, 1, 1))).find_misread() is None


def test_classes_whose_softmax_is_done_already_are_refused(random):
    shares = random.dirichlet(np.ones(5), 12)[:, None]
    soft = ClassificationOutput(kind="classification", activation="softmax")
    assert read(soft, shares).find_misread().hint == "activation: none"
    assert read(soft, np.log(shares)).find_misread() is None
    found = read(ClassificationOutput(kind="classification"), shares)
    assert found.find_misread() is None
    assert "classes in 12 samples" in found.describe(12)


@pytest.mark.parametrize("axis", [-1, 1])
def test_texts_whose_softmax_is_done_already_are_refused(random, axis):
    shares = np.moveaxis(random.dirichlet(np.ones(5), (12, 1, 9)), -1, {-1: -1, 1: 2}[axis])
    soft = TextOutput(kind="text", labels="a.txt", axis=axis, activation="softmax")
    assert read(soft, shares).find_misread().hint == "activation: none"
    assert read(soft, np.log(shares)).find_misread() is None
    assert read(soft, shares[:7]).find_misread() is None
    plain = read(TextOutput(kind="text", labels="a.txt", axis=axis), shares)
    assert plain.find_misread() is None
    assert plain.describe(12).endswith(" symbols, in 12 of 12 samples")


def test_texts_when_steps_have_the_blank_alone_are_counted_as_none():
    steps = np.zeros((2, 1, 4, 3))
    steps[1, 0, [0, 2, 3], 1] = 1
    found = read(TextOutput(kind="text", labels="a.txt"), steps)
    assert found.describe(2) == "2 symbols, in 1 of 2 samples"


def test_kinds_whose_values_say_nothing_are_not_read():
    assert choose_reading(EmbeddingOutput(kind="embedding", pooling="none"), SIZE) is None
    assert choose_reading(YOLO, None) is None

"""Keypoints of detections, held against arithmetic done otherwise."""

from __future__ import annotations

import numpy as np
import pytest
from edgepack.ondevice.runtime.edgepack_answers import Keypoint, make_answer, make_json
from edgepack.ondevice.runtime.edgepack_images import find_placement
from edgepack.project.outputs import DetectionOutput

LETTERBOX = find_placement(200, 120, {"letterbox": 96})
CROP = find_placement(333, 197, {"short_side": 110, "crop": 96})
BOX = [48, 48, 40, 30, 0.1, 0.9]


def find(rows, place=LETTERBOX, labels=("a", "b"), layout="yolo", **how):
    described = DetectionOutput(kind="detection", layout=layout, keypoints=2, **how).model_dump()
    return make_answer(np.asarray(rows, np.float32)[None], described, labels, place)


@pytest.mark.parametrize("place", [LETTERBOX, CROP])
def test_keypoints_when_mapped_back_lie_where_the_box_of_the_same_corners_does(place):
    first, second = (30.5, 20.25), (61, 80)
    box = [(a + b) / 2 for a, b in zip(first, second, strict=True)]
    box += [b - a for a, b in zip(first, second, strict=True)]
    (found,) = find([[*box, 0.9, 0.1, *first, 0.75, *second, 0.25]], place)
    left, top, right, bottom = found.box
    assert found.keypoints == (Keypoint(left, top, 0.75), Keypoint(right, bottom, 0.25))


def test_keypoints_when_they_lie_outside_are_clipped_to_the_picture():
    (found,) = find([[*BOX, -500, -500, 1, 500, 500, 1]])
    assert [(each.x, each.y) for each in found.keypoints] == [(0, 0), (200, 120)]


@pytest.mark.parametrize("layout", ["yolo", "end2end"])
def test_keypoints_when_they_have_no_score_have_none(layout):
    row = BOX if layout == "yolo" else [20, 30, 60, 70, 0.9, 1]
    (found,) = find([[*row, 48, 48, 50, 50]], layout=layout, keypoint_values=2)
    assert [each.score for each in found.keypoints] == [None, None]
    (written,) = make_json([found])
    assert written["keypoints"][0] == {"x": 100, "y": 60, "score": None}


def test_keypoints_when_a_row_has_several_classes_are_no_scores():
    rows = np.zeros((40, 12))
    rows[7] = [*BOX, 10, 20, 0.5, 30, 40, 0.5]
    (found,) = find(rows, labels=())
    assert (found.index, found.score) == (1, np.float32(0.9))


def test_keypoints_when_the_row_lies_across_are_the_same():
    rows = np.random.default_rng(2).uniform(1, 90, (40, 12))
    rows[:, 4:6] = np.random.default_rng(3).uniform(0, 1, (40, 2))
    assert find(rows) == find(rows.T)
    assert find(rows, labels=()) == find(rows.T, labels=())


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("column", [6, 8, 11])
def test_keypoints_when_one_is_no_number_leave_the_row_out(value, column):
    rows = np.array([[*BOX, 10, 20, 0.5, 30, 40, 0.5]] * 2)
    rows[1, :2] = 10
    rows[0, column] = value
    assert len(find(rows)) == 1


def test_detection_when_it_has_no_keypoints_is_written_as_before():
    described = DetectionOutput(kind="detection", layout="yolo").model_dump()
    assert not {"keypoints", "keypoint_values"} & set(described)
    output = np.float32([[[*BOX]] * 3])
    (found,) = make_answer(output, described, ["a", "b"], LETTERBOX)
    assert found.keypoints == ()
    assert set(make_json([found])[0]) == {"index", "label", "score", "box"}


@pytest.mark.parametrize(
    ("shape", "labels", "layout", "problem"),
    [
        ((11, 40), ("a", "b"), "yolo", "with 12 values for each box"),
        ((10, 40), (), "yolo", "with 10 and a score per class values for each box"),
        ((40, 6), (), "end2end", "with 12 values for each box"),
    ],
)
def test_keypoints_when_the_row_has_another_width_are_refused(shape, labels, layout, problem):
    with pytest.raises(ValueError, match=problem):
        find(np.zeros(shape), labels=labels, layout=layout)

"""Answers of output tensors, held against arithmetic done otherwise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from edgepack.ondevice.runtime import edgepack_answers as answers
from edgepack.ondevice.runtime.edgepack_images import find_placement
from edgepack.project.outputs import OutputDescription
from pydantic import TypeAdapter

WHOLE = find_placement(64, 64, {"width": 64, "height": 64})
"""A picture that is the input."""


def described(**values):
    return TypeAdapter(OutputDescription).validate_python(values).model_dump()


def classes(values, labels=(), **how):
    output = np.array([values], np.float32)
    return answers.make_answer(output, described(kind="classification", **how), labels)


def detections(rows, labels=(), place=WHOLE, layout="yolo", **how):
    output = np.array([rows], np.float32)
    how = described(kind="detection", layout=layout, **how)
    return answers.make_answer(output, how, labels, place)


def test_classes_when_softmaxed_have_the_shares_of_their_powers():
    found = classes(np.log([1, 2, 5]), ["a", "b", "c"], activation="softmax", top=2)
    assert [(each.index, each.label) for each in found] == [(2, "c"), (1, "b")]
    assert [each.score for each in found] == pytest.approx([0.625, 0.25], rel=1e-6)


def test_classes_when_logits_are_far_apart_have_scores_without_overflow():
    assert classes([-2000, 900, 0], activation="sigmoid", top=1)[0].score == 1.0
    assert [each.score for each in classes([-2000, 900], activation="softmax")] == [1.0, 0.0]


@pytest.mark.filterwarnings("error")
def test_classes_when_a_logit_is_infinite_have_scores_that_are_no_numbers():
    found = classes([1, math.inf, 2], activation="softmax", top=2)
    assert [each.index for each in found] == [1, 2]
    assert all(math.isnan(each.score) for each in found)


def test_classes_when_scores_are_equal_come_by_index():
    found = classes([1, 900, 900, 800], activation="sigmoid", top=4)
    assert [each.index for each in found] == [1, 2, 3, 0]


def test_classes_when_an_older_manifest_names_labels_alone_are_the_scores_as_they_are():
    older = {"kind": "classification", "labels": "labels.txt"}
    found = answers.make_answer(np.arange(7, dtype=np.float32)[None], older, ["a"])
    assert [(each.index, each.score) for each in found] == [(6, 6), (5, 5), (4, 4), (3, 3), (2, 2)]


def test_classes_when_a_score_is_no_number_come_before_it():
    assert [each.index for each in classes([math.nan, 1, 2], top=3)] == [2, 1, 0]


def test_classes_when_labels_are_few_have_none_for_the_rest():
    assert [each.label for each in classes([3, 2, 1], ["only"])] == ["only", None, None]


@pytest.mark.parametrize("shape", [(7,), (1, 7), (1, 7, 1, 1), (1, 1, 7)])
def test_classes_when_only_one_axis_has_a_size_are_its_values(shape):
    output = np.arange(7, dtype=np.float32).reshape(shape)
    assert answers.make_answer(output, described(kind="classification", top=1))[0].index == 6


@pytest.mark.parametrize("shape", [(2, 7), (1, 3, 3), (0,), (1, 0)])
def test_classes_when_there_are_several_samples_or_none_are_refused(shape):
    with pytest.raises(ValueError, match="one row of scores"):
        answers.make_answer(np.zeros(shape, np.float32), described(kind="classification"))


def test_labels_when_lines_end_as_in_windows_are_read_alike():
    assert answers.read_labels("\ufeffcat\r\n\r\ndog\r\n") == ["cat", "", "dog"]
    assert answers.read_labels("cat\n\ndog") == ["cat", "", "dog"]
    assert answers.read_labels("") == []


def overlap(a, b):
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    shared = max(width, 0) * max(height, 0)
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (a, b)]
    return shared / (sum(areas) - shared)


def by_hand(rows, score, iou, most):
    """Detections as plain loops over Python numbers find them."""
    boxes = [(x - w / 2, y - h / 2, x + w / 2, y + h / 2) for x, y, w, h, *_ in rows.tolist()]
    best = [max(row[4:]) for row in rows.tolist()]
    kinds = [row[4:].index(max(row[4:])) for row in rows.tolist()]
    kept = []
    for row in sorted(range(len(rows)), key=lambda row: -best[row]):
        rivals = [other for other in kept if kinds[other] == kinds[row]]
        if best[row] >= score and all(overlap(boxes[o], boxes[row]) <= iou for o in rivals):
            kept.append(row)
    return [(kinds[row], best[row], boxes[row]) for row in kept[:most]]


@pytest.mark.parametrize("seed", range(4))
def test_detections_when_boxes_overlap_are_those_of_plain_loops(seed):
    rng = np.random.default_rng(seed)
    centres = rng.uniform(15, 50, (5, 2))[rng.integers(0, 5, 80)] + rng.normal(0, 2, (80, 2))
    parts = [centres, rng.uniform(8, 28, (80, 2)), rng.uniform(0, 1, (80, 3))]
    rows = np.hstack(parts).astype(np.float32)
    found = detections(rows, score=0.3, iou=0.4, most=12)
    expected = by_hand(rows, 0.3, 0.4, 12)
    assert 3 < len(expected) <= 12
    assert [each.index for each in found] == [kind for kind, _, _ in expected]
    assert [each.score for each in found] == [score for _, score, _ in expected]
    for each, (_, _, box) in zip(found, expected, strict=True):
        assert each.box == pytest.approx(np.clip(box, 0, 64))


def test_detections_when_axes_are_swapped_are_the_same():
    rows = np.random.default_rng(0).uniform(1, 30, (40, 6))
    output = np.array([rows.T], np.float32)
    how = described(kind="detection", layout="yolo")
    for labels in ([], ["a", "b"]):
        assert answers.make_answer(output, how, labels, WHOLE) == detections(rows, labels)


def test_detections_when_both_axes_fit_the_labels_are_read_along_the_first():
    square = np.zeros((6, 6))
    square[:, 2] = [30, 20, 4, 8, 0.5, 0.75]
    (found,) = detections(square, ["a", "b"])
    assert found == answers.Detection(1, "b", 0.75, (28, 16, 32, 24))


@pytest.mark.parametrize(
    ("shape", "labels", "layout"),
    [
        ((1, 0, 6), [], "yolo"),
        ((1, 6, 0), [], "yolo"),
        ((1, 0, 6), ["a", "b"], "yolo"),
        ((1, 6, 0), ["a", "b"], "yolo"),
        ((1, 0, 7), [], "yolov5"),
    ],
)
def test_detections_when_the_model_gives_no_row_are_none(shape, labels, layout):
    how = described(kind="detection", layout=layout)
    assert answers.make_answer(np.zeros(shape, np.float32), how, labels, WHOLE) == []


def test_detections_when_there_is_a_score_for_an_object_at_all_multiply_it():
    rows = [[30, 20, 4, 8, 0.5, 0.25, 0.75], [30, 20, 4, 8, 0.25, 1.0, 0.75]]
    found = detections(rows, ["a", "b"], layout="yolov5", score=0.25)
    assert [(each.label, each.score) for each in found] == [("b", 0.375), ("a", 0.25)]


def test_detections_when_letterboxed_are_in_the_pixels_of_the_picture():
    # The picture is 200 by 100, in the input 64 by 32 from row 16 on: 3.125 pixels for one.
    place = find_placement(200, 100, {"letterbox": 64, "pad": 0})
    (found,) = detections([[32, 32, 16, 8, 1]], ["a"], place)
    assert found.box == pytest.approx((75, 37.5, 125, 62.5))


def test_detections_when_cropped_are_clipped_to_the_picture():
    # 300 by 150 becomes 80 by 40, cut from (24, 4): 3.75 pixels for one.
    place = find_placement(300, 150, {"short_side": 40, "crop": 32})
    (found,) = detections([[16, 2, 8, 20, 1]], ["a"], place)
    assert found.box == pytest.approx((135, 0, 165, 60))


def test_detections_when_values_are_no_numbers_leave_these_rows_out():
    good = [30, 20, 4, 8, 0.5, 0.25]
    rows = [
        [math.nan, *good[1:]],
        [*good[:3], math.inf, *good[4:]],
        [*good[:4], math.inf, 0.5],
        [*good[:4], math.nan, math.nan],
        [10, 10, 4, 4, math.nan, 0.75],
        good,
        [50, 50, 4, 4, 0, 0],
    ]
    found = detections(rows, ["a", "b"])
    assert [(each.index, each.score) for each in found] == [(1, 0.75), (0, 0.5)]


def test_detections_when_equal_boxes_have_no_area_keep_both():
    assert len(detections([[9, 9, 0, 0, 0.5], [9, 9, 0, 0, 0.5]], ["a"])) == 2


@pytest.mark.parametrize(
    ("shape", "labels", "layout"),
    [
        ((2, 6, 9), [], "yolo"),
        ((6, 9), [], "yolo"),
        ((1, 4, 9), [], "yolo"),
        ((1, 7, 9), ["a", "b"], "yolo"),
        ((1, 7, 9), ["a", "b"], "yolov5"),
    ],
)
def test_detections_when_the_shape_is_another_say_what_is_wanted(shape, labels, layout):
    how = described(kind="detection", layout=layout)
    with pytest.raises(ValueError, match="values for each box"):
        answers.make_answer(np.zeros(shape, np.float32), how, labels, WHOLE)


def test_detections_without_a_picture_are_refused():
    how = described(kind="detection", layout="yolo")
    with pytest.raises(ValueError, match="placement"):
        answers.make_answer(np.zeros((1, 6, 9), np.float32), how)


HIDDEN = np.array([[[1, 2], [3, 6], [50, -70]], [[3, 4], [5, 9], [7, 7]]], np.float32)
MASK = np.array([[1, 1, 0], [0, 0, 0]], np.int64)


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        ("mean", [[2, 4], [0, 0]]),
        ("max", [[3, 6], [0, 0]]),
    ],
)
def test_vectors_when_masked_count_only_what_the_mask_shows(pooling, expected):
    how = described(kind="embedding", pooling=pooling, mask="attention_mask")
    found = answers.make_answer(HIDDEN, how, mask=MASK)
    assert found.dtype == np.float32
    assert found.tolist() == expected


def test_vectors_when_normalized_have_length_one_and_zeros_stay():
    how = described(kind="embedding", pooling="none", normalize=True)
    found = answers.make_answer(np.array([[3, 4], [0, 0]], np.float16), how)
    assert found.tolist() == pytest.approx(np.array([[0.6, 0.8], [0, 0]]))


def test_vectors_when_pooled_without_a_mask_count_all_positions():
    mean = answers.make_answer(HIDDEN, described(kind="embedding", pooling="mean"))
    assert mean == pytest.approx(np.array([[18, -62 / 3], [5, 20 / 3]]))
    cls = answers.make_answer(HIDDEN, described(kind="embedding", pooling="cls"))
    assert cls.tolist() == [[1, 2], [3, 4]]


def test_vectors_when_shape_or_mask_does_not_fit_are_refused():
    how = described(kind="embedding", pooling="mean", mask="m")
    with pytest.raises(ValueError, match="the mask 'm': give it"):
        answers.make_answer(HIDDEN, how)
    with pytest.raises(ValueError, match=r"its mask \[2, 2\]"):
        answers.make_answer(HIDDEN, how, mask=MASK[:, :2])
    with pytest.raises(ValueError, match="pooling takes"):
        answers.make_answer(HIDDEN[0], described(kind="embedding", pooling="max"))


@pytest.mark.parametrize(
    ("shape", "expected"), [((0, 4, 3), (0, 12)), ((2, 0, 3), (2, 0)), ((), (1, 1)), ((3,), (3, 1))]
)
def test_vectors_when_not_pooled_are_the_values_of_each_sample_however_few(shape, expected):
    how = described(kind="embedding", pooling="none")
    assert answers.make_answer(np.zeros(shape, np.float32), how).shape == expected


def test_vectors_when_there_is_no_position_are_zeros_or_refused():
    none = np.zeros((2, 0, 3), np.float32)
    for pooling in ("mean", "max"):
        found = answers.make_answer(none, described(kind="embedding", pooling=pooling))
        assert np.array_equal(found, np.zeros((2, 3)))
    with pytest.raises(
        ValueError, match=r"\[2, 0, 3\]: the pooling 'cls' takes the first position"
    ):
        answers.make_answer(none, described(kind="embedding", pooling="cls"))


def test_answer_when_raw_is_the_output_itself():
    assert answers.make_answer(HIDDEN, described(kind="raw")) is HIDDEN


def test_json_of_answers_when_written_has_names():
    (found,) = answers.make_json(detections([[30, 20, 4, 8, 0.5]], ["a"]))
    assert found == {"index": 0, "label": "a", "score": 0.5, "box": (28, 16, 32, 24)}
    assert answers.make_json(np.ones((1, 2), np.float32)) == [[1.0, 1.0]]

"""Detections in several outputs, held against arithmetic done otherwise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from edgepack.ondevice.runtime.edgepack_answers import AnswerOptions, make_answer
from edgepack.ondevice.runtime.edgepack_images import find_placement
from edgepack.ondevice.runtime.edgepack_layouts import join_outputs, list_read_too, read_priors
from edgepack.project.outputs import OutputDescription
from pydantic import TypeAdapter

WIDE = find_placement(70, 40, {"width": 70, "height": 40})
"""A picture that is the input."""


def described(**how):
    given = {"kind": "detection", "layout": "ssd", "scores": "scores", "iou": 1.0, **how}
    return TypeAdapter(OutputDescription).validate_python(given).model_dump()


def find(boxes, scores, labels=(), classes=None, priors=None, options=None, **how):
    """Return the objects in the boxes of one picture."""
    if classes is not None:
        how["classes"] = "classes"
    if priors is not None:
        how["priors"] = "priors.txt"
    description = described(**how) | ({} if priors is None else {"prior_boxes": priors})
    given = {"boxes": boxes, "scores": scores, "classes": classes}
    outputs = {n: np.asarray(v, np.float32)[None] for n, v in given.items() if v is not None}
    read = ["boxes", *list_read_too(description)]
    joined = join_outputs([outputs[name] for name in read])
    return make_answer(joined, description, labels, WIDE, options=options)


def corners(found):
    return [each.box for each in found]


@pytest.mark.parametrize(
    ("how", "row"),
    [
        ({}, [0.1, 0.25, 0.5, 0.75]),
        ({"box": "corners_yx"}, [0.25, 0.1, 0.75, 0.5]),
        ({"box": "centre"}, [0.3, 0.5, 0.4, 0.5]),
        ({"normalized": False}, [7, 10, 35, 30]),
        ({"box": "corners_yx", "normalized": False}, [10, 7, 30, 35]),
        ({"box": "centre", "normalized": False}, [21, 20, 28, 20]),
    ],
)
def test_ssd_when_boxes_have_another_form_finds_the_same_box(how, row):
    (found,) = find([row], [[0.1, 0.75]], ["a", "b"], **how)
    assert (found.index, found.label, found.score) == (1, "b", 0.75)
    assert found.box == pytest.approx((7, 10, 35, 30), abs=1e-5)


def test_ssd_when_boxes_are_relative_to_priors_is_as_in_plain_loops():
    rng = np.random.default_rng(4)
    priors = rng.uniform(0.1, 0.6, (9, 4))
    offsets = rng.normal(0, 2, (9, 4)).astype(np.float32)
    scores = rng.uniform(0.3, 1, (9, 3)).astype(np.float32)
    found = find(offsets, scores, priors=priors, variances=[0.25, 0.5], background=True)
    wanted = []
    for (px, py, pw, ph), (x, y, w, h), row in zip(
        priors.tolist(), offsets.tolist(), scores.tolist(), strict=True
    ):
        centre = (px + 0.25 * x * pw) * 70, (py + 0.25 * y * ph) * 40
        half = pw * math.exp(0.5 * w) * 35, ph * math.exp(0.5 * h) * 20
        box = (centre[0] - half[0], centre[1] - half[1], centre[0] + half[0], centre[1] + half[1])
        box = [min(max(v, 0), size) for v, size in zip(box, (70, 40, 70, 40), strict=True)]
        wanted.append((max(row[1:]), row[1:].index(max(row[1:])), box))
    wanted.sort(key=lambda each: -each[0])
    assert len(found) == 9
    for each, (score, index, box) in zip(found, wanted, strict=True):
        assert (each.index, each.score) == (index, score)
        assert each.box == pytest.approx(box)


BOX = [0.0, 0.0, 0.5, 0.5]


def test_ssd_when_class_0_is_the_background_leaves_it_out_and_counts_from_the_next():
    rows = [[0.9, 0.4, 0.3], [0.1, 0.2, 0.7], [0.9, 0.05, 0.05]]
    found = find([BOX] * 3, rows, ["a", "b"], background=True)
    assert [(each.index, each.label, round(each.score, 3)) for each in found] == [
        (1, "b", 0.7),
        (0, "a", 0.4),
    ]


def test_ssd_when_softmax_is_asked_for_counts_the_background_too():
    logits = [1.0, 3.0, 2.0]
    (found,) = find([BOX], [logits], background=True, activation="softmax")
    wanted = math.exp(3) / sum(map(math.exp, logits))
    assert (found.index, found.score) == (0, pytest.approx(wanted))


def test_ssd_when_sigmoid_rounds_scores_to_one_takes_the_class_of_the_larger_value():
    (found,) = find([BOX], [[50, 60, 40]], activation="sigmoid")
    assert (found.index, found.score) == (1, 1.0)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("activation", ["none", "softmax", "sigmoid"])
def test_ssd_when_values_are_no_numbers_leaves_the_rows_out(activation):
    rows = [[math.nan, math.nan], [math.inf, math.nan], [0.5, 0.75]]
    boxes = [BOX, [math.nan, 0, 1, 1], BOX]
    (found,) = find(boxes, rows, score=0, activation=activation)
    assert found.index == 1


def test_ssd_when_a_score_is_just_the_least_keeps_the_row():
    assert len(find([BOX] * 3, [[0.5], [0.75], [0.25]], score=0.5)) == 2


def test_ssd_when_boxes_overlap_keeps_the_better_of_each_class():
    rows, scores = [BOX] * 3, [[0.5, 0], [0.75, 0], [0, 0.6]]
    found = find(rows, scores, ["a", "b"], iou=0.5)
    assert [(each.label, round(each.score, 3)) for each in found] == [("a", 0.75), ("b", 0.6)]
    options = AnswerOptions(allow=["b"])
    assert [each.label for each in find(rows, scores, ["a", "b"], options=options)] == ["b"]


@pytest.mark.filterwarnings("error")
def test_ssd_when_classes_are_an_output_reads_them_as_numbers():
    classes = [1, 2, 0, 1.5, math.nan, 3, -1]
    boxes, scores = [BOX] * 7, [0.5, 0.9, 0.8, 0.8, 0.8, 0.8, 0.8]
    found = find(boxes, scores, ["a", "b"], classes, background=True)
    assert [(each.label, round(each.score, 3)) for each in found] == [("b", 0.9), ("a", 0.5)]
    found = find(boxes, scores, (), classes)
    assert [each.index for each in found] == [2, 0, 3, 1]


def test_ssd_when_classes_are_integers_and_boxes_halves_reads_both():
    boxes = np.array([[BOX]], np.float16)
    given = [boxes, np.array([[0.5]], np.float32), np.array([[3]], np.int64)]
    (found,) = make_answer(join_outputs(given), described(classes="classes"), [], WIDE)
    assert (found.index, found.score, found.box) == (3, 0.5, (0, 0, 35, 20))


def test_ssd_when_there_are_no_boxes_finds_nothing():
    for activation in ("none", "softmax"):
        assert find(np.zeros((0, 4)), np.zeros((0, 3)), activation=activation) == []
    assert find(np.zeros((0, 4)), np.zeros(0), classes=np.zeros(0)) == []


SHAPES = "boxes [1, N, 4], scores [1, N, classes]"


@pytest.mark.parametrize(
    ("shapes", "said"),
    [
        ([(1, 9, 5), (1, 9, 2)], "the output is [1, 9, 5], its scores [1, 9, 2]: the layout"),
        ([(2, 9, 4), (2, 9, 2)], SHAPES),
        ([(9, 4), (9, 2)], SHAPES),
        ([(1, 9, 4), (1, 8, 2)], SHAPES),
        ([(1, 9, 4), (1, 9)], SHAPES),
        ([(1, 9, 4), (1, 9, 2), (1, 9)], "scores [1, N] and classes [1, N]"),
        ([(1, 9, 4), (1, 9), (1, 8)], "its scores [1, 9], its classes [1, 8]:"),
    ],
)  # fmt: skip
def test_ssd_when_outputs_have_other_shapes_says_what_they_have(shapes, said):
    with pytest.raises(ValueError) as caught:
        join_outputs([np.zeros(shape, np.float32) for shape in shapes])
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("labels", "background", "said"),
    [
        (["a"], False, "the scores have 2 classes, expected 1"),
        (["a", "b"], True, "the scores have 2 classes, expected 3 with the background"),
    ],
)
def test_ssd_when_labels_are_other_than_classes_says_how_many(labels, background, said):
    with pytest.raises(ValueError) as caught:
        find([BOX], [[0.5, 0.5]], labels, background=background)
    assert str(caught.value) == said


def test_ssd_when_only_the_background_has_a_score_says_so():
    with pytest.raises(ValueError, match="1 classes, expected 2 or more with the background"):
        find([BOX], [[0.5]], background=True)


def test_ssd_when_priors_are_too_few_says_how_many():
    with pytest.raises(ValueError, match="the output has 2 boxes, the priors are 1"):
        find([BOX] * 2, [[1], [1]], priors=np.ones((1, 4)))


def test_read_priors_when_lines_are_boxes_returns_them():
    text = "\ufeff0.5,0.25,1e-1,2\r\n -1 , 0 ,3.5E+1,1\n"
    assert read_priors(text).tolist() == [[0.5, 0.25, 0.1, 2], [-1, 0, 35, 1]]
    assert read_priors("").shape == (0, 4)


@pytest.mark.parametrize(
    "line", ["", "1,2,3", "1,2,3,4,5", "1,2,3,x", "1;2;3;4", "nan,1,1,1", "1_0,1,1,1", ".5,1,1,1"]
)
def test_read_priors_when_a_line_is_no_box_says_which(line):
    with pytest.raises(ValueError) as caught:
        read_priors(f"1,2,3,4\n{line}\n1,2,3,4\n")
    assert str(caught.value) == f"line 2 is '{line}', expected four numbers: cx,cy,w,h"

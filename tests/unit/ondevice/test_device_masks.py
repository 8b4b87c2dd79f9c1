"""Masks and decisions, held against plain loops."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from edgepack.ondevice.runtime.edgepack_answers import Decision, make_answer, make_json
from edgepack.ondevice.runtime.edgepack_images import find_placement
from edgepack.ondevice.runtime.edgepack_masks import Mask
from edgepack.project.outputs import OutputDescription
from pydantic import TypeAdapter

RESIZES = {
    "letterbox": {"letterbox": 24, "pad": 114},
    "crop": {"short_side": 30, "crop": 24},
    "stretch": {"width": 24, "height": 16},
}


def answer(output, place=None, labels=(), **how):
    described = TypeAdapter(OutputDescription).validate_python(how).model_dump()
    return make_answer(np.asarray(output), described, labels, place)


def segment(output, place, **how):
    return answer(output, place, kind="mask", **how)


@pytest.mark.parametrize("resize", RESIZES)
@pytest.mark.parametrize("size", [(50, 31), (13, 40), (24, 24), (1, 1)])
def test_mask_when_mapped_back_is_as_in_plain_loops(resize, size):
    place = find_placement(*size, RESIZES[resize])
    scores = np.random.default_rng(2).normal(0, 1, (1, 4, 6, 9)).astype(np.float32)
    found = segment(scores, place)
    assert (found.width, found.height, found.classes.dtype) == (*size, np.uint8)
    for y in range(size[1]):
        for x in range(size[0]):
            across = (x + 0.5) * place.width / size[0] + place.left
            down = (y + 0.5) * place.height / size[1] + place.top
            expected = 255
            if 0 <= across < place.input_width and 0 <= down < place.input_height:
                row = math.floor(down * 6 / place.input_height)
                column = math.floor(across * 9 / place.input_width)
                values = scores[0, :, row, column].tolist()
                expected = values.index(max(values))
            assert found.classes[y, x] == expected, (x, y)


def test_mask_when_the_picture_is_cut_has_255_where_the_model_did_not_see():
    place = find_placement(40, 20, {"short_side": 20, "crop": 20})
    found = segment(np.zeros((1, 2, 5, 5), np.float32), place)
    assert (found.classes == np.repeat([[255] * 10 + [0] * 20 + [255] * 10], 20, axis=0)).all()


WHOLE = find_placement(2, 2, {"width": 2, "height": 2})
"""A picture that is the input."""


def classes(values, **how):
    return segment(values, WHOLE, **how).classes.tolist()


def test_mask_when_classes_lie_last_is_the_same():
    scores = np.random.default_rng(4).normal(0, 1, (1, 3, 2, 2)).astype(np.float16)
    assert classes(scores) == classes(scores.transpose(0, 2, 3, 1), axis=-1)


@pytest.mark.parametrize(("shape", "axis"), [((1, 2, 2), 1), ((1, 1, 2, 2), 1), ((1, 2, 2, 1), -1)])
def test_mask_when_a_place_has_one_value_is_an_integer_itself_or_beyond_the_threshold(shape, axis):
    values = np.array([0.3, 0.29, math.nan, 7], np.float32).reshape(shape)
    # 0.3 in 32 bits is a little more than 0.3.
    assert classes(values, axis=axis, threshold=0.3) == [[1, 0], [0, 1]]
    # And 0.7 a little less.
    assert classes(np.full(shape, 0.7, np.float32), axis=axis, threshold=0.7) == [[0, 0], [0, 0]]
    assert classes(np.array([0, 254, 3, 1]).reshape(shape), axis=axis) == [[0, 254], [3, 1]]
    assert classes(np.array([0, 1, 1, 0], bool).reshape(shape), axis=axis) == [[0, 1], [1, 0]]


def test_mask_when_scores_are_equal_or_no_numbers_has_the_first_highest_number():
    scores = np.array([[[math.nan, 1], [0, math.nan]], [[-9, 1], [1, math.inf]]], np.float32)
    assert classes(scores[None]) == [[1, 0], [1, 1]]


@pytest.mark.parametrize("values", [[0, 1, 255, 0], [0, -1, 3, 0]])
def test_mask_when_a_class_is_no_byte_below_255_is_refused(values):
    with pytest.raises(ValueError, match="a pixel's class is 0 to 254"):
        classes(np.array(values).reshape(1, 2, 2))


@pytest.mark.parametrize(
    "output", [np.zeros((2, 3, 4, 4)), np.zeros((1, 3, 4, 4), int), np.zeros((4, 4))]
)
def test_mask_when_the_output_is_no_map_is_the_output(output):
    assert segment(output, WHOLE) is output


def test_mask_without_a_picture_is_the_output():
    output = np.zeros((1, 3, 4, 4), np.float32)
    assert segment(output, None) is output


def test_json_of_a_mask_has_runs():
    place = find_placement(3, 2, {"width": 3, "height": 2})
    found = answer(np.array([[[7, 7, 0], [0, 0, 7]]]), place, ["a"], kind="mask")
    assert isinstance(found, Mask)
    assert list(found.labels) == ["a"]
    assert json.dumps(make_json(found)) == (
        '{"width": 3, "height": 2, "runs": [[7, 2], [0, 3], [7, 1]]}'
    )


def test_decisions_when_the_threshold_is_reached_are_positive():
    found = answer(np.float32([[0.75, 0.5], [math.nan, 2]]), kind="probability", threshold=0.75)
    assert [each.positive for each in found] == [True, False, False, True]
    assert found[0] == Decision(0.75, positive=True)


def test_decisions_when_logits_come_out_are_of_their_sigmoid():
    how = {"kind": "probability", "activation": "sigmoid", "threshold": 0.6}
    found = answer(np.float32([0, 1, -1000]), **how)
    assert [each.score for each in found] == pytest.approx([0.5, 0.7310586, 0])
    assert make_json(found)[1] == {"score": found[1].score, "positive": True}

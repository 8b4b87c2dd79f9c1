"""Rows of detections, held against arithmetic done otherwise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from edgepack.ondevice.runtime.edgepack_answers import make_answer
from edgepack.ondevice.runtime.edgepack_images import find_placement
from edgepack.project.outputs import OutputDescription
from pydantic import TypeAdapter

WIDE = find_placement(70, 40, {"width": 70, "height": 40})
"""A picture that is the input."""


def find(rows, labels=(), place=WIDE, **how):
    described = TypeAdapter(OutputDescription).validate_python({"kind": "detection", **how})
    output = np.asarray(rows, np.float32)
    return make_answer(output[None], described.model_dump(), labels, place)


def cells(*strides):
    """Each cell of 70 x 40 pixels, in the order of rows."""
    return [
        (x, y, stride)
        for stride in strides
        for y in range(40 // stride)
        for x in range(70 // stride)
    ]


def test_yolox_when_decoded_is_as_in_plain_loops():
    rng = np.random.default_rng(3)
    places = cells(16, 8)
    rows = np.hstack([rng.normal(0, 1, (len(places), 4)), rng.uniform(0.6, 1, (len(places), 3))])
    rows = rows.astype(np.float32)
    found = find(rows, ["a", "b"], layout="yolox", strides=[16, 8], iou=1, most=999)
    expected = []
    for (x, y, stride), (dx, dy, lw, lh, seen, *scores) in zip(places, rows.tolist(), strict=True):
        kind = scores.index(max(scores))
        centre, half = [(dx + x) * stride, (dy + y) * stride], [math.exp(lw), math.exp(lh)]
        half = [each * stride / 2 for each in half]
        box = [c - h for c, h in zip(centre, half, strict=True)]
        box += [c + h for c, h in zip(centre, half, strict=True)]
        box = [min(max(v, 0), size) for v, size in zip(box, (70, 40, 70, 40), strict=True)]
        expected.append((seen * scores[kind], kind, box))
    expected.sort(key=lambda each: -each[0])
    assert len(found) == len(expected) == 8 + 40
    for each, (score, kind, box) in zip(found, expected, strict=True):
        assert (each.index, each.label) == (kind, "ab"[kind])
        assert each.score == pytest.approx(score)
        assert each.box == pytest.approx(box, abs=1e-9)


def test_yolox_when_no_strides_are_given_has_those_of_yolox():
    rows = np.zeros((len(cells(8, 16, 32)), 6))
    rows[-1] = [0.5, 0.5, 0, 0, 1, 1]
    (found,) = find(rows, layout="yolox")
    # Of the last grid, with two cells, the second.
    assert found.box == pytest.approx((32, 0, 64, 32))


@pytest.mark.filterwarnings("error")
def test_yolox_when_a_size_is_beyond_all_numbers_leaves_the_row_out():
    rows = np.zeros((len(cells(16)), 6))
    rows[:3] = [[0, 0, 1e4, 0, 1, 1], [0, 0, 0, math.nan, 1, 1], [0, 0, -1e4, 0, 1, 0.5]]
    (found,) = find(rows, layout="yolox", strides=[16])
    assert found.box == pytest.approx((32, 0, 32, 8))


def test_yolox_when_boxes_are_too_few_says_how_many_there_are():
    with pytest.raises(
        ValueError, match=r"47 boxes: with the strides \[16, 8\] an input of 70 x 40"
    ):
        find(np.zeros((47, 7)), layout="yolox", strides=[16, 8])


def test_end2end_when_objects_overlap_keeps_all_in_order():
    rows = [[1, 2, 30, 20, 0.5, 1], [1, 2, 30, 20, 0.75, 1], [50, 30, 90, 50, 0.5, 0]]
    found = find(rows, ["a", "b"], layout="end2end", iou=0.1)
    assert [(each.label, each.score) for each in found] == [("b", 0.75), ("b", 0.5), ("a", 0.5)]
    assert found[0].box == (1, 2, 30, 20)
    assert found[2].box == (50, 30, 70, 40)
    assert len(find(rows, layout="end2end", most=2)) == 2


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", [-1, 1.5, math.nan, math.inf, -math.inf, 2, 3e9])
def test_end2end_when_a_class_is_none_leaves_the_row_out(kind):
    rows = [[1, 2, 30, 20, 0.9, kind], [1, 2, 30, 20, 0.5, 0]]
    assert [each.score for each in find(rows, ["a", "b"], layout="end2end")] == [0.5]
    assert len(find(rows, layout="end2end")) == (2 if kind == 2 else 1)


@pytest.mark.parametrize("row", [[math.nan, 2, 3, 4, 0.9, 0], [1, 2, 3, 4, math.nan, 0]])
def test_end2end_when_a_value_is_no_number_leaves_the_row_out(row):
    assert find([row], layout="end2end", score=0) == []


@pytest.mark.parametrize("shape", [(1, 9, 5), (1, 9, 7), (2, 9, 6), (9, 6)])
def test_end2end_when_the_shape_is_another_says_what_is_wanted(shape):
    how = {"kind": "detection", "layout": "end2end"}
    described = TypeAdapter(OutputDescription).validate_python(how).model_dump()
    with pytest.raises(ValueError, match="with 6 values for each box"):
        make_answer(np.zeros(shape, np.float32), described, [], WIDE)

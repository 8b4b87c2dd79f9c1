"""What is cut out of a picture for a box, and which rows are of the same object."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from edgepack.ondevice.runtime.edgepack_answers import Detection, Keypoint
from edgepack.ondevice.runtime.edgepack_crops import (
    cut_rows,
    find_edges,
    make_rows,
    match_rows,
    read_rows,
)

WIDTH, HEIGHT = 40, 30


def rows(*given: tuple[float, ...]) -> Any:
    return np.array(given, np.float32).reshape(-1, 6)


@pytest.mark.parametrize(
    ("box", "margin", "expected"),
    [
        ((2, 3, 10, 12), 0.0, (2, 3, 10, 12)),
        # To the next edge between pixels, halves up.
        ((1.49, 3.5, 10.5, 12.49), 0.0, (1, 4, 11, 12)),
        # A margin is a part of the box's own width and height.
        ((10, 10, 20, 14), 0.25, (8, 9, 23, 15)),
        # Clipped to the picture, also where the margin leads out of it.
        ((-5, -0.6, 99, 29.6), 0.0, (0, 0, 40, 30)),
        ((1, 1, 39, 29), 0.5, (0, 0, 40, 30)),
        ((39.5, 0, 40, 30), 0.0, None),
        ((39.4, 0, 40, 30), 0.0, (39, 0, 40, 30)),
        # Nothing is left.
        ((5, 5, 5, 9), 0.0, None),
        ((5, 9, 7, 5), 0.0, None),
        ((5.6, 5, 6.4, 9), 0.0, None),
        ((50, 5, 60, 9), 0.0, None),
        ((float("nan"), 5, 60, 9), 0.0, None),
    ],
)
def test_edges_are_rounded_and_clipped(box: Any, margin: float, expected: Any) -> None:
    assert find_edges(box, WIDTH, HEIGHT, margin) == expected


def test_pieces_are_the_pixels_of_the_boxes() -> None:
    picture = np.random.default_rng(0).integers(0, 255, (HEIGHT, WIDTH, 3)).astype(np.uint8)
    given = rows((2, 3, 10, 12, 0.9, 0), (4, 4, 4, 8, 0.8, 0), (0, 0, 40, 30, 0.7, 1))
    found = list(cut_rows(picture, given, 0.0, 5))
    assert [number for number, _ in found] == [0, 2]
    assert np.array_equal(found[0][1], picture[3:12, 2:10])
    assert np.array_equal(found[1][1], picture)
    # Boxes that cover nothing are not counted.
    assert [number for number, _ in cut_rows(picture, given[1:], 0.0, 1)] == [1]
    assert [number for number, _ in cut_rows(picture, given, 0.0, 1)] == [0]
    assert list(cut_rows(picture, rows(), 0.0, 1)) == []


def test_detections_go_to_rows_and_back() -> None:
    found = [
        Detection(1, "dog", 0.5, (1.0, 2.0, 3.5, 4.0)),
        Detection(7, None, 0.25, (0.0, 0.0, 1.0, 1.0)),
    ]
    made = make_rows(found)
    assert (made.shape, made.dtype) == ((2, 6), np.float32)
    assert read_rows(made, ["cat", "dog"]) == found
    assert make_rows([]).shape == (0, 6)


def test_rows_of_one_object_are_found_in_any_order() -> None:
    first = rows((0, 0, 10, 10, 0.9, 0), (20, 0, 30, 10, 0.8, 1), (0, 20, 10, 30, 0.7, 0))
    # The second box covers half of the union, the third has another class, one is new.
    second = rows((20, 0, 30, 5, 0.8, 1), (0, 20, 10, 30, 0.7, 1), (0, 0, 10, 9, 0.9, 0))
    found = match_rows(first, second)
    assert (found.first, found.second) == ([0, 1], [2, 0])
    assert found.least_iou == pytest.approx(0.5)
    assert found.unmatched == 2
    assert match_rows(first, first).unmatched == 0


def test_one_row_has_one_partner_the_one_that_overlaps_most() -> None:
    first = rows((0, 0, 10, 10, 0.9, 0), (0, 0, 10, 12, 0.8, 0))
    found = match_rows(first, rows((0, 0, 10, 12, 0.8, 0)))
    assert (found.first, found.second, found.least_iou, found.unmatched) == ([1], [0], 1, 1)


def test_nothing_matches_nothing() -> None:
    assert match_rows(rows(), rows()) == ([], [], 1.0, 0)
    assert match_rows(rows(), rows((0, 0, 1, 1, 0.5, 0))).unmatched == 1
    # A box without area is in no box.
    flat = rows((1, 1, 1, 1, 0.5, 0))
    assert match_rows(flat, flat).unmatched == 2


def test_keypoints_are_not_in_rows() -> None:
    found = [Detection(1, "b", 0.5, (1.0, 2.0, 3.0, 4.0), (Keypoint(2.0, 3.0, None),))]
    assert make_rows(found).tolist() == [[1, 2, 3, 4, 0.5, 1]]
    assert read_rows(make_rows(found), ["a", "b"]) == [replace(found[0], keypoints=())]

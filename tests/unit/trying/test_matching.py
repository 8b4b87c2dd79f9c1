from __future__ import annotations

import pytest
from edgepack.ondevice.runtime.edgepack_answers import Detection
from edgepack.trying.matching import compute_overlap, match_detections


def dog(x: float, score: float = 0.9, *, kind: int = 0, width: float = 10) -> Detection:
    return Detection(kind, None, score, (x, 0.0, x + width, 10.0))


def test_overlap_when_computed_is_intersection_over_union():
    assert compute_overlap((0, 0, 10, 10), (5, 0, 15, 10)) == pytest.approx(50 / 150)
    assert compute_overlap((0, 0, 10, 10), (10, 0, 20, 10)) == 0
    assert compute_overlap((3, 3, 3, 3), (3, 3, 3, 3)) == 0


def test_objects_when_their_order_differs_are_matched_by_place():
    left, right = dog(0), dog(100)
    moved = dog(101, 0.95), dog(1, 0.4)
    assert match_detections([[left, right], moved]) == [[left, moved[1]], [right, moved[0]]]


def test_objects_when_several_overlap_take_the_one_that_overlaps_most():
    near, exact = dog(3, 0.9), dog(0, 0.3)
    assert match_detections([[dog(0)], [near, exact]]) == [[dog(0), exact], [None, near]]


def test_object_when_nothing_is_at_its_place_is_missing_and_the_other_one_added():
    far = dog(50)
    assert match_detections([[dog(0)], [far]]) == [[dog(0), None], [None, far]]
    # 10 wide and 5 apart: a third of the union.
    assert match_detections([[dog(0)], [dog(5)]]) == [[dog(0), None], [None, dog(5)]]


def test_object_when_its_class_is_another_one_is_matched_after_those_of_the_same_class():
    cat, same = dog(0, 0.99, kind=1), dog(2, 0.5)
    assert match_detections([[dog(0)], [cat, same]]) == [[dog(0), same], [None, cat]]
    assert match_detections([[dog(0)], [cat]]) == [[dog(0), cat]]


def test_added_object_when_two_variants_have_it_shares_a_row():
    first, second = dog(70), dog(71)
    rows = match_detections([[dog(0)], [dog(0), first], [second]])
    assert rows == [[dog(0), dog(0), None], [None, first, second]]

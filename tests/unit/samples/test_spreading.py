"""Some of many samples, evenly spread."""

from __future__ import annotations

import numpy as np
import pytest
from edgepack.samples.spreading import choose_spread
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize("most", [4, 5, None])
def test_spread_when_there_are_no_more_than_wanted_takes_all(most):
    assert choose_spread("abcd", most) == list("abcd")


def test_spread_when_classes_lie_behind_each_other_takes_some_of_each():
    classes = [0] * 25 + [1] * 25 + [2] * 25 + [3] * 25
    assert choose_spread(classes, 8) == [0, 0, 1, 1, 2, 2, 3, 3]


@given(st.integers(1, 300), st.integers(1, 300))
def test_spread_when_any_are_taken_has_even_gaps_from_the_first_on(count, most):
    taken = choose_spread(range(count), most)
    assert taken[0] == 0
    assert len(taken) == min(count, most)
    gaps = np.diff([*taken, count])
    assert gaps.max() - gaps.min() <= 1

from __future__ import annotations

import pytest
from edgepack.base.pace import Pace, format_time_left


def test_left_when_no_part_of_a_kind_is_done_is_unknown():
    pace = Pace.of({"slow": 1, "quick": 2}, 0.0)
    pace.begin("a", "quick", 0.0)
    pace.end("a", "", 10.0)
    assert pace.estimate_left_s(10.0) is None


def test_left_when_kinds_are_known_is_what_their_parts_take():
    pace = Pace.of({"slow": 3, "quick": 2}, 0.0)
    for part, kind, began, took in (("a", "quick", 0.0, 4.0), ("b", "slow", 4.0, 20.0)):
        pace.begin(part, kind, began)
        pace.end(part, "", began + took)
    assert pace.estimate_left_s(24.0) == pytest.approx(1 * 4.0 + 2 * 20.0)


def test_left_when_parts_ran_two_at_a_time_takes_that_the_rest_will():
    pace = Pace.of({"run": 6}, 0.0)
    for part in ("a", "b"):
        pace.begin(part, "run", 0.0)
    for part in ("a", "b"):
        pace.end(part, "", 10.0)
    assert pace.estimate_left_s(10.0) == pytest.approx(4 * 10.0 / 2)


def test_left_when_a_part_was_done_before_does_not_count_it():
    pace = Pace.of({"run": 3}, 0.0)
    pace.begin("a", "run", 0.0)
    pace.end("a", "", 8.0)
    pace.end("b", "run", 8.0)
    assert pace.estimate_left_s(8.0) == pytest.approx(8.0)


def test_left_when_the_running_part_takes_longer_than_its_like_is_unknown():
    pace = Pace.of({"run": 2}, 0.0)
    pace.begin("a", "run", 0.0)
    pace.end("a", "", 10.0)
    pace.begin("b", "run", 10.0)
    assert pace.estimate_left_s(14.0) == pytest.approx(6.0)
    assert pace.estimate_left_s(21.0) is None


def test_left_of_a_part_comes_from_its_rate_and_only_after_a_while():
    pace = Pace.of({"run": 1}, 0.0)
    pace.begin("a", "run", 0.0)
    pace.running["a"].record(0, 100, 5.0)
    pace.running["a"].record(10, 100, 6.0)
    assert pace.estimate_left_s(6.0) is None
    pace.running["a"].record(20, 100, 9.0)
    assert pace.estimate_left_s(9.0) == pytest.approx((9.0 - 5.0) * 80 / 20)


def test_left_when_a_part_tells_of_one_of_its_stages_only_is_unknown():
    pace = Pace.of({"run": 1}, 0.0)
    pace.begin("a", "run", 0.0)
    pace.running["a"].record(0, 100, 0.0, is_whole=False)
    pace.running["a"].record(50, 100, 50.0, is_whole=False)
    assert pace.estimate_left_s(50.0) is None
    assert pace.running["a"].estimate_left_s(50.0) == pytest.approx(50.0)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, ""),
        (1.9, ""),
        (3, "less than 10 s left"),
        (41, "about 50 s left"),
        (121, "about 3 min left"),
    ],
)
def test_time_left_in_words_is_rounded_up(seconds, text):
    assert format_time_left(seconds) == text


def test_time_left_when_it_may_end_earlier_says_so():
    assert format_time_left(2.5 * 3600, at_most=True) == "at most 2.5 h left"

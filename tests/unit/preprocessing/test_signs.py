"""What outputs tell of wrong preprocessing."""

from __future__ import annotations

from math import log2

import numpy as np
import pytest
from edgepack.metrics.accuracy import Variation
from edgepack.preprocessing.signs import (
    compare_with_chance,
    compute_divergence,
    compute_information,
    compute_likelihood,
    compute_tail_probability,
    find_one_answer,
    sign_test,
)

TEN = list(range(10)) * 4


@pytest.mark.parametrize(
    ("answers", "labels", "is_chance"),
    [
        (TEN, TEN, False),
        ([3] * 40, TEN, True),
        (TEN[1:] + TEN[:1], TEN, True),
        ([0] * 36 + [1] * 4, [0] * 36 + [1] * 4, False),
        ([1] * 40, [0] * 36 + [1] * 4, True),
        ([0] * 5, [0, 1, 2, 3, 4], False),
    ],
    ids=["right", "constant", "off", "mostly one class", "worse than constant", "too few"],
)
def test_chance_when_answers_meet_labels_is_told_only_where_samples_show_it(
    answers, labels, is_chance
):
    assert compare_with_chance(answers, labels).is_chance is is_chance


def test_chance_when_a_task_is_hard_needs_few_right_answers():
    labels = list(range(100))
    answers = [*labels[:4], *(label + 500 for label in labels[4:])]
    assert not compare_with_chance(answers, labels).is_chance


def test_one_answer_when_labels_are_of_one_class_is_none():
    assert find_one_answer([3] * 20, 10, TEN[:20]) == 3
    assert find_one_answer([3] * 20, 10, [3] * 20) is None
    assert find_one_answer([3] * 20, 10, None) == 3
    assert find_one_answer([1] * 20, 2, None) is None


def test_variation_when_outputs_are_equal_is_none_and_noise_is_all_of_it():
    random = np.random.default_rng(0)
    still, noise, mixed = Variation(), Variation(), Variation()
    for _ in range(500):
        drawn = random.standard_normal(50)
        still.add(np.arange(50))
        noise.add(drawn)
        mixed.add(drawn + 10)
    assert still.share == pytest.approx(0, abs=1e-6)
    assert noise.share == pytest.approx(1, abs=0.01)
    assert mixed.share == pytest.approx(1 / np.sqrt(101), rel=0.05)


def test_variation_when_shapes_differ_tells_nothing():
    found = Variation()
    found.add(np.ones(3))
    found.add(np.ones(4))
    assert found.share == 1


def test_information_when_each_sample_gets_its_class_is_the_logarithm_of_their_number():
    assert compute_information(np.eye(8) * 100) == pytest.approx(3)
    assert compute_information(np.eye(8)) == pytest.approx(3)
    assert compute_information(np.ones((8, 8))) == pytest.approx(0)
    assert compute_information(np.tile(np.eye(8)[0] * 100, (8, 1))) == pytest.approx(0)


def test_likelihood_when_a_label_is_no_class_counts_as_the_least():
    scores = np.array([[0.75, 0.25], [0.5, 0.5]])
    assert compute_likelihood(scores, [0, 1]) == pytest.approx((log2(0.75) - 1) / 2)
    assert compute_likelihood(scores, [-1, 2]) == pytest.approx(-10)


def test_sign_test_when_all_differences_are_for_the_better_is_a_power_of_two():
    assert sign_test(5, 0) == pytest.approx(1 / 32)
    assert sign_test(0, 0) == pytest.approx(1)
    assert compute_tail_probability(1, 10, 0.1) == pytest.approx(1 - 0.9**10)


def test_divergence_when_statistics_are_those_expected_is_nothing():
    mean, variance = np.array([0.0, 1.0, 2.0]), np.array([1.0, 4.0, 9.0])
    assert compute_divergence(mean, variance, mean, variance) == pytest.approx(0, abs=1e-6)
    shifted = compute_divergence(mean + np.sqrt(variance), variance, mean, variance)
    assert shifted == pytest.approx(0.5, rel=1e-6)
    assert compute_divergence(255 * mean, 255**2 * variance, mean, variance) > 1000

from __future__ import annotations

import numpy as np
import pytest
from edgepack.errors import StepError
from edgepack.steps.proofs.framework import ComparedOutput, compare_output, require_near


def compare(expected, given, **settings):
    pair = [[{"y": np.asarray(one)} for one in side] for side in (expected, given)]
    names = [f"photo {n}.jpg" for n in range(len(expected))]
    return compare_output("y", "Identity", names, tuple(pair), **settings)


def f32(*values):
    return np.array(values, np.float32)


def test_output_when_near_tells_the_farthest_sample_and_what_is_allowed():
    found = compare([f32(1, 2), f32(-10, 4)], [f32(1, 2), f32(-10, 4.005)])
    assert found.sample == "photo 1.jpg"
    assert found.farthest == pytest.approx(0.005, rel=1e-3)
    assert found.largest == 10
    assert found.tolerance == pytest.approx(0.01001)
    require_near(found, "Keras")


def test_output_when_far_is_refused_with_name_sample_and_numbers():
    found = compare([f32(1), f32(10)], [f32(1.02), f32(10)])
    with pytest.raises(StepError, match=r"'y' 0\.02 away on photo 0\.jpg, where 0\.01"):
        require_near(found, "Keras")


@pytest.mark.parametrize(("off", "near"), [(0.9e-5, True), (1.2e-5, False)])
def test_output_when_its_format_says_the_limit_is_held_to_that(off, near):
    expected = np.array([0.5, 1.0])
    found = compare([expected], [expected + off], share=1e-5)
    assert found.tolerance == pytest.approx(1.01e-5)
    assert (found.farthest <= found.tolerance) is near


def test_output_when_tiny_counts_as_zero():
    require_near(compare([f32(1e-9)], [f32(2e-9)]), "Keras")


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_output_when_no_number_where_the_framework_has_one_is_refused(bad):
    with pytest.raises(StepError):
        require_near(compare([f32(1, 2)], [f32(1, bad)]), "Keras")


def test_output_when_no_number_in_both_is_near():
    require_near(compare([f32(np.nan, np.inf)], [f32(np.nan, np.inf)]), "Keras")


@pytest.mark.parametrize(("one", "other"), [([1, 2, 3], [1, 2, 4]), (["a", "b"], ["a", "c"])])
def test_output_of_integers_or_texts_when_one_differs_is_refused(one, other):
    found = compare([np.array(one)], [np.array(other)])
    assert (found.farthest, found.tolerance) == (1, 0)
    with pytest.raises(StepError, match="1 values differ on photo 0"):
        require_near(found, "scikit-learn")
    require_near(compare([np.array(one)], [np.array(one)]), "scikit-learn")


def test_output_when_its_shape_differs_is_refused_with_both():
    with pytest.raises(
        StepError, match=r"'y' is \[1, 2\] on photo 0.jpg, the framework's 'Identity' is \[2\]"
    ):
        compare([f32(1, 2)], [np.ones((1, 2), np.float32)])


def test_judgement_when_the_distance_is_no_number_refuses():
    with pytest.raises(StepError):
        require_near(ComparedOutput("y", "y", float("nan"), "a", 1.0, 1.0), "Keras")


def test_output_of_booleans_and_numbers_is_compared_by_value():
    require_near(compare([np.array([True, False])], [np.array([1, 0])]), "scikit-learn")
    with pytest.raises(StepError):
        require_near(compare([np.array([True, False])], [np.array([1, 1])]), "scikit-learn")


def test_whole_numbers_saved_as_floats_have_to_be_equal():
    with pytest.raises(StepError):
        require_near(compare([f32(1, 5000)], [np.array([2, 5000])]), "the reference")


def test_output_of_complex_numbers_is_refused():
    with pytest.raises(StepError, match="complex"):
        compare([np.array([1 + 1j])], [np.array([1 + 5j])])


def test_output_of_8_bit_integers_when_quantized_may_be_a_step_away():
    one, other = np.array([-128, 90], np.int8), np.array([-127, 90], np.int8)
    require_near(compare([one], [other], quantized=True), "TensorFlow Lite")
    with pytest.raises(StepError):
        require_near(compare([one], [other]), "TensorFlow Lite")
    with pytest.raises(StepError):
        require_near(compare([one], [-other], quantized=True), "TensorFlow Lite")

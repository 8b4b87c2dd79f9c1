from __future__ import annotations

import math

import numpy as np
import pytest
from edgepack.metrics.accuracy import (
    Deviation,
    OutputCloseness,
    OutputR2,
    Variation,
    array_cosine,
    array_sqnr_db,
    compute_mean_interval,
    compute_paired_drop,
    find_class_scores,
    group_by_range,
)
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.support.slow_cases import slow_after


def test_sqnr_when_noise_is_a_tenth_of_the_signal_is_20_db():
    reference = np.ones(100)
    assert array_sqnr_db(reference, reference * 1.1) == pytest.approx(20.0)


def test_sqnr_when_equal_nan_or_other_shape_is_at_its_ends():
    ones = np.ones(4)
    assert array_sqnr_db(ones, ones) == 200.0
    assert array_sqnr_db(ones, ones * np.nan) == -math.inf
    assert array_sqnr_db(ones, np.ones(5)) == -math.inf


def test_integers_when_one_in_a_hundred_differs_count_as_equal():
    reference = np.arange(100)
    output = reference.copy()
    output[0] = 7
    assert array_sqnr_db(reference, output) == 200.0
    output[1] = 7
    assert array_sqnr_db(reference, output) == -math.inf


def test_closeness_when_all_scores_of_a_detector_vanish_is_not_hidden_by_its_boxes():
    random = np.random.default_rng(0)
    head = np.concatenate(
        [random.uniform(0, 640, (1, 4, 100)), random.uniform(0, 1, (1, 80, 100))], axis=1
    )
    broken = head.copy()
    broken[:, 4:] = 0
    closeness = OutputCloseness()
    closeness.add(head, broken)
    assert closeness.cosine > 0.9999
    assert closeness.sqnr_db == pytest.approx(0.0)


def test_closeness_when_a_silent_channel_becomes_loud_counts_it_as_noise():
    reference, output = np.zeros((1, 2, 4)), np.zeros((1, 2, 4))
    reference[0, 0] = output[0, 0] = 1.0
    output[0, 1] = 1.0
    closeness = OutputCloseness()
    closeness.add(reference, output)
    assert closeness.sqnr_db == pytest.approx(0.0)


@given(hnp.arrays(np.float64, st.integers(1, 40), elements=st.floats(0, 1e6)))
def test_range_groups_when_formed_hold_every_channel_once_and_similar_peaks(peak):
    groups = group_by_range(peak)
    assert sorted(np.concatenate(groups)) == list(range(len(peak)))
    for group in groups:
        live = peak[group][peak[group] > 0]
        assert live.size == 0 or live.max() <= 16 * live.min() * (1 + 1e-12)


def test_class_scores_when_axes_of_length_one_surround_them_are_found():
    assert find_class_scores(np.zeros((1, 10, 1, 1), np.float32)).shape == (10,)
    assert find_class_scores(np.zeros((1, 3, 4), np.float32)) is None
    assert find_class_scores(np.zeros((1, 10), np.int64)) is None


def test_paired_drop_when_computed_has_the_normal_interval_of_the_differences():
    fp32, variant = [1, 1, 1, 0, 1, 0, 1, 1], [1, 0, 1, 0, 1, 1, 1, 0]
    difference = np.array(fp32) - np.array(variant)
    drop = compute_paired_drop(fp32, variant)
    half = 1.96 * difference.std(ddof=1) / math.sqrt(8)
    assert drop.value == pytest.approx(0.125)
    assert drop.interval == pytest.approx((0.125 - half, 0.125 + half))


def test_paired_drop_when_nothing_differs_is_three_in_n():
    assert compute_paired_drop([1] * 300, [1] * 300).interval == pytest.approx((-0.01, 0.01))


def test_closeness_when_class_scores_are_rarely_high_judges_them_as_one_quantity():
    scores = np.full((1, 100), 1e-6)
    scores[0, 3] = 1.0
    closeness = OutputCloseness()
    closeness.add(scores, scores + 1e-4)
    assert closeness.sqnr_db == pytest.approx(60, abs=0.1)


def test_closeness_when_nothing_is_left_of_an_empty_output_is_equal():
    one = OutputCloseness()
    one.add(np.zeros((2, 0, 4)), np.zeros((2, 0, 4)))
    assert one.sqnr_db == one.whole_sqnr_db == 200
    assert one.cosine == 1


def test_whole_closeness_when_channels_differ_in_range_is_that_of_all_together():
    reference = np.stack([np.full((8, 8), 100.0), np.full((8, 8), 1.0)])[None]
    output = reference.copy()
    output[0, 1] = 0
    one = OutputCloseness()
    for _ in range(2):
        one.add(reference, output)
    assert one.sqnr_db == pytest.approx(0)
    assert one.whole_sqnr_db == pytest.approx(10 * np.log10(100**2 + 1))


@given(st.integers(1, 3000), st.floats(0, 1))
def test_interval_of_hits_ends_where_the_found_share_is_two_sigma_away(count, part):
    hits = round(part * count)
    share = hits / count
    low, high = compute_mean_interval([1.0] * hits + [0.0] * (count - hits))
    assert 0 <= low <= share <= high <= 1
    assert low < high
    for end in (low, high):
        if 1e-9 < end < 1 - 1e-9:
            sigma = math.sqrt(end * (1 - end) / count)
            assert abs(share - end) / sigma == pytest.approx(1.959964, rel=1e-3)


def test_interval_of_other_values_is_students():
    values = [0.91, 0.97, 0.99, 0.95]
    low, high = compute_mean_interval(values)
    centre, deviation = np.mean(values), np.std(values, ddof=1)
    assert (low + high) / 2 == pytest.approx(centre)
    assert high - centre == pytest.approx(3.182446 * deviation / 2, rel=1e-5)  # t, 3 degrees
    assert compute_mean_interval([0.5]) is None


def r2_of(reference, output):
    running = OutputR2()
    for one, other in zip(reference, output, strict=True):
        running.add(one, other)
    return running.compute_r2()


def offsets(count=40, size=6):
    """Outputs that are 50 and a little that tells samples apart: any cosine of them is near 1."""
    return 50 + np.random.default_rng(0).normal(0, 0.05, (count, 1, size)).astype(np.float32)


def test_r2_when_an_output_is_the_best_constant_is_nothing_though_its_cosine_is_near_one():
    outputs = offsets()
    constant = np.broadcast_to(outputs.mean(axis=0), outputs.shape)
    found = r2_of(outputs, constant)
    assert found.value == pytest.approx(0, abs=1e-5)
    assert not found.beats_constants
    assert array_cosine(outputs[0], constant[0]) > 0.999


@pytest.mark.parametrize(
    ("noise", "share", "says"), [(0.0, 1.0, True), (0.01, 0.96, True), (0.1, -3.0, False)]
)
def test_r2_is_in_units_of_the_outputs_own_variance(noise, share, says):
    outputs = offsets(count=400)
    drawn = np.random.default_rng(1).normal(0, noise, outputs.shape).astype(np.float32)
    found = r2_of(outputs, outputs + drawn)
    assert found.value == pytest.approx(share, abs=0.1 if noise > 0.05 else 0.01)
    assert found.low <= found.value <= found.high
    assert found.beats_constants is says


def test_r2_when_only_an_offset_is_right_is_below_nothing():
    outputs = offsets()
    assert r2_of(outputs, np.full_like(outputs, 50.2)).value < 0


@pytest.mark.parametrize("heavy", [False, True], ids=["normal", "heavy tails"])
@pytest.mark.parametrize("size", slow_after(1, [1, 20]))
def test_r2_interval_holds_the_truth_in_about_as_many_cases_as_it_says(size, heavy):
    """Of outputs and errors that are drawn, so that the truth is known."""
    random = np.random.default_rng(5)

    def drawn(*shape):
        return random.standard_t(5, shape) if heavy else random.standard_normal(shape)

    cases, count, noise = 400, 20, 0.3
    outputs, errors = drawn(cases, count, 1, size), noise * drawn(cases, count, 1, size)
    found = [r2_of(own, own + error) for own, error in zip(outputs, errors, strict=True)]
    truth = 1 - noise**2
    too_high, too_low = (
        np.mean(missed)
        for missed in ([r2.low > truth for r2 in found], [r2.high < truth for r2 in found])
    )
    assert too_high < 0.09
    assert too_low < 0.09
    assert too_high + too_low > 0.005


def test_r2_interval_when_errors_are_a_part_of_what_samples_vary_by_is_narrower():
    random = np.random.default_rng(6)
    sizes = np.exp(random.standard_normal((40, 1, 1)))
    outputs = sizes * random.standard_normal((40, 1, 50))
    errors = 0.1 * random.standard_normal(outputs.shape)
    with_size, without = r2_of(outputs, outputs + sizes * errors), r2_of(outputs, outputs + errors)
    lost = [1 - each.value for each in (with_size, without)]
    (narrow, wide) = (
        (r2.high - r2.low) / part for r2, part in zip((with_size, without), lost, strict=True)
    )
    assert narrow < wide / 2
    equal = r2_of(outputs, outputs)
    assert (equal.low, equal.value, equal.high) == (1, 1, 1)


@pytest.mark.parametrize("worse", [False, True], ids=["some lost", "more lost than there is"])
def test_r2_interval_when_shapes_differ_or_two_samples_are_all_is_about_the_value(worse):
    random = np.random.default_rng(7)
    noise = 3.0 if worse else 0.1
    for sizes in ((14, 15, 16, 17), (14, 14)):
        outputs = [random.standard_normal((1, 3, size, 1)) for size in sizes]
        found = r2_of(
            outputs, [each + noise * random.standard_normal(each.shape) for each in outputs]
        )
        assert found.low < found.value < found.high <= 1


def test_r2_when_a_variant_gives_no_numbers_is_the_least_there_is():
    found = r2_of(offsets(), np.full_like(offsets(), np.nan))
    assert not found.beats_constants
    assert found.bound_values()["value"] == -1e9


@pytest.mark.parametrize(
    "reference",
    [offsets(1), np.ones((9, 1, 4), np.float32), [np.ones((1, 2)), np.ones((1, 3))]],
    ids=["one sample", "the same for all", "several shapes"],
)
def test_r2_when_nothing_can_be_told_is_none(reference):
    assert r2_of(reference, reference) is None


def test_r2_when_an_output_is_large_looks_at_values_from_all_of_it():
    whole = np.zeros((3, 1, 1 << 22), np.float32)
    whole[:, 0, :] = np.arange(3, dtype=np.float32).reshape(3, 1)
    broken = whole.copy()
    broken[:, 0, 1 << 21 :] = 1
    found = r2_of(whole, broken)
    assert found.value == pytest.approx(0.5, abs=0.01)


def test_variation_says_how_near_an_error_of_a_part_of_it_is():
    variation = Variation()
    rows = np.random.default_rng(0).standard_normal((50, 200)) * 0.05 + 3
    for row in rows:
        variation.add(row)
    error = 0.05 / 3 * np.random.default_rng(1).standard_normal(200)
    near = 10 * np.log10(np.sum(rows[0] ** 2) / np.sum(error**2))
    assert variation.sqnr_db(rows[0], 1 / 3) == pytest.approx(near, abs=1)
    assert variation.tells


@pytest.mark.parametrize("outputs", [[[1.0, 2.0]], [[1.0, 2.0]] * 3, [[1.0], [1.0, 2.0]]])
def test_variation_tells_nothing_when_samples_are_one_equal_or_of_other_shapes(outputs):
    variation = Variation()
    for output in outputs:
        variation.add(np.array(output))
    assert not variation.tells
    assert variation.sqnr_db(np.array([1.0]), 0.1) == -math.inf


def test_deviation_when_an_output_is_large_and_varies_little_is_not_about_zero():
    outputs = [np.array([[100 + n]], np.float32) for n in (-1.0, 1.0)]
    unit = Deviation.of(outputs)
    assert unit is not None
    (error,) = unit.compute_error([(outputs[0], outputs[0] + 0.5)])
    assert error == pytest.approx(0.5)


def test_deviation_when_boxes_and_scores_share_an_output_is_that_of_each():
    random = np.random.default_rng(0)
    outputs = [
        np.concatenate(
            [random.uniform(0, 640, (1, 4, 100)), random.uniform(0, 1, (1, 8, 100))], axis=1
        )
        for _ in range(8)
    ]
    unit = Deviation.of(outputs)
    assert unit is not None
    broken = outputs[0].copy()
    broken[:, 4:] = 0
    scores = [output[:, 4:] for output in outputs]
    deviation = np.sqrt(np.mean((scores - np.mean(scores, axis=0)) ** 2))
    due = np.sqrt(np.mean(scores[0] ** 2)) / deviation
    assert unit.compute_error([(outputs[0], broken)]).tolist() == pytest.approx([0, due])


def test_deviation_when_nothing_varies_or_one_sample_is_all_there_is_is_none():
    same = np.full((1, 3), 2.5, np.float32)
    assert Deviation.of([same, same]) is None
    assert Deviation.of([same]) is None


def test_deviation_when_sizes_differ_is_about_each_channels_mean():
    random = np.random.default_rng(0)
    outputs = [random.normal(50, 2, (1, 3, size, size)) for size in (4, 6, 8)]
    unit = Deviation.of(outputs)
    assert unit is not None
    (error,) = unit.compute_error([(outputs[1], outputs[1] + 1)])
    assert error == pytest.approx(0.5, rel=0.1)


def test_deviation_when_a_vector_has_another_length_still_has_an_error():
    outputs = [np.full((1, 6), level) for level in (-1.0, 1.0)]
    unit = Deviation.of(outputs)
    assert unit is not None
    longer = np.zeros((1, 9))
    assert unit.compute_error([(longer, longer + 2)]).tolist() == pytest.approx([2.0])


def test_deviation_when_an_output_is_no_number_or_of_another_shape_has_an_endless_error():
    outputs = [np.full((1, 2), level) for level in (-1.0, 1.0)]
    unit = Deviation.of(outputs)
    assert unit is not None
    for other in (outputs[0] * np.nan, outputs[0] * np.inf, np.zeros((1, 3))):
        assert unit.compute_error([(outputs[0], other)]).tolist() == [math.inf]

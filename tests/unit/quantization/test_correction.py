"""Corrections against errors that were made on purpose."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from edgepack.quantization.methods.bias_correction import (
    correct_bias,
    correct_weights,
    join_moments,
    measure_moments,
)

FLOAT = np.float32
RANDOM = np.random.default_rng()


@pytest.fixture(autouse=True)
def seeded(monkeypatch):
    """The same numbers in each test, whichever runs before it."""
    monkeypatch.setattr(sys.modules[__name__], "RANDOM", np.random.default_rng(8))


def normal(*shape):
    return RANDOM.standard_normal(shape).astype(FLOAT)


def outputs(rows, patches):
    return (rows @ patches.swapaxes(1, 2)).reshape(-1, patches.shape[1])


@pytest.mark.parametrize("centred", [True, False])
def test_moments_when_parts_are_joined_are_those_of_all_positions(centred):
    exact = normal(3, 50, 4) + 2
    quantized = exact + normal(3, 50, 4) - 1
    parts = [
        measure_moments(exact[:, k], quantized[:, k], centred=centred)
        for k in (slice(20), slice(20, 50))
    ]
    found = join_moments(parts)
    assert found.count == 50
    x, q = exact.astype(float), quantized.astype(float)
    if centred:
        np.testing.assert_allclose(found.quantized_mean, q.mean(1), rtol=1e-5)
        x, q = (values - values.mean(1, keepdims=True) for values in (x, q))
    np.testing.assert_allclose(found.second, q.swapaxes(1, 2) @ q / 50, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.cross, x.swapaxes(1, 2) @ q / 50, rtol=1e-4, atol=1e-5)


def test_weights_when_inputs_are_distorted_alike_everywhere_take_it_back():
    exact, rows = normal(2, 400, 5), normal(2, 3, 5).astype(float)
    mixing = np.eye(5, dtype=FLOAT) * FLOAT(0.5) + normal(2, 5, 5) / 10
    quantized = exact @ mixing + 1
    parts = [
        measure_moments(exact[:, k], quantized[:, k], centred=True)
        for k in (slice(200), slice(200, 400))
    ]
    found = correct_weights(rows, parts)

    fresh = normal(2, 100, 5)
    wanted = outputs(rows, fresh)
    errors = [np.square(wanted - outputs(new, fresh @ mixing)).mean() for new in (rows, found)]
    assert errors[1] < errors[0] / 50


def test_weights_when_there_is_chance_alone_do_not_follow_it():
    rows, exact = normal(1, 8, 64).astype(float), normal(1, 60, 64)
    quantized = exact + normal(1, 60, 64) / 100
    parts = [
        measure_moments(exact[:, k], quantized[:, k], centred=True)
        for k in (slice(30), slice(30, 60))
    ]
    found = correct_weights(rows, parts)

    fresh = normal(1, 4000, 64)
    noisy = fresh + normal(1, 4000, 64) / 100
    errors = [np.square(outputs(rows, fresh) - outputs(new, noisy)).mean() for new in (rows, found)]
    assert errors[1] < errors[0] * 1.02


def test_weights_when_nothing_can_judge_stay():
    exact, rows = normal(1, 20, 3), normal(1, 2, 3).astype(float)
    assert correct_weights(rows, [measure_moments(exact, exact / 2, centred=True)]) is rows


def test_weights_when_an_input_is_always_zero_stay_finite():
    exact = np.zeros((2, 40, 3), FLOAT)
    exact[0, :, 0] = normal(40)
    parts = [
        measure_moments(exact[:, k], exact[:, k], centred=True) for k in (slice(20), slice(20, 40))
    ]
    rows = normal(2, 2, 3).astype(float)
    np.testing.assert_allclose(correct_weights(rows, parts), rows)


def test_bias_when_outputs_are_shifted_has_them_back():
    exact = normal(3, 100)
    shift = np.array([1.0, -2.0, 0.25], FLOAT)
    found = correct_bias(np.ones(3, FLOAT), exact, exact + shift[:, None])
    assert found.dtype == FLOAT
    np.testing.assert_allclose(found, 1 - shift, atol=1e-5)


def test_bias_when_a_relu_follows_counts_only_what_comes_through():
    exact = np.linspace(-9, 3, 601, dtype=FLOAT)[None]
    # What the Relu lets through is too high by 0.5, what it cuts off too low by 1.
    quantized = np.where(exact > 0, exact + FLOAT(0.5), exact - FLOAT(1))
    limits = (0.0, np.inf)
    found = correct_bias(np.zeros(1, FLOAT), exact, quantized, limits)
    np.testing.assert_allclose(found, -0.5, atol=0.02)
    assert correct_bias(np.zeros(1, FLOAT), exact, quantized)[0] > 0.5


def test_bias_when_an_output_never_comes_through_has_the_mean():
    exact = normal(1, 200) / 10 - 50
    found = correct_bias(np.zeros(1, FLOAT), exact, exact + 1, (0.0, 6.0))
    np.testing.assert_allclose(found, -1, atol=1e-4)

"""How large an error of an output goldens let pass."""

from __future__ import annotations

import numpy as np
import pytest
from edgepack.steps.telling import Tolerance, variations

RANDOM = np.random.default_rng(0)
SAMPLES = [{"y": 3 + 0.05 * RANDOM.standard_normal(500)} for _ in range(12)]


def tolerance(limit_db: float = 20, noise_db: float = 120, samples=SAMPLES) -> Tolerance:
    return Tolerance(limit_db, variations(samples), {"y": noise_db})


def test_constant_is_told_though_it_is_nearer_than_the_limit():
    right, constant = SAMPLES[0], {"y": np.full(500, 3.0)}
    assert 10 * np.log10(9 / 0.05**2) > 20
    assert tolerance().tells(right, constant)
    third = {"y": right["y"] + 0.05 / 4 * RANDOM.standard_normal(500)}
    assert not tolerance().tells(right, third)


def test_limit_is_never_looser_than_that_of_the_variant():
    assert tolerance(limit_db=60).extra_db("y", SAMPLES[0]["y"]) == 0
    loud = [{"y": RANDOM.standard_normal(500)} for _ in range(12)]
    assert tolerance(limit_db=20, samples=loud).extra_db("y", loud[0]["y"]) == 0


def test_limit_is_never_tighter_than_what_kernels_reach():
    value = SAMPLES[0]["y"]
    assert tolerance(noise_db=40).extra_db("y", value) == pytest.approx(40 - 6 - 20)
    assert not tolerance(noise_db=26).extra_db("y", value)


def test_error_that_is_noise_or_small_beside_the_deviation_does_not_matter():
    right = SAMPLES[0]

    def off(size: float) -> dict[str, np.ndarray]:
        return {"y": right["y"] + size * RANDOM.standard_normal(500)}

    assert tolerance().matters(right, off(0.05 / 5))
    assert not tolerance().matters(right, off(0.05 / 20))
    assert not tolerance(noise_db=45).matters(right, off(0.05 / 5))


def test_integers_are_equal_or_told():
    samples = [{"y": np.array([n])} for n in range(5)]
    found = tolerance(samples=samples, noise_db=200)
    assert found.extra_db("y", samples[2]["y"]) == 0
    assert found.tells(samples[1], samples[2])
    assert found.matters(samples[1], samples[2])
    assert not found.tells(samples[1], {"y": np.array([1])})

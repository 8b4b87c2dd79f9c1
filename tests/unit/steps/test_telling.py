"""How large an error of an output goldens let pass."""

from __future__ import annotations

import numpy as np
import pytest
from edgepack.steps.proofs.candidates import keep_values
from edgepack.steps.proofs.quantities import Quantities, split_by_part
from edgepack.steps.proofs.telling import Tolerance, measure_variations

RANDOM = np.random.default_rng(0)
SAMPLES = [{"y": 3 + 0.05 * RANDOM.standard_normal(500)} for _ in range(12)]


Y = ("y", 0)


def tolerance(limit_db: float = 20, noise_db: float = 120, samples=SAMPLES) -> Tolerance:
    return Tolerance(
        limit_db, measure_variations({Y: each["y"]} for each in samples), {Y: noise_db}
    )


def test_constant_is_told_though_it_is_nearer_than_the_limit():
    right, constant = SAMPLES[0], {"y": np.full(500, 3.0)}
    assert 10 * np.log10(9 / 0.05**2) > 20
    assert tolerance().can_tell(right, constant)
    sixth = {"y": right["y"] + 0.05 / 6 * RANDOM.standard_normal(500)}
    assert not tolerance().can_tell(right, sixth)


def test_limit_is_never_looser_than_that_of_the_variant():
    assert tolerance(limit_db=60).compute_extra_db("y", SAMPLES[0]["y"]) == [0]
    loud = [{"y": RANDOM.standard_normal(500)} for _ in range(12)]
    assert tolerance(limit_db=20, samples=loud).compute_extra_db("y", loud[0]["y"]) == [0]


def test_limit_is_never_tighter_than_what_kernels_reach():
    value = SAMPLES[0]["y"]
    assert tolerance(noise_db=40).compute_extra_db("y", value) == [pytest.approx(40 - 6 - 20)]
    assert tolerance(noise_db=26).compute_extra_db("y", value) == [0]


def test_error_that_is_noise_or_small_beside_the_deviation_does_not_matter():
    right = SAMPLES[0]

    def off(size: float) -> dict[str, np.ndarray]:
        return {"y": right["y"] + size * RANDOM.standard_normal(500)}

    assert tolerance().is_wrong(right, off(0.05 / 5))
    assert not tolerance().is_wrong(right, off(0.05 / 20))
    assert not tolerance(noise_db=45).is_wrong(right, off(0.05 / 5))


def test_integers_are_equal_or_told():
    samples = [{"y": np.array([n])} for n in range(5)]
    found = tolerance(samples=samples, noise_db=200)
    assert found.compute_extra_db("y", samples[2]["y"]) == [0]
    assert found.can_tell(samples[1], samples[2])
    assert found.is_wrong(samples[1], samples[2])
    assert not found.can_tell(samples[1], {"y": np.array([1])})


def detections(count: int) -> list[dict[str, np.ndarray]]:
    """Return boxes in pixels in 4 channels, and scores in 3 more."""
    boxes = 300 + 90 * RANDOM.standard_normal((count, 1, 4, 40))
    scores = RANDOM.uniform(0, 0.6, (count, 1, 3, 40))
    return [{"y": both} for both in np.concatenate([boxes, scores], axis=2)]


def test_each_quantity_of_an_output_is_held_by_itself():
    samples = detections(8)
    several = Quantities.of((1, 7, 40), [each["y"] for each in samples])
    assert several is not None
    assert (several.size, several.runs) == (40, [(4, 0), (3, 1)])
    parts = [split_by_part(each, {"y": several}) for each in samples]
    assert [part.size for part in parts[0].values()] == [160, 120]
    noise = dict.fromkeys(parts[0], 100.0)
    held = Tolerance(20, measure_variations(parts), noise, {"y": several})
    right = samples[0]
    weak = right["y"].copy()
    weak[:, 4:] *= 0.3
    assert held.can_tell(right, {"y": weak})
    whole = [split_by_part(each, {}) for each in samples]
    assert not Tolerance(20, measure_variations(whole), {Y: 100.0}).can_tell(right, {"y": weak})
    near = right["y"] * (1 + 0.02 * RANDOM.standard_normal(right["y"].shape))
    assert not held.can_tell(right, {"y": near})


def test_quantity_whose_kernels_differ_is_held_less_tightly_and_the_others_are_not():
    samples = detections(8)
    several = Quantities.of((1, 7, 40), [each["y"] for each in samples])
    assert several is not None
    parts = [split_by_part(each, {"y": several}) for each in samples]
    noise = {("y", 0): 60.0, ("y", 1): 18.0}
    held = Tolerance(20, measure_variations(parts), noise, {"y": several})
    boxes, scores = held.compute_extra_db("y", samples[0]["y"])
    assert boxes >= 0
    assert scores == -8


@pytest.mark.parametrize(
    ("shape", "values"),
    [((1, 40), 40), ((1, 7, 40), 280), ((1, 8, 512, 512), 1 << 21), ((1, 3000, 85), 255_000)],
)
def test_quantities_are_one_where_channels_are_alike(shape, values):
    found = [keep_values(RANDOM.standard_normal(values).reshape(shape)) for _ in range(3)]
    assert Quantities.of(shape, found) is None


@pytest.mark.parametrize(("shape", "axis"), [((1, 84, 8400), 1), ((1, 8400, 85), 2)])
def test_quantities_are_found_in_what_is_kept_of_a_large_output(shape, axis):
    scale = np.where(np.arange(shape[axis]) < 4, 100.0, 0.1)
    scale = scale.reshape([-1 if n == axis else 1 for n in range(3)])
    outputs = [scale * RANDOM.standard_normal(shape) for _ in range(3)]
    several = Quantities.of(shape, [keep_values(each) for each in outputs])
    assert several is not None
    assert several.runs == [(4, 0), (shape[axis] - 4, 1)]
    large, small = several.split(keep_values(outputs[0]))
    assert np.std(large) == pytest.approx(100, rel=0.1)
    assert np.std(small) == pytest.approx(0.1, rel=0.1)

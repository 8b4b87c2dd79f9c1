"""What counts as closer, and as noise, on held-out samples; with signals and errors made up."""

from __future__ import annotations

import numpy as np
import pytest
import tiny_models
from edgepack.data import SampleSet
from edgepack.data.sample_set import write_sample_set
from edgepack.model.facts import signature
from edgepack.model.reading import read_structure
from edgepack.quantization.closeness import (
    Chosen,
    Closeness,
    FloatOutputs,
    HeldOut,
    split_samples,
)
from onnx import TensorProto, helper

SAMPLES = 20


def closeness(noise_db, best=None, kinds=None):
    """Groups of signal 1 per sample; ``noise_db``: (samples,) or (samples, groups), its level."""
    noise = 10 ** (np.asarray(noise_db, np.float64).reshape(SAMPLES, -1) / 10)
    groups = noise.shape[1]
    signal = np.ones_like(noise)
    return Closeness(signal, noise, signal.sum(0), kinds or tuple(range(groups)), best)


def level(db, spread=0.0, seed=0):
    return db + spread * np.random.default_rng(seed).standard_normal(SAMPLES)


def classes(agreeing):
    """Best classes of both models; they agree in as many samples."""
    ours = np.arange(SAMPLES)
    return np.stack([ours, np.where(ours < agreeing, ours, ours + 100)], axis=1)


@pytest.mark.parametrize("count", [8, 10, 100, 1000])
def test_split_when_there_are_enough_samples_holds_some_out_of_the_fit(count):
    split = split_samples(count)
    assert split.is_apart
    assert 2 <= len(split.held_out) <= 32
    assert len(split.fitted) >= min(count * 3 // 4, 128)
    assert set(split.fitted) | set(split.held_out) <= set(range(count))
    assert split == split_samples(count)


@pytest.mark.parametrize("count", [1, 7])
def test_split_when_there_are_too_few_samples_uses_all_for_both(count):
    split = split_samples(count)
    assert split.fitted == split.held_out == tuple(range(count))
    assert not split.is_apart


def test_gain_when_larger_than_chance_is_accepted():
    assert closeness(level(-15, 2)).compare(closeness(level(-12, 2, seed=1))) == "closer"
    assert closeness(level(-12, 2)).compare(closeness(level(-15, 2, seed=1))) != "closer"


def test_gain_when_equal_or_too_small_to_notice_is_none():
    base = closeness(level(-12))
    assert base.compare(base) != "closer"
    assert closeness(level(-12.05)).compare(base) != "closer"
    assert closeness(level(-12.2)).compare(base) == "closer"


def test_gain_when_one_sample_alone_makes_it_is_chance():
    before = level(-20)
    before[3] = 0
    after = level(-19.5)
    after[3] = -3
    before, after = closeness(before), closeness(after)
    assert after.gain_db(before) > 1
    assert after.compare(before) != "closer"


def test_gain_when_the_worst_group_gets_worse_is_none():
    before = closeness(np.stack([level(-10), level(-30)], axis=1))
    loud_better = closeness(np.stack([level(-9), level(-50)], axis=1))
    worst_better = closeness(np.stack([level(-11), level(-28)], axis=1))
    assert loud_better.compare(before) != "closer"
    assert worst_better.compare(before) == "closer"


def test_gain_when_the_worst_group_is_lost_anyway_is_judged_by_the_others():
    before = closeness(np.stack([level(2), level(-20)], axis=1))
    after = closeness(np.stack([level(3), level(-26)], axis=1))
    assert after.compare(before) == "closer"


def test_gain_when_best_classes_agree_less_is_not_accepted():
    before = closeness(level(-12), classes(18))
    assert closeness(level(-15), classes(12)).compare(before) != "closer"
    assert closeness(level(-15), classes(17)).compare(before) == "closer"


@pytest.mark.parametrize(("db", "ruined"), [(1, True), (-0.5, True), (-2, False)])
def test_ruin_when_the_error_is_as_large_as_the_outputs_variation_is_named(db, ruined):
    found = closeness(level(db)).ruin
    assert bool(found) is ruined
    assert f"{-db:.1f} dB" in found or not ruined


def test_ruin_when_the_error_is_no_number_is_named():
    noise = np.full((SAMPLES, 1), np.inf)
    assert "NaN or infinity" in Closeness(noise, noise, np.ones(1), (0,), None).ruin


def test_ruin_when_the_output_is_always_zero_is_none():
    zero = np.zeros((SAMPLES, 1))
    assert not Closeness(zero, zero + 1e-9, zero[0], (0,), None).ruin


def test_ruin_when_quiet_groups_of_a_loud_kind_are_lost_is_none():
    noise = np.stack([level(-20), level(-40)], axis=1)
    signal = np.stack([np.ones(SAMPLES), np.full(SAMPLES, 1e-5)], axis=1)
    lost = Closeness(signal, 10 ** (noise / 10), signal.sum(0), (0, 0), None)
    assert lost.sqnr_db < 0
    assert not lost.ruin
    assert Closeness(signal, 10 ** (noise / 10), signal.sum(0), (0, 1), None).ruin


def test_ruin_when_classes_agree_as_by_chance_is_named():
    random = np.random.default_rng(0).integers(0, 4, (SAMPLES, 2))
    same = np.stack([random[:, 0], random[:, 0]], axis=1)
    assert "as by chance" in closeness(level(-10), random).ruin
    assert not closeness(level(-10), same).ruin
    assert not closeness(level(-10), np.zeros((SAMPLES, 2), int)).ruin, "one class says nothing"


# --- on models ---------------------------------------------------------------------------------


def held_out(folder, model, feeds, scores_output=None):
    folder.mkdir()
    inputs, _ = signature(read_structure(model))
    write_sample_set(folder, inputs, [(f"sample {n}", feed) for n, feed in enumerate(feeds)])
    samples = SampleSet.read(folder)
    chosen = Chosen(samples, tuple(range(len(samples))))
    return HeldOut(FloatOutputs(model, chosen), scores_output)


def scaled(path, factors):
    """A model whose output [1, channels, 4] is its input, each channel times a factor."""
    shape = [1, len(factors), 4]
    nodes = [helper.make_node("Mul", ["x", "factors"], ["y"], "scale")]
    constants = [("factors", np.asarray(factors, np.float32).reshape(1, -1, 1))]
    value = (TensorProto.FLOAT, shape)
    return tiny_models.save(path, nodes, [("x", *value)], [("y", *value)], constants)


def test_closeness_when_channels_differ_much_judges_the_worst_group(tmp_path):
    reference = scaled(tmp_path / "a.onnx", [640.0, 500.0, 1.0])
    other = scaled(tmp_path / "b.onnx", [640.0, 500.0, 0.9])
    feeds = [{"x": np.ones((1, 3, 4), np.float32)} for _ in range(3)]
    found = held_out(tmp_path / "samples", reference, feeds).closeness(other)
    assert found.signal.shape == (3, 2)
    assert found.sqnr_db == pytest.approx(20, abs=1e-3)
    assert found.kinds == (0, 1)
    zeros = scaled(tmp_path / "c.onnx", [640.0, 500.0, 0.0])
    assert held_out(tmp_path / "again", reference, feeds).closeness(zeros).ruin


def test_closeness_when_outputs_do_not_vary_with_inputs_any_more_is_ruin(tmp_path):
    def shifted(path, factor, offset):
        nodes = [
            helper.make_node("Mul", ["x", "factor"], ["t"], "scale"),
            helper.make_node("Add", ["t", "offset"], ["y"], "shift"),
        ]
        constants = [("factor", np.float32([factor])), ("offset", np.float32([offset]))]
        value = (TensorProto.FLOAT, [1, 2, 4, 4])
        return tiny_models.save(path, nodes, [("x", *value)], [("y", *value)], constants)

    random = np.random.default_rng(0)
    feeds = [{"x": random.standard_normal((1, 2, 4, 4)).astype(np.float32)} for _ in range(9)]
    reference = shifted(tmp_path / "a.onnx", 1, 3)
    judge = held_out(tmp_path / "samples", reference, feeds)
    constant = judge.closeness(shifted(tmp_path / "b.onnx", 0, 3))
    assert constant.sqnr_db == pytest.approx(10, abs=0.5), (
        "the mean makes nine tenths of the energy"
    )
    assert constant.resolved_db == pytest.approx(0, abs=0.6)
    assert "varies by" in constant.ruin
    assert not judge.closeness(shifted(tmp_path / "c.onnx", 0.7, 3)).ruin


def test_closeness_when_outputs_hardly_vary_at_all_is_no_ruin(tmp_path):
    reference = scaled(tmp_path / "a.onnx", [1.0, 1.0, 1.0])
    other = scaled(tmp_path / "b.onnx", [0.97, 0.97, 0.97])
    feeds = [{"x": np.ones((1, 3, 4), np.float32)} for _ in range(4)]
    assert not held_out(tmp_path / "samples", reference, feeds).closeness(other).ruin


def test_closeness_when_ranges_have_no_gap_is_of_one_kind(tmp_path):
    reference = scaled(tmp_path / "a.onnx", [1.0, 0.1, 0.01, 0.001])
    feeds = [{"x": np.ones((1, 4, 4), np.float32)}]
    found = held_out(tmp_path / "samples", reference, feeds).closeness(reference)
    assert found.kinds == (0, 0)
    assert found.sqnr_db == 200


def test_closeness_when_an_output_is_integers_counts_those_that_differ(tmp_path):
    def best(path, axis_scale):
        nodes = [
            helper.make_node("Mul", ["x", "factors"], ["t"], "scale"),
            helper.make_node("ArgMax", ["t"], ["y"], "best", axis=1, keepdims=0),
        ]
        constants = [("factors", np.asarray(axis_scale, np.float32))]
        inputs, outputs = ("x", TensorProto.FLOAT, [1, 2]), ("y", TensorProto.INT64, [1])
        return tiny_models.save(path, nodes, [inputs], [outputs], constants)

    reference, other = best(tmp_path / "a.onnx", [1, 1]), best(tmp_path / "b.onnx", [1, -1])
    feeds = [{"x": np.array([pair], np.float32)} for pair in ([2, 1], [3, 1], [1, 2], [1, 4])]
    found = held_out(tmp_path / "samples", reference, feeds).closeness(other)
    assert found.noise.sum() == 2
    assert found.sqnr_db == pytest.approx(10 * np.log10(2))


def test_closeness_when_an_output_holds_scores_knows_the_best_classes(tmp_path):
    model = tiny_models.conv_net(tmp_path / "net.onnx", batch=1)
    feeds = [{"image": image[None]} for image in tiny_models.images(4)]
    found = held_out(tmp_path / "samples", model, feeds, "scores").closeness(model)
    assert found.agreement == 1
    assert held_out(tmp_path / "none", model, feeds).closeness(model).agreement is None

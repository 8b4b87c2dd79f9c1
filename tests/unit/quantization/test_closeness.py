"""What counts as closer, and as noise, on held-out samples; with signals and errors made up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from edgepack.model.facts import read_signature
from edgepack.model.reading import read_structure
from edgepack.quantization.search.closeness import (
    Chosen,
    FloatOutputs,
    HeldOut,
    ModelCloseness,
    split_samples,
)
from edgepack.samples.sample_set import SampleSet, write_sample_set
from onnx import TensorProto, helper

from tests.support.nets import tiny_models

SAMPLES = 20


def closeness(noise_db, best=None, kinds=None):
    """Groups of signal 1 per sample; ``noise_db``: (samples,) or (samples, groups), its level."""
    noise = 10 ** (np.asarray(noise_db, np.float64).reshape(SAMPLES, -1) / 10)
    groups = noise.shape[1]
    signal = np.ones_like(noise)
    return ModelCloseness(signal, noise, signal.sum(0), kinds or tuple(range(groups)), best)


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
    assert closeness(level(-15, 2)).judge(closeness(level(-12, 2, seed=1))).verdict == "closer"
    assert closeness(level(-12, 2)).judge(closeness(level(-15, 2, seed=1))).verdict != "closer"


def test_gain_when_equal_or_too_small_to_notice_is_none():
    base = closeness(level(-12))
    assert base.judge(base).verdict != "closer"
    assert closeness(level(-12.05)).judge(base).verdict != "closer"
    assert closeness(level(-12.2)).judge(base).verdict == "closer"


def test_gain_when_one_sample_alone_makes_it_is_chance():
    before = level(-20)
    before[3] = 0
    after = level(-19.5)
    after[3] = -3
    before, after = closeness(before), closeness(after)
    assert after.compute_gain_db(before) > 1
    assert after.judge(before).verdict != "closer"


def test_gain_when_the_worst_group_gets_worse_is_none():
    before = closeness(np.stack([level(-10), level(-30)], axis=1))
    loud_better = closeness(np.stack([level(-9), level(-50)], axis=1))
    worst_better = closeness(np.stack([level(-11), level(-28)], axis=1))
    assert loud_better.judge(before).verdict != "closer"
    assert worst_better.judge(before).verdict == "closer"


def test_gain_when_the_worst_group_is_lost_anyway_is_judged_by_the_others():
    before = closeness(np.stack([level(2), level(-20)], axis=1))
    after = closeness(np.stack([level(3), level(-26)], axis=1))
    assert after.judge(before).verdict == "closer"


def test_gain_when_best_classes_agree_less_is_not_accepted():
    before = closeness(level(-12), classes(18))
    assert closeness(level(-15), classes(12)).judge(before).verdict != "closer"
    assert closeness(level(-15), classes(17)).judge(before).verdict == "closer"


@pytest.mark.parametrize(("db", "ruined"), [(1, True), (-0.5, True), (-2, False)])
def test_ruin_when_the_error_is_as_large_as_the_outputs_variation_is_named(db, ruined):
    found = closeness(level(db)).ruin
    assert bool(found) is ruined
    assert not ruined or f"{-db:.1f} dB" in found


def test_ruin_when_the_error_is_no_number_is_named():
    noise = np.full((SAMPLES, 1), np.inf)
    assert "NaN or infinity" in ModelCloseness(noise, noise, np.ones(1), (0,), None).ruin


def test_ruin_when_the_output_is_always_zero_is_none():
    zero = np.zeros((SAMPLES, 1))
    assert not ModelCloseness(zero, zero + 1e-9, zero[0], (0,), None).ruin


def test_ruin_when_quiet_groups_of_a_loud_kind_are_lost_is_none():
    noise = np.stack([level(-20), level(-40)], axis=1)
    signal = np.stack([np.ones(SAMPLES), np.full(SAMPLES, 1e-5)], axis=1)
    lost = ModelCloseness(signal, 10 ** (noise / 10), signal.sum(0), (0, 0), None)
    assert lost.sqnr_db < 0
    assert not lost.ruin
    assert ModelCloseness(signal, 10 ** (noise / 10), signal.sum(0), (0, 1), None).ruin


def test_ruin_when_classes_agree_as_by_chance_is_named():
    random = np.random.default_rng(0).integers(0, 4, (SAMPLES, 2))
    same = np.stack([random[:, 0], random[:, 0]], axis=1)
    assert "as by chance" in closeness(level(-10), random).ruin
    assert not closeness(level(-10), same).ruin
    assert not closeness(level(-10), np.zeros((SAMPLES, 2), int)).ruin, "one class says nothing"


@pytest.mark.parametrize("differing", [1, 2, 3])
def test_ruin_when_nearly_all_samples_are_of_one_class_is_not_told_from_classes(differing):
    ours = np.repeat([0, 1], [SAMPLES - differing, differing])
    theirs = np.zeros(SAMPLES, int)
    chance = np.mean(ours == 0)
    assert np.mean(ours == theirs) == chance > 0.8, "kappa is 0"
    found = closeness(level(-10), np.stack([ours, theirs], axis=1))
    assert found.agreement == chance
    assert not found.ruin


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (np.arange(SAMPLES) % 10, np.full(SAMPLES, 3)),
        (np.arange(SAMPLES) % 2, np.zeros(SAMPLES, int)),
        (np.arange(SAMPLES) < 12, np.arange(SAMPLES) % 2),
        (np.zeros(SAMPLES, int), np.ones(SAMPLES, int)),
    ],
    ids=["one of ten", "one of two", "any of two", "the wrong one"],
)
def test_ruin_when_the_best_class_does_not_depend_on_the_sample_any_more_is_named(ours, theirs):
    found = closeness(level(-10), np.stack([ours, theirs], axis=1).astype(int))
    assert f"the same in {np.mean(ours == theirs):.0%} of samples" in found.ruin


def reshaped(noise_db, groups):
    """A model whose outputs of these groups have another shape than the float model's."""
    return replace(closeness(noise_db), reshaped=frozenset(groups))


def test_ruin_when_an_output_of_another_shape_is_lost_is_told_from_the_others():
    noise = np.stack([level(0), level(-20)], axis=1)
    assert closeness(noise).ruin
    found = reshaped(noise, {0})
    assert not found.ruin
    assert found.sqnr_db == found.resolved_db == pytest.approx(20)
    assert "varies by" in reshaped(noise, {1}).ruin
    assert "another shape" in reshaped(noise, {0, 1}).ruin


def test_gain_when_one_model_has_outputs_of_other_shapes_is_that_of_the_rest():
    loses, wins = (np.stack([level(a), level(b)], axis=1) for a, b in ((0, -20), (-30, -15)))
    assert reshaped(loses, {0}).compute_gain_db(closeness(wins)) == pytest.approx(5)
    assert closeness(wins).compute_gain_db(reshaped(loses, {0})) == pytest.approx(-5)
    assert reshaped(loses, {0}).compute_gain_db(reshaped(wins, {0, 1})) == pytest.approx(-15)


def test_gain_when_only_one_model_has_class_scores_is_that_of_the_error():
    scored, unscored = closeness(level(-10), classes(3)), closeness(level(-12))
    assert unscored.judge(scored).verdict == "closer"
    assert scored.judge(unscored).verdict == "farther"


# --- on models ---------------------------------------------------------------------------------


def held_out(folder, model, feeds, scores_output=None):
    folder.mkdir()
    inputs, _ = read_signature(read_structure(model))
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
    found = held_out(tmp_path / "samples", reference, feeds).measure_closeness(other)
    assert found.signal.shape == (3, 2)
    assert found.sqnr_db == pytest.approx(20, abs=1e-3)
    assert found.kinds == (0, 1)
    zeros = scaled(tmp_path / "c.onnx", [640.0, 500.0, 0.0])
    assert held_out(tmp_path / "again", reference, feeds).measure_closeness(zeros).ruin


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
    constant = judge.measure_closeness(shifted(tmp_path / "b.onnx", 0, 3))
    # About 0 it would be 10 dB: the mean makes nine tenths of the energy.
    assert constant.sqnr_db == pytest.approx(0, abs=0.6)
    assert constant.resolved_db == pytest.approx(0, abs=0.6)
    assert "varies by" in constant.ruin
    assert not judge.measure_closeness(shifted(tmp_path / "c.onnx", 0.7, 3)).ruin


def test_closeness_when_outputs_hardly_vary_at_all_is_no_ruin(tmp_path):
    reference = scaled(tmp_path / "a.onnx", [1.0, 1.0, 1.0])
    other = scaled(tmp_path / "b.onnx", [0.97, 0.97, 0.97])
    feeds = [{"x": np.ones((1, 3, 4), np.float32)} for _ in range(4)]
    assert not held_out(tmp_path / "samples", reference, feeds).measure_closeness(other).ruin


def test_closeness_when_ranges_have_no_gap_is_of_one_kind(tmp_path):
    reference = scaled(tmp_path / "a.onnx", [1.0, 0.1, 0.01, 0.001])
    feeds = [{"x": np.ones((1, 4, 4), np.float32)}]
    found = held_out(tmp_path / "samples", reference, feeds).measure_closeness(reference)
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
    found = held_out(tmp_path / "samples", reference, feeds).measure_closeness(other)
    assert found.noise.sum() == 2
    assert found.sqnr_db == pytest.approx(10 * np.log10(2))


def test_closeness_when_an_output_holds_scores_knows_the_best_classes(tmp_path):
    model = tiny_models.conv_net(tmp_path / "net.onnx", batch=1)
    feeds = [{"image": image[None]} for image in tiny_models.images(4)]
    found = held_out(tmp_path / "samples", model, feeds, "scores").measure_closeness(model)
    assert found.agreement == 1
    assert held_out(tmp_path / "none", model, feeds).measure_closeness(model).agreement is None


def where_above(path, threshold, factor=None):
    """x [1, 64] to the indices [2, n] of the values above a threshold, and to x times a factor."""
    nodes = [
        helper.make_node("Greater", ["x", "threshold"], ["above"], "compare"),
        helper.make_node("NonZero", ["above"], ["where"], "where"),
    ]
    outputs = [("where", TensorProto.INT64, [2, None])]
    constants = [("threshold", np.float32([threshold]))]
    if factor is not None:
        nodes.append(helper.make_node("Mul", ["x", "factor"], ["y"], "scale"))
        outputs.append(("y", TensorProto.FLOAT, [1, 64]))
        constants.append(("factor", np.float32([factor])))
    return tiny_models.save(path, nodes, [("x", TensorProto.FLOAT, [1, 64])], outputs, constants)


def vectors(count=9):
    random = np.random.default_rng(0)
    return [{"x": random.standard_normal((1, 64)).astype(np.float32)} for _ in range(count)]


def test_closeness_when_an_output_has_as_many_values_as_the_data_say_judges_the_others(tmp_path):
    judge = held_out(tmp_path / "samples", where_above(tmp_path / "a.onnx", 0, 1), vectors())
    found = judge.measure_closeness(where_above(tmp_path / "b.onnx", 0.3, 0.9))
    values = np.concatenate([feed["x"] for feed in vectors()]).astype(np.float64)
    signal, noise = np.sum((values - values.mean(0)) ** 2), np.sum((0.1 * values) ** 2)
    expected = pytest.approx(10 * np.log10(signal / noise), abs=1e-3)
    assert found.sqnr_db == expected
    assert not found.ruin
    assert judge.measure_closeness(where_above(tmp_path / "c.onnx", 0.3, 0)).ruin
    same = judge.measure_closeness(where_above(tmp_path / "d.onnx", 0, 0.9))
    assert not same.reshaped
    assert same.sqnr_db == expected


@pytest.mark.parametrize(("bar", "ruined"), [(0.3, False), (9, True), (-9, True)])
def test_closeness_when_no_output_keeps_its_shape_counts_values_too_many_or_too_few(
    tmp_path, bar, ruined
):
    feeds = vectors()
    judge = held_out(tmp_path / "samples", where_above(tmp_path / "a.onnx", 0), feeds)
    found = judge.measure_closeness(where_above(tmp_path / "b.onnx", bar))
    counts = np.array([[np.sum(feed["x"] > limit) for feed in feeds] for limit in (0, bar)])
    differences = np.abs(counts[0] - counts[1])
    assert differences.all()
    np.testing.assert_array_equal(found.signal[:, 0], 2 * counts[0])
    np.testing.assert_allclose(found.noise[:, 0], 2 * differences)
    assert found.sqnr_db == pytest.approx(10 * np.log10(counts[0].sum() / differences.sum()))
    assert ("another shape" in (found.ruin or "")) is ruined
    assert judge.measure_closeness(judge.reference.model).sqnr_db == 200


def test_closeness_when_an_output_is_text_counts_those_that_differ(tmp_path):
    def named(path, names):
        graph = helper.make_graph(
            [
                helper.make_node("ArgMax", ["x"], ["best"], "best", axis=1),
                helper.make_node(
                    "LabelEncoder",
                    ["best"],
                    ["name"],
                    "name",
                    domain="ai.onnx.ml",
                    keys_int64s=[0, 1],
                    values_strings=names,
                ),
            ],
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2])],
            [helper.make_tensor_value_info("name", TensorProto.STRING, [1, 1])],
        )
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 2)]
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
        return path

    feeds = [{"x": np.array([pair], np.float32)} for pair in ([2, 1], [3, 1], [1, 2], [1, 4])]
    judge = held_out(tmp_path / "samples", named(tmp_path / "a.onnx", ["cat", "dog"]), feeds)
    found = judge.measure_closeness(named(tmp_path / "b.onnx", ["cat", "cow"]))
    assert found.noise[:, 0].tolist() == [0, 0, 1, 1]


def test_reason_says_in_words_what_decided():
    base = closeness(level(-12))
    closer = closeness(level(-15)).judge(base)
    assert closer.verdict == "closer"
    assert closer.why == "3.0 dB closer in the worst channels, more than chance makes"
    assert "3.0 dB farther" in base.judge(closeness(level(-15))).why
    assert base.judge(base).why == "no closer on average over channels: less than 0.1 dB"
    fewer = closeness(level(-15), classes(12)).judge(closeness(level(-12), classes(17)))
    assert fewer.verdict == "farther"
    assert fewer.why.startswith(f"the best class is fp32's in {17 - 12} samples fewer")


def test_closeness_when_outputs_are_large_is_held_against_what_they_vary_by(tmp_path):
    def scored(path, factor):
        nodes = [
            helper.make_node("Mul", ["x", "factor"], ["t"], "scale"),
            helper.make_node("Add", ["t", "offset"], ["y"], "shift"),
        ]
        constants = [("factor", np.float32([factor])), ("offset", np.float32([3]))]
        value = (TensorProto.FLOAT, [1, 1])
        return tiny_models.save(path, nodes, [("x", *value)], [("y", *value)], constants)

    random = np.random.default_rng(0)
    feeds = [{"x": random.normal(0, 0.03, (1, 1)).astype(np.float32)} for _ in range(16)]
    judge = held_out(tmp_path / "samples", scored(tmp_path / "a.onnx", 1), feeds)
    constant = judge.measure_closeness(scored(tmp_path / "b.onnx", 0))
    near = judge.measure_closeness(scored(tmp_path / "c.onnx", 0.9))
    assert "varies by" in constant.ruin
    assert not near.ruin
    assert near.sqnr_db == pytest.approx(20, abs=1)
    assert near.judge(constant).verdict == "closer"


def test_gain_when_it_is_bought_with_the_offset_alone_is_none():
    shifted = closeness(level(-10))
    signal, noise = np.ones((SAMPLES, 1)), np.full((SAMPLES, 1), 10 ** (-1.2))
    shifted = replace(shifted, offset=0.9 * shifted.noise.sum(0))
    centred = ModelCloseness(signal, noise, signal.sum(0), (0,), None, offset=np.zeros(1))
    judged = centred.judge(shifted)
    assert judged.verdict == "unclear"
    assert "closer by the same shift in all samples alone" in judged.why
    corrected = replace(centred, noise=0.1 * shifted.noise)
    assert corrected.judge(shifted).verdict == "closer"

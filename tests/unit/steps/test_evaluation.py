"""What an evaluation says of outputs, those of another shape among them."""

from __future__ import annotations

import re

import numpy as np
import pytest
from edgepack.errors import SamplesError
from edgepack.project.outputs import DetectionOutput, ProbabilityOutput
from edgepack.steps.proofs.judge import Judge

FLOAT = np.float32


def judged(*samples):
    """A judge that was given pairs of fp32's and a variant's outputs."""
    judge = Judge(None, None, {}, keep_outputs=False)
    for reference, output in samples:
        judge.add(reference, output, {})
    return judge


def result(judge):
    return judge.make_result("agreement", None)


def boxes(count):
    return np.ones((count, 4), FLOAT)


def test_judge_when_an_output_has_another_shape_judges_the_others_and_says_so():
    heat, other = np.ones((1, 8), FLOAT), np.ones((1, 8), FLOAT)
    other[0, 0] = 0.9
    judge = judged(
        ({"boxes": boxes(3), "heat": heat}, {"boxes": boxes(3), "heat": other}),
        ({"boxes": boxes(3), "heat": 2 * heat}, {"boxes": boxes(1), "heat": 2 * heat}),
    )
    found = result(judge)
    assert found["worst"]["output"] == "heat"
    assert found["worst"]["sqnr_db"] == pytest.approx(10 * np.log10(40 / 0.01), abs=1e-3)
    # Each of the eight values is 0.5 from its mean in both samples.
    assert (found["metric"], found["output"]) == ("r2", "heat")
    assert found["value"] == pytest.approx(1 - 0.01 / (16 * 0.25), abs=1e-6)
    assert "'boxes' has another shape than fp32's in 1 of 2 samples" in judge.by_output.left_out


def test_judge_of_numbers_has_intervals_that_end_at_fp32s_own():
    other = boxes(3)
    other[0, 0] = 0.5
    judge = judged(({"b": 0 * boxes(3)}, {"b": 0 * boxes(3)}), ({"b": boxes(3)}, {"b": other}))
    low, high = result(judge)["drop_interval"]
    assert low == 0.0 < high
    low, high = judge.compute_interval("agreement")
    assert low < 1.0 == high


@pytest.mark.parametrize("count", [1, 4])
def test_judge_when_no_output_keeps_its_shape_counts_it_as_lost(count):
    where = {"where": np.zeros((2, 3), np.int64), "boxes": boxes(3)}
    other = {"where": np.zeros((2, count), np.int64), "boxes": boxes(count)}
    judge = judged((where, other))
    found = result(judge)
    assert found["value"] == 0
    assert found["worst"] == {"output": "boxes", "cosine": 0, "sqnr_db": 0}
    assert not judge.by_output.left_out


def test_judge_when_only_integers_keep_their_shape_names_the_worst_of_the_others():
    count = {"count": np.array([3])}
    judge = judged(({**count, "boxes": boxes(3)}, {**count, "boxes": boxes(2)}))
    found = result(judge)
    assert found["value"] == 1
    assert found["worst"] == {"output": "boxes", "cosine": 0, "sqnr_db": 0}
    assert not judge.by_output.left_out


def test_judge_when_all_outputs_keep_their_shapes_leaves_none_out():
    where, other = np.array([[0, 1, 2, 3]]), np.array([[0, 1, 2, 4]])
    judge = judged(
        ({"where": where, "none": boxes(0)}, {"where": other, "none": boxes(0)}),
    )
    assert result(judge)["value"] == 0.75
    assert not judge.by_output.left_out


def test_judge_when_a_sample_has_no_scores_gives_the_others_their_own_labels():
    judge = Judge(np.array([7, 1]), "scores", {}, keep_outputs=False)
    for scores in (np.zeros((1, 4, 4), FLOAT), np.array([[0.1, 0.9]], FLOAT)):
        judge.add({"scores": scores}, {"scores": scores}, {})
    assert judge.hits == ([1.0], [1.0])


def scores(*best, size=4):
    """Class scores of some samples, each with its best class."""
    return [{"s": np.eye(size, dtype=FLOAT)[each][None]} for each in best]


def test_judge_when_a_variant_gives_one_class_for_all_says_that_it_is_a_constant():
    reference, constant = scores(0, 1, 0, 2, 0, 3), scores(*[0] * 6)
    judge = Judge(None, "s", {}, keep_outputs=False)
    for ours, theirs in zip(reference, constant, strict=True):
        judge.add(ours, theirs, {})
    assert result(judge)["says_nothing"] == (
        "of 's', it has fp32's best class for 3 of 6 samples, and one class for all of them would"
        " have it for 3"
    )


def test_judge_when_all_classes_are_kept_does_not_ask_how_scores_vary():
    judge = Judge(None, "s", {}, keep_outputs=False)
    for each in scores(0, 1, 0, 2, 0, 3):
        judge.add(each, {"s": each["s"] + 7}, {})
    found = result(judge)
    assert found["r2"]["s"]["value"] < 0
    assert found["says_nothing"] == ""


def test_judge_when_one_of_several_outputs_is_a_constant_names_it():
    random = np.random.default_rng(0)
    good, bad = (random.normal(3, 0.1, (20, 1, 5)).astype(FLOAT) for _ in range(2))
    pairs = [({"g": g, "b": b}, {"g": g, "b": bad.mean(0)}) for g, b in zip(good, bad, strict=True)]
    found = result(judged(*pairs))
    assert (found["metric"], found["output"]) == ("r2", "b")
    assert found["worst"]["cosine"] > 0.99
    assert found["r2"]["g"]["value"] == 1
    assert re.match(r"of 'b', R² is -?0\.000 .*over 20 samples", found["says_nothing"])


def test_judge_when_fp32_gives_the_same_for_all_samples_says_that_nothing_is_told():
    found = result(judged(*[({"b": boxes(3)}, {"b": boxes(3)})] * 3))
    assert found["kind"] == "not-measured"
    assert found["reason"].endswith("'b': fp32 gives the same for all samples")


def test_judge_when_an_output_is_described_leaves_the_others_aside():
    random = np.random.default_rng(0)
    pairs = []
    for _ in range(20):
        yes, noise = random.uniform(0, 1, (1, 1)), random.normal(0, 1, (1, 6))
        pairs.append(({"p": yes, "raw": noise}, {"p": yes**2, "raw": noise + 0.3}))
    judge = Judge(None, "p", {"p": ProbabilityOutput(kind="probability")}, keep_outputs=False)
    for ours, theirs in pairs:
        judge.add(ours, theirs, {})
    found = result(judge)
    assert (found["metric"], found["output"]) == ("decisions", "p")
    assert set(found["outputs"]) == {"p", "raw"}


def test_judge_when_all_decisions_are_the_same_asks_the_numbers_behind_them():
    described = {"p": ProbabilityOutput(kind="probability")}
    low = [np.full((1, 1), value, FLOAT) for value in np.linspace(0.01, 0.2, 12)]
    judge = Judge(None, "p", described, keep_outputs=False)
    for each in low:
        judge.add({"p": each}, {"p": low[5]}, {})
    found = result(judge)
    assert found["outputs"]["p"]["reason"].startswith("fp32 decides the same of all samples")
    assert found["metric"] == "r2"
    assert found["says_nothing"].startswith("of 'p', R² is -")


def test_judge_when_an_output_is_not_as_described_says_which():
    described = {"d": DetectionOutput(kind="detection", layout="yolo")}
    judge = Judge(None, None, described, keep_outputs=False)
    with pytest.raises(SamplesError, match="the output 'd' of fp32 is not as it is described"):
        judge.add({"d": boxes(3)}, {"d": boxes(3)}, {})


def test_judge_when_a_vector_has_several_units_does_not_take_it_for_class_scores():
    random = np.random.default_rng(0)
    ours = random.normal(0, 1, (40, 1, 3)) * [300, 200, 0.01]
    theirs = ours * [1, 1, 0]
    judge = Judge(None, "s", {}, keep_outputs=False)
    for one, other in zip(ours, theirs, strict=True):
        judge.add({"s": one}, {"s": other}, {})
    found = result(judge)
    assert found["agreement"] == 1
    assert (found["metric"], found["output"]) == ("r2", "s")
    assert found["says_nothing"]


def test_judge_when_softmax_never_shows_a_class_takes_it_for_class_scores():
    random = np.random.default_rng(0)
    shares = random.dirichlet(np.ones(4), 40)[:, None] * [1, 1, 1, 1e-7]
    shares /= shares.sum(axis=2, keepdims=True)
    judge = Judge(None, "s", {}, keep_outputs=False)
    for each in shares:
        judge.add({"s": each}, {"s": each * [1, 1, 1, 0]}, {})
    found = result(judge)
    assert (found["metric"], found["value"]) == ("agreement", 1)
    assert not found["says_nothing"]

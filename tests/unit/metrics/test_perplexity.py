"""Perplexity: with labels, and of fp32's own tokens without."""

from __future__ import annotations

import numpy as np
import pytest
from edgepack.errors import SamplesError
from edgepack.metrics.choosing import choose_metric
from edgepack.metrics.labelled import choose_labelled_metric
from edgepack.model.facts import TensorSpec
from edgepack.project.outputs import TokensOutput
from edgepack.samples.sample_set import SampleSet, write_sample_set
from edgepack.steps.proofs.judge import Judge

TOKENS = TokensOutput(kind="tokens")
COUNT, POSITIONS, IDS = 24, 5, 7


@pytest.fixture
def logits():
    return np.random.default_rng(3).normal(0, 2, (COUNT, 1, POSITIONS, IDS)).astype(np.float32)


@pytest.fixture
def labels():
    labels = np.random.default_rng(4).integers(0, IDS, (COUNT, POSITIONS))
    labels[::3, 1] = -100
    return labels


def shares(logits):
    powers = np.exp(logits.astype(np.float64))
    return powers / powers.sum(axis=-1, keepdims=True)


def expected(logits, labels):
    """As its definition has it, value by value."""
    logs = [
        np.log(shares(logits)[n, 0, p, labels[n, p]])
        for n in range(COUNT)
        for p in range(POSITIONS)
        if labels[n, p] >= 0
    ]
    return np.exp(-np.mean(logs))


def judged(tmp_path, labels, ours, theirs):
    samples = [(str(n), {"x": np.zeros(1, np.float32)}) for n in range(len(labels))]
    (tmp_path / "s").mkdir()
    write_sample_set(tmp_path / "s", [TensorSpec("x", "float32", (1,))], samples, labels)
    given = SampleSet.read(tmp_path / "s")
    of_labels = choose_labelled_metric("perplexity", given, {"o": TOKENS})
    judge = Judge(labels, None, {"o": TOKENS}, keep_outputs=False, labelled=of_labels)
    for one, other in zip(ours, theirs, strict=True):
        judge.add({"o": one}, {"o": other}, {})
    return judge.make_result("perplexity", None), judge


def test_perplexity_is_that_of_the_labels_that_are_there(tmp_path, logits, labels):
    flat = logits / 2
    found, judge = judged(tmp_path, labels, logits, flat)
    assert found["fp32"] == pytest.approx(expected(logits, labels))
    assert found["value"] == pytest.approx(expected(flat, labels))
    # Labels are random: what is less sure of its answers is better.
    assert found["higher_is_better"] is False
    assert found["drop"] == pytest.approx(found["value"] - found["fp32"])
    assert found["drop"] < 0
    low, high = judge.compute_interval("perplexity")
    assert 1 <= low < found["value"] < high


def test_perplexity_of_shares_is_that_of_their_logits(tmp_path, logits, labels):
    rounded = np.round(shares(logits) * 100) / 100
    found, _ = judged(tmp_path, labels, shares(logits), rounded)
    assert found["fp32"] == pytest.approx(expected(logits, labels))
    # Rounded shares, some of which are 0 and whose sum is not 1, are shares all the same.
    assert found["value"] > found["fp32"]


def test_perplexity_of_one_that_is_always_right_is_one_and_of_one_that_guesses_the_ids(
    tmp_path, labels
):
    right = np.where(labels[:, None, :, None] == np.arange(IDS), 50.0, 0.0)
    found, _ = judged(tmp_path, labels, right, np.zeros_like(right))
    assert (found["fp32"], found["value"]) == (pytest.approx(1), pytest.approx(IDS))
    assert found["drop"] == pytest.approx(IDS - 1)


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_perplexity_of_a_variant_that_gives_no_numbers_is_large_and_finite(
    tmp_path, logits, labels, broken
):
    found, _ = judged(tmp_path, labels, logits, np.full_like(logits, broken))
    assert found["value"] == pytest.approx(np.exp(100))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda labels: labels[:, :3], "its sample has 3 labels"),
        (lambda labels: labels + IDS, "and the scores are of 7 ids"),
        (lambda labels: np.full_like(labels, -100), "no id in any"),
        (lambda labels: labels.astype(float), "they are float64"),
        (lambda labels: labels[:, 0], "takes labels integers .samples, positions."),
    ],
)
def test_perplexity_when_labels_do_not_fit_says_so(tmp_path, logits, labels, change, said):
    with pytest.raises(SamplesError, match=said):
        judged(tmp_path, change(labels), logits, logits)


def test_perplexity_when_the_output_is_ids_says_what_it_takes(tmp_path, logits, labels):
    ids = logits.argmax(axis=-1)
    with pytest.raises(SamplesError, match="the output 'o' is int64") as caught:
        judged(tmp_path, labels, ids, ids)
    assert "perplexity takes scores" in caught.value.hint


def unlabelled(ours, theirs):
    metric = choose_metric(TOKENS, ours[0], may_be_scores=False)
    for one, other in zip(ours, theirs, strict=True):
        metric.add(one, other, {})
    return metric.compute_value()


def test_tokens_of_scores_have_the_ratio_of_perplexities_beside_them(logits):
    assert unlabelled(logits, logits).others == {"perplexity ratio": pytest.approx(1)}
    flat = unlabelled(logits, logits / 2)
    # All tokens are kept, and are less sure.
    assert np.mean(flat.values) == 1
    best = np.sort(shares(logits), axis=-1)[..., -1]
    less = np.sort(shares(logits / 2), axis=-1)[..., -1]
    ratio = np.exp(np.log(best).mean() - np.log(less).mean())
    assert flat.others["perplexity ratio"] == pytest.approx(ratio)
    assert ratio > 1.1


def test_tokens_that_are_ids_have_no_perplexity():
    ids = np.arange(12).reshape(4, 1, 3)
    assert unlabelled(ids, ids).others == {}

"""Metrics of labels: what they take, and what is said of anything else."""

from __future__ import annotations

import numpy as np
import pytest
from edgepack.errors import SamplesError
from edgepack.metrics.labelled import choose_labelled_metric, compute_whole
from edgepack.model.facts import TensorSpec
from edgepack.project.outputs import (
    ClassificationOutput,
    DetectionOutput,
    EmbeddingOutput,
    MaskOutput,
    PictureOutput,
    ProbabilityOutput,
    RegressionOutput,
    SpelledText,
)
from edgepack.samples.sample_set import SampleSet, write_sample_set
from edgepack.steps.proofs.judge import Judge

COUNT = 24
TEXT = SpelledText(kind="text", labels="a.txt", alphabet=("a", "b"))
CLASSES = ClassificationOutput(kind="classification")
NUMBER = RegressionOutput(kind="regression")
CHANCE = ProbabilityOutput(kind="probability")
VECTOR = EmbeddingOutput(kind="embedding", pooling="none")
MASK = MaskOutput(kind="mask")
PICTURE = PictureOutput(kind="picture")
POSES = DetectionOutput(kind="detection", layout="yolo", keypoints=2)
PLAIN = DetectionOutput(kind="detection", layout="yolo")
TWO = np.arange(COUNT) % 2
LAST = MaskOutput(kind="mask", axis=-1)
REGIONS = np.tile(np.array([[0, 3], [255, -1]]), (COUNT, 1, 1))
"""Labels with the class 3, and two that are none."""


@pytest.fixture
def chosen(tmp_path):
    """Choose a metric for samples with these labels."""

    def choose(name, meaning, labels):
        (tmp_path / "s").mkdir()
        samples = [(str(n), {"x": np.zeros(1, np.float32)}) for n in range(COUNT)]
        spec = TensorSpec("x", "float32", (1,))
        write_sample_set(tmp_path / "s", [spec], samples, labels)
        given = SampleSet.read(tmp_path / "s")
        return choose_labelled_metric(name, given, {"o": meaning})

    return choose


@pytest.mark.parametrize(
    ("name", "meaning", "labels", "said"),
    [
        ("cer", NUMBER, np.array(["a"] * COUNT), "the metric cer is of a text, and no output"),
        ("cer", TEXT, TWO, "takes labels .samples,., a text each, and they are int64"),
        ("wer", TEXT, np.array([" "] * COUNT), "the labels have no text in any"),
        ("f1", NUMBER, TWO, "of a classification or probability"),
        ("f1", CLASSES, TWO / 2, "a class each, and they are float64"),
        ("f1", CLASSES, None, "a class each, and there are none"),
        ("f1", CHANCE, TWO + 1, "0 or 1 each"),
        ("eer", MASK, TWO, "is of an embedding or probability or regression"),
        ("eer", CHANCE, TWO + 1, "the labels are .1, 2., and the metric eer takes 0 and 1"),
        ("eer", CHANCE, TWO * 0, "each of them at least once"),
        ("eer", VECTOR, np.arange(COUNT), "there is no pair of one, or none of two"),
        ("eer", VECTOR, TWO * 0, "there is no pair of one, or none of two"),
        ("spearman", CLASSES, TWO, "of a regression or probability"),
        ("spearman", NUMBER, TWO * 0, "the labels are not different numbers"),
        ("spearman", NUMBER, np.stack([TWO, TWO], axis=1), "a number each, and they are int64"),
        ("miou", PICTURE, TWO, "the metric miou is of a mask"),
        ("miou", MASK, TWO, "integers .samples, height, width., each a class"),
        ("psnr", MASK, TWO, "the metric psnr is of a picture"),
        ("psnr", PICTURE, TWO, "the picture that each output should be"),
        ("oks", PLAIN, np.zeros((COUNT, 1, 13)), "of keypoints, and the output 'o' is described"),
        ("oks", POSES, np.zeros((COUNT, 1, 5)), "takes labels .samples, objects, 13."),
        (None, CLASSES, np.array(["cat"] * COUNT), "the labels are texts, such as 'cat', and no"),
        ("top1", TEXT, np.array(["cat"] * COUNT), "and top1 takes none"),
    ],
)
def test_metric_when_outputs_or_labels_are_of_another_kind_says_what_it_takes(
    chosen, name, meaning, labels, said
):
    with pytest.raises(SamplesError, match=said) as caught:
        chosen(name, meaning, labels)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("name", "meaning", "labels", "output", "said"),
    [
        ("f1", CLASSES, TWO + 9, np.zeros((1, 3)), "its sample is labelled with the class 9"),
        ("f1", CHANCE, TWO, np.zeros((1, 3)), "is labelled with 1 decisions"),
        ("eer", CHANCE, TWO, np.zeros((1, 3)), "takes one score for each sample"),
        ("spearman", NUMBER, TWO, np.zeros((1, 3)), "takes one number for each sample"),
        ("miou", MASK, REGIONS, np.zeros((1, 3, 2, 2)), "label of '0' has the class 3 at x 1, y 0"),
        ("miou", MASK, REGIONS, np.zeros((1, 3, 2, 2)), "'o' of the model has 3 classes, 0 to 2"),
        ("miou", MASK, REGIONS, np.zeros((1, 3, 2, 2)), "write 255, in an array also a negative"),
        ("miou", MASK, REGIONS, np.zeros((1, 1, 2, 2)), "has 2 classes, 0 to 1"),
        ("miou", MASK, REGIONS, np.zeros((1, 2, 2)), "has 2 classes, 0 to 1"),
        ("miou", LAST, REGIONS, np.zeros((1, 5, 5, 3)), "has 3 classes, 0 to 2"),
        ("psnr", PICTURE, np.zeros((COUNT, 4, 4, 3), np.int16), np.zeros((1, 3, 4, 5)), "is .4, 4"),
        ("psnr", PICTURE, np.zeros((COUNT, 4, 4, 3), np.int16), np.zeros((1, 9)), "1 or 3 chan"),
    ],
)
def test_metric_when_an_output_does_not_fit_its_label_says_so(
    chosen, name, meaning, labels, output, said
):
    metric = chosen(name, meaning, labels)
    with pytest.raises(SamplesError) as caught:
        metric.add({"o": output}, {"o": output}, {})
    assert said.replace(".", "") in str(caught.value).replace("[", "") + caught.value.hint


@pytest.mark.parametrize(
    "output", [np.zeros((1, 4, 2, 2)), np.zeros((1, 2, 2), np.int64)], ids=["scores", "integers"]
)
def test_regions_when_the_model_has_the_class_or_does_not_say_count(chosen, output):
    metric = chosen("miou", MASK, REGIONS)
    metric.add({"o": output}, {"o": output}, {})
    assert metric.compute_values([0])["pixel_accuracy"] == (0.5, 0.5)


def test_texts_are_no_classes_where_a_metric_of_ones_own_takes_them():
    labels = np.array(["a", "b"])
    judge = Judge(labels, "o", {}, keep_outputs=True)
    for _ in labels:
        judge.add({"o": np.eye(3)[:1]}, {"o": np.eye(3)[:1]}, {})
    assert judge.agreements == [1, 1]
    assert judge.hits == ([], [])


def test_many_embeddings_are_compared_by_some_of_them(chosen, monkeypatch):
    monkeypatch.setattr("edgepack.metrics.verification._MOST", 8)
    metric = chosen("eer", VECTOR, np.arange(COUNT) // 6)
    random = np.random.default_rng(0)
    for n in range(COUNT):
        # Those that do not count would be mistaken for others.
        row = np.eye(4)[n // 6] + 0.01 * random.normal(size=4) if n % 3 == 0 else -np.ones(4)
        metric.add({"o": row[None]}, {"o": row[None]}, {})
    assert metric.compute_values(range(COUNT))["eer"] == (0, 0)


def test_texts_are_judged_by_cer_unless_another_metric_is_named(chosen):
    assert chosen(None, TEXT, np.array(["a"] * COUNT)).name == "cer"


@pytest.mark.parametrize(
    ("metric", "value", "whole"),
    [
        ("cer", 0.02, 0.98),
        ("wer", 1.5, 0),
        ("eer", 0, 1),
        ("psnr", 30, 30),
        ("spearman", -0.5, 0.5),
    ],
)
def test_a_loss_of_an_error_rate_is_a_share_of_what_is_right(metric, value, whole):
    assert compute_whole(metric, value) == pytest.approx(whole)


def test_intervals_of_a_drop_and_a_value_are_the_jackknifes(chosen):
    random = np.random.default_rng(0)
    labels = random.normal(size=COUNT)
    metric = chosen("spearman", NUMBER, labels)
    judge = Judge(labels, None, {"o": NUMBER}, keep_outputs=False, labelled=metric)
    for label in labels:
        one, other = (np.full((1, 1), label + random.normal(0, s)) for s in (0.3, 1))
        judge.add({"o": one}, {"o": other}, {})
    found = judge.make_result("spearman", None)
    low, high = judge.compute_interval("spearman")
    assert low < found["value"] < high <= 1
    # Without each tenth in turn.
    parts = [
        metric.compute_values([n for n in range(COUNT) if n % 10 != k])["spearman"]
        for k in range(10)
    ]
    drops = np.array([ours - theirs for ours, theirs in parts])
    half = 2.2622 * np.sqrt(0.9 * ((drops - drops.mean()) ** 2).sum())
    due = found["drop"] - half, found["drop"] + half
    assert found["drop_interval"] == pytest.approx(due, abs=1e-3)

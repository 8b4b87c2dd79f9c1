"""Metrics of labels beside the libraries that define them in practice: random and awkward cases."""

from __future__ import annotations

import contextlib
import io
import math
import warnings

import jiwer
import numpy as np
import pytest
from edgepack.metrics.labelled import choose_labelled_metric
from edgepack.metrics.labelled_pictures import compute_psnr
from edgepack.metrics.precision import compute_average_precision, match_objects
from edgepack.metrics.similarity import match_keypoints
from edgepack.metrics.transcripts import count_edits
from edgepack.metrics.verification import compute_equal_error_rate
from edgepack.model.facts import TensorSpec
from edgepack.ondevice.runtime.edgepack_answers import Detection, Keypoint
from edgepack.project.outputs import (
    ClassificationOutput,
    EmbeddingOutput,
    MaskOutput,
    PictureOutput,
    ProbabilityOutput,
    RegressionOutput,
    SpelledText,
)
from edgepack.samples.sample_set import SampleSet, write_sample_set
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from scipy.optimize import brentq
from scipy.stats import spearmanr
from sklearn.metrics import f1_score, jaccard_score, mean_squared_error, roc_curve

SEEDS = range(12)


def measured(folder, name, meaning, labels, outputs):
    """The metric's values of fp32's outputs and of the variant's, all samples together."""
    folder.mkdir(exist_ok=True)
    samples = [(str(n), {"x": np.zeros(1, np.float32)}) for n in range(len(labels))]
    write_sample_set(folder, [TensorSpec("x", "float32", (1,))], samples, labels)
    metric = choose_labelled_metric(name, SampleSet.read(folder), {"o": meaning})
    for ours, theirs in outputs:
        metric.add({"o": ours}, {"o": theirs}, {})
    return metric.compute_values(range(len(labels)))


# Boxes and keypoints, by pycocotools.


def scene(random, *, classes=3, most=6, crowds=True, points=0):
    """What is in a picture, and what is found there: rows of labels, and detections."""
    rows, found = [], []
    for _ in range(random.integers(0, most)):
        corner, size = random.uniform(0, 200, 2), random.uniform(5, 80, 2)
        index, crowd = random.integers(classes), crowds and random.random() < 0.2
        box = [*corner, *(corner + size)]
        row = [index, *box, float(crowd)]
        if points:
            seen = random.integers(0, 3, points) * (random.random() < 0.8)
            own = corner + size * random.random((points, 2))
            row += [size.prod() * random.uniform(0.3, 1), *np.hstack([own, seen[:, None]]).ravel()]
        rows.append(row)
        for _ in range(random.integers(0, 4 if crowd else 3)):
            shaken = np.array(box) + random.normal(0, random.choice([0, 3, 12]), 4)
            # Scores with one digit: many are equal.
            score = round(random.uniform(0.1, 1), 1)
            said = index if random.random() < 0.9 else random.integers(classes)
            near = () if not points else own + random.normal(0, random.choice([1, 6]), own.shape)
            found.append(
                Detection(
                    int(said),
                    None,
                    score,
                    (shaken[0], shaken[1], *np.maximum(shaken[:2] + 1, shaken[2:])),
                    tuple(Keypoint(float(x), float(y), 1.0) for x, y in near),
                )
            )
    found.sort(key=lambda each: -each.score)
    width = 6 + (1 + 3 * points if points else 0)
    return np.array(rows, np.float64).reshape(-1, width), found


def coco_precision(scenes, *, points=0):
    """Average precision at ten overlaps, by pycocotools."""
    annotations, results = [], []
    for n, (rows, found) in enumerate(scenes):
        for row in rows:
            index, left, top, right, bottom, crowd = row[:6]
            about = {
                "id": len(annotations) + 1,
                "image_id": n + 1,
                "category_id": int(index) + 1,
                "bbox": [left, top, right - left, bottom - top],
                "area": row[6] if points else (right - left) * (bottom - top),
                "iscrowd": int(crowd),
            }
            if points:
                own = row[7:].reshape(-1, 3)
                about |= {
                    "keypoints": own.ravel().tolist(),
                    "num_keypoints": int((own[:, 2] > 0).sum()),
                }
            annotations.append(about)
        for each in found:
            left, top, right, bottom = each.box
            about = {
                "image_id": n + 1,
                "category_id": each.index + 1,
                "bbox": [left, top, right - left, bottom - top],
                "score": each.score,
            }
            if points:
                about = {
                    **{key: about[key] for key in ("image_id", "category_id", "score")},
                    "keypoints": [v for p in each.keypoints for v in (p.x, p.y, 1)],
                }
            results.append(about)
    truth = COCO()
    truth.dataset = {
        "info": {},
        "images": [{"id": n + 1, "width": 400, "height": 400} for n in range(len(scenes))],
        "annotations": annotations,
        "categories": [{"id": k + 1, "name": str(k)} for k in range(3)],
    }
    with contextlib.redirect_stdout(io.StringIO()):
        truth.createIndex()
        judge = COCOeval(truth, truth.loadRes(results), "keypoints" if points else "bbox")
        if points and points != 17:
            judge.params.kpt_oks_sigmas = np.full(points, 0.05)
        judge.evaluate()
        judge.accumulate()
    # Overlaps, recalls, classes, sizes of objects (all), most detections.
    precision = judge.eval["precision"][:, :, :, 0, -1]
    known = precision[0, 0] > -1
    return precision[:, :, known].mean(axis=(1, 2))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("crowds", [False, True])
def test_average_precision_is_pycocotools(seed, crowds):
    random = np.random.default_rng(seed)
    scenes = [scene(random, crowds=crowds) for _ in range(12)]
    ours = compute_average_precision([match_objects(found, rows) for rows, found in scenes])
    assert ours == pytest.approx(coco_precision(scenes), abs=1e-12)
    assert 0 < ours[0] < 1


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("points", [4, 17])
def test_average_precision_of_keypoints_is_pycocotools(seed, points):
    random = np.random.default_rng(seed)
    scenes = [scene(random, points=points) for _ in range(12)]
    ours = compute_average_precision([match_keypoints(found, rows) for rows, found in scenes])
    assert ours == pytest.approx(coco_precision(scenes, points=points), abs=1e-12)
    assert 0 < ours[0] < 1


def test_average_precision_of_a_crowd_is_neither_right_nor_wrong():
    thing = Detection(0, None, 0.9, (10, 10, 20, 20))
    other = Detection(0, None, 0.5, (50, 50, 60, 60))
    alone = np.array([[0, 50, 50, 60, 60, 0]], np.float64)
    crowded = np.vstack([alone, [[0, 0, 0, 40, 40, 1]]])
    for rows, due in ((alone, 0.5), (crowded, 1.0)):
        scenes = [(rows, [thing, other])]
        ours = compute_average_precision([match_objects(found, rows) for rows, found in scenes])
        assert ours[0] == pytest.approx(due) == pytest.approx(coco_precision(scenes)[0])


def test_average_precision_when_two_overlap_an_object_equally_gives_it_the_last():
    rows = np.array([[0, 0, 0, 10, 10, 0], [0, 4, 0, 14, 10, 0]], np.float64)
    between = Detection(0, None, 0.9, (2, 0, 12, 10))
    first = Detection(0, None, 0.5, (0, 0, 10, 10))
    scenes = [(rows, [between, first])]
    ours = compute_average_precision([match_objects(found, rows) for rows, found in scenes])
    assert ours == pytest.approx(coco_precision(scenes))
    assert ours[0] == pytest.approx(1)


@pytest.mark.parametrize("number", [0, 1])
def test_average_precision_when_a_picture_has_nothing_or_nothing_is_found(number):
    box = (0.0, 0.0, 10.0, 10.0)
    none = np.zeros((0, 6))
    one = np.array([[0, *box, 0]])
    found = [Detection(0, None, 0.9, box)]
    # Of a class that is nowhere, what is found does not count.
    nowhere = Detection(1, None, 0.9, box)
    scenes = [[(one, []), (none, [nowhere])], [(one, found), (none, found)]][number]
    ours = compute_average_precision([match_objects(found, rows) for rows, found in scenes])
    assert ours == pytest.approx(coco_precision(scenes))


# Texts, by jiwer.

WORDS = ["a", "edge", "ä ö", "the", "", " ", "pack", "edge edge", "日本 語"]


@pytest.mark.parametrize("seed", SEEDS)
def test_error_rates_of_texts_are_jiwers(seed):
    random = np.random.default_rng(seed)
    wanted = [" ".join(random.choice(WORDS, random.integers(1, 6))) for _ in range(9)]
    # Empty references are outside of what jiwer takes; edges are stripped there.
    wanted = [" ".join(text.split()) or "x" for text in wanted]
    found = [" ".join(random.choice(WORDS, random.integers(0, 6)).tolist()) for _ in wanted]
    found = [" ".join(text.split()) for text in found]
    edits = [count_edits(one, other) for one, other in zip(wanted, found, strict=True)]
    characters = sum(each.characters for each in edits) / sum(map(len, wanted))
    words = sum(each.words for each in edits) / sum(len(text.split()) for text in wanted)
    assert characters == pytest.approx(jiwer.cer(wanted, found))
    assert words == pytest.approx(jiwer.wer(wanted, found))
    assert words > 0


def steps_of(text, alphabet):
    """What a CTC model gives for a text, with blanks between equal symbols."""
    classes = []
    for symbol in text:
        classes += [0, 1 + alphabet.index(symbol)]
    classes += [0] * (20 - len(classes))
    return np.eye(len(alphabet) + 1, dtype=np.float32)[classes][None]


def test_error_rate_reads_texts_and_counts_all_samples_together(tmp_path):
    alphabet = "abc "
    meaning = SpelledText(kind="text", labels="a.txt", alphabet=tuple(alphabet))
    wanted = ["ab ca", "", "b", "aa bb cc"]
    found = ["ab cb", "c", "", "aa bb cc"]
    outputs = [
        (steps_of(one, alphabet), steps_of(other, alphabet))
        for one, other in zip(wanted, found, strict=True)
    ]
    values = measured(tmp_path / "s", "wer", meaning, np.array(wanted), outputs)
    assert next(iter(values)) == "wer"
    # One symbol is changed, one is inserted and one is missing, of 14; and so are words, of 6.
    assert values["cer"] == (0, pytest.approx(3 / 14))
    assert values["wer"] == (0, pytest.approx(3 / 6))
    assert values["wrong_texts"] == (0, pytest.approx(3 / 4))
    # An empty text that should be empty is right, and one that should not is all wrong.
    labels = np.array(["", "ab"])
    blank = steps_of("", alphabet)
    values = measured(tmp_path / "t", "cer", meaning, labels, [(blank, blank), (blank, blank)])
    assert values["cer"] == (1, 1)
    assert values["wrong_texts"] == (0.5, 0.5)


# Scores that verify, by scikit-learn's ROC curve.


def sklearn_equal_error_rate(scores, right):
    wrong, kept, _ = roc_curve(right, scores, drop_intermediate=False)
    return brentq(lambda x: 1 - x - np.interp(x, wrong, kept), 0, 1)


@pytest.mark.parametrize("digits", [1, 8])
@pytest.mark.parametrize("seed", SEEDS)
def test_equal_error_rate_is_that_of_scikit_learns_curve(seed, digits):
    random = np.random.default_rng(seed)
    right = random.random(60) < 0.4
    scores = np.round(right * random.uniform(0, 2) + random.normal(size=60), digits)
    ours = compute_equal_error_rate(scores, right)
    # Where several points have one x, interpolation takes one of them: within a step.
    assert ours == pytest.approx(sklearn_equal_error_rate(scores, right), abs=1e-9)


def test_equal_error_rate_of_awkward_scores():
    right = np.array([True, True, False, False])
    assert compute_equal_error_rate(np.array([4.0, 3, 2, 1]), right) == 0
    assert compute_equal_error_rate(np.array([1.0, 2, 3, 4]), right) == 1
    # All equal: letting all in or none, by lot.
    assert compute_equal_error_rate(np.ones(4), right) == pytest.approx(0.5)
    assert compute_equal_error_rate(np.full(4, np.nan), right) == pytest.approx(0.5)
    assert compute_equal_error_rate(np.arange(4.0), right | True) == 0.5


def test_equal_error_rate_of_an_embedding_is_that_of_all_pairs(tmp_path):
    random = np.random.default_rng(1)
    owners = np.repeat(np.arange(6), 4)
    centres = random.normal(size=(6, 8))
    vectors = centres[owners] + random.normal(0, 0.8, (24, 8))
    outputs = [(row[None].astype(np.float32), np.ones((1, 8), np.float32)) for row in vectors]
    meaning = EmbeddingOutput(kind="embedding", pooling="none")
    ours, theirs = measured(tmp_path / "s", "eer", meaning, owners, outputs)["eer"]
    unit = vectors.astype(np.float32)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    one, other = np.triu_indices(24, 1)
    due = sklearn_equal_error_rate((unit @ unit.T)[one, other], owners[one] == owners[other])
    assert ours == pytest.approx(due, abs=1e-6)
    assert 0 < ours < 0.4
    assert theirs == pytest.approx(0.5)


# Ranks, by scipy.


@pytest.mark.parametrize("digits", [0, 1, 8])
@pytest.mark.parametrize("seed", SEEDS)
def test_rank_correlation_is_scipys(tmp_path, seed, digits):
    random = np.random.default_rng(seed)
    labels = np.round(random.normal(size=30), digits)
    values = np.round(labels * random.uniform(-1, 1) + random.normal(size=30), digits)
    outputs = [(np.full((1, 1), v, np.float32), np.full((1, 1), 7, np.float32)) for v in values]
    meaning = RegressionOutput(kind="regression")
    ours, theirs = measured(tmp_path / "s", "spearman", meaning, labels, outputs)["spearman"]
    assert ours == pytest.approx(spearmanr(values, labels).statistic)
    # Of one value for all, scipy's is NaN.
    assert theirs == 0


# Classes, by scikit-learn.


@pytest.mark.parametrize("seed", SEEDS)
def test_f1_of_classes_is_scikit_learns(tmp_path, seed):
    random = np.random.default_rng(seed)
    # Classes 5 and 6 are never labels, and 6 is never an answer.
    labels = random.integers(0, 5, 40)
    scores = random.normal(size=(40, 7)).astype(np.float32)
    scores[:, 6] = -9
    scores[np.arange(40), labels] += random.uniform(0, 2)
    outputs = [(row[None], row[None] * 0) for row in scores]
    meaning = ClassificationOutput(kind="classification")
    found = measured(tmp_path / "s", "f1", meaning, labels, outputs)
    said = scores.argmax(axis=1)
    assert found["f1"][0] == pytest.approx(f1_score(labels, said, average="macro"))
    assert found["micro_f1"][0] == pytest.approx(f1_score(labels, said, average="micro"))
    constant = f1_score(labels, 0 * labels, average="macro", zero_division=0)
    assert found["f1"][1] == pytest.approx(constant)


@pytest.mark.parametrize("seed", SEEDS)
def test_f1_of_decisions_is_scikit_learns(tmp_path, seed):
    random = np.random.default_rng(seed)
    labels = (random.random((40, 5)) < 0.3).astype(np.int64)
    # The last class is never there and never said, which scikit-learn is told to leave out.
    labels[:, 4] = 0
    values = np.clip(labels * 0.3 + random.uniform(0, 0.8, labels.shape), 0, 1)
    values[:, 4] = 0.1
    outputs = [(row[None].astype(np.float32), row[None].astype(np.float32) * 0) for row in values]
    meaning = ProbabilityOutput(kind="probability")
    found = measured(tmp_path / "s", "f1", meaning, labels, outputs)
    said = values >= 0.5
    due = f1_score(labels, said, average="macro", zero_division=np.nan)
    assert found["f1"] == (pytest.approx(due), 0)
    assert found["micro_f1"][0] == pytest.approx(f1_score(labels, said, average="micro"))
    one = measured(
        tmp_path / "t", "f1", meaning, labels[:, 0], [(o[:, :1], o[:, :1]) for o, _ in outputs]
    )
    assert one["f1"][0] == pytest.approx(f1_score(labels[:, 0], said[:, 0]))


# Masks, by scikit-learn; pictures, by its mean squared error.


@pytest.mark.parametrize("seed", SEEDS)
def test_mean_of_regions_is_scikit_learns_jaccard(tmp_path, seed):
    random = np.random.default_rng(seed)
    labels = random.integers(0, 4, (6, 8, 10))
    labels[0] = 2
    scores = random.normal(size=(6, 1, 6, 8, 10)).astype(np.float32)
    scores[:, :, 5] = -9
    for number, rows in enumerate(labels):
        np.put_along_axis(
            scores[number, 0], rows[None], scores[number, 0].max(axis=0)[None] * 0.8, axis=0
        )
    unlabelled = random.random(labels.shape) < 0.1
    labels[unlabelled] = np.where(random.random(unlabelled.sum()) < 0.5, -1, 255)
    meaning = MaskOutput(kind="mask")
    outputs = [(each, 0 * each) for each in scores]
    found = measured(tmp_path / "s", "miou", meaning, labels, outputs)
    said, known = scores[:, 0].argmax(axis=1), ~unlabelled
    due = jaccard_score(labels[known], said[known], average="macro")
    assert found["miou"][0] == pytest.approx(due)
    assert found["pixel_accuracy"][0] == pytest.approx((labels == said)[known].mean())
    constant = jaccard_score(labels[known], 0 * said[known], average="macro", zero_division=0)
    assert found["miou"][1] == pytest.approx(constant)


@pytest.mark.parametrize("ends", [(0.0, 1.0), (0.0, 255.0), (-1.0, 1.0), (1.0, 0.0)])
def test_peak_noise_is_that_of_the_mean_squared_error(ends):
    random = np.random.default_rng(3)
    low, high = min(ends), max(ends)
    wanted = random.uniform(low, high, (1, 3, 8, 8))
    given = wanted + random.normal(0, 0.1 * (high - low), wanted.shape)
    error = mean_squared_error(wanted.ravel(), given.clip(low, high).ravel())
    due = 10 * math.log10((high - low) ** 2 / error)
    assert compute_psnr(wanted, given, ends) == pytest.approx(due)
    assert compute_psnr(wanted, wanted, ends) == 100
    assert compute_psnr(wanted, wanted * np.nan, ends) == 0


@pytest.mark.parametrize("layout", ["NCHW", "NHWC", "GRAY"])
def test_peak_noise_of_pictures_is_in_the_outputs_own_numbers(tmp_path, layout):
    random = np.random.default_rng(3)
    labels = np.full((4, 9, 12, 3), -1, np.int16)
    # Smaller ones are filled up.
    labels[:, :8, :10] = random.integers(0, 256, (4, 8, 10, 3))
    pictures = labels[:, :8, :10].astype(np.float64)
    if layout == "GRAY":
        pictures = (pictures @ [0.299, 0.587, 0.114])[..., None]
    outputs = pictures / 127.5 - 1
    if layout != "NHWC":
        outputs = outputs.transpose(0, 3, 1, 2)
    noisy = outputs + random.choice([-0.02, 0.02], outputs.shape)
    meaning = PictureOutput(kind="picture", black=-1, white=1)
    found = measured(
        tmp_path / "s",
        "psnr",
        meaning,
        labels,
        [*zip(outputs[:, None], noisy[:, None], strict=True)],
    )["psnr"]
    assert found[0] == 100
    # Clipped where it would be beyond black and white.
    errors = ((noisy.clip(-1, 1) - outputs) ** 2).mean(axis=(1, 2, 3))
    assert found[1] == pytest.approx(np.mean(10 * np.log10(4 / errors)))
    assert 39 < found[1] < 41


def test_metrics_stay_numbers_where_a_variant_gives_none(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nothing = np.full((1, 1), np.nan, np.float32)
        labels = np.arange(24) % 2
        outputs = [(np.full((1, 1), v, np.float32), nothing) for v in labels]
        for name, kind in (("eer", RegressionOutput(kind="regression")),):
            found = measured(tmp_path / name, name, kind, labels, outputs)[name]
            assert found == (0, pytest.approx(0.5))
        regression = RegressionOutput(kind="regression")
        assert measured(tmp_path / "s", "spearman", regression, labels, outputs)["spearman"] == (
            pytest.approx(1),
            0,
        )

"""The metric of each kind of output: fp32's own is 1, broken ones are told."""

from __future__ import annotations

import numpy as np
import pytest
from edgepack.metrics.base import Found, Nothing
from edgepack.metrics.choosing import choose_metric
from edgepack.metrics.sequences import edit_distance
from edgepack.project.outputs import (
    DetectionOutput,
    EmbeddingOutput,
    MaskOutput,
    ProbabilityOutput,
    RegressionOutput,
    SignalOutput,
    SizedDetection,
    TextOutput,
    TokensOutput,
)

RANDOM = np.random.default_rng(20260101)


@pytest.fixture
def random():
    return np.random.default_rng(20260101)


def found(description, pairs, *, may_be_scores=False, feed=None):
    """What the metric of a description finds in pairs of fp32's and a variant's outputs."""
    first = np.asarray(pairs[0][0])
    metric = choose_metric(description, first, may_be_scores=may_be_scores)
    for ours, theirs in pairs:
        metric.add(np.asarray(ours), np.asarray(theirs), feed or {})
    return metric.compute_value()


def value(told):
    assert isinstance(told, Found)
    return float(np.mean(told.values))


def rows(*objects, count=40):
    """A yolo output ``(1, 6, count)`` with two classes: rows of x, y, w, h, score, class."""
    output = np.zeros((1, 6, count), np.float32)
    for n, (*box, score, index) in enumerate(objects):
        output[0, :4, n] = box
        output[0, 4 + index, n] = score
    return output


YOLO = DetectionOutput(kind="detection", layout="yolo")
TWO = rows((50, 50, 40, 40, 0.9, 0), (150, 60, 30, 60, 0.8, 1))
ONE = rows((80, 90, 40, 40, 0.7, 1))

TEXT = TextOutput(kind="text", labels="alphabet.txt", blank=-1)


def steps(*classes: int) -> np.ndarray:
    """Return scores of four classes, of which the last is the blank."""
    return np.eye(4, dtype=np.float32)[None, list(classes)]


KINDS = [
    (YOLO, [TWO, ONE]),
    (EmbeddingOutput(kind="embedding", pooling="none"), list(RANDOM.normal(size=(8, 1, 16)))),
    (MaskOutput(kind="mask"), list(RANDOM.normal(size=(4, 1, 3, 8, 8)))),
    (MaskOutput(kind="mask"), list(RANDOM.uniform(size=(4, 1, 1, 8, 8)))),
    (MaskOutput(kind="mask"), list(RANDOM.integers(0, 4, (4, 1, 8, 8)))),
    (ProbabilityOutput(kind="probability"), list(RANDOM.uniform(size=(9, 1, 1)))),
    (RegressionOutput(kind="regression", threshold=3), list(RANDOM.normal(3, 0.1, (9, 1, 1)))),
    (SignalOutput(kind="signal", window=16), list(RANDOM.normal(size=(4, 1, 64)))),
    (TokensOutput(kind="tokens"), [np.array([[1, 2, 3]]), np.array([[4, 5]])]),
    (TokensOutput(kind="tokens"), list(RANDOM.normal(size=(3, 1, 5, 9)))),
    (TEXT, [steps(0, 3, 0, 1), steps(2, 1, 0, 3)]),
    (None, list(RANDOM.normal(size=(5, 1, 4, 4)))),
    (None, [np.array([1, 2]), np.array([1, 3])]),
]
IDS = [getattr(kind, "kind", "raw") for kind, _ in KINDS]


@pytest.mark.parametrize(("description", "outputs"), KINDS, ids=IDS)
def test_metric_of_fp32_itself_is_one(description, outputs):
    told = found(description, [(each, each) for each in outputs])
    assert value(told) == pytest.approx(1)
    assert not told.no_better


@pytest.mark.parametrize(("description", "outputs"), KINDS, ids=IDS)
def test_metric_when_fp32_says_the_same_of_all_tells_nothing_or_less_than_one(description, outputs):
    told = found(description, [(outputs[0], outputs[0])] * 4)
    if description is YOLO or getattr(description, "kind", "") == "signal":
        # One picture's objects, and one sound, are enough to be kept or lost.
        assert value(told) == 1
    else:
        assert isinstance(told, Nothing)


@pytest.mark.parametrize(
    ("description", "outputs"), KINDS[:9] + KINDS[10:12], ids=[*IDS[:9], "text", "raw"]
)
def test_metric_of_a_dead_variant_is_told_from_a_working_one(description, outputs):
    dead = np.zeros_like(outputs[0])
    told = found(description, [(each, dead) for each in outputs])
    assert told.no_better or value(told) < 0.4


def test_texts_when_a_symbol_is_lost_keep_the_others():
    pairs = [
        (steps(0, 3, 0, 1, 2), steps(0, 0, 0, 1, 2)),
        (steps(1, 2, 3, 3, 3), steps(1, 3, 2, 2, 3)),
        (steps(2, 1, 0, 3, 3), steps(2, 1, 0)),
    ]
    told = found(TEXT, pairs)
    # Of "aabc" three are kept; repetitions and blanks are none; another shape is no text.
    assert told.values == [0.75, 1, 0]
    assert told.others == {"equal texts": 1 / 3}


def test_texts_when_fp32_reads_none_say_so():
    told = found(TEXT, [(steps(3, 3), steps(0, 3))] * 2)
    assert told == Nothing("fp32 reads no symbol in any sample")


def test_objects_when_one_moves_are_kept_at_a_smaller_overlap_only():
    moved = rows((54, 50, 40, 40, 0.9, 0), (150, 60, 30, 60, 0.8, 1))
    told = found(YOLO, [(TWO, moved), (ONE, ONE), (rows(), rows())])
    # 36 of 44 columns are shared: an overlap of 0.82.
    assert value(told) == 1
    assert told.others == {"f1@0.75": 1, "f1@0.9": 0.75, "map50": 1, "objects": 3, "kept": 3}


@pytest.mark.parametrize(
    ("moved", "score", "kept"),
    [(0, 0.9, 1), (4, 0.9, 1), (8, 0.9, 0), (8, 0.3, 1)],
    ids=["the same", "a tenth of the box", "a fifth of it", "not seen by fp32"],
)
def test_objects_when_a_keypoint_is_elsewhere_are_lost(moved, score, kept):
    described = DetectionOutput(kind="detection", layout="yolo", keypoints=1)
    box = [50, 50, 40, 40, 0.9]
    ours, theirs = (
        np.float32([[*box, 40 + by, 60, score]] * 8).T[None].copy() for by in (0, moved)
    )
    for each in (ours, theirs):
        each[0, 4, 1:] = 0
    assert value(found(described, [(ours, theirs)])) == kept


@pytest.mark.parametrize(
    ("other", "f1"),
    [
        (rows((50, 50, 40, 40, 0.9, 0)), 2 / 3),
        (rows((50, 50, 40, 40, 0.9, 1), (150, 60, 30, 60, 0.8, 1)), 1 / 2),
        (rows((50, 50, 40, 40, 0.9, 0), (150, 60, 30, 60, 0.8, 1), (9, 9, 9, 9, 0.6, 0)), 4 / 5),
        (np.full_like(TWO, np.nan), 0),
    ],
    ids=["lost", "other class", "invented", "no numbers"],
)
def test_objects_when_one_is_lost_or_invented_count_it(other, f1):
    assert value(found(YOLO, [(TWO, other)])) == pytest.approx(f1)


def test_objects_when_fp32_finds_none_say_so():
    told = found(YOLO, [(rows(), TWO)])
    assert told == Nothing("fp32 finds no object with a score of 0.25 in any sample")


def test_decisions_of_a_rare_word_are_not_hidden_by_silence():
    ours = [np.array([[p]]) for p in [0.9] * 4 + [0.001] * 480]
    deaf = [np.array([[0.001]])] * 484
    told = found(ProbabilityOutput(kind="probability"), list(zip(ours, deaf, strict=True)))
    assert value(told) == pytest.approx(0.5)
    assert "keeps 50.0% of fp32's decisions" in told.no_better


def test_decisions_that_all_agree_are_all_kept_however_far_the_numbers_are():
    ours = [np.array([[p]]) for p in [0.9] * 4 + [0.001] * 480]
    other = [np.array([[p]]) for p in [0.7] * 4 + [0.02] * 480]
    told = found(ProbabilityOutput(kind="probability"), list(zip(ours, other, strict=True)))
    assert value(told) == pytest.approx(1)
    assert told.others == {"ROC area": 1}


def test_decisions_of_logits_are_made_after_the_sigmoid():
    described = ProbabilityOutput(kind="probability", threshold=0.7, activation="sigmoid")
    logits = [np.array([2.0]), np.array([0.5]), np.array([-900.0])]
    assert value(found(described, [(each, each) for each in logits])) == 1
    assert value(found(described, [(each, each - 1.5) for each in logits])) == pytest.approx(0.5)


def test_score_around_three_is_held_against_its_spread_not_its_size(random):
    ours = random.normal(3, 0.1, 60)
    noise = random.normal(0, 0.05, 60)
    pairs = [(np.array([[a]]), np.array([[a + b]])) for a, b in zip(ours, noise, strict=True)]
    told = found(RegressionOutput(kind="regression"), pairs)
    assert value(told) == pytest.approx(1 - np.mean(noise**2) / np.var(ours), abs=1e-9)
    assert 0.5 < value(told) < 0.9
    assert 0.7 < told.others["rank correlation"] < 1


def test_score_of_one_number_is_never_called_near_for_its_size(random):
    pairs = [(np.array([[a]]), np.array([[3.0]])) for a in random.normal(3, 0.1, 60)]
    told = found(None, pairs, may_be_scores=True)
    assert told.no_better.startswith("R² is -0.0")


def test_numbers_of_two_quantities_are_judged_by_the_worse_one(random):
    boxes = random.uniform(0, 600, (20, 4, 50))
    scores = random.uniform(0, 1, (20, 2, 50))
    ours = np.concatenate([boxes, scores], axis=1)[:, None]
    theirs = np.concatenate([boxes, np.full_like(scores, 0.5)], axis=1)[:, None]
    told = found(None, list(zip(ours, theirs, strict=True)))
    assert value(told) == pytest.approx(0, abs=0.1)
    assert told.no_better


def test_numbers_of_rare_classes_are_not_a_quantity_of_their_own(random):
    sizes = 0.5 ** np.arange(12)[None, :, None, None]
    ours = random.uniform(0, 1, (20, 12, 6, 6)) * sizes
    theirs = ours + random.normal(0, 0.01, ours.shape)
    told = found(None, list(zip(ours[:, None], theirs[:, None], strict=True)))
    assert value(told) > 0.98


def test_numbers_of_samples_of_several_sizes_are_held_against_their_channels(random):
    ours = [random.normal(3, 0.1, (1, n, 4)) for n in (5, 7, 9, 11)]
    near = found(None, [(each, each + 0.01) for each in ours])
    constant = found(None, [(each, np.full_like(each, 3)) for each in ours])
    assert value(near) > 0.95
    assert value(constant) == pytest.approx(0, abs=0.1)


def test_signal_that_is_noise_only_where_it_is_silent_is_kept(random):
    loud = np.concatenate([random.normal(size=512), np.zeros(512)])[None]
    hiss = loud + np.concatenate([np.zeros(512), np.full(512, 1e-3)])[None]
    muffled = loud * 0.5
    described = SignalOutput(kind="signal")
    assert value(found(described, [(loud, hiss)])) == 1
    assert value(found(described, [(loud, muffled)])) == pytest.approx(0.75)


def test_neighbours_when_order_changes_are_counted():
    ours = [np.eye(6)[n % 3] + 0.3 * np.eye(6)[3 + n // 3] for n in range(6)]
    swapped = [ours[(n + 1) % 6] if n < 2 else ours[n] for n in range(6)]
    pairs = [(a[None], b[None]) for a, b in zip(ours, swapped, strict=True)]
    told = found(EmbeddingOutput(kind="embedding", pooling="none"), pairs)
    assert value(told) < 1


def test_neighbours_pool_with_the_mask_of_the_sample(random):
    described = EmbeddingOutput(kind="embedding", pooling="mean", mask="m")
    words = random.normal(size=(6, 1, 4, 8))
    other = words.copy()
    other[:, :, 2:] = 100
    pairs = list(zip(words, other, strict=True))
    feed = {"m": np.array([[1, 1, 0, 0]])}
    assert value(found(described, pairs, feed=feed)) == 1


@pytest.mark.parametrize(
    ("one", "other", "distance"),
    [("kitten", "sitting", 3), ("", "abc", 3), ("abc", "", 3), ("flaw", "lawn", 2), ("a", "a", 0)],
)
def test_edit_distance_is_levenshteins(one, other, distance):
    ids = [np.array([ord(c) for c in text], np.int64) for text in (one, other)]
    assert edit_distance(*ids) == distance


def test_scores_without_description_are_class_scores_where_they_may_be(random):
    ours = list(random.normal(size=(10, 1, 4)))
    told = found(None, [(each, each + 7) for each in ours], may_be_scores=True)
    assert value(told) == 1
    assert value(found(None, [(each, each + 7) for each in ours])) < 0


def test_objects_when_boxes_are_fewer_than_values_are_read_by_the_number_of_labels():
    output = TWO[:, :, :3]
    described = SizedDetection(**YOLO.model_dump(), label_count=2)
    assert value(found(described, [(output, output)])) == 1
    with pytest.raises(ValueError, match="the layout 'yolo'"):
        found(YOLO, [(output, output)])

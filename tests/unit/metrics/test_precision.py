"""Mean average precision: by hand, and with detectors and labels that are broken."""

from __future__ import annotations

import numpy as np
import pytest
from edgepack.errors import SamplesError
from edgepack.metrics.choosing import choose_metric
from edgepack.metrics.labelled import choose_labelled_metric
from edgepack.metrics.precision import compute_average_precision, match_objects
from edgepack.model.facts import TensorSpec
from edgepack.ondevice.runtime.edgepack_answers import Detection
from edgepack.ondevice.runtime.edgepack_images import find_placement
from edgepack.project.limits import Limits
from edgepack.project.outputs import DetectionOutput, RegressionOutput, SizedDetection
from edgepack.records.limits import explain_missed_limit
from edgepack.samples.sample_set import SampleSet, write_sample_set
from edgepack.steps.proofs.evaluation_result import make_accuracy
from edgepack.steps.proofs.judge import GROUPS, Judge

YOLO = DetectionOutput(kind="detection", layout="yolo")
COUNT = 30
SIDE = 320


def thing(score, box, index=0):
    return Detection(index, None, score, box)


def truth(*boxes, index=0):
    return np.array([(index, *box) for box in boxes], np.float64).reshape(-1, 5)


A, B, C = (0, 0, 10, 10), (20, 0, 30, 10), (40, 0, 50, 10)
NOWHERE = (90, 90, 99, 99)


def test_precision_of_one_class_is_what_is_worked_out_by_hand():
    # Right, wrong, right, of three that are there: precision 1 up to a recall of 1/3, then 2/3 up
    # to 2/3, and 0 beyond. Of the recalls 0, 0.01, ... 1, 34 lie up to 1/3 and 33 up to 2/3.
    found = [thing(0.9, A), thing(0.8, NOWHERE), thing(0.7, B)]
    value = compute_average_precision([match_objects(found, truth(A, B, C))])[0]
    assert value == pytest.approx((34 * 1 + 33 * 2 / 3) / 101)


def test_precision_when_an_object_is_found_twice_counts_the_second_as_wrong():
    # The better of the two is right: right, wrong, right.
    found = [thing(0.9, A), thing(0.8, (0, 0, 10, 9)), thing(0.7, B)]
    value = compute_average_precision([match_objects(found, truth(A, B))])[0]
    assert value == pytest.approx((51 * 1 + 50 * 2 / 3) / 101)


def test_precision_when_an_object_overlaps_two_takes_the_nearer_one():
    low, high = (0, 0, 10, 10), (0, 4, 10, 14)
    found = [thing(0.9, (0, 3, 10, 13)), thing(0.8, (0, 0, 10, 9))]
    assert match_objects(found, truth(low, high)).right[0].tolist() == [True, True]


def test_precision_orders_all_pictures_by_score_together():
    pictures = [
        match_objects([thing(0.5, A)], truth(A)),
        match_objects([thing(0.9, NOWHERE)], truth(B)),
        match_objects([thing(0.7, NOWHERE)], truth()),
    ]
    # Wrong, wrong, right: a third, up to half of what is there.
    assert compute_average_precision(pictures)[0] == pytest.approx(51 / 3 / 101)


def test_precision_is_the_mean_over_classes_that_are_there():
    boxes = np.vstack([truth(A), truth(B, index=3)])
    found = [thing(0.9, A), thing(0.8, NOWHERE, index=3), thing(0.7, C, index=5)]
    assert compute_average_precision([match_objects(found, boxes)])[0] == pytest.approx(0.5)


def test_precision_when_a_box_is_near_falls_with_the_overlap_that_is_asked_for():
    # 90 of 110 are shared: 0.818, which is enough for 0.5 to 0.8.
    value = compute_average_precision([match_objects([thing(0.9, (1, 0, 11, 10))], truth(A))])
    assert value.tolist() == [1] * 7 + [0] * 3


def test_precision_when_nothing_is_there_is_nothing():
    assert compute_average_precision([match_objects([thing(0.9, A)], truth())]).tolist() == [0] * 10
    assert compute_average_precision([match_objects([], truth(A))]).tolist() == [0] * 10


@pytest.fixture
def scenes():
    """Objects of some pictures: ``(objects, 6)`` class, score, left, top, right, bottom."""
    random = np.random.default_rng(5)
    scenes = []
    for _ in range(COUNT):
        corner = random.uniform(0, 60, (3, 2)) + np.arange(0, 300, 100)[:, None]
        size = random.uniform(40, 90, (3, 2))
        start = [random.integers(0, 2, (3, 1)), random.uniform(0.5, 1, (3, 1))]
        scenes.append(np.hstack([*start, corner, corner + size]))
    return scenes


def labels_of(scenes):
    return np.array([np.delete(scene, 1, axis=1) for scene in scenes])


def output(scene, *, score=1.0, shift=0.0, count=40):
    """A yolo output ``(1, 6, 40)`` that says what is in a scene."""
    said = np.zeros((1, 6, count))
    for n, (index, certain, x0, y0, x1, y1) in enumerate(scene):
        move = shift * (x1 - x0)
        said[0, :4, n] = (x0 + x1) / 2 + move, (y0 + y1) / 2, x1 - x0, y1 - y0
        said[0, 4 + int(index), n] = certain * score
    return {"o": said}


def sample_set(folder, labels, places=()):
    folder.mkdir(exist_ok=True)
    samples = [(str(n), {"x": np.zeros(1, np.float32)}) for n in range(len(labels))]
    write_sample_set(folder, [TensorSpec("x", "float32", (1,))], samples, labels, places=places)
    return SampleSet.read(folder)


def judged(samples, metric, pairs, described=YOLO):
    """What an evaluation finds in pairs of fp32's and the variant's outputs, and its judge."""
    of_labels = choose_labelled_metric(metric, samples, {"o": described})
    judge = Judge(samples.labels, None, {"o": described}, keep_outputs=False, labelled=of_labels)
    for ours, theirs in pairs:
        judge.add(ours, theirs, {})
    return judge.make_result(metric, None), judge


def same(scenes, **changed):
    return [(output(scene), output(scene, **changed)) for scene in scenes]


def test_map_of_a_perfect_detector_is_one(tmp_path, scenes):
    found, judge = judged(sample_set(tmp_path / "s", labels_of(scenes)), "map", same(scenes))
    assert (found["metric"], found["fp32"], found["value"], found["drop"]) == ("map", 1, 1, 0)
    assert found["values"]["map50"] == {"fp32": 1, "value": 1}
    assert found["drop_interval"] == (0, 0)
    assert judge.compute_interval("map") == (1, 1)


def test_map_when_labels_are_boxes_is_the_metric_unless_another_is_named(tmp_path, scenes):
    samples = sample_set(tmp_path / "s", labels_of(scenes))
    assert judged(samples, None, same(scenes))[0]["metric"] == "map50"
    assert judged(samples, "agreement", same(scenes))[0]["metric"] == "f1@0.5"


def swapped_classes(labels):
    labels[..., 0] = 1 - labels[..., 0]


def swapped_axes(labels):
    labels[...] = labels[..., [0, 2, 1, 4, 3]]


def as_sizes(labels):
    labels[..., 3:] -= labels[..., 1:3]


@pytest.mark.parametrize("broken", [swapped_classes, swapped_axes, as_sizes])
def test_map_when_labels_are_wrong_falls_for_fp32_too(tmp_path, scenes, broken):
    labels = labels_of(scenes)
    broken(labels)
    found, _ = judged(sample_set(tmp_path / "s", labels), "map50", same(scenes))
    assert found["fp32"] == found["value"] < 0.3


def test_map_when_boxes_are_shifted_by_a_tenth_falls_and_map50_does_not(tmp_path, scenes):
    samples = sample_set(tmp_path / "s", labels_of(scenes))
    found, _ = judged(samples, "map", same(scenes, shift=0.1))
    assert found["value"] == pytest.approx(0.7)
    assert found["values"]["map50"]["value"] == 1
    assert found["drop"] == pytest.approx(0.3)
    low, high = found["drop_interval"]
    assert low <= found["drop"] <= high


def test_limit_is_about_map_where_that_is_the_metric(tmp_path, scenes):
    samples = sample_set(tmp_path / "s", labels_of(scenes))
    accuracy = make_accuracy(judged(samples, "map", same(scenes, shift=0.1))[0])
    assert explain_missed_limit(accuracy, Limits(metric_drop=0.35)) == ""
    assert "map drops by 0.3" in explain_missed_limit(accuracy, Limits(metric_drop=0.25))


def test_map_when_all_scores_are_low_stays_and_f1_tells(tmp_path, scenes):
    samples = sample_set(tmp_path / "s", labels_of(scenes))
    found, _ = judged(samples, "map50", same(scenes, score=0.3))
    assert found["value"] == 1
    assert found["outputs"]["o"]["value"] < 0.5
    kept = sum(int((scene[:, 1] * 0.3 >= YOLO.score).sum()) for scene in scenes)
    due = {"fp32": 1, "value": pytest.approx(2 * kept / (3 * COUNT + kept))}
    assert found["values"]["f1"] == due


def test_map_when_a_part_of_the_scores_is_low_falls(tmp_path, scenes):
    samples = sample_set(tmp_path / "s", labels_of(scenes))
    invented = [np.vstack([scene, (1, 0.4, 250, 0, 300, 50)]) for scene in scenes]
    high = [(output(scene), output(each)) for scene, each in zip(scenes, invented, strict=True)]
    weak = [each.copy() for each in invented]
    for scene in weak[::2]:
        scene[:3, 1] *= 0.3
    low = [(output(scene), output(each)) for scene, each in zip(scenes, weak, strict=True)]
    assert judged(samples, "map50", high)[0]["value"] == 1
    assert judged(samples, "map50", low)[0]["value"] < 0.9


def test_map_when_pictures_differ_has_an_interval_like_that_of_their_hits(tmp_path, scenes):
    samples = sample_set(tmp_path / "s", labels_of(scenes))
    blind = np.random.default_rng(2).permutation(COUNT)[: COUNT // 5]
    pairs = same(scenes)
    for n in blind:
        pairs[n] = (pairs[n][0], output([]))
    found, judge = judged(samples, "map50", pairs)
    assert found["drop"] == pytest.approx(0.2, abs=0.05)
    (low, high), own = found["drop_interval"], judge.compute_interval("map50")
    # A fifth of 30 pictures is lost, all three objects of each: a standard error of about 0.07.
    assert 0.05 < (high - low) / 2 < 0.35
    assert own == (pytest.approx(found["value"] - (high - low) / 2), 1) or own[1] < 1


def test_map_when_samples_are_few_has_no_interval(tmp_path, scenes):
    few = scenes[: 2 * GROUPS - 1]
    found, judge = judged(sample_set(tmp_path / "s", labels_of(few)), "map50", same(few))
    assert found["drop_interval"] is None
    assert judge.compute_interval("map50").reason == "it takes 20 samples"


def test_map_of_pictures_is_in_their_pixels(tmp_path, scenes):
    place = find_placement(1280, 640, {"letterbox": SIDE})
    labels = labels_of(scenes)
    inside = (labels[..., 1:] - [0, place.top] * 2) * 4
    labels[..., 1:] = inside.clip(0, [1280, 640] * 2)
    samples = sample_set(tmp_path / "s", labels, [place] * COUNT)
    # What lies beside the picture in the input is not there, and neither is its box.
    kept = (labels[..., 3:] > labels[..., 1:3] + 1).all(axis=-1)
    labels[~kept] = np.nan
    samples = sample_set(tmp_path / "t", labels, [place] * COUNT)
    shown = [scene[keep] for scene, keep in zip(scenes, kept, strict=True)]
    assert judged(samples, "map", same(shown))[0]["value"] == pytest.approx(1)
    unplaced = sample_set(tmp_path / "u", labels)
    assert judged(unplaced, "map50", same(shown))[0]["value"] < 0.1


@pytest.mark.parametrize(
    ("metric", "described", "change", "said"),
    [
        ("map50", YOLO, lambda labels: labels[:, 0, 0], "takes labels .samples, boxes, 5"),
        ("map", YOLO, lambda labels: labels[..., :4], "they are float64 .30, 3, 4."),
        ("map50", YOLO, lambda _: None, "and there are none"),
        ("map50", YOLO, lambda labels: np.full_like(labels, np.nan), "no box in any"),
        ("map50", YOLO, lambda labels: labels - 1, "boxes of the classes .-1.0"),
        ("map50", YOLO, lambda labels: labels + 0.5, "boxes of the classes .0.5"),
        ("map50", YOLO, lambda labels: labels + 1, "boxes of class 2, and the model has 2 classes"),
        ("map50", RegressionOutput(kind="regression"), lambda labels: labels, "of a detection"),
        ("perplexity", YOLO, lambda labels: labels, "is of a tokens"),
    ],
)
def test_map_when_labels_or_outputs_do_not_fit_says_what_is_wanted(
    tmp_path, scenes, metric, described, change, said
):
    labels = change(labels_of(scenes))
    folder = tmp_path / "s"
    samples = sample_set(folder, np.zeros(COUNT) if labels is None else labels)
    if labels is None:
        (folder / "labels.npy").unlink()
        samples = SampleSet.read(folder)
    with pytest.raises(SamplesError, match=said):
        judged(samples, metric, same(scenes), described)


def test_map_with_a_file_of_labels_reads_as_many_classes(tmp_path, scenes):
    described = SizedDetection(**YOLO.model_dump(), label_count=2)
    samples = sample_set(tmp_path / "s", labels_of(scenes))
    pairs = [(output(s, count=6), output(s, count=6)) for s in scenes]
    assert judged(samples, "map50", pairs, described)[0]["value"] == 1


def test_map_when_a_variants_output_has_another_shape_is_nothing(tmp_path, scenes):
    samples = sample_set(tmp_path / "s", labels_of(scenes))
    pairs = [(output(scene), output(scene, count=39)) for scene in scenes]
    found, _ = judged(samples, "map50", pairs)
    assert (found["fp32"], found["value"]) == (1, 0)


def unlabelled(scenes, **changed):
    metric = choose_metric(YOLO, output(scenes[0])["o"], may_be_scores=False)
    for ours, theirs in same(scenes, **changed):
        metric.add(ours["o"], theirs["o"], {})
    return metric.compute_value()


def test_objects_have_map_with_fp32s_as_the_truth_beside_f1(scenes):
    assert unlabelled(scenes).others["map50"] == 1
    assert unlabelled(scenes, shift=0.5).others["map50"] == 0
    # Scores that are all low change no order.
    weak = unlabelled(scenes, score=0.3)
    assert weak.others["map50"] == 1
    assert np.mean(weak.values) < 0.5

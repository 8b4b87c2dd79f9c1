"""What a call wants otherwise than the manifest says."""

from __future__ import annotations

import numpy as np
import pytest
from edgepack.ondevice.runtime.edgepack_answers import AnswerOptions, make_answer
from edgepack.ondevice.runtime.edgepack_images import find_placement
from edgepack.project.outputs import OutputDescription
from pydantic import TypeAdapter

WHOLE = find_placement(64, 64, {"width": 64, "height": 64})
LABELS = ["cat", "dog", "bus"]
ROWS = [
    [20, 20, 10, 10, 0.9, 0.1, 0.2],
    [20, 20, 10, 9, 0.3, 0.2, 0.8],
    [21, 20, 10, 10, 0.7, 0.6, 0.1],
    [50, 50, 10, 10, 0.1, 0.3, 0.2],
]


def answer(values, labels=LABELS, how=None, **options):
    given = {"kind": "classification", "activation": "softmax", "top": 2}
    described = TypeAdapter(OutputDescription).validate_python(how or given).model_dump()
    output = np.array([values], np.float32)
    return make_answer(output, described, labels, WHOLE, options=AnswerOptions(**options))


def find(**options):
    found = answer(ROWS, how={"kind": "detection", "layout": "yolo"}, **options)
    return [(each.label, pytest.approx(each.score)) for each in found]


LOGITS = np.log([0.5, 0.1, 0.4])


def test_classes_when_no_option_is_given_are_the_manifests():
    assert [each.label for each in answer(LOGITS)] == ["cat", "bus"]


def test_classes_when_options_are_given_are_theirs_with_scores_over_all_classes():
    assert [each.label for each in answer(LOGITS, top=3)] == ["cat", "bus", "dog"]
    assert [each.label for each in answer(LOGITS, top=3, score=0.45)] == ["cat"]
    allowed = answer(LOGITS, allow=["dog", "bus"])
    assert [(each.label, each.index) for each in allowed] == [("bus", 2), ("dog", 1)]
    assert [each.score for each in allowed] == pytest.approx([0.4, 0.1])


def test_classes_when_a_score_is_no_number_are_left_out_below_a_limit():
    how = {"kind": "classification"}
    found = answer([np.nan, 0.5, 0.25], how=how, score=0.0)
    assert [each.label for each in found] == ["dog", "bus"]


def test_objects_when_options_are_given_are_theirs():
    assert find() == [("cat", 0.9), ("bus", 0.8), ("dog", 0.3)]
    assert find(score=0.5) == [("cat", 0.9), ("bus", 0.8)]
    assert find(most=1) == [("cat", 0.9)]
    assert find(iou=1) == [("cat", 0.9), ("bus", 0.8), ("cat", 0.7), ("dog", 0.3)]


def test_objects_when_some_are_allowed_are_of_the_class_that_is_best_among_all():
    # The third row is a cat, and no dog, although its score for a dog would count.
    assert find(allow=["dog"]) == [("dog", 0.3)]
    assert find(allow=["bus", "dog"], most=1) == [("bus", 0.8)]
    assert find(allow=[]) == []


def test_other_answers_when_options_are_given_are_as_they_are():
    vector = answer([3, 4], [], {"kind": "embedding", "pooling": "none"}, score=1, allow=["x"])
    assert vector.tolist() == [[3, 4]]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"score": 1.5}, "'score' is 1.5, expected 0 to 1"),
        ({"iou": -0.1}, "'iou' is -0.1, expected 0 to 1"),
        ({"score": float("nan")}, "'score' is nan"),
        ({"most": 0}, "'most' is 0, expected 1 or more"),
        ({"top": -3}, "'top' is -3"),
    ],
)
def test_options_when_out_of_range_are_refused(options, problem):
    with pytest.raises(ValueError, match=problem):
        AnswerOptions(**options)


def test_options_when_a_number_of_answers_is_a_float_are_refused():
    with pytest.raises(TypeError, match=r"'most' is 2\.5, expected a whole number"):
        AnswerOptions(most=2.5)


def test_options_when_allowed_is_one_text_are_refused():
    with pytest.raises(TypeError, match="'cat', expected a list of labels"):
        AnswerOptions(allow="cat")


def test_options_when_a_label_is_none_of_the_outputs_list_at_most_ten():
    with pytest.raises(ValueError, match=r"'horse', and the labels are 'cat', 'dog', 'bus'$"):
        find(allow=["cat", "horse"])
    with pytest.raises(ValueError, match=r"'8', '9' and 2 more$"):
        answer(np.zeros(12), [str(n) for n in range(12)], allow=["x"])
    with pytest.raises(ValueError, match="the output has none: leave it out"):
        answer(LOGITS, [], allow=["cat"])

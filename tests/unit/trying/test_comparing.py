from __future__ import annotations

import numpy as np
import pytest
from edgepack.ondevice.runtime.edgepack_answers import Class, Detection, Keypoint
from edgepack.ondevice.runtime.edgepack_ctc import Transcription
from edgepack.trying.comparing import make_block
from edgepack.trying.maps import find_kind
from edgepack.trying.tensors import compute_cosine


def classes(*pairs: tuple[str, float]) -> list[Class]:
    return [Class(len(label), label, score) for label, score in pairs]


def verdict(kind, reference, other, shown=None):
    found = make_block("out", kind, [reference, other], shown)
    assert found.compared[0].level == "reference"
    return found, found.compared[1]


def test_classification_when_the_top_class_is_another_one_differs_and_names_both():
    found, compared = verdict(
        "classification", classes(("dog", 0.6), ("fox1", 0.3)), classes(("fox1", 0.5), ("dog", 0.4))
    )
    assert (compared.level, compared.words) == ("differs", "says fox1 0.500 for dog 0.600")
    assert [cell.text for cell in found.rows[0].cells] == ["dog 0.600", "fox1 0.500  (other)"]
    assert [cell.level for cell in found.rows[0].cells] == ["same", "differs"]


@pytest.mark.parametrize(
    ("score", "behind", "behind_score", "level"),
    [
        (0.58, "ant4", 0.1, "same"),
        (0.4, "ant4", 0.1, "near"),
        (0.6, "a", 0.3, "near"),
        (0.6, "a", 0.101, "same"),
    ],
)
def test_classification_when_some_score_differs_is_near(score, behind, behind_score, level):
    reference = classes(("dog", 0.6), ("ant4", 0.1))
    _, compared = verdict(
        "classification", reference, classes(("dog", score), (behind, behind_score))
    )
    assert compared.level == level


def test_classification_when_lower_ranks_are_swapped_says_that_their_order_is_another():
    reference = classes(("dog", 0.6), ("ant4", 0.1), ("a", 0.09))
    _, compared = verdict("classification", reference, [reference[0], *reference[:0:-1]])
    assert compared.words.endswith("the classes behind it are in another order")


def boxes(*found: tuple[int, float, float]) -> list[Detection]:
    return [Detection(k, f"k{k}", score, (x, 0.0, x + 10, 10.0)) for k, score, x in found]


def test_detection_when_objects_are_missing_added_and_taken_for_others_says_each():
    reference = boxes((0, 0.9, 0), (1, 0.8, 100), (2, 0.7, 200))
    other = boxes((0, 0.9, 0), (3, 0.6, 100), (1, 0.3, 300))
    found, compared = verdict("detection", reference, other)
    assert compared.level == "differs"
    assert compared.words == (
        "misses 1 of 3 (k2 0.700), adds 1 (k1 0.300), says k3 0.600 for k1 0.800"
    )
    assert compared.numbers == {
        "reference_objects": 3,
        "objects": 3,
        "missing": 1,
        "added": 1,
        "other_class": 1,
        "least_overlap": 1.0,
    }
    assert [row.cells[1].text for row in found.rows] == [
        "k0 0.900  (overlap 1.00)",
        "k3 0.600  (other)",
        "(missing)",
        "k1 0.300  (added)",
    ]
    assert [row.cells[0].text for row in found.rows][2:] == ["k2 0.700", ""]


@pytest.mark.parametrize(
    ("other", "level"),
    [
        (boxes((0, 0.85, 1)), "same"),
        (boxes((0, 0.5, 0)), "near"),
        (boxes((0, 0.9, 2.5)), "near"),
        ([], "differs"),
    ],
)
def test_detection_when_scores_or_places_move_is_near(other, level):
    assert verdict("detection", boxes((0, 0.9, 0)), other)[1].level == level


def test_detection_when_there_is_no_object_is_the_same():
    found, compared = verdict("detection", [], [])
    assert compared.level == "same"
    assert [cell.text for cell in found.rows[0].cells] == ["no object", "no object"]


def test_detection_when_there_are_hundreds_counts_all_and_shows_some():
    many = boxes(*[(0, 0.9, 20.0 * k) for k in range(70)])
    found, compared = verdict("detection", many, [])
    assert compared.numbers["missing"] == 70
    assert found.rows[-1].cells[0].text == f"and {70 - (len(found.rows) - 1)} more"


@pytest.mark.parametrize(("angle", "level"), [(0.05, "same"), (0.25, "near"), (0.5, "differs")])
def test_embedding_when_turned_is_judged_by_its_cosine(angle, level):
    turned = np.array([[np.cos(angle), np.sin(angle)]], np.float32) * 3
    found, compared = verdict("embedding", np.array([[2, 0]], np.float32), turned)
    assert (compared.level, compared.words) == (level, f"cosine {np.cos(angle):.4f}")
    assert [cell.text for cell in found.rows[0].cells] == ["2 values, norm 2", "2 values, norm 3"]


def test_tensor_when_compared_has_cosine_and_worst_difference():
    reference = np.array([[0, 10, -10], [1, 2, 3]], np.float32)
    other = reference.copy()
    other[0, 1] = 9.5
    found, compared = verdict("raw", reference, other)
    expected = np.sum(reference * other) / np.linalg.norm(reference) / np.linalg.norm(other)
    assert compared.numbers["cosine"] == pytest.approx(expected)
    assert compared.numbers["worst_difference"] == pytest.approx(0.5)
    assert (expected >= 0.999, compared.level) == (True, "same")
    assert "worst difference 0.5 (2.5% of the range)" in compared.words
    assert found.rows[0].cells[1].text == "float32 2x3, -10 to 9.5"


@pytest.mark.parametrize(
    ("change", "level", "words"),
    [
        (lambda x: x, "same", "equal"),
        (lambda x: -x, "differs", "far off"),
        (lambda x: x[:, :2], "differs", "another shape: [2, 2]"),
        (lambda x: np.where(x == 10, np.nan, x), "differs", "1 values are finite in one"),
        (lambda x: x * 0, "differs", "worst difference 10"),
    ],
)
def test_tensor_when_changed_is_called_by_what_it_is(change, level, words):
    reference = np.array([[0, 10, -10], [1, 2, 3]], np.float32)
    _, compared = verdict("raw", reference, change(reference))
    assert compared.level == level
    assert words in compared.words


def test_picture_when_one_pixel_is_far_off_is_near_though_its_cosine_is_high():
    reference = np.ones((1, 1, 50, 50), np.float32)
    reference[..., 0] = 0.5
    other = reference.copy()
    other[0, 0, 3, 3] = 0.6
    _, compared = verdict("raw", reference, other)
    assert compared.numbers["cosine"] > 0.999
    assert compared.level == "near"


def test_row_of_scores_when_another_one_is_the_largest_differs():
    reference = np.array([[5.0, 5.01, 5, 5]], np.float32)
    found, compared = verdict("raw", reference, np.array([[5.02, 5.01, 5, 5]], np.float32))
    assert compared.level == "differs"
    assert [cell.text.rpartition(" at ")[2] for cell in found.rows[0].cells] == ["1", "0"]


def test_integers_when_some_differ_are_counted():
    reference = np.arange(100)
    other = np.where(reference < 3, -1, reference)
    _, compared = verdict("raw", reference, other)
    assert (compared.level, compared.words) == ("near", "97.0 % of the values are equal")


def test_classes_of_pixels_when_compared_are_the_best_ones_not_the_scores():
    scores = np.zeros((1, 4, 40, 40), np.float32)
    scores[0, 2] = 1
    other = scores * 100
    other[0, 3, :10] = 1000
    shown = find_kind(scores, (40, 40))
    _, compared = verdict("raw", scores, other, shown)
    assert compared.numbers == {"equal_share": 0.75}
    assert verdict("raw", scores, scores * 100, shown)[1].level == "same"


def test_cosine_when_one_has_no_length_is_not_known():
    assert compute_cosine(np.zeros(3), np.ones(3)) is None


@pytest.mark.parametrize(
    ("text", "score", "level", "words"),
    [
        ("cat", 0.88, "same", "the same text, 0.880 for 0.900"),
        ("cat", 0.7, "near", "the same text, 0.700 for 0.900"),
        ("cat", float("nan"), "near", "the same text, nan for 0.900"),
        ("bat", 0.9, "differs", "reads 'bat' for 'cat'"),
        ("", 0.0, "differs", "reads no text for 'cat'"),
    ],
)
def test_text_when_it_or_its_score_is_another_says_so(text, score, level, words):
    given = Transcription("cat", 0.9), Transcription(text, score)
    found, compared = verdict("text", *given)
    assert (compared.level, compared.words) == (level, words)
    cells = [row.cells[1] for row in found.rows]
    assert cells[0].text == (repr(text) if text else "no text")
    assert cells[0].level == ("same" if text == "cat" else "differs")


@pytest.mark.parametrize(("x", "level"), [(5.0, "same"), (7.0, "near")])
def test_detection_when_a_keypoint_is_elsewhere_is_near(x, level):
    box = (0.0, 0.0, 10.0, 10.0)
    given = [Detection(0, "a", 0.9, box, (Keypoint(at, 5.0, None),)) for at in (5.0, x)]
    _, compared = verdict("detection", given[:1], given[1:])
    assert compared.level == level

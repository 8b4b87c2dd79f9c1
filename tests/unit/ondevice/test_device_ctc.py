"""Texts of CTC's steps, held against plain loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
from edgepack.ondevice.runtime.edgepack_answers import make_answer, make_json
from edgepack.project.outputs import TextOutput

ALPHABET = ["a", "b", "\u732b", " "]


def read(output, alphabet=ALPHABET, **how):
    described = TextOutput(kind="text", labels="alphabet.txt", **how).model_dump()
    return make_answer(np.asarray(output), described, alphabet)


def plain(steps, alphabet, blank, *, softmax):
    text, scores, before = "", [], None
    for row in steps.tolist():
        found = row.index(max(row))
        if found not in (blank, before):
            text += [*alphabet[:blank], "", *alphabet[blank:]][found]
            total = sum(math.exp(value) for value in row)
            scores.append(math.exp(row[found]) / total if softmax else row[found])
        before = found
    return text, math.fsum(scores) / len(scores)


@pytest.mark.parametrize("blank", [0, 2, 4])
@pytest.mark.parametrize("activation", ["none", "softmax"])
def test_text_when_read_is_as_in_plain_loops(blank, activation):
    steps = np.random.default_rng(3).normal(0, 2, (40, 5)).astype(np.float32)
    steps[5:9] = steps[4]
    steps[20:23, blank] = 9
    text, score = plain(steps.astype(np.float64), ALPHABET, blank, softmax=activation == "softmax")
    how = {"blank": blank, "activation": activation}
    for output, axis in ((steps[None], -1), (steps[:, None], -1), (steps.T[None], 1)):
        found = read(output, axis=axis, **how)
        assert found.text == text
        assert found.score == pytest.approx(score, rel=1e-12)
    assert make_json(found) == {"text": found.text, "score": found.score}


def test_text_when_a_symbol_comes_twice_has_it_twice_only_with_a_blank_between():
    rows = np.eye(5, dtype=np.float32)[[0, 1, 1, 0, 1, 2, 2, 4, 3, 0]]
    assert read(rows[None]).text == "aab \u732b"
    assert read(rows[None]).score == 1


def test_text_when_the_blank_is_the_last_class_has_the_alphabet_before_it():
    rows = np.eye(5, dtype=np.float32)[[0, 4, 0, 3]]
    assert read(rows[None], blank=-1).text == "aa "
    assert read(rows[None], blank=-1) == read(rows[None], blank=4)


@pytest.mark.parametrize("shape", [(1, 0, 5), (0, 1, 5), (1, 3, 5)])
def test_text_when_there_are_no_symbols_is_empty_with_a_score_of_zero(shape):
    assert make_json(read(np.zeros(shape, np.float32))) == {"text": "", "score": 0.0}


def test_text_when_values_are_equal_or_no_numbers_has_the_first_that_is_one():
    nothing = [-math.inf] * 5
    rows = [[0, 1, 1, 0, 0], [math.nan, 0, math.nan, 0.5, 0], [math.nan] * 5, nothing]
    assert read(np.float32([rows])).text == "a\u732b"
    assert read(np.float32([rows]), blank=-1).text == "b "


@pytest.mark.parametrize(
    ("shape", "how", "problem"),
    [
        ((4, 5), {}, r"the output is \[4, 5\]: a text has the values of two or more classes"),
        ((2, 4, 5), {}, r"\[1, T, C\] or \[T, 1, C\]"),
        ((5, 1, 4), {"axis": 1}, r"\[1, C, T\]"),
        ((1, 4, 1), {}, "two or more classes"),
        ((1, 4, 6), {}, "the output has 6 classes: there are 4 symbols and the blank"),
        ((1, 4, 5), {"blank": 5}, "the output has 5 classes: the blank cannot be 5"),
    ],
)
def test_text_when_the_shape_is_another_is_refused(shape, how, problem):
    with pytest.raises(ValueError, match=problem):
        read(np.zeros(shape, np.float32), **how)

"""Every kind of output and of answer is known to the code of apps that is written by hand."""

from __future__ import annotations

import re
from typing import get_args

import pytest
from edgepack.apps.names import AnswerKind
from edgepack.base.resources import find_templates_dir
from edgepack.project.outputs import GivenAsTensor, OutputDescription
from edgepack.trying.trying import _ANSWERED

TEMPLATES = find_templates_dir()
ANSWERS = set(get_args(AnswerKind)) - {"raw"}
IN_PART = {"mask", "probability"}
"""Kinds of output of which some are answered, and others, of other shapes, are tensors."""


def kinds_of(union: object) -> set[str]:
    return {get_args(each.model_fields["kind"].annotation)[0] for each in get_args(union)}


DESCRIBED = kinds_of(get_args(OutputDescription)[0])


def test_kinds_of_output_when_they_are_no_tensors_are_answers_of_their_own():
    assert DESCRIBED - kinds_of(GivenAsTensor) == ANSWERS - IN_PART == set(_ANSWERED)


@pytest.mark.parametrize(
    ("template", "case", "known"),
    [
        ("android/kotlin/Model.kt.j2", r'tensor\.answer == "(\w+)"', ANSWERS),
        ("apple/Sources/Model.swift.j2", r'"(\w+)": \{\n', ANSWERS),
    ],
)
def test_model_class_has_a_case_for_each_answer(template, case, known):
    text = (TEMPLATES / template).read_text(encoding="utf-8")
    assert set(re.findall(case, text)) == known


def test_loader_for_apple_reads_each_kind_of_output():
    text = (TEMPLATES / "apple/Sources/Answers.swift").read_text(encoding="utf-8")
    listed = re.search(r"enum Kind: String, Decodable \{(.*?)\}", text, re.DOTALL)
    assert listed is not None
    assert set(re.findall(r"\w+", listed[1].replace("case", ""))) == DESCRIBED

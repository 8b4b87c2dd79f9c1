"""What C++ and CMake call a project."""

from __future__ import annotations

import pytest
from edgepack.project.identifiers import find_version_number, make_macro


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("classifier", "EDGEPACK_BUNDLE_CLASSIFIER"),
        ("My-det.v2_x", "EDGEPACK_BUNDLE_MY_DET_V2_X"),
        ("8bit", "EDGEPACK_BUNDLE_8BIT"),
    ],
)
def test_macro_when_a_name_has_other_signs_is_an_identifier(name: str, made: str) -> None:
    assert make_macro(name) == made
    assert made.isidentifier()


@pytest.mark.parametrize(
    ("version", "number"),
    [("1.2.3", "1.2.3"), ("1.0-rc1", "1.0"), ("2.0+b1", "2.0"), ("1.2.3.4.5", "1.2.3.4"),
     ("7", "7"), ("v1", "0"), ("2026.11.29-dev.4", "2026.11.29")],
)  # fmt: skip
def test_number_when_a_version_has_more_is_what_cmake_compares(version: str, number: str) -> None:
    assert find_version_number(version) == number

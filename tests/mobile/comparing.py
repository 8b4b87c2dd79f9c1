"""Compares what another language made of the cases of ``vectors.py`` with what Python did.

Both are folders with ``images``, ``frames``, ``answers`` and ``wordpiece``, and in each a folder
per case. The other language writes ``tensor.bin`` for an image (float32, little-endian), for a
frame ``rgb.bin``, too, and ``found.json`` else.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.mobile.proofs import require

NEAR = 1e-4
"""How far scores, boxes and vectors may be from Python's, relative to these, plus ALWAYS."""
ALWAYS = 1e-6


def compare_images(cases: Path, results: Path) -> str:
    """Return how many tensors are equal to the bit.

    Raises:
        NotHeldError: One is not, or there are none.
    """
    count = _compare_tensors(cases, results, "images")
    return f"{count} pictures give the same tensors to the bit"


def compare_frames(cases: Path, results: Path) -> str:
    """Return how many frames give the same pixels, in ``rgb.bin``, and tensors, to the bit.

    Raises:
        NotHeldError: One does not, or there are none.
    """
    for case in _cases(cases / "frames"):
        expected = np.fromfile(case / "rgb.bin", np.uint8)
        found = np.fromfile(results / "frames" / case.name / "rgb.bin", np.uint8)
        require(found.shape == expected.shape, f"{case}: {found.size} bytes, not {expected.size}")
        other = int((found != expected).sum())
        require(other == 0, f"{case}: {other} of {expected.size} bytes differ")
    count = _compare_tensors(cases, results, "frames")
    return f"{count} frames give the same pixels and tensors to the bit"


def compare_prescaled(cases: Path, results: Path) -> str:
    """Return how many frames give the same tensors of averages of their blocks, to the bit.

    Raises:
        NotHeldError: One does not, or there are none.
    """
    count = _compare_tensors(cases, results, "frames", "prescaled.bin")
    return f"{count} frames give the same tensors of averages to the bit"


def _compare_tensors(cases: Path, results: Path, kind: str, name: str = "tensor.bin") -> int:
    """Return the number of cases of a kind, whose tensors are equal to the bit.

    Raises:
        NotHeldError: One is not, or there are none.
    """
    count = 0
    for case in _cases(cases / kind):
        expected = np.fromfile(case / name, "<f4")
        found = np.fromfile(results / kind / case.name / name, "<f4")
        require(found.shape == expected.shape, f"{case}: {found.size} values, not {expected.size}")
        other = int((found.view("<u4") != expected.view("<u4")).sum())
        most = np.abs(found - expected).max(initial=0)
        require(other == 0, f"{case}: {other} of {expected.size} values differ, by up to {most}")
        count += 1
    return count


def compare_answers(cases: Path, results: Path) -> str:
    """Return how many answers are the same.

    Raises:
        NotHeldError: One is not, or there are none.
    """
    same = _compare_found(cases, results, "answers")
    return f"{len(same)} outputs give the same answers"


def compare_tokens(cases: Path, results: Path) -> str:
    """Return how many texts have the same tokens.

    Raises:
        NotHeldError: One has not, or there are none.
    """
    same = _compare_found(cases, results, "wordpiece")
    return f"{sum(map(len, same))} texts have the same tokens"


_EXPECTED = {
    "answers": lambda facts: facts["answers"],
    "wordpiece": lambda facts: [
        {key: ids for key, ids in text.items() if key != "text"} for text in facts["texts"]
    ],
}
"""What a case of a kind wants to be found, from its ``case.json``."""


def _compare_found(cases: Path, results: Path, kind: str) -> list[list[Any]]:
    """Return what each case of a kind wants, which is what was found.

    Raises:
        NotHeldError: Something else was, or there are no cases.
    """
    same = []
    for case in _cases(cases / kind):
        expected = _EXPECTED[kind](json.loads((case / "case.json").read_text()))
        found = json.loads((results / kind / case.name / "found.json").read_text())
        for difference in differences(expected, found):
            require(held=False, otherwise=f"{case}: {difference}")
        same.append(expected)
    return same


def _cases(folder: Path) -> list[Path]:
    found = sorted(folder.iterdir()) if folder.is_dir() else []
    require(bool(found), f"there are no cases in {folder}")
    return found


def differences(expected: Any, found: Any, where: str = "") -> Iterator[str]:
    """Yield how an answer differs from the one expected, a line each; numbers may be near it."""
    if isinstance(expected, float) and isinstance(found, int | float):
        if abs(found - expected) > NEAR * abs(expected) + ALWAYS:
            yield f"{where or 'it'} is {found}, not {expected}"
    elif isinstance(expected, list) and isinstance(found, list):
        if len(expected) != len(found):
            yield f"{where or 'it'} has {len(found)} entries, not {len(expected)}"
        for number, pair in enumerate(zip(expected, found, strict=False)):
            yield from differences(*pair, f"{where}[{number}]")
    elif isinstance(expected, dict) and isinstance(found, dict):
        for key in sorted({*expected, *found}):
            yield from differences(expected.get(key), found.get(key), f"{where}.{key}")
    elif expected != found:
        yield f"{where or 'it'} is {found!r}, not {expected!r}"

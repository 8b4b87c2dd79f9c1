"""Texts: what a model that was trained with CTC reads, step by step.

Needs Python 3.8 or newer and numpy; nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, List, Mapping, Sequence, Tuple

import numpy as np

if __package__:
    from . import edgepack_layouts as layouts
else:  # a bundle's
    import edgepack_layouts as layouts  # type: ignore[import-not-found,no-redef]


@dataclass(frozen=True)
class Transcription:
    """The text in a picture of one line, or in a sound."""

    text: str
    score: float
    """The mean of the scores of the steps that symbols were read in; 0 where there are none."""


def transcribe(
    output: np.ndarray, description: Mapping[str, Any], alphabet: Sequence[str]
) -> Transcription:
    """Return the text that the best class of each step gives.

    Source: PaddleOCR, ppocr/postprocess/rec_postprocess.py, CTCLabelDecode.

    Args:
        output: As :func:`read_symbols` takes it.
        description: ``activation``, and what :func:`read_symbols` needs.
        alphabet: The symbol of each class, without the blank.

    Raises:
        ValueError: Another shape, or number of symbols.
    """
    steps = _find_steps(output, description)
    if len(alphabet) != steps.shape[1] - 1:
        raise ValueError(
            f"the output has {steps.shape[1]} classes: there are {len(alphabet)} symbols and the"
            " blank"
        )
    kept, classes = _find_kept(steps, description)
    scores = layouts.activate(steps[kept], description["activation"])
    # One after the other, as in the other languages: numpy adds in pairs.
    total = 0.0
    for row, index in zip(scores, classes):  # noqa: B905
        total += float(row[index])
    text = "".join(alphabet[symbol] for symbol in _leave_blank_out(classes, steps, description))
    return Transcription(text, total / len(kept) if kept else 0.0)


def read_symbols(output: np.ndarray, description: Mapping[str, Any]) -> List[int]:
    """Return the places in the alphabet of the symbols in a text.

    The class of a step is the one with the highest value, of equal ones the first, never a NaN.
    Steps of the blank's class are no symbol, and neither are those of the class of the step before.

    Args:
        output: ``(1, T, C)`` or ``(T, 1, C)``, or with ``axis`` 1 ``(1, C, T)``: values of C
            classes, which are the alphabet's and the blank, in T steps.
        description: ``axis`` and ``blank``: the class that stands for no symbol; -1 for the last.

    Raises:
        ValueError: Another shape.
    """
    steps = _find_steps(output, description)
    return _leave_blank_out(_find_kept(steps, description)[1], steps, description)


def _find_steps(output: np.ndarray, description: Mapping[str, Any]) -> np.ndarray:
    """Return float64 ``(T, C)``, of which C is the blank's too."""
    last = description["axis"] == -1
    fits = output.ndim == 3 and (len(output) == 1 or (last and output.shape[1] == 1))
    steps = output
    if fits and last:
        steps = output[0] if len(output) == 1 else output[:, 0]
    elif fits:
        steps = output[0].T
    if not fits or steps.shape[1] < 2:
        wanted = "[1, T, C] or [T, 1, C]" if last else "[1, C, T]"
        raise ValueError(
            f"the output is {list(output.shape)}: a text has the values of two or more classes in"
            f" each step, {wanted}"
        )
    if not -1 <= description["blank"] < steps.shape[1]:
        raise ValueError(
            f"the output has {steps.shape[1]} classes: the blank cannot be {description['blank']}"
        )
    return steps.astype(np.float64)


def _find_kept(steps: np.ndarray, description: Mapping[str, Any]) -> Tuple[List[int], List[int]]:
    """Return the steps that symbols are read in, and their classes."""
    blank = _find_blank(steps, description)
    known = np.where(np.isnan(steps), -np.inf, steps)
    # Where no value is more than minus infinity, there is no symbol.
    best = np.where(known.max(axis=1) > -np.inf, known.argmax(axis=1), blank)
    changed = np.diff(best, prepend=-1) != 0
    kept = np.flatnonzero(changed & (best != blank))
    return kept.tolist(), best[kept].tolist()


def _leave_blank_out(
    classes: Sequence[int], steps: np.ndarray, description: Mapping[str, Any]
) -> List[int]:
    blank = _find_blank(steps, description)
    return [each - 1 if each > blank else each for each in classes]


def _find_blank(steps: np.ndarray, description: Mapping[str, Any]) -> int:
    blank: int = description["blank"]
    return steps.shape[1] - 1 if blank == -1 else blank

"""Texts beside labelled ones: the error rates of characters and of words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from edgepack.base.arrays import Array
from edgepack.errors import SamplesError
from edgepack.metrics.base import Arrays
from edgepack.metrics.of_labels import Described, LabelledMetric, find_output, make_labels_error
from edgepack.metrics.sequences import edit_distance
from edgepack.ondevice.runtime.edgepack_ctc import transcribe
from edgepack.project.outputs import SpelledText

ERROR_RATES = ("cer", "wer")
"""The names of these metrics."""


class _Edits(NamedTuple):
    characters: int
    words: int
    differs: bool


class ErrorRate(LabelledMetric):
    """Edits to the labelled texts, of all samples together, over these texts' length.

    ``cer`` counts characters, spaces too, ``wer`` words, which are what lies between white space.
    Where more is inserted than there is, a rate is above 1. Source: jiwer, which tests hold both
    against.
    """

    higher_is_better: ClassVar[bool] = False
    best: ClassVar[float] = 0.0

    def __init__(self, name: str, described: Described, labels: Array | None) -> None:
        """Take the labels, one text for each sample.

        Raises:
            SamplesError: No output is a text, or the labels are none, or all empty.
        """
        self.name = name
        self.output = find_output(name, described, "text")
        if labels is None or labels.dtype.kind != "U" or labels.ndim != 1:
            raise make_labels_error(name, labels, "(samples,), a text each")
        meaning = described[self.output]
        self.description: dict[str, Any] = meaning.model_dump()
        self.alphabet = meaning.alphabet if isinstance(meaning, SpelledText) else ()
        self.texts = [str(text) for text in labels]
        self.edits: tuple[list[_Edits], list[_Edits]] = ([], [])
        """By sample: fp32's and the variant's."""
        if not any(text.split() for text in self.texts):
            raise SamplesError(
                "the labels have no text in any of the evaluation samples",
                hint="check 'labels' under samples.evaluation",
            )

    def add(self, reference: Arrays, output: Arrays, feed: Arrays) -> None:
        """Add the next sample's steps, as the description has them."""
        del feed
        ours, theirs = reference[self.output], output[self.output]
        wanted = self.texts[len(self.edits[0])]
        for edits, steps in zip(self.edits, (ours, theirs), strict=True):
            text = self._read(steps) if steps.shape == ours.shape else ""
            edits.append(count_edits(wanted, text))

    def _read(self, steps: Array) -> str:
        return transcribe(steps, self.description, self.alphabet).text

    def compute_values(self, chosen: Sequence[int]) -> dict[str, tuple[float, float]]:
        """Return both rates, and the share of the texts that are not right."""
        texts = [self.texts[number] for number in chosen]
        characters = max(1, sum(map(len, texts)))
        words = max(1, sum(len(text.split()) for text in texts))
        ours, theirs = ([edits[number] for number in chosen] for edits in self.edits)
        found = {
            "cer": _sum_both(ours, theirs, "characters", characters),
            "wer": _sum_both(ours, theirs, "words", words),
            "wrong_texts": _sum_both(ours, theirs, "differs", max(1, len(texts))),
        }
        return {self.name: found[self.name], **found}


def _sum_both(
    ours: Sequence[_Edits], theirs: Sequence[_Edits], what: str, size: int
) -> tuple[float, float]:
    one, other = (sum(getattr(each, what) for each in edits) / size for edits in (ours, theirs))
    return one, other


def count_edits(wanted: str, text: str) -> _Edits:
    """Return how many edits make a wanted text of another: of characters, and of words."""
    words = wanted.split(), text.split()
    numbers = {word: n for n, word in enumerate(dict.fromkeys([*words[0], *words[1]]))}
    one, other = (np.array([numbers[word] for word in each], np.int64) for each in words)
    return _Edits(
        edit_distance(_number_characters(wanted), _number_characters(text)),
        edit_distance(one, other),
        wanted != text,
    )


def _number_characters(text: str) -> Array:
    return np.array([ord(character) for character in text], np.int64)

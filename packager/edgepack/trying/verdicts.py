"""How answers compare with the reference's: rows of text, a level and numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

Level = Literal["reference", "same", "near", "differs"]
LEVELS: tuple[Level, ...] = ("reference", "same", "near", "differs")
"""From the best to the worst."""
Numbers = dict[str, float | int | list[int] | None]


@dataclass(frozen=True)
class TrialCell:
    """What one variant has in one row."""

    text: str
    level: Level = "same"


@dataclass(frozen=True)
class TrialRow:
    """One thing that each variant says something about."""

    label: str
    cells: tuple[TrialCell, ...]


@dataclass(frozen=True)
class Compared:
    """How one output of a variant is beside the reference's."""

    level: Level
    words: str
    numbers: Numbers = field(default_factory=dict)


@dataclass(frozen=True)
class Block:
    """One output, all variants."""

    output: str
    kind: str
    rows: tuple[TrialRow, ...]
    compared: tuple[Compared, ...]
    """By column; the first is the reference."""


REFERENCE = Compared("reference", "what the others are compared with")


def find_worst(levels: Sequence[Level]) -> Level:
    """Return the worst of some levels; ``reference`` where there are none."""
    return max(levels, key=LEVELS.index, default="reference")

"""Finds the candidates that no other candidate dominates. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class CandidatePoint:
    """What counts of one candidate."""

    number: int
    latency_ns: float
    memory_bytes: int | None
    size_bytes: int
    loss: float | None
    """Its metric, with a sign such that less is better."""
    energy_mj: float | None = None
    """What an inference takes, by the device's own sensor."""


def find_pareto_front(points: Sequence[CandidatePoint]) -> list[int]:
    """Return the numbers of the points that no other dominates, fastest first.

    One dominates another if it is at least as good in everything and better in one thing. A value
    that is unknown for one point counts for none. Of equal points the first stays.
    """
    axes: list[list[float | int | None]] = [
        [point.latency_ns for point in points],
        [point.size_bytes for point in points],
        [point.memory_bytes for point in points],
        [point.loss for point in points],
        [point.energy_mj for point in points],
    ]
    known = [[float(each) for each in axis if each is not None] for axis in axes]
    full = [axis for axis in known if len(axis) == len(points)]
    rows = list(zip(*full, strict=True))
    kept = [
        (point.latency_ns, point.number)
        for index, point in enumerate(points)
        if not any(
            _is_dominating(other, rows[index]) or (other == rows[index] and before < index)
            for before, other in enumerate(rows)
        )
    ]
    return [number for _, number in sorted(kept)]


def _is_dominating(one: Sequence[float], other: Sequence[float]) -> bool:
    return one != other and all(a <= b for a, b in zip(one, other, strict=True))

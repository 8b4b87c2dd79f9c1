"""Which objects of several detections are the same one."""

from __future__ import annotations

from collections.abc import Sequence

from edgepack.metrics.objects import compute_overlap
from edgepack.ondevice.runtime.edgepack_answers import Detection

LEAST_OVERLAP = 0.5
"""Intersection over union from which two boxes are taken for the same object."""

Row = list[Detection | None]
"""One object: what each detection has for it, None where it has nothing."""


def match_detections(detections: Sequence[Sequence[Detection]]) -> list[Row]:
    """Return the objects of several detections, each with what every detection has for it.

    Each detection is compared with the first one; objects that are not in it are compared with
    those that earlier detections added. Boxes of the same class are matched first, then any that
    overlap enough, each time the pair that overlaps most.

    Returns:
        First the objects of the first detection, in its order, then those that others add.
    """
    rows: list[Row] = []
    for column, objects in enumerate(detections):
        left = list(objects)
        for same_class in (True, False):
            left = _take_objects(rows, column, left, same_class=same_class)
        rows += [[*[None] * column, found] for found in left]
        for row in rows:
            row.extend([None] * (column + 1 - len(row)))
    return rows


def _take_objects(
    rows: Sequence[Row], column: int, objects: Sequence[Detection], *, same_class: bool
) -> list[Detection]:
    """Put objects into the rows that they belong to; return those that belong to none."""
    pairs = sorted(
        (
            (-compute_overlap(known.box, found.box), number, index)
            for number, row in enumerate(rows)
            for index, found in enumerate(objects)
            if len(row) == column
            for known in [_find_first(row)]
            if not same_class or known.index == found.index
        ),
    )
    taken: set[int] = set()
    for share, number, index in pairs:
        if -share >= LEAST_OVERLAP and len(rows[number]) == column and index not in taken:
            rows[number].append(objects[index])
            taken.add(index)
    return [found for index, found in enumerate(objects) if index not in taken]


def _find_first(row: Row) -> Detection:
    return next(found for found in row if found is not None)

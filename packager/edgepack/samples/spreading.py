"""Taking some of many samples: neighbours are often alike, of one class or of one recording."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def choose_spread(items: Sequence[T], most: int | None) -> list[T]:
    """Return at most so many of the items, evenly spread over them and in their order.

    The first one is always among them. The same items and number give the same answer.

    Args:
        items: Samples, or their paths or indices.
        most: How many to take; None for all.
    """
    if most is None or most >= len(items):
        return list(items)
    return [items[number * len(items) // most] for number in range(most)]

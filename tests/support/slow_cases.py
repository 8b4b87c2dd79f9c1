"""Cases of one test, of which some run everywhere and the others in CI only."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def slow_after(count: int, cases: Iterable[Any], *, reason: str = "has many cases") -> list[Any]:
    """Mark all cases but the first ``count`` as slow, for ``pytest.mark.parametrize``.

    Name the cases whose proof the others repeat in depth first.
    """
    marked = []
    for number, case in enumerate(cases):
        values = case if isinstance(case, tuple) else (case,)
        marks = [pytest.mark.slow(reason=reason)] if number >= count else []
        marked.append(pytest.param(*values, marks=marks))
    return marked

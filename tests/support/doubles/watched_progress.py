"""A progress that tells a test what is done, in place of showing it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from edgepack.base.progress import Silent, SilentTask, Task, Work


class Watched(Silent):
    """Calls its methods with what any task reports."""

    def ended(self, part: str) -> None:
        """Take in that a part is done."""

    def report(self, part: str, done: int, total: int) -> None:
        """Take in how far a part is."""

    @contextmanager
    def start_task(self, work: Work) -> Iterator[Task]:
        """Give what calls them."""
        del work
        yield _Watching(self)


class _Watching(SilentTask):
    def __init__(self, watched: Watched) -> None:
        self._watched = watched

    def __call__(self, part: str, **how: Any) -> None:
        del how
        self._watched.ended(part)

    def report(self, part: str, done: int, total: int, doing: str = "") -> None:
        del doing
        self._watched.report(part, done, total)

"""Progress on stderr: a bar on a terminal, plain lines otherwise, nothing when quiet."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID


STATUS_EVERY_S = 5.0
"""How often a log has a line about what a task is at."""


class Progress(Protocol):
    """Where long work reports what it has done."""

    @contextmanager
    def task(self, title: str, *, total: int) -> Iterator[Callable[[str], None]]:
        """Give a function to call after each of ``total`` parts, with the part's name."""

    def within(self, part: str, done: int, total: int) -> None:
        """Say how far one part of the running task is; any thread may."""

    def status(self, text: str) -> None:
        """Say what the running task is at; each takes the place of the one before."""

    def note(self, text: str) -> None:
        """Say one line."""


class Silent:
    """No progress: what the library's functions use unless told otherwise."""

    @contextmanager
    def task(self, title: str, *, total: int) -> Iterator[Callable[[str], None]]:
        """Ignore the parts."""
        del title, total
        yield lambda _: None

    def within(self, part: str, done: int, total: int) -> None:
        """Ignore how far a part is."""

    def status(self, text: str) -> None:
        """Ignore what the task is at."""

    def note(self, text: str) -> None:
        """Ignore the line."""


class Lines:
    """One line per part on stderr, for logs and pipes."""

    def __init__(self) -> None:
        self._status_after = 0.0

    @contextmanager
    def task(self, title: str, *, total: int) -> Iterator[Callable[[str], None]]:
        """Write a line for each part."""
        done = 0

        def advance(part: str) -> None:
            nonlocal done
            done += 1
            self.note(f"{title} {done}/{total} {part}")

        yield advance

    def within(self, part: str, done: int, total: int) -> None:
        """Ignore how far a part is: a log wants its end alone."""

    def status(self, text: str) -> None:
        """Write it as a line, but not more often than a log wants it."""
        now = time.monotonic()
        if now >= self._status_after:
            self._status_after = now + STATUS_EVERY_S
            self.note(text)

    def note(self, text: str) -> None:
        """Write one line."""
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


class Bars:
    """Bars on a terminal: one for the task, and one for each part that says how far it is."""

    def __init__(self) -> None:
        self._bars: RichProgress | None = None
        self._parts: dict[str, TaskID] = {}
        self._lock = Lock()

    @contextmanager
    def task(self, title: str, *, total: int) -> Iterator[Callable[[str], None]]:
        """Show one bar with the name of the last part."""
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as RichProgress

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("[dim]{task.fields[part]}"),
        )
        with RichProgress(*columns, console=Console(stderr=True), transient=True) as bars:
            bar = bars.add_task(title, total=total, part="")
            self._bars = bars

            def advance(part: str) -> None:
                with self._lock:
                    if part in self._parts:
                        bars.remove_task(self._parts.pop(part))
                    bars.update(bar, advance=1, part=part)

            try:
                yield advance
            finally:
                with self._lock:
                    self._bars = None
                    self._parts.clear()

    def within(self, part: str, done: int, total: int) -> None:
        """Show or move the part's own bar; it goes when the part is done."""
        with self._lock:
            if self._bars is None:
                return
            if part not in self._parts:
                self._parts[part] = self._bars.add_task(part, total=total, part="")
            self._bars.update(self._parts[part], completed=done)

    def status(self, text: str) -> None:
        """Show it behind the task's bar."""
        with self._lock:
            if self._bars is not None:
                self._bars.update(self._bars.task_ids[0], part=text)

    def note(self, text: str) -> None:
        """Write one line."""
        sys.stderr.write(text + "\n")


def terminal_progress() -> Progress:
    """Return bars where stderr is a terminal, lines otherwise."""
    return Bars() if sys.stderr.isatty() else Lines()

"""Progress on stderr: a bar on a terminal, plain lines otherwise, nothing when quiet."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol


class Progress(Protocol):
    """Where long work reports what it has done."""

    @contextmanager
    def task(self, title: str, *, total: int) -> Iterator[Callable[[str], None]]:
        """Give a function to call after each of ``total`` parts, with the part's name."""

    def note(self, text: str) -> None:
        """Say one line."""


class Silent:
    """No progress: what the library's functions use unless told otherwise."""

    @contextmanager
    def task(self, title: str, *, total: int) -> Iterator[Callable[[str], None]]:
        """Ignore the parts."""
        del title, total
        yield lambda _: None

    def note(self, text: str) -> None:
        """Ignore the line."""


class Lines:
    """One line per part on stderr, for logs and pipes."""

    @contextmanager
    def task(self, title: str, *, total: int) -> Iterator[Callable[[str], None]]:
        """Write a line for each part."""
        done = 0

        def advance(part: str) -> None:
            nonlocal done
            done += 1
            self.note(f"{title} {done}/{total} {part}")

        yield advance

    def note(self, text: str) -> None:
        """Write one line."""
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


class Bars:
    """Bars on a terminal."""

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
            yield lambda part: bars.update(bar, advance=1, part=part)

    def note(self, text: str) -> None:
        """Write one line."""
        sys.stderr.write(text + "\n")


def terminal_progress() -> Progress:
    """Return bars where stderr is a terminal, lines otherwise."""
    return Bars() if sys.stderr.isatty() else Lines()

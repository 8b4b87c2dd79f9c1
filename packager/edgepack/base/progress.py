"""Progress on stderr: a bar on a terminal, plain lines otherwise, nothing when quiet."""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Literal, Protocol, Self

from edgepack.base.pace import Pace, format_time_left
from edgepack.base.terminal import make_printable

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

Unit = Literal["parts", "bytes"]

STATUS_EVERY_S = 5.0
"""Seconds between a log's lines about a task's present step."""
LEFT_EVERY_S = 30.0
"""Seconds between a log's lines about the time left and the progress within a part."""


class Task(Protocol):
    """What reports the parts of one task; any thread may use it."""

    def __call__(self, part: str, *, by: int = 1, kind: str = "", found: str = "") -> None:
        """Report that a part is done, or ``by`` of the units that the task counts.

        Args:
            part: Its name.
            by: How many units.
            kind: The kind of a part that did not begin, because it was done before the task.
            found: What the part found, in words.
        """

    def begin(self, part: str, doing: str = "", kind: str = "") -> None:
        """Report that a part begins.

        Args:
            part: Its name; the part is ended by the same name.
            doing: What is done, in plain words; default: the name.
            kind: One of the task's ``kinds``: the parts of a kind take about as long as each other.
        """

    def report(self, part: str, done: int, total: int, doing: str = "") -> None:
        """Report how far one part is; with ``doing``, ``done`` and ``total`` count that step.

        A total of 0 means unknown.
        """


@dataclass(frozen=True)
class Work:
    """What a task is about to do."""

    title: str
    """What is done."""
    total: int
    """How many parts, or bytes."""
    kinds: Mapping[str, int] | None = None
    """The number of parts of each kind, for an estimate of the time left; parts of no kind take too
    little time to count. With None there is no estimate."""
    at_most: bool = False
    """Whether it may end earlier."""
    finds: bool = False
    """Whether parts find something: a log then reports their end, not their beginning."""
    unit: Unit = "parts"
    """What ``total`` counts."""


class Progress(ABC):
    """Where long work reports what it has done."""

    @abstractmethod
    def start_task(self, work: Work) -> AbstractContextManager[Task]:
        """Return a context in which a task runs, with what reports its parts."""

    @abstractmethod
    def show_status(self, text: str) -> None:
        """Show the running task's present step; each text replaces the one before."""

    @abstractmethod
    def note(self, text: str) -> None:
        """Print one line."""


class SilentTask:
    """Reports nothing."""

    def __call__(self, part: str, *, by: int = 1, kind: str = "", found: str = "") -> None:
        """Ignore it."""

    def begin(self, part: str, doing: str = "", kind: str = "") -> None:
        """Ignore it."""

    def report(self, part: str, done: int, total: int, doing: str = "") -> None:
        """Ignore it."""


class Silent(Progress):
    """Reports no progress: the default of the library's functions."""

    @contextmanager
    def start_task(self, work: Work) -> Iterator[Task]:
        """Ignore the parts."""
        del work
        yield SilentTask()

    def show_status(self, text: str) -> None:
        """Ignore what the task is at."""

    def note(self, text: str) -> None:
        """Ignore the line."""


@dataclass
class _Counted:
    """A task that counts and times its parts; subclasses decide what to show."""

    work: Work
    pace: Pace
    done: int = 0
    doing: dict[str, str] = field(default_factory=dict)
    """By part that runs: what is done, in words."""
    at: dict[str, str] = field(default_factory=dict)
    """By part that runs: its present step."""
    lock: Lock = field(default_factory=Lock)

    @classmethod
    def begin_now(cls, work: Work) -> Self:
        return cls(work, Pace.of(work.kinds or {}, time.monotonic()))

    def __call__(self, part: str, *, by: int = 1, kind: str = "", found: str = "") -> None:
        with self.lock:
            begun = part in self.pace.running
            self.pace.end(part, kind, time.monotonic())
            self.done += by
            self.at.pop(part, None)
            doing = self.doing.pop(part, part)
            if kind and not begun:
                self.show_skipped()
            else:
                self.show_end(f"{doing}: {found}" if found else doing, begun=begun)

    def begin(self, part: str, doing: str = "", kind: str = "") -> None:
        with self.lock:
            self.pace.begin(part, kind, time.monotonic())
            self.doing[part] = doing or part
            self.show_begin(part)

    def report(self, part: str, done: int, total: int, doing: str = "") -> None:
        with self.lock:
            if (running := self.pace.running.get(part)) is None:
                return  # a late word
            running.record(done, total, time.monotonic(), is_whole=not doing)
            self.at[part] = doing
            self.show_move(part)

    def show_begin(self, part: str) -> None:
        """Show that a part began."""

    def show_end(self, text: str, *, begun: bool) -> None:
        """Show that a part ended; ``begun`` says whether it ever began."""

    def show_skipped(self) -> None:
        """Show that a part was done before."""

    def show_move(self, part: str) -> None:
        """Show how far a part is."""

    def format_left(self) -> str:
        """Return how long the whole still takes, in words, or nothing."""
        now = time.monotonic()
        if self.work.unit == "bytes":
            return format_time_left(self._estimate_bytes_left_s(now), at_most=self.work.at_most)
        left = self.pace.estimate_left_s(now) if self.work.kinds is not None else None
        return format_time_left(left, at_most=self.work.at_most)

    def _estimate_bytes_left_s(self, now: float) -> float | None:
        took = now - self.pace.began
        if took < 2.0 or not 0 < self.done < self.work.total:
            return None
        return took * (self.work.total - self.done) / self.done

    def describe_part(self, part: str) -> str:
        """Return in words what a running part does, how far it is, and how long it still takes."""
        running, at = self.pace.running[part], self.at.get(part, "")
        doing, left_s = self.doing.get(part, part), running.estimate_left_s(time.monotonic())
        far = f", {running.done}/{running.total}" if running.total and not at else ""
        left = format_time_left(left_s, at_most=bool(at))
        return f"{doing}{far}{at and f': {at}'}{left and f', {left}'}"


class _LinesTask(_Counted):
    """Writes a line when a part begins, or when it ends if it finds something or never began."""

    named: int = 0
    unsaid: int = 0
    """How many parts were done before and have no line yet."""
    said_left: float = 0.0

    def show_begin(self, part: str) -> None:
        if not self.work.finds:
            self._write_part(self.doing[part])

    def show_end(self, text: str, *, begun: bool) -> None:
        if self.work.unit == "bytes":
            if self._is_due():
                size = f"{self.done / 1e6:.1f} of {self.work.total / 1e6:.1f} MB"
                _write(", ".join(filter(None, [f"{self.work.title}: {size}", self.format_left()])))
        elif self.work.finds or not begun:
            self._write_part(text)

    def show_move(self, part: str) -> None:
        if self._is_due(self.pace.running[part].began):
            _write(self.describe_part(part))

    def show_skipped(self) -> None:
        self.named += 1
        self.unsaid += 1

    def write_skipped(self) -> None:
        """Write one line for the parts that were done before, if there are any."""
        if self.unsaid:
            _write(f"{self.work.title} {self.named}/{self.work.total}  {self.unsaid} done already")
        self.unsaid = 0

    def _write_part(self, text: str) -> None:
        self.write_skipped()
        self.named += 1
        count = f" {self.named}/{self.work.total}  " if self.work.total > 1 else ": "
        left = self.format_left() if self._is_due() else ""
        _write(f"{self.work.title}{count}{text}{left and f' ({left})'}")

    def _is_due(self, began: float = 0.0) -> bool:
        """Return whether a progress line is due: from time to time, not at the beginning."""
        now = time.monotonic()
        if now - max(self.said_left, self.pace.began, began) < LEFT_EVERY_S:
            return False
        self.said_left = now
        return True


class Lines(Progress):
    """One line per part on stderr, for logs and pipes."""

    def __init__(self) -> None:
        self._status_after = 0.0

    @contextmanager
    def start_task(self, work: Work) -> Iterator[Task]:
        """Write a line for each part; for bytes, only from time to time."""
        task = _LinesTask.begin_now(work)
        yield task
        task.write_skipped()

    def show_status(self, text: str) -> None:
        """Write the text as a line, but not more often than a log needs it."""
        now = time.monotonic()
        if now >= self._status_after:
            self._status_after = now + STATUS_EVERY_S
            self.note(text)

    def note(self, text: str) -> None:
        """Write one line."""
        _write(text)


def _write(text: str) -> None:
    sys.stderr.write(make_printable(text) + "\n")
    sys.stderr.flush()


class _BarTask(_Counted):
    """A bar, with a line below it for each part that runs."""

    bars: RichProgress

    def show_skipped(self) -> None:
        self.bars.update(self.bar, completed=self.done)

    @property
    def bar(self) -> TaskID:
        """The only task of rich's display; it must exist before the first drawing."""
        return self.bars.task_ids[0]

    def show_end(self, text: str, *, begun: bool) -> None:
        del begun
        last = "" if self.work.unit == "bytes" else text
        self.bars.update(self.bar, completed=self.done, last=last)

    def list_lines(self) -> list[str]:
        """Return a line for each part that runs, the newest last; if none runs, the last text."""
        with self.lock:
            self.bars.update(self.bar, left=self.format_left())
            running = [self.describe_part(part) for part in self.pace.running]
        return running or [self.bars.tasks[0].fields["last"]]


class Bars(Progress):
    """A bar on a terminal, with a line below it for each part that runs."""

    def __init__(self) -> None:
        self._running: _BarTask | None = None

    @contextmanager
    def start_task(self, work: Work) -> Iterator[Task]:
        """Show one bar."""
        task = _BarTask.begin_now(work)
        with _make_bars(task) as bars:
            task.bars = bars
            bars.add_task(make_printable(work.title), total=work.total, last="", left="")
            self._running = task
            try:
                yield task
            finally:
                self._running = None

    def show_status(self, text: str) -> None:
        """Show the text below the task's bar."""
        if self._running is not None:
            self._running.bars.update(self._running.bar, last=text)

    def note(self, text: str) -> None:
        """Write one line."""
        if self._running is not None:
            # Output that bypasses rich would break the bar.
            self._running.bars.console.print(make_printable(text), markup=False, highlight=False)
        else:
            _write(text)


def _make_bars(task: _BarTask) -> RichProgress:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        TextColumn,
        TimeElapsedColumn,
    )
    from rich.progress import Progress as RichProgress
    from rich.text import Text

    class WithLines(RichProgress):
        def get_renderables(self) -> Iterable[RenderableType]:
            lines = task.list_lines() if self.tasks else []
            yield self.make_tasks_table(self.tasks)
            for line in filter(None, lines):
                yield Text(
                    f"  {make_printable(line)}", style="dim", no_wrap=True, overflow="ellipsis"
                )

    return WithLines(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn() if task.work.unit == "parts" else DownloadColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
        console=Console(stderr=True),
        transient=True,
    )


def make_terminal_progress() -> Progress:
    """Return bars where stderr is a terminal, lines otherwise."""
    return Bars() if sys.stderr.isatty() else Lines()

"""What work on several devices shows: a table on a terminal with a line per device, or lines."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING

from edgepack import api
from edgepack.base.progress import Progress, Task, Work
from edgepack.base.terminal import make_printable
from edgepack.errors import EdgepackError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_FIRST = ("running", "failed", "again", "pending", "waiting", "superseded", "done")
"""Which devices are shown where there are more than lines."""


@dataclass
class DeviceRow:
    """What is shown of one device."""

    device: str
    state: str = "waiting"
    done: str = ""
    tries: int = 0
    said: str = ""

    def take_in(self, news: api.News) -> None:
        """Show what happened."""
        if isinstance(news, api.Start):
            self.state, self.tries = "running", news.number
            return
        self.tries, self.said = news.tries, _format_error(news.error)
        if isinstance(news, api.Retry):
            self.state, self.said = "again", f"{self.said}; again in {news.wait_s:.1f} s"
        elif not (news.state == "done" and not self.done):
            self.state = news.state
        else:  # done without anything done: a newer rollout has something for it
            self.state = "superseded"


def watch(devices: Iterable[str]) -> AbstractContextManager[api.Watcher]:
    """Return who shows work on these devices on stderr."""
    names = list(devices)
    return _live(names) if names and sys.stderr.isatty() else nullcontext(FleetLines(names))


class _Rows:
    """The rows; every thread may change them."""

    def __init__(self, devices: Iterable[str]) -> None:
        self.rows = {name: DeviceRow(name) for name in devices}
        self.lock = Lock()

    def tell(self, news: api.News) -> None:
        """Take in what happened."""
        with self.lock:
            self.rows[news.device].take_in(news)

    def show(self, device: str, text: str) -> None:
        """Show what was done on a device, or how far it is."""
        with self.lock:
            self.rows[device].done = text

    def note(self, device: str, text: str) -> None:
        """Show what somebody has to know, or to do."""
        self.show(device, text)

    def progress(self, device: str) -> Progress:
        """Return where the work on a device reports."""
        return _DeviceProgress(
            lambda text: self.show(device, text), lambda text: self.note(device, text)
        )


class FleetLines(_Rows):
    """A line on stderr when a device is done, a try failed, or somebody has to know something."""

    def tell(self, news: api.News) -> None:
        """Write a line, but not of what only begins."""
        super().tell(news)
        if not isinstance(news, api.Start):
            row = self.rows[news.device]
            said = row.said or row.done
            _write_line(f"{row.device}: {row.state}{said and f': {said}'}")

    def note(self, device: str, text: str) -> None:
        """Write a line."""
        super().note(device, text)
        _write_line(f"{device}: {text}")


class FleetTable(_Rows):
    """A table on a terminal; above it stays, whole, what somebody has to know."""

    def __init__(self, devices: Iterable[str], console: Console) -> None:
        super().__init__(devices)
        self.console = console

    def note(self, device: str, text: str) -> None:
        """Write a line, as a cell would cut it off."""
        from rich.text import Text

        self.console.print(Text(make_printable(f"{device}: {text}")), soft_wrap=True)


def _write_line(text: str) -> None:
    sys.stderr.write(make_printable(text) + "\n")
    sys.stderr.flush()


@contextmanager
def _live(devices: Sequence[str]) -> Iterator[api.Watcher]:
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True)
    rows = FleetTable(devices, console)

    def make_table() -> Table:
        with rows.lock:
            return make_rows_table(list(rows.rows.values()), most=max(1, console.height - 5))

    with Live(get_renderable=make_table, console=console, refresh_per_second=4):
        yield rows


def make_rows_table(rows: Sequence[DeviceRow], *, most: int) -> Table:
    """Return a table with a line per device.

    Args:
        rows: All devices.
        most: How many lines are shown: what runs or failed rather than what is done.
    """
    from rich.table import Table
    from rich.text import Text

    ranked = sorted(rows, key=lambda row: _FIRST.index(row.state))[:most]
    shown = [row for row in rows if row in ranked]
    table = Table("device", "state", "done", "try", "error")
    for column in table.columns:
        column.no_wrap = True
    table.columns[-1].overflow = "ellipsis"
    for row in shown:
        cells = (row.device, row.state, row.done, str(row.tries or ""), row.said)
        table.add_row(*(Text(make_printable(cell)) for cell in cells))
    if len(shown) < len(rows):
        table.caption = f"and {len(rows) - len(shown)} more"
    return table


@dataclass
class _DeviceTask:
    """What is done of a task, as a cell of the table."""

    work: Work
    show: Callable[[str], None]
    done: int = 0

    def __call__(self, part: str, *, by: int = 1, kind: str = "", found: str = "") -> None:
        """Show how much is done."""
        del part, kind, found
        self.done += by
        if self.work.unit == "bytes":
            self.show(f"{self.done / 1e6:.1f} of {self.work.total / 1e6:.1f} MB")
        else:
            self.show(f"{self.work.title} {self.done}/{self.work.total}")

    def begin(self, part: str, doing: str = "", kind: str = "") -> None:
        """Show what is done."""
        del kind
        self.show(doing or part)

    def report(self, part: str, done: int, total: int, doing: str = "") -> None:
        """Show how far a part is."""
        self.show(doing or f"{part} {done * 100 // total if total else 100} %")


class _DeviceProgress(Progress):
    """Progress of the work on a device, as a cell of the table."""

    def __init__(self, show: Callable[[str], None], note: Callable[[str], None]) -> None:
        self._show, self._note = show, note

    @contextmanager
    def start_task(self, work: Work) -> Iterator[Task]:
        """Show how much is done."""
        yield _DeviceTask(work, self._show)

    def show_status(self, text: str) -> None:
        """Show what it is at."""
        self._show(text)

    def note(self, text: str) -> None:
        """Show a line."""
        self._note(text)


def _format_error(error: EdgepackError | None) -> str:
    return error.first_line if error else ""

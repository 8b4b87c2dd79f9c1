"""A results store of 10,000 reports: how long it takes to list them, and to save and load one.

What each is held against is done in the same process in A B B A order: bare ``sqlite3`` on the same
file, and one JSON file for each report, as edgepack had them before.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import fields
from pathlib import Path

from edgepack.base.files import write_atomically
from edgepack.base.statistics import median
from edgepack.records.run import RunReport
from edgepack.results.store.rows import RunRow
from edgepack.results.store.store import ResultsStore, RunFilter

from tests.bench.measuring import EDGEPACK, Row, interleaved, process_seconds, ratio_text, scratch
from tests.support.reports.example_report import varied_reports

REPORTS = 10_000
DIFFERENT = 84
"""The others are copies of these, with other ids and times."""
BATCH = 500
PAIRS = 20
COMMAND_PAIRS = 10


def measure() -> Iterator[Row]:
    """Yield the rows."""
    with scratch() as folder:
        file = folder / "results.sqlite"
        url = f"sqlite:///{file}"
        store = ResultsStore(url)
        some = varied_reports(DIFFERENT)
        filling = seconds(lambda: fill(store, some))
        listing = interleaved(
            lambda: seconds(store.rows), lambda: seconds(lambda: bare(file)), PAIRS
        )
        ours, theirs = (median(side) for side in zip(*listing, strict=True))
        kilobytes = file.stat().st_size / REPORTS / 1e3
        yield Row(
            f"list {REPORTS} reports",
            f"{PAIRS} times",
            f"{ours:.3f} s",
            "under 1 s",
            f"{kilobytes:.1f} kB each, saved in {filling:.0f} s by {BATCH}",
        )
        yield Row(
            f"list {REPORTS} reports / the same by bare sqlite3",
            f"{PAIRS} pairs",
            ratio_text(listing),
            "none",
            f"medians {ours * 1e3:.0f} ms, {theirs * 1e3:.0f} ms",
        )
        yield listing_command(url, f"sqlite:///{folder}/small.sqlite", some)
        yield from beside_files(store, folder / "files", some)


def fill(store: ResultsStore, some: list[RunReport]) -> None:
    """Save all reports, each at a minute of its own."""
    for start in range(0, REPORTS, BATCH):
        store.save(*(renamed(some[n % DIFFERENT], n) for n in range(start, start + BATCH)))


def renamed(report: RunReport, number: int) -> RunReport:
    """Return a report as another one."""
    day, minute = divmod(number, 1440)
    created = f"2026-11-{day + 1:02}T{minute // 60:02}:{minute % 60:02}:00Z"
    return report.model_copy(update={"id": f"run-{number:06}", "created": created})


def bare(file: Path) -> list[tuple[object, ...]]:
    """Read what a list shows without the store."""
    columns = ", ".join(field.name for field in fields(RunRow))
    with closing(sqlite3.connect(file)) as connection:
        return connection.execute(
            f"SELECT {columns} FROM edgepack_runs ORDER BY created, id"
        ).fetchall()


def listing_command(url: str, small: str, some: list[RunReport]) -> Row:
    """Compare the command's time with many reports in the store to that with few."""
    ResultsStore(small).save(*some[:50])

    def listed(which: str) -> Callable[[], float]:
        return lambda: process_seconds([EDGEPACK, "runs", "list", "--results", which])

    pairs = interleaved(listed(url), listed(small), COMMAND_PAIRS)
    many, few = (median(side) for side in zip(*pairs, strict=True))
    return Row(
        f"edgepack runs list with {REPORTS} reports / with 50",
        f"{COMMAND_PAIRS} pairs",
        ratio_text(pairs),
        "none",
        f"medians {many * 1e3:.0f} ms, {few * 1e3:.0f} ms",
    )


def beside_files(store: ResultsStore, folder: Path, some: list[RunReport]) -> Iterator[Row]:
    """Compare saving and loading one report with writing and reading a JSON file."""
    numbers = iter(range(PAIRS * 2))

    def save_one() -> float:
        report = renamed(some[0], REPORTS + next(numbers))
        return seconds(lambda: store.save(report))

    def write_one() -> float:
        path = folder / f"{next(numbers)}.json"
        return seconds(lambda: write_atomically(path, some[0].model_dump_json()))

    def load_one() -> float:
        return seconds(lambda: store.load(newest))

    def read_one() -> float:
        return seconds(lambda: RunReport.model_validate_json(path.read_bytes()))

    saving = interleaved(save_one, write_one, PAIRS)
    newest, path = store.rows(RunFilter(limit=1))[0].id, next(folder.iterdir())
    loading = interleaved(load_one, read_one, PAIRS)
    for what, pairs in (("save", saving), ("load", loading)):
        ours, theirs = (median(side) for side in zip(*pairs, strict=True))
        yield Row(
            f"{what} one report of {REPORTS} / as a JSON file",
            f"{PAIRS} pairs",
            ratio_text(pairs),
            "none",
            f"medians {ours * 1e3:.1f} ms, {theirs * 1e3:.1f} ms",
        )


def seconds(work: Callable[[], object]) -> float:
    """Return how long something takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started

"""The results store: every report whole, and in short, in a database."""

from __future__ import annotations

import difflib
import os
import shlex
import tempfile
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from edgepack.base.clock import format_time
from edgepack.base.files import write_atomically, writing
from edgepack.base.team import TRY_VARIABLE
from edgepack.errors import BundleError, ToolError, UsageError
from edgepack.results.store.documents import Kind, Report, parse_report, read_documents
from edgepack.results.store.rows import RunRow, make_row

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Connection

AT_ONCE = 500
"""Rows in one statement: databases limit its parameters."""
NEAREST_AMONG = 1000
"""How many of the newest reports' ids are compared with one that is not there."""
GROUP = ("kind", "project", "target", "device", "variant")
"""The fields by which reports are grouped; the newest of each group are kept."""


@dataclass(frozen=True)
class RunFilter:
    """Which reports are wanted: those that have every value that is given here."""

    kind: Kind | None = None
    project: str | None = None
    target: str | None = None
    device: str | None = None
    device_model: str | None = None
    variant: str | None = None
    runtime: str | None = None
    verdict: str | None = None
    since: datetime | None = None
    """With its time zone."""
    limit: int | None = None
    """How many reports at most, the newest."""


class ResultsStore:
    """A database of reports. Several processes may use one at once.

    Args:
        url: As SQLAlchemy has it. Default: the environment's ``EDGEPACK_RESULTS``, else
            ``results.sqlite`` in the user's data directory.

    Tables are made when a store is opened that has none.

    Raises:
        UsageError: The URL names no database that can be used.
        ToolError: The database's driver is missing, or it cannot be reached or written; so do all
            methods.
        BundleError: The database is corrupt, or of another version. It is left as it is.
    """

    def __init__(self, url: str | None = None) -> None:
        from edgepack.results.store.database import open_database

        self._database = open_database(url)

    def __repr__(self) -> str:
        return f"ResultsStore({self.name!r})"

    @property
    def name(self) -> str:
        """The URL, without its password."""
        return self._database.name

    def save(self, *reports: Report) -> None:
        """Keep reports, all or none of them; one with the same id is replaced.

        Raises:
            ToolError: This process is a try of a job that was given up, and done again by another.
        """
        self._write([(report, report.model_dump_json().encode()) for report in reports])

    def add(self, paths: Sequence[Path]) -> list[Report]:
        """Keep the reports of JSON files as they are, all or none of them, and return them.

        Raises:
            BundleError: One cannot be read, or of another schema version.
        """
        raws = [(raw, str(path)) for path in paths for raw in read_documents(path)]
        reports = [parse_report(raw, where) for raw, where in raws]
        self._write(zip(reports, [raw for raw, _ in raws], strict=True))
        return reports

    def load(self, report_id: str) -> Report:
        """Return one report by its id.

        Raises:
            UsageError: There is no such report.
            BundleError: It is broken, or of another schema version.
        """
        return self.load_all([report_id])[0]

    def load_all(self, report_ids: Sequence[str]) -> list[Report]:
        """Return reports by their ids, in the same order and each once.

        Raises:
            UsageError: One of them is not there.
            BundleError: One of them is broken, or of another schema version.
        """
        return [self._parse_report(one, raw) for one, raw in self.documents(report_ids).items()]

    def documents(self, report_ids: Sequence[str]) -> dict[str, bytes]:
        """Return the JSON of reports by their ids, in the same order and as it was kept.

        Raises:
            UsageError: One of them is not there.
            BundleError: One of them is broken.
        """
        from sqlalchemy import select

        from edgepack.results.store.schema import documents

        found: dict[str, bytes] = {}
        with self._database.reading() as connection:
            for some in _split_batches(report_ids):
                wanted = select(documents.c.id, documents.c.json).where(documents.c.id.in_(some))
                found |= {row.id: row.json for row in connection.execute(wanted)}
        missing = [one for one in report_ids if one not in found]
        if missing:
            raise UsageError(
                f"there is no report {missing[0]!r}", hint=self._format_near(missing[0])
            )
        return {one: self._unpack_report(one, found[one]) for one in report_ids}

    def rows(self, wanted: RunFilter | None = None) -> list[RunRow]:
        """Return what is kept, in short and oldest first, without reading the reports."""
        from sqlalchemy import select

        from edgepack.results.store.schema import runs

        wanted = wanted or RunFilter()
        columns = [runs.c[field.name] for field in fields(RunRow)]
        query = (
            select(*columns)
            .where(*_make_conditions(wanted))
            .order_by(runs.c.created.desc(), runs.c.id.desc())
            .limit(wanted.limit)
        )
        with self._database.reading() as connection:
            found = [RunRow(*values) for values in connection.execute(query)]
        return found[::-1]

    def prune(
        self, keep: int, project: str | None = None, *, dry_run: bool = False
    ) -> list[RunRow]:
        """Delete all but the newest reports of each variant, device, target and project.

        Args:
            keep: How many stay of each kind of report.
            project: Only of this one.
            dry_run: Delete nothing, and only return what would be deleted.

        Returns:
            What is deleted, oldest first.
        """
        from sqlalchemy import func, select

        from edgepack.results.store.schema import runs

        newest_first = runs.c.created.desc(), runs.c.id.desc()
        place = func.row_number().over(
            partition_by=[runs.c[name] for name in GROUP], order_by=newest_first
        )
        ranked = (
            select(runs, place.label("place"))
            .where(*_make_conditions(RunFilter(project=project)))
            .subquery()
        )
        columns = [ranked.c[field.name] for field in fields(RunRow)]
        surplus = select(*columns).where(ranked.c.place > keep).order_by("created", "id")
        with self._database.writing() as connection:
            going = [RunRow(*values) for values in connection.execute(surplus)]
            if not dry_run:
                _delete(connection, [row.id for row in going])
        return going

    def _write(self, reports: Iterable[tuple[Report, bytes]]) -> None:
        """Write reports, in one transaction."""
        # Of several with one id, the last.
        kept = {report.id: (make_row(report), zlib.compress(raw)) for report, raw in reports}
        with self._database.writing() as connection:
            _delete(connection, list(kept))
            _insert(connection, kept.values())
            if TRY_VARIABLE in os.environ and kept:
                from edgepack.base.job_tables import record_runs

                record_runs(connection, list(kept))

    def _parse_report(self, report_id: str, raw: bytes) -> Report:
        return parse_report(raw, f"{report_id} in {self.name}", _format_remedy(report_id))

    def _unpack_report(self, report_id: str, packed: bytes) -> bytes:
        try:
            return zlib.decompress(packed)
        except zlib.error as error:
            raise BundleError(
                f"the report cannot be read: {error}",
                hint=_format_remedy(report_id),
                where=f"{report_id} in {self.name}",
            ) from error

    def _format_near(self, report_id: str) -> str:
        ids = [row.id for row in self.rows(RunFilter(limit=NEAREST_AMONG))]
        close = difflib.get_close_matches(report_id, ids, n=1)
        return f"did you mean {close[0]!r}?" if close else "list them: edgepack runs list"


def keep_report(store: ResultsStore, report: Report) -> None:
    """Save a report; if the store does not take it, write it to a file, so that it is not lost.

    Raises:
        ToolError: It is not in the store, but in the file that the message names.
    """
    try:
        store.save(report)
    except (BundleError, ToolError) as error:
        path = _write_aside(report)
        raise ToolError(
            f"{error.problem}; the report was written to {path}",
            hint=f"{error.hint}; then: edgepack runs import {shlex.quote(str(path))}",
            where=error.where,
        ) from error


def _write_aside(report: Report) -> Path:
    """Write a report to a file of the user's, or where that cannot be, to a temporary one."""
    from edgepack.results.store.database import find_default_file

    text, name = report.model_dump_json() + "\n", f"{report.id}.json"
    path = find_default_file().with_name("unsaved") / name
    try:
        write_atomically(path, text)
    except OSError:
        path = Path(tempfile.gettempdir()) / name
        with writing("the report", path):
            write_atomically(path, text)
    return path


def _insert(connection: Connection, kept: Collection[tuple[RunRow, bytes]]) -> None:
    """Write reports; the database has none of their ids."""
    from edgepack.results.store.schema import documents, runs

    if kept:  # without any values, a statement would be for all defaults
        connection.execute(runs.insert(), [asdict(row) for row, _ in kept])
        packed = [{"id": row.id, "json": document} for row, document in kept]
        connection.execute(documents.insert(), packed)


def _delete(connection: Connection, report_ids: Sequence[str]) -> None:
    from edgepack.results.store.schema import documents, runs

    for some in _split_batches(report_ids):
        for table in (documents, runs):  # the one refers to the other
            connection.execute(table.delete().where(table.c.id.in_(some)))


def _split_batches(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    return (ids[start : start + AT_ONCE] for start in range(0, len(ids), AT_ONCE))


def _make_conditions(wanted: RunFilter) -> list[ColumnElement[bool]]:
    from edgepack.results.store.schema import runs

    asked = {name: value for name, value in asdict(wanted).items() if value is not None}
    asked.pop("limit", None)
    since = asked.pop("since", None)
    conditions = [runs.c[name] == value for name, value in asked.items()]
    return [*conditions, runs.c.created >= format_time(since)] if since else conditions


def _format_remedy(report_id: str) -> str:
    return f"measure again with edgepack bench; in runs list {report_id} stays until runs prune"

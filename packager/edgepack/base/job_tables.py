"""The table of a team's jobs, in its database, and which try of a job this process is.

It has a version of its own, so that a database that a team has already gets it.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import (
    Boolean,
    Column,
    DateTime,
    Identity,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    func,
    select,
)
from sqlalchemy.dialects.postgresql import ARRAY, insert

from edgepack.base.database import Database, Tables, open_database
from edgepack.base.team import TRY_VARIABLE, VARIABLE, is_in_team
from edgepack.errors import ToolError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

VERSION = 1

metadata = MetaData()

jobs = Table(
    "edgepack_jobs",
    metadata,
    Column("id", Integer, Identity(always=True), primary_key=True),
    Column("words", ARRAY(String), nullable=False),
    Column("devices", ARRAY(String), nullable=False),
    Column("folder", String, nullable=False),
    Column("bundles", ARRAY(String), nullable=False),
    Column("digests", ARRAY(String), nullable=False),
    Column("owner", String, nullable=False),
    Column("state", String, nullable=False, server_default="waiting"),
    Column("attempt", Integer, nullable=False, server_default="0"),
    Column("tries", Integer, nullable=False),
    Column("tries_left", Integer, nullable=False),
    Column("added", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Column("not_before", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Column("started", DateTime(timezone=True)),
    Column("held_until", DateTime(timezone=True)),
    Column("ended", DateTime(timezone=True)),
    Column("worker", String, nullable=False, server_default=""),
    Column("stopping", Boolean, nullable=False, server_default="false"),
    Column("exit_code", Integer),
    Column("output", String, nullable=False, server_default=""),
    Column("note", String, nullable=False, server_default=""),
)
"""``words`` is the command line behind ``edgepack``, ``devices`` what it needs for itself,
``folder`` where it runs. ``attempt`` counts how often it was taken up and is never set back, so
that whoever has lost a job changes nothing of it any more. ``held_until`` is when others may take
it up, unless its worker says that it lives; ``note`` is why it waits or has failed, where
``output`` does not say so. All times are the database's own."""

Index("edgepack_jobs_open", jobs.c.id, postgresql_where=jobs.c.state.in_(("waiting", "running")))

runs = Table(
    "edgepack_job_runs",
    metadata,
    Column("job", Integer, primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("run", String, primary_key=True),
)
"""Which reports of the results store a job has measured, and in which of its attempts."""

versions = Table("edgepack_jobs_version", metadata, Column("version", Integer, nullable=False))

TABLES = Tables("the team's jobs", metadata, versions, VERSION, lock=0x6564676A)


def open_job_database() -> Database:
    """Open the team's database, and make the tables of jobs where it has none; once in a process.

    Raises:
        UsageError: The environment names no database of a team.
        ToolError: The database's driver is missing, or it cannot be reached or written.
        BundleError: Its tables are of another version.
    """
    if not is_in_team():
        raise UsageError(
            "jobs lie in a team's database, and none is named",
            hint=f"export {VARIABLE}=postgresql://USER@HOST/NAME (docs/jobs.md)",
            where=VARIABLE,
        )
    return _open(os.environ[VARIABLE])


@cache
def _open(url: str) -> Database:
    return open_database(url, TABLES, VARIABLE, own=Path())


def record_runs(connection: Connection, run_ids: Sequence[str]) -> None:
    """Record that the job's try that this process is has measured reports.

    It belongs into the transaction that stores them. Until that ends nobody else takes up the job.

    Raises:
        ToolError: The try was given up, and another worker may do the job again: the report must
            not be stored beside that one's.
    """
    job, _, attempt = os.environ[TRY_VARIABLE].partition(".")
    held = select(jobs.c.id).where(
        jobs.c.id == int(job), jobs.c.attempt == int(attempt), jobs.c.state == "running"
    )
    if connection.execute(held.with_for_update(read=True)).first() is None:
        raise ToolError(
            f"job {job} was given to another worker, as this one was not heard of",
            hint=f"edgepack jobs show {job}",
        )
    made = [{"job": int(job), "attempt": int(attempt), "run": run} for run in run_ids]
    connection.execute(insert(runs).on_conflict_do_nothing(), made)  # one may be stored again

"""The tables that a team shares beside the results, in the same database."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from sqlalchemy import DDL, Column, Identity, Integer, MetaData, String, Table, event

from edgepack.base.database import Database, Tables, open_database
from edgepack.base.team import VARIABLE

VERSION = 1

metadata = MetaData()

audit = Table(
    "edgepack_audit",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("line", String, nullable=False),
    Column("waited", String, unique=True),
)
"""The audit log: JSON lines without their ends, each with the hash of the one before. ``waited`` is
the SHA-256 of the line in a machine's own file, where the record waited for this database."""

rollouts = Table(
    "edgepack_rollouts",
    metadata,
    Column("id", Integer, Identity(always=True), primary_key=True),
    Column("document", String),
    Column("stopped", String),
    Column("holder", String),
)
"""``document`` is a rollout's JSON; null until it is stored. ``stopped`` is why nothing more of it
may start, ``holder`` who worked on it last."""

devices = Table(
    "edgepack_devices",
    metadata,
    Column("name", String, primary_key=True),
    Column("entry", String, nullable=False),
)
"""Devices, each with the JSON of its entry."""

versions = Table("edgepack_team_version", metadata, Column("version", Integer, nullable=False))

event.listen(
    audit,
    "after_create",
    DDL(  # type: ignore[no-untyped-call]
        """
CREATE FUNCTION edgepack_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'the audit log is only appended to'; END $$;
CREATE TRIGGER edgepack_audit_is_appended_to BEFORE UPDATE OR DELETE OR TRUNCATE ON edgepack_audit
FOR EACH STATEMENT EXECUTE FUNCTION edgepack_refuse_change();
"""
    ),
)

TABLES = Tables("the team's database", metadata, versions, VERSION, lock=0x65646774)


def open_team_database() -> Database:
    """Open the team's database, and make its tables where it has none; once in a process.

    Raises:
        UsageError: The URL names no database that can be used.
        ToolError: The database's driver is missing, or it cannot be reached or written: that is
            known after ten seconds.
        BundleError: Its tables are of another version.
    """
    return _open(os.environ[VARIABLE])


@cache
def _open(url: str) -> Database:
    return open_database(url, TABLES, VARIABLE, own=Path())

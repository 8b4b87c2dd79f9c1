"""A team's audit log: one chain of lines in its database, which is appended to under a lock.

A machine that cannot reach the database writes its records into its own file, ``audit.jsonl``. What
lies there is taken into the team's log before the next record, with its own time, user and host;
so is what a machine had recorded before it joined the team. The file stays as it is.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from sqlalchemy import select

from edgepack.base.team_tables import audit as table
from edgepack.base.team_tables import open_team_database
from edgepack.deploy import audit_lines
from edgepack.deploy.audit_lines import Event, Record, compute_digest, make_record, parse_record

if TYPE_CHECKING:
    from sqlalchemy import Connection


def append_record(event: Event) -> Record:
    """Append what was done, after what waits, and return the record when it is kept.

    Raises:
        ToolError: The database cannot be reached or written; nothing was appended.
    """
    with open_team_database().writing() as connection:
        _take_in_waiting(connection)
        number, previous = _find_end(connection)
        made = make_record(event, previous)
        _append(connection, number + 1, made)
    return made


def take_in_waiting() -> None:
    """Append what waits in this machine's file.

    Raises:
        ToolError: The database cannot be reached or written.
    """
    with open_team_database().writing() as connection:
        _take_in_waiting(connection)


def read_lines() -> tuple[list[bytes], str]:
    """Return the log's lines, each with its end, and where they lie.

    Raises:
        ToolError: The database cannot be reached.
    """
    take_in_waiting()
    database = open_team_database()
    with database.reading() as connection:
        found = connection.execute(select(table.c.line).order_by(table.c.number)).scalars()
        return [_end_line(line) for line in found], database.name


def _take_in_waiting(connection: Connection) -> None:
    lines = audit_lines.read_lines(audit_lines.find_audit_log())
    last = next((line for line in reversed(lines) if parse_record(line)), None)
    if last is None:
        return
    newest = select(table.c.waited).where(table.c.waited == compute_digest(last))
    if connection.execute(newest).first():  # all were taken in at once, so those before it too
        return
    taken = select(table.c.waited).where(table.c.waited.is_not(None))
    there = set(connection.execute(taken).scalars())
    number, previous = _find_end(connection)
    for line in lines:
        one, digest = parse_record(line), compute_digest(line)
        if one is not None and digest not in there:
            number += 1
            made = one.model_copy(update={"previous": previous, "waited": digest})
            previous = compute_digest(_append(connection, number, made))


def _find_end(connection: Connection) -> tuple[int, str]:
    """Return the last line's number and digest."""
    newest = select(table.c.number, table.c.line).order_by(table.c.number.desc()).limit(1)
    last = connection.execute(newest).first()
    return (last.number, compute_digest(_end_line(last.line))) if last else (0, "")


def _append(connection: Connection, number: int, made: Record) -> bytes:
    line = json.dumps(made.model_dump())
    connection.execute(table.insert().values(number=number, line=line, waited=made.waited))
    return _end_line(line)


def _end_line(line: str) -> bytes:
    return line.encode() + b"\n"

"""Stores a team's rollouts in its database: a row each, locked by whoever works on it.

The lock is an advisory one of PostgreSQL's, on a connection of its own that lasts as long: it ends
with the process, however that ends. What is stored of a rollout meanwhile goes through the same
connection, so that who has lost the lock stores nothing any more.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import func, select
from sqlalchemy.exc import DBAPIError

from edgepack.base.files import parse_model
from edgepack.base.machine import find_own_name
from edgepack.base.team_tables import open_team_database
from edgepack.base.team_tables import rollouts as table
from edgepack.deploy.fleet.store import (
    PUSH_AGAIN,
    SCHEMA_VERSION,
    Rollout,
    RolloutStore,
    format_rollout,
    make_held_error,
)
from edgepack.errors import BundleError, ToolError

if TYPE_CHECKING:
    from sqlalchemy import Connection

LOCKS = 0x65646772
"""The first number of the advisory locks; the second is the rollout's."""


class TeamRolloutStore(RolloutStore):
    """The rollouts of a team.

    Raises:
        EdgepackError: As :func:`edgepack.base.team_tables.open_team_database` does.
    """

    def __init__(self) -> None:
        super().__init__(Path())
        self._database = open_team_database()
        self._held: dict[int, Connection] = {}

    @property
    def name(self) -> str:
        """The database's URL, without its password."""
        return self._database.name

    def save(self, rollout: Rollout) -> None:
        """Write a rollout; through the connection that holds its lock, where this store does.

        Raises:
            ToolError: The database cannot be written to, or the lock was lost with its connection.
        """
        held = self._held.get(rollout.id)
        if held is not None and held.invalidated:  # or SQLAlchemy would connect again, unlocked
            raise ToolError(
                f"the lock of rollout {rollout.id} was lost with the connection to the database",
                hint=f"edgepack rollout resume {rollout.id}",
                where=self.name,
            )
        changed = table.update().where(table.c.id == rollout.id)
        with (
            self._database.explaining_errors(),
            nullcontext(held) if held else self._database.engine.connect() as connection,
        ):
            connection.execute(changed.values(document=format_rollout(rollout)))
            connection.commit()

    @contextmanager
    def lock(self, number: int) -> Iterator[None]:
        """Lock a rollout, so that only this process works on it, of all machines.

        Raises:
            BusyError: Somebody else holds it.
            ToolError: The database cannot be reached.
        """
        database, row = self._database, table.c.id == number
        with database.explaining_errors(), database.engine.connect() as connection:
            if not connection.execute(select(func.pg_try_advisory_lock(LOCKS, number))).scalar():
                holder = connection.execute(select(table.c.holder).where(row)).scalar()
                raise make_held_error(number, holder or "somebody")
            me = f"{find_own_name()}, process {os.getpid()}"
            connection.execute(table.update().where(row).values(holder=me))
            connection.commit()
            self._held[number] = connection
            try:
                yield
            finally:
                del self._held[number]
                if not connection.invalidated:  # else the lock is gone with it
                    connection.rollback()
                    with suppress(DBAPIError):
                        connection.execute(select(func.pg_advisory_unlock(LOCKS, number)))

    def stop(self, number: int, reason: str) -> None:
        """Stop a rollout: nothing more starts, also where somebody works on it now.

        Raises:
            ToolError: The database cannot be written to.
        """
        changed = table.update().where(table.c.id == number, table.c.stopped.is_(None))
        with self._database.explaining_errors(), self._database.engine.begin() as connection:
            connection.execute(changed.values(stopped=reason or "it was stopped"))

    def read_stop_reason(self, number: int) -> str:
        """Return why nothing more of a rollout is started; empty if it is not stopped."""
        with self._database.reading() as connection:
            found = connection.execute(select(table.c.stopped).where(table.c.id == number))
            return found.scalar() or ""

    @contextmanager
    def _numbering(self) -> Iterator[int]:
        made = table.insert().values(document=None).returning(table.c.id)
        with self._database.explaining_errors(), self._database.engine.begin() as connection:
            number = connection.execute(made).scalar_one()
        yield number

    def _list_ids(self) -> list[int]:
        there = select(table.c.id).where(table.c.document.is_not(None)).order_by(table.c.id)
        with self._database.reading() as connection:
            return list(connection.execute(there).scalars())

    def _read_each(self, first: int = 0) -> Iterator[Rollout | BundleError]:
        there = select(table).where(table.c.document.is_not(None), table.c.id >= first)
        with self._database.reading() as connection:
            rows = connection.execute(there.order_by(table.c.id.desc())).all()
        for row in rows:
            try:
                rollout = parse_model(
                    row.document.encode(),
                    Rollout,
                    version=SCHEMA_VERSION,
                    what="the rollout",
                    remedy=PUSH_AGAIN,
                    where=f"rollout {row.id} in {self.name}",
                )
            except BundleError as error:
                yield error
            else:
                yield rollout.model_copy(update={"stopped": row.stopped or ""})

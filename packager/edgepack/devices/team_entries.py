"""The devices of a team in its database: by name, the JSON of each entry."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError

from edgepack.base.team_tables import devices as table
from edgepack.base.team_tables import open_team_database
from edgepack.errors import UsageError


def read_entries() -> dict[str, str]:
    """Return the JSON of each device's entry.

    Raises:
        ToolError: The database cannot be reached.
    """
    with open_team_database().reading() as connection:
        found = connection.execute(select(table.c.name, table.c.entry).order_by(table.c.name))
        return {row.name: row.entry for row in found}


def write_entry(name: str, entry: str) -> None:
    """Write one more device's entry.

    Raises:
        UsageError: The name is taken.
        ToolError: The database cannot be written.
    """
    with open_team_database().writing() as connection:
        try:
            connection.execute(table.insert().values(name=name, entry=entry))
        except IntegrityError:
            raise make_taken_error(name) from None


def remove_entry(name: str) -> bool:
    """Remove a device's entry, and return whether there was one.

    Raises:
        ToolError: The database cannot be written.
    """
    with open_team_database().writing() as connection:
        gone = connection.execute(table.delete().where(table.c.name == name))
        return gone.rowcount > 0


def make_taken_error(name: str) -> UsageError:
    """Return the error for a name that the team has already."""
    return UsageError(
        f"the team already has a device {name!r}",
        hint=f"choose another name, or take that one away: edgepack device remove {name}",
    )

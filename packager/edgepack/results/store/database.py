"""The database of the results store."""

from __future__ import annotations

import os
from pathlib import Path

from sqlalchemy import URL

from edgepack.base import database
from edgepack.base.database import Database
from edgepack.base.team import VARIABLE
from edgepack.results.store.schema import TABLES


def find_default_file() -> Path:
    """Return the file of the user's own store, which need not exist yet."""
    import platformdirs

    return platformdirs.user_data_path("edgepack") / "results.sqlite"


def open_database(url: str | None) -> Database:
    """Open the store's database, and make its tables where it has none.

    Args:
        url: As SQLAlchemy has it; None stands for the environment's ``EDGEPACK_RESULTS``, and
            where that is not set for SQLite's :func:`find_default_file`.

    Raises:
        EdgepackError: As :func:`edgepack.base.database.open_database` does.
    """
    own = find_default_file()
    asked = url or os.environ.get(VARIABLE) or URL.create("sqlite", database=str(own))
    return database.open_database(asked, TABLES, "--results" if url else VARIABLE, own=own)

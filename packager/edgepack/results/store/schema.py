"""The tables of the results store."""

from __future__ import annotations

from typing import Any, get_args, get_type_hints

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
)

from edgepack.base.database import Tables
from edgepack.results.store.rows import RunRow

VERSION = 1
"""The version of these tables; a store has it in ``edgepack_version``, and one of another is
refused."""
_TYPES = {int: BigInteger, float: Double, bool: Boolean}
"""The column types of a row's fields; all others are texts."""
_INDEXED = ("created",)

metadata = MetaData()


def _make_columns() -> list[Column[Any]]:
    """Return a column for each field of a row; only a field that may be None may be null."""
    columns: list[Column[Any]] = []
    for name, hint in get_type_hints(RunRow).items():
        kinds = get_args(hint) or (hint,)
        column_type = next((_TYPES[kind] for kind in kinds if kind in _TYPES), String)
        columns.append(
            Column(
                name,
                column_type,
                primary_key=name == "id",
                nullable=type(None) in kinds,
                index=name in _INDEXED,
            )
        )
    return columns


runs = Table("edgepack_runs", metadata, *_make_columns())
"""A :class:`~edgepack.results.store.rows.RunRow` each."""

documents = Table(
    "edgepack_documents",
    metadata,
    Column("id", String, ForeignKey("edgepack_runs.id"), primary_key=True),
    Column("json", LargeBinary, nullable=False),
)
"""Each report's JSON as it was made, compressed with zlib; apart, so that listing is quick."""

versions = Table("edgepack_version", metadata, Column("version", Integer, nullable=False))
"""One row: the version of the tables."""

TABLES = Tables("the results store", metadata, versions, VERSION, lock=0x65646765)

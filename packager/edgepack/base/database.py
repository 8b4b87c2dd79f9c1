"""Databases that edgepack keeps things in: URL, transactions, version of the tables, errors."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from sqlalchemy import (
    URL,
    Connection,
    Engine,
    MetaData,
    NullPool,
    Table,
    create_engine,
    event,
    inspect,
    make_url,
    select,
    text,
)
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, OperationalError

from edgepack.base.files import writing
from edgepack.base.team import VARIABLE
from edgepack.errors import BundleError, DatabaseError, EdgepackError, ToolError, UsageError

WAIT_S = 60
"""How long a process waits while another one writes."""
CONNECTING = {"connect_timeout": 10, "tcp_user_timeout": 30_000, "keepalives_idle": 30}
"""How long PostgreSQL's client waits for a server that does not answer: seconds to connect, and
milliseconds and seconds on a connection. The URL may say otherwise."""
EXAMPLES = "sqlite:////home/me/results.sqlite, postgresql://me@host/results"
DRIVERS = dict.fromkeys(("postgres", "postgresql"), "postgresql+psycopg")
"""The driver for URLs that name none."""
PACKAGES = {"psycopg": "'edgepack[postgres]'"}
"""What brings a driver, where its own name does not."""
CORRUPT = ("SQLITE_CORRUPT", "SQLITE_NOTADB")
NOT_AS_MADE = ("SQLITE_ERROR", "")
"""SQLite's error names where a table lacks what its version has, or a text is not valid."""


@dataclass(frozen=True)
class Tables:
    """Tables that belong together and have one version."""

    what: str
    """What they are, in words: ``the results store``."""
    metadata: MetaData
    versions: Table
    """The one with a single row, the version."""
    version: int
    lock: int
    """The number of the PostgreSQL advisory lock that each writer takes."""


@dataclass(frozen=True)
class Database:
    """A database whose tables are this version's. No password is in its text or its errors."""

    engine: Engine
    tables: Tables
    name: str
    """Its URL, without what is secret."""
    file: Path | None
    """Where it lies, if it is SQLite's."""
    password: str

    def __repr__(self) -> str:
        return f"Database({self.name!r})"

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Give a connection for reading; in SQLite it sees one state of the database.

        Raises:
            ToolError: The database cannot be reached or used.
            BundleError: It is corrupt.
        """
        with self.explaining_errors(), self.engine.connect() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Give a connection; when the block ends, all that it wrote is kept, or nothing.

        One process writes at a time, so that two that replace the same report both succeed.

        Raises:
            ToolError: The database cannot be reached or written.
            BundleError: It is corrupt.
        """
        engine = self.engine.execution_options(edgepack_writes=True)
        with self.explaining_errors(), engine.begin() as connection:
            if engine.dialect.name == "postgresql":
                connection.execute(text(f"SET LOCAL lock_timeout = '{WAIT_S}s'"))
                connection.execute(text(f"SELECT pg_advisory_xact_lock({self.tables.lock})"))
            yield connection

    @contextmanager
    def explaining_errors(self) -> Iterator[None]:
        """Turn the errors of a connection into edgepack's.

        Raises:
            ToolError: The database cannot be reached or used.
            BundleError: It is corrupt.
        """
        try:
            yield
        except DBAPIError as error:
            raise self._explain_error(error) from None
        except UnicodeDecodeError as error:  # of SQLite's message, which cites what it cannot read
            raise self._make_corrupt_error(str(error)) from None

    def _explain_error(self, error: DBAPIError) -> EdgepackError:
        said = str(error.orig).strip()
        if self.password:
            said = said.replace(self.password, "***")
        code = getattr(error.orig, "sqlite_errorname", "")
        if code.startswith(CORRUPT) or (self.file and code in NOT_AS_MADE):
            return self._make_corrupt_error(said)
        kind = DatabaseError if isinstance(error, OperationalError) else ToolError
        return kind(
            f"{self.tables.what} cannot be used: {said}",
            hint=self._find_remedy(code),
            where=self.name,
        )

    def _make_corrupt_error(self, said: str) -> BundleError:
        file, away = (shlex.quote(f"{self.file}{end}") for end in ("", ".broken"))
        return BundleError(
            f"{self.tables.what} is corrupt: {said}",
            hint=f"it is left as it is; move it away: mv {file} {away}"
            f" (what can be saved of it: sqlite3 {away} .recover)",
            where=self.name,
        )

    def _find_remedy(self, code: str) -> str:
        if code.startswith("SQLITE_BUSY"):
            return f"another process has been writing for {WAIT_S} s; wait for it, or end it"
        if self.file:
            return (
                "free some space, and see that you may write the file and its folder;"
                f" or name another store: {VARIABLE}=sqlite:////tmp/results.sqlite"
            )
        return (
            f"check the server, and the URL of --results or {VARIABLE};"
            f" a writer waits {WAIT_S} s for others"
        )


def open_database(url: str | URL, tables: Tables, where: str, *, own: Path) -> Database:
    """Open a database, and make its tables where it has none.

    Args:
        url: As SQLAlchemy has it.
        tables: Those that it has or gets.
        where: Where the URL comes from, for errors.
        own: SQLite's file of the user's own, whose folder is made.

    Raises:
        UsageError: The URL names no database that can be used.
        ToolError: The database's driver is missing, or it cannot be reached or written.
        BundleError: It is corrupt, or of another version; then it is left as it is.
    """
    found = _parse_url(url, where)
    if found == URL.create("sqlite", database=str(own)):
        with writing(tables.what, own):
            own.parent.mkdir(parents=True, exist_ok=True)
    file = _find_file(found, where)
    hidden = found.password or found.query.get("password", "")
    database = Database(
        engine=_make_engine(found, where),
        tables=tables,
        name=_format_url(found),
        file=file,
        password=str(hidden),
    )
    make_tables(database)
    return database


def _parse_url(url: str | URL, where: str) -> URL:
    try:
        found = make_url(url)
    except (ArgumentError, ValueError):
        _refuse("this is no URL of a database", where)  # the text may have a password in it
    if found.drivername in DRIVERS:
        found = found.set(drivername=DRIVERS[found.drivername])
    return found


def _format_url(url: URL) -> str:
    open_options = {name: value for name, value in url.query.items() if "pass" not in name}
    return url.set(query=open_options).render_as_string(hide_password=True)


def _find_file(url: URL, where: str) -> Path | None:
    if url.get_backend_name() != "sqlite":
        return None
    if not url.database or url.database == ":memory:":
        _refuse("a database in memory keeps nothing", where)
    path = Path(url.database).absolute()
    if not path.parent.is_dir():
        _refuse(f"there is no folder {path.parent}", where)
    return path


def _refuse(problem: str, where: str) -> NoReturn:
    raise UsageError(problem, hint=f"give one such as {EXAMPLES}", where=where) from None


def _make_engine(url: URL, where: str) -> Engine:
    try:
        if url.get_backend_name() != "sqlite":
            waits = {k: v for k, v in CONNECTING.items() if k not in url.query}
            waits = waits if url.drivername == DRIVERS["postgresql"] else {}
            return create_engine(url, poolclass=NullPool, hide_parameters=True, connect_args=waits)
        engine = create_engine(
            url,
            poolclass=NullPool,
            hide_parameters=True,
            connect_args={"timeout": WAIT_S, "isolation_level": None},
        )
    except NoSuchModuleError:
        _refuse(f"there is no kind of database {url.drivername!r}", where)
    except ModuleNotFoundError as error:
        package = PACKAGES.get(error.name or "", error.name)
        raise ToolError(
            f"the database's driver is missing: {error.name}",
            hint=f"pip install {package}",
            where=where,
        ) from error
    event.listen(engine, "begin", _begin)
    return engine


def _begin(connection: Connection) -> None:
    """Begin a transaction of SQLite, which Python's module would begin too late.

    Who is going to write waits for its turn here: from reading to writing nobody can wait.
    """
    if connection.get_execution_options().get("edgepack_writes"):
        # Of a file that is not there yet: what prune frees goes back to the disk.
        connection.exec_driver_sql("PRAGMA auto_vacuum = FULL")
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    else:
        connection.exec_driver_sql("BEGIN")


def make_tables(database: Database) -> None:
    """Make the tables if the database has none; existing ones have to be of this version."""
    tables = database.tables
    with database.reading() as connection:
        if _has_tables(connection, tables, database.name):
            return
    with database.writing() as connection:
        if _has_tables(connection, tables, database.name):  # another process made them meanwhile
            return
        tables.metadata.create_all(connection, checkfirst=False)
        connection.execute(tables.versions.insert().values(version=tables.version))


def _has_tables(connection: Connection, tables: Tables, name: str) -> bool:
    there, versions = inspect(connection), tables.versions
    if not there.has_table(versions.name):
        return False
    known = {column["name"] for column in there.get_columns(versions.name)}
    version = None
    if versions.c.version.name in known:
        version = connection.execute(select(versions.c.version)).scalar()
    if version != tables.version:
        found = "another version" if version is None else f"version {version}"
        raise BundleError(
            f"{tables.what} is of {found}, this edgepack reads version {tables.version}",
            hint="use the edgepack that made it (pip install --upgrade edgepack), or name another"
            f" database: --results or {VARIABLE}",
            where=name,
        )
    return True

"""Stores in both databases, each empty."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from edgepack.results.store.store import ResultsStore

from tests.support.servers.postgres_server import postgres_databases


@pytest.fixture(scope="session")
def postgres() -> Iterator[Callable[[], str]]:
    """A PostgreSQL server: what gives the URL of another empty database each time."""
    with postgres_databases() as another:
        yield another


@pytest.fixture(scope="session")
def emptied(postgres: Callable[[], str]) -> Callable[[], str]:
    """What empties one database of PostgreSQL's and gives its URL, which is quick."""
    url = postgres()
    ResultsStore(url)

    def empty() -> str:
        ResultsStore(url).prune(0)
        return url

    return empty


POSTGRES = pytest.param("postgresql", marks=pytest.mark.slow(reason="starts a PostgreSQL server"))


@pytest.fixture(params=["sqlite", POSTGRES])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a store that is empty or is yet to be made."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/results.sqlite"
    empty: Callable[[], str] = request.getfixturevalue("emptied")
    return empty()


@pytest.fixture
def store(url: str) -> ResultsStore:
    """An empty store."""
    return ResultsStore(url)

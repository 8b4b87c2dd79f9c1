"""How a results store is opened: its URL, its version, what is wrong with it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from edgepack.errors import BundleError, EdgepackError, ToolError, UsageError
from edgepack.results.store import database
from edgepack.results.store.schema import versions
from edgepack.results.store.store import ResultsStore, keep_report

from tests.support.reports.example_report import example_report


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The file of a store with one report."""
    path = tmp_path / "results.sqlite"
    ResultsStore(f"sqlite:///{path}").save(example_report())
    return path


def read_all(url: str) -> None:
    store = ResultsStore(url)
    store.rows()
    store.load(example_report().id)


def test_store_when_pruned_gives_the_disk_its_space_back(file: Path) -> None:
    store = ResultsStore(f"sqlite:///{file}")
    before = file.stat().st_size
    store.save(*(example_report(id=f"more-{number}") for number in range(20)))
    full = file.stat().st_size
    store.prune(1)
    assert before <= file.stat().st_size < full / 2


@pytest.mark.parametrize("version", [0, 2])
def test_store_when_of_another_version_is_refused_and_left_as_it_is(
    url: str, version: int, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if url.startswith("postgresql"):  # this one is not shared with other tests
        another: Callable[[], str] = request.getfixturevalue("postgres")
        url = another()
    ResultsStore(url).save(example_report())
    with database.open_database(url).writing() as connection:
        connection.execute(versions.update().values(version=version))
    said = rf"is of version {version}, this edgepack reads version 1\n.*use the edgepack that made"
    with pytest.raises(BundleError, match=said):
        ResultsStore(url)
    monkeypatch.setattr(database, "TABLES", replace(database.TABLES, version=version))
    assert ResultsStore(url).load(example_report().id) == example_report()


def test_store_when_its_version_is_told_otherwise_is_of_another_version(file: Path) -> None:
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("ALTER TABLE edgepack_version RENAME COLUMN version TO version_num")
    with pytest.raises(BundleError, match="is of another version, this edgepack reads version 1"):
        ResultsStore(f"sqlite:///{file}")


@pytest.mark.parametrize("where", [0, 100, 5000])
def test_store_when_corrupt_is_refused_left_as_it_is_and_says_how_to_move_it(
    file: Path, where: int
) -> None:
    whole = file.read_bytes()
    broken = whole[:where] + b"\x93garbage" * 500 + whole[where + 4000 :]
    file.write_bytes(broken)
    with pytest.raises(BundleError, match="the results store is corrupt") as raised:
        read_all(f"sqlite:///{file}")
    assert f"mv {file} {file}.broken" in raised.value.hint
    assert file.read_bytes() == broken


@pytest.mark.parametrize(
    ("whole", "broken"),
    [
        (b"scenario VARCHAR", b"scenari\x01 VARCHAR"),  # a column is another
        (b"CREATE TABLE edgepack_runs", b"CREATE TABLE edgepac\x93_runs"),  # no text, nor its error
        (b"VALID", b"\xffALID"),
    ],
)
def test_store_when_its_texts_are_corrupt_is_refused_and_says_how_to_move_it(
    tmp_path: Path, whole: bytes, broken: bytes
) -> None:
    (tmp_path / "my lab").mkdir()
    path = tmp_path / "my lab/results.sqlite"
    ResultsStore(f"sqlite:///{path}").save(example_report())
    assert path.read_bytes().count(whole) == 1
    path.write_bytes(path.read_bytes().replace(whole, broken))
    with pytest.raises(BundleError, match="the results store is corrupt") as raised:
        ResultsStore(f"sqlite:///{path}").rows()
    assert f"mv '{path}' '{path}.broken'" in raised.value.hint


def test_store_when_its_file_is_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "results.sqlite"
    path.write_text('{"this is": "a report"}' * 100)
    with pytest.raises(BundleError, match="corrupt: file is not a database"):
        ResultsStore(f"sqlite:///{path}")
    assert path.read_text().startswith('{"this is')


def test_store_when_nothing_is_said_is_in_the_users_data_folder(own_home: Path) -> None:
    store = ResultsStore()
    store.save(example_report())
    assert store.name == f"sqlite:///{own_home}/.local/share/edgepack/results.sqlite"
    assert [path.name for path in (own_home / ".local/share/edgepack").iterdir()] == [
        "results.sqlite"
    ]


def test_store_when_the_environment_names_one_is_that(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("EDGEPACK_RESULTS", f"sqlite:///{tmp_path}/team.sqlite")
    ResultsStore().save(example_report())
    assert (tmp_path / "team.sqlite").exists()
    assert ResultsStore(f"sqlite:///{tmp_path}/mine.sqlite").rows() == []


SECRET = "hunter2"


@pytest.mark.parametrize(
    ("url", "kind", "said"),
    [
        ("results.sqlite", UsageError, "--results: this is no URL"),
        (f"postgresql://me:{SECRET}@host:port/db", UsageError, "this is no URL"),
        (f"frob://me:{SECRET}@host/db", UsageError, "no kind of database 'frob'"),
        ("sqlite://", UsageError, "in memory keeps nothing"),
        ("sqlite:////no/such/folder/x.sqlite", UsageError, "no folder /no/such/folder"),
        (f"mysql://me:{SECRET}@host/db", ToolError, "pip install MySQLdb"),
        (f"postgres://me:{SECRET}@/db?host=/no/such", ToolError, "check the server"),
        (f"postgresql://me@/db?host=/no/such&password={SECRET}", ToolError, "check the server"),
        (f"postgresql://me@/db?host=/no/such&passwort={SECRET}", ToolError, "invalid"),
        ("sqlite:////proc/results.sqlite", ToolError, "see that you may write"),
    ],
)
def test_store_when_its_url_is_wrong_says_so_without_the_password(
    url: str, kind: type[EdgepackError], said: str
) -> None:
    with pytest.raises(kind) as raised:
        ResultsStore(url)
    assert said in str(raised.value)
    assert SECRET not in str(raised.value) + repr(raised.value)
    assert raised.value.__cause__ is None or SECRET not in str(raised.value.__cause__)


def test_store_when_the_driver_is_missing_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "psycopg", None)
    with pytest.raises(ToolError, match=r"psycopg\n.*pip install 'edgepack\[postgres\]'"):
        ResultsStore(f"postgresql://me:{SECRET}@host/db")


def test_store_when_shown_has_no_password(file: Path, monkeypatch) -> None:
    monkeypatch.setattr("edgepack.base.database.make_tables", lambda _: None)
    store = ResultsStore(f"postgresql://me:{SECRET}@host/db?sslpassword={SECRET}&sslmode=require")
    assert repr(store) == "ResultsStore('postgresql+psycopg://me:***@host/db?sslmode=require')"
    assert SECRET not in repr(store._database) + str(vars(store))


@pytest.mark.parametrize("blocked", ["", "unsaved"])
def test_keep_report_when_the_store_does_not_take_it_writes_a_file_that_can_be_imported(
    file: Path, blocked: str, own_home: Path, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = own_home / ".local/share/edgepack"
    if blocked:
        folder.mkdir(parents=True)
        (folder / blocked).touch()  # no folder can be made there
    store = ResultsStore(f"sqlite:///{file}")
    whole = file.read_bytes()
    file.write_bytes(b"garbage" * 1000)
    report = example_report(id="precious")
    with pytest.raises(ToolError, match=r"corrupt.*the report was written to") as raised:
        keep_report(store, report)
    path = Path(raised.value.hint.rsplit("edgepack runs import ", 1)[1])
    assert path.parent == (tmp_path if blocked else folder / "unsaved")
    file.write_bytes(whole)
    assert store.add([path]) == [report]
    assert store.load("precious") == report

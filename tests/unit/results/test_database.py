"""How a results store is opened: its URL, its version, what is wrong with it."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from edgepack.errors import BundleError, EdgepackError, ToolError, UsageError
from edgepack.results.store import database
from edgepack.results.store.store import ResultsStore, keep_report
from example_report import example_evaluation, example_report
from older_report import older_document

ADDED = '''"""A table more."""
import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade():
    op.add_column("edgepack_runs", sa.Column("note", sa.String))
    op.execute("UPDATE edgepack_runs SET note = 'of before'")
'''


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The file of a store with one report."""
    path = tmp_path / "results.sqlite"
    ResultsStore(f"sqlite:///{path}").save(example_report())
    return path


def add_migration(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Let there be a second version of the tables, with a copy of the migrations."""
    shutil.copytree(database.MIGRATIONS, folder / "migrations")
    (folder / "migrations/versions/r0002_added.py").write_text(text)
    monkeypatch.setattr(database, "MIGRATIONS", folder / "migrations")
    monkeypatch.setattr(database, "REVISIONS", ("0001", "0002"))


def notes(url: str) -> list[tuple[str]]:
    with database.open_database(url).reading() as connection:
        found = connection.exec_driver_sql("SELECT note FROM edgepack_runs").all()
    return [tuple(row) for row in found]


def columns(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return [row[1] for row in connection.execute("PRAGMA table_info(edgepack_runs)")]


def test_store_when_of_an_older_version_is_brought_to_this_one_with_all_reports(
    url: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if url.startswith("postgresql"):  # this one is not shared with other tests
        another: Callable[[], str] = request.getfixturevalue("postgres")
        url = another()
    ResultsStore(url).save(example_report())
    add_migration(tmp_path, monkeypatch, ADDED)
    store = ResultsStore(url)
    assert notes(url) == [("of before",)]
    assert store.load(example_report().id) == example_report()
    store.save(example_evaluation())
    assert len(ResultsStore(url).rows()) == 2


def test_store_when_migrated_leaves_a_copy_of_what_was_before(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = columns(file)
    add_migration(tmp_path, monkeypatch, ADDED)
    ResultsStore(f"sqlite:///{file}")
    copy = file.with_name("results.sqlite.0001")
    assert columns(copy) == before
    assert columns(file) == [*before, "note"]
    monkeypatch.undo()
    assert ResultsStore(f"sqlite:///{copy}").load(example_report().id) == example_report()
    assert {path.name for path in file.parent.glob("results*")} == {file.name, copy.name}


@pytest.mark.parametrize("end", ["raise KeyboardInterrupt", "op.execute('SELECT nothing')"])
def test_store_when_its_migration_is_interrupted_is_as_before(
    url: str, end: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch
) -> None:
    ResultsStore(url).save(example_report())
    with monkeypatch.context() as patch:
        add_migration(tmp_path, patch, f"{ADDED}    {end}\n")
        with pytest.raises((KeyboardInterrupt, EdgepackError)):
            ResultsStore(url)
    assert ResultsStore(url).load(example_report().id) == example_report()
    with pytest.raises(EdgepackError, match="note"):
        notes(url)


def test_store_when_pruned_gives_the_disk_its_space_back(file: Path) -> None:
    store = ResultsStore(f"sqlite:///{file}")
    before = file.stat().st_size
    store.save(*(example_report(id=f"more-{number}") for number in range(20)))
    full = file.stat().st_size
    store.prune(1)
    assert before <= file.stat().st_size < full / 2


def test_store_when_a_newer_edgepack_made_it_is_refused_and_left_as_it_is(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        add_migration(tmp_path, patch, ADDED)
        ResultsStore(f"sqlite:///{file}")
    before = file.read_bytes()
    with pytest.raises(BundleError, match=r"version is 0002, .* 0001 and older\n.*--upgrade"):
        ResultsStore(f"sqlite:///{file}")
    assert file.read_bytes() == before


@pytest.mark.parametrize("where", [0, 100, 5000])
def test_store_when_corrupt_is_refused_left_as_it_is_and_says_how_to_move_it(
    file: Path, where: int
) -> None:
    whole = file.read_bytes()
    broken = whole[:where] + b"\x93garbage" * 500 + whole[where + 4000 :]
    file.write_bytes(broken)
    with pytest.raises(BundleError, match="the results store is corrupt") as raised:
        ResultsStore(f"sqlite:///{file}").load(example_report().id)
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
    monkeypatch.setattr(database, "_migrate", lambda _: None)
    store = ResultsStore(f"postgresql://me:{SECRET}@host/db?sslpassword={SECRET}&sslmode=require")
    assert repr(store) == "ResultsStore('postgresql+psycopg://me:***@host/db?sslmode=require')"
    assert SECRET not in repr(store._database) + str(vars(store))


@pytest.fixture
def reports(own_home: Path) -> Path:
    """The folder where reports were kept before."""
    folder = own_home / ".local/share/edgepack/reports"
    folder.mkdir(parents=True)
    return folder


def test_reports_of_before_when_a_store_is_opened_are_taken_over_once(reports: Path) -> None:
    (reports / "a.json").write_bytes(older_document(example_report(id="a")))
    (reports / "b.json").write_text(example_report(id="b").model_dump_json() + "\n")
    (reports / "b copy.json").write_text(example_report(id="b").model_dump_json() + "\n")
    store = ResultsStore()
    assert store.broken == ()
    assert [row.id for row in store.rows()] == ["a", "b"]
    assert store.load("b") == example_report(id="b")
    assert len(list(reports.iterdir())) == 3
    store.prune(0)
    (reports / "c.json").write_text(example_report(id="c").model_dump_json())
    assert [row.id for row in ResultsStore().rows()] == ["c"]


def test_reports_of_before_when_broken_are_named_hide_no_others_and_may_be_mended(
    reports: Path,
) -> None:
    whole = example_report(id="cut").model_dump_json()
    (reports / "good.json").write_text(example_report(id="good").model_dump_json())
    (reports / "cut.json").write_text(whole[:200])
    (reports / "deep.json").write_text("[" * 100_000)
    (reports / "binary.json").write_bytes(b"\xff\xfe\x00")
    (reports / "newer.json").write_text(whole.replace('"schema_version":2', '"schema_version":3'))
    for _ in range(2):
        store = ResultsStore()
        assert [row.id for row in store.rows()] == ["good"]
        assert [Path(error.where).name for error in store.broken] == [
            "binary.json", "cut.json", "deep.json", "newer.json",
        ]  # fmt: skip
    assert "schema version 3" in store.broken[3].problem
    (reports / "cut.json").write_text(whole)
    assert [row.id for row in ResultsStore().rows()] == ["cut", "good"]
    assert len(ResultsStore().broken) == 3


def test_reports_of_before_when_another_store_is_opened_stay_the_users(
    reports: Path, tmp_path: Path
) -> None:
    (reports / "a.json").write_text(example_report(id="a").model_dump_json())
    assert ResultsStore(f"sqlite:///{tmp_path}/team.sqlite").rows() == []


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

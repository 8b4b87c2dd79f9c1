"""A results store that several processes use, that are killed, or that find the disk full."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from edgepack.results.store.store import ResultsStore

from tests.support.reports.example_report import example_report
from tests.support.servers.postgres_server import postgres_server

ROOT = Path(__file__).resolve().parents[3]
BATCH = 20
WRITERS = 4
EACH = 8
BEGIN = f"""
import os, random, signal, sys, time
sys.path.insert(0, {str(ROOT)!r})
from edgepack.results.store.store import ResultsStore
from tests.support.reports.example_report import example_report
url = sys.argv[1]
"""


def run_script(script: str, *arguments: object) -> str:
    """Run a script that has ``ResultsStore``, ``example_report`` and ``url``; give what it prints.

    It is a process of its own, so that it can fork and be limited.
    """
    argv = [sys.executable, "-c", BEGIN + script, *map(str, arguments)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


WRITE_AT_ONCE = f"""
import sqlalchemy  # now, so that all come to make the store at the same time
start = time.monotonic() + 0.2
for writer in range({WRITERS}):
    if os.fork():
        continue
    while time.monotonic() < start:
        pass
    for number in range({EACH}):
        one, shared = example_report(id=f"{{writer}}-{{number}}"), example_report(id="shared")
        ResultsStore(url).save(one, shared)
    os._exit(0)
ends = [os.wait()[1] for _ in range({WRITERS})]
assert ends == [0] * {WRITERS}, ends
"""


def require_all_saved(url: str) -> None:
    run_script(WRITE_AT_ONCE, url)
    store = ResultsStore(url)
    ids = {f"{writer}-{number}" for writer in range(WRITERS) for number in range(EACH)}
    ids |= {"shared"}
    assert {row.id for row in store.rows()} == ids
    assert {report.id for report in store.load_all(sorted(ids))} == ids


@pytest.mark.slow(reason="starts several processes")
def test_store_when_several_processes_make_it_and_write_at_once_loses_nothing(tmp_path):
    require_all_saved(f"sqlite:///{tmp_path}/results.sqlite")


@pytest.mark.slow(reason="starts a PostgreSQL server of its own")
def test_store_when_several_processes_write_to_postgresql_at_once_loses_nothing():
    with postgres_server() as url:
        require_all_saved(url)


SAVE_AND_KILL = f"""
import sqlalchemy
store, chance, seen = ResultsStore(url), random.Random(6), 0
for kill in range(3):
    child = os.fork()
    if not child:
        for batch in range(1000):
            reports = [example_report(id=f"{{kill}}-{{batch}}-{{each}}") for each in range({BATCH})]
            store.save(*reports)
        os._exit(1)
    while len(store.rows()) == seen:  # until it is in the midst of it
        time.sleep(0.001)
    time.sleep(0.1 * chance.random())
    os.kill(child, signal.SIGKILL)
    assert os.WIFSIGNALED(os.wait()[1])
    ids = [row.id for row in store.rows()]
    assert len(ids) % {BATCH} == 0, len(ids)
    assert len(ids) > seen
    seen = len(ids)
    assert [report.id for report in store.load_all(ids)] == ids
"""


@pytest.mark.slow(reason="kills a dozen writers")
def test_store_when_its_writers_are_killed_has_whole_batches(tmp_path):
    run_script(SAVE_AND_KILL, f"sqlite:///{tmp_path}/results.sqlite")


SAVE_UNTIL_FULL = """
import resource
size = int(sys.argv[2])
store = ResultsStore(url)
resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
for number in range(1000):
    try:
        store.save(example_report(id=f"late-{number}"))
    except Exception as error:
        print(type(error).__name__, error)
        break
    print("saved", flush=True)
"""


def test_store_when_the_disk_is_full_says_so_and_keeps_what_was_there(tmp_path):
    url = f"sqlite:///{tmp_path}/results.sqlite"
    ResultsStore(url).save(example_report())
    size = (tmp_path / "results.sqlite").stat().st_size
    *saved, last, hint = run_script(SAVE_UNTIL_FULL, url, size + 60_000).splitlines()
    assert last.startswith("DatabaseError")
    assert "the results store cannot be used" in last
    assert "free some space" in hint
    store = ResultsStore(url)
    assert store.load(example_report().id) == example_report()
    assert len(store.rows()) == 1 + len(saved)
    store.save(example_report(id="later"))
    assert store.load("later") == example_report(id="later")

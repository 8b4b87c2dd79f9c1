"""The queue in a real PostgreSQL: who gets which job, and who has lost one."""

from __future__ import annotations

import os
import pwd
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
import pytest
from edgepack.base.team import TRY_VARIABLE
from edgepack.errors import BundleError, DatabaseError, LostJobError, ToolError, UsageError
from edgepack.jobs.queue import Job, JobQueue, NewJob
from edgepack.jobs.waiting import wait_for_jobs
from edgepack.results.store.store import ResultsStore, keep_report

from tests.support.reports.example_report import example_report
from tests.support.servers.postgres_server import postgres_databases

pytestmark = pytest.mark.slow(reason="starts a PostgreSQL server")

HERE = str(Path.cwd())
ALL = ("a", "b", "c")


@pytest.fixture(scope="module")
def server() -> Iterator[Callable[[], str]]:
    with postgres_databases() as another:
        yield another


@pytest.fixture
def url(server: Callable[[], str], monkeypatch: pytest.MonkeyPatch) -> str:
    found = server()
    monkeypatch.setenv("EDGEPACK_RESULTS", found)
    return found


@pytest.fixture
def queue(url: str) -> JobQueue:
    del url
    return JobQueue()


def add(queue: JobQueue, *devices: str, folder: str = HERE, tries: int = 3) -> Job:
    words = ("bench", "dist", "--device", devices[0])
    return queue.add([NewJob(words, devices, folder, {"/dist": "abc"}, tries)])[0]


def claim(queue: JobQueue, *devices: str, hold_s: float = 60.0) -> Job | None:
    return queue.claim("worker", devices or ALL, hold_s=hold_s)


@contextmanager
def as_anybody() -> Iterator[None]:
    """Be a user who may not enter every folder, as root may."""
    if os.getuid():
        yield
        return
    who = pwd.getpwnam("nobody").pw_uid
    os.setresuid(who, who, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)


def number(job: Job | None) -> int | None:
    return job and job.id


def test_job_when_it_is_added_waits_with_all_that_was_said_of_it(queue: JobQueue) -> None:
    job = queue.load(add(queue, "b", "a").id)
    assert (job.state, job.attempt, job.tries_left, job.exit_code) == ("waiting", 0, 3, None)
    assert job.devices == ("a", "b")
    assert job.bundles == {"/dist": "abc"}
    assert job.words == ("bench", "dist", "--device", "b")
    assert queue.list_jobs(states=["running"]) == []


def test_jobs_for_a_device_when_claimed_run_one_after_the_other_oldest_first(
    queue: JobQueue,
) -> None:
    first, second, other = add(queue, "a"), add(queue, "a"), add(queue, "b")
    taken = claim(queue)
    assert number(taken) == first.id
    assert number(claim(queue)) == other.id
    assert claim(queue) is None
    assert taken is not None
    queue.finish(taken, "done", exit_code=0, output="")
    assert number(claim(queue)) == second.id


def test_job_of_several_devices_when_it_is_older_is_not_overtaken(queue: JobQueue) -> None:
    running, both, late = add(queue, "a"), add(queue, "a", "b"), add(queue, "b")
    taken = claim(queue)
    assert number(taken) == running.id
    assert claim(queue) is None
    # Who does not reach one of its devices does not wait for it.
    assert number(claim(queue, "b")) == late.id
    assert taken is not None
    queue.finish(taken, "done", exit_code=0, output="")
    assert claim(queue) is None
    assert queue.load(both.id).state == "waiting"


def test_job_when_a_worker_lacks_its_device_or_folder_is_left_to_others(
    queue: JobQueue, tmp_path: Path
) -> None:
    add(queue, "a", folder=str(tmp_path / "nowhere"))
    assert claim(queue) is None
    mine = add(queue, "b")
    assert claim(queue, "a", "c") is None
    assert queue.count_open(["a", "c"]) == 1
    assert number(claim(queue, "b")) == mine.id


def test_job_when_a_worker_may_not_enter_its_folder_is_left_to_others(
    queue: JobQueue, tmp_path: Path
) -> None:
    closed = tmp_path / "closed"
    (closed / "inside").mkdir(parents=True)
    add(queue, "a", folder=str(closed))
    add(queue, "b", folder=str(closed / "inside"))
    mine = add(queue, "c", folder="/")
    closed.chmod(0)
    try:
        with as_anybody():
            taken = [number(claim(queue)) for _ in range(2)]
    finally:
        closed.chmod(0o700)
    assert taken == [mine.id, None]
    (tmp_path / "file").touch()
    add(queue, "c", folder=str(tmp_path / "file"))
    assert {number(claim(queue)) for _ in range(3)} == {1, 2, None}


def test_workers_when_they_race_never_have_one_device_twice(queue: JobQueue) -> None:
    jobs = [add(queue, device) for device in ALL * 4]
    using: dict[str, int] = {}
    done: list[int] = []
    twice: list[str] = []

    def work() -> None:
        while queue.count_open(ALL):
            job = claim(queue)
            if job is None:
                continue
            device = job.devices[0]
            if using.setdefault(device, job.id) != job.id:
                twice.append(device)
            time.sleep(0.5)  # long enough for others to come
            done.append(job.id)
            del using[device]
            queue.finish(job, "done", exit_code=0, output="")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done) == [job.id for job in jobs]
    assert not twice


def test_job_when_its_worker_is_not_heard_of_is_taken_up_and_lost_to_the_former(
    queue: JobQueue,
) -> None:
    add(queue, "a")
    former = claim(queue, hold_s=-1)
    assert former is not None
    latter = claim(queue)
    assert latter is not None
    assert (latter.id, latter.attempt, latter.tries_left) == (former.id, 2, 1)
    for lose in (
        lambda: queue.extend(former, hold_s=60),
        lambda: queue.finish(former, "done", exit_code=0, output=""),
        lambda: queue.give_back(former, "", after_s=0, counts=False),
    ):
        with pytest.raises(LostJobError, match="given to another worker"):
            lose()
    assert not queue.extend(latter, hold_s=60)
    queue.finish(latter, "done", exit_code=0, output="said")
    queue.finish(latter, "done", exit_code=0, output="again")  # its answer was lost
    assert queue.load(latter.id).output == "said"


def test_job_when_all_its_workers_are_killed_fails_after_its_tries(queue: JobQueue) -> None:
    job = add(queue, "a", tries=2)
    assert [number(claim(queue, hold_s=-1)) for _ in range(3)] == [job.id, job.id, None]
    failed = queue.load(job.id)
    assert failed.state == "failed"
    assert "not heard of" in failed.note
    again = queue.retry(job.id)
    assert (again.state, again.tries_left, again.attempt) == ("waiting", 2, 2)


def test_job_when_it_is_given_back_waits_until_then(queue: JobQueue) -> None:
    add(queue, "a")
    taken = claim(queue)
    assert taken is not None
    later = add(queue, "a")
    queue.give_back(taken, "leased by bob", after_s=600, counts=False)
    back = queue.load(taken.id)
    assert (back.state, back.note, back.tries_left) == ("waiting", "leased by bob", 3)
    assert number(claim(queue)) == later.id


def test_job_when_it_is_cancelled_runs_no_more(queue: JobQueue) -> None:
    waiting, running = add(queue, "a"), add(queue, "b")
    taken = claim(queue, "b")
    assert taken is not None
    assert queue.cancel(waiting.id).state == "cancelled"
    assert queue.cancel(running.id).stopping
    assert queue.extend(taken, hold_s=-1)
    assert claim(queue) is None  # its worker may be gone: then whoever looks ends it
    assert queue.load(running.id).state == "cancelled"
    assert queue.retry(running.id).state == "waiting"
    again = claim(queue)
    assert again is not None
    queue.finish(again, "done", exit_code=0, output="")
    with pytest.raises(UsageError, match="has ended already: done"):
        queue.cancel(running.id)
    with pytest.raises(UsageError, match="nothing to try again"):
        queue.retry(running.id)
    with pytest.raises(UsageError, match="there is no job 99"):
        queue.cancel(99)


def test_job_when_it_is_cancelled_and_then_given_back_is_not_begun_again(queue: JobQueue) -> None:
    add(queue, "a")
    taken = claim(queue)
    assert taken is not None
    queue.cancel(taken.id)
    queue.give_back(taken, "its worker was stopped", after_s=0, counts=False)
    cancelled = queue.load(taken.id)
    assert (cancelled.state, cancelled.ended != "") == ("cancelled", True)
    assert claim(queue) is None
    assert queue.retry(taken.id).stopping is False
    assert number(claim(queue)) == taken.id


def test_wait_when_a_job_does_not_end_returns_it_as_it_is(queue: JobQueue) -> None:
    job = add(queue, "a")
    assert wait_for_jobs(queue, [job.id], most_s=0, look_s=0)[0].state == "waiting"
    queue.cancel(job.id)
    assert wait_for_jobs(queue, [job.id])[0].state == "cancelled"


def test_wait_when_the_database_is_away_waits_for_it_until_its_time_is_over(
    queue: JobQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = add(queue, "a")
    queue.cancel(job.id)
    load, errors = queue.load, [DatabaseError("it is away", hint="wait") for _ in range(3)]

    def load_later(number: int) -> Job:
        if errors:
            raise errors.pop()
        return load(number)

    monkeypatch.setattr(queue, "load", load_later)
    with pytest.raises(DatabaseError, match="it is away"):
        wait_for_jobs(queue, [job.id], most_s=-1, look_s=0)
    assert wait_for_jobs(queue, [job.id], look_s=0)[0].state == "cancelled"
    assert not errors


def test_report_when_its_try_was_given_up_is_kept_beside_and_else_named(
    queue: JobQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(queue, "a")
    former = claim(queue, hold_s=-1)
    assert former is not None
    early, late, mine = (example_report(id=f"2026110{n}T000000Z-a1b2c3") for n in (1, 2, 3))
    store = ResultsStore()
    monkeypatch.setenv(TRY_VARIABLE, f"{former.id}.1")
    store.save(early)
    assert claim(queue) is not None
    with pytest.raises(ToolError, match=r"given to another worker.*written to .*unsaved"):
        keep_report(store, late)
    monkeypatch.setenv(TRY_VARIABLE, f"{former.id}.2")
    store.save(mine)
    store.save(mine)
    assert [row.id for row in store.rows()] == [early.id, mine.id]
    runs = queue.load(former.id).runs
    assert [(run.id, run.attempt) for run in runs] == [(early.id, 1), (mine.id, 2)]


def test_database_when_its_jobs_are_of_another_version_is_left_as_it_is(
    queue: JobQueue, url: str
) -> None:
    add(queue, "a")
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        connection.execute("UPDATE edgepack_jobs_version SET version = 2")
    os.environ["EDGEPACK_RESULTS"] = f"{url}&application_name=other"
    with pytest.raises(BundleError, match="version 2, this edgepack reads version 1"):
        JobQueue()


def test_queue_when_no_team_is_named_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEPACK_RESULTS", "sqlite:////tmp/x.sqlite")
    with pytest.raises(UsageError, match="none is named") as caught:
        JobQueue()
    assert "export EDGEPACK_RESULTS=postgresql://" in caught.value.hint

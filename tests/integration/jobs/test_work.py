"""Workers on real boards over SSH: killed, stopped, cut off, and kept off a board by a person."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from edgepack.cli.main import run
from edgepack.demo.server import LoopbackServer
from edgepack.deploy import leases
from edgepack.deploy.fleet.selection import select_devices
from edgepack.deploy.leases import lease_device, list_leases, release_device
from edgepack.devices.inventory import Device, LocalEntry, SshEntry, add_device, load_device
from edgepack.errors import DatabaseError, EdgepackError, UsageError
from edgepack.jobs import work
from edgepack.jobs.queue import Job, JobQueue, NewJob
from edgepack.project.profile import find_host_target
from edgepack.results.store.store import ResultsStore

from tests.support.reports.tiny_bundle import change_manifest, write_tiny_bundle
from tests.support.servers.loopback import ssh_entry, wait_until
from tests.support.servers.postgres_server import (
    postgres_databases,
    postgres_server,
    started_again,
    stop_server,
)

pytestmark = pytest.mark.slow(reason="starts a PostgreSQL server, and measures on a board")

HOLD_S = 8.0
INCONCLUSIVE = 11
"""How a smoke benchmark always ends."""
WORKER = """
import sys
from edgepack.base.progress import Lines
from edgepack.cli.main import _terminate
import signal
signal.signal(signal.SIGTERM, _terminate)
from edgepack.jobs import work
from edgepack.jobs.queue import JobQueue
if len(sys.argv) > 2:
    work.COMMAND = (sys.executable, "-c", sys.argv[2])
settings = work.WorkSettings(hold_s=float(sys.argv[1]), retry_s=0.3, look_s=0.1, until_empty=True)
work.work_on_jobs(JobQueue(), settings, progress=Lines())
"""
SLEEP = "import time; print('begun', flush=True); time.sleep({}); print('ended')"


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
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a bundle and a device that is this machine."""
    monkeypatch.chdir(tmp_path)
    bundle = write_tiny_bundle(tmp_path / "bundle")
    change_manifest(bundle, lambda manifest: manifest.update(target=find_host_target()))
    root = str(tmp_path / "root")
    here = LocalEntry(transport="local", target=find_host_target(), root=root)
    add_device(tmp_path / "devices.yaml", "here", here)
    return tmp_path


@pytest.fixture
def board(folder: Path) -> Iterator[str]:
    """A board over SSH, beside the device that is this machine."""
    with LoopbackServer(folder / "server") as server:
        changes = {"root": str(folder / "far"), "python": sys.executable}
        entry = SshEntry(**(ssh_entry(server) | changes | {"target": find_host_target()}))
        add_device(folder / "devices.yaml", "board", entry)
        yield "board"


def add(queue: JobQueue, folder: Path, *words: str, tries: int = 3) -> Job:
    return queue.add([NewJob(words, (words[-1],), str(folder), tries=tries)])[0]


def start_worker(*more: str, hold_s: float = HOLD_S) -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", WORKER, str(hold_s), *more]
    return subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)


def end(worker: subprocess.Popen[str], code: int = 0) -> str:
    _, said = worker.communicate(timeout=180)
    assert worker.returncode == code, said
    return said


def wait_for(queue: JobQueue, job: Job, state: str) -> Job:
    assert wait_until(lambda: queue.load(job.id).state == state, 60), queue.load(job.id)
    return queue.load(job.id)


def test_commands_when_added_are_done_by_a_worker_and_judged(
    url: str, board: str, capsys: pytest.CaptureFixture[str]
) -> None:
    del url
    assert run(["jobs", "add", "--", "push", "bundle", "--device", board, "--no-self-test"]) == 0
    assert run(["jobs", "add", "rollback", "tiny", "--device=here"]) == 0
    assert "push --device board bundle --no-self-test" in capsys.readouterr().out
    assert run(["jobs", "work", "--only", board, "--until-empty"]) == 0
    assert "job 1 is done" in capsys.readouterr().err
    assert run(["jobs", "list", "--json"]) == 0
    pushed, back = json.loads(capsys.readouterr().out)
    assert (pushed["state"], pushed["exit_code"]) == ("done", 0)
    assert "is current" in pushed["output"]
    assert (back["state"], back["words"]) == ("waiting", ["rollback", "--device", "here", "tiny"])
    assert run(["jobs", "wait", "2", "--for", "0.1s"]) == 8
    assert run(["jobs", "work", "--until-empty"]) == 9
    assert run(["jobs", "wait", "1", "2"]) == 9
    capsys.readouterr()
    assert run(["jobs", "show", "2"]) == 0
    shown = capsys.readouterr().out
    assert "exit code 9" in shown
    assert "  |   hint: nothing was changed" in shown
    assert run(["jobs", "cancel", "1"]) == 2
    assert run(["jobs", "retry", "2"]) == 0
    assert run(["jobs", "cancel", "2"]) == 0
    assert run(["jobs", "wait", "2"]) == 143


def test_command_when_it_cannot_be_a_job_is_refused_before_it_is_added(
    url: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    del url, folder
    bench = ["bench", "bundle", "--device"]
    for words, said in (
        (["demo"], "'demo' is no command that a job may be"),
        (["bench", "bundle"], "Missing option '--device'"),
        ([*bench, "here", "--preset"], "requires an argument"),
        ([*bench, "there"], "there is no device 'there'"),
        ([*bench, "local"], "another machine for each worker"),
        ([*bench, "here", "--results", "postgresql://me:secret@db/x"], "team's database"),
        (["bench", "dist", "--device", "here"], "there is no bundle"),
        ([*bench, "here", "--", "--device"], "what is meant is not clear"),
        ([*bench, "here", "\udcff"], "is no text"),
    ):
        assert run(["jobs", "add", "--", *words]) == (7 if "no bundle" in said else 2)
        problem = capsys.readouterr().err
        assert said in problem
        assert "secret" not in problem
    assert JobQueue().list_jobs() == []


def test_rollout_when_it_is_staged_is_one_job_for_all_its_devices(url: str, board: str) -> None:
    del url, board
    assert run(["jobs", "add", "push", "bundle", "--device", "all", "--canary", "1"]) == 0
    assert run(["jobs", "add", "push", "oci://registry/repo:stable", "--device", "all"]) == 0
    jobs = JobQueue().list_jobs()
    assert [job.devices for job in jobs] == [("board", "here"), ("board",), ("here",)]
    assert [len(job.bundles) for job in jobs] == [1, 0, 0]
    assert jobs[1].words[-1] == "oci://registry/repo:stable"


def test_bench_when_its_worker_is_killed_is_measured_by_another_and_stored_once(
    url: str, folder: Path, board: str
) -> None:
    del url
    queue = JobQueue()
    job = add(queue, folder, "bench", "bundle", "--preset", "smoke", "--device", board)
    worker = start_worker()
    assert wait_until(lambda: len(list_leases(load_device(board))) == 1, 60)
    worker.kill()
    worker.communicate()
    # Its process ends with it, and so does its lease.
    assert wait_until(lambda: not list_leases(load_device(board)), 30)
    end(start_worker())
    done = queue.load(job.id)
    assert (done.exit_code, done.attempt) == (INCONCLUSIVE, 2)
    assert [row.id for row in ResultsStore().rows()] == [run.id for run in done.runs]
    assert [run.attempt for run in done.runs] == [2]


def test_job_when_a_person_has_the_board_waits_and_uses_up_no_try(
    url: str, folder: Path, board: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    del url
    queue = JobQueue()
    with monkeypatch.context() as as_bob:
        as_bob.setattr(leases, "find_own_name", lambda: "bob@elsewhere")
        lease_device(load_device(board), for_s=600, purpose="a look")
    job = add(queue, folder, "push", "bundle", "--no-self-test", "--device", board, tries=1)
    worker = start_worker()
    waits = lambda: "bob@elsewhere for 'a look'" in queue.load(job.id).note  # noqa: E731
    assert wait_until(waits, 60), queue.load(job.id)
    assert queue.load(job.id).tries_left == 1 or queue.load(job.id).state == "running"
    release_device(load_device(board), force=True)
    end(worker)
    assert queue.load(job.id).state == "done"


def test_job_when_its_worker_is_ended_is_given_back(url: str, folder: Path) -> None:
    del url
    queue = JobQueue()
    job = add(queue, folder, "bench", "--device", "here")
    worker = start_worker(SLEEP.format(60))
    wait_for(queue, job, "running")
    worker.send_signal(signal.SIGTERM)
    end(worker, 143)
    back = queue.load(job.id)
    assert (back.state, back.tries_left) == ("waiting", 3)
    assert "its worker was stopped" in back.note


def test_job_when_it_is_cancelled_is_stopped(url: str, folder: Path) -> None:
    del url
    queue = JobQueue()
    job = add(queue, folder, "bench", "--device", "here")
    worker = start_worker(SLEEP.format(600))
    wait_for(queue, job, "running")
    queue.cancel(job.id)
    end(worker)
    stopped = queue.load(job.id)
    assert (stopped.state, stopped.exit_code, stopped.attempt) == ("cancelled", 143, 1)


def test_job_when_the_database_crashes_and_comes_back_is_recorded_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with postgres_server() as url:
        monkeypatch.setenv("EDGEPACK_RESULTS", url)
        queue = JobQueue()
        job = add(queue, folder, "bench", "--device", "here")
        worker = start_worker(SLEEP.format(3), hold_s=60)
        wait_for(queue, job, "running")
        stop_server(url)
        time.sleep(4)  # the command ends meanwhile
        with started_again(url):
            said = end(worker)
            done = queue.load(job.id)
    assert "waiting for the database" in said
    assert (done.state, done.attempt, done.output) == ("done", 1, "begun\nended\n")


def test_job_when_the_database_was_away_longer_than_a_hold_stays_with_who_takes_it(
    url: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del url
    queue = JobQueue()
    job = add(queue, folder, "bench", "--device", "here")
    claim, back_at = queue.claim, time.monotonic() + 2

    def claim_later(*given: Any, **named: Any) -> Job | None:
        if time.monotonic() < back_at:
            raise DatabaseError("it is away", hint="wait")
        return claim(*given, **named)

    monkeypatch.setattr(queue, "claim", claim_later)
    monkeypatch.setattr(work, "COMMAND", (sys.executable, "-c", "pass"))
    settings = work.WorkSettings(hold_s=2, retry_s=0.3, look_s=0.1, until_empty=True)
    assert work.work_on_jobs(queue, settings) == {0: 1}
    assert (queue.load(job.id).state, queue.load(job.id).attempt) == ("done", 1)


@pytest.mark.parametrize("answer", ["away", "removed"])
def test_job_when_its_devices_cannot_be_asked_for_a_holder_is_judged_by_its_exit_code(
    url: str, folder: Path, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    del url
    queue = JobQueue()
    job = add(queue, folder, "bench", "--device", "here", tries=1)
    errors: list[EdgepackError] = [DatabaseError("it is away", hint="wait")]
    if answer == "removed":
        errors = [UsageError("there is no device 'here'", hint="add it")]

    def select(words: Sequence[str]) -> list[Device]:
        if words == job.devices and errors:
            raise errors.pop()
        return select_devices(words)

    monkeypatch.setattr(work, "select_devices", select)
    monkeypatch.setattr(work, "COMMAND", (sys.executable, "-c", "raise SystemExit(8)"))
    settings = work.WorkSettings(look_s=0.1, until_empty=True)
    assert work.work_on_jobs(queue, settings) == {8: 1}
    assert not errors
    assert (queue.load(job.id).state, queue.load(job.id).exit_code) == ("failed", 8)


def test_job_when_it_cannot_be_started_uses_up_its_tries_and_ends_no_worker(
    url: str, folder: Path
) -> None:
    del url
    queue = JobQueue()
    # A word has at most 128 KiB (execve(2), MAX_ARG_STRLEN).
    never = add(queue, folder, "bench", "x" * 200_000, "--device", "here", tries=2)
    after = add(queue, folder, "bench", "--device", "here")
    end(start_worker("pass"), 0)
    failed = queue.load(never.id)
    assert (failed.state, failed.exit_code, failed.attempt) == ("failed", 5, 2)
    assert f"could not be started in {folder}" in failed.note
    assert queue.load(after.id).state == "done"


def test_worker_when_it_hangs_loses_its_job_and_ends_it_nowhere(url: str, folder: Path) -> None:
    del url
    queue = JobQueue()
    job = add(queue, folder, "bench", "--device", "here")
    hanging = start_worker(SLEEP.format(600), hold_s=2)
    wait_for(queue, job, "running")
    hanging.send_signal(signal.SIGSTOP)
    end(start_worker("print('mine')"))
    hanging.send_signal(signal.SIGCONT)
    assert "another worker" in end(hanging)
    done = queue.load(job.id)
    assert (done.state, done.attempt, done.output) == ("done", 2, "mine\n")


def test_job_when_its_command_always_fails_in_passing_ends_after_its_tries(
    url: str, folder: Path
) -> None:
    del url
    queue = JobQueue()
    unreachable = "import sys; print('error: off\\n  hint: switch it on'); sys.exit(8)"
    job = add(queue, folder, "bench", "--device", "here", tries=2)
    said = end(start_worker(unreachable))
    failed = queue.load(job.id)
    assert (failed.state, failed.exit_code, failed.attempt) == ("failed", 8, 2)
    assert "hint: switch it on" in failed.output
    assert "job 1 is given back: try 1 ended with exit code 8" in said


def test_job_when_its_bundle_is_another_one_by_now_fails_and_names_both(
    url: str, folder: Path
) -> None:
    del url
    queue = JobQueue()
    bundle = folder / "bundle"
    words = ("bench", "bundle", "--device", "here")
    made = NewJob(words, ("here",), str(folder), {str(bundle): "ab" * 32})
    forged = NewJob(("demo",), ("here",), str(folder))
    queue.add([made, forged])
    assert run(["jobs", "work", "--until-empty"]) == 7
    other, no_job = queue.list_jobs()
    assert (other.state, other.exit_code) == ("failed", 7)
    assert "the job was added for abab" in other.note
    assert (no_job.state, no_job.exit_code) == ("failed", 2)


def test_command_when_it_is_a_job_has_no_module_of_its_folder_for_python_s(
    url: str, folder: Path
) -> None:
    del url
    (folder / "typer.py").write_text("raise SystemExit(66)")
    queue = JobQueue()
    job = add(queue, folder, "rollback", "tiny", "--device", "here")
    assert run(["jobs", "work", "--until-empty"]) == 9
    assert queue.load(job.id).exit_code == 9
    assert "EDGEPACK_JOB" not in os.environ

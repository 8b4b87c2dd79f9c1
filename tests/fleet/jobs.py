"""Jobs under faults: workers killed, stopped and ended, a database that crashes. None may be lost.

``python -m tests.fleet.jobs --runs 500`` does so many jobs with eight workers on one PostgreSQL.
Commands are stood in for by a program that holds the device's lock, as a lease does, and writes
down what it did; the queue, the workers and their processes are the real ones. One command in the
middle can never be started.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

from edgepack.base.team import TRY_VARIABLE, VARIABLE
from edgepack.devices.inventory import LocalEntry, add_device
from edgepack.errors import DatabaseError, UsageError
from edgepack.jobs import work as work_module
from edgepack.jobs.queue import Job, JobQueue, NewJob
from edgepack.project.profile import find_host_target

from tests.support.reports.proof_report import Check, report
from tests.support.servers.postgres_server import postgres_server, started_again, stop_server

WORKERS, DEVICES, RUNS = 8, 6, 150
"""Fewer devices than workers, so that some wait for a job when the database is away."""
HOLD_S = 4.0
LONG_OUTAGE_S = 1.5 * HOLD_S
JOBS_IN_FAULT = 3
"""How many commands there are for each fault."""
LIMIT_S = 1800
TRIES = 20
"""Faults use up some; a job that has used up all of them is lost."""
NEVER = ("bench", "x" * 200_000)
"""A command that cannot be started: a word has at most 128 KiB (execve(2), MAX_ARG_STRLEN)."""
NOT_BEGUN = 75
STAND_IN = """
import fcntl, os, random, sys, time
job = os.environ["EDGEPACK_JOB"]
devices = [name for word, name in zip(sys.argv, sys.argv[1:]) if word == "--device"]
def say(word, device="", more=""):
    with open("log", "a") as log:
        log.write(f"{word} {job} {device or devices[0]} {time.monotonic():.3f} {more}\\n")
locks = []
for device in devices:
    lock = open(device + ".lock", "a+")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.seek(0)
        say("refused", device, lock.read())
        sys.exit(8)
    lock.truncate(0)
    lock.write(job); lock.flush()
    locks.append(lock)
say("begin")
time.sleep(random.uniform(0, 2) if "long" in sys.argv else random.uniform(0, 0.1))
if "faults" in sys.argv and random.random() < 0.1:
    sys.exit(8)
if "faults" in sys.argv and random.random() < 0.05:
    os.kill(os.getpid(), 9)
say("end")
print("measured", job)
"""
WORKER = """
import signal, sys, time
from pathlib import Path
from edgepack.base.progress import Lines
from edgepack.cli.main import _terminate
from edgepack.errors import DatabaseError
from edgepack.jobs import work
from edgepack.jobs.queue import JobQueue
class Told(JobQueue):
    def claim(self, *given, **named):
        job = super().claim(*given, **named)
        if job:
            sys.stderr.write(f"{time.monotonic():.2f} took {job.id}.{job.attempt}\\n")
        return job
class Timed(Lines):
    def note(self, text):
        super().note(f"{time.monotonic():.2f} {text}")
signal.signal(signal.SIGTERM, _terminate)
work.COMMAND = (sys.executable, "-S", "-E", str(Path("stand_in.py").resolve()))
settings = work.WorkSettings(hold_s=float(sys.argv[1]), retry_s=0.2, look_s=0.1, until_empty=True)
try:
    queue = Told()
except DatabaseError:
    sys.exit(75)
work.work_on_jobs(queue, settings, progress=Timed())
"""
TOOK = re.compile(r"^([\d.]+) took (\d+)\.(\d+)\n", re.MULTILINE)
GIVEN_UP = re.compile(r"^([\d.]+) job (\d+) was stopped, as the database did not", re.MULTILINE)


@dataclass
class Found:
    """What was seen of jobs."""

    jobs: int
    lost: list[str] = field(default_factory=list)
    """What may not be: jobs that were not done, done twice at once, or done and not recorded."""
    faults: Counter[str] = field(default_factory=Counter)
    again: int = 0
    """Commands that ended in a try that was given up, so that the job was done again."""
    seconds: float = 0.0


@dataclass
class Worker:
    """A worker's process, and what was done to it."""

    process: subprocess.Popen[bytes]
    log: Path
    was_ended: bool = False
    was_stopped: bool = False

    def find_wrong(self, log: str) -> Iterator[str]:
        """Say what it has done that nothing done to it explains.

        Args:
            log: What the commands wrote down.
        """
        code = self.process.returncode
        ends = (-signal.SIGKILL, -signal.SIGTERM, 128 + signal.SIGTERM) if self.was_ended else ()
        said = self.log.read_text(errors="replace")
        if code not in (0, NOT_BEGUN, *ends):
            yield f"a worker ended by itself with exit code {code}: {said[-2000:]}"
        if self.was_stopped:
            return
        for given_up in GIVEN_UP.finditer(said):
            took = list(TOOK.finditer(said, 0, given_up.start()))[-1]
            begun = f" {took[2]}.{took[3]} " in log
            if not begun and float(given_up[1]) - float(took[1]) < HOLD_S / 2:
                yield f"{took[2]}.{took[3]} was given up by a worker that had just taken it"


class Ground:
    """A folder with devices and the stand-in, workers, and a database that may be crashed."""

    def __init__(self, folder: Path, url: str, hold_s: float) -> None:
        self.folder, self.url, self.hold_s = folder, url, hold_s
        self.workers: list[Worker] = []
        self.gone: list[Worker] = []
        self.database = ExitStack()
        self.crashes = 0
        (folder / "stand_in.py").write_text(STAND_IN)
        for number in range(DEVICES):
            root = str(folder / f"root{number}")
            entry = LocalEntry(transport="local", target=find_host_target(), root=root)
            add_device(folder / "devices.yaml", f"d{number}", entry)

    def start_worker(self) -> None:
        path = self.folder / f"worker{len(self.workers) + len(self.gone)}.log"
        with path.open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", WORKER, str(self.hold_s)],
                cwd=self.folder,
                env=os.environ | {VARIABLE: self.url},
                stdout=log,
                stderr=log,
            )
        self.workers.append(Worker(process, path))

    def keep_workers(self) -> None:
        """Start as many workers as have ended: they do so where nothing is left for them, too."""
        self.gone += [worker for worker in self.workers if worker.process.poll() is not None]
        self.workers = [worker for worker in self.workers if worker.process.poll() is None]
        while len(self.workers) < WORKERS:
            self.start_worker()

    def find_wrong(self) -> list[str]:
        """Say what workers have done that nothing done to them explains; they end."""
        self.end_workers()
        log = (self.folder / "log").read_text()
        return [line for worker in self.gone for line in worker.find_wrong(log)]

    def end_workers(self) -> None:
        for worker in self.workers:
            worker.process.send_signal(signal.SIGCONT)
            worker.was_ended = True
            worker.process.kill()
            worker.process.wait()
        self.gone += self.workers
        self.workers = []

    def count_begun(self) -> int:
        """Return how many commands were begun."""
        log = self.folder / "log"
        return log.read_text().count("begin") if log.exists() else 0

    def crash_database(self) -> None:
        """Let the database be away; the first time longer than a worker holds its job."""
        stop_server(self.url)
        time.sleep(random.uniform(0, 2) if self.crashes else LONG_OUTAGE_S)
        self.crashes += 1
        self.database.close()
        self.database.enter_context(started_again(self.url))

    def stop_all(self) -> None:
        self.end_workers()
        self.database.close()


@contextmanager
def prepared(hold_s: float) -> Iterator[Ground]:
    """Make a database and a ground; this process is one of the team."""
    with (
        tempfile.TemporaryDirectory(prefix="edgepack-jobs-") as folder,
        postgres_server() as url,
        patch.dict(os.environ, {VARIABLE: url}),
    ):
        os.environ.pop(TRY_VARIABLE, None)
        ground = Ground(Path(folder), url, hold_s)
        try:
            yield ground
        finally:
            ground.stop_all()


def add_jobs(ground: Ground, count: int, *words: str) -> None:
    """Add jobs, of which one in ten needs two devices."""
    names = [f"d{number}" for number in range(DEVICES)]
    new = []
    for _ in range(count):
        chosen = sorted(random.sample(names, 2 if random.random() < 0.1 else 1))
        argv = ("bench", *(part for name in chosen for part in ("--device", name)), *words)
        new.append(NewJob(argv, tuple(chosen), str(ground.folder), tries=TRIES))
    JobQueue().add(new)


def disturb(ground: Ground, faults: Counter[str]) -> None:
    """Do one thing that should not harm."""
    names = ["kill"] * 4 + ["stop"] * 2 + ["end"] * 2 + ["cancel"] * 2 + ["database"]
    name = random.choice(names) if ground.crashes else "database"
    worker = random.choice(ground.workers)
    faults[name] += 1
    if name == "kill":
        worker.was_ended = True
        worker.process.kill()
    elif name == "end":
        worker.was_ended = True
        worker.process.terminate()
    elif name == "stop":
        worker.was_stopped = True
        worker.process.send_signal(signal.SIGSTOP)
        threading.Timer(random.uniform(1, 2 * HOLD_S), go_on, [worker.process]).start()
    elif name == "cancel":
        with suppress(DatabaseError, UsageError):
            queue = JobQueue()
            job = random.choice(queue.list_jobs(states=["waiting", "running"]))
            queue.cancel(job.id)
    else:
        ground.crash_database()


def go_on(worker: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        worker.send_signal(signal.SIGCONT)


def is_done(found: Found) -> bool:
    """Return whether all jobs are done; those that were cancelled are let go on."""
    try:
        queue = JobQueue()
        for job in queue.list_jobs(states=["waiting"]):
            if job.stopping:
                found.lost.append(f"job {job.id} was cancelled, and waits to be begun again")
        for job in queue.list_jobs(states=["cancelled"]):
            queue.retry(job.id)
        return not queue.list_jobs(states=["waiting", "running", "cancelled"])
    except DatabaseError:
        return False


def work(ground: Ground, found: Found, *, are_disturbed: bool) -> None:
    """Let workers do all jobs."""
    end, next_fault = time.monotonic() + LIMIT_S, JOBS_IN_FAULT
    while not is_done(found) and time.monotonic() < end:
        ground.keep_workers()
        time.sleep(0.2)
        if are_disturbed and ground.count_begun() > next_fault:
            disturb(ground, found.faults)
            next_fault = ground.count_begun() + random.randint(1, 2 * JOBS_IN_FAULT)


def judge(found: Found, jobs: Sequence[Job], log: Sequence[str]) -> None:
    """Say what of jobs was lost, by what the commands themselves wrote down."""
    lines = [line.split() for line in log]
    ended = Counter(words[1] for words in lines if words[0] == "end")
    for job in jobs:
        if job.words[: len(NEVER)] == NEVER:
            if (job.state, job.exit_code) != ("failed", 5):
                found.lost.append(f"job {job.id}, which cannot be started, is {job.state}")
            continue
        last = f"{job.id}.{job.attempt}"
        if job.state != "done" or job.exit_code != 0:
            found.lost.append(f"job {job.id} is {job.state}: {job.note}")
        elif ended[last] != 1:
            found.lost.append(f"job {job.id} is done, and its command ended {ended[last]} times")
        elif f"measured {last}" not in job.output:
            found.lost.append(f"job {job.id} has the output {job.output!r}")
    last_tries = {job.id: job.attempt for job in jobs}
    found.again = sum(ended.values()) - found.jobs
    for words in lines:
        if words[0] != "refused" or len(words) < 5:
            continue
        holder, attempt = map(int, words[4].split("."))
        if attempt == last_tries[holder]:
            found.lost.append(f"{words[2]} was given to {words[1]} while {words[4]} had it")


def run_jobs(runs: int, *, are_disturbed: bool, words: Sequence[str] = ("long", "faults")) -> Found:
    """Do so many jobs, and return what was seen."""
    found, began = Found(runs), time.monotonic()
    with prepared(HOLD_S if are_disturbed else work_module.HOLD_S) as ground:
        add_jobs(ground, runs // 2, *words)
        if are_disturbed:
            never = (*NEVER, "--device", "d0")
            JobQueue().add([NewJob(never, ("d0",), str(ground.folder), tries=2)])
        add_jobs(ground, runs - runs // 2, *words)
        work(ground, found, are_disturbed=are_disturbed)
        judge(found, JobQueue().list_jobs(), (ground.folder / "log").read_text().splitlines())
        found.lost += ground.find_wrong()
    found.seconds = time.monotonic() - began
    return found


def main(runs: int = RUNS) -> int:
    """Do so many jobs under faults; return 0 if none was lost."""
    found = run_jobs(runs, are_disturbed=True)
    faults = ", ".join(f"{count} {name}" for name, count in sorted(found.faults.items()))
    sys.stdout.write(
        f"{found.jobs} jobs by {WORKERS} workers on {DEVICES} devices in {found.seconds:.0f} s,"
        f" faults: {faults}; {found.again} commands done again; {len(found.lost)} lost jobs\n"
    )
    for line in found.lost:
        sys.stdout.write(f"  {line}\n")
    checks = [Check(f"job {number + 1} of {runs}") for number in range(runs - len(found.lost))]
    report("jobs", [*checks, *(Check("a job", line) for line in found.lost)], found.seconds)
    return int(bool(found.lost))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # or its servers would stay
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS)
    sys.exit(main(parser.parse_args().runs))

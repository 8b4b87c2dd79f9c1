"""A worker takes up jobs one after the other, and does each in a process of its own.

That process ends with the worker, however that ends. A crash of the command is its exit code, and
no more.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from edgepack.base.machine import find_own_name
from edgepack.base.processes import supervising
from edgepack.base.progress import Progress, Silent
from edgepack.base.team import TRY_VARIABLE
from edgepack.base.terminal import make_printable
from edgepack.bundle.reading import load_any
from edgepack.deploy.fleet.selection import ALL, select_devices
from edgepack.deploy.leases import list_leases
from edgepack.errors import (
    BundleError,
    DatabaseError,
    DeviceError,
    EdgepackError,
    LostJobError,
    ToolError,
    UsageError,
)
from edgepack.jobs.queue import JOB_COMMANDS, Job, JobQueue, State
from edgepack.jobs.waiting import Value, persist

COMMAND = (sys.executable, "-P", "-m", "edgepack")
"""What does a job, before its words. -P: no module that lies in its folder is Python's."""
HOLD_S = 60.0
"""After how many seconds without a word of its worker a job is taken up by another."""
_WORDS_IN_HOLD = 12
_SPARE = 0.25
"""The share of that time in which the worker itself has to have stopped the job's process."""
RETRY_S = 30.0
MOST_RETRY_S = 600.0
LOOK_S = 2.0
CHILD_LOOK_S = 0.2
OUTPUT_BYTES = 8192
STOPPED = 143
"""The exit code of a job that was cancelled: as of a command that was sent SIGTERM."""
PASSING = (ToolError.exit_code, DeviceError.exit_code)
"""The exit codes after which another try may succeed; so it may after a signal."""


@dataclass(frozen=True)
class WorkSettings:
    """How a worker works."""

    only: Sequence[str] = (ALL,)
    """What chooses the devices that it reaches: names, ``tag:lab``, ``all``."""
    until_empty: bool = False
    """Whether it ends once none of the jobs that it reaches waits or runs."""
    hold_s: float = HOLD_S
    """After how many seconds without a word of it a job is taken up by another."""
    retry_s: float = RETRY_S
    """Seconds until a job that could not be done is tried again; each time twice as many."""
    look_s: float = LOOK_S
    """Seconds between two looks for a job."""


def work_on_jobs(
    queue: JobQueue, settings: WorkSettings | None = None, *, progress: Progress | None = None
) -> dict[int, int]:
    """Do jobs until none is left, or this process is stopped; then the job is given back.

    A database that does not answer is waited for. Without ``until_empty`` this does not return.

    Args:
        queue: Where the jobs are.
        settings: How it works.
        progress: Receives a line for each job that is begun and ended.

    Returns:
        How many jobs have ended with which exit code.

    Raises:
        UsageError: ``only`` selects no device.
        ProfileError: devices.yaml is wrong.
    """
    worker = _Worker(queue, settings or WorkSettings(), progress or Silent())
    worker.require_devices()
    while worker.work():
        pass
    return worker.ended


class _Worker:
    def __init__(self, queue: JobQueue, settings: WorkSettings, progress: Progress) -> None:
        self.settings = settings
        self.ended: Counter[int] = Counter()
        self._queue = queue
        self._progress = progress
        self._name = f"{find_own_name()}, process {os.getpid()}"

    def require_devices(self) -> None:
        """Check what chooses the devices, or a mistake would look like a queue without jobs."""
        self._persist(lambda: select_devices(self.settings.only))

    def work(self) -> bool:
        """Do the next job, or wait for one; return whether there may be more."""
        settings = self.settings
        job, asked_at, is_empty = self._persist(self._look)
        if job is None:
            if not is_empty:
                time.sleep(settings.look_s)
            return not is_empty
        self._progress.note(f"job {job.id}: edgepack {' '.join(job.words)}")
        with _holding(self._queue, job, settings.hold_s, asked_at) as hold:
            try:
                self._do(job, hold)
            except LostJobError as error:
                self._progress.note(str(error))
            except BaseException:
                with suppress(DatabaseError, LostJobError):
                    note = f"its worker was stopped: {self._name}"
                    self._queue.give_back(job, note, after_s=0, counts=False)
                raise
        return True

    def _look(self) -> tuple[Job | None, float, bool]:
        """Return the next job, if there is one, since when, and whether this worker may end."""
        devices = [device.name for device in select_devices(self.settings.only)]
        asked_at = time.monotonic()
        job = self._queue.claim(self._name, devices, hold_s=self.settings.hold_s)
        is_empty = job is None and self.settings.until_empty and not self._queue.count_open(devices)
        return job, asked_at, is_empty

    def _do(self, job: Job, hold: _Hold) -> None:
        try:
            _require_sound(job)
        except EdgepackError as error:
            self._end(job, error.exit_code, "", str(error))
            return
        try:
            code, output = self._run(job, hold)
        except ToolError as error:
            problem = f"it could not be started in {job.folder}: {error}"
            self._judge(job, error.exit_code, "", problem)
            return
        if code is None:
            self._persist(
                lambda: self._queue.finish(job, "cancelled", exit_code=STOPPED, output=output)
            )
            self._progress.note(f"job {job.id} was cancelled")
        else:
            self._judge(job, code, output)

    def _run(self, job: Job, hold: _Hold) -> tuple[int | None, str]:
        """Return the exit code of a job's command, None if it was cancelled, and its output.

        Raises:
            ToolError: It could not be started.
            LostJobError: Others may have taken up the job.
        """
        own = {TRY_VARIABLE: f"{job.id}.{job.attempt}"}
        with supervising([*COMMAND, *job.words], cwd=Path(job.folder), environment=own) as program:
            code = None
            while code is None and not hold.is_over:
                code = program.wait(CHILD_LOOK_S)
            hold.require()
            return code, make_printable(program.read_end(OUTPUT_BYTES))

    def _judge(self, job: Job, code: int, output: str, problem: str = "") -> None:
        """Put down a job whose command has ended, or could not be started for a problem."""
        holder = ""
        if code == DeviceError.exit_code:
            holder = self._persist(lambda: _find_holder(job))
        may_pass = code in PASSING or code >= 128
        if holder or (may_pass and job.tries_left > 0):
            tried = job.tries - job.tries_left
            note = holder or problem or f"try {tried} ended with exit code {code}"
            after_s = self.settings.retry_s
            if not holder:
                after_s = min(MOST_RETRY_S, after_s * 2 ** (tried - 1))
            self._persist(
                lambda: self._queue.give_back(
                    job, note, after_s=after_s, counts=not holder, ended=(code, output)
                )
            )
            self._progress.note(f"job {job.id} is given back: {note}")
        else:
            self._end(job, code, output, problem)

    def _end(self, job: Job, code: int, output: str, note: str = "") -> None:
        state: State = "failed" if code else "done"
        self._persist(
            lambda: self._queue.finish(job, state, exit_code=code, output=output, note=note)
        )
        self.ended[code] += 1
        self._progress.note(f"job {job.id} is {state}, exit code {code}")

    def _persist(self, act: Callable[[], Value]) -> Value:
        return persist(act, self._progress, look_s=self.settings.look_s)


class _Hold:
    """A job that this worker has taken up, and whether it may go on."""

    def __init__(self, job: Job, until: float) -> None:
        self.job = job
        self.until = until
        """When it has to have stopped, by the monotonic clock."""
        self.is_cancelled = False
        self.lost: LostJobError | None = None

    @property
    def is_over(self) -> bool:
        """Whether the job's process has to stop."""
        return self.is_cancelled or self.lost is not None or time.monotonic() > self.until

    def require(self) -> None:
        """Check that nobody else may have taken up the job.

        Raises:
            LostJobError: The database has said so, or was not reached for as long.
        """
        if self.lost is not None:
            raise self.lost
        if time.monotonic() > self.until:
            raise LostJobError(
                f"job {self.job.id} was stopped, as the database did not answer for too long:"
                " another worker may have it",
                hint=f"edgepack jobs show {self.job.id}",
            )


@contextmanager
def _holding(queue: JobQueue, job: Job, hold_s: float, asked_at: float) -> Iterator[_Hold]:
    """Say in a thread that a job's worker lives."""
    hold = _Hold(job, asked_at + hold_s * (1 - _SPARE))
    left = threading.Event()

    def extend() -> None:
        while not left.wait(hold_s / _WORDS_IN_HOLD):
            asked_at = time.monotonic()
            try:
                hold.is_cancelled = queue.extend(job, hold_s=hold_s)
            except LostJobError as error:
                hold.lost = error
                return
            except DatabaseError:
                continue
            hold.until = asked_at + hold_s * (1 - _SPARE)

    thread = threading.Thread(target=extend, daemon=True)
    thread.start()
    try:
        yield hold
    finally:
        left.set()


def _require_sound(job: Job) -> None:
    """Check what the database says of a job, and that its bundles are those that were meant.

    Raises:
        UsageError: It is no command that jobs may be.
        BundleError: A bundle is missing or another one.
    """
    if job.words[:1] not in [(command,) for command in JOB_COMMANDS]:
        raise UsageError(
            f"{' '.join(job.words[:1])!r} is no command that a job may be",
            hint=f"these are: {', '.join(JOB_COMMANDS)}",
        )
    for path, digest in job.bundles.items():
        found = load_any(Path(path)).digest
        if found != digest:
            raise BundleError(
                f"the bundle is {found}, and the job was added for {digest}",
                hint="it was built again: add the job once more",
                where=path,
            )


def _find_holder(job: Job) -> str:
    """Return who keeps a job off its devices, in words; empty if nobody does."""
    try:
        devices = select_devices(job.devices)
    except UsageError:  # one was removed
        return ""
    for device in devices:
        with suppress(EdgepackError):  # one that is not reached is no one's
            for lease in list_leases(device):
                if not (lease.reserved and lease.owner == find_own_name()):
                    return f"{device.name} is leased by {lease}"
    return ""

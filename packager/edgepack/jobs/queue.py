"""The queue of jobs in a team's database: who adds, looks, takes up and ends.

A job is taken up under one advisory lock, and needs devices that no running job has; so no device
is used twice, whoever works. Whoever has taken one up says that it lives by
:meth:`JobQueue.extend`; else others may take the job up, and the former one changes nothing of it
any more (:class:`LostJobError`).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from edgepack.base.clock import format_time
from edgepack.base.job_tables import jobs as table
from edgepack.base.job_tables import open_job_database, runs
from edgepack.base.machine import find_own_name
from edgepack.errors import LostJobError, UsageError

if TYPE_CHECKING:
    from datetime import datetime

    from sqlalchemy import ColumnElement, Connection, Row

State = Literal["waiting", "running", "done", "failed", "cancelled"]
OPEN: tuple[State, ...] = ("waiting", "running")
JOB_COMMANDS = ("push", "rollback", "bench", "evaluate", "compare", "optimize", "tune")
"""The commands that jobs may be."""
TRIES = 3
"""How often a job is tried, if nothing else is asked."""
NEXT = """
WITH ready AS (
  SELECT id, devices FROM edgepack_jobs
  WHERE state = 'waiting' AND not_before <= clock_timestamp()
    AND devices <@ CAST(:devices AS varchar[]) AND folder = ANY(CAST(:folders AS varchar[]))
), first AS (
  SELECT device, min(id) AS id FROM ready, unnest(devices) AS device GROUP BY device
)
SELECT ready.id FROM ready JOIN first USING (id)
WHERE NOT EXISTS (
  SELECT FROM edgepack_jobs AS other
  WHERE other.state = 'running' AND other.devices && ready.devices
)
GROUP BY ready.id, ready.devices HAVING count(*) = cardinality(ready.devices)
ORDER BY ready.id LIMIT 1
"""
"""The job that a worker takes up next: the oldest that is the first for each of its devices, of
those that the worker can do now, and whose devices are free."""


@dataclass(frozen=True)
class NewJob:
    """What a job is to do."""

    words: tuple[str, ...]
    """The command line behind ``edgepack``."""
    devices: tuple[str, ...]
    """The devices that it needs for itself."""
    folder: str
    """Where it runs; a worker that has no such folder, or may not enter it, leaves it to others."""
    bundles: Mapping[str, str] = field(default_factory=dict)
    """Absolute paths of the bundles' folders, each with its digest."""
    tries: int = TRIES
    """How often it is tried at most."""


@dataclass(frozen=True)
class JobRun:
    """A report in the results store that a job has measured."""

    id: str
    attempt: int
    """In which of the job's attempts. An earlier one than the job's last was given up after this
    was stored: the job was measured again."""


@dataclass(frozen=True)
class Job:
    """A job as it stands. Times are ISO 8601 in UTC, by the database's clock; empty: not yet."""

    id: int
    words: tuple[str, ...]
    devices: tuple[str, ...]
    folder: str
    bundles: Mapping[str, str]
    owner: str
    """Who added it: ``user@host``."""
    state: State
    attempt: int
    """How often it was taken up, for whatever reason."""
    tries: int
    tries_left: int
    added: str
    not_before: str
    """When it may be taken up, while it waits."""
    started: str
    ended: str
    worker: str
    """Who has taken it up last."""
    stopping: bool
    """Whether it was cancelled while it ran."""
    exit_code: int | None
    """The command's, of its last attempt."""
    output: str
    """The last of what the command has printed, stdout and stderr together."""
    note: str
    """Why it waits, or has failed, where the output does not say so."""
    runs: tuple[JobRun, ...]
    """Its reports in the results store."""


class JobQueue:
    """The jobs of the team whose database the environment names.

    Raises:
        UsageError: The environment names no database of a team.
        ToolError: The database cannot be reached; so do all methods.
        BundleError: Its tables are of another version.
    """

    def __init__(self) -> None:
        self._database = open_job_database()

    @property
    def name(self) -> str:
        """The database's URL, without its password."""
        return self._database.name

    def add(self, new: Sequence[NewJob]) -> list[Job]:
        """Add jobs, all or none of them, and return them."""
        with self._database.writing() as connection:
            made = [
                connection.execute(table.insert().values(**_make_values(one)).returning(table.c.id))
                for one in new
            ]
            ids = [one.scalar_one() for one in made]
        return self._read(table.c.id.in_(ids))

    def list_jobs(self, *, states: Collection[State] = (), limit: int | None = None) -> list[Job]:
        """Return the newest jobs, oldest first.

        Args:
            states: Only those in one of these states; none stands for all.
            limit: How many at most.
        """
        return self._read(table.c.state.in_(states) if states else table.c.id > 0, limit)

    def load(self, number: int) -> Job:
        """Return one job.

        Raises:
            UsageError: There is no such job.
        """
        found = self._read(table.c.id == number)
        if not found:
            raise UsageError(
                f"there is no job {number} in {self.name}", hint="list them: edgepack jobs list"
            )
        return found[0]

    def cancel(self, number: int) -> Job:
        """Cancel a job, and return it; one that runs is stopped by its worker within seconds.

        Raises:
            UsageError: There is no such job, or it has ended.
        """
        with self._database.writing() as connection:
            self._change(
                connection, table.c.id == number, "waiting", {**_ENDED, "state": "cancelled"}
            )
            self._change(connection, table.c.id == number, "running", {"stopping": True})
        job = self.load(number)
        if job.state in ("done", "failed"):
            raise UsageError(
                f"job {number} has ended already: {job.state}", hint=f"edgepack jobs show {number}"
            )
        return job

    def retry(self, number: int) -> Job:
        """Let a job that has failed or was cancelled be done again, with all its tries.

        Raises:
            UsageError: There is no such job, or it has not failed.
        """
        again = {"state": "waiting", "tries_left": table.c.tries, "note": "", "stopping": False}
        again |= {"ended": None, "exit_code": None, "not_before": _now()}
        with self._database.writing() as connection:
            done = [
                self._change(connection, table.c.id == number, state, again)
                for state in ("failed", "cancelled")
            ]
        job = self.load(number)
        if not any(done):
            raise UsageError(
                f"job {number} is {job.state}: there is nothing to try again",
                hint="add it once more: edgepack jobs add -- COMMAND",
            )
        return job

    def claim(self, worker: str, devices: Collection[str], *, hold_s: float) -> Job | None:
        """Take up the next job, and return it; None if there is none for this worker now.

        Args:
            worker: Who takes it up, as others see it.
            devices: The devices that it reaches.
            hold_s: After how many seconds without :meth:`extend` others may take it up.
        """
        from sqlalchemy import text

        with self._database.reading() as connection:  # most looks find nothing, and need no lock
            asked = {"devices": list(devices), "folders": _find_folders(connection)}
            found = connection.execute(text(NEXT), asked).first()
            late = connection.execute(table.select().where(*_late())).first()
        if found is None and late is None:
            return None
        with self._database.writing() as connection:
            self._give_up_late(connection)
            number = connection.execute(text(NEXT), asked).scalar()
            if number is None:
                return None
            taken = {
                "state": "running",
                "worker": worker,
                "attempt": table.c.attempt + 1,
                "tries_left": table.c.tries_left - 1,
                "started": _now(),
                "held_until": _after(hold_s),
                "exit_code": None,
                "output": "",
                "note": "",
            }
            self._change(connection, table.c.id == number, "waiting", taken)
        return self.load(number)

    def extend(self, job: Job, *, hold_s: float) -> bool:
        """Say that a job's worker lives, and return whether the job is to be stopped.

        Raises:
            LostJobError: Others may have taken it up.
        """
        with self._database.explaining_errors(), self._database.engine.begin() as connection:
            row = self._change(connection, _is_held(job), "running", {"held_until": _after(hold_s)})
        if row is None:
            raise _make_lost_error(job)
        return bool(row.stopping)

    def finish(
        self, job: Job, state: State, *, exit_code: int, output: str, note: str = ""
    ) -> None:
        """End a job that this worker has taken up. What was stored already is left as it is.

        Raises:
            LostJobError: Others may have taken it up.
        """
        ended = {**_ENDED, "state": state, "exit_code": exit_code, "output": output, "note": note}
        self._put_down(job, ended, state)

    def give_back(
        self,
        job: Job,
        note: str,
        *,
        after_s: float,
        counts: bool,
        ended: tuple[int | None, str] = (None, ""),
    ) -> None:
        """Let a job that this worker has taken up be done later, by anybody.

        One that was cancelled meanwhile ends with that.

        Args:
            job: Which.
            note: Why.
            after_s: In how many seconds at the earliest.
            counts: Whether this was one of its tries.
            ended: The command's exit code and the last of its output, if it has ended.

        Raises:
            LostJobError: Others may have taken it up.
        """
        back = {
            "state": "waiting",
            "note": note,
            "not_before": _after(after_s),
            "held_until": None,
            "exit_code": ended[0],
            "output": ended[1],
        }
        if not counts:
            back["tries_left"] = table.c.tries_left + 1
        self._put_down(job, back, "waiting")

    def count_open(self, devices: Collection[str]) -> int:
        """Return how many jobs wait or run that need no other devices than these."""
        from sqlalchemy import func, select

        mine = table.c.devices.contained_by(list(devices))
        asked = select(func.count()).where(table.c.state.in_(OPEN), mine)
        with self._database.reading() as connection:
            return connection.execute(asked).scalar_one()

    def _read(self, wanted: ColumnElement[bool], limit: int | None = None) -> list[Job]:
        from sqlalchemy import select

        newest = select(table).where(wanted).order_by(table.c.id.desc()).limit(limit)
        with self._database.reading() as connection:
            rows = connection.execute(newest).all()
            ids = [row.id for row in rows]
            measured = connection.execute(
                select(runs).where(runs.c.job.in_(ids)).order_by(runs.c.run)
            ).all()
        return [
            _make_job(row, [one for one in measured if one.job == row.id]) for row in rows[::-1]
        ]

    def _put_down(self, job: Job, values: Mapping[str, Any], state: State) -> None:
        with self._database.writing() as connection:
            row = self._change(connection, _is_held(job), "running", values)
            if row is None:
                # Of a change whose answer was lost with the connection, and that is tried again.
                row = self._change(connection, _is_held(job), state, {"state": state})
            elif row.stopping:
                cancelled = {**_ENDED, "state": "cancelled"}
                self._change(connection, _is_held(job), "waiting", cancelled)
        if row is None:
            raise _make_lost_error(job)

    def _give_up_late(self, connection: Connection) -> None:
        """Let go what its workers were not heard of; with no tries left, it has failed."""
        note = "its worker was not heard of any more; it may have been killed"
        done = {**_ENDED, "note": note}
        late = _late()
        connection.execute(
            table.update().where(*late, table.c.stopping).values(**done, state="cancelled")
        )
        connection.execute(
            table.update().where(*late, table.c.tries_left <= 0).values(**done, state="failed")
        )
        connection.execute(
            table.update().where(*late).values(state="waiting", note=note, held_until=None)
        )

    @staticmethod
    def _change(
        connection: Connection,
        which: ColumnElement[bool],
        state: State,
        values: Mapping[str, Any],
    ) -> Row[Any] | None:
        """Change a job that is in a state, and return it; None if it is not."""
        changed = table.update().where(which, table.c.state == state)
        return connection.execute(changed.values(**values).returning(table)).first()


def _find_folders(connection: Connection) -> list[str]:
    """Return the folders of jobs that have not ended, as far as this process may enter them."""
    from sqlalchemy import select

    asked = select(table.c.folder).where(table.c.state.in_(OPEN)).distinct()
    # Path.is_dir raises where a folder above may not be entered.
    return [one for one in connection.execute(asked).scalars() if os.access(f"{one}/.", os.X_OK)]


def _now() -> Any:  # noqa: ANN401  (an expression of SQLAlchemy's)
    from sqlalchemy import DateTime, func

    kind = DateTime(timezone=True)
    return func.clock_timestamp(
        type_=kind
    )  # now() is when the transaction began, which may have waited


_ENDED: dict[str, Any] = {"ended": _now(), "held_until": None}


def _after(seconds: float) -> Any:  # noqa: ANN401
    from datetime import timedelta

    return _now() + timedelta(seconds=seconds)


def _late() -> tuple[ColumnElement[bool], ...]:
    return table.c.state == "running", table.c.held_until < _now()


def _is_held(job: Job) -> ColumnElement[bool]:
    return (table.c.id == job.id) & (table.c.attempt == job.attempt)


def _make_values(new: NewJob) -> dict[str, object]:
    return {
        "words": list(new.words),
        "devices": sorted(set(new.devices)),
        "folder": new.folder,
        "bundles": list(new.bundles),
        "digests": list(new.bundles.values()),
        "owner": find_own_name(),
        "tries": new.tries,
        "tries_left": new.tries,
    }


def _make_job(row: Row[Any], measured: Sequence[Row[Any]]) -> Job:
    return Job(
        id=row.id,
        words=tuple(row.words),
        devices=tuple(row.devices),
        folder=row.folder,
        bundles=dict(zip(row.bundles, row.digests, strict=True)),
        owner=row.owner,
        state=row.state,
        attempt=row.attempt,
        tries=row.tries,
        tries_left=row.tries_left,
        added=_format(row.added),
        not_before=_format(row.not_before),
        started=_format(row.started),
        ended=_format(row.ended),
        worker=row.worker,
        stopping=row.stopping,
        exit_code=row.exit_code,
        output=row.output,
        note=row.note,
        runs=tuple(JobRun(one.run, one.attempt) for one in measured),
    )


def _format(moment: datetime | None) -> str:
    return format_time(moment) if moment else ""


def _make_lost_error(job: Job) -> LostJobError:
    return LostJobError(
        f"job {job.id} was given to another worker, as this one was not heard of",
        hint=f"edgepack jobs show {job.id}",
    )

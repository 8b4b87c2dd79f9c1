"""Waits for jobs to end, and for a database that does not answer."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from edgepack.base.progress import Progress, Silent
from edgepack.errors import DatabaseError
from edgepack.jobs.queue import OPEN, Job, JobQueue

LOOK_S = 2.0
Value = TypeVar("Value")


def wait_for_jobs(
    queue: JobQueue,
    numbers: Sequence[int],
    *,
    most_s: float | None = None,
    look_s: float = LOOK_S,
    progress: Progress | None = None,
) -> list[Job]:
    """Return jobs once all of them have ended, or as they are after ``most_s`` seconds.

    A database that does not answer is waited for as long; ``progress`` is told.

    Raises:
        UsageError: There is no such job.
        ToolError: The database cannot be reached, and the time is over.
    """
    end = math.inf if most_s is None else time.monotonic() + most_s
    said = progress or Silent()
    while True:
        jobs = persist(
            lambda: [queue.load(number) for number in numbers], said, look_s=look_s, end=end
        )
        if not any(job.state in OPEN for job in jobs) or time.monotonic() > end:
            return jobs
        time.sleep(look_s)


def persist(
    act: Callable[[], Value], progress: Progress, *, look_s: float, end: float = math.inf
) -> Value:
    """Do something with the database, and wait for it where it does not answer.

    Args:
        act: What is done.
        progress: Is told of the wait, once.
        look_s: Seconds between two tries.
        end: Until when, by the monotonic clock.

    Raises:
        DatabaseError: It has not answered until then.
    """
    noted = False
    while True:
        try:
            return act()
        except DatabaseError as error:
            if time.monotonic() > end:
                raise
            if not noted:
                progress.note(f"waiting for the database: {error.first_line}")
            noted = True
        time.sleep(look_s)

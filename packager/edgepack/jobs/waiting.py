"""Waits for jobs to end."""

from __future__ import annotations

import time
from collections.abc import Sequence

from edgepack.jobs.queue import OPEN, Job, JobQueue

LOOK_S = 2.0


def wait_for_jobs(
    queue: JobQueue,
    numbers: Sequence[int],
    *,
    most_s: float | None = None,
    look_s: float = LOOK_S,
) -> list[Job]:
    """Return jobs once all of them have ended, or as they are after ``most_s`` seconds.

    Raises:
        UsageError: There is no such job.
        ToolError: The database cannot be reached.
    """
    end = None if most_s is None else time.monotonic() + most_s
    while True:
        jobs = [queue.load(number) for number in numbers]
        if not any(job.state in OPEN for job in jobs) or (end and time.monotonic() > end):
            return jobs
        time.sleep(look_s)

"""Requests that wait for a model: so many at most, each until its deadline, joined to batches.

A model takes one batch at a time, because onnxruntime gives all cores to one. Who comes when the
queue is full, or waits beyond the deadline, is told so at once; who is gone is not run.

All of this is for one event loop; only the model itself runs in a thread. Jobs go to it through a
queue, and results come back as one call in the loop: futures of an executor would take 0.1 ms more
once a model has left the caches cold.

Needs Python 3.8 or newer; nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import queue
import threading
import time
from collections import deque
from typing import Any, Callable, Deque, List, Optional, Sequence, Union

if __package__:
    from .edgepack_settings import Limits
else:  # a bundle's
    from edgepack_settings import Limits  # type: ignore[import-not-found,no-redef]

CLOCK = time.monotonic


class RefusedError(Exception):
    """A request is not run.

    Attributes:
        status: Of HTTP.
        reason: One word, for metrics.
    """

    def __init__(self, status: int, reason: str, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.reason = reason


class Job:
    """A request in the queue.

    Attributes:
        work: What the model is given.
        kind: Jobs of equal kinds can be joined; None: never.
        came_s: As :data:`CLOCK` has it, as ``deadline_s``.
        deadline_s: Until when it waits.
        result: Done when it has run, or is not run.
    """

    def __init__(self, work: Any, kind: Any, deadline_s: float) -> None:
        self.work = work
        self.kind = kind
        self.came_s = CLOCK()
        self.deadline_s = deadline_s
        self.result: "asyncio.Future[Any]" = asyncio.get_running_loop().create_future()


class Queue:
    """The queue of a model, for the event loop in which it is made, with the thread that runs it.

    Args:
        run: Takes the work of jobs of one kind, and returns a result for each; called in the
            thread. What it raises each of the jobs raises.
        limits: What it may hold.
        on_start: Called with the seconds that each job of a batch waited, before it runs.
        name: Of the thread.
    """

    def __init__(
        self,
        run: Callable[[Sequence[Any]], Sequence[Any]],
        limits: Limits,
        on_start: Callable[[Sequence[float]], None],
        name: str,
    ) -> None:
        self.limits = limits
        self.is_running = False
        """Whether the model runs, so that the next request waits."""
        self._run = run
        self._on_start = on_start
        self._jobs: Deque[Job] = deque()
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._delay: Optional[asyncio.TimerHandle] = None
        self._batches: "queue.SimpleQueue[Optional[List[Job]]]" = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._jobs)

    def check_room(self) -> None:
        """Return if one more may wait.

        Raises:
            RefusedError: The queue is full or closed.
        """
        if self._closed:
            raise RefusedError(503, "stopping", "the service stops")
        if len(self._jobs) >= self.limits.waiting:
            raise RefusedError(429, "full", f"{len(self._jobs)} requests wait already: try later")

    async def submit(self, work: Any, kind: Any, deadline_s: float) -> Any:
        """Return the result of a request once it has run; one that is cancelled is not run.

        Raises:
            RefusedError: The queue is full or closed, or the deadline passed while it waited.
        """
        self.check_room()
        job = Job(work, kind, deadline_s)
        self._jobs.append(job)
        self._begin()
        if not self._jobs:  # it runs
            return await job.result
        timer = self._loop.call_later(max(0.0, deadline_s - job.came_s), self._expire, job)
        try:
            return await job.result
        finally:
            timer.cancel()
            self._remove(job)

    def _remove(self, job: Job) -> None:
        with contextlib.suppress(ValueError):
            self._jobs.remove(job)

    def _expire(self, job: Job) -> None:
        if not self.is_running:  # it is of the batch that waits for others
            self._begin_now()
        elif job in self._jobs and not job.result.done():
            self._remove(job)
            waited_ms = 1000 * (CLOCK() - job.came_s)
            text = f"it waited {waited_ms:.0f} ms, beyond its deadline"
            job.result.set_exception(RefusedError(503, "deadline", text))

    async def close(self) -> None:
        """Take nothing more, and return when what waits has run."""
        self._closed = True
        self._begin()
        await self._loop.run_in_executor(None, self._thread.join)

    def _begin(self) -> None:
        """Run the next batch, unless one runs or the next waits for others."""
        if self.is_running:
            return
        if not self._can_grow():
            self._begin_now()
        elif self._delay is None:
            self._delay = self._loop.call_later(self.limits.delay_s, self._begin_now)

    def _can_grow(self) -> bool:
        """Whether another job may join all that wait: none overtakes another."""
        most = min(self.limits.joined, self.limits.waiting)
        if not self.limits.delay_s or self._closed or not 0 < len(self._jobs) < most:
            return False
        return self._jobs[0].kind is not None and self._count_alike() == len(self._jobs)

    def _count_alike(self) -> int:
        """Return how many jobs in front can be one batch."""
        kind = self._jobs[0].kind
        if kind is None:
            return 1
        alike = itertools.takewhile(lambda job: job.kind == kind, self._jobs)
        return len(list(itertools.islice(alike, self.limits.joined)))

    def _begin_now(self) -> None:
        if self._delay is not None:
            self._delay.cancel()
            self._delay = None
        if self._jobs:
            self.is_running = True
            jobs = [self._jobs.popleft() for _ in range(self._count_alike())]
            began_s = CLOCK()
            self._on_start([began_s - job.came_s for job in jobs])
            self._batches.put(jobs)
        elif self._closed:
            self._batches.put(None)

    def _work(self) -> None:
        """Run batches, in the thread, until the queue is closed and empty."""
        while True:
            jobs = self._batches.get()
            if jobs is None:
                return
            outcome: Union[Sequence[Any], BaseException]
            try:
                outcome = self._run([job.work for job in jobs])
            except BaseException as error:  # noqa: BLE001  (each of the jobs raises it)
                outcome = error
            self._loop.call_soon_threadsafe(self._finish, jobs, outcome)
            del jobs, outcome  # else they were held until the next batch comes

    def _finish(self, jobs: List[Job], outcome: Union[Sequence[Any], BaseException]) -> None:
        self.is_running = False
        self._begin()
        for number, job in enumerate(jobs):
            if job.result.done():
                continue
            if isinstance(outcome, BaseException):
                job.result.set_exception(outcome)
            else:
                job.result.set_result(outcome[number])

"""Requests that wait for a model: so many at most, each until its deadline, joined to batches.

A model takes one batch at a time, because onnxruntime gives all cores to one. Who comes when the
queue is full, or waits beyond the deadline, is told so at once; who is gone is not run.

All of this is for one event loop; only the model itself runs in a thread.

Needs Python 3.8 or newer; nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from concurrent.futures import Executor
from typing import Any, Callable, Deque, List, Sequence

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
    """The queue of a model, for the event loop in which it is made.

    Args:
        run: Takes the work of jobs of one kind, and returns a result for each; called in a thread
            of the executor. What it raises each of the jobs raises.
        executor: With one thread.
        limits: What it may hold.
        on_start: Called with the seconds that each job of a batch waited, before it runs.
    """

    def __init__(
        self,
        run: Callable[[Sequence[Any]], Sequence[Any]],
        executor: Executor,
        limits: Limits,
        on_start: Callable[[Sequence[float]], None],
    ) -> None:
        self.limits = limits
        self.is_running = False
        """Whether the model runs, so that the next request waits."""
        self._run = run
        self._executor = executor
        self._on_start = on_start
        self._jobs: Deque[Job] = deque()
        self._came = asyncio.Event()
        self._closed = False

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
        left_s = max(0.0, deadline_s - job.came_s)
        timer = asyncio.get_running_loop().call_later(left_s, self._expire, job)
        self._jobs.append(job)
        self._came.set()
        try:
            return await job.result
        finally:
            timer.cancel()
            self._remove(job)

    def _remove(self, job: Job) -> None:
        with contextlib.suppress(ValueError):
            self._jobs.remove(job)

    def _expire(self, job: Job) -> None:
        if job in self._jobs and not job.result.done():
            self._remove(job)
            waited_ms = 1000 * (CLOCK() - job.came_s)
            text = f"it waited {waited_ms:.0f} ms, beyond its deadline"
            job.result.set_exception(RefusedError(503, "deadline", text))

    def close(self) -> None:
        """Take nothing more; :meth:`work` ends when what waits has run."""
        self._closed = True
        self._came.set()

    async def work(self) -> None:
        """Run what comes, until the queue is closed and empty."""
        while True:
            while not self._jobs:
                if self._closed:
                    return
                self._came.clear()
                await self._came.wait()
            first = self._jobs.popleft()
            self.is_running = True
            await self._run_batch([first, *await self._join(first)])
            self.is_running = False

    async def _join(self, first: Job) -> List[Job]:
        """Return jobs of the first one's kind that are right behind it: none overtakes another."""
        most = self.limits.joined - 1
        if first.kind is None or not most:
            return []
        joined: List[Job] = []
        until_s = min(CLOCK() + self.limits.delay_s, first.deadline_s)
        while len(joined) < most and not self._closed:
            if self._jobs and self._jobs[0].kind != first.kind:
                break
            if self._jobs:
                joined.append(self._jobs.popleft())
                until_s = min(until_s, joined[-1].deadline_s)
                continue
            self._came.clear()
            left_s = until_s - CLOCK()
            if left_s <= 0:
                break
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._came.wait(), left_s)
        return joined

    async def _run_batch(self, taken: Sequence[Job]) -> None:
        jobs = [job for job in taken if not job.result.done()]
        if not jobs:
            return
        began_s = CLOCK()
        self._on_start([began_s - job.came_s for job in jobs])
        run = asyncio.get_running_loop().run_in_executor(
            self._executor, self._run, [job.work for job in jobs]
        )
        outcomes = await asyncio.gather(run, return_exceptions=True)
        outcome = outcomes[0]
        for number, job in enumerate(jobs):
            if job.result.done():
                continue
            if isinstance(outcome, BaseException):
                job.result.set_exception(outcome)
            else:
                job.result.set_result(outcome[number])

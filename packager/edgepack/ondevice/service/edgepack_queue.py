"""Requests that wait for a model: so many at most, each until its deadline, joined to batches.

A model takes one batch at a time, because onnxruntime gives all cores to one. Who comes when the
queue is full, or waits beyond the deadline, is told so at once.

All of this is for one event loop; only the model itself runs in a thread.

Needs Python 3.8 or newer; nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from concurrent.futures import Executor
from typing import Any, Callable, Deque, List, NamedTuple, Optional, Sequence

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


class Job(NamedTuple):
    """A request in the queue."""

    work: Any
    kind: Any
    """Jobs of equal kinds can be joined; None: never."""
    came_s: float
    deadline_s: float
    """Both as :data:`CLOCK` has them."""
    result: "asyncio.Future[Any]"


class Queue:
    """The queue of a model.

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
        self._run = run
        self._executor = executor
        self._on_start = on_start
        self._jobs: Deque[Job] = deque()
        self._came = asyncio.Event()
        self._closed = False

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._jobs)

    async def submit(self, work: Any, kind: Any, deadline_s: float) -> Any:
        """Return the result of a request once it has run.

        Raises:
            RefusedError: The queue is full or closed, or the deadline passed while it waited.
        """
        if self._closed:
            raise RefusedError(503, "stopping", "the service stops")
        if len(self._jobs) >= self.limits.waiting:
            raise RefusedError(429, "full", f"{len(self._jobs)} requests wait already: try later")
        result = asyncio.get_running_loop().create_future()
        self._jobs.append(Job(work, kind, CLOCK(), deadline_s, result))
        self._came.set()
        return await result

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
            first = self._take()
            if first is not None:
                await self._run_batch([first, *await self._join(first)])

    def _take(self) -> Optional[Job]:
        """Return the next job; None if its deadline has passed or its client is gone."""
        job = self._jobs.popleft()
        now_s = CLOCK()
        if job.result.done():  # cancelled
            return None
        if job.deadline_s > now_s:
            return job
        waited_ms = 1000 * (now_s - job.came_s)
        text = f"it waited {waited_ms:.0f} ms, beyond its deadline"
        job.result.set_exception(RefusedError(503, "deadline", text))
        return None

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
                job = self._take()
                joined += [job] if job else []
                continue
            self._came.clear()
            left_s = until_s - CLOCK()
            if left_s <= 0:
                break
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._came.wait(), left_s)
        return joined

    async def _run_batch(self, jobs: Sequence[Job]) -> None:
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

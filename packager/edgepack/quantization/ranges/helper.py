"""Another process that counts some of the samples.

Threads would not do: half of the time of counting is ``numpy.bincount``, which keeps the
interpreter's lock (numpy 2.4.6).
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

from edgepack.base.processes import Workers
from edgepack.model.custom_ops import find_registered, registered
from edgepack.quantization.ranges.counter import Counter, Sample
from edgepack.quantization.ranges.layout import Layout
from edgepack.quantization.ranges.tally import Tally

_ROOM = 2
"""A sample waits while one is counted, so that the process never does."""


class Helper:
    """A :class:`~edgepack.quantization.ranges.counter.Counter` in a separate process.

    Use it as a context manager; leaving it ends the process.
    """

    def __init__(self, model: Path, layout: Layout) -> None:
        self._workers = Workers(1)
        self._thread = ThreadPoolExecutor(1)
        self._pending: deque[Future[Any]] = deque()
        self._submit_call(_open_counter, model, layout, find_registered())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._workers.__exit__(*error)
        self._thread.shutdown(cancel_futures=True)

    def has_room(self) -> bool:
        """Return whether it can take a sample now.

        Raises:
            EdgepackError: A sample that it has taken led to this error.
        """
        while self._pending and self._pending[0].done():
            self._pending.popleft().result()
        return len(self._pending) < _ROOM

    def take(self, number: int, sample: Sample) -> None:
        """Have a sample counted; its errors are raised later."""
        self._submit_call(_take_sample, number, sample)

    def end(self) -> dict[str, Tally]:
        """Return what was counted of all samples.

        Raises:
            EdgepackError: A sample led to this error.
            ToolError: The process died.
        """
        self._submit_call(_finish_counting)
        while len(self._pending) > 1:
            self._pending.popleft().result()
        tallies: dict[str, Tally] = self._pending.popleft().result()
        return tallies

    def _submit_call(self, function: Callable[..., Any], *arguments: object) -> None:
        self._pending.append(self._thread.submit(self._workers.call, function, *arguments))


class _Here:
    """What this process counts for another one."""

    open = contextlib.ExitStack()
    counter: Counter


def _open_counter(model: Path, layout: Layout, library: Path | None) -> None:
    _Here.open.enter_context(registered(library))
    _Here.counter = _Here.open.enter_context(Counter.open(model, layout, 1, behind=False))


def _take_sample(number: int, sample: Sample) -> None:
    _Here.counter.take(number, sample)


def _finish_counting() -> dict[str, Tally]:
    return _Here.counter.end()

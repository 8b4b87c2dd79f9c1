"""Runs asyncssh in one event loop, in a thread of its own, for all SSH connections of a process.

Nothing in the loop may wait for anything but the loop: files are read and programs are run in the
threads that call :meth:`Loop.run`, so that one slow device never delays another.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar

_Result = TypeVar("_Result")

_LOG = logging.getLogger("edgepack.ssh")
NAME = "ssh"
"""Of the process's loop."""
_EXECUTOR_THREADS = 8
"""Files of hosts on the way are read there, and asyncssh makes its options there."""
_END_S = 2.0


class Loop:
    """An event loop that runs in a thread until it is stopped; its threads have its name."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._executor = ThreadPoolExecutor(_EXECUTOR_THREADS, thread_name_prefix=name)
        self._loop.set_default_executor(self._executor)
        self._loop.set_exception_handler(_note_error)
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, _Result]) -> _Result:
        """Run a coroutine, wait for its result in this thread, and raise what it raises.

        An interrupt (Ctrl-C) cancels it.
        """
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        finally:
            future.cancel()

    def call(self, function: Callable[..., object], *arguments: object) -> None:
        """Call a function in the loop, after all that was asked for before, and do not wait."""
        self._loop.call_soon_threadsafe(function, *arguments)

    def call_later(self, seconds: float, function: Callable[[], object]) -> Callable[[], None]:
        """Call a function in the loop after a time; return what prevents that, if called before."""
        timers: list[asyncio.TimerHandle] = []
        self.call(lambda: timers.append(self._loop.call_later(seconds, function)))

        def cancel() -> None:
            self.call(lambda: timers[0].cancel())  # noqa: PLW0108  (it is not there yet)

        return cancel

    def stop(self) -> None:
        """Cancel what still runs in the loop, and end its threads."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop)
        self._thread.join(_END_S)
        self._executor.shutdown(wait=False, cancel_futures=True)
        if not self._loop.is_running():
            self._loop.close()

    async def _end(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others, timeout=_END_S)
        self._loop.stop()


def _note_error(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log what nobody waited for; without this, Python would print it."""
    _LOG.debug(context["message"], exc_info=context.get("exception"))


_starting = threading.Lock()


def find_loop() -> Loop:
    """Return the process's loop; the first call starts it, the process's end stops it."""
    with _starting:  # many devices' threads may be the first together
        return _start_loop()


@cache
def _start_loop() -> Loop:
    loop = Loop(NAME)
    atexit.register(loop.stop)
    return loop

"""Worker processes that tests use one after another.

A build starts three, and each loads numpy, onnx and onnxruntime: most of a small build's time. One
build gives a worker many steps, so to be used again is nothing new to it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from edgepack.base.processes import Worker, WorkerPool, use_pool

_OF_EACH_TEST = (
    "HOME",
    "PYTEST_CURRENT_TEST",
    "PYTHONPATH",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
)
_CHANGING = (
    "edgepack.quantization.ranges.helper",
    "edgepack.model.simulating",
    "edgepack.trying.running",
    "edgepack.trying.verify",
)
"""The first opens what later calls use; the others load plugins, and one limits the memory."""
_MOST_IDLE = 3
_MOST_BYTES = 400_000_000
_SETTLE = """
import os
import sys
import tempfile
before, after = (
    [path for path in each.get("PYTHONPATH", "").split(os.pathsep) if path]
    for each in (os.environ, {values!r})
)
sys.path[:] = [*after, *(path for path in sys.path if path not in before)]
for name in {names!r}:
    os.environ.pop(name, None)
os.environ.update({values!r})
os.chdir({folder!r})
tempfile.tempdir = None
"""


@contextmanager
def kept_workers() -> Iterator[None]:
    """Let builds take the workers that earlier ones left idle, in a pool of this process."""
    kept = KeptWorkers()
    with use_pool(kept):
        yield
    for worker in kept.idle:
        worker.stop()


class _Kept(Worker):
    """A worker that knows whether another build may have it.

    One that computes nothing when its build fails is kept too; for that build it is killed.
    """

    def __init__(self, scratch: str, pool: KeptWorkers) -> None:
        self.environment = _environment()
        self.was_changed = False
        self._pool = pool
        self._is_busy = False
        self._was_killed = False
        super().__init__(scratch)

    def call(self, function, arguments, told):
        self.was_changed |= function.__module__ in _CHANGING
        self._is_busy = True
        if self._was_killed:
            super().kill()
        try:
            return super().call(function, arguments, told)
        finally:
            self._is_busy = False

    def kill(self) -> None:
        self._was_killed = True
        if self._is_busy:
            super().kill()

    def end(self) -> None:
        if self._is_busy or not self.can_be_kept:
            self.stop()
        else:
            self._pool.leave([self])

    def stop(self) -> None:
        """Kill it in any case, and release its pipes."""
        super().kill()
        super().end()

    @property
    def can_be_kept(self) -> bool:
        return self.is_alive and not self.was_changed and self._resident_bytes() < _MOST_BYTES

    def settle(self, scratch: str) -> None:
        """Take this process's folder and environment, and forget what was printed.

        Temporary files go to ``scratch``, as those of a worker that was started for it.
        """
        self._was_killed = False
        self._log.seek(0)
        self._log.truncate()
        values = {name: os.environ[name] for name in _OF_EACH_TEST if name in os.environ}
        values["TMPDIR"] = scratch
        source = _SETTLE.format(names=_OF_EACH_TEST, values=values, folder=str(Path.cwd()))
        self.call(exec, (source, {}), {})

    def _resident_bytes(self) -> int:
        pages = Path(f"/proc/{self._child.pid}/statm")
        if not pages.exists():
            return 0
        return int(pages.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class KeptWorkers(WorkerPool):
    """Keeps a few workers.

    Not one that may have changed, nor for a build with another environment.
    """

    def __init__(self) -> None:
        self.idle: list[_Kept] = []
        self._lock = threading.Lock()

    def take(self, scratch: str) -> _Kept:
        environment = _environment()
        with self._lock:
            fitting = [worker for worker in self.idle if worker.environment == environment]
            if fitting:
                self.idle.remove(fitting[0])
        worker = fitting[0] if fitting else _Kept(scratch, self)
        worker.settle(scratch)
        return worker

    def leave(self, idle: Sequence[Worker]) -> None:
        kept = [each for each in idle if isinstance(each, _Kept)]
        with self._lock:
            known = [*kept, *self.idle]
            self.idle = [each for each in known if each.can_be_kept][:_MOST_IDLE]
            left = set(known) - set(self.idle)
        for worker in left:
            worker.stop()


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in _OF_EACH_TEST}

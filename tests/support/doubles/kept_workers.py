"""Worker processes that tests use one after another.

A build starts three, and each loads numpy, onnx and onnxruntime: most of a small build's time. One
build gives a worker many steps, so to be used again is nothing new to it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from edgepack.base import processes

_OF_EACH_TEST = (
    "HOME",
    "PYTEST_CURRENT_TEST",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
)
_MOST_IDLE = 3
_MOST_BYTES = 400_000_000
_SETTLE = """
import os
import tempfile
from edgepack.model.running import make_session
for name in {names!r}:
    os.environ.pop(name, None)
os.environ.update({values!r})
os.chdir({folder!r})
tempfile.tempdir = None
make_session.__kwdefaults__["threads"] = 1
"""


@contextmanager
def kept_workers() -> Iterator[None]:
    """Let :class:`edgepack.base.processes.Workers` take the workers that earlier ones left idle.

    A worker that was killed, or may have changed, is not taken again, nor is one where a test has
    changed the environment.
    """
    kept = _Kept()

    def leave(workers: processes.Workers, *error: object) -> None:
        kept.leave(workers)
        kept.leave_none(workers, *error)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "_Worker", kept.take)
        patch.setattr(processes.Workers, "__exit__", leave)
        yield
    for worker in kept.idle:
        worker.kill()
        worker.close()


class _Worker(processes._Worker):
    def __init__(self, scratch: str) -> None:
        self.environment = _environment()
        self.was_changed = False
        super().__init__(scratch)

    def call(self, function, arguments, told):
        # It opens what later calls use.
        self.was_changed |= function.__module__ == "edgepack.quantization.ranges.helper"
        return super().call(function, arguments, told)

    @property
    def can_be_kept(self) -> bool:
        return self.is_alive and not self.was_changed and self._resident_bytes() < _MOST_BYTES

    def settle(self, scratch: str) -> None:
        """Take this process's folder and environment, and forget what was printed.

        Temporary files go to ``scratch``, as those of a worker that was started for it.

        Sessions have one thread: those of several processes that wait for work keep all CPUs busy.
        """
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


class _Kept:
    def __init__(self) -> None:
        self.idle: list[_Worker] = []
        self.lock = threading.Lock()
        self.leave_none = processes.Workers.__exit__

    def take(self, scratch: str) -> _Worker:
        environment = _environment()
        with self.lock:
            fitting = [worker for worker in self.idle if worker.environment == environment]
            if fitting:
                self.idle.remove(fitting[0])
        worker = fitting[0] if fitting else _Worker(scratch)
        worker.settle(scratch)
        return worker

    def leave(self, workers: processes.Workers) -> None:
        with workers._lock:
            kept = [worker for worker in workers._idle if worker.can_be_kept]  # type: ignore[attr-defined]
            workers._idle = []
            workers._all = [worker for worker in workers._all if worker not in kept]
        with self.lock:
            self.idle = [*kept, *self.idle]
            surplus, self.idle = self.idle[_MOST_IDLE:], self.idle[:_MOST_IDLE]
        for worker in surplus:
            worker.kill()
            worker.close()


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in _OF_EACH_TEST}

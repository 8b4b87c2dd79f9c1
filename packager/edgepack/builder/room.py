"""What this machine has for the steps of builds that run at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from edgepack.base.machine import read_available_memory

_LOOK_S = 0.5


@dataclass
class Room:
    """Places and memory; its methods may be called from several threads."""

    places: int
    """How many steps run at the same time."""
    memory_bytes: int = field(default_factory=read_available_memory)
    inside: int = 0
    used_bytes: int = 0
    changed: threading.Condition = field(default_factory=threading.Condition)

    @contextmanager
    def take(self, needed: int, stopping: threading.Event) -> Iterator[None]:
        """Wait until a step fits beside those that run, and keep its place; one always fits.

        Args:
            needed: How much memory it takes, in bytes.
            stopping: Set where the build is given up, and so waits no longer.
        """
        with self.changed:
            while not self._fits(needed) and not stopping.is_set():
                self.changed.wait(_LOOK_S)
            self.inside += 1
            self.used_bytes += needed
        try:
            yield
        finally:
            with self.changed:
                self.inside -= 1
                self.used_bytes -= needed
                self.changed.notify_all()

    def _fits(self, needed: int) -> bool:
        if not self.inside:
            return True
        return self.inside < self.places and self.used_bytes + needed <= self.memory_bytes

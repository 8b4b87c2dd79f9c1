"""Caches what was found out about a bundle, for as long as its files stay unchanged.

So a push to five hundred devices hashes and cuts the bundle once.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Generic, TypeVar

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")
_Stamp = tuple[str, int, int, int, int, int]

MOST = 16
"""The number of values that are kept; a rollout has one bundle for each target."""


@dataclass
class _Entry(Generic[ValueT]):
    lock: Lock = field(default_factory=Lock)
    made: tuple[object, ValueT] | None = None


class Kept(Generic[KeyT, ValueT]):
    """A function of files whose value is kept until the files change.

    Threads that need the same value wait for the one that makes it. An error is not kept.

    Args:
        make: Returns the value.
        stamp: Returns a value that changes when the files do, such as :func:`read_stamps`.
    """

    def __init__(self, make: Callable[[KeyT], ValueT], stamp: Callable[[KeyT], object]) -> None:
        self._make = make
        self._stamp = stamp
        self._lock = Lock()
        self._entries: dict[KeyT, _Entry[ValueT]] = {}

    def __call__(self, key: KeyT) -> ValueT:
        """Return the value."""
        with self._lock:
            entry = self._entries.pop(key, None) or _Entry()
            self._entries[key] = entry  # the newest comes last
            while len(self._entries) > MOST:
                del self._entries[next(iter(self._entries))]
        with entry.lock:
            now = self._stamp(key)  # before the value: a change meanwhile is noticed next time
            if entry.made is None or entry.made[0] != now:
                entry.made = (now, self._make(key))
            return entry.made[1]

    def begin(self, key: KeyT) -> None:
        """Make the value in a thread, in advance; an error is raised only where it is used."""
        pool = ThreadPoolExecutor(1)
        pool.submit(self, key)
        pool.shutdown(wait=False)


def read_stamps(*paths: Path) -> frozenset[_Stamp]:
    """Return name, inode, mode, size and times of files, and of everything below folders.

    Each write to a file changes its ``st_ctime_ns``, which no program can set.
    """
    found: set[_Stamp] = set()
    for path in paths:
        names = [str(path)]
        for folder, folders, files in os.walk(path):
            names += [f"{folder}/{name}" for name in (*folders, *files)]
        found.update(map(_read_stamp, names))
    return frozenset(found)


def _read_stamp(name: str) -> _Stamp:
    try:
        found = os.lstat(name)
    except OSError:
        return (name, 0, 0, 0, 0, 0)
    return (
        name,
        found.st_ino,
        found.st_mode,
        found.st_size,
        found.st_mtime_ns,
        found.st_ctime_ns,
    )

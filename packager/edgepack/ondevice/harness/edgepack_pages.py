"""Drops files from the system's memory, so that what reads them next has to read the disk.

Needs no rights but to read the files. Needs Python 3.8.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path
from typing import Iterable

RESIDENT_LIMIT = 0.01
"""The share of a file's pages that may stay in memory."""


def drop(paths: Iterable[Path]) -> str:
    """Drop files from the page cache; return why that was not possible, else an empty text.

    Pages that another process has mapped stay, and all those of a file system that keeps its files
    in memory. Source: posix_fadvise(2), ``POSIX_FADV_DONTNEED``; pages that are not on the disk yet
    stay too, hence the fsync.
    """
    if not hasattr(os, "posix_fadvise"):
        return "this system cannot drop a file from memory: it has no posix_fadvise"
    for path in paths:
        try:
            left = _drop(path)
        except OSError as error:
            return f"{path.name} cannot be dropped from memory: {error.strerror}"
        if left > RESIDENT_LIMIT:
            return f"{left:.0%} of {path.name} stayed in memory after it was to be dropped"
    return ""


def _drop(path: Path) -> float:
    """Drop a file and return which share of its pages stayed."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        return measure_resident_share(descriptor)
    finally:
        os.close(descriptor)


def measure_resident_share(descriptor: int) -> float:
    """Return which share of a file's pages is in memory, by mincore(2).

    The system reports that only to the file's owner and to those who may write to it; for others
    every page counts as in memory.
    """
    size = os.fstat(descriptor).st_size
    if size == 0:
        return 0.0
    pages = -(-size // mmap.PAGESIZE)
    found = (ctypes.c_ubyte * pages)()
    libc = ctypes.CDLL(None, use_errno=True)
    # A private mapping, because Python gives the address of writable ones only; none is written.
    with mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY) as mapped:
        first = ctypes.c_char.from_buffer(mapped)
        try:
            start = ctypes.c_void_p(ctypes.addressof(first))
            if libc.mincore(start, ctypes.c_size_t(size), found) != 0:
                raise OSError(ctypes.get_errno(), "mincore")
        finally:
            del first
    return sum(page & 1 for page in found) / pages

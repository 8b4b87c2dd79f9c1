"""A ring of records in one small file: what counters have summed up, over processes and restarts.

The file has :data:`SLOTS` slots of :data:`SLOT_BYTES`. A write replaces the oldest one, and each
has a number and a checksum: after a crash or a power cut in the middle of a write the record
before it is the newest. All bytes of the file are written when it is made, so that a disk that is
full later does not matter. Processes take turns by a lock on the file; reading needs none.

Flash wears out by writing: a file takes at most :data:`BURST` writes at once and one more each
:data:`REFILL_S`, whoever asks, 64 in any hour. Times are those of the machine's monotonic clock,
which nobody sets; after a restart of the machine it begins anew, and earns writes from then on.

Run as a program with ``FOLDER [PROJECT]`` it prints the newest record of each file there, as one
JSON document. So hosts read a device. Needs Python 3.8 or newer, and nothing else.
"""

from __future__ import annotations

import binascii
import contextlib
import errno
import fcntl
import json
import os
import stat
import struct
import sys
import time
from typing import Any, Callable, Dict, Iterator, Optional, Tuple

SLOTS = 8
SLOT_BYTES = 8192
SIZE = SLOTS * SLOT_BYTES
BURST = 4
"""Writes that may follow each other."""
REFILL_S = 60.0
"""How long until one more may follow."""
SUFFIX = ".ring"
_HEAD = struct.Struct("<4sIQI")
"""Magic, CRC-32 of what follows it, number of the record, bytes of its JSON."""
_MAGIC = b"EPS1"
_LOCK_S = 1.0
"""How long others may hold the lock; a write takes milliseconds, on a worn SD card more."""
_MOST_FILES = 1000

Record = Dict[str, Any]


class Later(Exception):  # noqa: N818
    """The file takes no write now: too many were made, or another process holds it."""


def update(path: str, change: Callable[[Record], Record]) -> Record:
    """Replace the newest record of a file by a changed one, which is returned; make the file.

    The record is whole in the file on return, and on the disk as far as the system tells.

    Args:
        path: Of the file.
        change: Takes the newest record, ``{}`` where there is none, and returns the next.

    Raises:
        Later: Try again later. Nothing was written.
        OSError: It cannot be written, because the disk is full or the path is no plain file.
            The newest record is as before.
    """
    with _opened(path, os.O_RDWR | os.O_CREAT) as handle:
        _lock(handle)
        _fill(handle, path)
        number, before = _find_newest(handle)
        budget = _take_write(before.get("budget"), time.monotonic())
        record = {**change(before), "budget": budget}
        _write(handle, number + 1, json.dumps(record, separators=(",", ":")).encode("ascii"))
    return record


def read(path: str) -> Optional[Record]:
    """Return the newest whole record of a file; None if it has none.

    Raises:
        OSError: The file cannot be read, or is no plain file.
    """
    with _opened(path, os.O_RDONLY) as handle:
        number, record = _find_newest(handle)
    return record if number else None


@contextlib.contextmanager
def _opened(path: str, how: int) -> Iterator[int]:
    # Who opens a pipe would wait for its other end.
    handle = os.open(path, how | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "it is no plain file", path)
        yield handle
    finally:
        os.close(handle)


def _lock(handle: int) -> None:
    end_s = time.monotonic() + _LOCK_S
    while True:
        try:
            return fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end_s:
                raise Later("another process holds the file") from None
        time.sleep(0.01)


def _fill(handle: int, path: str) -> None:
    """Give the file its size, by bytes that are really there."""
    size = os.fstat(handle).st_size
    if size == SIZE:
        return
    if size > SIZE:
        os.ftruncate(handle, SIZE)
    else:
        _write_all(handle, bytes(SIZE - size), size)
    os.fsync(handle)
    folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _find_newest(handle: int) -> Tuple[int, Record]:
    """Return the number of the newest whole record and the record; 0 where there is none."""
    found = [_parse(os.pread(handle, SLOT_BYTES, slot * SLOT_BYTES)) for slot in range(SLOTS)]
    return max(found, key=lambda each: each[0])


def _parse(slot: bytes) -> Tuple[int, Record]:
    if len(slot) < _HEAD.size:
        return 0, {}
    magic, checksum, number, size = _HEAD.unpack_from(slot)
    said = slot[_HEAD.size : _HEAD.size + size]
    if magic != _MAGIC or len(said) != size or _sum_up(number, said) != checksum:
        return 0, {}
    try:
        record = json.loads(said.decode("ascii"))
    except (ValueError, RecursionError):
        return 0, {}
    return (number, record) if isinstance(record, dict) else (0, {})


def _sum_up(number: int, said: bytes) -> int:
    return binascii.crc32(struct.pack("<QI", number, len(said)) + said)


def _write(handle: int, number: int, said: bytes) -> None:
    if len(said) > SLOT_BYTES - _HEAD.size:
        raise OSError(errno.EFBIG, "the record is longer than a slot")
    head = _HEAD.pack(_MAGIC, _sum_up(number, said), number, len(said))
    _write_all(handle, head + said, number % SLOTS * SLOT_BYTES)
    # From here on who reads finds the record, even if the disk says that it could not keep it: to
    # add the same counts once more would be wrong.
    with contextlib.suppress(OSError):
        getattr(os, "fdatasync", os.fsync)(handle)


def _write_all(handle: int, data: bytes, place: int) -> None:
    while data:
        written = os.pwrite(handle, data, place)
        data, place = data[written:], place + written


def _take_write(budget: Any, now_s: float) -> Dict[str, float]:
    """Return what is left after one more write.

    Raises:
        Later: None is left.
    """
    try:
        left, at_s = float(budget["left"]), float(budget["at_s"])
    except (KeyError, TypeError, ValueError):
        left, at_s = float(BURST), now_s
    # The clock is behind where the machine was started again.
    earned = (now_s - at_s if at_s <= now_s else now_s) / REFILL_S
    left = min(float(BURST), left + earned)
    if not left >= 1:
        raise Later("the file took as many writes as it takes in this time")
    return {"left": round(left - 1, 3), "at_s": round(now_s, 3)}


def main(folder: str, project: str = "") -> None:
    """Print the newest record of each file in a folder, or of those of one project."""
    folder = os.path.expanduser(folder)
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    files = []
    for name in [name for name in names if name.endswith(SUFFIX)][:_MOST_FILES]:
        problem, record = "", None
        try:
            record = read(os.path.join(folder, name))
        except OSError as error:
            problem = error.strerror or str(error)
        if project in ("", (record or {}).get("model")):
            shown = name.encode("utf-8", "backslashreplace").decode("utf-8")
            files.append({"name": shown, "problem": problem, "record": record})
    print(json.dumps({"is_there": os.path.isdir(folder), "files": files}))


if __name__ == "__main__":
    main(*sys.argv[1:])

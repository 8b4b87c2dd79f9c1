"""Cuts files into chunks by their content, so that inserted bytes move no other cut.

A cut lies behind every 8 bytes whose product with an odd constant, modulo 2**64, begins with
certain bits: on average every 64 KiB, as far as chunks get neither shorter than 16 KiB nor longer
than 256 KiB. With chunks of a fixed size, a model whose header grew by 14 bytes would share nothing
with the one before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

SHORTEST = 1 << 14
LONGEST = 1 << 18
_WINDOW = 8
_BITS = 16
_FACTOR = 0x9E3779B97F4A7C15
"""2**64 over the golden ratio, made odd: Knuth's multiplicative hashing."""
_PATTERN = 0x5A5A
"""Not 0: in a run of zeros there would be a cut behind every byte."""
_BLOCK = 1 << 20


@dataclass(frozen=True)
class Chunk:
    """A part of a file."""

    path: Path
    offset: int
    size: int
    """Bytes, at most ``LONGEST``."""
    sha256: str

    def read(self) -> bytes:
        """Return its bytes."""
        with self.path.open("rb") as file:
            file.seek(self.offset)
            return file.read(self.size)


def cut_file(path: Path) -> list[Chunk]:
    """Return a file's chunks, in order; an empty file has none."""
    chunks: list[Chunk] = []
    size = path.stat().st_size
    with path.open("rb") as file:
        start = 0
        for end in [*_list_ends(path, size), size] if size else []:
            data = file.read(end - start)
            chunks.append(Chunk(path, start, len(data), hashlib.sha256(data).hexdigest()))
            start = end
    return chunks


def _list_ends(path: Path, size: int) -> Iterator[int]:
    """Yield where chunks of a file end, but for the last one."""
    start = 0
    for cut in chain(_find_cuts(path, size) if size > SHORTEST else (), [size]):
        while cut - start > LONGEST:
            start += LONGEST
            yield start
        if cut - start >= SHORTEST and cut < size:
            start = cut
            yield start


def _find_cuts(path: Path, size: int) -> Iterator[int]:
    """Yield the positions at which the content requires a cut."""
    import numpy as np

    factor, pattern, rest = map(np.uint64, (_FACTOR, _PATTERN, 64 - _BITS))
    with path.open("rb") as file:  # not mapped: what was mapped counts as this process's memory
        for begin in range(0, size, _BLOCK):
            file.seek(begin)
            block = np.frombuffer(file.read(_BLOCK + _WINDOW - 1), np.uint8)
            found = []
            for shift in range(_WINDOW):
                count = (len(block) - shift) // _WINDOW
                words = block[shift : shift + count * _WINDOW].view("<u8") * factor
                hits = np.flatnonzero(words >> rest == pattern)
                found.append(hits * _WINDOW + shift + _WINDOW)
            yield from (begin + int(position) for position in np.sort(np.concatenate(found)))

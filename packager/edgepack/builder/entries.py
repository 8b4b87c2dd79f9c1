"""Entries of the cache as bytes, for when they leave this machine.

An entry is:

- a line of JSON: the step's key, and the hash and size of each file;
- a line with the HMAC-SHA256 of the first line by a secret, or empty;
- the files' bytes, in the order of their names.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

INDEX = "artifact.json"
"""What the cache writes into an entry's folder; it is made anew where the entry arrives."""
_FORMAT = 1
_MOST_HEADER = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}")


class DamagedError(Exception):
    """Bytes are not the entry that they are given as, and are not used."""


def pack_entry(key: str, paths: Iterable[Path], secret: bytes = b"") -> bytes:
    """Return an entry with these files, which :func:`write_entry` takes apart.

    Raises:
        OSError: A file is not there any more.
    """
    files = {path.name: path.read_bytes() for path in sorted(paths)}
    header = {
        "schema_version": _FORMAT,
        "key": key,
        "files": {name: hashlib.sha256(data).hexdigest() for name, data in files.items()},
        "sizes": {name: len(data) for name, data in files.items()},
    }
    line = json.dumps(header, sort_keys=True).encode()
    return b"\n".join((line, _sign(line, secret), b"".join(files.values())))


def write_entry(key: str, chunks: Iterable[bytes], folder: Path, secret: bytes = b"") -> None:
    """Write an entry's files into an empty folder, each proven by its hash.

    Args:
        key: What the entry has to be of.
        chunks: Its bytes, in pieces of any size.
        folder: Where its files go.
        secret: What it has to be signed with; without one a signature is not looked at.

    Raises:
        DamagedError: It is not whole, not this key's, or not signed with the secret.
    """
    source = _Source(iter(chunks))
    line, mac = source.read_line(), source.read_line()
    if secret and not hmac.compare_digest(mac, _sign(line, secret)):
        raise DamagedError("it is not signed with this secret")
    try:
        header = json.loads(line)
        of, files, sizes = header["key"], dict(header["files"]), dict(header["sizes"])
        is_right = of == key and files.keys() == sizes.keys() and all(map(is_plain_name, files))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedError("it does not begin as an entry") from error
    if not is_right:
        raise DamagedError("it is not an entry of this step")
    for name in sorted(files):
        _write_file(folder / name, source, sizes[name], files[name])
    if source.read_some():
        raise DamagedError("it is longer than it says")


def is_plain_name(name: str) -> bool:
    """Return whether a file of an entry may be called so."""
    return name != INDEX and bool(_NAME.fullmatch(name))


def _sign(line: bytes, secret: bytes) -> bytes:
    return hmac.new(secret, line, hashlib.sha256).hexdigest().encode() if secret else b""


@dataclass
class _Source:
    """Bytes that arrive in pieces of any size."""

    chunks: Iterator[bytes]
    held: bytes = b""

    def read_line(self) -> bytes:
        while b"\n" not in self.held:
            if len(self.held) > _MOST_HEADER or not (more := next(self.chunks, b"")):
                raise DamagedError("it does not begin as an entry")
            self.held += more
        line, _, self.held = self.held.partition(b"\n")
        return line

    def read_some(self) -> bytes:
        """Return what comes next; nothing at the end."""
        found, self.held = self.held or next(self.chunks, b""), b""
        return found


def _write_file(path: Path, source: _Source, size: object, sha256: object) -> None:
    if not isinstance(size, int) or size < 0:
        raise DamagedError("it is not an entry of this step")
    digest, left = hashlib.sha256(), size
    with path.open("wb") as file:
        while left:
            chunk = source.read_some()
            if not chunk:
                raise DamagedError(f"{left} bytes of {path.name} are missing")
            chunk, source.held = chunk[:left], chunk[left:]
            digest.update(chunk)
            file.write(chunk)
            left -= len(chunk)
    if digest.hexdigest() != sha256:
        raise DamagedError(f"{path.name} has another hash")

"""Knows the shared library with operators of the user's own that sessions of this process register.

The library is native code that edgepack knows nothing about: it is loaded in worker processes only.
What can be said without loading it is read from its file.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

REGISTER = "RegisterCustomOps"
"""The function that onnxruntime calls in such a library. Source: onnxruntime_c_api.h,
``RegisterCustomOpsLibrary``."""

_MACHINES = {"x86-64": 62, "aarch64": 183}
"""``e_machine`` of an ELF file by architecture. Source: elf.h, EM_X86_64 and EM_AARCH64."""
_HEADER = struct.Struct("<4sBB10xHH")
"""The first fields of a little-endian ELF header: magic, class, data, type, machine (elf(5))."""
_64_BITS, _LITTLE_ENDIAN, _SHARED = 2, 1, 3


class _Here:
    """What the sessions of this process register. A worker runs one call at a time."""

    library: Path | None = None


@contextmanager
def registered(library: Path | None) -> Iterator[None]:
    """Have all sessions that are made inside register a library's operators; None registers none.

    Only the path is kept: the library is loaded when a session is made.
    """
    before, _Here.library = _Here.library, library
    try:
        yield
    finally:
        _Here.library = before


def find_registered() -> Path | None:
    """Return the library that sessions of this process register, for a process that helps."""
    return _Here.library


def explain_unusable(data: bytes, architecture: str, function: str = REGISTER) -> str:
    """Return why a file is no library with a function for an architecture; empty if it may be.

    A library that names the function to call somewhere may still not export it: only loading shows
    that, which is done for this machine's library.

    Args:
        data: The file's bytes.
        architecture: ``x86-64`` or ``aarch64``.
        function: Its name; by default the one that onnxruntime calls for custom operators.
    """
    if len(data) < _HEADER.size or not data.startswith(b"\x7fELF"):
        return "it is no ELF file, which shared libraries of Linux are"
    _, bits, order, kind, machine = _HEADER.unpack_from(data)
    if (bits, order, machine) != (_64_BITS, _LITTLE_ENDIAN, _MACHINES[architecture]):
        names = {number: name for name, number in _MACHINES.items()}
        found = names.get(machine, f"another processor (ELF machine {machine})")
        return f"it is built for {found}, not for {architecture}"
    if kind != _SHARED:
        return f"it is no shared library (ELF type {kind})"
    if b"\0" + function.encode() + b"\0" not in data:
        return f"it does not export the function {function}, which has to be there"
    return ""


def explain_not_loading(said: str) -> tuple[str, str]:
    """Return why a library does not load, and what to do about it.

    Source: the messages are those of glibc 2.36 and onnxruntime 1.31.1, each seen.

    Args:
        said: The message of onnxruntime, in one line.
    """
    why = re.sub(r"^Failed to load library \S+ with error: ", "", said)
    if REGISTER in why:
        return why, f"export the function {REGISTER} from it, with C linkage"
    if found := re.search(r"version `([A-Za-z]+_[\d.]+)' not found", why):
        return why, f"build it on a system whose libraries are no newer: {found[1]} is not here"
    if "cannot open shared object file" in why:
        return why, "install what it needs, or link it in"
    if "undefined symbol" in why:
        return why, "link the library that has the symbol"
    return why, "build it for this machine, against headers of the onnxruntime that is used here"

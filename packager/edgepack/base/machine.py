"""Finds the properties of this machine that change results."""

from __future__ import annotations

import os
import platform
import pwd
import re
import socket
from functools import cache
from pathlib import Path

_VECTORS = {"avx", "avx2", "fma", "avx512f", "asimddp", "i8mm", "sve"}


@cache
def read_cpu_flags() -> frozenset[str]:
    """Return the CPU's flags as ``/proc/cpuinfo`` spells them; empty where there is none."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return frozenset()
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


@cache
def read_cpu_model() -> str:
    """Return the processor's name, as ``/proc/cpuinfo`` has it; else what the system says."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    found = re.search(r"^(?:model name|Model)\s*: *(.+)$", text, re.MULTILINE)
    return found[1] if found else platform.processor() or find_architecture()


def find_user() -> str:
    """Return the name of the user who runs this process, whatever the environment says."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid {os.getuid()}"


def find_own_name() -> str:
    """Return ``user@host`` as :func:`format_name` does, for this user and machine."""
    return format_name(find_user(), socket.gethostname())


def format_name(user: str, host: str) -> str:
    """Return ``user@host`` as a word of at most 100 characters, which any shell and JSON takes."""
    return re.sub(r"[^A-Za-z0-9._@-]", "_", f"{user}@{host}")[:100]


def has_vnni() -> bool:
    """Return whether 8-bit dot products do not saturate on this x86 processor."""
    return bool(read_cpu_flags() & {"avx512_vnni", "avx_vnni"})


def find_architecture() -> str:
    """Return ``x86-64``, ``aarch64``, or the system's own name for any other architecture."""
    machine = platform.machine()
    return {"x86_64": "x86-64", "AMD64": "x86-64", "arm64": "aarch64"}.get(machine, machine)


def find_processor() -> str:
    """Return the kind of processor that decides the bits of int8 kernels: with VNNI or without."""
    kind = find_architecture()
    return f"{kind}-vnni" if kind == "x86-64" and has_vnni() else kind


def find_vectors() -> str:
    """Return the vector instructions that decide the last bits of products of floats.

    By them numpy's OpenBLAS (``driver/others/dynamic.c`` there) and onnxruntime's MLAS
    (``onnxruntime/core/mlas/lib/platform.cpp``) choose their kernels.
    """
    return " ".join(sorted(read_cpu_flags() & _VECTORS))


def count_cores() -> int:
    """Return how many cores this process may use, at least 1."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def read_available_memory() -> int:
    """Return how much memory a process can take without evicting others, within container limits.

    Source: ``MemAvailable`` of /proc/meminfo, and memory.max and memory.current of cgroup v2 (Linux
    kernel documentation). On other systems it is half of the machine's memory.
    """
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    group = Path("/sys/fs/cgroup")
    try:
        limit, used = (
            (group / name).read_text(encoding="utf-8").strip()
            for name in ("memory.max", "memory.current")
        )
    except OSError:
        return free
    return free if limit == "max" else min(free, max(0, int(limit) - int(used)))

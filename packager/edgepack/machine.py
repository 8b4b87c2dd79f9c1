"""What this machine is, as far as it decides results."""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path


@cache
def cpu_flags() -> frozenset[str]:
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


def has_vnni() -> bool:
    """Return whether 8-bit dot products do not saturate on this x86 processor."""
    return bool(cpu_flags() & {"avx512_vnni", "avx_vnni"})


def architecture() -> str:
    """Return ``x86-64``, ``aarch64``, or the system's own word for anything else."""
    machine = platform.machine()
    return {"x86_64": "x86-64", "AMD64": "x86-64", "arm64": "aarch64"}.get(machine, machine)


def processor() -> str:
    """Return the kind of processor that decides the bits of int8 kernels: with VNNI or without."""
    kind = architecture()
    return f"{kind}-vnni" if kind == "x86-64" and has_vnni() else kind

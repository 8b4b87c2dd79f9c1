"""The unit's filter of system calls, as runc takes it: the same names, refused in the same way.

Sources: systemd.exec(5), SystemCallFilter= and MemoryDenyWriteExecute=; of the latter the calls in
src/shared/seccomp-util.c, seccomp_memory_deny_write_execute (systemd 252).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from tests.service.served import run_checked

READ_WRITE_EXECUTE = 7
WRITE, EXECUTE = 2, 4
SHM_EXEC = 0o100000
ALLOW, REFUSE, EPERM = "SCMP_ACT_ALLOW", "SCMP_ACT_ERRNO", 1


def make_seccomp(unit: str) -> dict[str, Any]:
    """Return ``linux.seccomp`` of a runtime's config for a unit."""
    allowed = set(_expand(["@default"]))
    for line in re.findall(r"^SystemCallFilter=(.*)$", unit, re.MULTILINE):
        if line.startswith("~"):
            allowed -= set(_expand(line[1:].split()))
        else:
            allowed |= set(_expand(line.split()))
    rules = []
    if "MemoryDenyWriteExecute=yes" in unit:
        both = WRITE | EXECUTE
        checked: dict[str, list[tuple[int, int]]] = {
            "mmap": [(both, 0), (both, WRITE), (both, EXECUTE)],
            "mprotect": [(EXECUTE, 0)],
            "pkey_mprotect": [(EXECUTE, 0)],
            "shmat": [(SHM_EXEC, 0)],
        }
        rules = [
            _make_rule([name], [{"index": 2, "value": mask, "valueTwo": value, "op": _MASKED}])
            for name, values in checked.items()
            for mask, value in values
        ]
        allowed -= set(checked)
    return {
        "defaultAction": REFUSE,
        "defaultErrnoRet": EPERM,
        "architectures": ["SCMP_ARCH_X86_64"],
        "syscalls": [_make_rule(sorted(allowed), []), *rules],
    }


_MASKED = "SCMP_CMP_MASKED_EQ"


def _make_rule(names: list[str], arguments: list[dict[str, object]]) -> dict[str, object]:
    return {"names": names, "action": ALLOW, "args": arguments}


def _expand(names: Iterable[str]) -> Iterator[str]:
    """Yield the calls of systemd's groups, and the others as they are."""
    for name in names:
        if not name.startswith("@"):
            yield name
            continue
        lines = run_checked(["systemd-analyze", "syscall-filter", name]).splitlines()[1:]
        words = [line.strip() for line in lines]
        yield from _expand(word for word in words if word and not word.startswith("#"))

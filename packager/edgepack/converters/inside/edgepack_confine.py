"""Confines this process for good, before it reads a model that somebody else made.

It may read what is named, write into one folder, and reach no network. It is the process itself
that gives these rights up, with Linux's Landlock and a seccomp filter; nothing has to be installed,
and it needs no rights of its own. On macOS the parent starts it in Apple's sandbox instead.

Sources: linux/landlock.h and "Landlock: unprivileged access control" (docs.kernel.org,
userspace-api), linux/seccomp.h, linux/filter.h, the tables of system calls of x86-64 and of
asm-generic/unistd.h.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
import sysconfig
from typing import List, Sequence

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same number on all processors
_RULESET_VERSION = 1
_PATH_BENEATH = 1
# LANDLOCK_ACCESS_FS_*: EXECUTE, READ_FILE and READ_DIR are bits 0, 2 and 3.
_READ_FILE, _READ = 1 << 0 | 1 << 2, 1 << 0 | 1 << 2 | 1 << 3
_WRITE_NULL = 1 << 1
# How many kinds of access a version of Landlock knows: REFER came with 2, TRUNCATE with 3,
# IOCTL_DEV with 5. What a kernel does not know it cannot be asked to refuse.
_KNOWN_BITS = {1: 13, 2: 14, 3: 15, 4: 15}
_NEWEST_BITS = 16
# From version 4 on also binding to and connecting with TCP ports, from 6 on abstract UNIX sockets
# and signals to processes outside.
_NET, _SCOPED = 3, 3
_O_PATH = 0o10000000

_SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/sbin", "/sys", "/dev/urandom", "/dev/null")
# Not all of /proc: the environment and the command of every other process of the user is in it,
# which Landlock lets a process read (seen with Linux 6.18).
_PROCESS = (
    "/proc/self",
    "/proc/cpuinfo",
    "/proc/filesystems",
    "/proc/meminfo",
    "/proc/stat",
    "/proc/sys",
    "/proc/version",
)
_SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/localtime", "/etc/mime.types", "/etc/ssl/openssl.cnf")

# By processor: the number that names it in a filter (linux/audit.h), then system calls by number:
# those that make sockets, look into other processes, change what is said about files, or reach what
# a filter does not see.
_REFUSED = {
    "x86_64": (
        0xC000003E,
        {
            "socket": 41,
            "ptrace": 101,
            "add_key": 248,
            "request_key": 249,
            "keyctl": 250,
            "process_vm_readv": 310,
            "process_vm_writev": 311,
            "bpf": 321,
            "io_uring_setup": 425,
            # Landlock does not restrict what is said about a file, nor truncate(2) at first.
            "truncate": 76,
            "chmod": 90,
            "fchmod": 91,
            "chown": 92,
            "fchown": 93,
            "lchown": 94,
            "utime": 132,
            "setpriority": 141,
            "setxattr": 188,
            "lsetxattr": 189,
            "fsetxattr": 190,
            "removexattr": 197,
            "lremovexattr": 198,
            "fremovexattr": 199,
            "utimes": 235,
            "fchownat": 260,
            "futimesat": 261,
            "fchmodat": 268,
            "utimensat": 280,
            "fchmodat2": 452,
            "setxattrat": 463,
            "removexattrat": 466,
        },
    ),
    "aarch64": (
        0xC00000B7,
        {
            "ptrace": 117,
            "socket": 198,
            "add_key": 217,
            "request_key": 218,
            "keyctl": 219,
            "process_vm_readv": 270,
            "process_vm_writev": 271,
            "bpf": 280,
            "io_uring_setup": 425,
            "setxattr": 5,
            "lsetxattr": 6,
            "fsetxattr": 7,
            "removexattr": 14,
            "lremovexattr": 15,
            "fremovexattr": 16,
            "truncate": 45,
            "fchmod": 52,
            "fchmodat": 53,
            "fchownat": 54,
            "fchown": 55,
            "utimensat": 88,
            "setpriority": 140,
            "fchmodat2": 452,
            "setxattrat": 463,
            "removexattrat": 466,
        },
    ),
}
_X32 = 0x40000000
_EPERM = 1


class CannotConfine(Exception):
    """This system cannot confine a process, and says why."""


def confine(readable: Sequence[str], writable: str) -> str:
    """Give up everything but reading some files and folders, and writing into one.

    What Python and its packages need is readable, too. Must be called before a thread starts, as
    only the calling thread and what it starts are confined.

    Returns:
        What confines this process, for people.

    Raises:
        CannotConfine: The kernel has no Landlock, or the processor's system calls are not known.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _RULESET_VERSION)
    if version < 1:
        raise CannotConfine(
            "the kernel has no Landlock (Linux 5.13 and newer, unless a container forbids it)"
        )
    if platform.machine() not in _REFUSED:
        raise CannotConfine("its system calls are not known for %s" % platform.machine())
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise CannotConfine("the kernel gives no process up its privileges")
    _restrict_files(libc, version, _list_own_places() + list(readable), writable)
    _restrict_calls(libc)
    return "Landlock %d and seccomp: no network, reads what it needs, writes one folder" % version


def _list_own_places() -> List[str]:
    """Return where Python, its packages and the libraries loaded so far lie."""
    found = [sys.prefix, sys.base_prefix, sys.exec_prefix, os.path.dirname(sys.executable)]
    found += [path for path in sys.path if path and os.path.isabs(path)]
    found += sysconfig.get_paths().values()
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        mapped = {line.split(None, 5)[5].rstrip() for line in maps if len(line.split(None, 5)) > 5}
    found += sorted({os.path.dirname(path) for path in mapped if path.startswith("/")})
    # Whatever lies at the root is not a place of its own.
    return [path for path in found if os.path.realpath(path) != "/"] + [
        *_SYSTEM,
        *_PROCESS,
        *_SYSTEM_FILES,
    ]


def _restrict_files(
    libc: ctypes.CDLL, version: int, readable: Sequence[str], writable: str
) -> None:
    every = (1 << _KNOWN_BITS.get(version, _NEWEST_BITS)) - 1
    net, scoped = (_NET if version >= 4 else 0), (_SCOPED if version >= 6 else 0)
    fields = [every] + ([net] if version >= 4 else []) + ([scoped] if version >= 6 else [])
    attributes = struct.pack("=%dQ" % len(fields), *fields)
    ruleset = libc.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0)
    if ruleset < 0:
        raise CannotConfine("the kernel takes no rules of Landlock's: %s" % _explain())
    for path in readable:
        _allow(libc, ruleset, path, _READ if os.path.isdir(path) else _READ_FILE)
    _allow(libc, ruleset, "/dev/null", _READ_FILE | _WRITE_NULL)
    _allow(libc, ruleset, writable, every)
    if libc.syscall(_RESTRICT_SELF, ruleset, 0):
        raise CannotConfine("the kernel does not confine this process: %s" % _explain())
    os.close(ruleset)


def _allow(libc: ctypes.CDLL, ruleset: int, path: str, access: int) -> None:
    try:
        place = os.open(path, _O_PATH | os.O_CLOEXEC)
    except OSError:  # what is not there cannot be read either
        return
    rule = struct.pack("=Qi", access, place)
    failed = libc.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, rule, 0)
    os.close(place)
    if failed:
        raise CannotConfine("the kernel takes no rule for %s: %s" % (path, _explain()))


def _restrict_calls(libc: ctypes.CDLL) -> None:
    """Let system calls fail that make sockets or look into other processes."""
    machine, calls = _REFUSED[platform.machine()]
    numbers = sorted(calls.values())
    # BPF: load the processor, then the call's number, and compare with each.
    load, equal, at_least, give = 0x20, 0x15, 0x35, 0x06
    kill, refuse, allow = 0x80000000, 0x00050000 | _EPERM, 0x7FFF0000
    program = [(load, 0, 0, 4), (equal, 1, 0, machine), (give, 0, 0, kill), (load, 0, 0, 0)]
    program.append((at_least, len(numbers) + 1, 0, _X32))
    for place, number in enumerate(numbers):
        program.append((equal, len(numbers) - place, 0, number))
    program += [(give, 0, 0, allow), (give, 0, 0, refuse)]
    code = b"".join(struct.pack("=HBBI", *line) for line in program)
    kept = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("@HP", len(program), ctypes.addressof(kept))
    if libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.c_char_p(header), 0, 0):
        raise CannotConfine("the kernel takes no filter of system calls: %s" % _explain())


def _explain() -> str:
    return os.strerror(ctypes.get_errno())

"""What a board's root lies on: a folder, a disk that can fill, or one that can lose power."""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.chaos.labs import Board, Lab
from tests.support.servers.loopback import wait_until

DISK_BYTES = 64 << 20
DISK_INODES = 4000
UMOUNT_S = 20.0
_SHUTDOWN = 0x8004587D
"""``EXT4_IOC_SHUTDOWN``, fs/ext4/ext4.h: ``_IOR('X', 125, __u32)``."""
_WITHOUT_FLUSH = 2
"""``EXT4_GOING_FLAGS_NOLOGFLUSH``, fs/ext4/ext4.h: neither the log nor data are written first."""
_OPTIONS = "loop,commit=1,noauto_da_alloc,data=writeback"
"""Names go to the disk each second, and without the content of the files that they name: as ext4
is mounted by default, it would hide most of what is not synced."""


def can_mount() -> bool:
    """Say whether this process may make file systems."""
    status = Path("/proc/self/status").read_text()
    capabilities = int(status.partition("CapEff:")[2].split()[0], 16)
    return bool(capabilities >> 21 & 1)  # CAP_SYS_ADMIN


def can_cut_power() -> bool:
    """Say whether this process may make file systems on loop devices."""
    return can_mount() and bool(shutil.which("mkfs.ext4")) and Path("/dev/loop-control").exists()


@contextmanager
def on_plain_disk(lab: Lab, board: Board) -> Iterator[Path]:
    """Give a root with the old release."""
    root = lab.folder / "root"
    board.copy_base(root)
    yield root


@contextmanager
def on_small_disk(lab: Lab, board: Board) -> Iterator[Path]:
    """Give a root with the old release on a file system of its own, whose limits can change."""
    options = f"size={DISK_BYTES},nr_inodes={DISK_INODES}"
    with _mounted(lab, ["-t", "tmpfs", "-o", options, "tmpfs"]) as disk:
        board.copy_base(disk / "root")
        yield disk / "root"


@contextmanager
def on_image(lab: Lab, board: Board) -> Iterator[Path]:
    """Give a root with the old release, safely on an ext4 file system in a file."""
    image = _image(lab)
    image.unlink(missing_ok=True)
    with image.open("wb") as file:
        file.truncate(DISK_BYTES)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)
    with _mounted(lab, ["-o", _OPTIONS, str(image)]) as disk:
        board.copy_base(disk / "root")
        subprocess.run(["sync", "-f", str(disk)], check=True)
        yield disk / "root"


@contextmanager
def _mounted(lab: Lab, what: list[str]) -> Iterator[Path]:
    disk = lab.folder / "disk"
    disk.mkdir(exist_ok=True)
    _mount(what, disk)
    try:
        yield disk
    finally:
        _unmount(lab, disk)


def _mount(what: list[str], disk: Path) -> None:
    subprocess.run(["mount", *what, str(disk)], check=True)


def _unmount(lab: Lab, disk: Path) -> None:
    """End all that runs on the boards, and unmount."""

    def ended() -> bool:
        lab.end_programs()
        if disk.is_mount():
            subprocess.run(["umount", str(disk)], capture_output=True, check=False)
        return not disk.is_mount()

    if not wait_until(ended, UMOUNT_S):
        raise RuntimeError(f"umount {disk} failed for {UMOUNT_S:g} s")


def _image(lab: Lab) -> Path:
    return lab.folder / "disk.ext4"


def remount(root: Path, options: str) -> bool:
    """Change a mounted disk; say whether the kernel did."""
    argv = ["mount", "-o", f"remount,{options}", str(root.parent)]
    return subprocess.run(argv, check=False, capture_output=True).returncode == 0


def commit_names(root: Path) -> None:
    """Write the journal to the disk, but no file's content; the kernel does so at any time."""
    os.utime(root.parent)  # a folder that has not changed has nothing to commit
    handle = os.open(root.parent, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def cut_power(lab: Lab, board: Board, root: Path) -> None:
    """Let the disk of :func:`on_image` be what was written to it by now, and start the board anew.

    ext4's shutdown takes effect at once: nothing that is only in memory is written any more. The
    disk is copied then. All programs and connections end, and the copy is mounted in its place,
    which replays its journal. What this does not show: a drive that loses what is in its own cache,
    or tears a sector; and programs live on for some milliseconds, in which all they do to the disk
    fails.
    """
    handle = os.open(root.parent, os.O_RDONLY)
    try:
        fcntl.ioctl(handle, _SHUTDOWN, struct.pack("I", _WITHOUT_FLUSH))
    finally:
        os.close(handle)
    image = lab.folder / "disk-after.ext4"
    image.unlink(missing_ok=True)
    # A copy, as a namespace of somebody else's may keep the one that was shut down mounted.
    subprocess.run(["cp", "--sparse=always", str(_image(lab)), str(image)], check=True)
    board.server.drop_connections()
    _unmount(lab, root.parent)
    _mount(["-o", _OPTIONS, str(image)], root.parent)
